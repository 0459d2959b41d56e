//! Scenario files: what is read from good ones, where bad ones are refused.

#![allow(clippy::unwrap_used)]

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use kvtide::device::Fault;
use kvtide::scenario::{
    FaultWish, Mode, Namespace, Operation, Place, Problem, Publish, Scenario, ScenarioError,
    StateWish, Step, TokenList, Victim,
};
use kvtide_core::unit::Bytes;

const HEADER: &str = r#"{"scenario":1,"arena":{"total_bytes":640,"page_tokens":2,"pools":[{"name":"full","kind":"full","grow":"up","entry_bytes":32}]}}"#;

fn parse(text: &str) -> Result<Scenario, ScenarioError> {
    Scenario::parse(Path::new("dir/case.jsonl"), text.as_bytes())
}

/// The steps of a file with a good header on its first line.
fn steps(lines: &str) -> Vec<Step> {
    parse(&format!("{HEADER}\n{lines}")).unwrap().steps
}

fn operation(line: &str) -> Operation {
    let [step] = <[Step; 1]>::try_from(steps(line)).unwrap();
    step.operation
}

fn tokens(list: &str) -> TokenList {
    match operation(&format!(r#"{{"op":"cached","tokens":{list}}}"#)) {
        Operation::Cached { tokens, .. } => tokens,
        other => panic!("{other:?}"),
    }
}

/// The whole text is refused at this place with this message.
#[track_caller]
fn refused(text: &str, line: u32, column: u32, message: &str) {
    let error = parse(text).unwrap_err();
    assert_eq!(error.to_string(), format!("dir/case.jsonl:{line}:{column}: {message}"));
    assert_eq!(error.place, Place { line, column });
}

/// A line after a good header is refused where `mark` first stands in it.
#[track_caller]
fn refused_line(line: &str, mark: &str, message: &str) {
    let column = line.find(mark).unwrap() as u32 + 1;
    refused(&format!("{HEADER}\n{line}\n"), 2, column, message);
}

#[test]
fn a_file_without_a_header_is_refused() {
    let message = "wanted the header, an object with the key `scenario`, before anything else";
    refused("", 1, 1, message);
    refused("// only\n\n// comments\n", 3, 1, message);
    refused("\n  {\"op\":\"flush\"}\n", 2, 3, message);
    refused(r#"{"expect":{}}"#, 1, 1, message);
}

#[test]
fn a_file_that_cannot_be_read_is_refused() {
    let error = Scenario::read(Path::new("no/such.jsonl")).unwrap_err();
    assert!(matches!(error.problem, Problem::Unreadable(_)));
    assert!(error.to_string().starts_with("no/such.jsonl:1:1: wanted a readable file: "));
}

#[test]
fn lines_out_of_order_are_refused() {
    refused_line(HEADER, "{", "wanted an operation or an expectation, found a second header");
    let early = "wanted an operation before the first expectation";
    refused_line(r#"{"expect":{"ok":true}}"#, "{", early);
    refused_line(r#"{"expect_total":{"evicted.full":1}}"#, "{", early);
    let unknown =
        "wanted an object with one of the keys `scenario`, `op`, `expect` and `expect_total`";
    refused_line(r#"{"operation":"flush"}"#, "{", unknown);
    refused_line("{}", "{", unknown);
}

#[test]
fn what_is_not_json_is_refused_at_its_column() {
    let not = |reason: &str| format!("wanted one JSON object on the line: {reason}");
    refused_line(r#"{"op":flush}"#, "lush", &not("expected ident"));
    let cut = format!("{HEADER}\n{}", r#"{"op":"open","seq":"a","#);
    refused(&cut, 2, 23, &not("EOF while parsing an object"));
    refused_line(r#"{"op":"flush"} {}"#, "{}", &not("trailing characters"));
}

#[test]
fn columns_count_characters_and_lines_count_all() {
    let text =
        format!("// größer\n{HEADER}\n\n\t{{\"op\":\"open\",\"seq\":\"ääää\",\"tokenz\":[]}}\r\n");
    let known =
        "`op`, `seq`, `tokens`, `namespace`, `priority`, `session`, `deadline_ms` or `async`";
    refused(&text, 4, 28, &format!("unknown key `tokenz`; wanted {known}"));
}

#[test]
fn bytes_that_are_not_utf8_are_refused_at_their_place() {
    let mut bytes = format!("{HEADER}\n// größer").into_bytes();
    bytes.extend(b" \xff\n");
    let error = Scenario::parse(Path::new("case.jsonl"), &bytes).unwrap_err();
    assert_eq!(error.to_string(), "case.jsonl:2:11: wanted UTF-8 text, found the byte 0xff");
}

#[test]
fn a_byte_order_mark_and_carriage_returns_do_not_matter() {
    let text = format!("\u{feff}{HEADER}\r\n\r\n{{\"op\":\"flush\"}}\r\n");
    assert_eq!(parse(&text).unwrap().steps[0].operation, Operation::Flush);
}

#[test]
fn an_unknown_operation_is_refused_with_all_that_there_are() {
    let error = parse(&format!("{HEADER}\n{{\"op\":\"evict\"}}")).unwrap_err();
    assert_eq!(error.place, Place { line: 2, column: 7 });
    let message = error.to_string();
    assert!(
        message.contains("wanted an operation, found `evict`; operations are `open`, `extend`")
    );
    assert!(message.ends_with("`verify` or `stats`"));
}

#[test]
fn a_bad_value_names_its_key() {
    let whole = "wanted a whole number from 0 to 4294967295, found";
    refused_line(
        r#"{"op":"extend","seq":"a","count":-3}"#,
        "-3",
        &format!("key `count`: {whole} -3"),
    );
    refused_line(
        r#"{"op":"extend","seq":"a","count":true}"#,
        "true",
        &format!("key `count`: {whole} true"),
    );
    refused_line(r#"{"op":"drop","seq":7}"#, "7", "key `seq`: wanted a string, found 7");
    refused_line(r#"{"op":7}"#, "7", "key `op`: wanted a string, found 7");
    refused_line(r#"{"op":"drop"}"#, "{", "wanted the key `seq`");
    refused_line(
        r#"{"op":"finish","seq":"a","cache":"no"}"#,
        r#""no""#,
        r#"key `cache`: wanted true or false, found "no""#,
    );
    refused_line(
        r#"{"op":"reserve","as":"r","demand":{"full":1,"swa":-1}}"#,
        "-1",
        "key `swa`: wanted a whole number from 0 to 18446744073709551615, found -1",
    );
    refused_line(
        r#"{"op":"gate","gate":"g","pools":["full",3]}"#,
        "3]",
        "key `pools`: wanted a string, found 3",
    );
    refused_line(
        r#"{"op":"insert","tokens":[1],"namespace":{"tenant":"x"}}"#,
        r#""tenant""#,
        "unknown key `tenant`; wanted `salt` or `adapter`",
    );
    refused_line(
        r#"{"op":"verify","deadline_ms":3}"#,
        r#""deadline_ms""#,
        "unknown key `deadline_ms`; wanted `op`",
    );
    refused_line(
        r#"["op","flush"]"#,
        "[",
        "wanted one JSON object on the line: found [\"op\",\"flush\"]",
    );
}

#[test]
fn token_lists_are_joined() {
    assert_eq!(tokens("[]").to_vec(), [0; 0]);
    assert_eq!(tokens("[3,4294967295,0]").to_vec(), [3, u32::MAX, 0]);
    assert_eq!(tokens(r#"{"start":1000,"count":3}"#).to_vec(), [1000, 1001, 1002]);
    assert_eq!(tokens(r#"{"start":5,"count":0}"#).to_vec(), [0; 0]);
    let mixed = tokens(r#"[{"start":0,"count":3},7,7,{"start":8,"count":2},10]"#);
    assert_eq!(mixed.to_vec(), [0, 1, 2, 7, 7, 8, 9, 10]);
    assert_eq!((mixed.len(), mixed.is_empty()), (8, false));
    let last = tokens(r#"{"start":4294967294,"count":2}"#);
    assert_eq!(last.iter().collect::<Vec<_>>(), [u32::MAX - 1, u32::MAX]);
}

#[test]
fn a_long_list_costs_nothing_until_it_is_expanded() {
    let list = tokens(r#"{"start":0,"count":67108864}"#);
    assert_eq!((list.len(), list.iter().nth(67_108_863)), (1 << 26, Some((1 << 26) - 1)));
}

#[test]
fn bad_token_lists_are_refused() {
    let open = |list: &str| format!(r#"{{"op":"open","seq":"a","tokens":{list}}}"#);
    let whole = "wanted a whole number from 0 to 4294967295, found";
    for bad in ["-1", "4294967296", "1.5", "\"x\"", "null"] {
        refused_line(&open(&format!("[1,{bad}]")), bad, &format!("key `tokens`: {whole} {bad}"));
    }
    refused_line(
        &open("7"),
        "7",
        r#"key `tokens`: wanted a list of tokens, or {"start":…,"count":…}, found 7"#,
    );
    refused_line(
        &open(r#"{"start":4294967294,"count":3}"#),
        "3}",
        "key `count`: wanted at most 2 tokens from 4294967294 on, found 3",
    );
    refused_line(&open(r#"{"start":1}"#), r#"{"start"#, "wanted the key `count`");
    refused_line(
        &open(r#"{"start":1,"count":1,"step":2}"#),
        r#""step""#,
        "unknown key `step`; wanted `start` or `count`",
    );
    refused_line(
        &open(r#"[{"start":0,"count":67108864},1]"#),
        "[",
        "key `tokens`: wanted at most 67108864 tokens in all, found [{\"start\":0,\"count\":67108864},1]",
    );
}

#[test]
fn every_operation_is_read() {
    let mut lines = String::new();
    for (op, keys) in [
        ("open", r#","seq":"a","tokens":[1],"namespace":{"salt":"x"},"priority":-2,"session":"s""#),
        ("extend", r#","seq":"a""#),
        ("append", r#","seq":"a","tokens":[1]"#),
        ("checkpoint", r#","seq":"a","state":false"#),
        ("finish", r#","seq":"a","cache":false,"state":true"#),
        ("drop", r#","seq":"a""#),
        ("cached", r#","tokens":[1]"#),
        ("insert", r#","tokens":[1]"#),
        ("close_session", r#","session":"s""#),
        ("fork", r#","seq":"a","as":"b""#),
        ("truncate", r#","seq":"a","count":0"#),
        ("park", r#","seq":"a""#),
        ("resume", r#","seq":"a""#),
        ("pin", r#","as":"p","tokens":[1]"#),
        ("unpin", r#","as":"p""#),
        ("reserve", r#","as":"r","demand":{"swa":2,"full":0}"#),
        ("release", r#","as":"r","pools":["swa"]"#),
        ("probe", r#","demand":{}"#),
        ("step_begin", r#","step":"s","seqs":["a","b"]"#),
        ("step_end", r#","step":"s""#),
        ("gate", r#","gate":"g""#),
        ("ungate", r#","gate":"g""#),
        ("compact", r#","budget_bytes":0"#),
        ("flush", ""),
        ("fault", r#","panic":"gpu""#),
        ("wait", r#","op_line":3,"deadline_ms":0"#),
        ("verify", ""),
        ("stats", ""),
    ] {
        writeln!(lines, r#"{{"op":"{op}"{keys}}}"#).unwrap();
    }
    let steps = steps(&lines);
    let names: Vec<_> = steps.iter().map(|step| step.operation.name()).collect();
    assert_eq!(names, Operation::names().collect::<Vec<_>>());
    assert_eq!(steps[25].line, 27, "lines count from the file's first");
    let at = |index: usize| steps[index].operation.clone();
    let (seq, one) = ("a".to_owned(), tokens("[1]"));
    let namespace = Namespace { salt: Some("x".to_owned()), adapter: None };
    let (priority, session) = (Some(-2), Some("s".to_owned()));
    let open =
        Operation::Open { seq: seq.clone(), tokens: one.clone(), namespace, priority, session };
    assert_eq!(at(0), open);
    assert_eq!(at(1), Operation::Extend { seq: seq.clone(), count: None });
    assert_eq!(at(3), Operation::Checkpoint { seq: seq.clone(), state: StateWish::Skip });
    let (cache, state) = (Publish::Discard, StateWish::Store);
    assert_eq!(at(4), Operation::Finish { seq: seq.clone(), cache, state });
    let (state, namespace) = (StateWish::Default, Namespace::default());
    assert_eq!(
        at(7),
        Operation::Insert { tokens: one, state, namespace, priority: None, session: None }
    );
    assert_eq!(at(9), Operation::Fork { seq, child: "b".to_owned() });
    let Operation::Reserve { demand, .. } = at(15) else { panic!("{:?}", at(15)) };
    assert_eq!(demand.0, [("swa".to_owned(), 2), ("full".to_owned(), 0)], "in the order given");
    assert_eq!(at(20), Operation::Gate { gate: "g".to_owned(), pools: None });
    assert_eq!(at(22), Operation::Compact { budget: Some(Bytes(0)) });
    assert_eq!(at(24), Operation::Fault(FaultWish::Panic(Victim::Gpu)));
    assert_eq!(at(25), Operation::Wait { op_line: 3, deadline_ms: 0 });
}

#[test]
fn an_absent_salt_is_not_an_empty_one() {
    let namespace = |text: &str| match operation(&format!(
        r#"{{"op":"cached","tokens":[],"namespace":{text}}}"#
    )) {
        Operation::Cached { namespace, .. } => namespace,
        other => panic!("{other:?}"),
    };
    assert_eq!(namespace("{}"), Namespace::default());
    assert_ne!(namespace(r#"{"salt":""}"#), namespace("{}"));
    assert_ne!(namespace(r#"{"salt":"x"}"#), namespace(r#"{"adapter":"x"}"#));
}

#[test]
fn allocating_operations_may_wait_and_be_asynchronous() {
    for line in [
        r#"{"op":"open","seq":"a","tokens":[1]"#,
        r#"{"op":"extend","seq":"a""#,
        r#"{"op":"append","seq":"a","tokens":[1]"#,
        r#"{"op":"checkpoint","seq":"a""#,
        r#"{"op":"insert","tokens":[1]"#,
        r#"{"op":"fork","seq":"a","as":"b""#,
        r#"{"op":"resume","seq":"a""#,
        r#"{"op":"reserve","as":"r","demand":{}"#,
    ] {
        let steps = steps(&format!("{line},\"deadline_ms\":50,\"async\":true}}\n{line}}}"));
        assert_eq!((steps[0].waiting.deadline_ms, steps[0].waiting.mode), (Some(50), Mode::Async));
        assert_eq!((steps[1].waiting.deadline_ms, steps[1].waiting.mode), (None, Mode::Sync));
    }
}

#[test]
fn faults_are_of_copies_or_of_actors() {
    let fault = |keys: &str| match operation(&format!(r#"{{"op":"fault",{keys}}}"#)) {
        Operation::Fault(fault) => fault,
        other => panic!("{other:?}"),
    };
    let times = |times: u32| times.try_into().unwrap();
    let fail = Fault::FailCopies { times: times(3), after_batches: 0 };
    assert_eq!(fault(r#""copy":"fail","times":3"#), FaultWish::Copy(fail));
    let delay = Fault::DelayCopies { times: times(1) };
    assert_eq!(fault(r#""copy":"delay""#), FaultWish::Copy(delay));
    assert_eq!(fault(r#""copy":"release""#), FaultWish::Copy(Fault::ReleaseCopies));
    for (name, victim) in [
        ("allocator", Victim::Allocator),
        ("radix", Victim::Radix),
        ("compactor", Victim::Compactor),
        ("gpu", Victim::Gpu),
    ] {
        assert_eq!(fault(&format!(r#""panic":"{name}""#)), FaultWish::Panic(victim));
    }
    refused_line(r#"{"op":"fault"}"#, "{", "wanted the key `panic`");
    refused_line(
        r#"{"op":"fault","copy":"fail","panic":"gpu"}"#,
        r#""panic""#,
        "key `panic` does not go with `copy`: one fault a line",
    );
    refused_line(
        r#"{"op":"fault","copy":"release","times":1}"#,
        r#""times""#,
        "key `times` does not go with \"release\", which releases all",
    );
    refused_line(
        r#"{"op":"fault","copy":"fail","times":0}"#,
        "0}",
        "key `times`: wanted a whole number from 1 to 4294967295, found 0",
    );
}

#[test]
fn bad_expectations_are_refused() {
    let with_op = |line: &str| format!("{HEADER}\n{{\"op\":\"flush\"}}\n{line}");
    let at = |line: &str, mark: &str, message: &str| {
        refused(&with_op(line), 3, line.find(mark).unwrap() as u32 + 1, message);
    };
    at(r#"{"expect":true}"#, "true", "key `expect`: wanted an object, found true");
    at(r#"{"expect":{},"line":3}"#, r#""line""#, "unknown key `line`; wanted `expect`");
    at(r#"{"expect":{"a":{"mni":1}}}"#, r#""mni""#, "unknown key `mni`; wanted `min` or `max`");
    at(
        r#"{"expect":{"a":{}}}"#,
        "{}",
        r#"key `a`: wanted a value, or bounds {"min":…,"max":…}, found {}"#,
    );
    at(r#"{"expect":{"a":{"min":"1"}}}"#, r#""1""#, r#"key `min`: wanted a number, found "1""#);
    at(r#"{"expect_total":{"ok":true}}"#, "true", "key `ok`: wanted a number, found true");
    at(r#"{"expect":{"a":1,"a":2}}"#, r#""a":2"#, "wanted the key `a` once, found it twice");
}

#[test]
fn every_cut_of_a_good_file_is_read_or_refused_in_its_last_line() {
    let text = format!(
        "{HEADER}\n// é\n{{\"op\":\"open\",\"seq\":\"é\",\"tokens\":[{{\"start\":1,\"count\":2}},7]}}\n{{\"expect\":{{\"ok\":true}}}}\n"
    );
    for cut in 0..text.len() {
        let bytes = &text.as_bytes()[..cut];
        let last = bytes.iter().filter(|byte| **byte == b'\n').count() as u32 + 1;
        if let Err(error) = Scenario::parse(Path::new("case.jsonl"), bytes) {
            assert!(error.place.line == last, "cut at {cut}: {error}");
        }
    }
}

#[test]
fn no_changed_byte_of_a_good_file_is_a_panic() {
    let text = format!(
        "{HEADER}\n{{\"op\":\"open\",\"seq\":\"é\",\"tokens\":[{{\"start\":1,\"count\":2}},7]}}\n{{\"expect\":{{\"ok\":true}}}}\n"
    );
    let lines = text.lines().count() as u32;
    for at in 0..text.len() {
        for byte in [0, b'"', b'{', b'}', b'[', b'-', b'9', b'\\', b'\n', 0x80] {
            let mut bytes = text.clone().into_bytes();
            bytes[at] = byte;
            if let Err(error) = Scenario::parse(Path::new("case.jsonl"), &bytes) {
                assert!(error.place.line <= lines + 1 && error.place.column >= 1, "{error}");
            }
        }
    }
}

#[test]
fn every_scenario_that_is_kept_is_read() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut files = scenarios(&root.join("tests/scenarios"));
    assert!(files.len() >= 74, "only {} scenarios found", files.len());
    files.extend(scenarios(&root.join("../shared/cases")));
    for file in files {
        let scenario = Scenario::read(&file).unwrap();
        assert!(!scenario.steps.is_empty(), "{} does nothing", file.display());
        let expectations: usize = scenario.steps.iter().map(|step| step.expectations.len()).sum();
        assert!(expectations > 0, "{} expects nothing", file.display());
    }
}

/// All scenario files below a directory; none if there is no such directory.
fn scenarios(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let mut files = Vec::new();
    for path in entries.map(|entry| entry.unwrap().path()) {
        if path.is_dir() {
            files.extend(scenarios(&path));
        } else if path.extension().is_some_and(|extension| extension == "jsonl") {
            files.push(path);
        }
    }
    files.sort();
    files
}
