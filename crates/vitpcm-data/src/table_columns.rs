//! Finds the columns of a table: the images, their tags or one column per class, the split. Decided by headings and a
//! sample of the rows.

use crate::ReadingNote;
use crate::file_index::{FileIndex, has_image_extension};
use crate::sentence::{listed, quoted};
use crate::spelling::{folded, is_no_tag};
use crate::split;
use crate::table_rows::{MAX_CELLS, Row};
use std::collections::HashSet;
use std::path::Path;
use vitpcm_masks::class_name_fault;

/// Headings of the image column, best first: `filename` before `id`. Folded, with spaces for `_` and `-`.
pub(crate) const IMAGE_HEADINGS: [&str; 22] = [
    "image", "images", "filename", "file name", "file", "image path", "image name", "image file", "filepath",
    "file path", "path", "image filename", "img", "img name", "img path", "photo", "picture", "files", "url",
    "name", "image id", "id",
];

/// Headings of tag columns, best first.
pub(crate) const TAG_HEADINGS: [&str; 34] = [
    "tags", "tag", "labels", "label", "classes", "class", "categories", "category", "class name",
    "label name", "category name", "diseases", "disease", "defects", "defect", "damage", "diagnosis",
    "condition", "findings", "finding", "finding labels", "symptoms", "symptom", "pests", "pest", "species",
    "objects", "object", "contents", "annotation", "annotations", "target", "keywords", "type",
];

/// Words that mark a longer heading as tags, e.g. `disease name` and `leaf disease`.
const TAG_WORDS: [&str; 18] = [
    "tags", "tag", "labels", "label", "classes", "class", "categories", "category", "diseases", "disease",
    "defects", "defect", "damage", "diagnosis", "findings", "finding", "species", "pest",
];

/// Words that mark such a heading as something else, e.g. `label confidence` and `disease severity`.
const OTHER_WORDS: [&str; 14] = [
    "confidence", "score", "probability", "severity", "date", "time", "count", "percent", "area", "source",
    "by", "author", "path", "file",
];

/// Last words of headings whose cells are class numbers.
const NUMBER_WORDS: [&str; 4] = ["id", "code", "index", "number"];

const SPLIT_HEADINGS: [&str; 2] = ["split", "subset"];
/// Splits only if every cell is `train`, `val` or `test`.
const LIKELY_SPLIT_HEADINGS: [&str; 4] = ["set", "partition", "phase", "usage"];

const EXPECTED_HEADING: &str = "expected a heading such as `tags`, `label` or `class`";

/// Headings of row numbers.
const NUMBER_HEADINGS: [&str; 9] = ["", "id", "index", "idx", "no", "nr", "number", "#", "unnamed: 0"];

/// The columns of a table.
pub(crate) struct Columns {
    /// Number of cells in the first row; later rows have no more.
    pub(crate) num_columns: usize,
    pub(crate) image: usize,
    pub(crate) split: Option<usize>,
    pub(crate) tags: TagColumns,
    /// Whether the first row is a heading.
    pub(crate) has_heading: bool,
    /// Number of images that the sample names.
    pub(crate) num_found: usize,
}

/// Where the tags are.
pub(crate) enum TagColumns {
    /// Columns with names.
    Names(Vec<usize>),
    /// One column per class, named by its heading.
    OneHot(Vec<(usize, String)>),
}

impl Columns {
    /// From the first rows of a table; or what is missing.
    pub(crate) fn of_sample(rows: &[Row<'_>], index: &FileIndex) -> Result<Columns, String> {
        let sample =
            Sample::of(rows, index).ok_or("no row in it; expected a heading such as `image,tags`")?;
        let image = sample.image_column()?;
        let has_heading =
            !sample.first_row_names_image[image] || sample.rank(image, &IMAGE_HEADINGS).is_some();
        if has_heading && rows.len() == 1 {
            return Err("a heading, and no row below it".to_string());
        }
        let split = sample.split_column(image, has_heading);
        let rest: Vec<usize> =
            (0..sample.num_columns).filter(|&column| column != image && Some(column) != split).collect();
        let tags = match has_heading {
            true => sample.tag_columns(&rest)?,
            false => TagColumns::Names(vec![sample.only_tag_column(&rest)?]),
        };
        let num_columns = if has_heading { sample.num_columns } else { sample.num_columns.max(2) };
        let num_found = sample.num_found[image];
        Ok(Columns { num_columns, image, split, tags, has_heading, num_found })
    }

    /// A note about the choice, if there was one to make.
    pub(crate) fn note(&self, first_row: &Row<'_>, file: String) -> Option<ReadingNote> {
        let heading =
            |column: usize| first_row.cells.get(column).map_or_else(String::new, |cell| cell.to_string());
        let tags: Vec<usize> = match &self.tags {
            TagColumns::Names(columns) => columns.clone(),
            TagColumns::OneHot(columns) => columns.iter().map(|(column, _)| *column).collect(),
        };
        let is_used =
            |column: usize| column == self.image || Some(column) == self.split || tags.contains(&column);
        let unused: Vec<String> = (0..self.num_columns)
            .filter(|&column| !is_used(column))
            .map(heading)
            .filter(|it| !it.is_empty())
            .collect();
        let is_usual = |&column: &usize| TAG_HEADINGS[..8].contains(&tidy(&heading(column)).as_str());
        let is_plain = matches!(self.tags, TagColumns::OneHot(_)) || tags.iter().all(is_usual);
        if !self.has_heading || unused.is_empty() && is_plain {
            return None;
        }
        let tags = tags.into_iter().map(heading).collect();
        Some(ReadingNote::Columns { file, image: heading(self.image), tags, unused })
    }
}

/// The first rows, by column.
struct Sample<'a> {
    rows: &'a [Row<'a>],
    num_columns: usize,
    /// Normalised cells of the first row.
    headings: Vec<String>,
    first_row_names_image: Vec<bool>,
    /// Number of cells per column that name an image of the index.
    num_found: Vec<usize>,
    /// Number of cells that look like an image name.
    num_like_images: Vec<usize>,
}

impl<'a> Sample<'a> {
    fn of(rows: &'a [Row<'a>], index: &FileIndex) -> Option<Self> {
        let first = rows.first()?;
        let num_columns = first.cells.len();
        let names_image = |row: &Row<'_>, column: usize| {
            let is_found = |cell: &str| !cell.is_empty() && index.resolve_row(cell).is_ok();
            let lossy = row.lossy_cells.as_ref().and_then(|cells| cells.get(column));
            row.cells.get(column).is_some_and(|cell| is_found(cell))
                || lossy.is_some_and(|cell| is_found(cell))
        };
        let looked_at = num_columns.min(MAX_CELLS);
        let mut num_found = vec![0; num_columns];
        let mut num_like_images = vec![0; num_columns];
        for row in rows {
            for column in 0..looked_at {
                num_found[column] += usize::from(names_image(row, column));
                let cell = row.cells.get(column).map_or("", |cell| cell.as_ref());
                let is_like = Path::new(cell).extension().is_some_and(has_image_extension);
                num_like_images[column] += usize::from(is_like);
            }
        }
        Some(Sample {
            rows,
            num_columns,
            headings: first.cells.iter().map(|cell| tidy(cell)).collect(),
            first_row_names_image: (0..num_columns)
                .map(|column| column < looked_at && names_image(first, column))
                .collect(),
            num_found,
            num_like_images,
        })
    }

    /// Rank of the column's heading among these; 0 is best.
    fn rank(&self, column: usize, headings: &[&str]) -> Option<usize> {
        headings.iter().position(|heading| *heading == self.headings[column])
    }

    fn is_numbers(&self, column: usize) -> bool {
        let mut cells = self.cells(column).peekable();
        cells.peek().is_some() && cells.all(|cell| cell.parse::<f64>().is_ok())
    }

    /// The non-empty cells below the first row.
    fn cells(&self, column: usize) -> impl Iterator<Item = &str> {
        self.rows
            .iter()
            .skip(1)
            .filter_map(move |row| row.cells.get(column))
            .map(AsRef::as_ref)
            .filter(|cell| !cell.is_empty())
    }

    fn image_column(&self) -> Result<usize, String> {
        let by_content = |counts: &[usize]| {
            let columns = (0..self.num_columns).filter(|&column| counts[column] > 0);
            columns.min_by_key(|&column| {
                let rank = self.rank(column, &IMAGE_HEADINGS).unwrap_or(usize::MAX);
                (rank, usize::MAX - counts[column])
            })
        };
        let by_heading = || {
            let ranked = (0..self.num_columns)
                .filter_map(|column| Some((self.rank(column, &IMAGE_HEADINGS)?, column)));
            ranked.min().map(|(_, column)| column)
        };
        by_content(&self.num_found).or_else(|| by_content(&self.num_like_images)).or_else(by_heading).ok_or_else(|| {
            format!(
                "no column names the images; its columns are {}; expected one such as `image` or `filename`",
                self.shown(0..self.num_columns)
            )
        })
    }

    fn split_column(&self, image: usize, has_heading: bool) -> Option<usize> {
        if !has_heading {
            return None;
        }
        let is_split = |column: &usize| {
            let all_known = || self.cells(*column).all(|cell| split::canonical(cell).is_some());
            self.rank(*column, &SPLIT_HEADINGS).is_some()
                || self.rank(*column, &LIKELY_SPLIT_HEADINGS).is_some() && all_known()
        };
        (0..self.num_columns).filter(|&column| column != image).find(is_split)
    }

    fn tag_columns(&self, rest: &[usize]) -> Result<TagColumns, String> {
        let known: Vec<(bool, usize, usize)> = rest
            .iter()
            .filter_map(|&column| Some((self.is_numbers(column), self.tag_rank(column)?, column)))
            .collect();
        let for_classes: Vec<usize> =
            rest.iter().copied().filter(|&column| self.is_for_class(column)).collect();
        let is_one_hot = for_classes.iter().any(|&column| self.cells(column).next().is_some())
            && (known.is_empty()
                || known.len() < for_classes.len()
                    && known.iter().all(|(_, _, it)| for_classes.contains(it)));
        let texts = self.text_columns(rest);
        if let ([only], true, false) = (&for_classes[..], is_one_hot, texts.is_empty()) {
            // A single 0/1 column next to one with words: either may be meant.
            return Err(self.question(texts.iter().chain([only]).copied()));
        }
        if is_one_hot {
            return Ok(TagColumns::OneHot(
                for_classes.iter().map(|&column| (column, self.rows[0].cells[column].to_string())).collect(),
            ));
        }
        // Names are better than class numbers.
        if let Some(&(is_numbers, best, _)) = known.iter().min() {
            let chosen = known.iter().filter(|it| (it.0, it.1) == (is_numbers, best)).map(|it| it.2);
            return Ok(TagColumns::Names(chosen.collect()));
        }
        self.only_tag_column(rest).map(|column| TagColumns::Names(vec![column]))
    }

    /// Rank of the column's heading as a tag heading; 0 is best. `label1`, `label2`, … rank equal.
    fn tag_rank(&self, column: usize) -> Option<usize> {
        let heading = self.headings[column].trim_end_matches(|c: char| c.is_ascii_digit()).trim_end();
        if let Some(rank) = TAG_HEADINGS.iter().position(|known| *known == heading) {
            return Some(rank);
        }
        let words: Vec<&str> = heading.split(' ').collect();
        let is_numbered = words.last().is_some_and(|last| NUMBER_WORDS.contains(last));
        if words.iter().any(|word| OTHER_WORDS.contains(word)) || self.is_for_class(column) && !is_numbered {
            return None;
        }
        let rank = TAG_WORDS.iter().position(|known| words.contains(known))?;
        Some(TAG_HEADINGS.len() + rank)
    }

    /// Whether at least half of the column's cells say whether an image has the class.
    fn is_for_class(&self, column: usize) -> bool {
        let (mut num_cells, mut num_such) = (0, 0);
        for cell in self.cells(column) {
            num_cells += 1;
            num_such += usize::from(is_on(cell).is_ok());
        }
        2 * num_such >= num_cells && self.rank(column, &NUMBER_HEADINGS).is_none()
    }

    /// The only possible tag column, if no heading tells.
    fn only_tag_column(&self, rest: &[usize]) -> Result<usize, String> {
        if let ([only], true) = (rest, self.first_row_names_image.contains(&true)) {
            return Ok(*only);
        }
        match self.text_columns(rest)[..] {
            [only] => Ok(only),
            [] => Err(format!(
                "no column with tags; its columns are {}; {EXPECTED_HEADING}",
                self.shown(0..self.num_columns)
            )),
            ref texts => Err(self.question(texts.iter().copied())),
        }
    }

    /// The columns with words.
    fn text_columns(&self, rest: &[usize]) -> Vec<usize> {
        let is_text = |&column: &usize| {
            self.cells(column).any(|cell| is_on(cell).is_err())
                && !self.is_numbers(column)
                && self.rank(column, &NUMBER_HEADINGS).is_none()
        };
        rest.iter().copied().filter(is_text).collect()
    }

    fn question(&self, columns: impl IntoIterator<Item = usize>) -> String {
        format!("which column holds the tags? It may be {}; {EXPECTED_HEADING}", self.shown(columns))
    }

    fn shown(&self, columns: impl IntoIterator<Item = usize>) -> String {
        let name = |column: usize| self.rows[0].cells[column].chars().take(40).collect();
        let names: Vec<String> = columns.into_iter().map(name).collect();
        listed(&names, |name| quoted(name))
    }
}

/// A heading in lower case, with spaces for separators.
fn tidy(heading: &str) -> String {
    folded(&heading.replace(['_', '-'], " "))
}

/// The classes of one-hot columns without duplicate spellings; invalid names go to `refused`.
pub(crate) fn classes_of(
    columns: &mut Vec<(usize, String)>,
    mut refused: impl FnMut(usize, String),
) -> Vec<String> {
    columns.retain(|(column, name)| match class_name_fault(name) {
        Some(fault) => {
            refused(*column, fault);
            false
        }
        None => true,
    });
    let mut seen = HashSet::new();
    let names = columns.iter().map(|(_, name)| name).filter(|name| !is_no_tag(name));
    names.filter(|name| seen.insert(folded(name))).cloned().collect()
}

/// Whether a cell of a one-hot column means "present".
pub(crate) fn is_on(cell: &str) -> Result<bool, String> {
    match cell.to_lowercase().as_str() {
        "1" | "1.0" | "true" | "yes" | "x" => Ok(true),
        "" | "0" | "0.0" | "false" | "no" => Ok(false),
        _ => Err(format!("`{cell}`, expected 0 or 1,")),
    }
}
