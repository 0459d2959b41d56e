//! What came of an operation: one JSON object, its fields in the order in which they were set.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::{Number, Value};

/// The outcome of one operation, printed as one JSON line.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome(Table);

/// Named fields in order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table(Vec<(String, Field)>);

/// A value, or a table of them.
#[derive(Clone, Debug, PartialEq)]
pub enum Field {
    /// A value.
    Leaf(Value),
    /// More fields, looked up with a dot.
    Table(Table),
}

/// Sums of every numeric field of the outcomes since the header.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Totals(BTreeMap<String, Quantity>);

/// A number that can be added up and compared without losing whole numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Quantity {
    Whole(i128),
    Real(f64),
}

impl Outcome {
    /// An operation that did what was asked.
    #[must_use]
    pub fn success(line: u32, op: &str) -> Self {
        Outcome::new(line, op, true)
    }

    /// An operation that did not: `error` is the snake-case name of the error's variant, `message` is for people.
    #[must_use]
    pub fn failure(line: u32, op: &str, error: &str, message: &str) -> Self {
        Outcome::new(line, op, false).with("error", error).with("message", message)
    }

    /// An operation that was started with `async`.
    #[must_use]
    pub fn pending(line: u32, op: &str) -> Self {
        Outcome::success(line, op).with("pending", true)
    }

    fn new(line: u32, op: &str, ok: impl Into<Field>) -> Self {
        Outcome(Table::new().with("line", line).with("op", op).with("ok", ok))
    }

    /// Sets a field: a new one comes last, an old one is replaced where it stands.
    pub fn set(&mut self, name: &str, field: impl Into<Field>) {
        self.0.set(name, field);
    }

    /// With a field set.
    #[must_use]
    pub fn with(mut self, name: &str, field: impl Into<Field>) -> Self {
        self.set(name, field);
        self
    }

    /// The field of a dotted path, such as `evicted.full`.
    #[must_use]
    pub fn get(&self, path: &str) -> Option<Value> {
        self.0.get(path)
    }

    /// Whether it did what was asked.
    #[must_use]
    pub fn is_ok(&self) -> bool {
        self.get("ok") == Some(Value::Bool(true))
    }
}

impl Table {
    /// A table of no fields.
    #[must_use]
    pub fn new() -> Self {
        Table::default()
    }

    /// Sets a field: a new one comes last, an old one is replaced where it stands.
    pub fn set(&mut self, name: &str, field: impl Into<Field>) {
        let field = field.into();
        match self.0.iter_mut().find(|(known, _)| known == name) {
            Some((_, old)) => *old = field,
            None => self.0.push((name.to_owned(), field)),
        }
    }

    /// With a field set.
    #[must_use]
    pub fn with(mut self, name: &str, field: impl Into<Field>) -> Self {
        self.set(name, field);
        self
    }

    /// The field of a dotted path. A name may have dots itself.
    #[must_use]
    pub fn get(&self, path: &str) -> Option<Value> {
        self.0.iter().find_map(|(name, field)| match path.strip_prefix(name.as_str())? {
            "" => Some(field.value()),
            rest => field.get(rest.strip_prefix('.')?),
        })
    }

    /// Calls `found` with every numeric field and its dotted path.
    fn numbers(&self, prefix: &str, found: &mut impl FnMut(&str, &Number)) {
        for (name, field) in &self.0 {
            let path = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
            match field {
                Field::Leaf(value) => numbers_in(value, &path, found),
                Field::Table(table) => table.numbers(&path, found),
            }
        }
    }
}

impl Field {
    fn get(&self, path: &str) -> Option<Value> {
        match self {
            Field::Table(table) => table.get(path),
            Field::Leaf(value) => get_in(value, path),
        }
    }

    fn value(&self) -> Value {
        match self {
            Field::Leaf(value) => value.clone(),
            Field::Table(Table(fields)) => Value::Object(
                fields.iter().map(|(name, field)| (name.clone(), field.value())).collect(),
            ),
        }
    }
}

impl Totals {
    /// Adds an outcome's numbers to the sums.
    pub fn add(&mut self, outcome: &Outcome) {
        outcome.0.numbers("", &mut |path, number| {
            let number = Quantity::of(number);
            let sum = self.0.get(path).map_or(number, |sum| sum.plus(number));
            self.0.insert(path.to_owned(), sum);
        });
    }

    /// The sum of a field over the outcomes that have it, if any has.
    #[must_use]
    pub fn get(&self, path: &str) -> Option<Value> {
        self.0.get(path).map(|sum| sum.value())
    }
}

impl Quantity {
    pub(super) fn of(number: &Number) -> Self {
        let whole = number.as_i64().map(i128::from).or(number.as_u64().map(i128::from));
        match whole {
            Some(whole) => Quantity::Whole(whole),
            None => Quantity::Real(number.as_f64().unwrap_or(f64::NAN)),
        }
    }

    /// `None` only beside a number that is none.
    pub(super) fn compare(self, other: Self) -> Option<Ordering> {
        match (self, other) {
            (Quantity::Whole(left), Quantity::Whole(right)) => Some(left.cmp(&right)),
            _ => self.real().partial_cmp(&other.real()),
        }
    }

    fn plus(self, other: Self) -> Self {
        match (self, other) {
            (Quantity::Whole(left), Quantity::Whole(right)) => {
                Quantity::Whole(left.saturating_add(right))
            }
            _ => Quantity::Real(self.real() + other.real()),
        }
    }

    fn real(self) -> f64 {
        match self {
            Quantity::Whole(whole) => whole as f64,
            Quantity::Real(real) => real,
        }
    }

    fn value(self) -> Value {
        match self {
            Quantity::Whole(whole) => match (i64::try_from(whole), u64::try_from(whole)) {
                (Ok(whole), _) => whole.into(),
                (_, Ok(whole)) => whole.into(),
                _ => self.real().into(),
            },
            Quantity::Real(real) => real.into(),
        }
    }
}

impl<N: Into<String>, F: Into<Field>> FromIterator<(N, F)> for Table {
    /// As if every field were set in turn.
    fn from_iter<I: IntoIterator<Item = (N, F)>>(fields: I) -> Self {
        let mut table = Table::new();
        for (name, field) in fields {
            table.set(&name.into(), field);
        }
        table
    }
}

impl Serialize for Outcome {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl Serialize for Table {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, field) in &self.0 {
            match field {
                Field::Leaf(value) => map.serialize_entry(name, value)?,
                Field::Table(table) => map.serialize_entry(name, table)?,
            }
        }
        map.end()
    }
}

impl From<Table> for Field {
    fn from(table: Table) -> Self {
        Field::Table(table)
    }
}

/// Everything that a JSON value can be made from.
macro_rules! leaf {
    ($($from:ty),*) => { $(
        impl From<$from> for Field {
            fn from(value: $from) -> Self {
                Field::Leaf(value.into())
            }
        }
    )* };
}

leaf!(Value, bool, u32, u64, i64, f64, &str, String, Vec<String>, Option<u64>, Option<Table>);

impl From<Table> for Value {
    fn from(table: Table) -> Self {
        Field::Table(table).value()
    }
}

fn get_in(value: &Value, path: &str) -> Option<Value> {
    let Value::Object(members) = value else { return None };
    members.iter().find_map(|(name, value)| match path.strip_prefix(name.as_str())? {
        "" => Some(value.clone()),
        rest => get_in(value, rest.strip_prefix('.')?),
    })
}

fn numbers_in(value: &Value, path: &str, found: &mut impl FnMut(&str, &Number)) {
    match value {
        Value::Number(number) => found(path, number),
        Value::Object(members) => {
            for (name, value) in members {
                numbers_in(value, &format!("{path}.{name}"), found);
            }
        }
        Value::Null | Value::Bool(_) | Value::String(_) | Value::Array(_) => {}
    }
}
