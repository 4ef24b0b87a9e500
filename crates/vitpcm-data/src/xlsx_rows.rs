//! The rows of an Excel workbook's first visible sheet, one at a time. Workbooks are untrusted zip files: memory is
//! bounded by Excel's own limits on cells, rows and sheets, whatever the file inflates to.

use crate::annotation_file;
use crate::xml_text::text_of_reference;
use quick_xml::events::{BytesStart, Event};
use quick_xml::{Reader, XmlVersion};
use std::borrow::Cow;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::ops::ControlFlow;
use std::path::Path;
use zip::ZipArchive;

/// Largest workbook, in bytes: a million rows take a third of it.
const MAX_FILE_BYTES: u64 = 64 << 20;
/// Limit on an inflated part, in bytes.
const MAX_PART_BYTES: u64 = 1 << 30;
/// Limit on one XML event, in bytes: four per character that Excel allows in a cell.
const MAX_EVENT_BYTES: u64 = 128 << 10;
/// Limits on shared strings: their number and total length in bytes.
const MAX_TEXTS: usize = 2 << 20;
const MAX_TEXT_BYTES: usize = 64 << 20;
/// Excel's last column.
const MAX_COLUMNS: usize = 16_384;
/// Longest row, in bytes.
const MAX_ROW_BYTES: usize = 1 << 20;

/// Passes the rows with their numbers to `each` until it has seen enough.
pub(crate) fn for_each_row(
    path: &Path,
    each: impl FnMut(usize, Vec<Cow<'_, str>>) -> ControlFlow<()>,
) -> Result<(), String> {
    let file = annotation_file::open(path).map_err(|e| e.to_string())?;
    let length = file.metadata().map_err(|e| e.to_string())?.len();
    if length > MAX_FILE_BYTES {
        return Err(format!("a workbook of {length} bytes, more than {MAX_FILE_BYTES}; save it as CSV"));
    }
    let unusable = |error: zip::result::ZipError| format!("not an .xlsx workbook ({error}); save it as CSV");
    let mut archive = ZipArchive::new(BufReader::new(file)).map_err(unusable)?;
    let texts = shared_texts(&mut archive)?;
    let sheet = first_sheet(&mut archive)?;
    Sheet { texts: &texts, row: Vec::new(), row_bytes: 0 }.read(Part::open(&mut archive, &sheet)?, each)
}

/// An XML file of the workbook.
struct Part<R: Read> {
    reader: Reader<Bounded<BufReader<R>>>,
    buffer: Vec<u8>,
}

type PartOf<'a> = Part<io::Take<zip::read::ZipFile<'a, BufReader<File>>>>;

impl<'a> PartOf<'a> {
    fn open(archive: &'a mut ZipArchive<BufReader<File>>, name: &str) -> Result<Self, String> {
        let part = archive.by_name(name).map_err(|e| format!("{name}: {e}"))?;
        let text = Bounded { text: BufReader::new(part.take(MAX_PART_BYTES)), left: MAX_EVENT_BYTES };
        Ok(Part { reader: Reader::from_reader(text), buffer: Vec::new() })
    }
}

impl<R: Read> Part<R> {
    fn next(&mut self) -> Result<Event<'_>, String> {
        self.buffer.clear();
        self.reader.get_mut().left = MAX_EVENT_BYTES;
        let at = self.reader.buffer_position();
        self.reader.read_event_into(&mut self.buffer).map_err(|e| format!("byte {at} of a sheet: {e}"))
    }
}

/// A reader that fails if more than the remaining bytes are read at once.
struct Bounded<R> {
    text: R,
    left: u64,
}

impl<R: BufRead> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.fill_buf()?.read(buffer)?;
        self.consume(length);
        Ok(length)
    }
}

impl<R: BufRead> BufRead for Bounded<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        let bytes = self.text.fill_buf()?;
        let length = bytes.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        if length == 0 && !bytes.is_empty() {
            return Err(io::Error::other("a text longer than Excel allows"));
        }
        Ok(&bytes[..length])
    }

    fn consume(&mut self, length: usize) {
        self.left = self.left.saturating_sub(length as u64);
        self.text.consume(length);
    }
}

/// The shared strings that cells refer to by number.
fn shared_texts(archive: &mut ZipArchive<BufReader<File>>) -> Result<Vec<Box<str>>, String> {
    const NAME: &str = "xl/sharedStrings.xml";
    if archive.index_for_name(NAME).is_none() {
        return Ok(Vec::new());
    }
    let mut part = Part::open(archive, NAME)?;
    let (mut texts, mut text, mut num_bytes) = (Vec::new(), String::new(), 0);
    // Phonetic readings (`rPh`) are not part of the text.
    let (mut in_text, mut in_reading) = (false, false);
    loop {
        match part.next()? {
            Event::Start(element) => match element.local_name().as_ref() {
                "t" => in_text = true,
                "rPh" => in_reading = true,
                _ => {}
            },
            Event::Text(piece) if in_text && !in_reading => text += &piece.xml10_content(),
            Event::GeneralRef(piece) if in_text && !in_reading => text += &text_of_reference(&piece),
            Event::End(element) => match element.local_name().as_ref() {
                "t" => in_text = false,
                "rPh" => in_reading = false,
                "si" => {
                    num_bytes += text.len();
                    texts.push(std::mem::take(&mut text).into_boxed_str());
                }
                _ => {}
            },
            Event::Empty(element) if element.local_name().as_ref() == "si" => texts.push("".into()),
            Event::Eof => return Ok(texts),
            _ => {}
        }
        if texts.len() > MAX_TEXTS || num_bytes + text.len() > MAX_TEXT_BYTES {
            return Err("more text in its cells than is read; save it as CSV".to_string());
        }
    }
}

/// The part with the first visible sheet.
fn first_sheet(archive: &mut ZipArchive<BufReader<File>>) -> Result<String, String> {
    let mut workbook = Part::open(archive, "xl/workbook.xml")?;
    let id = loop {
        match workbook.next()? {
            Event::Start(element) | Event::Empty(element) if element.local_name().as_ref() == "sheet" => {
                let is_visible = attribute(&element, "state")?.is_none_or(|state| state == "visible");
                if let (true, Some(id)) = (is_visible, attribute(&element, "r:id")?) {
                    break id;
                }
            }
            Event::Eof => return Err("no sheet in it".to_string()),
            _ => {}
        }
    };
    drop(workbook);
    let mut relations = Part::open(archive, "xl/_rels/workbook.xml.rels")?;
    loop {
        match relations.next()? {
            Event::Start(element) | Event::Empty(element)
                if attribute(&element, "Id")?.as_deref() == Some(&id) =>
            {
                let target = attribute(&element, "Target")?.unwrap_or_default();
                let below = target.strip_prefix('/').map(str::to_string);
                return Ok(below.unwrap_or_else(|| format!("xl/{target}")));
            }
            Event::Eof => return Err(format!("its first sheet, {id}, is missing")),
            _ => {}
        }
    }
}

fn attribute(element: &BytesStart<'_>, name: &str) -> Result<Option<String>, String> {
    let found = element.try_get_attribute(name).map_err(|e| e.to_string())?;
    let value = found.map(|attribute| attribute.normalized_value(XmlVersion::Explicit1_0)).transpose();
    Ok(value.map_err(|e| e.to_string())?.map(Cow::into_owned))
}

/// The sheet while reading.
struct Sheet<'a> {
    texts: &'a [Box<str>],
    row: Vec<Cow<'a, str>>,
    row_bytes: usize,
}

/// A cell while reading.
struct Cell {
    column: usize,
    is_shared: bool,
    value: String,
}

impl<'a> Sheet<'a> {
    fn read<R: Read>(
        mut self,
        mut part: Part<R>,
        mut each: impl FnMut(usize, Vec<Cow<'_, str>>) -> ControlFlow<()>,
    ) -> Result<(), String> {
        let (mut number, mut cell, mut in_value) = (0, None, false);
        loop {
            match part.next()? {
                Event::Start(element) => match element.local_name().as_ref() {
                    "row" => number = self.start_row(&element, number)?,
                    "c" => cell = Some(self.cell_of(&element)?),
                    "v" | "t" => in_value = true,
                    _ => {}
                },
                Event::Empty(element) => match element.local_name().as_ref() {
                    "row" => number = self.start_row(&element, number)?,
                    "c" => {
                        let empty = Cell { is_shared: false, ..self.cell_of(&element)? };
                        self.end_cell(Some(empty), number)?;
                    }
                    _ => {}
                },
                Event::Text(piece) if in_value => add_to(&mut cell, &piece.xml10_content())?,
                Event::GeneralRef(piece) if in_value => add_to(&mut cell, &text_of_reference(&piece))?,
                Event::End(element) => match element.local_name().as_ref() {
                    "v" | "t" => in_value = false,
                    "c" => self.end_cell(cell.take(), number)?,
                    "row" if each(number, std::mem::take(&mut self.row)).is_break() => return Ok(()),
                    "sheetData" => return Ok(()),
                    _ => {}
                },
                Event::Eof => return Err("the sheet ends early: truncated".to_string()),
                _ => {}
            }
        }
    }

    fn start_row(&mut self, element: &BytesStart<'_>, last: usize) -> Result<usize, String> {
        self.row.clear();
        self.row_bytes = 0;
        let given = attribute(element, "r")?.and_then(|number| number.parse().ok());
        Ok(given.unwrap_or(last + 1))
    }

    /// An empty cell; cells without an address follow each other.
    fn cell_of(&self, element: &BytesStart<'_>) -> Result<Cell, String> {
        let address = attribute(element, "r")?;
        let column = match address.as_deref().and_then(column_of) {
            Some(column) => column,
            None => self.row.len(),
        };
        if column >= MAX_COLUMNS {
            return Err(format!("more than {MAX_COLUMNS} columns"));
        }
        let is_shared = attribute(element, "t")?.as_deref() == Some("s");
        Ok(Cell { column, is_shared, value: String::new() })
    }

    fn end_cell(&mut self, cell: Option<Cell>, row: usize) -> Result<(), String> {
        let Some(cell) = cell else { return Ok(()) };
        let text = if cell.is_shared {
            let text = cell.value.trim().parse().ok().and_then(|number: usize| self.texts.get(number));
            Cow::Borrowed(&**text.ok_or_else(|| format!("row {row}: no text `{}`", cell.value))?)
        } else {
            Cow::Owned(cell.value)
        };
        self.row_bytes += text.len();
        if self.row_bytes > MAX_ROW_BYTES {
            return Err(format!("row {row}: more than {MAX_ROW_BYTES} bytes"));
        }
        if cell.column >= self.row.len() {
            self.row.resize(cell.column + 1, Cow::Borrowed(""));
        }
        self.row[cell.column] = text;
        Ok(())
    }
}

fn add_to(cell: &mut Option<Cell>, piece: &str) -> Result<(), String> {
    if let Some(cell) = cell {
        cell.value += piece;
        if cell.value.len() > MAX_ROW_BYTES {
            return Err("a text longer than Excel allows".to_string());
        }
    }
    Ok(())
}

/// The column of an address such as `AB12`, from 0.
fn column_of(address: &str) -> Option<usize> {
    let letters = address.bytes().take_while(u8::is_ascii_alphabetic).take(4);
    let number =
        letters.fold(0, |number, letter| 26 * number + usize::from(letter.to_ascii_uppercase() - b'A' + 1));
    number.checked_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_counted_in_letters() {
        assert_eq!(["A1", "Z9", "AA10", "XFD1"].map(column_of), [Some(0), Some(25), Some(26), Some(16_383)]);
        assert_eq!(column_of("7"), None);
    }
}
