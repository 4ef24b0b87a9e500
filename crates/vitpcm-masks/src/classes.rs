//! Class names. Index 0 is always the background; 255 is never a class.

use crate::{MaskError, text_file};
use std::collections::HashMap;
use std::path::Path;

/// Name of class 0.
pub const BACKGROUND: &str = "background";

/// Label 255 is "ignore", so a label map can distinguish at most 254 foreground classes.
const MAX_FOREGROUND: usize = 254;

/// Longest name, in characters.
const MAX_NAME_CHARS: usize = 255;

/// Why a name is not allowed, if so: class lists have one name per line, and names appear on terminals, in tables and
/// in other tools' files.
pub fn class_name_fault(name: &str) -> Option<String> {
    const CHARS_SHOWN: usize = 40;
    let is_control = |c: char| c.is_control() || matches!(c, '\u{2028}' | '\u{2029}');
    let fault = if name.trim().is_empty() {
        return Some("a class name is empty".to_string());
    } else if name.contains(is_control) {
        "holds a control character or a line break".to_string()
    } else {
        let num_chars = name.chars().count();
        (num_chars > MAX_NAME_CHARS)
            .then(|| format!("has {num_chars} characters, more than {MAX_NAME_CHARS}"))?
    };
    let shown: String = name.chars().take(CHARS_SHOWN).flat_map(char::escape_debug).collect();
    let ellipsis = if name.chars().nth(CHARS_SHOWN).is_some() { "…" } else { "" };
    Some(format!("the class name `{shown}{ellipsis}` {fault}"))
}

const VOC: [&str; 20] = [
    "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow", "diningtable",
    "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor",
];

#[rustfmt::skip]
const COCO: [&str; 80] = [
    "person", "bicycle", "car", "motorcycle", "airplane", "bus", "train", "truck", "boat", "traffic light",
    "fire hydrant", "stop sign", "parking meter", "bench", "bird", "cat", "dog", "horse", "sheep", "cow", "elephant",
    "bear", "zebra", "giraffe", "backpack", "umbrella", "handbag", "tie", "suitcase", "frisbee", "skis", "snowboard",
    "sports ball", "kite", "baseball bat", "baseball glove", "skateboard", "surfboard", "tennis racket", "bottle",
    "wine glass", "cup", "fork", "knife", "spoon", "bowl", "banana", "apple", "sandwich", "orange", "broccoli",
    "carrot", "hot dog", "pizza", "donut", "cake", "chair", "couch", "potted plant", "bed", "dining table", "toilet",
    "tv", "laptop", "mouse", "remote", "keyboard", "cell phone", "microwave", "oven", "toaster", "sink",
    "refrigerator", "book", "clock", "vase", "scissors", "teddy bear", "hair drier", "toothbrush",
];

/// The classes of a data set or a model: background first, then at most 254 distinct foreground names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Classes {
    names: Vec<String>,
    index_of: HashMap<String, usize>,
}

impl Classes {
    /// Classes from their foreground names, in order; a leading "background" is accepted and not counted twice.
    pub fn from_names<N: Into<String>>(foreground: impl IntoIterator<Item = N>) -> Result<Self, MaskError> {
        let mut names = vec![BACKGROUND.to_string()];
        let given = foreground.into_iter().map(Into::into).enumerate();
        names.extend(given.filter(|(i, name)| *i > 0 || name != BACKGROUND).map(|(_, name)| name));
        if names.len() > MAX_FOREGROUND + 1 {
            let found = names.len() - 1;
            return Err(MaskError::BadClasses(format!("{found} classes, expected at most {MAX_FOREGROUND}")));
        }
        let mut index_of = HashMap::with_capacity(names.len());
        for (index, name) in names.iter().enumerate() {
            if let Some(fault) = class_name_fault(name) {
                return Err(MaskError::BadClasses(format!("class {index}: {fault}")));
            }
            if index_of.insert(name.clone(), index).is_some() {
                return Err(MaskError::BadClasses(format!("`{name}` stands twice")));
            }
        }
        Ok(Classes { names, index_of })
    }

    /// The 20 classes of PASCAL VOC.
    pub fn voc() -> Self {
        Self::from_names(VOC).expect("VOC's names are distinct")
    }

    /// The 80 classes of MS COCO, in the order of their category ids.
    pub fn coco() -> Self {
        Self::from_names(COCO).expect("COCO's names are distinct")
    }

    /// `class 1` to `class N`, for masks that come without a class list.
    pub fn numbered(num_foreground: usize) -> Result<Self, MaskError> {
        Self::from_names((1..=num_foreground).map(|i| format!("class {i}")))
    }

    /// Reads one name per line; empty lines and lines that start with `#` are skipped.
    pub fn from_file(path: &Path) -> Result<Self, MaskError> {
        let text = text_file::read(path).map_err(|e| MaskError::io(path, e))?;
        let lines = text.trim_start_matches('\u{feff}').lines().map(str::trim);
        let classes = Self::from_names(lines.filter(|line| !line.is_empty() && !line.starts_with('#')))
            .map_err(|error| MaskError::BadClasses(format!("{}: {error}", path.display())))?;
        if classes.len() == 1 {
            let problem = format!("{}: no class name; expected one per line", path.display());
            return Err(MaskError::BadClasses(problem));
        }
        Ok(classes)
    }

    /// Number of classes, including background. Never zero.
    #[allow(clippy::len_without_is_empty)] // the background is always there
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Number of classes without the background.
    pub fn num_foreground(&self) -> usize {
        self.names.len() - 1
    }

    /// All names, background first.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Name of a class, if the index is valid.
    pub fn name(&self, index: usize) -> Option<&str> {
        self.names.get(index).map(String::as_str)
    }

    /// Index of a name; "background" is 0.
    pub fn index_of(&self, name: &str) -> Option<usize> {
        self.index_of.get(name).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn background_is_class_zero_whether_given_or_not() {
        let without = Classes::from_names(["dog", "cat"]).unwrap();
        let with = Classes::from_names(["background", "dog", "cat"]).unwrap();
        assert_eq!(without, with);
        assert_eq!(without.index_of("cat"), Some(2));
        assert_eq!(without.name(0), Some("background"));
        assert_eq!(without.name(3), None);
    }

    #[test]
    fn known_sets_have_21_and_81_classes() {
        assert_eq!((Classes::voc().len(), Classes::coco().len()), (21, 81));
        assert_eq!(Classes::voc().index_of("tvmonitor"), Some(20));
        assert_eq!(Classes::coco().index_of("toothbrush"), Some(80));
    }

    #[test]
    fn unusable_lists_are_refused_with_the_reason() {
        let message = |names: &[&str]| Classes::from_names(names.iter().copied()).unwrap_err().to_string();
        assert_eq!(message(&["dog", "dog"]), "class list: `dog` stands twice");
        assert_eq!(message(&["dog", " "]), "class list: class 2: a class name is empty");
        assert_eq!(
            message(&["dog", "cat\nbird"]),
            "class list: class 2: the class name `cat\\nbird` holds a control character or a line break"
        );
        assert_eq!(message(&["dog", "background"]), "class list: `background` stands twice");
        let many = Classes::numbered(255).unwrap_err().to_string();
        assert_eq!(many, "class list: 255 classes, expected at most 254");
    }

    #[test]
    fn names_that_break_lines_or_fill_screens_are_refused_and_shown_short() {
        for name in ["a\nb", "a\rb", "\u{1b}[31mred", "nul\0", "a\u{2028}b", "a\tb", "\u{9b}1m"] {
            let fault = class_name_fault(name).unwrap();
            assert!(fault.contains("control character") && !fault.contains(char::is_control), "{fault}");
        }
        let fault = class_name_fault(&"x".repeat(1_000_000)).unwrap();
        assert!(fault.contains("has 1000000 characters, more than 255") && fault.len() < 200, "{fault}");
        for name in ["traffic light", "größe", "猫", "a;b", &"é".repeat(255)] {
            assert_eq!(class_name_fault(name), None);
        }
    }

    #[test]
    fn a_file_may_have_comments_a_bom_and_windows_line_ends() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("classes.txt");
        std::fs::write(&path, "\u{feff}# mine\r\nrust spot\r\n\r\nleaf\r\n").unwrap();
        let classes = Classes::from_file(&path).unwrap();
        assert_eq!(classes.names(), ["background", "rust spot", "leaf"]);
    }
}
