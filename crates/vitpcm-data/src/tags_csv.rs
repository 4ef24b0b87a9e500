//! `tags.csv`: an image column and either a `tags` column with `;` between tags, or one column for each class with
//! 0 and 1. A `split` column is optional. Comma, semicolon or tab between cells; byte order mark, Windows line ends
//! and quotes are understood.

use crate::annotation_file;
use crate::csv_records::{CsvRecords, Record};
use crate::file_index::IMAGES;
use crate::tag_rows::{ImageName, TagRow, TagRows};
use std::borrow::Cow;
use std::path::Path;
use vitpcm_masks::class_name_fault;

const IMAGE_HEADINGS: [&str; 9] =
    ["image", "images", "file", "filename", "file_name", "file name", "path", "image_path", "image_name"];
const TAG_HEADINGS: [&str; 8] =
    ["tags", "tag", "labels", "label", "classes", "class", "categories", "category"];
const SPLIT_HEADINGS: [&str; 2] = ["split", "subset"];

/// Cells of a row that may name its image: more than classes are possible cannot be one row, and each look takes time.
const MAX_CELLS: usize = 300;

/// Reads the file. The index tells a first row that names an image from a heading.
pub(crate) fn read(path: &Path, rows: &mut TagRows<'_>) {
    let opened = annotation_file::open(path).and_then(CsvRecords::new);
    let (mut records, delimiter) = match opened {
        Ok(opened) => opened,
        Err(error) => return rows.add_unreadable(error),
    };
    let index = rows.index;
    let names_an_image =
        |record: &Record| record.cells().take(MAX_CELLS).any(|cell| index.resolve(&cell, &[IMAGES]).is_ok());
    let mut columns: Option<Columns> = None;
    while let Some(record) = records.next(names_an_image) {
        let (line, cells): (usize, Vec<Cow<'_, str>>) = match record {
            Ok((line, record)) => (line, record.cells().collect()),
            Err(reason) => {
                rows.add_unreadable(reason);
                continue;
            }
        };
        if cells.iter().all(|cell| cell.is_empty()) {
            continue;
        }
        let columns = match &columns {
            Some(columns) => columns,
            None => {
                let (found, is_heading) = Columns::of_first_row(&cells, delimiter, line, rows);
                let columns = columns.insert(found);
                if is_heading {
                    continue;
                }
                columns
            }
        };
        match columns.row(&cells) {
            Ok(row) => rows.add(row, format_args!("line {line}")),
            Err(reason) => rows.add_unreadable(format_args!("line {line}: {reason}")),
        }
    }
    if columns.is_none() {
        rows.add_unreadable("no row in it; expected a heading such as `image,tags`");
    }
}

/// Which column holds what.
struct Columns {
    num_columns: usize,
    image: usize,
    split: Option<usize>,
    tags: TagColumns,
}

enum TagColumns {
    /// One column of names; these characters stand between them.
    Names { column: usize, between: &'static [char] },
    /// A column for each class, by its heading.
    OneHot(Vec<(usize, String)>),
}

impl Columns {
    /// From the first row, and whether that row is a heading.
    fn of_first_row(
        cells: &[Cow<'_, str>],
        delimiter: u8,
        line: usize,
        rows: &mut TagRows<'_>,
    ) -> (Self, bool) {
        // Where semicolons stand between cells, commas may stand between tags.
        let between: &[char] = if delimiter == b';' { &[';', ','] } else { &[';'] };
        let lower: Vec<String> = cells.iter().map(|cell| cell.to_lowercase()).collect();
        let find = |headings: &[&str]| lower.iter().position(|cell| headings.contains(&cell.as_str()));
        let (image, tags, split) = (find(&IMAGE_HEADINGS), find(&TAG_HEADINGS), find(&SPLIT_HEADINGS));
        if image.is_none() && cells.first().is_some_and(|cell| rows.index.resolve(cell, &[IMAGES]).is_ok()) {
            let tags = TagColumns::Names { column: 1, between };
            return (Columns { num_columns: cells.len().max(2), image: 0, split: None, tags }, false);
        }
        let image = image.unwrap_or(0);
        let tags = match tags {
            Some(column) => TagColumns::Names { column, between },
            None => {
                let is_other = |&i: &usize| i != image && Some(i) != split && !cells[i].is_empty();
                let mut classes = Vec::new();
                for i in (0..cells.len()).filter(is_other) {
                    match class_name_fault(&cells[i]) {
                        None => classes.push((i, cells[i].to_string())),
                        Some(fault) => {
                            let column = i + 1;
                            rows.add_unreadable(format_args!(
                                "line {line}: {fault}; column {column} is left out"
                            ));
                        }
                    }
                }
                rows.set_class_names(classes.iter().map(|(_, name)| name.clone()).collect());
                TagColumns::OneHot(classes)
            }
        };
        (Columns { num_columns: cells.len(), image, split, tags }, true)
    }

    fn row<'a>(&'a self, cells: &'a [Cow<'_, str>]) -> Result<TagRow<'a>, String> {
        if let Some(extra) = cells.iter().skip(self.num_columns).find(|cell| !cell.is_empty()) {
            let expected = self.num_columns;
            return Err(format!("`{extra}` is more than the {expected} cells of the first row; left out"));
        }
        let cell = |column: usize| cells.get(column).map_or("", |cell| cell.as_ref());
        if cell(self.image).is_empty() {
            return Err("no image".to_string());
        }
        let tags = match &self.tags {
            TagColumns::Names { column, between } => {
                cell(*column).split(*between).map(Cow::Borrowed).collect()
            }
            TagColumns::OneHot(columns) => {
                let mut tags = Vec::new();
                for (column, name) in columns {
                    if is_on(cell(*column)).map_err(|what| format!("{what} in column `{name}`"))? {
                        tags.push(name.into());
                    }
                }
                tags
            }
        };
        let split = self.split.map(cell).filter(|split| !split.is_empty()).map(Cow::Borrowed);
        Ok(TagRow { image: ImageName::Below(cell(self.image).into()), tags, split })
    }
}

fn is_on(cell: &str) -> Result<bool, String> {
    match cell.to_lowercase().as_str() {
        "1" | "1.0" | "true" | "yes" | "x" => Ok(true),
        "" | "0" | "0.0" | "false" | "no" => Ok(false),
        _ => Err(format!("`{cell}`, expected 0 or 1,")),
    }
}
