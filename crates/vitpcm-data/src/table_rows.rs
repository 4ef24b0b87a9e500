//! The rows of a table from any program: CSV and its variants, or an Excel workbook. `table_columns.rs` interprets the
//! cells.

use crate::csv_records::{CsvRecords, Record};
use crate::{annotation_file, xlsx_rows};
use std::borrow::Cow;
use std::ops::ControlFlow;
use std::path::Path;

/// A table file format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TableFormat {
    /// Cells separated by comma, semicolon, tab or `|`.
    Csv,
    /// An Excel workbook.
    Xlsx,
}

impl TableFormat {
    /// The word for a row in messages, before its number.
    pub(crate) fn row_word(self) -> &'static str {
        match self {
            TableFormat::Csv => "line",
            TableFormat::Xlsx => "row",
        }
    }
}

/// A non-blank row.
pub(crate) struct Row<'a> {
    /// Its number in the file, from 1.
    pub(crate) number: usize,
    /// Its trimmed cells.
    pub(crate) cells: Vec<Cow<'a, str>>,
    /// If a cell is not UTF-8: the cells with invalid UTF-8 replaced, as in file names.
    pub(crate) lossy_cells: Option<Vec<String>>,
}

impl Row<'_> {
    pub(crate) fn into_owned(self) -> Row<'static> {
        let cells = self.cells.into_iter().map(|cell| Cow::Owned(cell.into_owned())).collect();
        Row { number: self.number, cells, lossy_cells: self.lossy_cells }
    }
}

/// Passes rows, and errors in single lines, to `each` until it has seen enough. An error concerns the whole file.
/// `names_an_image` distinguishes multi-line cells from unclosed quotes.
pub(crate) fn for_each_row(
    path: &Path,
    format: TableFormat,
    names_an_image: impl Fn(&str) -> bool,
    mut each: impl FnMut(Result<Row<'_>, String>) -> ControlFlow<()>,
) -> Result<(), String> {
    match format {
        TableFormat::Csv => {
            let file = annotation_file::open(path).map_err(|e| e.to_string())?;
            let mut records = CsvRecords::new(file).map_err(|e| e.to_string())?;
            let is_meant_so =
                |record: &Record| record.cells().take(MAX_CELLS).any(|cell| names_an_image(&cell));
            while let Some(record) = records.next(is_meant_so) {
                let row = record.map(|(number, record)| Row {
                    number,
                    cells: parted(record.cells().collect(), &names_an_image),
                    lossy_cells: record.lossy_cells(),
                });
                if row.as_ref().is_ok_and(is_blank) {
                    continue;
                }
                if each(row).is_break() {
                    break;
                }
            }
            Ok(())
        }
        TableFormat::Xlsx => xlsx_rows::for_each_row(path, |number, cells| {
            let trimmed = |cell: Cow<'_, str>| cell.trim().to_string().into();
            let row = Row { number, cells: cells.into_iter().map(trimmed).collect(), lossy_cells: None };
            if is_blank(&row) { ControlFlow::Continue(()) } else { each(Ok(row)) }
        }),
    }
}

/// Splits a row in which white space separates the image from its tags, as in `a.jpg rust`.
fn parted<'a>(cells: Vec<Cow<'a, str>>, names_an_image: impl Fn(&str) -> bool) -> Vec<Cow<'a, str>> {
    let Some((image, tag)) = cells.first().and_then(|first| first.split_once(char::is_whitespace)) else {
        return cells;
    };
    if !names_an_image(image) || cells.iter().take(MAX_CELLS).any(|cell| names_an_image(cell)) {
        return cells;
    }
    let others = cells.iter().skip(1).map(AsRef::as_ref);
    let tags: Vec<&str> = std::iter::once(tag.trim()).chain(others).collect();
    vec![image.to_string().into(), tags.join(";").into()]
}

/// Limit on the cells that may name a row's image: more than possible classes cannot be one row, and each lookup takes
/// time.
pub(crate) const MAX_CELLS: usize = 300;

fn is_blank(row: &Row<'_>) -> bool {
    row.cells.iter().all(|cell| cell.is_empty())
}
