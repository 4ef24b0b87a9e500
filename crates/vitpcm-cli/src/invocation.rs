//! How the program was called: the command as a line to paste, and every option with its value. Reports show both.

use clap::parser::ValueSource;
use clap::{ArgMatches, Command};
use std::ffi::{OsStr, OsString};
use std::time::SystemTime;

/// How the program was called.
pub struct Invocation {
    /// The command line, quoted for a shell.
    pub(crate) command_line: String,
    /// The working directory.
    pub(crate) folder: String,
    /// All options that have a value, in the order of `--help`.
    pub(crate) options: Vec<OptionValue>,
    /// When it was called.
    pub(crate) started: SystemTime,
}

/// An option and its value.
pub(crate) struct OptionValue {
    pub(crate) name: String,
    pub(crate) value: String,
    pub(crate) origin: Origin,
}

/// Where an option's value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// Typed, or from a `--config` file.
    Given,
    Default,
}

impl Invocation {
    /// From the typed arguments and clap's matches.
    pub(crate) fn new(typed: &[OsString], cli: &Command, matches: &ArgMatches) -> Self {
        let (mut command, mut matches) = (cli, matches);
        while let Some((name, inner)) = matches.subcommand() {
            let Some(subcommand) = command.find_subcommand(name) else { break };
            (command, matches) = (subcommand, inner);
        }
        let mut options = Vec::new();
        for argument in command.get_arguments().chain(cli.get_arguments()) {
            let id = argument.get_id().as_str();
            let Ok(Some(values)) = matches.try_get_raw(id) else { continue };
            let name = match argument.get_long() {
                Some(long) => format!("--{long}"),
                None => id.to_uppercase(),
            };
            let value = values.map(|value| value.to_string_lossy()).collect::<Vec<_>>().join(", ");
            let origin = match matches.value_source(id) {
                Some(ValueSource::DefaultValue) | None => Origin::Default,
                Some(_) => Origin::Given,
            };
            options.push(OptionValue { name, value, origin });
        }
        let words =
            std::iter::once(OsStr::new(cli.get_name())).chain(typed.iter().skip(1).map(OsString::as_os_str));
        Invocation {
            command_line: shell_line(words),
            folder: std::env::current_dir().map_or_else(|_| String::new(), |path| path.display().to_string()),
            options,
            started: SystemTime::now(),
        }
    }
}

/// Words as a line to paste into a shell.
pub(crate) fn shell_line(words: impl IntoIterator<Item = impl AsRef<OsStr>>) -> String {
    let words = words.into_iter().map(|word| quoted(&word.as_ref().to_string_lossy()));
    words.collect::<Vec<_>>().join(" ")
}

/// A word quoted for a shell if needed.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,+@%".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// A time in UTC, for people.
pub(crate) fn date_and_time(moment: SystemTime) -> String {
    let seconds = moment.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (days, minutes) = (seconds / 86_400, seconds % 86_400 / 60);
    // Days since 1970 to the civil calendar, after Howard Hinnant: years begin in March, an era has 400 years.
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = 400 * era + year_of_era + u64::from(month <= 2);
    format!("{year}-{month:02}-{day:02} {:02}:{:02} UTC", minutes / 60, minutes % 60)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn words_come_back_from_a_shell_as_they_were() {
        assert_eq!(quoted("--scales=0.75,1"), "--scales=0.75,1");
        assert_eq!(quoted("my photos"), "'my photos'");
        assert_eq!(quoted("it's $HOME"), r"'it'\''s $HOME'");
        assert_eq!(quoted(""), "''");
    }

    #[test]
    fn moments_are_written_in_the_civil_calendar() {
        // From `date -u -d @N`.
        for (seconds, text) in [
            (0, "1970-01-01 00:00 UTC"),
            (951_782_399, "2000-02-28 23:59 UTC"),
            (1_709_209_800, "2024-02-29 12:30 UTC"),
        ] {
            assert_eq!(date_and_time(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)), text);
        }
    }
}
