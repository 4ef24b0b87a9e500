//! Sanitises file names from clients, once, on arrival. The result is safe to show and safe as a file name in an
//! archive on any system.

use std::collections::HashSet;

/// Longest name, in characters.
const MAX_LENGTH: usize = 100;

/// A name without folders and without characters that file systems reject or terminals and browsers interpret, at most
/// 100 characters long.
pub(crate) fn clean(name: &str) -> String {
    let last = name.rsplit(['/', '\\']).next().unwrap_or_default();
    let visible = last.chars().filter(|&c| !c.is_control() && !is_invisible(c));
    let safe = visible.map(|c| if r#"<>:"|?*"#.contains(c) { '_' } else { c });
    let name: String = safe.take(MAX_LENGTH).collect();
    let name = name.trim_matches([' ', '.']);
    match name {
        "" => "image".to_owned(),
        name if is_device(name) => format!("_{name}"),
        name => name.to_owned(),
    }
}

/// Whether Windows reserves the name for a device, whatever follows its first dot.
fn is_device(name: &str) -> bool {
    let device = name.split('.').next().unwrap_or_default().trim_end().to_ascii_uppercase();
    matches!(device.as_str(), "CON" | "PRN" | "AUX" | "NUL")
        || (device.len() == 4 && (device.starts_with("COM") || device.starts_with("LPT")))
}

/// Bidirectional controls, joiners and zero-width characters: they can make one name look like another.
fn is_invisible(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// A cleaned name without its extension.
pub(crate) fn stem(name: &str) -> &str {
    name.rsplit_once('.').map_or(name, |(stem, _)| stem)
}

/// Cleaned names whose stems are numbered where they repeat (ignoring case, as on Windows and macOS): masks are named
/// after them.
pub(crate) fn distinct<'a>(names: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut taken = HashSet::new();
    let distinct = |name: &str| {
        let (stem, extension) = name.split_at(stem(name).len());
        let numbered = (2..).map(|i| format!("{stem}-{i}"));
        let free = std::iter::once(stem.to_owned()).chain(numbered).find(|n| taken.insert(n.to_lowercase()));
        free.expect("numbers do not end") + extension
    };
    names.map(distinct).collect()
}

/// A `Content-Disposition` header that makes a browser save the response under this name.
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
            ("NUL.png", "_NUL.png"),
            ("com1.tar.gz", "_com1.tar.gz"),
            ("compass.png", "compass.png"),
        ] {
            assert_eq!(clean(hostile), harmless);
        }
        assert_eq!(clean(&"x".repeat(5000)).len(), 100);
    }

    #[test]
    fn equal_stems_are_numbered() {
        let names = ["a.jpg", "A.png", "b", "a.jpg", "a-2.png"];
        assert_eq!(distinct(names.into_iter()), ["a.jpg", "A-2.png", "b", "a-3.jpg", "a-2-2.png"]);
        assert_eq!(stem("cat.small.jpg"), "cat.small");
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
