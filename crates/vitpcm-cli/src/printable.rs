//! Text that is safe for a terminal. Names of files and classes come from anywhere: characters that would move the
//! cursor, change colours, reverse the text direction or start a new line are shown as escapes.

/// Longest table cell, in characters.
const LONGEST_CELL: usize = 80;

/// Longest message, in characters: a name may have a million.
const LONGEST_MESSAGE: usize = 8000;

/// Controls (C0, DEL, C1), line separators and bidirectional marks.
fn is_unsafe(letter: char) -> bool {
    let turns = matches!(letter, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    letter.is_control() || turns || matches!(letter, '\u{2028}' | '\u{2029}')
}

/// Whether a text prints as it is, on one line.
pub(crate) fn is_plain(text: &str) -> bool {
    !text.contains(is_unsafe)
}

/// The text on one line, with line feeds escaped too.
pub(crate) fn one_line(text: &str) -> String {
    escaped(text, |_| false)
}

/// A line of a list, shortened.
pub(crate) fn line(text: &str) -> String {
    shortened(one_line(text), LONGEST_MESSAGE)
}

/// A cell of a table: one line, shortened.
pub(crate) fn cell(text: &str) -> String {
    shortened(one_line(text), LONGEST_CELL)
}

/// A message. Its continuation lines are indented; a line feed without a space after it is part of a name and is
/// escaped.
pub(crate) fn message(text: &str) -> String {
    shortened(escaped(text, |rest| rest.starts_with("\n ")), LONGEST_MESSAGE)
}

/// Multi-line text of our own, such as a table; names in it have been through [`one_line`] or [`cell`].
pub(crate) fn lines(text: &str) -> String {
    escaped(text, |rest| rest.starts_with(['\n', '\t']))
}

/// Equivalent JSON with characters that a terminal would interpret as `\u` escapes.
pub(crate) fn json(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for letter in text.chars() {
        match is_unsafe(letter) && letter != '\n' {
            true => safe += &format!("\\u{:04x}", u32::from(letter)),
            false => safe.push(letter),
        }
    }
    safe
}

/// Escapes unsafe characters, unless `is_meant` accepts the rest of the text from there.
fn escaped(text: &str, is_meant: impl Fn(&str) -> bool) -> String {
    let mut safe = String::with_capacity(text.len());
    for (place, letter) in text.char_indices() {
        match is_unsafe(letter) && !is_meant(&text[place..]) {
            true if letter.is_control() => safe.extend(letter.escape_default()),
            true => safe.extend(letter.escape_unicode()),
            false => safe.push(letter),
        }
    }
    safe
}

fn shortened(mut text: String, most: usize) -> String {
    if let Some((cut, _)) = text.char_indices().nth(most) {
        text.truncate(cut);
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_steer_a_terminal_or_begin_a_line() {
        let name = "a\u{1b}]0;owned\u{7}\nerror: b\r\u{9b}31m\u{202e}gnp.x\u{2028}ü猫🐈";
        let shown = r"a\u{1b}]0;owned\u{7}\nerror: b\r\u{9b}31m\u{202e}gnp.x\u{2028}ü猫🐈";
        assert_eq!(one_line(name), shown);
        assert_eq!(message(name), shown);
        assert!(is_plain(shown) && !is_plain(name));
    }

    #[test]
    fn lines_of_our_own_stay_lines() {
        assert_eq!(message("expected one of\n  a.csv\n  b.csv"), "expected one of\n  a.csv\n  b.csv");
        assert_eq!(lines("class\tIoU\nd\u{1b}og\n"), "class\tIoU\nd\\u{1b}og\n");
    }

    #[test]
    fn json_keeps_its_meaning() {
        let text = serde_json::to_string(&["\u{9b}2J\u{202e}\n"]).unwrap() + "\n";
        let safe = json(&text);
        assert!(is_plain(safe.trim_end()), "{safe}");
        assert_eq!(
            serde_json::from_str::<Vec<String>>(&safe).unwrap(),
            serde_json::from_str::<Vec<String>>(&text).unwrap()
        );
    }

    #[test]
    fn a_million_letters_are_shortened() {
        let long = "x".repeat(1_000_000);
        assert_eq!(cell(&long).chars().count(), LONGEST_CELL + 1);
        assert_eq!(message(&long).chars().count(), LONGEST_MESSAGE + 1);
    }
}
