//! A whole scenario file.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

use super::expect::{Expectation, Failure, Subject};
use super::header::Header;
use super::json::Line;
use super::operation::{Operation, Waiting};
use super::outcome::{Outcome, Totals};
use super::place::{Place, Problem, ScenarioError};

/// A scenario, checked as far as it can be without running it.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// Its file.
    pub file: PathBuf,
    /// What it runs against.
    pub header: Header,
    /// What it does, in order.
    pub steps: Vec<Step>,
}

/// One operation and what is expected after it.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// The operation's line, which its outcome and a later `wait` name.
    pub line: u32,
    /// What it does.
    pub operation: Operation,
    /// How it waits for memory; the default for operations that need none.
    pub waiting: Waiting,
    /// What is expected after it, in order.
    pub expectations: Vec<Expectation>,
}

impl Scenario {
    /// Reads a file.
    ///
    /// # Errors
    /// [`ScenarioError`], with the place where the file is no scenario.
    pub fn read(file: &Path) -> Result<Self, ScenarioError> {
        match fs::read(file) {
            Ok(bytes) => Scenario::parse(file, &bytes),
            Err(error) => {
                let place = Place { line: 1, column: 1 };
                Err(ScenarioError::new(file, place, Problem::Unreadable(error)))
            }
        }
    }

    /// Reads a file's content; `file` is for errors, for the default name and for what `config` is relative to.
    ///
    /// # Errors
    /// As [`Scenario::read`].
    pub fn parse(file: &Path, bytes: &[u8]) -> Result<Self, ScenarioError> {
        let text = text_of(file, bytes)?;
        let mut header = None;
        let mut steps: Vec<Step> = Vec::new();
        let mut number = 0;
        for text in text.lines() {
            number += 1;
            let trimmed = text.trim();
            if trimmed.is_empty() || trimmed.starts_with("//") {
                continue;
            }
            let line = Line { file, number, text };
            if header.is_none() {
                header = Some(header_of(line)?);
            } else {
                add(line, &mut steps)?;
            }
        }
        match header {
            Some(header) => Ok(Scenario { file: file.to_owned(), header, steps }),
            None => {
                let place = Place { line: number.max(1), column: 1 };
                Err(ScenarioError::new(file, place, Problem::NoHeader))
            }
        }
    }

    /// What does not hold after a step; `totals` include the step's outcome.
    #[must_use]
    pub fn check(&self, step: &Step, outcome: &Outcome, totals: &Totals) -> Vec<Failure> {
        let each = step.expectations.iter();
        each.flat_map(|expectation| expectation.check(&self.file, outcome, totals)).collect()
    }

    /// An error of whoever runs the scenario, about something that stands at `place`.
    #[must_use]
    pub fn refuse(
        &self,
        place: Place,
        error: impl Into<Box<dyn Error + Send + Sync>>,
    ) -> ScenarioError {
        ScenarioError::new(&self.file, place, Problem::Refused(error.into()))
    }
}

fn header_of(line: Line<'_>) -> Result<Header, ScenarioError> {
    let fields = line.object()?;
    if fields.find("scenario").is_none() {
        return Err(fields.node().error(Problem::NoHeader));
    }
    Header::parse(fields)
}

/// Adds a line after the header: an operation, or an expectation of the last one.
fn add(line: Line<'_>, steps: &mut Vec<Step>) -> Result<(), ScenarioError> {
    let fields = line.object()?;
    if fields.find("op").is_some() {
        let (operation, waiting) = Operation::parse(fields)?;
        steps.push(Step { line: line.number, operation, waiting, expectations: Vec::new() });
        return Ok(());
    }
    if fields.find("scenario").is_some() {
        return Err(fields.node().error(Problem::SecondHeader));
    }
    for (key, of) in [("expect", Subject::Outcome), ("expect_total", Subject::Totals)] {
        let Some(node) = fields.find(key) else { continue };
        let fields = fields.only(&[&[key]])?;
        let expectation = Expectation::parse(node, of)?;
        let last = steps.last_mut().ok_or_else(|| fields.node().error(Problem::NoOperation))?;
        last.expectations.push(expectation);
        return Ok(());
    }
    Err(fields.node().error(Problem::UnknownLine))
}

/// The text of a file, without a byte order mark.
fn text_of<'a>(file: &Path, bytes: &'a [u8]) -> Result<&'a str, ScenarioError> {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    std::str::from_utf8(bytes).map_err(|error| {
        let good = &bytes[..error.valid_up_to()];
        let lines = good.iter().filter(|byte| **byte == b'\n').count();
        let start = good.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        let column = String::from_utf8_lossy(&good[start..]).chars().count();
        let place = Place { line: lines as u32 + 1, column: column as u32 + 1 };
        let byte = bytes[error.valid_up_to()];
        ScenarioError::new(file, place, Problem::NotUtf8 { byte })
    })
}
