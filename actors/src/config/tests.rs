//! What must hold between the reference, the code that reads it and the presets.

use super::*;
use toml::de::{DeTable, DeValue};

#[test]
fn the_reference_is_a_whole_configuration() {
    let config = Config::from_document(REFERENCE).unwrap();
    assert_eq!(config.sections, Sections::reference().unwrap());
    assert_eq!(config.chain.pool_ids().len(), 3);
}

#[test]
fn the_reference_has_every_tuning_key_and_no_other() {
    let reference = DeTable::parse(REFERENCE.text).unwrap();
    for (table, value) in reference.get_ref() {
        let DeValue::Table(value) = value.get_ref() else { panic!("{table:?} is no table") };
        let mut keys: Vec<&str> = value.keys().map(|key| key.get_ref().as_ref()).collect();
        keys.sort_unstable();
        let mut wanted: Vec<&str> = match table.get_ref().as_ref() {
            "arena" => vec!["total_bytes", "sink_bytes"],
            "model" => vec!["name", "page_tokens", "pools"],
            tuning => TABLES.iter().find(|(name, _)| *name == tuning).unwrap().1.to_vec(),
        };
        wanted.sort_unstable();
        assert_eq!(keys, wanted, "{table:?}");
    }
    assert_eq!(reference.get_ref().len(), TABLES.len() + 2);
}

#[test]
fn the_reference_names_every_key_of_a_pool_and_documents_every_line() {
    for key in model::POOL_KEYS.iter().chain(&["preset"]) {
        let named = REFERENCE.text.lines().any(|line| {
            let line = line.trim_start_matches("# ");
            line.starts_with(&format!("{key} = ")) || line == format!("[model.pools.{key}]")
        });
        assert!(named, "{key}");
    }
    let lines: Vec<&str> = REFERENCE.text.lines().collect();
    for (table, keys) in TABLES {
        let start = lines.iter().position(|line| *line == format!("[{table}]")).unwrap();
        for key in *keys {
            let at = lines[start..].iter().position(|line| line.starts_with(&format!("{key} = ")));
            let at = start + at.unwrap();
            assert!(lines[at - 1].starts_with("# "), "{table}.{key} has no comment");
        }
    }
}

#[test]
fn pool_keys_are_those_that_a_pool_takes() {
    // The reader names all keys it knows when it meets one it does not.
    let error = toml::from_str::<model::RawPool>("nonsense = 1").unwrap_err();
    let known = error.message().matches('`').count() / 2 - 1;
    // Four more live in the sub-tables `conv` and `ssm` only.
    assert_eq!(model::POOL_KEYS.len(), known + 4, "{}", error.message());
}

#[test]
fn every_flat_key_can_be_given_bare_and_dotted() {
    for (table, keys) in TABLES.iter().filter(|(table, _)| FLAT_TABLES.contains(table)) {
        for key in *keys {
            assert_eq!(resolve_flat_key(key).unwrap(), (*table, *key));
            assert_eq!(resolve_flat_key(&format!("{table}.{key}")).unwrap(), (*table, *key));
        }
    }
}

#[test]
fn every_preset_is_a_file_that_bears_its_name() {
    for name in preset_names() {
        assert_eq!(Config::from_preset(name).unwrap().model, name);
    }
}
