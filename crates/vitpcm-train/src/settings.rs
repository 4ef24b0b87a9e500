//! Settings as TOML, and changes of single ones by dotted keys, for both kinds of runs. Unknown keys are errors.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{Result, TrainError};

/// All settings of a kind of run.
pub trait Settings: Serialize + DeserializeOwned {
    /// What earlier versions wrote beside these.
    const REMOVED: &'static [RemovedSetting];

    /// Refuses settings that no run can have.
    fn check(&self) -> Result<()>;

    /// `key=value` with a dotted key (`losses.et_target=none`). The value is TOML; what is not is taken as a word.
    fn with(&self, assignment: &str) -> Result<Self> {
        let bad = |reason: String| TrainError::Config(reason);
        let (key, text) = assignment
            .split_once('=')
            .ok_or_else(|| bad(format!("`{assignment}`: expected key=value, such as schedule.rate=1e-3")))?;
        let (key, text) = (key.trim(), text.trim());
        let value = format!("value = {text}").parse::<toml::Table>().ok();
        let value = value.and_then(|mut table| table.remove("value")).unwrap_or(toml::Value::from(text));
        let mut root = toml::Table::try_from(self).map_err(|error| bad(error.to_string()))?;
        let mut table = &mut root;
        let mut parts: Vec<&str> = key.split('.').collect();
        let last = parts.pop().unwrap_or_default();
        for part in parts {
            let inner = table.entry(part).or_insert_with(|| toml::Table::new().into());
            table = inner.as_table_mut().ok_or_else(|| bad(format!("`{key}`: `{part}` has no parts")))?;
        }
        table.insert(last.to_owned(), value);
        let settings: Self = root.try_into().map_err(|error: toml::de::Error| {
            bad(format!("`{key}`: {}", error.message().trim_end_matches(['\n', ' '])))
        })?;
        settings.check()?;
        Ok(settings)
    }

    /// Reads settings; a key that is unknown or missing is an error.
    fn from_toml(text: &str) -> Result<Self> {
        let mut text = text.to_owned();
        if let Ok(mut root) = text.parse::<toml::Table>()
            && Self::REMOVED
                .iter()
                .any(|setting| root.get(setting.table).is_some_and(|table| table.get(setting.key).is_some()))
        {
            Self::REMOVED.iter().try_for_each(|setting| setting.take_out(&mut root))?;
            text = pretty(&root)?;
        }
        let settings: Self = toml::from_str(&text).map_err(|error: toml::de::Error| {
            let line = error.span().map_or(1, |span| 1 + text[..span.start].matches('\n').count());
            TrainError::Config(format!("line {line}: {}", error.message()))
        })?;
        settings.check()?;
        Ok(settings)
    }

    /// The settings as they are kept with a run.
    fn to_toml(&self) -> Result<String> {
        pretty(self)
    }
}

/// A setting that earlier versions wrote into every file. Where it says that it was not used, it is passed over.
#[derive(Debug)]
pub struct RemovedSetting {
    /// The table of its dotted key.
    pub table: &'static str,
    /// Its key there.
    pub key: &'static str,
    /// Its value where it was not used; with none, any value says nothing.
    pub unused: Option<&'static str>,
}

impl RemovedSetting {
    /// Takes the setting, and a table that is empty then, out of the settings.
    fn take_out(&self, root: &mut toml::Table) -> Result<()> {
        let Some(table) = root.get_mut(self.table).and_then(toml::Value::as_table_mut) else { return Ok(()) };
        let Some(value) = table.get(self.key) else { return Ok(()) };
        if self.unused.is_some_and(|unused| value.as_str() != Some(unused)) {
            let Self { table, key, .. } = self;
            return Err(TrainError::Config(format!("`{table}.{key}` = {value} is no longer supported")));
        }
        table.remove(self.key);
        if table.is_empty() {
            root.remove(self.table);
        }
        Ok(())
    }
}

fn pretty(settings: &impl Serialize) -> Result<String> {
    toml::to_string_pretty(settings).map_err(|error| TrainError::Config(error.to_string()))
}
