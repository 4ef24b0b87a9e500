//! `--config FILE.toml`: any option of a command as a key of a file. The file's keys are inserted before the typed
//! arguments, so the same parser checks both. Typed options win; a typed list replaces the file's.

use anyhow::{Context, anyhow, bail};
use clap::Command;
use std::ffi::OsString;
use std::path::Path;
use vitpcm_masks::text_file;

/// The repeatable option that changes one setting.
const SETTING: &str = "set";

/// The typed arguments, with those of a `--config` file, if any, inserted before them.
pub(crate) fn expanded_arguments(cli: &Command, typed: Vec<OsString>) -> anyhow::Result<Vec<OsString>> {
    let Some(path) = config_path(&typed) else { return Ok(typed) };
    // Without a subcommand there is nothing to configure; clap reports what is missing.
    let Some((command, num_words)) = subcommand(cli, &typed) else { return Ok(typed) };
    let of_file = arguments_of_file(cli, command, Path::new(&path), &typed)?;
    let mut arguments = typed;
    arguments.splice(num_words..num_words, of_file);
    Ok(arguments)
}

fn is_among(name: &str, typed: &[OsString]) -> bool {
    let option = format!("--{name}");
    let is_it = |argument: &OsString| {
        let text = argument.to_string_lossy();
        text.strip_prefix(&option).is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
    };
    typed.iter().any(is_it)
}

fn config_path(typed: &[OsString]) -> Option<OsString> {
    let position = typed
        .iter()
        .position(|argument| argument == "--config" || argument.to_string_lossy().starts_with("--config="))?;
    match typed[position].to_string_lossy().strip_prefix("--config=") {
        Some(path) => Some(path.into()),
        None => typed.get(position + 1).cloned(),
    }
}

/// The subcommand, and the number of words up to and including its name.
fn subcommand<'a>(cli: &'a Command, typed: &[OsString]) -> Option<(&'a Command, usize)> {
    let mut place = 1;
    while let Some(option) = typed.get(place)?.to_str().and_then(|word| word.strip_prefix("--")) {
        let argument = cli.get_arguments().find(|argument| argument.get_long() == Some(option));
        let takes_value = argument.is_some_and(|argument| argument.get_action().takes_values());
        place += if takes_value { 2 } else { 1 };
    }
    let mut command = cli.find_subcommand(typed.get(place)?)?;
    place += 1;
    while let Some(next) = typed.get(place).and_then(|word| command.find_subcommand(word)) {
        command = next;
        place += 1;
    }
    Some((command, place))
}

/// The file's options, except those also in `typed`.
fn arguments_of_file(
    cli: &Command,
    command: &Command,
    path: &Path,
    typed: &[OsString],
) -> anyhow::Result<Vec<OsString>> {
    let text = text_file::read(path).with_context(|| format!("{}", path.display()))?;
    let table: toml::Table = text.parse().map_err(|error: toml::de::Error| {
        let line = error.span().map_or(1, |span| 1 + text[..span.start].matches('\n').count());
        anyhow!("{}: not valid TOML at line {line}: {}", path.display(), error.message())
    })?;
    let known = || {
        let arguments = command.get_arguments().chain(cli.get_arguments());
        arguments.filter_map(|argument| argument.get_long()).filter(|name| *name != "config")
    };
    let mut arguments = Vec::new();
    for (key, value) in table {
        let name = key.replace('_', "-");
        if !known().any(|known| known == name) {
            let known: Vec<&str> = known().collect();
            bail!("{}: unknown key `{key}`; this command knows {}", path.display(), known.join(", "));
        }
        // Each `--set` is a separate setting: the file's hold in addition to typed ones.
        if name != SETTING && is_among(&name, typed) {
            continue;
        }
        let values = match value {
            toml::Value::Array(values) => values,
            value => vec![value],
        };
        for value in values {
            match value {
                toml::Value::Boolean(true) => arguments.push(format!("--{name}").into()),
                toml::Value::Boolean(false) => {}
                toml::Value::String(text) => arguments.push(format!("--{name}={text}").into()),
                toml::Value::Integer(number) => arguments.push(format!("--{name}={number}").into()),
                toml::Value::Float(number) => arguments.push(format!("--{name}={number}").into()),
                other => {
                    let kind = other.type_str();
                    bail!(
                        "{}: `{key}` is a {kind}, expected a string, number, boolean or list",
                        path.display()
                    );
                }
            }
        }
    }
    Ok(arguments)
}
