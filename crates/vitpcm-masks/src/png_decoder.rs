//! Opens PNG files for their pixels only: colour profiles and text chunks are skipped, whatever they would inflate to,
//! and the decoder's memory is bounded by the picture's size. All PNG readers of the program use it.

use png::{Decoder, DecodingError, Limits};
use std::io::{BufRead, Seek};

/// Deflate's highest compression ratio; a header that implies more is refused.
const MAX_INFLATION: u64 = 1032;

/// Slack for tiny pictures.
const INFLATION_ALLOWANCE: u64 = 1 << 16;

/// Room for an EXIF chunk, which holds the orientation. It is never compressed, so the file is at least as long.
const MAX_METADATA_BYTES: usize = 16 << 20;

/// Rows that the decoder buffers.
const ROWS_HELD: usize = 8;

/// A decoder that has read the header.
///
/// Its limits cover what the decoder allocates by itself. Before allocating the pixels, check their number and
/// [`PngHeader::check_file_holds_it`].
pub fn open_png<R: BufRead + Seek>(reader: R) -> Result<(Decoder<R>, PngHeader), DecodingError> {
    let mut decoder = Decoder::new(reader);
    decoder.set_ignore_iccp_chunk(true);
    decoder.set_ignore_text_chunk(true);
    let info = decoder.read_header_info()?;
    let row_bytes = info.raw_row_length();
    let header = PngHeader {
        width: info.width as usize,
        height: info.height as usize,
        inflated_bytes: (row_bytes as u64).saturating_mul(u64::from(info.height)),
    };
    // Sixteen bytes of output per byte of input: one bit becomes a 16-bit grey value or a colour.
    let bytes = row_bytes.saturating_mul(16 * ROWS_HELD).saturating_add(MAX_METADATA_BYTES);
    decoder.set_limits(Limits { bytes });
    Ok((decoder, header))
}

/// Size of a PNG image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PngHeader {
    /// Pixels per row.
    pub width: usize,
    /// Number of rows.
    pub height: usize,
    inflated_bytes: u64,
}

impl PngHeader {
    /// Number of pixels.
    pub fn num_pixels(&self) -> u64 {
        self.width as u64 * self.height as u64
    }

    /// Refuses a picture that cannot fit in a file of this size.
    pub fn check_file_holds_it(&self, file_bytes: u64) -> Result<(), String> {
        if self.inflated_bytes > file_bytes.saturating_mul(MAX_INFLATION).saturating_add(INFLATION_ALLOWANCE)
        {
            return Err(format!(
                "its header claims {} bytes, more than {file_bytes} bytes of file can hold",
                self.inflated_bytes
            ));
        }
        Ok(())
    }
}
