//! The first line of scenario files: what it means, and where bad ones are refused.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use kvtide::device::EngineKind;
use kvtide::scenario::{Arena, Place, Scenario, ScenarioError};
use kvtide_core::chain::{Grow, PoolKind};
use kvtide_core::unit::{Bytes, Pages, Tokens};
use serde_json::json;

const HEADER: &str = r#"{"scenario":1,"arena":{"total_bytes":640,"page_tokens":2,"pools":[{"name":"full","kind":"full","grow":"up","entry_bytes":32}]}}"#;

fn parse(text: &str) -> Result<Scenario, ScenarioError> {
    Scenario::parse(Path::new("dir/case.jsonl"), text.as_bytes())
}

/// A header is refused where `mark` first stands in it.
#[track_caller]
fn refused_header(header: &str, mark: &str, message: &str) {
    let error = parse(header).unwrap_err();
    let column = header.find(mark).unwrap() as u32 + 1;
    assert_eq!(error.to_string(), format!("dir/case.jsonl:1:{column}: {message}"));
}

fn header_with(arena: &str) -> String {
    format!(r#"{{"scenario":1,"arena":{arena}}}"#)
}

fn header_with_pool(pool: &str) -> String {
    header_with(&format!(r#"{{"total_bytes":640,"page_tokens":2,"pools":[{pool}]}}"#))
}

#[test]
fn a_header_is_read_whole() {
    let scenario = parse(concat!(
        "// a comment, and a blank line\n\n",
        r#"{"scenario":1,"name":"näme","engine":"accounting","arena":{"total_bytes":64320,"page_tokens":16,"sink_bytes":1024,"#,
        r#""pools":[{"name":"full","kind":"full","grow":"down","entry_bytes":32,"max_pages":9},"#,
        r#"{"name":"swa","kind":"window","grow":"float","entry_bytes":8,"window_tokens":128},"#,
        r#"{"name":"s","kind":"state","grow":"up","entry_bytes":96}]},"cache":{"compaction":"lazy","state.max_per_path":3}}"#,
    ))
    .unwrap();
    let header = &scenario.header;
    assert_eq!((&*header.name, header.engine), ("näme", EngineKind::Accounting));
    assert_eq!(header.place, Place { line: 3, column: 1 });
    let Arena::Inline(arena) = &header.arena else { panic!("{header:?}") };
    assert_eq!((arena.total_bytes, arena.page_tokens), (Bytes(64320), Tokens(16)));
    assert_eq!(arena.sink_bytes, Some(Bytes(1024)));
    let pools: Vec<_> =
        arena.pools.iter().map(|pool| (&*pool.name, pool.kind, pool.grow)).collect();
    let window = PoolKind::Window { window: Tokens(128) };
    assert_eq!(
        pools,
        [
            ("full", PoolKind::Full, Grow::Down),
            ("swa", window, Grow::Float),
            ("s", PoolKind::State, Grow::Up)
        ]
    );
    assert_eq!(arena.pools[0].max_pages, Some(Pages(9)));
    let page_bytes: Vec<_> =
        arena.chain.pool_ids().map(|pool| arena.chain.pool(pool).page_bytes.0).collect();
    assert_eq!(page_bytes, [96, 128, 512], "in byte order; a state's page is one slot");
    let cache: Vec<_> = header.cache.iter().map(|key| (&*key.key, key.value.clone())).collect();
    assert_eq!(cache, [("compaction", json!("lazy")), ("state.max_per_path", json!(3))]);
    assert!(scenario.steps.is_empty());
}

#[test]
fn what_a_header_leaves_out_has_defaults() {
    let header = parse(HEADER).unwrap().header;
    assert_eq!((&*header.name, header.engine), ("case", EngineKind::Host));
    assert!(header.cache.is_empty());
}

#[test]
fn a_config_file_is_relative_to_the_scenario() {
    let header = parse(&header_with(r#"{"config":"../model.toml"}"#)).unwrap().header;
    let Arena::Config { path, place } = header.arena else { panic!("{header:?}") };
    assert_eq!(path, PathBuf::from("dir/../model.toml"));
    assert_eq!(place, Place { line: 1, column: 33 });
}

#[test]
fn a_bad_header_is_refused_where_it_is_bad() {
    let whole = "key `total_bytes`: wanted a whole number from 1 to 18446744073709551615, found ";
    for bad in ["-5", "0", "1.5", "\"64 GiB\"", "18446744073709551616", "null"] {
        let arena = format!(r#"{{"total_bytes":{bad},"page_tokens":2,"pools":[]}}"#);
        refused_header(&header_with(&arena), bad, &format!("{whole}{bad}"));
    }
    refused_header(r#"{"scenario":2}"#, "2", "key `scenario`: wanted the version 1, found 2");
    refused_header(r#"{"scenario":1}"#, "{", "wanted the key `arena`");
    refused_header(
        r#"{"scenario":1,"engine":"gpu","arena":{}}"#,
        r#""gpu""#,
        r#"key `engine`: wanted "host" or "accounting" or "cuda", found "gpu""#,
    );
    refused_header(
        r#"{"scenario":1,"Arena":{}}"#,
        r#""Arena""#,
        "unknown key `Arena`; wanted `scenario`, `name`, `engine`, `arena` or `cache`",
    );
    refused_header(
        &header_with(r#"{"config":"a.toml","page_tokens":1}"#),
        r#""page_tokens""#,
        "key `page_tokens` does not go with `config`, whose file has it",
    );
    refused_header(
        r#"{"scenario":1,"scenario":1}"#,
        r#""scenario":1}"#,
        "wanted the key `scenario` once, found it twice",
    );
    refused_header(&header_with("[]"), "[]", "key `arena`: wanted an object, found []");
}

#[test]
fn a_bad_pool_is_refused_where_it_is_bad() {
    refused_header(
        &header_with_pool(r#"{"name":"a","kind":"window","grow":"up","entry_bytes":8}"#),
        r#"{"name""#,
        "wanted the key `window_tokens`",
    );
    refused_header(
        &header_with_pool(
            r#"{"name":"a","kind":"full","grow":"up","entry_bytes":8,"window_tokens":4}"#,
        ),
        r#""window_tokens""#,
        "key `window_tokens` does not go with a pool that is not of kind \"window\"",
    );
    refused_header(
        &header_with_pool(r#"{"name":"a","kind":"mamba","grow":"up","entry_bytes":8}"#),
        r#""mamba""#,
        r#"key `kind`: wanted "full" or "window" or "state", found "mamba""#,
    );
    refused_header(
        &header_with_pool(r#"{"name":"","kind":"full","grow":"up","entry_bytes":8}"#),
        r#""","#,
        r#"key `name`: wanted a name that is not empty, found """#,
    );
    refused_header(
        &header_with_pool(
            r#"{"name":"a","kind":"full","grow":"up","entry_bytes":9223372036854775808}"#,
        ),
        "9223372036854775808",
        "key `entry_bytes`: wanted a number whose product with page_tokens is below 2^64, \
         found 9223372036854775808",
    );
    refused_header(
        &header_with_pool(
            r#"{"name":"a","kind":"window","grow":"up","entry_bytes":8,"window_tokens":4}"#,
        ),
        "[{",
        "wanted pools that form a chain: window pool `a` needs a full pool to share ids with",
    );
    refused_header(
        &header_with(
            r#"{"total_bytes":640,"page_tokens":2,"sink_bytes":63,"pools":[{"name":"full","kind":"full","grow":"up","entry_bytes":32}]}"#,
        ),
        "[{",
        "wanted pools that form a chain: a sink of 63 bytes is below the largest page, 64 bytes of pool `full`",
    );
}

#[test]
fn a_runner_can_refuse_a_key_at_its_place() {
    let header = HEADER.replace("}]}}", r#"}]},"cache":{"polcy":"lru"}}"#);
    let scenario = parse(&header).unwrap();
    let error = scenario.refuse(scenario.header.cache[0].place, "no key is called `polcy`");
    let column = header.find(r#""lru""#).unwrap() + 1;
    assert_eq!(error.to_string(), format!("dir/case.jsonl:1:{column}: no key is called `polcy`"));
}
