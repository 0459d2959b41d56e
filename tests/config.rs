//! Configuration files, from outside: what is refused and how, what is in force, the presets' bytes.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;

use kvtide::config::{
    Compaction, Config, ConfigError, Engine, Policy, Prefer, Quota, Windows, joint_pages,
    page_bytes, preset_names,
};
use kvtide_core::chain::{Grow, PoolKind, PoolSpec};
use kvtide_core::demand::Demand;
use kvtide_core::fit::Geometry;
use kvtide_core::unit::{Bytes, Pages, Tokens};
use serde_json::json;

/// A file that is right; tests break it one line at a time.
const RIGHT: &str = r#"
[arena]
total_bytes = "1 GiB"

[model]
name = "tiny"
page_tokens = 16

[[model.pools]]
name = "full"
kind = "full"
grow = "up"
layers = 2
kv_heads = 2
head_dim = 64
dtype = "bf16"

[[model.pools]]
name = "swa"
kind = "window"
grow = "down"
window_tokens = 64
entry_bytes = 1024

[cache]
policy = "lru"
"#;

#[track_caller]
fn refused(text: &str) -> String {
    let message = Config::parse("tide.toml", text).expect_err("must be refused").to_string();
    assert!(!message.contains('\n'), "one line: {message}");
    message
}

/// One row a mistake: what is replaced, by what, and the whole line that says so.
const MISTAKES: &[(&str, &str, &str)] = &[
    // Words.
    (
        POLICY,
        "slru_protected_hits = 0",
        "26:23: `cache.slru_protected_hits` = 0: invalid value: integer `0`, expected an integer from 1 to 4294967295",
    ),
    (
        POLICY,
        "tlru_latency_tokens = -1",
        "26:23: `cache.tlru_latency_tokens` = -1: invalid value: integer `-1`, expected an integer from 0 to 4294967295",
    ),
    (
        POLICY,
        "policy = \"random\"",
        "26:10: `cache.policy` = \"random\": `random` is unknown, expected \"lru\" or \"lfu\" or \"fifo\" or \"mru\" or \"filo\" or \"priority\" or \"slru\" or \"tlru\"",
    ),
    (
        POLICY,
        "policy = 3",
        "26:10: `cache.policy` = 3: invalid type: integer `3`, expected \"lru\" or \"lfu\" or \"fifo\" or \"mru\" or \"filo\" or \"priority\" or \"slru\" or \"tlru\"",
    ),
    (
        POLICY,
        "[state]\ntrack = \"last\"",
        "27:9: `state.track` = \"last\": `last` is not supported yet, expected \"off\"",
    ),
    (
        POLICY,
        "[state]\nmax_per_path = 4",
        "27:16: `state.max_per_path` = 4: invalid type: integer `4`, expected \"none\" (a number is not supported yet)",
    ),
    (
        POLICY,
        "[device]\nengine = \"cuda\"",
        "27:10: `device.engine` = \"cuda\": `cuda` is not supported yet, expected \"host\" or \"accounting\"",
    ),
    // Numbers.
    (
        POLICY,
        "[queue]\ncapacity = 0",
        "27:12: `queue.capacity` = 0: invalid value: integer `0`, expected an integer from 1 to 1048576",
    ),
    (
        POLICY,
        "[device]\ncopy_timeout_ms = \"1s\"",
        "27:19: `device.copy_timeout_ms` = \"1s\": invalid type: string \"1s\", expected an integer from 1 to 3600000",
    ),
    (
        POLICY,
        "[device]\nqueue_depth = 4294967296",
        "27:15: `device.queue_depth` = 4294967296: invalid value: integer `4294967296`, expected an integer from 1 to 65536",
    ),
    (
        "page_tokens = 16",
        "page_tokens = 0",
        "7:15: `model.page_tokens` = 0: invalid value: integer `0`, expected an integer from 1 to 65536",
    ),
    // Sizes.
    (
        TOTAL,
        "total_bytes = \"64G\"",
        "3:15: `arena.total_bytes` = \"64G\": the unit of `64G` is ambiguous: write `64 GiB` (powers of 1024) or `64 GB` (powers of 1000)",
    ),
    (
        TOTAL,
        "total_bytes = -1",
        "3:15: `arena.total_bytes` = -1: invalid value: integer `-1`, expected a size: bytes as an integer of at least 0, or text such as \"64 GiB\" or \"64 GB\"",
    ),
    (
        TOTAL,
        "total_bytes = 1.5",
        "3:15: `arena.total_bytes` = 1.5: invalid type: floating point `1.5`, expected a size: bytes as an integer of at least 0, or text such as \"64 GiB\" or \"64 GB\"",
    ),
    (
        TOTAL,
        "total_bytes = \"99999999 TiB\"",
        "3:15: `arena.total_bytes` = \"99999999 TiB\": `99999999 TiB` is more than 18446744073709551615 bytes",
    ),
    (
        POLICY,
        "[reclaim]\nquota = \"0 MiB\"",
        "27:9: `reclaim.quota` = \"0 MiB\": `0 MiB`: expected \"none\", \"demand\" or a size of at least 1 byte",
    ),
    (
        POLICY,
        "[reclaim]\nquota = \"some\"",
        "27:9: `reclaim.quota` = \"some\": `some` is unknown, expected \"none\", \"demand\" or a size of at least 1 byte",
    ),
    // Keys.
    (
        POLICY,
        "polcy = \"lru\"",
        "26:1: `cache.polcy` = \"lru\": unknown field `polcy`, expected one of `compaction`, `policy`, `slru_protected_hits`, `tlru_latency_tokens`, `tlru_next_prompt_tokens`, `max_sessions`",
    ),
    (
        "[cache]",
        "[cahce]",
        "25:2: `cahce`: unknown field `cahce`, expected one of `arena`, `model`, `cache`, `reclaim`, `state`, `pin`, `queue`, `device`, `service`",
    ),
    (
        TOTAL,
        "",
        "2:2: `arena`: `total_bytes` is missing, expected the arena's size, such as \"64 GiB\"",
    ),
    ("name = \"tiny\"", "name = \"tiny\"\nname = \"tiny\"", "7:1: duplicate key"),
    (
        "name = \"tiny\"",
        "name = \"tiny\"\npreset = \"mellum2\"",
        "7:1: `model.preset` = \"mellum2\": `preset` has no place beside pools",
    ),
    // Syntax.
    (TOTAL, "total_bytes = ", "3:15: string values must be quoted, expected literal string"),
    ("[cache]", "[cache", "25:7: unclosed table, expected `]`"),
    // Geometry of one pool.
    (
        "window_tokens = 64\n",
        "",
        "18:1: `model.pools[1]`: `window_tokens` is missing, expected the tokens that a layer attends to",
    ),
    (
        "layers = 2\n",
        "",
        "9:1: `model.pools[0]`: `layers` is missing, expected the number of layers, or `entry_bytes`",
    ),
    (
        "head_dim = 64",
        "head_dim = 64\nk_dim = 4",
        "16:1: `model.pools[0].k_dim` = 4: `k_dim` has no place beside `head_dim`",
    ),
    (
        ENTRY,
        "entry_bytes = 1024\nlayers = 2",
        "24:1: `model.pools[1].layers` = 2: `layers` has no place beside `entry_bytes`",
    ),
    (
        ENTRY,
        "entry_bytes = 0",
        "18:1: `model.pools[1]`: the pool's page would have 0 bytes, expected at least 1 and at most 2^63",
    ),
    (
        ENTRY,
        "entry_bytes = \"8388608 TiB\"",
        "18:1: `model.pools[1]`: the pool's page would have 147573952589676412928 bytes, expected at least 1 and at most 2^63",
    ),
    (
        "dtype = \"bf16\"",
        "dtype = \"bf8\"",
        "16:9: `model.pools[0].dtype` = \"bf8\": `bf8` is unknown, expected \"bf16\" or \"fp16\" or \"fp32\" or \"fp8\" or \"int8\"",
    ),
    (
        "dtype = \"bf16\"",
        "dtype = \"bf16\"\nconv = { channels = 4, kernel = 4, dtype = \"bf16\" }",
        "17:1: `model.pools[0].conv`: `conv` has no place in a token pool",
    ),
    (
        "dtype = \"bf16\"",
        "dtype = \"bf16\"\nconv = { chanels = 4 }",
        "17:10: `model.pools[0].conv.chanels` = 4: unknown field `chanels`, expected one of `channels`, `kernel`, `dtype`",
    ),
    // The chain.
    (
        "grow = \"down\"",
        "grow = \"up\"",
        "21:1: `model.pools[1].grow` = \"up\": pools `full` and `swa` both grow up",
    ),
    (
        "name = \"swa\"",
        "name = \"full\"",
        "19:1: `model.pools[1].name` = \"full\": two pools are named `full`",
    ),
    (
        "kind = \"window\"",
        "kind = \"full\"",
        "22:1: `model.pools[1].window_tokens` = 64: `window_tokens` has no place in a pool of kind \"full\"",
    ),
    (
        "kind = \"window\"\ngrow = \"down\"\nwindow_tokens = 64",
        "kind = \"full\"\ngrow = \"down\"",
        "20:1: `model.pools[1].kind` = \"full\": pools `full` and `swa` are both full pools",
    ),
    (
        TOTAL,
        "total_bytes = 1000",
        "3:1: `arena.total_bytes` = 1000: capacity of 1000 bytes is too small: pool `full` needs 32768 bytes for the sink and one page",
    ),
    (
        TOTAL,
        "total_bytes = \"1 TiB\"\nsink_bytes = 16",
        "4:1: `arena.sink_bytes` = 16: a sink of 16 bytes is below the largest page, 16384 bytes of pool `swa`",
    ),
];

const POLICY: &str = "policy = \"lru\"";
const TOTAL: &str = "total_bytes = \"1 GiB\"";
const ENTRY: &str = "entry_bytes = 1024";

#[test]
fn every_mistake_is_named_with_line_column_key_value_and_what_was_expected() {
    Config::parse("tide.toml", RIGHT).unwrap();
    for (old, new, want) in MISTAKES {
        assert_eq!(RIGHT.matches(old).count(), 1, "{old}");
        assert_eq!(refused(&RIGHT.replace(old, new)), format!("tide.toml:{want}"), "{new}");
    }
}

#[test]
fn a_preset_that_does_not_exist_lists_those_that_do() {
    let message = refused("[model]\npreset = \"mellum3\"\n");
    assert!(
        message.starts_with("tide.toml:2:1: `model.preset` = \"mellum3\": unknown preset"),
        "{message}"
    );
    for name in preset_names() {
        assert!(message.contains(name), "{message}");
    }
}

#[test]
fn columns_count_characters_and_an_empty_file_says_what_it_lacks() {
    let message = refused("model = { name = \"größe\", pagetokens = 1 }");
    assert!(message.starts_with("tide.toml:1:27: `model.pagetokens` = 1: "), "{message}");
    let message = refused("");
    assert_eq!(message, "tide.toml:1:1: `name` is missing, expected the model's name");
}

#[test]
fn a_long_value_is_shortened_in_the_error() {
    let message = refused(&RIGHT.replace(POLICY, &format!("policy = \"{}\"", "x".repeat(10_000))));
    let (place, _) = message.split_once(": `xxx").unwrap();
    assert!(place.ends_with("xxx..."), "{place}");
}

#[test]
fn what_a_file_does_not_say_is_as_the_reference_has_it() {
    let config = Config::parse("tide.toml", RIGHT).unwrap();
    let sections = &config.sections;
    assert_eq!(sections.cache.compaction, Compaction::Lazy);
    assert_eq!((sections.reclaim.prefer, sections.reclaim.quota), (Prefer::Full, Quota::None));
    assert_eq!((sections.queue.capacity, sections.queue.max_bypass.as_millis()), (1024, 100));
    assert_eq!(sections.state.max_per_path, None);
    assert_eq!(sections.device.engine, Engine::Host);
    assert_eq!(sections.device.max_pages_per_launch, 4096);
    assert_eq!(sections.device.copy_timeout.as_millis(), 10_000);
}

#[test]
fn what_a_file_says_replaces_the_default_and_nothing_else() {
    let text = format!(
        "{RIGHT}compaction = \"eager\"\n[reclaim]\nquota = \"64 MiB\"\n[queue]\nmax_bypass_ms = 0\n[device]\nengine = \"accounting\"\n"
    );
    let changed = Config::parse("tide.toml", &text).unwrap();
    let mut wanted = Config::parse("tide.toml", RIGHT).unwrap();
    wanted.sections.cache.compaction = Compaction::Eager;
    wanted.sections.reclaim.quota = Quota::Bytes(Bytes(64 << 20));
    wanted.sections.queue.max_bypass = std::time::Duration::ZERO;
    wanted.sections.device.engine = Engine::Accounting;
    assert_eq!(changed, wanted);
}

#[test]
fn a_file_may_take_a_preset_and_change_its_arena_and_pages() {
    let text =
        "[arena]\ntotal_bytes = 398196736\n[model]\npreset = \"mellum2\"\npage_tokens = 64\n";
    let chain = Config::parse("tide.toml", text).unwrap().chain;
    assert_eq!((chain.total(), chain.page_tokens()), (Bytes(398_196_736), Tokens(64)));
    assert_eq!(chain.sink(), Bytes(5_505_024 / 2));
    let alone = Config::parse("tide.toml", "[model]\npreset = \"mellum2\"\n").unwrap();
    assert_eq!(alone, Config::from_preset("mellum2").unwrap());
}

#[test]
fn a_sink_may_be_larger_than_the_largest_page() {
    let text = RIGHT.replace(TOTAL, "total_bytes = \"1 GiB\"\nsink_bytes = \"1 MiB\"");
    let chain = Config::parse("tide.toml", &text).unwrap().chain;
    assert_eq!(chain.sink(), Bytes(1 << 20));
}

#[test]
fn page_bytes_follow_from_the_shape_of_the_layers() {
    let latent = "layers = 61\nkv_lora_rank = 512\nrope_dim = 64\ndtype = \"bf16\"";
    let widths = "layers = 9\nkv_heads = 4\nk_dim = 192\nv_dim = 128\ndtype = \"fp8\"";
    let shared = "layers = 8\nkv_heads = 1\nk_dim = 512\nv_dim = 0\ndtype = \"int8\"";
    let heads = "layers = 2\nkv_heads = 2\nhead_dim = 64\ndtype = \"bf16\"";
    let parts = [
        (latent, 61 * (512 + 64) * 2),
        (widths, 9 * 4 * (192 + 128)),
        (shared, 8 * 512),
        ("entry_bytes = \"2 KiB\"", 2048),
    ];
    for (shape, entry) in parts {
        let chain = Config::parse("tide.toml", &RIGHT.replace(heads, shape)).unwrap().chain;
        assert_eq!(
            chain.pool(chain.named("full").unwrap()).page_bytes,
            Bytes(16 * entry),
            "{shape}"
        );
    }
    assert_eq!(page_bytes(PoolKind::Full, Bytes(32), Tokens(16)), Some(Bytes(512)));
    assert_eq!(page_bytes(PoolKind::State, Bytes(32), Tokens(16)), Some(Bytes(32)));
    assert_eq!(page_bytes(PoolKind::Full, Bytes(u64::MAX), Tokens(2)), None);
}

/// Name, kind, growth and page bytes of every pool in byte order.
#[track_caller]
fn check_preset(preset: &str, want: &[(&str, PoolKind, Grow, u64)]) {
    let chain = Config::from_preset(preset).unwrap().chain;
    assert_eq!(chain.page_tokens(), Tokens(128));
    let pools: Vec<_> = chain
        .pool_ids()
        .map(|pool| chain.pool(pool))
        .map(|pool| (pool.name.as_str(), pool.kind, pool.grow, pool.page_bytes.0))
        .collect();
    assert_eq!(pools, want);
}

#[test]
fn presets_have_exactly_the_bytes_of_their_models() {
    let window = |tokens| PoolKind::Window { window: Tokens(tokens) };
    check_preset("llama-3.1-8b", &[("full", PoolKind::Full, Grow::Up, 131_072 * 128)]);
    check_preset(
        "mellum2",
        &[
            ("window", window(1024), Grow::Up, 5_505_024),
            ("full", PoolKind::Full, Grow::Down, 1_835_008),
        ],
    );
    check_preset(
        "qwen3.5-4b",
        &[
            ("state", PoolKind::State, Grow::Up, 51_511_296),
            ("full", PoolKind::Full, Grow::Down, 32_768 * 128),
        ],
    );
    check_preset(
        "inkling-reduced",
        &[
            ("state", PoolKind::State, Grow::Up, 147_456),
            ("window", window(512), Grow::Float, 8_192 * 128),
            ("full", PoolKind::Full, Grow::Down, 4_096 * 128),
        ],
    );
    check_preset(
        "inkling-small",
        &[
            ("state", PoolKind::State, Grow::Up, 3_096_576),
            ("window", window(512), Grow::Float, 143_360 * 128),
            ("full", PoolKind::Full, Grow::Down, 28_672 * 128),
        ],
    );
}

#[test]
fn fifty_three_page_pairs_of_mellum2_fit_its_published_arena_and_not_one_more() {
    let config = Config::from_preset("mellum2").unwrap().with_capacity(Bytes(398_196_736)).unwrap();
    let chain = &config.chain;
    assert_eq!(chain.sink(), Bytes(5_505_024));
    assert_eq!(joint_pages(chain, Windows::Every), Pages(53));
    let geometry = Geometry::empty(chain);
    let mut pairs = Demand::default();
    for pool in chain.pool_ids() {
        pairs.0[pool] = Pages(54);
    }
    assert!(geometry.fits_empty(&pairs).is_err());
    // The sink and 9 window pages take 30 of 217 full pages.
    assert_eq!(joint_pages(chain, Windows::Tail), Pages(187));
}

#[test]
fn joint_capacity_counts_one_state_slot_beside_token_pages() {
    let config =
        Config::from_preset("qwen3.5-4b").unwrap().with_capacity(Bytes(6_861_881_344)).unwrap();
    // State slot 1 ends at byte 103,022,592, in full page 24: 1,636 pages less 25.
    assert_eq!(joint_pages(&config.chain, Windows::Every), Pages(1611));
}

#[test]
fn a_capacity_without_room_for_a_page_is_refused_with_what_is_needed() {
    let config = Config::from_preset("mellum2").unwrap();
    let error = config.with_capacity(Bytes(5_505_024)).unwrap_err().to_string();
    assert!(error.contains("capacity of 5505024 bytes is too small"), "{error}");
}

fn pool(name: &str, kind: PoolKind, grow: Grow, bytes: u64) -> PoolSpec {
    PoolSpec { name: name.into(), kind, grow, page_bytes: Bytes(bytes), pages_max: None }
}

fn scenario() -> Config {
    let window = PoolKind::Window { window: Tokens(128) };
    let pools =
        vec![pool("full", PoolKind::Full, Grow::Up, 32), pool("swa", window, Grow::Down, 32)];
    Config::from_pools("two pools", Bytes(6432), Tokens(1), None, pools).unwrap()
}

#[test]
fn pools_given_directly_take_every_other_setting_from_the_reference() {
    assert_eq!(scenario().sections, Config::from_preset("mellum2").unwrap().sections);
    let none = Config::from_pools("none", Bytes(6432), Tokens(1), None, Vec::new());
    assert!(matches!(none, Err(ConfigError::Chain(_))));
}

#[test]
fn flat_keys_set_bare_and_dotted_names() {
    let mut config = scenario();
    for (key, value) in [
        ("compaction", json!("eager")),
        ("prefer", json!("window")),
        ("reclaim.quota", json!(4096)),
        ("queue.capacity", json!(3)),
        ("state.max_per_path", json!("none")),
        ("state.track", json!("off")),
        ("policy", json!("tlru")),
        ("slru_protected_hits", json!(3)),
        ("tlru_latency_tokens", json!(100)),
        ("cache.tlru_next_prompt_tokens", json!(0)),
        ("max_sessions", json!(9)),
    ] {
        config.apply_flat_key(key, &value).unwrap();
    }
    assert_eq!(config.sections.cache.compaction, Compaction::Eager);
    assert_eq!(config.sections.cache.policy, Policy::Tlru);
    assert_eq!(config.sections.cache.slru_protected_hits, 3);
    assert_eq!(config.sections.cache.tlru_latency_tokens, 100);
    assert_eq!(config.sections.cache.tlru_next_prompt_tokens, 0);
    assert_eq!(config.sections.cache.max_sessions, 9);
    assert_eq!(config.sections.reclaim.prefer, Prefer::Window);
    assert_eq!(config.sections.reclaim.quota, Quota::Bytes(Bytes(4096)));
    assert_eq!(config.sections.queue.capacity, 3);
}

#[test]
fn a_wrong_flat_key_changes_nothing_and_is_named() {
    let mut config = scenario();
    let untouched = config.clone();
    for (key, value, want) in [
        (
            "compactoin",
            json!("eager"),
            "unknown key `compactoin`, expected one of cache.compaction, ",
        ),
        ("device.engine", json!("host"), "unknown key `device.engine`"),
        ("queue.policy", json!("lru"), "unknown key `queue.policy`"),
        ("", json!(1), "unknown key ``"),
        (
            "compaction",
            json!("sloppy"),
            "`cache.compaction` = \"sloppy\": `sloppy` is unknown, expected \"lazy\" or \"eager\"",
        ),
        (
            "policy",
            json!("least"),
            "`cache.policy` = \"least\": `least` is unknown, expected \"lru\" or \"lfu\" or ",
        ),
        ("quota", json!(-1), "`reclaim.quota` = -1: invalid value: integer `-1`"),
        ("quota", json!([1]), "`reclaim.quota` = [1]: invalid type: sequence"),
        ("queue.capacity", json!(null), "`queue.capacity` = null: null is no value"),
        ("state.track", json!("last"), "`state.track` = \"last\": `last` is not supported yet"),
        ("state.max_per_path", json!(2), "`state.max_per_path` = 2: "),
    ] {
        let error = config.apply_flat_key(key, &value).expect_err(key).to_string();
        assert!(error.starts_with(want), "{error}");
    }
    assert_eq!(config, untouched);
}

#[test]
fn a_file_is_found_by_its_path_and_a_preset_by_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("plain");
    fs::write(&path, RIGHT).unwrap();
    let by_path = Config::from_model_arg(path.to_str().unwrap()).unwrap();
    assert_eq!(by_path, Config::parse("any", RIGHT).unwrap());
    assert_eq!(Config::load(Path::new(&path)).unwrap(), by_path);
    assert_eq!(Config::from_model_arg("mellum2").unwrap(), Config::from_preset("mellum2").unwrap());
    assert!(matches!(Config::from_preset("plain"), Err(ConfigError::UnknownModel { .. })));
}
