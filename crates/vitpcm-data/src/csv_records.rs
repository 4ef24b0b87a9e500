//! The records of a CSV file, one at a time: a file of any length is read in the memory of its longest record. UTF-8
//! with or without byte order mark, or UTF-16 with one, as spreadsheets write; Windows line ends are understood. What
//! the cells mean is left to `tags_csv.rs`.

use crate::utf16_text::{ByteOrder, Utf16Text};
use csv_core::ReadRecordResult;
use std::borrow::Cow;
use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, Read};

/// Longer than any row of a tag file.
const MAX_LINE_BYTES: u64 = 16 << 20;

/// A record that goes on over several lines, which are looked at again if its quote was not meant so.
const MAX_QUOTED_BYTES: usize = 1 << 20;

/// Lines with a quote that is not closed before the rest is given up: each may take reading a megabyte again.
const MAX_OPEN_QUOTES: usize = 100;

/// Reads records.
pub(crate) struct CsvRecords<'a> {
    text: Box<dyn BufRead + 'a>,
    parser: csv_core::Reader,
    /// The line that is being read, and how far.
    line: Vec<u8>,
    at: usize,
    line_number: usize,
    /// Lines that were read ahead, to be read again.
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
    /// The cells without the space around them; what is not UTF-8 is replaced as it is in the names of files.
    pub(crate) fn cells(&self) -> impl Iterator<Item = Cow<'_, str>> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        let ranges = starts.zip(&self.ends).take(self.num_cells);
        ranges.map(|(start, &end)| match String::from_utf8_lossy(&self.bytes[start..end]) {
            Cow::Borrowed(cell) => Cow::Borrowed(cell.trim()),
            Cow::Owned(cell) => Cow::Owned(cell.trim().to_string()),
        })
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
    /// Starts to read; the delimiter is found in the first line.
    pub(crate) fn new(file: impl Read + 'a) -> io::Result<(Self, u8)> {
        let mut file = BufReader::with_capacity(1 << 16, file);
        let text: Box<dyn BufRead + 'a> = match file.fill_buf()? {
            [0xff, 0xfe, ..] => Box::new(BufReader::new(Utf16Text::new(file, ByteOrder::LittleEndian))),
            [0xfe, 0xff, ..] => Box::new(BufReader::new(Utf16Text::new(file, ByteOrder::BigEndian))),
            _ => Box::new(file),
        };
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
        let delimiter = delimiter_of(&first);
        records.parser = csv_core::ReaderBuilder::new().delimiter(delimiter).build();
        records.ahead.push_back(first);
        Ok((records, delimiter))
    }

    /// The next record that is not blank, with the number of its line; or why a line cannot be used. A quote that is not
    /// closed would swallow what follows: a record of several lines must pass `is_meant_so`, else its first line is an
    /// error and reading goes on with the next.
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

    /// Goes on with the record, from where the line was read to.
    fn parse(&mut self, num_bytes: &mut usize) -> Parsed {
        loop {
            let input = &self.line[self.at..];
            // Cells are never longer than what they are read from.
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

    /// Makes the next line the current one.
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

    /// Reads a line, with one kind of line end.
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

/// A tab wherever the first line has one, else a comma, else a semicolon, all outside of quotes.
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
    [b'\t', b',', b';'].into_iter().find(|byte| plain.contains(byte)).unwrap_or(b',')
}
