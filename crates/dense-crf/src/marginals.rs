//! The result of inference, and the layouts of class scores in arrays.

/// Layout of a score map of several classes in one slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// `classes × height × width`: one plane per class, as in pydensecrf and most networks.
    ClassMajor,
    /// `height × width × classes`: the scores of a pixel are adjacent.
    PixelMajor,
}

impl Layout {
    pub(crate) fn index(self, num_classes: usize, num_pixels: usize, class: usize, pixel: usize) -> usize {
        match self {
            Self::ClassMajor => class * num_pixels + pixel,
            Self::PixelMajor => pixel * num_classes + class,
        }
    }
}

/// The probability of each class at each pixel, non-negative and summing to 1 per pixel.
#[derive(Debug, Clone, PartialEq)]
pub struct Marginals {
    width: usize,
    height: usize,
    num_classes: usize,
    pixel_major: Vec<f32>,
}

impl Marginals {
    pub(crate) fn new(width: usize, height: usize, num_classes: usize, pixel_major: Vec<f32>) -> Self {
        Self { width, height, num_classes, pixel_major }
    }

    /// Image width in pixels.
    #[must_use]
    pub fn width(&self) -> usize {
        self.width
    }

    /// Image height in pixels.
    #[must_use]
    pub fn height(&self) -> usize {
        self.height
    }

    /// Number of classes, including absent ones.
    #[must_use]
    pub fn num_classes(&self) -> usize {
        self.num_classes
    }

    /// The marginals of a pixel, one per class.
    ///
    /// # Panics
    /// If the pixel lies outside the image.
    #[must_use]
    pub fn at(&self, x: usize, y: usize) -> &[f32] {
        assert!(x < self.width, "column {x} of an image {} pixels wide", self.width);
        &self.pixel_major[(y * self.width + x) * self.num_classes..][..self.num_classes]
    }

    /// All marginals, `height × width × classes`.
    #[must_use]
    pub fn as_pixel_major(&self) -> &[f32] {
        &self.pixel_major
    }

    /// All marginals, `height × width × classes`, without a copy.
    #[must_use]
    pub fn into_pixel_major(self) -> Vec<f32> {
        self.pixel_major
    }

    /// All marginals, `classes × height × width`.
    #[must_use]
    pub fn to_class_major(&self) -> Vec<f32> {
        let mut planes = Vec::with_capacity(self.pixel_major.len());
        for class in 0..self.num_classes {
            planes.extend(self.pixel_major.iter().skip(class).step_by(self.num_classes));
        }
        planes
    }

    /// The most probable class of each pixel, row-major; the lower class wins ties.
    #[must_use]
    pub fn arg_max(&self) -> Vec<u16> {
        self.pixel_major.chunks_exact(self.num_classes).map(|row| arg_max(row) as u16).collect()
    }
}

/// The index of the first largest value.
pub(crate) fn arg_max(values: &[f32]) -> usize {
    let mut best = 0;
    for (i, value) in values.iter().enumerate() {
        if *value > values[best] {
            best = i;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_agree() {
        let marginals = Marginals::new(2, 1, 3, vec![0.1, 0.2, 0.7, 0.5, 0.5, 0.0]);
        assert_eq!(marginals.to_class_major(), [0.1, 0.5, 0.2, 0.5, 0.7, 0.0]);
        assert_eq!(marginals.at(1, 0), [0.5, 0.5, 0.0]);
        assert_eq!(marginals.arg_max(), [2, 0]);
    }
}
