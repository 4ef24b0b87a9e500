//! Names that clients give: made harmless once, when they come in. What is left can be shown, and be a file's name in an
//! archive on any system.

use std::collections::HashSet;

/// Longest name that is kept, in characters.
const MAX_LENGTH: usize = 100;

/// A name without folders, without what file systems refuse or terminals and browsers obey, at most 100 characters long.
pub(crate) fn clean(name: &str) -> String {
    let last = name.rsplit(['/', '\\']).next().unwrap_or_default();
    let visible = last.chars().filter(|&c| !c.is_control() && !is_invisible(c));
    let safe = visible.map(|c| if r#"<>:"|?*"#.contains(c) { '_' } else { c });
    let name: String = safe.take(MAX_LENGTH).collect();
    let name = name.trim_matches([' ', '.']);
    if name.is_empty() { "image".to_owned() } else { name.to_owned() }
}

/// Characters that turn the direction of text, join it or take no space: they can make a name look like another.
fn is_invisible(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// A cleaned name without its extension.
pub(crate) fn stem(name: &str) -> String {
    let stem = name.rsplit_once('.').map_or(name, |(stem, _)| stem).trim_end_matches([' ', '.']);
    // Names that Windows keeps for devices, whatever follows the first dot.
    let device = stem.split('.').next().unwrap_or_default().to_ascii_uppercase();
    let is_device = matches!(device.as_str(), "CON" | "PRN" | "AUX" | "NUL")
        || (device.len() == 4 && (device.starts_with("COM") || device.starts_with("LPT")));
    if stem.is_empty() || is_device { format!("_{stem}") } else { stem.to_owned() }
}

/// The same names, numbered where one stands twice (letters' case apart, as on Windows and macOS).
pub(crate) fn distinct(names: Vec<String>) -> Vec<String> {
    let mut taken = HashSet::new();
    let mut distinct = Vec::with_capacity(names.len());
    for name in names {
        let numbered = (2..).map(|i| format!("{name}-{i}"));
        let free = std::iter::once(name.clone()).chain(numbered).find(|n| taken.insert(n.to_lowercase()));
        distinct.push(free.expect("numbers do not end"));
    }
    distinct
}

/// The value of a `Content-Disposition` header that makes a browser save the answer under this name.
pub(crate) fn attachment(name: &str) -> String {
    let ascii: String =
        name.chars().map(|c| if c.is_ascii_alphanumeric() || "-_. ".contains(c) { c } else { '_' }).collect();
    let encoded: String = name
        .bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => char::from(byte).to_string(),
            other => format!("%{other:02X}"),
        })
        .collect();
    format!("attachment; filename=\"{ascii}\"; filename*=UTF-8''{encoded}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_names_become_harmless() {
        for (hostile, harmless) in [
            ("../../etc/passwd", "passwd"),
            (r"C:\Windows\system32\cat.jpg", "cat.jpg"),
            ("", "image"),
            ("...", "image"),
            ("a\r\nSet-Cookie: x", "aSet-Cookie_ x"),
            ("photo\u{202e}gpj.exe", "photogpj.exe"),
            ("<img src=x onerror=alert(1)>.jpg", "_img src=x onerror=alert(1)_.jpg"),
            ("Rübe 🥕.png", "Rübe 🥕.png"),
        ] {
            assert_eq!(clean(hostile), harmless);
        }
        assert_eq!(clean(&"x".repeat(5000)).len(), 100);
    }

    #[test]
    fn stems_are_valid_file_names_everywhere() {
        assert_eq!(stem("cat.small.jpg"), "cat.small");
        assert_eq!(stem("cat"), "cat");
        assert_eq!(stem("NUL.png"), "_NUL");
        assert_eq!(stem("com1.tar.gz"), "_com1.tar");
        assert_eq!(stem("compass.png"), "compass");
    }

    #[test]
    fn equal_names_are_numbered() {
        let names = ["a", "A", "b", "a"].map(String::from).to_vec();
        assert_eq!(distinct(names), ["a", "A-2", "b", "a-3"]);
    }

    #[test]
    fn attachment_names_cannot_leave_their_header() {
        let value = attachment("a\"; x=\r\ny é.png");
        assert_eq!(
            value,
            "attachment; filename=\"a__ x___y _.png\"; filename*=UTF-8''a%22%3B%20x%3D%0D%0Ay%20%C3%A9.png"
        );
    }
}
