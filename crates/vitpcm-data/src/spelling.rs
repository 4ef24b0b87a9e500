//! Spellings of tags. `Leaf rust` and `leaf  rust` are one class, `none` is no tag, a cell may hold several tags, and
//! `catt` is probably a `cat`: equal spellings are merged, similar ones only reported.

use crate::listing::Entry;
use crate::{ClassImages, ReadingNote};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use vitpcm_masks::Classes;

/// Separators between the tags of one cell.
const SEPARATORS: [char; 4] = [';', ',', '|', '\n'];

/// Words for "no tag", folded.
const NO_TAG: [&str; 9] = ["background", "none", "nothing", "null", "nan", "na", "n/a", "-", "--"];

/// Longest word checked for typos, because the check takes quadratic time.
const MAX_WORD_CHARS: usize = 40;

/// The key that all spellings of a name share: lower case, single spaces.
pub(crate) fn folded(name: &str) -> String {
    name.split_whitespace().map(str::to_lowercase).collect::<Vec<_>>().join(" ")
}

/// Whether a tag stands for "no tag".
pub(crate) fn is_no_tag(name: &str) -> bool {
    // Longer names cannot match.
    name.len() <= 40 && NO_TAG.contains(&folded(name).as_str())
}

/// The tags of a cell.
pub(crate) fn tags_in(cell: &str) -> impl Iterator<Item = &str> {
    cell.split(SEPARATORS).map(str::trim).filter(|tag| !tag.is_empty())
}

/// Splits a tag that joins other tags of the data set: `rust/miner`, `rust + miner`, `rust & miner`, `rust and miner`.
/// `None` if some part is no tag itself: `black and white` is one class.
fn joined_tags(tag: &str, is_tag: impl Fn(&str) -> bool) -> Option<Vec<&str>> {
    let parts: Vec<&str> =
        tag.split(['/', '+', '&']).flat_map(|part| part.split(" and ")).map(str::trim).collect();
    (parts.len() > 1 && parts.iter().all(|part| !part.is_empty() && is_tag(part))).then_some(parts)
}

/// Replaces tags that join others by these, with a note; names in a class list are kept whole.
pub(crate) fn split_joined_tags(entries: &mut [Entry], class_list: Option<&Classes>) -> Vec<ReadingNote> {
    let listed = || class_list.iter().flat_map(|classes| classes.names()).map(|name| folded(name));
    let whole: HashSet<String> = listed().collect();
    let met: HashSet<&Arc<str>> = entries.iter().flat_map(|entry| &entry.tags).collect();
    let known: HashSet<String> = met.iter().map(|tag| folded(tag)).chain(listed()).collect();
    let mut parts_of: BTreeMap<Arc<str>, Vec<Arc<str>>> = BTreeMap::new();
    for tag in met {
        if !whole.contains(&folded(tag))
            && let Some(parts) = joined_tags(tag, |part| known.contains(&folded(part)))
        {
            parts_of.insert(tag.clone(), parts.into_iter().map(Arc::from).collect());
        }
    }
    let mut images_with: BTreeMap<Arc<str>, usize> = BTreeMap::new();
    for entry in entries.iter_mut().filter(|entry| entry.tags.iter().any(|tag| parts_of.contains_key(tag))) {
        let mut tags: Vec<Arc<str>> = Vec::new();
        for tag in std::mem::take(&mut entry.tags) {
            if parts_of.contains_key(&tag) {
                *images_with.entry(tag.clone()).or_default() += 1;
            }
            for part in parts_of.get(&tag).unwrap_or(&vec![tag]) {
                if !tags.contains(part) {
                    tags.push(part.clone());
                }
            }
        }
        entry.tags = tags;
    }
    let note = |(tag, images): (Arc<str>, usize)| ReadingNote::JoinedTags {
        parts: parts_of[&tag].iter().map(ToString::to_string).collect(),
        tag: ClassImages { class: tag.to_string(), images },
    };
    images_with.into_iter().map(note).collect()
}

/// Looks up classes by any spelling of their name.
pub struct ClassLookup<'a> {
    classes: &'a Classes,
    /// `None` if two classes differ only in spelling: then the exact name is needed.
    by_folded: HashMap<String, Option<usize>>,
}

impl<'a> ClassLookup<'a> {
    /// A lookup among these classes.
    pub fn new(classes: &'a Classes) -> Self {
        let mut by_folded = HashMap::with_capacity(classes.len());
        for (index, name) in classes.names().iter().enumerate() {
            by_folded.entry(folded(name)).and_modify(|found| *found = None).or_insert(Some(index));
        }
        ClassLookup { classes, by_folded }
    }

    /// The class of this name: exactly, else ignoring case and white space.
    pub fn index_of(&self, name: &str) -> Option<usize> {
        self.classes.index_of(name).or_else(|| self.by_folded.get(&folded(name)).copied().flatten())
    }

    /// The class with the most similar name.
    fn most_similar(&self, name: &str) -> Option<&'a str> {
        let wanted = joined_words(name);
        // One typo in three characters is about the limit.
        let max_slips = (wanted.chars().count() / 3).clamp(1, 3);
        let foreground = self.classes.names().iter().skip(1);
        let slips =
            foreground.clone().map(|class| (strsim::osa_distance(&wanted, &joined_words(class)), class));
        let nearest = slips.filter(|(slips, _)| *slips <= max_slips).min_by_key(|(slips, _)| *slips);
        if let Some((_, class)) = nearest {
            return Some(class);
        }
        // `tv` for `tvmonitor`, `plant` for `pottedplant`, if only one class starts or ends with it.
        let is_part = |class: &&String| {
            let class = joined_words(class);
            wanted.len() > 1 && (class.starts_with(&wanted) || class.ends_with(&wanted))
        };
        let mut longer = foreground.filter(is_part);
        longer.next().filter(|_| longer.next().is_none()).map(String::as_str)
    }

    /// A "did you mean" question to append to an unknown name.
    pub fn question(&self, name: &str) -> String {
        let question = |class| format!(" (did you mean `{class}`?)");
        self.most_similar(name).map_or_else(String::new, question)
    }
}

/// A name without case, spaces, hyphens and underscores.
fn joined_words(name: &str) -> String {
    words(name).concat()
}

fn words(name: &str) -> Vec<String> {
    let parts = name.split(|c: char| c.is_whitespace() || c == '-' || c == '_');
    parts.filter(|part| !part.is_empty()).map(str::to_lowercase).collect()
}

/// Whether two class names look like variants of one: with a hyphen, in the plural, with a typo.
pub(crate) fn are_similar(a: &str, b: &str) -> bool {
    let [a, b] = [words(a), words(b)];
    if a.concat() == b.concat() {
        return true;
    }
    if a.len() != b.len() {
        return false;
    }
    let mut differing = a.iter().zip(&b).filter(|(a, b)| a != b);
    let Some((a, b)) = differing.next() else { return true };
    differing.next().is_none() && are_similar_words(a, b)
}

fn are_similar_words(a: &str, b: &str) -> bool {
    let [a_chars, b_chars] = [a, b].map(|word| word.chars().count());
    let (longer, shorter) = if a_chars >= b_chars { (a, b) } else { (b, a) };
    let is_plural = longer == format!("{shorter}s")
        || longer == format!("{shorter}es")
        || shorter.strip_suffix('y').is_some_and(|stem| longer == format!("{stem}ies"));
    let shortest = a_chars.min(b_chars);
    if a_chars.abs_diff(b_chars) > 2 || shortest > MAX_WORD_CHARS {
        return false;
    }
    // `type 1` and `type 2`, `cat` and `car` are different classes.
    let enough = if a_chars == b_chars { 6 } else { 3 };
    let has_digit = [a, b].iter().any(|word| word.contains(|c: char| c.is_numeric()));
    shortest >= 3 && is_plural || !has_digit && shortest >= enough && strsim::osa_distance(a, b) == 1
}

/// The spellings of a data set's tags.
pub(crate) struct Spellings {
    /// Number of images per spelling, by folded name.
    by_folded: BTreeMap<String, BTreeMap<String, usize>>,
}

/// What a tag means.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Meaning {
    Class(u8),
    NoTag,
    Unknown,
}

impl Spellings {
    /// Counts the spellings of all tags.
    pub(crate) fn of(entries: &[Entry]) -> Self {
        let mut images_with: HashMap<&str, usize> = HashMap::new();
        for entry in entries {
            entry.tags.iter().for_each(|tag| *images_with.entry(tag.trim()).or_default() += 1);
        }
        let mut by_folded: BTreeMap<String, BTreeMap<String, usize>> = BTreeMap::new();
        for (name, images) in images_with.into_iter().filter(|(name, _)| !name.is_empty()) {
            by_folded.entry(folded(name)).or_default().insert(name.to_string(), images);
        }
        Spellings { by_folded }
    }

    /// One name per class, sorted: the most frequent spelling; in a tie, the alphabetically last.
    pub(crate) fn class_names(&self) -> Vec<&str> {
        let classes = self.by_folded.iter().filter(|(folded, _)| !is_no_tag(folded));
        let mut names: Vec<&str> = classes.filter_map(|(_, spellings)| most_frequent(spellings)).collect();
        names.sort_unstable();
        names
    }

    /// The meaning of every spelling, with notes.
    pub(crate) fn meanings(&self, lookup: &ClassLookup<'_>) -> (HashMap<&str, Meaning>, Vec<ReadingNote>) {
        let (mut meanings, mut notes) = (HashMap::new(), Vec::new());
        for spellings in self.by_folded.values() {
            let mut merged: BTreeMap<u8, Vec<ClassImages>> = BTreeMap::new();
            for (name, &images) in spellings {
                let class = lookup.index_of(name).and_then(|index| u8::try_from(index).ok());
                let meaning = match class {
                    Some(class) if class > 0 => Meaning::Class(class),
                    _ if is_no_tag(name) => Meaning::NoTag,
                    _ => Meaning::Unknown,
                };
                meanings.insert(name.as_str(), meaning);
                let counted = ClassImages { class: name.clone(), images };
                match meaning {
                    Meaning::Class(class) => merged.entry(class).or_default().push(counted),
                    Meaning::NoTag => notes.push(ReadingNote::NoTagWord(counted)),
                    Meaning::Unknown => {}
                }
            }
            for (class, spellings) in merged {
                let class = lookup.classes.names()[usize::from(class)].clone();
                if spellings.len() > 1 || spellings[0].class != class {
                    notes.push(ReadingNote::MergedSpellings { class, spellings });
                }
            }
        }
        (meanings, notes)
    }
}

fn most_frequent(spellings: &BTreeMap<String, usize>) -> Option<&str> {
    // The last of equals: lower case sorts after capitals.
    spellings.iter().max_by_key(|(_, images)| **images).map(|(name, _)| name.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn case_and_white_space_do_not_count() {
        assert_eq!(folded(" Leaf\u{a0} RUST\t"), "leaf rust");
        let classes = Classes::from_names(["Leaf rust", "ÖL", "Cat", "cat"]).unwrap();
        let lookup = ClassLookup::new(&classes);
        let found = ["LEAF  rust", "öl", "cat", "Cat", "CAT"].map(|name| lookup.index_of(name));
        assert_eq!(found, [Some(1), Some(2), Some(4), Some(3), None]);
    }

    #[test]
    fn a_cell_is_split_at_every_usual_separator() {
        for cell in ["rust;miner", "rust, miner", "rust | miner", " rust\nminer ;"] {
            assert_eq!(tags_in(cell).collect::<Vec<_>>(), ["rust", "miner"], "{cell:?}");
        }
    }

    #[test]
    fn a_tag_that_joins_others_is_these_and_any_other_is_itself() {
        let is_tag = |part: &str| ["leaf rust", "miner", "black"].contains(&part);
        for tag in ["leaf rust/miner", "leaf rust + miner", "leaf rust & miner", "leaf rust and miner"] {
            assert_eq!(joined_tags(tag, is_tag).unwrap(), ["leaf rust", "miner"], "{tag}");
        }
        for tag in ["black and white", "miner", "leaf rust/", "sandy", "miner+", "and"] {
            assert_eq!(joined_tags(tag, is_tag), None, "{tag}");
        }
    }

    #[test]
    fn slips_plurals_and_hyphens_are_similar_and_other_words_are_not() {
        for (a, b) in [
            ("catt", "cat"),
            ("cats", "Cat"),
            ("berry", "berries"),
            ("leaf-rust", "leaf rust"),
            ("leaf_rust", "leafrust"),
            ("brown spot", "brown spots"),
            ("mildew", "mildwe"),
            ("scratch", "scratches"),
            ("phoma leaf", "phonma leaf"),
        ] {
            assert!(are_similar(a, b), "{a} and {b}");
        }
        for (a, b) in [
            ("cat", "car"),
            ("class 1", "class 2"),
            ("grade a", "grade b"),
            ("type ii", "type iii"),
            ("rust", "leaf rust"),
            ("stage10", "stage1"),
        ] {
            assert!(!are_similar(a, b), "{a} and {b}");
        }
    }

    #[test]
    fn the_classes_of_voc_and_coco_are_not_similar_to_each_other() {
        for classes in [Classes::voc(), Classes::coco()] {
            let names = classes.names();
            for (i, a) in names.iter().enumerate() {
                names[..i].iter().for_each(|b| assert!(!are_similar(a, b), "{a} and {b}"));
            }
        }
    }

    #[test]
    fn an_unknown_name_suggests_the_class_that_was_meant() {
        let classes = Classes::voc();
        let lookup = ClassLookup::new(&classes);
        for (name, expected) in [
            ("catt", Some("cat")),
            ("cats", Some("cat")),
            ("dinning table", Some("diningtable")),
            ("potted-plants", Some("pottedplant")),
            ("airplane", Some("aeroplane")),
            ("tv", Some("tvmonitor")),
            ("Plant", Some("pottedplant")),
            ("b", None),
            ("unicorn", None),
            ("rust", None),
        ] {
            assert_eq!(lookup.most_similar(name), expected, "{name}");
        }
    }
}
