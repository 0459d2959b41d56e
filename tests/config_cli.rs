//! `kvtide config`: what it prints, and how it refuses.

#![allow(clippy::unwrap_used)]

use std::fs;

use kvtide::cli::CliError;
use kvtide::cli::config::{ConfigArgs, run};

fn args(config: &str) -> ConfigArgs {
    ConfigArgs { config: config.to_owned(), check: false, capacity: None, json: false }
}

#[track_caller]
fn output(args: &ConfigArgs) -> String {
    let mut out = Vec::new();
    run(args, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

#[track_caller]
fn refusal(args: &ConfigArgs) -> String {
    let mut out = Vec::new();
    let error = run(args, &mut out).unwrap_err();
    assert_eq!(error.exit_code(), 2);
    assert!(out.is_empty());
    let message = error.to_string();
    assert!(!message.contains('\n'), "{message}");
    message
}

#[test]
fn the_command_prints_the_derived_geometry() {
    let text = output(&ConfigArgs { capacity: Some("398196736".into()), ..args("mellum2") });
    for line in [
        "arena        398196736 bytes (379.75 MiB)",
        "sink         5505024 bytes (5.25 MiB)",
        "window       window  up            5505024          72           1           71          9088",
        "full         full    down          1835008         217           3          214         27392",
        "together     53 pages of every token pool: 6784 tokens",
        "one sequence 187 pages with its window's tail only: 23936 tokens",
        "reclaim.quota = none",
    ] {
        assert!(text.lines().any(|known| known == line), "{line}\n{text}");
    }
}

#[test]
fn the_command_prints_json() {
    let args = ConfigArgs { json: true, capacity: Some("398196736".into()), ..args("mellum2") };
    let report: serde_json::Value = serde_json::from_str(&output(&args)).unwrap();
    assert_eq!(report["together"]["pages"], 53);
    assert_eq!(report["pools"][0]["page_bytes"], 5_505_024);
    assert_eq!(report["pools"][0]["window_tokens"], 1024);
    assert_eq!(report["settings"]["device.queue_depth"], "256");
}

#[test]
fn checking_prints_one_line() {
    assert_eq!(output(&ConfigArgs { check: true, ..args("qwen3.5-4b") }), "qwen3.5-4b: ok\n");
}

#[test]
fn a_state_only_chain_counts_slots() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.toml");
    let text = "[arena]\ntotal_bytes = 1000\n[model]\nname = \"m\"\n[[model.pools]]\nname = \"s\"\nkind = \"state\"\ngrow = \"up\"\nentry_bytes = 100\n";
    fs::write(&path, text).unwrap();
    let text = output(&args(path.to_str().unwrap()));
    assert!(text.contains("together     9 slots of every pool\n"), "{text}");
}

#[test]
fn what_cannot_be_used_ends_with_exit_code_2_and_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    fs::write(path("latin1.toml"), b"[model]\nname = \"\xe9\"\n").unwrap();
    fs::write(path("bad.toml"), "[cache]\nbudget = 1\n").unwrap();
    assert!(refusal(&args("no-such-model")).contains("llama-3.1-8b, mellum2, qwen3.5-4b"));
    assert!(refusal(&args(&path("missing.toml"))).starts_with("cannot read "));
    assert!(refusal(&args(&path("latin1.toml"))).contains("valid UTF-8"));
    assert!(refusal(&args(folder.path().to_str().unwrap())).starts_with("cannot read "));
    assert!(
        refusal(&args(&path("bad.toml")))
            .contains("bad.toml:2:1: `cache.budget` = 1: unknown field")
    );
    let small = ConfigArgs { capacity: Some("1 MiB".into()), ..args("mellum2") };
    assert!(refusal(&small).contains("capacity of 1048576 bytes is too small"));
    let vague = ConfigArgs { capacity: Some("64G".into()), ..args("mellum2") };
    assert!(refusal(&vague).starts_with("--capacity: the unit of `64G` is ambiguous"));
}

#[test]
fn exit_codes_tell_bad_input_from_failure() {
    let failed = CliError::Expectations { failed: 1, checked: 2 };
    assert_eq!(
        (failed.exit_code(), failed.to_string().as_str()),
        (1, "1 of 2 expectations failed")
    );
    let pipe = CliError::Output(std::io::ErrorKind::BrokenPipe.into());
    assert_eq!(pipe.exit_code(), 0);
    assert_eq!(CliError::Output(std::io::ErrorKind::Other.into()).exit_code(), 1);
}
