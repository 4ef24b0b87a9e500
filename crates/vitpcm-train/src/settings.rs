//! Settings as TOML, and changes of single ones by dotted keys; for all kinds of runs. Unknown keys are errors.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{Result, TrainError};

/// `key=value` with a dotted key (`losses.et_target=none`). The value is TOML; what is not is taken as a word.
pub(crate) fn with<T: Serialize + DeserializeOwned>(settings: &T, assignment: &str) -> Result<T> {
    let bad = |reason: String| TrainError::Config(reason);
    let (key, text) = assignment
        .split_once('=')
        .ok_or_else(|| bad(format!("`{assignment}`: expected key=value, such as schedule.rate=1e-3")))?;
    let (key, text) = (key.trim(), text.trim());
    let value = format!("value = {text}").parse::<toml::Table>().ok();
    let value = value.and_then(|mut table| table.remove("value")).unwrap_or(toml::Value::from(text));
    let mut root = toml::Table::try_from(settings).map_err(|error| bad(error.to_string()))?;
    let mut table = &mut root;
    let mut parts: Vec<&str> = key.split('.').collect();
    let last = parts.pop().unwrap_or_default();
    for part in parts {
        let inner = table.entry(part).or_insert_with(|| toml::Table::new().into());
        table = inner.as_table_mut().ok_or_else(|| bad(format!("`{key}`: `{part}` has no parts")))?;
    }
    table.insert(last.to_owned(), value);
    root.try_into().map_err(|error: toml::de::Error| {
        bad(format!("`{key}`: {}", error.message().trim_end_matches(['\n', ' '])))
    })
}

/// Reads settings; a key that is unknown or missing is an error.
pub(crate) fn from_toml<T: DeserializeOwned>(text: &str) -> Result<T> {
    toml::from_str(text).map_err(|error: toml::de::Error| {
        let line = error.span().map_or(1, |span| 1 + text[..span.start].matches('\n').count());
        TrainError::Config(format!("line {line}: {}", error.message()))
    })
}

/// The settings as they are kept with a run.
pub(crate) fn to_toml(settings: &impl Serialize) -> Result<String> {
    toml::to_string_pretty(settings).map_err(|error| TrainError::Config(error.to_string()))
}
