//! Outcomes of scenario operations: how they are printed, summed up, and held against expectations.

#![allow(clippy::unwrap_used)]

use std::path::Path;

use kvtide::scenario::{Outcome, Scenario, Subject, Table, Totals};
use serde_json::json;

const HEADER: &str = r#"{"scenario":1,"arena":{"total_bytes":640,"page_tokens":2,"pools":[{"name":"full","kind":"full","grow":"up","entry_bytes":32}]}}"#;

fn parse(text: &str) -> Scenario {
    Scenario::parse(Path::new("dir/case.jsonl"), text.as_bytes()).unwrap()
}

/// Runs expectations, one a line, against an outcome that is the first and the last.
fn check(expectations: &str, outcome: &Outcome) -> Vec<String> {
    let text = format!("{HEADER}\n{{\"op\":\"flush\"}}\n{expectations}");
    let scenario = parse(&text);
    let mut totals = Totals::default();
    totals.add(outcome);
    let failures = scenario.check(&scenario.steps[0], outcome, &totals);
    failures.iter().map(ToString::to_string).collect()
}

fn outcome() -> Outcome {
    Outcome::success(2, "flush")
        .with("evicted", Table::from_iter([("full", 3u64), ("swa.left", 4)]))
        .with("plan", json!(null))
        .with("detail", json!({"gates": ["rdma"], "demand": {"full": 6}}))
}

#[test]
fn what_is_as_expected_is_not_reported() {
    let met = concat!(
        r#"{"expect":{"ok":true,"line":2,"op":"flush","plan":null,"detail.gates":["rdma"]}}"#,
        "\n",
        r#"{"expect":{"evicted.full":3,"detail.demand.full":6.0,"evicted.swa.left":{"min":4,"max":4}}}"#,
        "\n",
        r#"{"expect":{"evicted.full":{"max":3},"evicted.swa.left":{"min":-1}}}"#,
        "\n{\"expect\":{}}",
    );
    assert_eq!(check(met, &outcome()), [""; 0]);
}

#[test]
fn what_is_not_as_expected_is_reported_field_by_field() {
    let missed = concat!(
        r#"{"expect":{"ok":false,"evicted.full":{"max":2},"evicted.swa":0}}"#,
        "\n\n",
        r#"{"expect":{"evicted.full":{"min":4,"max":5},"op":{"min":1},"plan":0,"error":"busy"}}"#,
    );
    assert_eq!(
        check(missed, &outcome()),
        [
            "dir/case.jsonl:3: ok: wanted false, got true",
            r#"dir/case.jsonl:3: evicted.full: wanted {"max":2}, got 3"#,
            "dir/case.jsonl:3: evicted.swa: wanted 0, got absent",
            r#"dir/case.jsonl:5: evicted.full: wanted {"min":4,"max":5}, got 3"#,
            r#"dir/case.jsonl:5: op: wanted {"min":1}, got "flush""#,
            "dir/case.jsonl:5: plan: wanted 0, got null",
            r#"dir/case.jsonl:5: error: wanted "busy", got absent"#,
        ]
    );
}

#[test]
fn numbers_are_compared_without_losing_any_digit() {
    let large = Outcome::success(2, "flush").with("moved_bytes", u64::MAX);
    assert_eq!(check(r#"{"expect":{"moved_bytes":18446744073709551615}}"#, &large), [""; 0]);
    assert_eq!(
        check(r#"{"expect":{"moved_bytes":{"max":18446744073709551614}}}"#, &large),
        [
            r#"dir/case.jsonl:3: moved_bytes: wanted {"max":18446744073709551614}, got 18446744073709551615"#
        ]
    );
}

#[test]
fn totals_add_up_what_came_since_the_header() {
    let text = format!(
        "{HEADER}\n{}\n{}\n{}\n",
        r#"{"op":"flush"}"#,
        r#"{"op":"flush"}"#,
        r#"{"expect_total":{"evicted.full":{"max":6},"moved":1.5,"matched":0,"prepares":0}}"#
    );
    let scenario = parse(&text);
    assert_eq!(scenario.steps[1].expectations[0].of, Subject::Totals);
    let mut totals = Totals::default();
    for (evicted, moved) in [(3u64, 1.0), (4, 0.5)] {
        let evicted = Table::new().with("full", evicted);
        let outcome = Outcome::success(2, "flush").with("evicted", evicted).with("moved", moved);
        totals.add(&outcome);
    }
    let last = Outcome::failure(3, "flush", "busy", "the queue is full").with("matched", 0u32);
    totals.add(&last);
    let failures: Vec<_> = scenario
        .check(&scenario.steps[1], &last, &totals)
        .into_iter()
        .map(|failure| (failure.line, failure.field, failure.wanted, failure.got))
        .collect();
    let text = str::to_owned;
    assert_eq!(
        failures,
        [
            (4, text("evicted.full"), text(r#"{"max":6}"#), text("7")),
            (4, text("prepares"), text("0"), text("absent")),
        ]
    );
}

#[test]
fn an_outcome_is_printed_in_the_order_in_which_it_was_set() {
    let mut outcome = Outcome::failure(7, "reserve", "exhausted", "asked for 3 pages")
        .with(
            "detail",
            Table::new()
                .with("wanted", 3u64)
                .with("free", Table::new().with("z", 1u64).with("a", 0u64)),
        )
        .with("moved_pages", 1u64);
    outcome.set("moved_pages", 2u64);
    assert!(!outcome.is_ok());
    assert_eq!(outcome.get("detail.free.z"), Some(json!(1)));
    assert_eq!(
        serde_json::to_string(&outcome).unwrap(),
        r#"{"line":7,"op":"reserve","ok":false,"error":"exhausted","message":"asked for 3 pages","detail":{"wanted":3,"free":{"z":1,"a":0}},"moved_pages":2}"#
    );
    let pending = serde_json::to_string(&Outcome::pending(3, "open")).unwrap();
    assert_eq!(pending, r#"{"line":3,"op":"open","ok":true,"pending":true}"#);
}
