//! Bounds of the numbers on the command line: one `value_parser` function per kind. Options in a `--config` file go
//! through the same functions; `vitpcm-train` checks `--set`.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// A number, or a message with the expected range.
pub type Parsed<T> = Result<T, String>;

/// At most i64::MAX, the largest integer of TOML, because a run stores its seed there.
pub(crate) fn seed(text: &str) -> Parsed<u64> {
    whole(text, 0..=i64::MAX as u64)
}

pub(crate) fn port(text: &str) -> Parsed<u16> {
    whole(text, 0..=65_535)
}

pub(crate) fn thread_count(text: &str) -> Parsed<usize> {
    whole(text, 1..=1024)
}

/// Largest file loaded into memory.
pub(crate) fn gigabytes(text: &str) -> Parsed<u64> {
    whole(text, 1..=65_536)
}

/// The largest image that is decoded.
pub(crate) fn megapixels(text: &str) -> Parsed<u64> {
    whole(text, 1..=65_536)
}

/// Largest upload to the viewer.
pub(crate) fn mebibytes(text: &str) -> Parsed<u64> {
    whole(text, 1..=65_536)
}

/// The viewer's memory.
pub(crate) fn memory_budget(text: &str) -> Parsed<u64> {
    whole(text, 16..=1_048_576)
}

/// The viewer's numbers of clients or images.
pub(crate) fn places(text: &str) -> Parsed<u64> {
    whole(text, 1..=65_536)
}

/// Side in pixels to which images are resized for a network.
pub fn network_side(text: &str) -> Parsed<usize> {
    whole(text, 1..=16_384)
}

/// Factor on the network's input size.
pub(crate) fn scale(text: &str) -> Parsed<f64> {
    real(text, 0.05..=20.0)
}

pub(crate) fn area(text: &str) -> Parsed<u32> {
    whole(text, 0..=u64::from(u32::MAX))
}

/// Distance in pixels.
pub(crate) fn pixel_error(text: &str) -> Parsed<f64> {
    real(text, 0.0..=1000.0)
}

/// Number of images sampled from a data set.
pub fn sample_size(text: &str) -> Parsed<usize> {
    whole(text, SAMPLE_SIZES)
}

pub(crate) const SAMPLE_SIZES: std::ops::RangeInclusive<u64> = 10..=100_000;

/// Corrections of one image.
pub fn clicks(text: &str) -> Parsed<usize> {
    whole(text, 0..=1000)
}

/// Time budget of a job.
pub(crate) fn minutes(text: &str) -> Parsed<f64> {
    real(text, 0.1..=100_000.0)
}

pub(crate) fn epochs(text: &str) -> Parsed<usize> {
    whole(text, 1..=1_000_000)
}

pub(crate) fn steps(text: &str) -> Parsed<u64> {
    whole(text, 1..=1_000_000_000)
}

/// Batch size.
pub(crate) fn batch(text: &str) -> Parsed<usize> {
    whole(text, 1..=65_536)
}

pub(crate) fn crf_iterations(text: &str) -> Parsed<usize> {
    whole(text, 0..=1000)
}

pub(crate) fn crf_weight(text: &str) -> Parsed<f32> {
    real(text, 0.0..=10_000.0)
}

pub(crate) fn crf_sigma(text: &str) -> Parsed<f32> {
    real(text, 0.01..=100_000.0)
}

/// A score, probability or fraction.
pub fn fraction(text: &str) -> Parsed<f32> {
    real(text, 0.0..=1.0)
}

/// A fraction of a data set.
pub(crate) fn precise_fraction(text: &str) -> Parsed<f64> {
    real(text, 0.0..=1.0)
}

/// A fraction that is a divisor or an argument of a logarithm.
pub fn fraction_above_zero(text: &str) -> Parsed<f32> {
    match fraction(text) {
        Ok(fraction) if fraction > 0.0 => Ok(fraction),
        _ => Err("expected a number above 0, at most 1".to_owned()),
    }
}

/// Ratio of two scores.
pub(crate) fn margin(text: &str) -> Parsed<f32> {
    real(text, 0.0..=1000.0)
}

/// Ratio of two areas.
pub fn ratio(text: &str) -> Parsed<f64> {
    real(text, 0.0..=1000.0)
}

fn whole<T: TryFrom<u64>>(text: &str, range: RangeInclusive<u64>) -> Parsed<T> {
    let number = text.parse().ok().filter(|number| range.contains(number));
    let expected = || format!("expected a whole number from {} to {}", range.start(), range.end());
    number.and_then(|number| T::try_from(number).ok()).ok_or_else(expected)
}

/// Rejects NaN too.
fn real<T: FromStr + PartialOrd + Display>(text: &str, range: RangeInclusive<T>) -> Parsed<T> {
    let number = text.parse().ok().filter(|number| range.contains(number));
    number.ok_or_else(|| format!("expected a number from {} to {}", range.start(), range.end()))
}

#[cfg(test)]
mod tests {
    use clap::error::ErrorKind;
    use clap::{Arg, Command, CommandFactory};
    use std::any::TypeId;

    /// Every command with each of its options that take a number.
    fn number_options() -> Vec<(Command, Arg)> {
        let mut root = crate::Cli::command();
        root.build();
        let (mut commands, mut found) = (vec![root], Vec::new());
        while let Some(command) = commands.pop() {
            commands.extend(command.get_subcommands().cloned());
            let options = command.get_arguments().filter(|option| is_number(option)).cloned();
            found.extend(options.map(|option| (command.clone(), option)));
        }
        found
    }

    fn is_number(option: &Arg) -> bool {
        let kind = option.get_value_parser().type_id();
        let whole = [TypeId::of::<u64>(), TypeId::of::<u32>(), TypeId::of::<u16>(), TypeId::of::<usize>()];
        let signed = [TypeId::of::<i64>(), TypeId::of::<i32>(), TypeId::of::<isize>(), TypeId::of::<u8>()];
        let not_zero = [
            TypeId::of::<std::num::NonZeroUsize>(),
            TypeId::of::<std::num::NonZeroU32>(),
            TypeId::of::<std::num::NonZeroU64>(),
        ];
        let real = [TypeId::of::<f32>(), TypeId::of::<f64>()];
        let mut kinds = whole.iter().chain(&signed).chain(&not_zero).chain(&real);
        kinds.any(|number| kind == *number)
    }

    /// Why a command refuses a value; `None` if it only complains about other arguments.
    fn refusal(command: &Command, option: &Arg, value: &str) -> Option<String> {
        let long = option.get_long().expect("numbers are options, not positional");
        let command = command.clone().subcommand_required(false).no_binary_name(true);
        match command.try_get_matches_from([format!("--{long}={value}")]) {
            Err(error) if error.kind() == ErrorKind::MissingRequiredArgument => None,
            Err(error) => Some(error.to_string()),
            Ok(_) => None,
        }
    }

    #[test]
    fn every_number_of_every_command_has_bounds_and_says_them() {
        let options = number_options();
        assert!(options.len() > 100, "{}", options.len());
        for (command, option) in &options {
            for value in ["18446744073709551615", "-1", "nan", "inf", "-inf", "1e308", "", "x"] {
                let name = format!("{} --{}={value}", command.get_name(), option.get_long().unwrap());
                let refusal = refusal(command, option, value).unwrap_or_else(|| panic!("{name}: accepted"));
                assert!(refusal.contains("expected a"), "{name}: {refusal}");
            }
        }
    }

    #[test]
    fn every_default_is_within_its_bounds() {
        for (command, option) in number_options() {
            for value in option.get_default_values() {
                let value = value.to_str().unwrap();
                assert_eq!(refusal(&command, &option, value), None);
            }
        }
    }
}
