//! `--classes voc|coco|FILE`: the names of the class indices in a mask.

use crate::printable;
use anyhow::{Context, bail};
use std::path::Path;
use vitpcm_masks::Classes;

/// `segment` writes it next to its masks, so that they need no `--classes`.
pub const CLASS_LIST: &str = "classes.txt";

/// The content of that file: one name per line. Readers skip lines that start with `#`.
pub(crate) fn class_list(classes: &Classes) -> String {
    let line = |name: &String| match printable::one_line(name) {
        name if name.starts_with(['#', '\u{feff}']) => format!("\\{name}\n"),
        name => format!("{name}\n"),
    };
    classes.names()[1..].iter().map(line).collect()
}

/// The classes that the option names.
pub(crate) fn named(text: &str) -> anyhow::Result<Classes> {
    match text {
        "voc" => Ok(Classes::voc()),
        "coco" => Ok(Classes::coco()),
        file => Classes::from_file(Path::new(file)).context("--classes"),
    }
}

/// Refuses masks whose own class list has other names or another order, because their indices mean something else.
pub(crate) fn check_beside(folder: &Path, expected: &Classes) -> anyhow::Result<()> {
    let path = folder.join(CLASS_LIST);
    if path.is_file() {
        let listed = Classes::from_file(&path)?;
        if listed.names() != expected.names() {
            let [listed, expected] = [&listed, expected].map(|classes| classes.names()[1..].join(", "));
            bail!("{}: it lists {listed}; expected {expected}, in this order", path.display());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_list_has_a_line_for_every_class_whatever_their_names() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(CLASS_LIST);
        let classes = Classes::from_names(["#1", "black cat", "tree"]).unwrap();
        std::fs::write(&path, class_list(&classes)).unwrap();
        assert_eq!(Classes::from_file(&path).unwrap().len(), classes.len());
        assert_eq!(class_list(&Classes::from_names(["dog", "black cat"]).unwrap()), "dog\nblack cat\n");
    }
}
