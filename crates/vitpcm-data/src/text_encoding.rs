//! Text encodings of spreadsheets and editors: UTF-8 with or without a byte order mark, UTF-16, Windows-1252.

use std::io::{self, BufRead, BufReader, Read};

/// Decodes a text to UTF-8 while reading, without byte order mark. UTF-16 is detected by its mark or by the zero bytes
/// of its first character.
pub(crate) fn utf8_text<'a>(file: impl Read + 'a) -> io::Result<Box<dyn BufRead + 'a>> {
    let mut file = BufReader::with_capacity(1 << 16, file);
    let (order, num_skipped) = match file.fill_buf()? {
        [0xef, 0xbb, 0xbf, ..] => (None, 3),
        [0xff, 0xfe, ..] => (Some(ByteOrder::LittleEndian), 2),
        [0xfe, 0xff, ..] => (Some(ByteOrder::BigEndian), 2),
        [first, 0, ..] if *first != 0 => (Some(ByteOrder::LittleEndian), 0),
        [0, second, ..] if *second != 0 => (Some(ByteOrder::BigEndian), 0),
        _ => (None, 0),
    };
    file.consume(num_skipped);
    Ok(match order {
        Some(order) => Box::new(BufReader::new(Utf16Text::new(file, order))),
        None => Box::new(file),
    })
}

/// Windows-1252, a superset of Latin-1, in which Excel writes CSV files in western countries.
pub(crate) fn windows_1252(bytes: &[u8]) -> String {
    const FROM_80: [char; 32] = [
        '€', '\u{fffd}', '‚', 'ƒ', '„', '…', '†', '‡', 'ˆ', '‰', 'Š', '‹', 'Œ', '\u{fffd}', 'Ž', '\u{fffd}',
        '\u{fffd}', '‘', '’', '“', '”', '•', '–', '—', '˜', '™', 'š', '›', 'œ', '\u{fffd}', 'ž', 'Ÿ',
    ];
    let character = |&byte: &u8| match byte {
        0x80..=0x9f => FROM_80[usize::from(byte - 0x80)],
        _ => char::from(byte),
    };
    bytes.iter().map(character).collect()
}

/// Which byte of a unit comes first.
#[derive(Clone, Copy)]
enum ByteOrder {
    LittleEndian,
    BigEndian,
}

/// A UTF-16 text as UTF-8 bytes; invalid units are replaced.
struct Utf16Text<R> {
    source: R,
    order: ByteOrder,
    /// A high surrogate that waits for its low surrogate.
    first_half: Option<u16>,
    text: io::Cursor<Vec<u8>>,
}

impl<R: Read> Utf16Text<R> {
    fn new(source: R, order: ByteOrder) -> Self {
        Utf16Text { source, order, first_half: None, text: io::Cursor::default() }
    }

    fn refill(&mut self) -> io::Result<()> {
        const CHUNK: u64 = 1 << 14;
        let mut bytes = Vec::with_capacity(CHUNK as usize);
        self.source.by_ref().take(CHUNK).read_to_end(&mut bytes)?;
        let unit = |&pair: &[u8; 2]| match self.order {
            ByteOrder::LittleEndian => u16::from_le_bytes(pair),
            ByteOrder::BigEndian => u16::from_be_bytes(pair),
        };
        let mut units: Vec<u16> = self.first_half.take().into_iter().collect();
        units.extend(bytes.as_chunks().0.iter().map(unit));
        let is_last = (bytes.len() as u64) < CHUNK;
        if !is_last && matches!(units.last(), Some(0xd800..=0xdbff)) {
            self.first_half = units.pop();
        }
        self.text = io::Cursor::new(String::from_utf16_lossy(&units).into_bytes());
        Ok(())
    }
}

impl<R: Read> Read for Utf16Text<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.text.position() == self.text.get_ref().len() as u64 {
            self.refill()?;
        }
        self.text.read(buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_excel_writes_is_read() {
        let read = |bytes: &[u8]| {
            let mut text = String::new();
            utf8_text(bytes).unwrap().read_to_string(&mut text).unwrap();
            text
        };
        let utf16: Vec<u8> = "é,1".encode_utf16().flat_map(u16::to_le_bytes).collect();
        assert_eq!(read("\u{feff}é,1".as_bytes()), "é,1");
        assert_eq!(read(&[&[0xff, 0xfe][..], &utf16].concat()), "é,1");
        assert_eq!(read(&"a,1".encode_utf16().flat_map(u16::to_be_bytes).collect::<Vec<u8>>()), "a,1");
        assert_eq!(windows_1252(b"K\xe4fer 5 \x80"), "Käfer 5 €");
    }

    #[test]
    fn characters_over_the_ends_of_chunks_are_whole() {
        let text = format!("a{}", "𝄞é".repeat(10_000));
        for (order, bytes) in [
            (ByteOrder::LittleEndian, text.encode_utf16().flat_map(u16::to_le_bytes).collect::<Vec<u8>>()),
            (ByteOrder::BigEndian, text.encode_utf16().flat_map(u16::to_be_bytes).collect()),
        ] {
            let mut found = String::new();
            Utf16Text::new(&bytes[..], order).read_to_string(&mut found).unwrap();
            assert_eq!(found, text);
        }
    }
}
