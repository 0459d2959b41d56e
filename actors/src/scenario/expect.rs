//! What should have come of an operation, and how it differs from what did.

use std::cmp::Ordering;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::{Number, Value};

use super::json::{Member, Node};
use super::outcome::{Outcome, Quantity, Totals};
use super::place::ScenarioError;

/// One `expect` or `expect_total` line.
#[derive(Clone, Debug, PartialEq)]
pub struct Expectation {
    /// Where it stands.
    pub line: u32,
    /// What it is expected of.
    pub of: Subject,
    /// What is expected, field by field. Fields that are not named are not checked.
    pub fields: Vec<ExpectedField>,
}

/// What an expectation looks at.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Subject {
    /// The outcome of the operation before it.
    Outcome,
    /// The sums over all outcomes since the header.
    Totals,
}

/// A field and what it should be.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpectedField {
    /// Its dotted path.
    pub path: String,
    /// What it should be.
    pub wanted: Wanted,
}

/// What a field should be.
#[derive(Clone, Debug, PartialEq)]
pub enum Wanted {
    /// This, and numbers by value.
    Equal(Value),
    /// A number within bounds, themselves included; at least one is given.
    Within {
        /// The least.
        min: Option<Number>,
        /// The most.
        max: Option<Number>,
    },
}

/// An expectation that did not hold. The command line exits with 1.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct Failure {
    /// The scenario's file.
    pub file: PathBuf,
    /// The expectation's line.
    pub line: u32,
    /// The field's dotted path.
    pub field: String,
    /// What was wanted, as JSON.
    pub wanted: String,
    /// What came, as JSON; `absent` if there is no such field.
    pub got: String,
}

impl Expectation {
    pub(super) fn parse(node: Node<'_>, of: Subject) -> Result<Self, ScenarioError> {
        let fields = node.object()?;
        let parse = |member: &Member<'_>| {
            let wanted = Wanted::parse(member.value, of)?;
            Ok(ExpectedField { path: member.name.clone(), wanted })
        };
        let fields = fields.members().iter().map(parse).collect::<Result<_, _>>()?;
        Ok(Expectation { line: node.place().line, of, fields })
    }

    /// Every field that is not as expected.
    #[must_use]
    pub fn check(&self, file: &Path, outcome: &Outcome, totals: &Totals) -> Vec<Failure> {
        let failure = |field: &ExpectedField| {
            let got = match self.of {
                Subject::Outcome => outcome.get(&field.path),
                Subject::Totals => totals.get(&field.path),
            };
            if got.as_ref().is_some_and(|got| field.wanted.holds(got)) {
                return None;
            }
            Some(Failure {
                file: file.to_owned(),
                line: self.line,
                field: field.path.clone(),
                wanted: field.wanted.to_string(),
                got: got.map_or_else(|| "absent".to_owned(), |got| got.to_string()),
            })
        };
        self.fields.iter().filter_map(failure).collect()
    }
}

impl Wanted {
    fn parse(node: Node<'_>, of: Subject) -> Result<Self, ScenarioError> {
        if node.is_object() {
            let fields = node.object()?.only(&[&["min", "max"]])?;
            let bound = |key| fields.find(key).map(number).transpose();
            let (min, max) = (bound("min")?, bound("max")?);
            if min.is_none() && max.is_none() {
                return Err(node.wrong("a value, or bounds {\"min\":…,\"max\":…}"));
            }
            return Ok(Wanted::Within { min, max });
        }
        match of {
            Subject::Outcome => node.value().map(Wanted::Equal),
            Subject::Totals => number(node).map(|sum| Wanted::Equal(Value::Number(sum))),
        }
    }

    /// Whether a field is as wanted. Only numbers are within bounds.
    #[must_use]
    pub fn holds(&self, got: &Value) -> bool {
        match (self, got) {
            (Wanted::Equal(Value::Number(wanted)), Value::Number(got)) => {
                compare(got, wanted) == Some(Ordering::Equal)
            }
            (Wanted::Equal(wanted), got) => wanted == got,
            (Wanted::Within { min, max }, Value::Number(got)) => {
                let least =
                    min.as_ref().is_none_or(|min| compare(got, min).is_some_and(Ordering::is_ge));
                let most =
                    max.as_ref().is_none_or(|max| compare(got, max).is_some_and(Ordering::is_le));
                least && most
            }
            (Wanted::Within { .. }, _) => false,
        }
    }
}

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Wanted::Equal(value) => write!(f, "{value}"),
            Wanted::Within { min: Some(min), max: Some(max) } => {
                write!(f, "{{\"min\":{min},\"max\":{max}}}")
            }
            Wanted::Within { min: Some(min), max: None } => write!(f, "{{\"min\":{min}}}"),
            Wanted::Within { min: None, max: Some(max) } => write!(f, "{{\"max\":{max}}}"),
            Wanted::Within { min: None, max: None } => f.write_str("a number"),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Failure { file, line, field, wanted, got } = self;
        write!(f, "{}:{line}: {field}: wanted {wanted}, got {got}", file.display())
    }
}

fn number(node: Node<'_>) -> Result<Number, ScenarioError> {
    match node.value()? {
        Value::Number(number) => Ok(number),
        _ => Err(node.wrong("a number")),
    }
}

fn compare(left: &Number, right: &Number) -> Option<Ordering> {
    Quantity::of(left).compare(Quantity::of(right))
}
