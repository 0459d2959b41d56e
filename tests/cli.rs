//! The `kvtide` command: what it prints, how it refuses, and what it exits with.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says so")]

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

/// An empty directory, and the command run in it.
struct Shell {
    directory: TempDir,
}

impl Shell {
    fn new() -> Self {
        Shell { directory: tempfile::tempdir().unwrap() }
    }

    fn with(self, file: &str, text: &str) -> Self {
        fs::write(self.directory.path().join(file), text).unwrap();
        self
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.run_with(arguments, &[])
    }

    fn run_with(&self, arguments: &[&str], environment: &[(&str, &str)]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_kvtide"))
            .args(arguments)
            .current_dir(self.directory.path())
            .env_remove("RUST_LOG")
            .envs(environment.iter().copied())
            .output()
            .unwrap()
    }

    /// The command is refused as bad input, with this one line and nothing on stdout.
    #[track_caller]
    fn refuses(&self, arguments: &[&str], wanted: &str) {
        let output = self.run(arguments);
        assert_refused(&output, 2, wanted);
    }

    #[track_caller]
    fn prints(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        assert_eq!(text(&output.stderr), "");
        text(&output.stdout)
    }
}

#[track_caller]
fn assert_refused(output: &Output, code: i32, wanted: &str) {
    let said = text(&output.stderr);
    assert_eq!(said, format!("kvtide: {wanted}\n"));
    assert_eq!(output.status.code(), Some(code), "{said}");
    assert_eq!(text(&output.stdout), "");
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn scenarios() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/scenarios")
}

const HEADER: &str = r#"{"scenario":1,"arena":{"total_bytes":640,"page_tokens":2,"pools":[{"name":"full","kind":"full","grow":"up","entry_bytes":32}]}}"#;

#[test]
fn a_trace_that_is_not_there_is_refused() {
    let wanted = "cannot read no.jsonl: No such file or directory (os error 2)";
    Shell::new().refuses(&["replay", "--trace", "no.jsonl"], wanted);
}

#[test]
fn a_trace_that_is_cut_off_is_refused_where_it_ends() {
    let shell = Shell::new()
        .with("agent.json", r#"{"block_size":64,"requests":[{"t":0,"in":5"#)
        .with("lines.jsonl", "{\"timestamp\":0,\"input_length\":3,\"output_length\":1,\"hash_ids\":[7]}\n{\"timestamp\":1,\"inp");
    shell.refuses(
        &["replay", "--trace", "agent.json"],
        "agent.json:1:42: EOF while parsing an object",
    );
    shell.refuses(
        &["replay", "--trace", "lines.jsonl"],
        "lines.jsonl:2:19: EOF while parsing a string",
    );
}

#[test]
fn a_trace_with_a_negative_length_is_refused_at_its_place() {
    let line = r#"{"timestamp":0,"input_length":-5,"output_length":3,"hash_ids":[1]}"#;
    let shell = Shell::new().with("lines.jsonl", line);
    let wanted = "lines.jsonl:1:32: invalid value: integer `-5`, expected u32";
    shell.refuses(&["replay", "--trace", "lines.jsonl"], wanted);
}

#[test]
fn a_trace_that_is_empty_or_something_else_is_refused() {
    let shell = Shell::new().with("empty", "\n").with("other", "[1,2]").with("csv", "a,b\n");
    for file in ["empty", "other", "csv"] {
        let output = shell.run(&["replay", "--trace", file]);
        assert_eq!(output.status.code(), Some(2));
        let said = text(&output.stderr);
        assert!(said.starts_with(&format!("kvtide: {file}")), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}

#[test]
fn a_capacity_without_room_for_a_page_is_refused() {
    let wanted = "capacity of 1024 bytes is too small: pool `state` needs 1327104 bytes for the sink and one page";
    Shell::new().refuses(&["replay", "--capacity", "1 KiB"], wanted);
    let wanted = "capacity of 1 bytes is too small: pool `full` needs 33554432 bytes for the sink and one page";
    Shell::new().refuses(&["config", "llama-3.1-8b", "--capacity", "1"], wanted);
}

#[test]
fn an_unknown_key_of_a_configuration_is_refused_at_its_place() {
    let shell = Shell::new().with("c.toml", "[model]\npreset = \"mellum2\"\n[cache]\n  foo = 1\n");
    let wanted = "c.toml:4:3: `cache.foo` = 1: unknown field `foo`, expected one of `compaction`, \
         `policy`, `slru_protected_hits`, `tlru_latency_tokens`, `tlru_next_prompt_tokens`, `max_sessions`";
    shell.refuses(&["config", "c.toml"], wanted);
    shell.refuses(&["replay", "--model", "c.toml"], wanted);
    let shell = Shell::new().with("c.toml", "[model]\npreset = \"mellum2\"\n[cash]\n");
    let output = shell.run(&["config", "c.toml"]);
    let said = text(&output.stderr);
    assert!(said.starts_with("kvtide: c.toml:3:2: `cash`"), "{said}");
    assert_eq!((output.status.code(), said.lines().count()), (Some(2), 1));
}

#[test]
fn an_unknown_preset_is_refused_with_those_that_there_are() {
    let known = "llama-3.1-8b, mellum2, qwen3.5-4b, inkling-reduced, inkling-small, or a TOML file";
    let wanted = format!("no preset or file is named `gpt`, expected one of {known}");
    Shell::new().refuses(&["config", "gpt"], &wanted);
    Shell::new().refuses(&["replay", "--model", "gpt"], &wanted);
}

#[test]
fn bad_options_are_refused_in_one_line() {
    let shell = Shell::new();
    for speed in ["-1", "0", "fast", "inf", "nan"] {
        let wanted = format!(
            "invalid value '{speed}' for '--speed <X|max>': `{speed}` is neither `max` nor a number above 0"
        );
        shell.refuses(&["replay", "--speed", speed], &wanted);
    }
    shell.refuses(
        &["replay", "--engine", "cuda"],
        "invalid value 'cuda' for '--engine <ENGINE>' [possible values: host, accounting]",
    );
    shell.refuses(
        &["replay", "--concurrency", "0"],
        "invalid value '0' for '--concurrency <N>': `0` is not a whole number of at least 1",
    );
    shell.refuses(
        &["replay", "--capacity", "64G"],
        "--capacity: the unit of `64G` is ambiguous: write `64 GiB` (powers of 1024) or `64 GB` (powers of 1000)",
    );
    shell.refuses(&["replay", "--fast"], "unexpected argument '--fast' found");
    shell.refuses(&["scenery"], "unrecognized subcommand 'scenery'");
    shell.refuses(&["scenario"], "the following required arguments were not provided: <FILE>...");
}

#[test]
fn a_demand_that_cannot_be_read_is_refused_before_anything_is_run() {
    let shell = Shell::new().with("s.jsonl", &format!("{HEADER}\n{{\"op\":\"flush\"}}\n"));
    for (demand, why) in [
        ("full", "`full` is not POOL=N with a whole number N"),
        ("full=", "`full=` is not POOL=N with a whole number N"),
        ("full=-1", "`full=-1` is not POOL=N with a whole number N"),
        ("=1", "`=1` is not POOL=N with a whole number N"),
        ("full=1,full=2", "pool `full` is named twice"),
    ] {
        let wanted = format!("invalid value '{demand}' for '--demand <POOL=N,POOL=N>': {why}");
        shell.refuses(&["plan", "--scenario", "s.jsonl", "--demand", demand], &wanted);
    }
    let wanted = "unknown name: no pool is called `swa`";
    shell.refuses(&["plan", "--scenario", "s.jsonl", "--demand", "swa=1"], wanted);
}

#[test]
fn a_scenario_that_cannot_be_read_is_refused_at_its_place() {
    let flush = format!("{HEADER}\n{{\"op\":\"flush\"}}\n");
    let cached = flush.replacen("}]}}", "}]},\"cache\":{\"budget\":1}}", 1);
    let cuda = flush.replacen("{\"scenario\":1,", "{\"scenario\":1,\"engine\":\"cuda\",", 1);
    let shell = Shell::new()
        .with("good.jsonl", &flush)
        .with("key.jsonl", &format!("{HEADER}\n\n{{\"op\":\"flush\",\"x\":1}}\n"))
        .with("cuda.jsonl", &cuda)
        .with("cache.jsonl", &cached);
    shell.refuses(
        &["scenario", "no.jsonl"],
        "no.jsonl:1:1: wanted a readable file: No such file or directory (os error 2)",
    );
    // Every file is read before the first is run.
    shell.refuses(
        &["scenario", "good.jsonl", "key.jsonl"],
        "key.jsonl:3:15: unknown key `x`; wanted `op`",
    );
    shell.refuses(
        &["scenario", "cuda.jsonl"],
        "cuda.jsonl:1:1: device unavailable: this build has no `cuda` engine; `host` and `accounting` are there",
    );
    let output = shell.run(&["scenario", "cache.jsonl"]);
    let said = text(&output.stderr);
    let column = cached.find(":1}}").unwrap() + 2;
    assert!(said.starts_with(&format!("kvtide: cache.jsonl:1:{column}: ")), "{said}");
    assert!(said.contains("budget") && said.contains("cache.compaction"), "{said}");
    assert_eq!((output.status.code(), said.lines().count()), (Some(2), 1));
}

#[test]
fn a_log_filter_that_cannot_be_read_is_refused() {
    let shell = Shell::new();
    let output = shell.run_with(&["config", "mellum2", "--check"], &[("RUST_LOG", "a=b=c")]);
    let wanted = "RUST_LOG=a=b=c: error parsing level filter: expected one of \"off\", \"error\", \"warn\", \"info\", \"debug\", \"trace\", or a number 0-5";
    assert_refused(&output, 2, wanted);
}

#[test]
fn a_metrics_address_in_use_is_refused() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let output = Shell::new().run(&["replay", "--requests", "1", "--metrics", &address]);
    let said = text(&output.stderr);
    assert!(said.starts_with(&format!("kvtide: metrics at {address}: ")), "{said}");
    assert!(said.contains("Address already in use"), "{said}");
    assert_eq!((output.status.code(), said.lines().count()), (Some(2), 1));
}

#[test]
fn an_expectation_that_does_not_hold_ends_with_exit_code_1() {
    let lines = "{\"op\":\"insert\",\"tokens\":[1,2,3,4]}\n{\"expect\":{\"ok\":true,\"cached.full\":5}}\n{\"expect\":{\"evicted.full\":{\"min\":1}}}\n";
    let shell = Shell::new().with("s.jsonl", &format!("{HEADER}\n{lines}"));
    let output = shell.run(&["scenario", "s.jsonl"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        text(&output.stderr),
        "s.jsonl:3: cached.full: wanted 5, got 4\n\
         s.jsonl:4: evicted.full: wanted {\"min\":1}, got 0\n\
         kvtide: 2 of 3 expectations failed\n"
    );
    let said = text(&output.stdout);
    let outcome: Value = serde_json::from_str(said.trim_end()).unwrap();
    assert_eq!(
        (&outcome["line"], &outcome["op"], &outcome["ok"]),
        (&2.into(), &"insert".into(), &true.into())
    );
    assert_eq!(outcome["cached"]["full"], 4);
}

#[test]
fn a_plan_says_what_has_to_go_and_what_it_costs() {
    let file = scenarios().join("plan_small_state.jsonl");
    let file = file.to_str().unwrap();
    let shell = Shell::new();
    let said = shell.prints(&["plan", "--scenario", file, "--demand", "full=6,swa=6"]);
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines[..2], ["fits now          no", "fits after moves  no"], "{said}");
    let said = shell.prints(&["plan", "--scenario", file, "--demand", "full=6,swa=6", "--json"]);
    let plan: Value = serde_json::from_str(&said).unwrap();
    // 39 pages of 32 bytes; 16 pairs and the demand's 6 take 44.
    let evicted = |pool: &str| plan["plan"]["evicted"][pool].as_u64().unwrap();
    assert_eq!(evicted("full") + evicted("swa"), 5, "{said}");
    assert_eq!(plan["fits_now"], false);
}

#[test]
fn a_plan_for_what_can_never_fit_names_the_bound() {
    let file = scenarios().join("plan_small_state.jsonl");
    let file = file.to_str().unwrap();
    let shell = Shell::new();
    let said = shell.prints(&["plan", "--scenario", file, "--demand", "full=20,swa=20"]);
    assert!(said.contains("refused           impossible: full 20, swa 20 can never fit, an empty arena holds full 39, swa 39 of each alone; "), "{said}");
    assert!(said.contains("pool swa is 32 bytes short"), "{said}");
    let said = shell.prints(&["plan", "--scenario", file, "--demand", "full=30", "--json"]);
    let plan: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(plan["plan"], Value::Null);
    assert_eq!(plan["refusal"]["error"], "exhausted");
    assert_eq!(plan["refusal"]["detail"]["locked"]["full"], 8);
}

#[test]
fn a_configuration_is_printed_in_numbers() {
    let shell = Shell::new();
    let said = shell.prints(&["config", "llama-3.1-8b", "--json", "--capacity", "1 GiB"]);
    let report: Value = serde_json::from_str(&said).unwrap();
    // 32 layers x 8 heads x 128 wide x 2 (key, value) x 2 bytes = 131,072 bytes a token.
    assert_eq!(report["pools"][0]["page_bytes"], 131_072 * 128);
    assert_eq!(report["total_bytes"], 1 << 30);
    // 64 pages on the grid, the first of which is the sink's.
    assert_eq!(report["pools"][0]["usable_pages"], 63);
    assert_eq!(report["together"]["tokens"], 63 * 128);
}

#[test]
fn help_and_version_are_no_failures() {
    let shell = Shell::new();
    assert!(shell.prints(&["--version"]).starts_with("kvtide "));
    assert!(shell.prints(&["replay", "--help"]).contains("--speed <X|max>"));
}

#[test]
fn a_closed_pipe_is_no_failure() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_kvtide"))
        .args(["config", "mellum2"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), String::new()));
}

#[test]
fn every_scenario_that_is_kept_holds() {
    let mut files: Vec<PathBuf> = [scenarios(), scenarios().join("single")]
        .iter()
        .flat_map(|directory| fs::read_dir(directory).unwrap())
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "jsonl"))
        .collect();
    files.sort();
    assert!(files.len() >= 74, "only {} scenarios found", files.len());
    let arguments = ["scenario"].into_iter().chain(files.iter().map(|file| file.to_str().unwrap()));
    let output = Shell::new().run(&arguments.collect::<Vec<_>>());
    assert_eq!(text(&output.stderr), "");
    assert_eq!(output.status.code(), Some(0));
}
