//! `tags.csv`: an image column and either a `tags` column with `;` between tags, or one column for each class with
//! 0 and 1. A `split` column is optional. Comma, semicolon or tab between cells; byte order mark, Windows line ends
//! and quotes are understood.

use crate::file_index::{FileIndex, IMAGES};
use crate::tag_rows::{ImageName, TagFile, TagRow};
use crate::{Problem, ProblemKind, annotation_file};
use std::path::Path;

const IMAGE_HEADINGS: [&str; 9] =
    ["image", "images", "file", "filename", "file_name", "file name", "path", "image_path", "image_name"];
const TAG_HEADINGS: [&str; 8] =
    ["tags", "tag", "labels", "label", "classes", "class", "categories", "category"];
const SPLIT_HEADINGS: [&str; 2] = ["split", "subset"];

/// Reads the file. The index tells a first row that names an image from a heading.
pub(crate) fn read(path: &Path, index: &FileIndex) -> TagFile {
    let mut file = TagFile::default();
    let text = match annotation_file::read(path) {
        // One kind of line end, so that lines are counted alike.
        Ok(bytes) => decode(&bytes).replace("\r\n", "\n"),
        Err(error) => {
            file.problems.push(Problem::new(ProblemKind::UnreadableAnnotation, path, error.to_string()));
            return file;
        }
    };
    let delimiter = delimiter_of(text.lines().next().unwrap_or_default());
    let mut columns: Option<Columns> = None;
    for record in records(&text, delimiter, index) {
        let outcome = record.and_then(|(line, cells)| {
            let Some(columns) = &columns else {
                let (found, is_heading) = Columns::of_first_row(&cells, delimiter, index);
                file.class_names = found.class_names();
                let row = (!is_heading).then(|| found.row(line, &cells)).transpose();
                columns = Some(found);
                return row;
            };
            columns.row(line, &cells).map(Some)
        });
        match outcome {
            Ok(row) => file.rows.extend(row),
            Err(reason) => file.problems.push(Problem::new(ProblemKind::UnreadableAnnotation, path, reason)),
        }
    }
    if columns.is_none() {
        let detail = "no row in it; expected a heading such as `image,tags`";
        file.problems.push(Problem::new(ProblemKind::UnreadableAnnotation, path, detail));
    }
    file
}

/// UTF-8 with or without byte order mark, or UTF-16 with one, as spreadsheets write; what is not UTF-8 is replaced
/// as it is in the names of files.
fn decode(bytes: &[u8]) -> String {
    let utf16 = |rest: &[u8], join: fn([u8; 2]) -> u16| {
        let units: Vec<u16> = rest.chunks_exact(2).map(|pair| join([pair[0], pair[1]])).collect();
        String::from_utf16_lossy(&units)
    };
    match bytes {
        [0xff, 0xfe, rest @ ..] => utf16(rest, u16::from_le_bytes),
        [0xfe, 0xff, rest @ ..] => utf16(rest, u16::from_be_bytes),
        [0xef, 0xbb, 0xbf, rest @ ..] => String::from_utf8_lossy(rest).into_owned(),
        bytes => String::from_utf8_lossy(bytes).into_owned(),
    }
}

/// A tab wherever the first line has one, else a comma, else a semicolon, all outside of quotes.
fn delimiter_of(first_line: &str) -> u8 {
    let mut in_quotes = false;
    let plain: Vec<char> = first_line
        .chars()
        .filter(|&character| {
            in_quotes ^= character == '"';
            !in_quotes
        })
        .collect();
    [b'\t', b',', b';'].into_iter().find(|&byte| plain.contains(&char::from(byte))).unwrap_or(b',')
}

/// Lines with a quote that is not closed before the rest is given up: each may take reading to the end of the file.
const MAX_OPEN_QUOTES: usize = 100;

/// Cells of a row that may name its image.
const MAX_CELLS: usize = 300;

type Record = Result<(usize, Vec<String>), String>;

/// The rows with their line numbers. A quote that is not closed would swallow what follows: such a line is an error
/// and reading goes on with the next.
fn records(text: &str, delimiter: u8, index: &FileIndex) -> Vec<Record> {
    let mut all = Vec::new();
    let (mut offset, mut first_line) = (0, 1);
    let mut num_open_quotes = 0;
    'restart: while offset < text.len() {
        let mut reader = csv::ReaderBuilder::new()
            .delimiter(delimiter)
            .flexible(true)
            .has_headers(false)
            .from_reader(&text.as_bytes()[offset..]);
        let mut record = csv::StringRecord::new();
        loop {
            match reader.read_record(&mut record) {
                Ok(true) => {}
                Ok(false) => break 'restart,
                Err(error) => {
                    all.push(Err(error.to_string()));
                    break 'restart;
                }
            }
            let at = record.position().cloned().unwrap_or_else(csv::Position::new);
            let start = offset + at.byte() as usize;
            // A record's position is that of the empty lines before it.
            let empty_lines = text[start..].bytes().take_while(|&byte| byte == b'\n').count();
            let (start, line) = (start + empty_lines, first_line + at.line() as usize - 1 + empty_lines);
            // More cells than classes are possible cannot be one row; each look takes time.
            let names_an_image =
                || record.iter().take(MAX_CELLS).any(|cell| index.resolve(cell, &[IMAGES]).is_ok());
            if record.iter().any(|cell| cell.contains('\n')) && !names_an_image() {
                all.push(Err(format!("line {line}: a quote is opened and not closed on this line")));
                num_open_quotes += 1;
                if num_open_quotes == MAX_OPEN_QUOTES {
                    let reason =
                        format!("line {line}: the {MAX_OPEN_QUOTES}th such line; the rest is not read");
                    all.push(Err(reason));
                    break 'restart;
                }
                offset = text[start..].find('\n').map_or(text.len(), |end| start + end + 1);
                first_line = line + 1;
                continue 'restart;
            }
            let cells: Vec<String> = record.iter().map(|cell| cell.trim().to_string()).collect();
            if cells.iter().any(|cell| !cell.is_empty()) {
                all.push(Ok((line, cells)));
            }
        }
    }
    all
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
    fn of_first_row(cells: &[String], delimiter: u8, index: &FileIndex) -> (Self, bool) {
        // Where semicolons stand between cells, commas may stand between tags.
        let between: &[char] = if delimiter == b';' { &[';', ','] } else { &[';'] };
        let lower: Vec<String> = cells.iter().map(|cell| cell.to_lowercase()).collect();
        let find = |headings: &[&str]| lower.iter().position(|cell| headings.contains(&cell.as_str()));
        let (image, tags, split) = (find(&IMAGE_HEADINGS), find(&TAG_HEADINGS), find(&SPLIT_HEADINGS));
        if image.is_none() && cells.first().is_some_and(|cell| index.resolve(cell, &[IMAGES]).is_ok()) {
            let tags = TagColumns::Names { column: 1, between };
            return (Columns { num_columns: cells.len().max(2), image: 0, split: None, tags }, false);
        }
        let image = image.unwrap_or(0);
        let tags = match tags {
            Some(column) => TagColumns::Names { column, between },
            None => {
                let others =
                    (0..cells.len()).filter(|&i| i != image && Some(i) != split && !cells[i].is_empty());
                TagColumns::OneHot(others.map(|i| (i, cells[i].clone())).collect())
            }
        };
        (Columns { num_columns: cells.len(), image, split, tags }, true)
    }

    /// The classes in the order of their columns.
    fn class_names(&self) -> Option<Vec<String>> {
        match &self.tags {
            TagColumns::Names { .. } => None,
            TagColumns::OneHot(columns) => Some(columns.iter().map(|(_, name)| name.clone()).collect()),
        }
    }

    fn row(&self, line: usize, cells: &[String]) -> Result<TagRow, String> {
        let place = format!("line {line}");
        if let Some(extra) = cells.iter().skip(self.num_columns).find(|cell| !cell.is_empty()) {
            let expected = self.num_columns;
            return Err(format!(
                "{place}: `{extra}` is more than the {expected} cells of the first row; left out"
            ));
        }
        let cell = |column: usize| cells.get(column).map_or("", String::as_str);
        if cell(self.image).is_empty() {
            return Err(format!("{place}: no image"));
        }
        let tags = match &self.tags {
            TagColumns::Names { column, between } => {
                let names = cell(*column).split(*between).map(str::trim).filter(|name| !name.is_empty());
                names.map(str::to_string).collect()
            }
            TagColumns::OneHot(columns) => {
                let mut tags = Vec::new();
                for (column, name) in columns {
                    if is_on(cell(*column)).map_err(|what| format!("{place}: {what} in column `{name}`"))? {
                        tags.push(name.clone());
                    }
                }
                tags
            }
        };
        let split = self.split.map(|column| cell(column).to_string()).filter(|split| !split.is_empty());
        Ok(TagRow { image: ImageName::Below(cell(self.image).to_string()), tags, split, place })
    }
}

fn is_on(cell: &str) -> Result<bool, String> {
    match cell.to_lowercase().as_str() {
        "1" | "1.0" | "true" | "yes" | "x" => Ok(true),
        "" | "0" | "0.0" | "false" | "no" => Ok(false),
        _ => Err(format!("`{cell}`, expected 0 or 1,")),
    }
}
