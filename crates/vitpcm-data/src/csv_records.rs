//! The records of a CSV file, one at a time, in the memory of the longest record. Reads UTF-8, UTF-16 and Windows-1252,
//! and Windows line ends.

use crate::text_encoding::{utf8_text, windows_1252};
use csv_core::ReadRecordResult;
use std::borrow::Cow;
use std::collections::VecDeque;
use std::io::{self, BufRead, Read};

/// Longest line, in bytes; longer than any row of a tag file.
const MAX_LINE_BYTES: u64 = 16 << 20;

/// Longest record that spans several lines, which are read again if its quote turns out to be a stray one.
const MAX_QUOTED_BYTES: usize = 1 << 20;

/// Limit on lines with an unclosed quote, because each may cost reading a megabyte again.
const MAX_OPEN_QUOTES: usize = 100;

/// A reader of CSV records.
pub(crate) struct CsvRecords<'a> {
    text: Box<dyn BufRead + 'a>,
    parser: csv_core::Reader,
    /// The current line and the position in it.
    line: Vec<u8>,
    at: usize,
    line_number: usize,
    /// Lines read ahead, to be read again.
    ahead: VecDeque<Vec<u8>>,
    record: Record,
    num_open_quotes: usize,
}

/// One record's cells.
#[derive(Default)]
pub(crate) struct Record {
    bytes: Vec<u8>,
    ends: Vec<usize>,
    num_cells: usize,
}

impl Record {
    /// The trimmed cells; a cell that is not UTF-8 is read as Windows-1252.
    pub(crate) fn cells(&self) -> impl Iterator<Item = Cow<'_, str>> {
        self.raw_cells().map(|cell| match std::str::from_utf8(cell) {
            Ok(cell) => Cow::Borrowed(cell.trim()),
            Err(_) => Cow::Owned(windows_1252(cell).trim().to_string()),
        })
    }

    /// The cells with invalid UTF-8 replaced as in file names; `None` if all are UTF-8.
    pub(crate) fn lossy_cells(&self) -> Option<Vec<String>> {
        let is_utf8 = self.raw_cells().all(|cell| std::str::from_utf8(cell).is_ok());
        (!is_utf8)
            .then(|| self.raw_cells().map(|cell| String::from_utf8_lossy(cell).trim().to_string()).collect())
    }

    fn raw_cells(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        let ranges = starts.zip(&self.ends).take(self.num_cells);
        ranges.map(|(start, &end)| &self.bytes[start..end])
    }
}

/// Whether a record is complete.
enum Parsed {
    Record,
    Blank,
    /// A quote is open at the end of the line.
    Open,
}

impl<'a> CsvRecords<'a> {
    /// Starts reading; the first line tells the delimiter.
    pub(crate) fn new(file: impl Read + 'a) -> io::Result<Self> {
        let text = utf8_text(file)?;
        let mut records = CsvRecords {
            text,
            parser: csv_core::Reader::new(),
            line: Vec::new(),
            at: 0,
            line_number: 0,
            ahead: VecDeque::new(),
            record: Record::default(),
            num_open_quotes: 0,
        };
        let mut first = Vec::new();
        if matches!(records.read_line(&mut first)?, Line::TooLong) {
            return Err(io::Error::other(format!("the first line is longer than {MAX_LINE_BYTES} bytes")));
        }
        // Excel accepts a first line that names the delimiter, and some programs write one.
        let named = first.trim_ascii_end().strip_prefix(b"sep=").and_then(|rest| rest.first().copied());
        let delimiter = named.unwrap_or_else(|| delimiter_of(&first));
        records.parser = csv_core::ReaderBuilder::new().delimiter(delimiter).build();
        match named {
            Some(_) => records.line_number = 1,
            None => records.ahead.push_back(first),
        }
        Ok(records)
    }

    /// The next non-blank record with its line number, or why a line is invalid. An unclosed quote would swallow what
    /// follows: a multi-line record must pass `is_meant_so`, otherwise its first line is an error and reading continues
    /// with the next.
    pub(crate) fn next(
        &mut self,
        is_meant_so: impl Fn(&Record) -> bool,
    ) -> Option<Result<(usize, &Record), String>> {
        loop {
            if self.at == self.line.len() {
                match self.next_line() {
                    Ok(Line::Whole) => {}
                    Ok(Line::End) => return None,
                    Ok(Line::TooLong) => {
                        let number = self.line_number;
                        return Some(Err(format!(
                            "line {number}: longer than {MAX_LINE_BYTES} bytes; left out"
                        )));
                    }
                    Err(error) => {
                        self.ahead.clear();
                        self.text = Box::new(io::empty());
                        return Some(Err(format!("line {}: {error}", self.line_number)));
                    }
                }
            }
            let number = self.line_number;
            self.parser.reset();
            self.record.num_cells = 0;
            let mut num_bytes = 0;
            match self.parse(&mut num_bytes) {
                Parsed::Blank => continue,
                Parsed::Record => return Some(Ok((number, &self.record))),
                Parsed::Open => {}
            }
            let mut followers: Vec<Vec<u8>> = Vec::new();
            let mut is_closed = false;
            while !is_closed && num_bytes <= MAX_QUOTED_BYTES && matches!(self.next_line(), Ok(Line::Whole)) {
                followers.push(self.line.clone());
                is_closed = matches!(self.parse(&mut num_bytes), Parsed::Record);
            }
            if is_closed && is_meant_so(&self.record) {
                return Some(Ok((number, &self.record)));
            }
            self.ahead = followers.into_iter().chain(std::mem::take(&mut self.ahead)).collect();
            self.at = self.line.len();
            self.line_number = number;
            self.num_open_quotes += 1;
            if self.num_open_quotes >= MAX_OPEN_QUOTES {
                self.ahead.clear();
                self.text = Box::new(io::empty());
                let reason = format!(
                    "line {number}: the {MAX_OPEN_QUOTES}th quote that is not closed; the rest is not read"
                );
                return Some(Err(reason));
            }
            return Some(Err(format!("line {number}: a quote is opened and not closed on this line")));
        }
    }

    /// Continues the record from the current position.
    fn parse(&mut self, num_bytes: &mut usize) -> Parsed {
        loop {
            let input = &self.line[self.at..];
            // Cells are never longer than their input.
            if self.record.bytes.len() < *num_bytes + input.len() {
                self.record.bytes.resize(*num_bytes + input.len(), 0);
            }
            if self.record.ends.len() == self.record.num_cells {
                self.record.ends.resize((2 * self.record.num_cells).max(16), 0);
            }
            let (result, num_read, num_written, num_ends) = self.parser.read_record(
                input,
                &mut self.record.bytes[*num_bytes..],
                &mut self.record.ends[self.record.num_cells..],
            );
            self.at += num_read;
            *num_bytes += num_written;
            self.record.num_cells += num_ends;
            match result {
                ReadRecordResult::OutputFull | ReadRecordResult::OutputEndsFull => {}
                ReadRecordResult::Record => return Parsed::Record,
                ReadRecordResult::InputEmpty if *num_bytes + self.record.num_cells > 0 => {
                    return Parsed::Open;
                }
                ReadRecordResult::InputEmpty | ReadRecordResult::End => return Parsed::Blank,
            }
        }
    }

    /// Advances to the next line.
    fn next_line(&mut self) -> io::Result<Line> {
        self.at = 0;
        self.line_number += 1;
        if let Some(line) = self.ahead.pop_front() {
            self.line = line;
            return Ok(if self.line.is_empty() { Line::End } else { Line::Whole });
        }
        let mut line = std::mem::take(&mut self.line);
        let outcome = self.read_line(&mut line);
        self.line = line;
        outcome
    }

    /// Reads a line with normalised line end.
    fn read_line(&mut self, line: &mut Vec<u8>) -> io::Result<Line> {
        line.clear();
        if self.text.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', line)? == 0 {
            return Ok(Line::End);
        }
        if line.ends_with(b"\r\n") {
            line.truncate(line.len() - 2);
            line.push(b'\n');
        } else if !line.ends_with(b"\n") {
            if line.len() as u64 == MAX_LINE_BYTES {
                line.clear();
                self.text.skip_until(b'\n')?;
                return Ok(Line::TooLong);
            }
            line.push(b'\n');
        }
        Ok(Line::Whole)
    }
}

enum Line {
    Whole,
    TooLong,
    End,
}

/// A tab if the first line has one, else the first comma or semicolon, else `|`; all outside quotes.
fn delimiter_of(first_line: &[u8]) -> u8 {
    let mut in_quotes = false;
    let plain: Vec<u8> = first_line
        .iter()
        .copied()
        .filter(|&byte| {
            in_quotes ^= byte == b'"';
            !in_quotes
        })
        .collect();
    let first_of = |bytes: &[u8]| plain.iter().copied().find(|byte| bytes.contains(byte));
    first_of(b"\t").or_else(|| first_of(b",;")).or_else(|| first_of(b"|")).unwrap_or(b',')
}
