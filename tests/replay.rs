//! Replays: every request is accounted for, the same inputs give the same counts, and what is cached at the end is right.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says so")]

use std::fs;
use std::path::Path;

use clap::{Args, FromArgMatches};
use kvtide::cli::replay::{ReplayArgs, run};
use serde_json::Value;

/// Replays with these options and `--json`; the report.
#[track_caller]
fn replay(options: &[&str]) -> Value {
    let command = ReplayArgs::augment_args(clap::Command::new("replay").no_binary_name(true));
    let matches = command.try_get_matches_from(options.iter().chain(&["--json"])).unwrap();
    let args = ReplayArgs::from_arg_matches(&matches).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut out = Vec::new();
    runtime.block_on(run(&args, &mut out)).unwrap();
    serde_json::from_slice(&out).unwrap()
}

fn count(report: &Value, name: &str) -> u64 {
    report["counts"][name].as_u64().unwrap_or_else(|| panic!("no count {name} in {report}"))
}

/// No request is lost or counted twice.
#[track_caller]
fn all_accounted_for(report: &Value, requests: u64) {
    let sum = ["finished", "rejected", "cut_short"].map(|name| count(report, name)).iter().sum();
    assert_eq!((count(report, "requests"), requests), (sum, requests), "{report}");
    assert!(count(report, "hit_tokens") <= count(report, "tokens_in"));
}

#[test]
fn every_preset_replays_to_the_same_counts_twice() {
    for model in kvtide::config::preset_names() {
        let options =
            ["--model", model, "--engine", "accounting", "--requests", "25", "--seed", "7"];
        let (first, second) = (replay(&options), replay(&options));
        assert_eq!(first["counts"], second["counts"], "{model}");
        all_accounted_for(&first, 25);
        assert_eq!(count(&first, "finished"), 25, "{model}");
        assert!(count(&first, "live_pages_checked") > 0);
        assert_eq!(count(&first, "live_pages_compared"), 0, "no bytes, nothing to compare");
    }
}

#[test]
fn another_seed_is_another_workload() {
    let with = |seed| {
        replay(&["--engine", "accounting", "--requests", "10", "--seed", seed])["counts"].clone()
    };
    assert_ne!(with("1"), with("2"));
}

#[test]
fn every_live_page_is_compared_by_the_host_engine() {
    for (capacity, evicts) in [("512 MiB", false), ("48 MiB", true)] {
        let report = replay(&[
            "--model",
            "inkling-reduced",
            "--engine",
            "host",
            "--capacity",
            capacity,
            "--requests",
            "60",
        ]);
        all_accounted_for(&report, 60);
        assert!(count(&report, "live_pages_compared") > 0);
        assert_eq!(count(&report, "live_pages_compared"), count(&report, "live_pages_checked"));
        let evicted = report["counts"]["evicted"]["full"].as_u64().unwrap();
        assert_eq!(evicted > 0, evicts, "{report}");
        assert_eq!(count(&report, "matchable_lost") > 0, evicts, "{report}");
    }
}

#[test]
fn a_replay_in_a_tiny_arena_ends_with_every_request_accounted_for() {
    for (model, page_tokens, capacity) in [
        ("llama-3.1-8b", "16", "66 MiB"),
        ("llama-3.1-8b", "128", "400 MiB"),
        ("mellum2", "16", "40 MiB"),
        ("mellum2", "128", "30 MiB"),
        ("qwen3.5-4b", "16", "140 MiB"),
        ("inkling-reduced", "128", "9 MiB"),
        ("inkling-reduced", "16", "6 MiB"),
        ("inkling-small", "16", "60 MiB"),
    ] {
        let options = [
            "--model",
            model,
            "--page-tokens",
            page_tokens,
            "--capacity",
            capacity,
            "--engine",
            "accounting",
            "--requests",
            "60",
            "--chunk",
            "200",
        ];
        let (first, second) = (replay(&options), replay(&options));
        all_accounted_for(&first, 60);
        assert_eq!(first["counts"], second["counts"], "{model}");
    }
}

#[test]
fn requests_that_gave_their_memory_back_finish_later() {
    let report = replay(&[
        "--model",
        "qwen3.5-4b",
        "--capacity",
        "200 MiB",
        "--engine",
        "accounting",
        "--requests",
        "60",
    ]);
    all_accounted_for(&report, 60);
    assert!(count(&report, "retractions") > 0 && count(&report, "retries") > 0, "{report}");
    assert_eq!(count(&report, "finished"), 60);
}

fn with_file(name: &str, text: &str, check: impl Fn(&str)) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(name);
    fs::write(&path, text).unwrap();
    check(Path::to_str(&path).unwrap());
}

/// Four prompts: the second goes on from the first, the third is the first again, the fourth is another.
const MOONCAKE: &str = r#"{"timestamp":0,"input_length":1024,"output_length":3,"hash_ids":[1,2]}
{"timestamp":10,"input_length":1300,"output_length":5,"hash_ids":[1,2,3]}
{"timestamp":20,"input_length":1024,"output_length":1,"hash_ids":[1,2]}
{"timestamp":30,"input_length":100,"output_length":2,"hash_ids":[9]}
"#;

#[test]
fn a_mooncake_trace_hits_what_its_blocks_share() {
    with_file("trace", MOONCAKE, |path| {
        let options = [
            "--trace",
            path,
            "--model",
            "llama-3.1-8b",
            "--engine",
            "accounting",
            "--concurrency",
            "1",
        ];
        let report = replay(&options);
        all_accounted_for(&report, 4);
        assert_eq!(count(&report, "finished"), 4);
        assert_eq!(count(&report, "tokens_in"), 1024 + 1300 + 1024 + 100);
        assert_eq!(count(&report, "tokens_out"), 3 + 5 + 1 + 2);
        // All 1,024 by the second; by the third as well, but for its last token, whose page of 128 is computed again.
        assert_eq!(count(&report, "hit_tokens"), 1024 + 896);
        assert_eq!(report["workload"], *path);
        let few = replay(&[&options[..], &["--requests", "2", "--prompts-only"]].concat());
        all_accounted_for(&few, 2);
        assert_eq!((count(&few, "tokens_in"), count(&few, "tokens_out")), (2324, 0));
    });
}

#[test]
fn a_trace_replayed_in_its_own_time_comes_to_the_same() {
    with_file("trace", MOONCAKE, |path| {
        let model = ["--model", "llama-3.1-8b", "--engine", "accounting", "--concurrency", "1"];
        let replay = |speed| {
            replay(&[&["--trace", path, "--speed", speed][..], &model[..]].concat())["counts"]
                .clone()
        };
        assert_eq!(replay("max"), replay("1e6"));
    });
}

#[test]
fn an_agentic_trace_is_replayed_turn_by_turn() {
    let text = r#"{"id":"x","block_size":64,"requests":[
        {"t":0,"in":200,"out":10,"hash_ids":[1,2,3]},
        {"t":1,"in":330,"out":10,"hash_ids":[1,2,3,4,5]},
        {"t":2,"requests":[{"t":2,"in":70,"out":4,"hash_ids":[7]},{"t":3,"in":140,"out":4,"hash_ids":[7,8]}]}]}"#;
    with_file("session.json", text, |path| {
        let options = [
            "--trace",
            path,
            "--model",
            "mellum2",
            "--page-tokens",
            "16",
            "--engine",
            "host",
            "--capacity",
            "256 MiB",
        ];
        let (first, second) = (replay(&options), replay(&options));
        all_accounted_for(&first, 4);
        assert_eq!(count(&first, "finished"), 4);
        assert_eq!(count(&first, "tokens_in"), 200 + 330 + 70 + 140);
        // Whole blocks are shared: 192 tokens by the main agent, 64 by the other.
        assert_eq!(count(&first, "hit_tokens"), 192 + 64);
        assert_eq!(first["counts"], second["counts"]);
        assert!(count(&first, "live_pages_compared") > 0);
    });
}

#[test]
fn requests_longer_than_the_arena_are_cut_short_and_the_others_go_on() {
    let text = r#"{"timestamp":0,"input_length":512,"output_length":4,"hash_ids":[1]}
{"timestamp":1,"input_length":5000,"output_length":4,"hash_ids":[2,3,4,5,6,7,8,9,10,11]}
{"timestamp":2,"input_length":512,"output_length":4,"hash_ids":[1]}
"#;
    with_file("trace", text, |path| {
        let report = replay(&[
            "--trace",
            path,
            "--model",
            "llama-3.1-8b",
            "--engine",
            "accounting",
            "--page-tokens",
            "16",
            "--capacity",
            "200 MiB",
        ]);
        all_accounted_for(&report, 3);
        assert_eq!((count(&report, "finished"), count(&report, "cut_short")), (2, 1));
    });
}
