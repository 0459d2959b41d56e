//! Configurations of real models that are part of the program: the files of `config/models`.

use super::document::Document;

/// A preset's name, the file as errors call it, and its text.
const PRESETS: &[(&str, &str, &str)] = &[
    (
        "llama-3.1-8b",
        "config/models/llama-3.1-8b.toml",
        include_str!("../../../config/models/llama-3.1-8b.toml"),
    ),
    ("mellum2", "config/models/mellum2.toml", include_str!("../../../config/models/mellum2.toml")),
    (
        "qwen3.5-4b",
        "config/models/qwen3.5-4b.toml",
        include_str!("../../../config/models/qwen3.5-4b.toml"),
    ),
    (
        "inkling-reduced",
        "config/models/inkling-reduced.toml",
        include_str!("../../../config/models/inkling-reduced.toml"),
    ),
    (
        "inkling-small",
        "config/models/inkling-small.toml",
        include_str!("../../../config/models/inkling-small.toml"),
    ),
];

/// The names of all presets.
#[must_use]
pub fn names() -> Vec<&'static str> {
    PRESETS.iter().map(|(name, ..)| *name).collect()
}

/// The file of a preset.
pub(super) fn document(name: &str) -> Option<Document<'static>> {
    let (_, file, text) = PRESETS.iter().find(|(known, ..)| *known == name)?;
    Some(Document { name: file, text })
}
