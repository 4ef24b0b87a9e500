//! A label map: one class index per pixel.

use crate::MaskError;

/// The label that evaluation and training ignore.
pub const IGNORE: u8 = 255;

/// One class index per pixel, row-major; 0 is background, 255 is [`IGNORE`].
///
/// Both sides are at least 1 and the number of pixels fits in 32 bits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabelMap {
    width: usize,
    height: usize,
    labels: Vec<u8>,
}

impl LabelMap {
    /// A label map from its rows, top to bottom.
    pub fn new(width: usize, height: usize, labels: Vec<u8>) -> Result<Self, MaskError> {
        let num_pixels = checked_num_pixels(width, height)?;
        if labels.len() != num_pixels {
            let expected = format!("{width}×{height} = {num_pixels}");
            return Err(MaskError::WrongLength { what: "label map", found: labels.len(), expected });
        }
        Ok(LabelMap { width, height, labels })
    }

    /// A map with the same label everywhere.
    pub fn filled(width: usize, height: usize, label: u8) -> Result<Self, MaskError> {
        let num_pixels = checked_num_pixels(width, height)?;
        Ok(LabelMap { width, height, labels: vec![label; num_pixels] })
    }

    /// Pixels per row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Number of rows.
    pub fn height(&self) -> usize {
        self.height
    }

    /// Width and height.
    pub fn size(&self) -> (usize, usize) {
        (self.width, self.height)
    }

    /// All labels, row by row.
    pub fn labels(&self) -> &[u8] {
        &self.labels
    }

    /// The labels themselves, row by row.
    pub fn into_labels(self) -> Vec<u8> {
        self.labels
    }

    /// Number of pixels of each of the 256 labels.
    pub fn histogram(&self) -> [u32; 256] {
        let mut histogram = [0; 256];
        for &label in &self.labels {
            histogram[usize::from(label)] += 1;
        }
        histogram
    }
}

/// `width × height`, if both sides are at least 1 and the product fits in 32 bits.
pub(crate) fn checked_num_pixels(width: usize, height: usize) -> Result<usize, MaskError> {
    let num_pixels = width.checked_mul(height).filter(|&n| n > 0 && u32::try_from(n).is_ok());
    num_pixels.ok_or(MaskError::BadSize { width, height })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_lengths_must_fit() {
        assert!(LabelMap::new(2, 3, vec![0; 6]).is_ok());
        let message = LabelMap::new(2, 3, vec![0; 5]).unwrap_err().to_string();
        assert_eq!(message, "label map: 5 values, expected 2×3 = 6");
        assert!(LabelMap::new(0, 3, vec![]).is_err());
        assert!(LabelMap::new(usize::MAX, 2, vec![]).is_err());
        assert!(LabelMap::filled(1 << 16, 1 << 16, 0).is_err());
    }
}
