//! UTF-16 to UTF-8 while it is read, for the tag files that spreadsheets write.

use std::io::{self, Read};

/// Which byte of a unit comes first.
#[derive(Clone, Copy)]
pub(crate) enum ByteOrder {
    LittleEndian,
    BigEndian,
}

/// A UTF-16 text as UTF-8 bytes; what is no text is replaced.
pub(crate) struct Utf16Text<R> {
    source: R,
    order: ByteOrder,
    /// The first half of a character whose second is yet to come.
    first_half: Option<u16>,
    text: io::Cursor<Vec<u8>>,
}

impl<R: Read> Utf16Text<R> {
    pub(crate) fn new(source: R, order: ByteOrder) -> Self {
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
