//! JSON values that know where they stand.
//!
//! `serde_json` checks the syntax; raw values borrowed from the line tell every key's and value's column, which the
//! typed deserialisers lose as soon as an object is buffered.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;

use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use super::place::{Place, Problem, ScenarioError};

/// One line of one file.
#[derive(Clone, Copy)]
pub(super) struct Line<'a> {
    pub(super) file: &'a Path,
    pub(super) number: u32,
    pub(super) text: &'a str,
}

/// A value in a line, under a key.
#[derive(Clone, Copy)]
pub(super) struct Node<'a> {
    line: Line<'a>,
    key: &'a str,
    text: &'a str,
}

/// The members of an object, in the order in which they stand; no key stands twice.
pub(super) struct Fields<'a> {
    node: Node<'a>,
    members: Vec<Member<'a>>,
}

/// A key and its value.
pub(super) struct Member<'a> {
    pub(super) name: String,
    /// The key itself, with its quotes.
    key: Node<'a>,
    pub(super) value: Node<'a>,
}

impl<'a> Line<'a> {
    /// The object that the line is.
    pub(super) fn object(self) -> Result<Fields<'a>, ScenarioError> {
        let text = self.text.trim();
        let node = Node { line: self, key: "", text };
        let raw: &RawValue = node.parse(text)?;
        if !raw.get().starts_with('{') {
            let reason = format!("found {}", node.shown());
            return Err(node.error(Problem::NotJson { reason }));
        }
        node.object()
    }

    /// The place of a byte of the line; of its end, beyond that.
    pub(super) fn place(self, offset: usize) -> Place {
        let before = &self.text[..self.text.floor_char_boundary(offset)];
        let column = u32::try_from(before.chars().count()).unwrap_or(u32::MAX).saturating_add(1);
        Place { line: self.number, column }
    }
}

impl<'a> Node<'a> {
    pub(super) fn place(self) -> Place {
        // Every node's text is a slice of its line's.
        self.line.place(self.text.as_ptr() as usize - self.line.text.as_ptr() as usize)
    }

    pub(super) fn error(self, problem: Problem) -> ScenarioError {
        ScenarioError::new(self.line.file, self.place(), problem)
    }

    /// The value is not what may stand here.
    pub(super) fn wrong(self, wanted: impl Into<String>) -> ScenarioError {
        let (key, wanted) = (self.key.to_owned(), wanted.into());
        self.error(Problem::Value { key, wanted, found: self.shown() })
    }

    pub(super) fn file(self) -> &'a Path {
        self.line.file
    }

    pub(super) fn is_object(self) -> bool {
        self.text.starts_with('{')
    }

    pub(super) fn is_array(self) -> bool {
        self.text.starts_with('[')
    }

    pub(super) fn object(self) -> Result<Fields<'a>, ScenarioError> {
        if !self.is_object() {
            return Err(self.wrong("an object"));
        }
        let pairs: Pairs<'a> = self.parse(self.text)?;
        let mut members = Vec::with_capacity(pairs.0.len());
        let mut seen = BTreeSet::new();
        for (key, value) in pairs.0 {
            let (key, value) = (key.get(), value.get());
            let quoted = Node { line: self.line, key, text: key };
            let name: String = quoted.parse(key)?;
            if !seen.insert(name.clone()) {
                return Err(quoted.error(Problem::TwiceKey { key: name }));
            }
            let value = Node { line: self.line, key: key.trim_matches('"'), text: value };
            members.push(Member { name, key: quoted, value });
        }
        Ok(Fields { node: self, members })
    }

    pub(super) fn array(self) -> Result<Vec<Node<'a>>, ScenarioError> {
        if !self.is_array() {
            return Err(self.wrong("a list"));
        }
        let items: Vec<&'a RawValue> = self.parse(self.text)?;
        Ok(items.into_iter().map(|item| Node { text: item.get(), ..self }).collect())
    }

    pub(super) fn string(self) -> Result<String, ScenarioError> {
        if !self.text.starts_with('"') {
            return Err(self.wrong("a string"));
        }
        self.parse(self.text)
    }

    /// A string of at least one character.
    pub(super) fn name(self) -> Result<String, ScenarioError> {
        let name = self.string()?;
        if name.is_empty() { Err(self.wrong("a name that is not empty")) } else { Ok(name) }
    }

    /// A list of names.
    pub(super) fn names(self) -> Result<Vec<String>, ScenarioError> {
        self.array()?.into_iter().map(Node::name).collect()
    }

    /// One of the words given, each standing for a value.
    pub(super) fn word<T: Copy>(self, words: &[(&str, T)]) -> Result<T, ScenarioError> {
        let known: Vec<_> = words.iter().map(|(word, _)| format!("\"{word}\"")).collect();
        let wrong = || self.wrong(known.join(" or "));
        let found = self.string().map_err(|_| wrong())?;
        words.iter().find(|(word, _)| *word == found).map(|(_, value)| *value).ok_or_else(wrong)
    }

    /// `true` or `false`, each standing for a value.
    pub(super) fn choice<T>(self, yes: T, no: T) -> Result<T, ScenarioError> {
        match self.text {
            "true" => Ok(yes),
            "false" => Ok(no),
            _ => Err(self.wrong("true or false")),
        }
    }

    pub(super) fn u64(self) -> Result<u64, ScenarioError> {
        self.whole(0, u64::MAX)
    }

    pub(super) fn u32(self) -> Result<u32, ScenarioError> {
        self.whole(0, u64::from(u32::MAX)).map(|number| number as u32)
    }

    pub(super) fn positive_u64(self) -> Result<u64, ScenarioError> {
        self.whole(1, u64::MAX)
    }

    pub(super) fn positive_u32(self) -> Result<u32, ScenarioError> {
        self.whole(1, u64::from(u32::MAX)).map(|number| number as u32)
    }

    pub(super) fn i64(self) -> Result<i64, ScenarioError> {
        self.text.parse().map_err(|_| self.wrong("a whole number"))
    }

    /// Any JSON value.
    pub(super) fn value(self) -> Result<Value, ScenarioError> {
        self.parse(self.text)
    }

    fn whole(self, min: u64, max: u64) -> Result<u64, ScenarioError> {
        // Rust's integers are a subset of JSON's numbers, but for `+1` and `01`, which are no JSON.
        let number = self.text.parse().ok().filter(|number| (min..=max).contains(number));
        number.ok_or_else(|| self.wrong(format!("a whole number from {min} to {max}")))
    }

    /// Parses a slice of the line; a syntax error's column counts from the slice's start.
    fn parse<T: serde::Deserialize<'a>>(self, text: &'a str) -> Result<T, ScenarioError> {
        serde_json::from_str(text).map_err(|error| {
            let start = text.as_ptr() as usize - self.line.text.as_ptr() as usize;
            let place = self.line.place(start + error.column().saturating_sub(1));
            let reason = error.to_string();
            let reason = reason.rsplit_once(" at line ").map_or(&*reason, |(reason, _)| reason);
            let problem = Problem::NotJson { reason: reason.to_owned() };
            ScenarioError::new(self.line.file, place, problem)
        })
    }

    /// The value as it stands, cut short if long.
    fn shown(self) -> String {
        let mut shown: String = self.text.chars().take(SHOWN_MAX).collect();
        if shown.len() < self.text.len() {
            shown.push('…');
        }
        shown
    }
}

impl<'a> Fields<'a> {
    /// Refuses keys other than these.
    pub(super) fn only(self, known: &[&[&'static str]]) -> Result<Self, ScenarioError> {
        let known = || known.iter().flat_map(|some| some.iter().copied());
        match self.members.iter().find(|member| known().all(|known| known != member.name)) {
            None => Ok(self),
            Some(member) => {
                let (key, known) = (member.name.clone(), known().collect());
                Err(member.key.error(Problem::UnknownKey { key, known }))
            }
        }
    }

    /// The value of a key, if it is there.
    pub(super) fn find(&self, key: &str) -> Option<Node<'a>> {
        self.members.iter().find(|member| member.name == key).map(|member| member.value)
    }

    /// The value of a key that must be there.
    pub(super) fn need(&self, key: &'static str) -> Result<Node<'a>, ScenarioError> {
        self.find(key).ok_or_else(|| self.node.error(Problem::MissingKey { key }))
    }

    /// Refuses a key because of what else is there.
    pub(super) fn without(
        &self,
        key: &'static str,
        with: &'static str,
    ) -> Result<(), ScenarioError> {
        match self.members.iter().find(|member| member.name == key) {
            None => Ok(()),
            Some(member) => Err(member.key.error(Problem::ConflictingKey { key, with })),
        }
    }

    pub(super) fn members(&self) -> &[Member<'a>] {
        &self.members
    }

    /// The object itself.
    pub(super) fn node(&self) -> Node<'a> {
        self.node
    }
}

/// An object's members, duplicates and order kept.
struct Pairs<'a>(Vec<(&'a RawValue, &'a RawValue)>);

impl<'de: 'a, 'a> serde::Deserialize<'de> for Pairs<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members;

        impl<'de> Visitor<'de> for Members {
            type Value = Pairs<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs<'de>, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Pairs(pairs))
            }
        }

        deserializer.deserialize_map(Members)
    }
}

const SHOWN_MAX: usize = 40;
