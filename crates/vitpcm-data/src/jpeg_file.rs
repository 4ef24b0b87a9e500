//! Checks JPEG files before decoding. The decoder fills missing data with grey and reports success, so `jpeg_scan.rs`
//! first checks that every scan has a code for each of its blocks. Comments, colour profiles and other segments that do
//! not affect the pixels are dropped. Decoding is left to the `image` crate.

use crate::jpeg_scan::{Frame, ScanHeader, Tables};

const START_OF_IMAGE: u8 = 0xd8;
const END_OF_IMAGE: u8 = 0xd9;
const START_OF_SCAN: u8 = 0xda;
const HUFFMAN_TABLES: u8 = 0xc4;
const RESTART_INTERVAL: u8 = 0xdd;

/// More scans than any encoder writes: each may cost a pass over the whole image for a few bytes.
const MAX_SCANS: usize = 100;

/// How much of a file is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    /// Up to the first scan: size and orientation.
    Header,
    /// Everything, and it must be complete.
    Pixels,
}

/// The segments that determine the pixels and their orientation, up to the end of the image.
///
/// Data after the end marker is ignored. A missing end marker is added if all data is there; incomplete data is an
/// error.
pub(crate) fn essential_segments(bytes: &[u8], extent: Extent) -> Result<Vec<u8>, String> {
    let mut kept = vec![0xff, START_OF_IMAGE];
    let mut progress = Progress::default();
    let mut metadata = Metadata::default();
    let mut at = 2;
    while let Some((marker, start)) = next_marker(bytes, at) {
        match marker {
            END_OF_IMAGE => {
                progress.check_has_all_components()?;
                kept.extend([0xff, END_OF_IMAGE]);
                return Ok(kept);
            }
            // Markers without a length, meaningless outside a scan.
            0x01 | 0xd0..=START_OF_IMAGE => {
                at = start;
                continue;
            }
            _ => {}
        }
        let Some(segment) = segment_at(bytes, start) else { break };
        at = start + 2 + segment.len();
        if metadata.is_wanted(marker, segment) {
            kept.extend([0xff, marker]);
            kept.extend_from_slice(&bytes[start..at]);
        }
        if marker != START_OF_SCAN {
            progress.take(marker, segment);
            continue;
        }
        if extent == Extent::Header {
            return Ok(kept);
        }
        let length = progress.take_scan(segment, &bytes[at..])?;
        kept.extend_from_slice(&bytes[at..at + length]);
        at += length;
    }
    progress.check_is_finished()?;
    kept.extend([0xff, END_OF_IMAGE]);
    Ok(kept)
}

/// The next marker and the position after it. Skips junk before it, as decoders do.
fn next_marker(bytes: &[u8], mut at: usize) -> Option<(u8, usize)> {
    loop {
        at += bytes.get(at..)?.iter().position(|&byte| byte == 0xff)?;
        at += bytes[at..].iter().position(|&byte| byte != 0xff)?;
        match bytes[at] {
            0 => {}
            marker => return Some((marker, at + 1)),
        }
    }
}

/// The segment after the length at `start`, if the file contains all of it.
fn segment_at(bytes: &[u8], start: usize) -> Option<&[u8]> {
    let length = bytes.get(start..start + 2)?;
    let length = usize::from(u16::from_be_bytes([length[0], length[1]]));
    bytes.get(start + 2..start + length.max(2))
}

/// Metadata segments seen so far: of each relevant kind, the first counts.
#[derive(Default)]
struct Metadata {
    has_jfif: bool,
    has_exif: bool,
    has_adobe: bool,
}

impl Metadata {
    fn is_wanted(&mut self, marker: u8, segment: &[u8]) -> bool {
        let is_first = |seen: &mut bool| !std::mem::replace(seen, true);
        match (marker, segment) {
            (0xe0, [b'J', b'F', b'I', b'F', 0, ..]) => is_first(&mut self.has_jfif),
            (0xe1, [b'E', b'x', b'i', b'f', 0, 0, ..]) => is_first(&mut self.has_exif),
            // Defines how colours are coded.
            (0xee, [b'A', b'd', b'o', b'b', b'e', ..]) => is_first(&mut self.has_adobe),
            // Other application segments, reserved ones, comments.
            (0xe0..=0xfe, _) => false,
            _ => true,
        }
    }
}

/// What has been read of the image so far.
#[derive(Default)]
struct Progress {
    /// `None` for coding processes that only the decoder may know.
    frame: Option<Frame>,
    tables: Tables,
    restart_interval: usize,
    num_scans: usize,
}

impl Progress {
    fn take(&mut self, marker: u8, segment: &[u8]) {
        match marker {
            HUFFMAN_TABLES => self.tables.add(segment),
            RESTART_INTERVAL => {
                if let [high, low, ..] = *segment {
                    self.restart_interval = usize::from(u16::from_be_bytes([high, low]));
                }
            }
            0xc0..=0xc2 if self.frame.is_none() => self.frame = Frame::parse(segment, marker == 0xc2),
            _ => {}
        }
    }

    /// The length of a scan's data. All its blocks must be there.
    fn take_scan(&mut self, segment: &[u8], data: &[u8]) -> Result<usize, String> {
        self.num_scans += 1;
        if self.num_scans > MAX_SCANS {
            return Err(format!("a JPEG of more than {MAX_SCANS} scans"));
        }
        let scan = self.frame.as_ref().and_then(|frame| ScanHeader::parse(segment, frame));
        if let (Some(frame), Some(scan)) = (&mut self.frame, scan) {
            frame.walk(&scan, &self.tables, self.restart_interval, data).map_err(|row| {
                format!("the JPEG is truncated or damaged: its data ends at row {row} of {}", frame.height)
            })?;
        }
        Ok(scan_length(data))
    }

    /// Sufficient if the file ends here with an end marker: an encoder may leave out details.
    fn check_has_all_components(&self) -> Result<(), String> {
        match self.frame.as_ref().map_or(0, Frame::num_missing_components) {
            0 => Ok(()),
            missing => {
                Err(format!("the JPEG is truncated or damaged: {missing} of its colour channels are missing"))
            }
        }
    }

    /// Whether everything is there, to the last bit of the finest detail.
    fn check_is_finished(&self) -> Result<(), String> {
        if self.frame.as_ref().is_some_and(Frame::is_finished) {
            return Ok(());
        }
        Err("the JPEG ends early: no end-of-image marker, the file is truncated".to_string())
    }
}

/// Number of bytes before the first marker that is no restart.
fn scan_length(data: &[u8]) -> usize {
    let mut at = 0;
    while let Some((marker, behind)) = next_marker(data, at) {
        if !matches!(marker, 0xd0..=0xd7) {
            // Fill bytes may precede a marker.
            let fill = data[..behind - 1].iter().rev().take_while(|&&byte| byte == 0xff).count();
            return behind - 1 - fill;
        }
        at = behind;
    }
    data.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_is_dropped_but_what_colours_and_orientation_need() {
        let segment = |marker: u8, content: &[u8]| {
            let length = (content.len() as u16 + 2).to_be_bytes();
            [&[0xff, marker], &length[..], content].concat()
        };
        let wanted =
            [segment(0xe0, b"JFIF\0"), segment(0xe1, b"Exif\0\0II"), segment(0xee, b"Adobe")].concat();
        let dropped = [
            segment(0xe1, b"http://ns.adobe.com/xap/1.0/\0"),
            segment(0xe2, b"ICC_PROFILE\0"),
            segment(0xe1, b"Exif\0\0second"),
            segment(0xfe, b"a comment"),
        ]
        .concat();
        let file = |middle: &[u8]| [&[0xff, START_OF_IMAGE], middle, &[0xff, END_OF_IMAGE]].concat();
        let whole = file(&[&wanted[..], &dropped, b"junk"].concat());
        assert_eq!(essential_segments(&whole, Extent::Pixels).unwrap(), file(&wanted));
    }
}
