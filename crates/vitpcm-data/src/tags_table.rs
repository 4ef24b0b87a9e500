//! Tables of tags: CSV files and Excel workbooks with an image column and either tag columns or one 0/1 column per
//! class. A `split` column is optional.

use crate::ReadingNote;
use crate::file_index::FileIndex;
use crate::table_columns::{Columns, TagColumns, classes_of, is_on};
use crate::table_rows::{Row, TableFormat, for_each_row};
use crate::tag_rows::{ImageName, TagRow, TagRows};
use std::borrow::Cow;
use std::ops::ControlFlow;
use std::path::Path;

/// Sample size for detecting columns, in rows and bytes.
const SAMPLE_ROWS: usize = 100;
const SAMPLE_BYTES: usize = 1 << 20;

/// Reads a CSV file.
pub(crate) fn read_csv(path: &Path, rows: &mut TagRows<'_>) {
    read(path, TableFormat::Csv, rows);
}

/// Reads an Excel workbook.
pub(crate) fn read_xlsx(path: &Path, rows: &mut TagRows<'_>) {
    read(path, TableFormat::Xlsx, rows);
}

/// How many images the first rows of a file name, if it is a tag table; or what is missing.
pub(crate) fn num_images_named(path: &Path, format: TableFormat, index: &FileIndex) -> Result<usize, String> {
    let mut sample = Sample::default();
    let names_an_image = |cell: &str| index.resolve_row(cell).is_ok();
    for_each_row(path, format, names_an_image, |row| match row {
        Ok(row) => sample.add(row),
        Err(_) => ControlFlow::Continue(()),
    })?;
    let columns = Columns::of_sample(&sample.rows, index)?;
    if columns.num_found == 0 {
        let name = sample.rows.last().and_then(|row| row.cells.get(columns.image)).map_or("", AsRef::as_ref);
        let found = match index.of_other_extension(name) {
            Some(other) => format!(", and there is `{}`", index.images[other].relative),
            None => String::new(),
        };
        return Err(format!("it names no image of this folder; it names `{name}`, for example{found}"));
    }
    let is_text = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("txt"));
    if is_text && 2 * columns.num_found < sample.rows.len() {
        return Err("too few of its lines name an image of this folder".to_string());
    }
    Ok(columns.num_found)
}

/// The first rows of a table.
#[derive(Default)]
struct Sample {
    rows: Vec<Row<'static>>,
    num_bytes: usize,
}

impl Sample {
    /// Adds a row, until there are enough.
    fn add(&mut self, row: Row<'_>) -> ControlFlow<()> {
        self.num_bytes += row.cells.iter().map(|cell| cell.len()).sum::<usize>();
        self.rows.push(row.into_owned());
        let is_enough = self.rows.len() >= SAMPLE_ROWS || self.num_bytes >= SAMPLE_BYTES;
        if is_enough { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

fn read(path: &Path, format: TableFormat, rows: &mut TagRows<'_>) {
    let index = rows.index;
    let mut table = Table { format, columns: None, is_utf8: true, rows };
    let mut sample = Some(Sample::default());
    let names_an_image = |cell: &str| index.resolve_row(cell).is_ok();
    let outcome = for_each_row(path, format, names_an_image, |row| {
        let row = match row {
            Ok(row) => row,
            Err(reason) => {
                table.rows.add_unreadable(reason);
                return ControlFlow::Continue(());
            }
        };
        let Some(first_rows) = &mut sample else {
            table.add(&row);
            return ControlFlow::Continue(());
        };
        match first_rows.add(row) {
            ControlFlow::Continue(()) => ControlFlow::Continue(()),
            ControlFlow::Break(()) => table.start(sample.take().unwrap_or_default().rows),
        }
    });
    if let Some(rows) = sample {
        // An error in the file is more informative than what is missing.
        if outcome.is_ok() || !rows.rows.is_empty() {
            let _ = table.start(rows.rows);
        }
    }
    if !table.is_utf8 {
        let file = rows.file();
        rows.add_note(ReadingNote::NotUtf8 { file });
    }
    if let Err(reason) = outcome {
        rows.add_unreadable(reason);
    }
}

/// A table while reading.
struct Table<'a, 'r> {
    format: TableFormat,
    /// `None` until detected.
    columns: Option<Columns>,
    is_utf8: bool,
    rows: &'a mut TagRows<'r>,
}

impl Table<'_, '_> {
    /// Detects the columns from the first rows, then adds these rows.
    fn start(&mut self, sample: Vec<Row<'_>>) -> ControlFlow<()> {
        let mut columns = match Columns::of_sample(&sample, self.rows.index) {
            Ok(columns) => columns,
            Err(reason) => {
                self.rows.add_unreadable(reason);
                return ControlFlow::Break(());
            }
        };
        if let Some(note) = columns.note(&sample[0], self.rows.file()) {
            if matches!(&note, ReadingNote::Columns { unused, .. } if !unused.is_empty()) {
                self.rows.allow_repetition();
            }
            self.rows.add_note(note);
        }
        if let TagColumns::OneHot(classes) = &mut columns.tags {
            let place = format!("{} {}", self.format.row_word(), sample[0].number);
            let rows = &mut *self.rows;
            let names = classes_of(classes, |column, fault| {
                rows.add_unreadable(format_args!("{place}: {fault}; column {} is left out", column + 1));
            });
            self.rows.set_class_names(names);
        }
        let num_headings = usize::from(columns.has_heading);
        self.columns = Some(columns);
        sample.iter().skip(num_headings).for_each(|row| self.add(row));
        ControlFlow::Continue(())
    }

    fn add(&mut self, row: &Row<'_>) {
        let Some(columns) = &self.columns else { return };
        self.is_utf8 &= row.lossy_cells.is_none();
        let (word, number) = (self.format.row_word(), row.number);
        match tag_row(columns, row, self.rows) {
            Ok(tag_row) => self.rows.add(tag_row, format_args!("{word} {number}")),
            Err(reason) => self.rows.add_unreadable(format_args!("{word} {number}: {reason}")),
        }
    }
}

fn tag_row<'a>(columns: &'a Columns, row: &'a Row<'_>, rows: &mut TagRows<'_>) -> Result<TagRow<'a>, String> {
    if let Some(extra) = row.cells.iter().skip(columns.num_columns).find(|cell| !cell.is_empty()) {
        let expected = columns.num_columns;
        return Err(format!("`{extra}` is more than the {expected} cells of the first row; left out"));
    }
    let cell = |column: usize| row.cells.get(column).map_or("", |cell| cell.as_ref());
    let mut image = cell(columns.image);
    if image.is_empty() {
        return Err("no image".to_string());
    }
    // File names that are not UTF-8 are stored in a different form than cells.
    if let Some(lossy) = row.lossy_cells.as_ref().and_then(|cells| cells.get(columns.image))
        && rows.index.resolve_row(image).is_err()
    {
        image = lossy;
    }
    let tags = match &columns.tags {
        TagColumns::Names(names) => {
            names.iter().flat_map(|&column| rows.tags_of_cell(cell(column))).collect()
        }
        TagColumns::OneHot(classes) => {
            let mut tags = Vec::new();
            for (column, name) in classes {
                if is_on(cell(*column)).map_err(|what| format!("{what} in column `{name}`"))? {
                    tags.push(name.into());
                }
            }
            tags
        }
    };
    let split = columns.split.map(cell).filter(|split| !split.is_empty()).map(Cow::Borrowed);
    Ok(TagRow { image: ImageName::Path(image.into()), tags, split })
}
