//! Traces and the generated workload, from outside: what text they share, and how bad traces are refused.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::num::NonZeroU32;
use std::time::Duration;

use kvtide::workload::{Generator, Request, SessionId, Workload, WorkloadError};
use kvtide_core::unit::Tokens;

#[track_caller]
fn parse(text: &str) -> Workload {
    Workload::parse("trace", text).unwrap()
}

/// Tokens that two prompts have in common from their start.
fn shared(left: &Request, right: &Request) -> usize {
    left.input().iter().zip(right.input()).take_while(|(left, right)| **left == *right).count()
}

const MOONCAKE: &str = r#"{"timestamp": 0, "input_length": 1100, "output_length": 3, "hash_ids": [10, 11, 12]}
{"timestamp": 250, "input_length": 1300, "output_length": 0, "hash_ids": [10, 11, 13]}

{"timestamp": 250, "input_length": 1536, "output_length": 2, "hash_ids": [10, 11, 12], "extra": {"a": 1}}
"#;

#[test]
fn mooncake_requests_have_their_times_and_lengths() {
    let workload = parse(MOONCAKE);
    let found: Vec<_> = workload
        .requests()
        .iter()
        .map(|request| {
            assert_eq!(request.input().len(), request.input_tokens().0 as usize);
            assert_eq!(request.output().len(), request.output_tokens().0 as usize);
            assert_eq!(request.session(), None);
            (request.arrival().as_millis(), request.input_tokens().0, request.output_tokens().0)
        })
        .collect();
    assert_eq!(found, [(0, 1100, 3), (250, 1300, 0), (250, 1536, 2)]);
}

#[test]
fn equal_blocks_are_equal_text_and_the_last_one_gives_a_prefix() {
    let workload = parse(MOONCAKE);
    let [first, second, third] = workload.requests() else { panic!("three requests") };
    assert_eq!(shared(first, second), 1024);
    assert_eq!(shared(first, third), 1100);
    assert_eq!(shared(second, third), 1024);
}

#[test]
fn requests_are_sorted_by_arrival_and_ties_stay_in_order() {
    let line = |ms: u64, length: u32| {
        format!(r#"{{"timestamp":{ms},"input_length":{length},"output_length":1,"hash_ids":[1]}}"#)
    };
    let text = [line(5, 1), line(3, 2), line(5, 3), line(0, 4)].join("\n");
    let lengths: Vec<_> =
        parse(&text).requests().iter().map(|request| request.input_tokens().0).collect();
    assert_eq!(lengths, [4, 2, 1, 3]);
}

#[test]
fn answers_share_no_token_with_anything() {
    let workload = parse(MOONCAKE);
    let mut seen = BTreeSet::new();
    for token in workload.requests().iter().flat_map(Request::output) {
        assert!(seen.insert(token), "{token} twice");
    }
    let prompts: BTreeSet<_> = workload.requests().iter().flat_map(Request::input).collect();
    assert!(prompts.is_disjoint(&seen));
}

const AGENTIC: &str = r#"{"id":"x","hash_id_scope":"local","requests":[
 {"t":0.0,"type":"n","in":150,"out":5,"hash_ids":[1,2]},
 {"t":9.25,"type":"s","in":200,"out":6,"hash_ids":[1,2,3]},
 {"t":1.0,"type":"subagent","agent_id":"a","requests":[
   {"t":1.5,"in":128,"out":1,"hash_ids":[1,9]},
   {"t":2.0,"in":130,"out":1,"hash_ids":[[1,[9]],8]}]},
 [{"t":3,"in":10,"out":1,"hash_ids":[]}]],
 "block_size":64}"#;

#[test]
fn agentic_sub_agents_are_sessions_of_their_own() {
    let workload = parse(AGENTIC);
    let found: Vec<_> = workload
        .requests()
        .iter()
        .map(|request| (request.arrival().as_millis(), request.session(), request.input_tokens().0))
        .collect();
    let session = |id| Some(SessionId(id));
    let want = [
        (0, session(0), 150),
        (1500, session(1), 128),
        (2000, session(1), 130),
        (3000, session(2), 10),
        (9250, session(0), 200),
    ];
    assert_eq!(found, want);
    assert_eq!(workload.summary().sessions, 3);
}

#[test]
fn agentic_prompts_share_whole_blocks_and_their_tails_are_their_own() {
    let workload = parse(AGENTIC);
    let [main, sub, nested, short, later] = workload.requests() else { panic!("five requests") };
    assert_eq!(shared(main, later), 128);
    assert_eq!(shared(main, sub), 64);
    assert_eq!(shared(sub, nested), 128);
    assert_eq!((shared(main, short), short.input().len()), (0, 10));
}

#[test]
fn a_trace_is_recognised_by_its_content_whatever_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let (json, lines) = (folder.path().join("a.json"), folder.path().join("b"));
    fs::write(&json, MOONCAKE).unwrap();
    fs::write(&lines, AGENTIC).unwrap();
    assert_eq!(Workload::read(&json).unwrap().requests().len(), 3);
    assert_eq!(Workload::read(&lines).unwrap().requests().len(), 5);
}

#[test]
fn several_traces_keep_their_block_ids_and_sessions_apart() {
    let folder = tempfile::tempdir().unwrap();
    let paths = ["a", "b"].map(|name| folder.path().join(name));
    for path in &paths {
        fs::write(path, AGENTIC).unwrap();
    }
    let both = Workload::read_all(&paths).unwrap();
    assert_eq!(both.summary().sessions, 6);
    let [first, second] = &both.requests()[..2] else { panic!("two requests") };
    assert_eq!((first.arrival(), second.arrival()), (Duration::ZERO, Duration::ZERO));
    assert_eq!(shared(first, second), 0);
    let none: [&str; 0] = [];
    assert!(matches!(Workload::read_all(&none), Err(WorkloadError::Empty { .. })));
}

#[track_caller]
fn refused(text: &str) -> String {
    let message = Workload::parse("trace", text).expect_err("must be refused").to_string();
    assert!(!message.contains('\n'), "one line: {message}");
    message
}

#[test]
fn bad_mooncake_lines_are_named_by_line_and_column() {
    let good = r#"{"timestamp":0,"input_length":513,"output_length":1,"hash_ids":[1,2]}"#;
    for (old, new, want) in [
        ("513", "-513", "2:34: invalid value: integer `-513`, expected u32"),
        ("513", "4294967296", "2:40: invalid value: integer `4294967296`, expected u32"),
        ("513", "1.5", "2:33: invalid type: floating point `1.5`, expected u32"),
        ("513", "0", "2:16: `input_length` is 0, expected at least 1"),
        ("\"timestamp\":0", "\"timestamp\":-1", "2:15: invalid value: integer `-1`, expected u64"),
        ("\"timestamp\":0", "\"time\":0", "2:64: missing field `timestamp`"),
        (
            "[1,2]",
            "[1]",
            "2:53: `hash_ids` has 1 blocks, but `input_length` = 513 takes 2 of 512 tokens",
        ),
        (
            "[1,2]",
            "[1,2,3]",
            "2:53: `hash_ids` has 3 blocks, but `input_length` = 513 takes 2 of 512 tokens",
        ),
        ("[1,2]", "[1,-2]", "2:68: invalid value: integer `-2`, expected u64"),
        (",\"hash_ids\":[1,2]", "", "2:52: missing field `hash_ids`"),
        ("2]}", "2", "2:67: EOF while parsing a list"),
        ("}", "} x", "2:71: trailing characters"),
    ] {
        assert_eq!(good.matches(old).count(), 1, "{old}");
        let text = format!("{good}\n{}\n{good}", good.replace(old, new));
        assert_eq!(refused(&text), format!("trace:{want}"), "{new}");
    }
}

#[test]
fn bad_agentic_requests_are_named_by_line_and_column() {
    let first = r#"{"t":0.0,"in":150,"out":5,"hash_ids":[1,2]}"#;
    let file =
        |request: &str| format!("{{\"block_size\":64,\"requests\":[\n{first},\n{request}]}}");
    for (old, new, want) in [
        ("150", "-150", "3:18: invalid value: integer `-150`, expected u32"),
        ("150", "0", "3:42: `in` is 0, expected at least 1"),
        ("\"t\":0.0", "\"t\":-0.5", "3:45: `t` is -0.5, expected seconds of at least 0"),
        ("\"t\":0.0", "\"t\":1e300", "3:46: `t` is 1e300, expected seconds of at least 0"),
        ("\"t\":0.0,", "", "3:36: missing field `t`"),
        ("\"in\":150,", "", "3:35: missing field `in`"),
        ("\"out\":5,", "", "3:36: missing field `out`"),
        (",\"hash_ids\":[1,2]", "", "3:27: missing field `hash_ids`"),
        (
            "[1,2]",
            "[1]",
            "3:42: `hash_ids` has 1 blocks, but `in` = 150 takes 2 whole ones of 64 tokens",
        ),
        (
            "[1,2]",
            "[1,2,3,4]",
            "3:48: `hash_ids` has 4 blocks, but `in` = 150 takes 2 whole ones of 64 tokens",
        ),
        (
            "[1,2]",
            "[1,\"2\"]",
            "3:43: invalid type: string \"2\", expected a block id of at least 0",
        ),
        ("{", "[{\"t\":1,\"in\":1}, {", "3:"),
    ] {
        assert_eq!(first.matches(old).count(), 1, "{old}");
        let message = refused(&file(&first.replace(old, new)));
        assert!(message.starts_with(&format!("trace:{want}")), "{new}: {message}");
    }
    let whole = file(first);
    assert_eq!(parse(&whole).requests().len(), 2);
    for end in [whole.len() - 1, whole.len() - 20, whole.find("\"in\"").unwrap()] {
        assert!(refused(&whole[..end]).contains("EOF while parsing"), "{}", &whole[..end]);
    }
    assert_eq!(
        refused(&whole.replace("64", "0")),
        "trace:1:1: `block_size` is 0, expected at least 1"
    );
    assert!(
        refused(&whole.replace("\"block_size\":64,", "")).contains("missing field `block_size`")
    );
    assert!(refused("{\"block_size\":64}").contains("missing field `requests`"));
    assert_eq!(refused("{\"block_size\":64,\"requests\":[]}"), "trace: no request in it");
}

#[test]
fn what_is_no_trace_is_refused() {
    assert_eq!(refused(""), "trace: no request in it");
    assert_eq!(refused(" \n\t\n"), "trace: no request in it");
    for text in ["[1, 2]", "{}", "{\"a\": 1}", "17", "\"timestamp\"", "null"] {
        let message = refused(text);
        assert!(
            message.starts_with("trace:1:1: unknown trace format, expected Mooncake"),
            "{message}"
        );
    }
    assert!(refused("\n\n  {\"a\": 1}").starts_with("trace:3:3: unknown trace format"));
    assert_eq!(refused("hello"), "trace:1:1: expected value");
    assert_eq!(refused("{\"a\": 1,\n \"b\""), "trace:2:4: EOF while parsing an object");
    assert!(refused(&"[".repeat(100_000)).starts_with("trace:1:1: unknown trace format"));
    assert!(refused(&"{\"a\":".repeat(100_000)).contains("EOF while parsing"));
    let (open, close) = ("[".repeat(100_000), "]".repeat(100_000));
    let nested = format!("{{\"block_size\":1,\"requests\":{open}{close}}}");
    assert!(refused(&nested).contains("recursion limit exceeded"));
}

#[test]
fn a_workload_of_more_tokens_than_ids_is_refused() {
    let line = r#"{"timestamp":0,"input_length":1,"output_length":2147483648,"hash_ids":[1]}"#;
    assert_eq!(parse(line).requests()[0].output_tokens(), Tokens(1 << 31));
    let message = refused(&format!("{line}\n{line}"));
    assert_eq!(message, "the workload's output tokens need more than 2147483648 different ids");
    let huge =
        r#"{"block_size":2147483649,"requests":[{"t":0,"in":2147483649,"out":1,"hash_ids":[1]}]}"#;
    assert!(refused(huge).contains("input tokens need more than"));
}

#[test]
fn files_that_cannot_be_read_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing.jsonl");
    let message = Workload::read(&missing).unwrap_err().to_string();
    assert!(message.starts_with(&format!("cannot read {}: ", missing.display())), "{message}");
    assert!(matches!(Workload::read(folder.path()), Err(WorkloadError::Read { .. })));
    let latin1 = folder.path().join("latin1");
    fs::write(&latin1, b"{\"timestamp\": \"\xe9\"}").unwrap();
    assert!(matches!(Workload::read(&latin1), Err(WorkloadError::Read { .. })));
}

/// A number that any change of any prompt, answer or time changes (FNV-1a).
fn digest(workload: &Workload) -> u64 {
    let mut digest = 0xcbf2_9ce4_8422_2325_u64;
    let mut eat = |number: u64| digest = (digest ^ number).wrapping_mul(0x0100_0000_01b3);
    for request in workload.requests() {
        eat(u64::try_from(request.arrival().as_millis()).unwrap());
        eat(request.session().map_or(u64::MAX, |session| u64::from(session.0)));
        request.input().into_iter().for_each(|token| eat(u64::from(token)));
        request.output().for_each(|token| eat(u64::from(token)));
    }
    digest
}

fn generator(seed: u64, conversations: u32, requests: u32) -> Generator {
    let count = |number| NonZeroU32::new(number).unwrap();
    Generator { seed, conversations: count(conversations), requests: count(requests) }
}

#[test]
fn a_seed_makes_the_same_workload_everywhere() {
    let default = Generator::default().generate().unwrap();
    assert_eq!(digest(&default), 3_520_042_608_154_232_000);
    assert_eq!(digest(&Generator::default().generate().unwrap()), digest(&default));
    assert_ne!(digest(&generator(1, 300, 2000).generate().unwrap()), digest(&default));
}

#[test]
fn the_default_workload_has_the_size_of_a_small_chat_service() {
    let summary = Generator::default().generate().unwrap().summary();
    assert_eq!((summary.requests, summary.sessions), (2000, 300));
    let mean = |tokens: u64| tokens / summary.requests;
    assert!((1_000..2_000).contains(&mean(summary.input_tokens)), "{summary:?}");
    assert!((100..300).contains(&mean(summary.output_tokens)), "{summary:?}");
    assert!(summary.longest_tokens < 8_192, "{summary:?}");
}

fn by_session(workload: &Workload) -> BTreeMap<SessionId, Vec<&Request>> {
    let mut sessions: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for request in workload.requests() {
        sessions.entry(request.session().unwrap()).or_default().push(request);
    }
    sessions
}

#[test]
fn a_turn_quotes_the_whole_conversation_before_it_and_adds_a_message() {
    let workload = generator(3, 20, 120).generate().unwrap();
    for turns in by_session(&workload).values() {
        for pair in turns.windows(2) {
            let before: Vec<_> = pair[0].input().into_iter().chain(pair[0].output()).collect();
            let input = pair[1].input();
            assert!(input.starts_with(&before));
            assert!(input.len() > before.len());
            assert!(pair[1].arrival() > pair[0].arrival());
        }
    }
}

#[test]
fn conversations_share_system_prompts_and_some_more_than_others() {
    let workload = Generator::default().generate().unwrap();
    let mut openings: BTreeMap<u32, u32> = BTreeMap::new();
    for turns in by_session(&workload).values() {
        *openings.entry(turns[0].input()[0]).or_default() += 1;
    }
    let mut counts: Vec<_> = openings.into_values().collect();
    counts.sort_unstable();
    assert_eq!(counts.len(), 12);
    // The first of twelve has 1 / (1 + 1/2 + … + 1/12) = 32 % of 300.
    assert!((70..130).contains(&counts[11]), "{counts:?}");
    assert!(counts[0] < 20, "{counts:?}");
    let [left, right] = [0, 1].map(|index| &workload.requests()[index]);
    assert_ne!(left.session(), right.session());
}

#[test]
fn conversations_overlap_in_time() {
    let workload = Generator::default().generate().unwrap();
    let sessions = by_session(&workload);
    let span = |turns: &Vec<&Request>| (turns[0].arrival(), turns[turns.len() - 1].arrival());
    let middle = workload.requests()[1000].arrival();
    let open =
        sessions.values().map(span).filter(|(first, last)| *first <= middle && middle <= *last);
    assert!(open.count() > 50);
    assert!(workload.requests().is_sorted_by_key(Request::arrival));
}

#[test]
fn generated_answers_are_unique_and_unlike_messages() {
    let workload = generator(5, 10, 60).generate().unwrap();
    let mut answers = BTreeSet::new();
    for token in workload.requests().iter().flat_map(Request::output) {
        assert!(answers.insert(token));
    }
    let openings = by_session(&workload).into_values().map(|turns| turns[0].input());
    assert!(openings.flatten().all(|token| !answers.contains(&token)));
}

#[test]
fn counts_are_met_exactly_and_conversations_never_outnumber_requests() {
    for (conversations, requests, sessions) in [(1, 1, 1), (300, 5, 5), (7, 50, 7), (1, 40, 1)] {
        let summary = generator(0, conversations, requests).generate().unwrap().summary();
        assert_eq!((summary.requests, summary.sessions), (u64::from(requests), sessions));
    }
}

#[test]
fn a_workload_can_be_cut_short() {
    let mut workload = parse(MOONCAKE);
    workload.truncate(1);
    let summary = workload.summary();
    assert_eq!((summary.requests, summary.input_tokens, summary.output_tokens), (1, 1100, 3));
    assert_eq!((summary.longest_tokens, summary.span), (1103, Duration::ZERO));
    workload.truncate(0);
    assert_eq!(workload.summary().longest_tokens, 0);
}
