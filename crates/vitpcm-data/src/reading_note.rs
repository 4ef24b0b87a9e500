//! Notes on how tags were interpreted where the files leave a choice: spellings merged, cells split, columns chosen.
//! None of it is an error, but the owner should know.

use crate::ClassImages;
use crate::sentence::{counted, listed, quoted};
use serde::Serialize;
use std::fmt;

/// One decision made while reading tags.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum ReadingNote {
    /// The columns used of a table.
    Columns {
        /// The table's file name.
        file: String,
        /// The column that names the images.
        image: String,
        /// The tag columns; for a table with one column per class, those columns.
        tags: Vec<String>,
        /// The unused columns.
        unused: Vec<String>,
    },
    /// A table that is not UTF-8 and was read as Windows-1252.
    NotUtf8 {
        /// Its file name.
        file: String,
    },
    /// Spellings merged into one class.
    MergedSpellings {
        /// The class.
        class: String,
        /// The spellings, with their numbers of images.
        spellings: Vec<ClassImages>,
    },
    /// Cells with several tags, separated by something other than the documented `;`.
    SplitCells {
        /// The table's file name.
        file: String,
        /// Number of such cells.
        cells: usize,
        /// The first of them.
        example: String,
    },
    /// A tag that joins other tags of the data set and is split into them.
    JoinedTags {
        /// As written, with its number of images.
        tag: ClassImages,
        /// The tags it is split into.
        parts: Vec<String>,
    },
    /// A word that means "no tag".
    NoTagWord(ClassImages),
    /// Images that the table names by another path and that were found by its end.
    FoundByFileName {
        /// The table's file name.
        file: String,
        /// Number of images.
        images: usize,
        /// The table's name for the first of them.
        name: String,
        /// The image it was resolved to.
        image: String,
    },
    /// Images that the tag file does not list; they are left out.
    Unlisted {
        /// The tag file's name.
        file: String,
        /// The images.
        names: Vec<String>,
    },
    /// Images without an annotation file; they are negatives.
    NoAnnotation {
        /// The images.
        names: Vec<String>,
    },
}

impl fmt::Display for ReadingNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let with_images = |it: &ClassImages| format!("`{}` ({})", it.class, counted(it.images, "image"));
        match self {
            ReadingNote::Columns { file, image, tags, unused } => {
                write!(
                    f,
                    "{file}: images from {image}, tags from {}",
                    listed(tags, |name| quoted(name)),
                    image = quoted(image)
                )?;
                if !unused.is_empty() {
                    write!(f, "; not used: {}", listed(unused, |name| quoted(name)))?;
                }
                Ok(())
            }
            ReadingNote::NotUtf8 { file } => {
                write!(
                    f,
                    "{file} is not UTF-8 and was read as Windows-1252; if names look wrong, save it as UTF-8"
                )
            }
            ReadingNote::MergedSpellings { class, spellings } => {
                let verb = if spellings.len() == 1 { "is read as" } else { "are one class," };
                write!(f, "{} {verb} `{class}`", listed(spellings, with_images))
            }
            ReadingNote::SplitCells { file, cells, example } => {
                write!(
                    f,
                    "{file}: {} split into several tags, for example `{example}`",
                    counted(*cells, "cell")
                )
            }
            ReadingNote::JoinedTags { tag, parts } => {
                let parts: Vec<String> = parts.iter().map(|part| quoted(part)).collect();
                write!(f, "{} is read as {}", with_images(tag), parts.join(" and "))
            }
            ReadingNote::NoTagWord(word) => write!(f, "{} is read as no tag", with_images(word)),
            ReadingNote::FoundByFileName { file, images, name, image } => {
                write!(
                    f,
                    "{file}: {} found by file name, for example `{name}` as {image}",
                    counted(*images, "image")
                )
            }
            ReadingNote::Unlisted { file, names } => {
                let images = counted(names.len(), "image");
                write!(
                    f,
                    "{images} not in {file}, left out: {}; an image that shows none of the classes is listed without a tag",
                    listed(names, String::clone)
                )
            }
            ReadingNote::NoAnnotation { names } => {
                let images = counted(names.len(), "image");
                write!(
                    f,
                    "{images} without an annotation, used as negative examples: {}",
                    listed(names, String::clone)
                )
            }
        }
    }
}
