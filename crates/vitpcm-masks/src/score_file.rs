//! Score maps as `.npz` files: `scores` (classes × height × width of the grid, 16-bit floats), `classes` (names,
//! background first), `size` (height and width of the image) and `alignment` (of the grid with the image). NumPy reads
//! them, and so does `refine`.

use crate::npy::{Array, encoded, encoded_strings};
use crate::resampling::Alignment;
use crate::{Classes, LabelMap, MaskError, ScoreMap, atomic_file};
use half::f16;
use std::fs::File;
use std::io::{BufReader, Cursor, Read, Write};
use std::path::Path;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipArchive, ZipWriter};

/// Limit on a score map in an `.npz` file, in bytes: 81 classes for the patches of 400 million pixels.
const MAX_SCORE_BYTES: u64 = 1 << 28;
/// The same for the other arrays.
const MAX_WORD_BYTES: u64 = 1 << 20;

/// A score map with everything needed to make a mask.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredScores {
    /// The scores on the grid.
    pub scores: ScoreMap,
    /// Class names.
    pub classes: Classes,
    /// Width and height of the image.
    pub image_size: (usize, usize),
    /// How the grid is aligned with the image.
    pub alignment: Alignment,
}

impl StoredScores {
    /// Writes an `.npz` file atomically.
    pub fn write(&self, path: &Path) -> Result<(), MaskError> {
        let bytes = self.npz();
        atomic_file::write(path, |file| file.write_all(&bytes)).map_err(|source| MaskError::io(path, source))
    }

    /// Encodes an `.npz` file.
    pub fn npz(&self) -> Vec<u8> {
        let (width, height) = self.scores.size();
        let values: Vec<u8> =
            self.scores.scores().iter().flat_map(|&score| f16::from_f32(score).to_le_bytes()).collect();
        let image_size = [self.image_size.1 as i64, self.image_size.0 as i64];
        let size: Vec<u8> = image_size.into_iter().flat_map(i64::to_le_bytes).collect();
        let entries = [
            ("scores.npy", encoded("<f2", &[self.scores.num_classes(), height, width], &values)),
            ("classes.npy", encoded_strings(self.classes.names())),
            ("size.npy", encoded("<i8", &[2], &size)),
            ("alignment.npy", encoded_strings(&[self.alignment.name().to_string()])),
        ];
        let write = || -> std::io::Result<Vec<u8>> {
            let mut archive = ZipWriter::new(Cursor::new(Vec::new()));
            let options = SimpleFileOptions::default().compression_method(CompressionMethod::Deflated);
            for (name, bytes) in &entries {
                archive.start_file(*name, options)?;
                archive.write_all(bytes)?;
            }
            Ok(archive.finish()?.into_inner())
        };
        write().expect("memory takes all")
    }

    /// Reads an `.npz` file that this program or NumPy (`savez`, `savez_compressed`) wrote.
    pub fn read(path: &Path) -> Result<StoredScores, MaskError> {
        Self::read_within(path, 0)
    }

    /// The same for images of up to `max_pixels`: one byte of scores per pixel, if that is more than the default.
    pub fn read_within(path: &Path, max_pixels: u64) -> Result<StoredScores, MaskError> {
        let bad = |reason: String| MaskError::BadScoreFile { path: path.to_path_buf(), reason };
        let file = File::open(path).map_err(|e| MaskError::io(path, e))?;
        let mut archive = ZipArchive::new(BufReader::new(file)).map_err(|e| bad(e.to_string()))?;
        // Optional in files of other programs.
        let has_alignment = archive.index_for_name("alignment.npy").is_some();
        let mut entry = |name: &str, most: u64| -> Result<Vec<u8>, MaskError> {
            let file = archive.by_name(&format!("{name}.npy"));
            let file = file.map_err(|_| bad(format!("no array `{name}`")))?;
            let too_long = || bad(format!("`{name}` has more than {most} bytes"));
            // The declared size first; a false one is found below.
            if file.size() > most {
                return Err(too_long());
            }
            let mut bytes = Vec::new();
            file.take(most + 1).read_to_end(&mut bytes).map_err(|e| bad(format!("`{name}`: {e}")))?;
            if bytes.len() as u64 > most { Err(too_long()) } else { Ok(bytes) }
        };
        let (classes, size) = (entry("classes", MAX_WORD_BYTES)?, entry("size", MAX_WORD_BYTES)?);
        let alignment = has_alignment.then(|| entry("alignment", MAX_WORD_BYTES)).transpose()?;
        let scores = entry("scores", MAX_SCORE_BYTES.max(max_pixels))?;
        let in_array = |name: &'static str| move |reason: String| bad(format!("`{name}`: {reason}"));

        let scores = Array::parse(&scores).map_err(in_array("scores"))?;
        let &[num_classes, height, width] = &scores.shape[..] else {
            return Err(bad(format!(
                "`scores` has shape {:?}, expected classes × height × width",
                scores.shape
            )));
        };
        let scores = ScoreMap::new(num_classes, width, height, scores.floats().map_err(in_array("scores"))?)
            .map_err(|error| bad(format!("`scores`: {error}")))?;
        let names = Array::parse(&classes).and_then(|array| array.strings()).map_err(in_array("classes"))?;
        let classes = Classes::from_names(names).map_err(|error| bad(error.to_string()))?;
        if classes.len() != num_classes {
            return Err(bad(format!("{} class names for scores of {num_classes} classes", classes.len())));
        }
        let size = Array::parse(&size).and_then(|array| array.integers()).map_err(in_array("size"))?;
        let &[image_height, image_width] = &size[..] else {
            return Err(bad(format!("`size` holds {size:?}, expected height and width")));
        };
        let alignment = match alignment {
            None => Alignment::HalfPixel,
            Some(bytes) => {
                let name =
                    Array::parse(&bytes).and_then(|array| array.strings()).map_err(in_array("alignment"))?;
                let known = name.first().and_then(|name| Alignment::from_name(name));
                known.ok_or_else(|| bad(format!("`alignment` is {name:?}")))?
            }
        };
        Ok(StoredScores { scores, classes, image_size: (image_width, image_height), alignment })
    }
}

/// Writes a label map as a `.npy` array (height × width, 8-bit), atomically.
pub fn write_label_npy(path: &Path, map: &LabelMap) -> Result<(), MaskError> {
    let bytes = encoded("|u1", &[map.height(), map.width()], map.labels());
    atomic_file::write(path, |file| file.write_all(&bytes)).map_err(|source| MaskError::io(path, source))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> StoredScores {
        let scores = (0..2 * 3 * 4).map(|i| i as f32 / 32.0).collect(); // exact in 16 bits
        StoredScores {
            scores: ScoreMap::new(2, 4, 3, scores).unwrap(),
            classes: Classes::from_names(["Rübe"]).unwrap(),
            image_size: (500, 375),
            alignment: Alignment::AlignCorners,
        }
    }

    #[test]
    fn a_flipped_bit_of_an_array_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("scores.npz");
        example().write(&path).unwrap();
        let whole = std::fs::read(&path).unwrap();
        for name in ["scores.npy", "classes.npy", "size.npy", "alignment.npy"] {
            let at = whole.windows(name.len()).position(|window| window == name.as_bytes()).unwrap();
            for byte in at + name.len()..at + name.len() + 24 {
                let mut flipped = whole.clone();
                flipped[byte] ^= 1 << (byte % 8);
                std::fs::write(&path, flipped).unwrap();
                assert!(StoredScores::read(&path).is_err(), "byte {byte}, of `{name}`");
            }
        }
    }

    #[test]
    fn what_is_written_is_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("scores.npz");
        example().write(&path).unwrap();
        assert_eq!(StoredScores::read(&path).unwrap(), example());
    }

    #[test]
    fn broken_files_are_errors_and_no_panic() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("scores.npz");
        example().write(&path).unwrap();
        let whole = std::fs::read(&path).unwrap();
        for length in 0..whole.len() {
            std::fs::write(&path, &whole[..length]).unwrap();
            assert!(StoredScores::read(&path).is_err(), "{length} of {} bytes were accepted", whole.len());
        }
        for i in 0..whole.len() {
            for flip in [0x01, 0x80, 0xff] {
                let mut broken = whole.clone();
                broken[i] ^= flip;
                std::fs::write(&path, &broken).unwrap();
                let _ = StoredScores::read(&path); // some flips change nothing that matters; none may panic
            }
        }
    }

    #[test]
    fn score_maps_that_inflate_without_end_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bomb.npz");
        let options = SimpleFileOptions::default().compression_method(CompressionMethod::Deflated);
        let mut archive = ZipWriter::new(File::create(&path).unwrap());
        for name in ["classes", "size", "scores"] {
            archive.start_file(format!("{name}.npy"), options).unwrap();
            let zeros = vec![0; 1 << 20];
            (0..if name == "scores" { 300 } else { 1 }).for_each(|_| archive.write_all(&zeros).unwrap());
        }
        archive.finish().unwrap();
        assert!(std::fs::metadata(&path).unwrap().len() < 400_000);
        let message = StoredScores::read(&path).unwrap_err().to_string();
        assert!(
            message.contains("bomb.npz") && message.contains("`scores` has more than 268435456 bytes"),
            "{message}"
        );
        // With larger images allowed, larger scores are too: these fail because they are no array.
        let message = StoredScores::read_within(&path, 1 << 29).unwrap_err().to_string();
        assert!(message.contains("`scores`") && !message.contains("more than"), "{message}");
    }

    #[test]
    fn arrays_whose_header_lies_are_refused() {
        for (descr, shape, bytes) in [
            ("<f2", vec![usize::MAX, 2], 4),
            ("<f2", vec![3, 3, 3], 4),
            ("<O8", vec![1], 8),
            ("<U99999999999999999999", vec![1], 8),
        ] {
            assert!(Array::parse(&encoded(descr, &shape, &vec![0; bytes])).is_err(), "{descr} {shape:?}");
        }
        assert!(Array::parse(b"\x93NUMPY\x02\x00\xff\xff\xff\xff").is_err());
    }
}
