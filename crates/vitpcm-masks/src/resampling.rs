//! The project's only resampling code, in the two common conventions: bilinear for scores, nearest for labels.
//! Resampling is separable, so everything is defined for one axis of `from` samples that becomes one of `to` samples.

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

/// Where samples are located.
///
/// *Half-pixel*: a sample is a pixel's centre; the outer edges of both grids coincide. *Align-corners*: the first and
/// last samples of both grids coincide, which shifts patch centres by up to half a patch (`official`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Alignment {
    /// Pixel centres at i + ½; antialiased (with a wider triangle) when shrinking.
    #[default]
    HalfPixel,
    /// End points coincide; never antialiased.
    AlignCorners,
}

impl Alignment {
    /// `half-pixel` or `align-corners`.
    pub fn name(self) -> &'static str {
        match self {
            Alignment::HalfPixel => "half-pixel",
            Alignment::AlignCorners => "align-corners",
        }
    }

    /// The convention with this name.
    pub fn from_name(name: &str) -> Option<Alignment> {
        [Alignment::HalfPixel, Alignment::AlignCorners].into_iter().find(|alignment| alignment.name() == name)
    }
}

/// For each output sample of one axis: its first input sample and the weights from there on.
///
/// All outputs have the same number of weights (`taps`); the weights of one output sum to 1.
#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    starts: Vec<usize>,
    weights: Vec<f32>,
    taps: usize,
}

impl Axis {
    /// Bilinear weights from `from` samples to `to` samples, both at least 1.
    pub fn bilinear(from: usize, to: usize, alignment: Alignment) -> Axis {
        assert!(from > 0 && to > 0, "an axis has at least one sample");
        match alignment {
            Alignment::HalfPixel => Self::half_pixel(from, to),
            Alignment::AlignCorners => Self::align_corners(from, to),
        }
    }

    /// A triangle around the output's centre, as wide as the input's pixels when enlarging and as the output's when
    /// shrinking.
    fn half_pixel(from: usize, to: usize) -> Axis {
        let scale = from as f64 / to as f64;
        let support = scale.max(1.0);
        let rows = (0..to).map(|i| {
            let centre = (i as f64 + 0.5) * scale;
            let first = ((centre - support + 0.5).floor().max(0.0)) as usize;
            let last = (((centre + support + 0.5).floor()) as usize).clamp(first + 1, from);
            let weights =
                (first..last).map(|j| (1.0 - ((j as f64 + 0.5 - centre) / support).abs()).max(0.0)).collect();
            (first, weights)
        });
        Self::from_rows(from, rows)
    }

    fn align_corners(from: usize, to: usize) -> Axis {
        let scale = if to > 1 { (from - 1) as f64 / (to - 1) as f64 } else { 0.0 };
        let rows = (0..to).map(|i| {
            let position = i as f64 * scale;
            let first = (position.floor() as usize).min(from - 1);
            let fraction = position - first as f64;
            let weights = if first + 1 < from { vec![1.0 - fraction, fraction] } else { vec![1.0] };
            (first, weights)
        });
        Self::from_rows(from, rows)
    }

    /// Pads all rows to the same number of weights and normalises their sums to 1.
    fn from_rows(from: usize, rows: impl Iterator<Item = (usize, Vec<f64>)>) -> Axis {
        let rows: Vec<(usize, Vec<f64>)> = rows.collect();
        let taps = rows.iter().map(|(_, weights)| weights.len()).max().unwrap_or(1);
        let mut axis = Axis { starts: Vec::new(), weights: Vec::new(), taps };
        for (first, weights) in rows {
            let start = first.min(from - taps);
            let sum: f64 = weights.iter().sum();
            let mut padded = vec![0.0f32; taps];
            for (i, weight) in weights.into_iter().enumerate() {
                padded[first - start + i] = (weight / sum) as f32;
            }
            axis.starts.push(start);
            axis.weights.extend(padded);
        }
        axis
    }

    /// Number of output samples.
    pub fn num_outputs(&self) -> usize {
        self.starts.len()
    }

    /// The axis restricted to some output samples.
    pub fn outputs(&self, range: std::ops::Range<usize>) -> Axis {
        Axis {
            starts: self.starts[range.clone()].to_vec(),
            weights: self.weights[range.start * self.taps..range.end * self.taps].to_vec(),
            taps: self.taps,
        }
    }

    /// First input sample and weights of an output sample.
    pub fn taps(&self, output: usize) -> (usize, &[f32]) {
        (self.starts[output], &self.weights[output * self.taps..][..self.taps])
    }

    /// Resamples one row of values.
    pub fn apply(&self, values: &[f32], outputs: &mut [f32]) {
        if self.taps == 2 {
            // Enlarging, the common case, without the inner loop.
            for ((output, &start), weights) in
                outputs.iter_mut().zip(&self.starts).zip(self.weights.chunks_exact(2))
            {
                let pair = &values[start..start + 2];
                *output = pair[0] * weights[0] + pair[1] * weights[1];
            }
            return;
        }
        for (i, output) in outputs.iter_mut().enumerate() {
            let (start, weights) = self.taps(i);
            *output = values[start..start + self.taps].iter().zip(weights).map(|(v, w)| v * w).sum();
        }
    }

    /// Output sample `output` of an axis whose samples are rows of `row_length` values.
    pub fn combine_rows(&self, output: usize, rows: &[f32], row_length: usize, combined: &mut [f32]) {
        let (start, weights) = self.taps(output);
        combined.fill(0.0);
        for (row, &weight) in rows[start * row_length..].chunks_exact(row_length).zip(weights) {
            if weight != 0.0 {
                for (sum, value) in combined.iter_mut().zip(row) {
                    *sum += weight * value;
                }
            }
        }
    }
}

/// A rectangle of samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// First column.
    pub x: usize,
    /// First row.
    pub y: usize,
    /// Number of columns.
    pub width: usize,
    /// Number of rows.
    pub height: usize,
}

impl Part {
    /// All of a picture of this size (width, height).
    pub fn whole(size: (usize, usize)) -> Part {
        Part { x: 0, y: 0, width: size.0, height: size.1 }
    }
}

/// Resamples one plane of `from` = (width, height) values, row-major, bilinearly to `to`.
pub fn resize_plane(
    plane: &[f32],
    from: (usize, usize),
    to: (usize, usize),
    alignment: Alignment,
) -> Vec<f32> {
    assert_eq!(plane.len(), from.0 * from.1, "width × height values");
    let rows = Axis::bilinear(from.1, to.1, alignment);
    let columns = Axis::bilinear(from.0, to.0, alignment);
    let mut combined = vec![0.0; from.0];
    let mut resized = vec![0.0; to.0 * to.1];
    for (y, output) in resized.chunks_exact_mut(to.0).enumerate() {
        rows.combine_rows(y, plane, from.0, &mut combined);
        columns.apply(&combined, output);
    }
    resized
}

/// A part of an 8-bit RGB picture (interleaved, row-major) resampled to the size `to`, as three planes (red, green,
/// blue) of 0..=255. Neither the whole result nor a float copy of the picture is allocated.
pub fn resize_rgb8(
    rgb: &[u8],
    from: (usize, usize),
    to: (usize, usize),
    part: Part,
    alignment: Alignment,
) -> Vec<f32> {
    assert_eq!(rgb.len(), 3 * from.0 * from.1, "three values a pixel");
    let rows = Axis::bilinear(from.1, to.1, alignment);
    let columns = Axis::bilinear(from.0, to.0, alignment).outputs(part.x..part.x + part.width);
    let mut planes = vec![0.0; 3 * part.width * part.height];
    let (red, rest) = planes.split_at_mut(part.width * part.height);
    let (green, blue) = rest.split_at_mut(part.width * part.height);
    let lines = red.par_chunks_exact_mut(part.width).zip(green.par_chunks_exact_mut(part.width));
    let lines = lines.zip(blue.par_chunks_exact_mut(part.width)).enumerate();
    lines.for_each_init(
        || vec![vec![0.0f32; from.0]; 3],
        |combined, (y, ((red, green), blue))| {
            combined.iter_mut().for_each(|channel| channel.fill(0.0));
            let [reds, greens, blues] = &mut combined[..] else { unreachable!("three channels") };
            let (start, weights) = rows.taps(part.y + y);
            for (row, &weight) in rgb[start * 3 * from.0..].chunks_exact(3 * from.0).zip(weights) {
                for (x, pixel) in row.chunks_exact(3).enumerate() {
                    reds[x] += weight * f32::from(pixel[0]);
                    greens[x] += weight * f32::from(pixel[1]);
                    blues[x] += weight * f32::from(pixel[2]);
                }
            }
            columns.apply(reds, red);
            columns.apply(greens, green);
            columns.apply(blues, blue);
        },
    );
    planes
}

/// For every output sample of one axis, the nearest input sample.
pub fn nearest_indices(from: usize, to: usize, alignment: Alignment) -> Vec<usize> {
    assert!(from > 0 && to > 0, "an axis has at least one sample");
    let index = |i: usize| match alignment {
        // floor((i + ½) · from / to), in integers so that rounding cannot matter.
        Alignment::HalfPixel => (2 * i + 1) * from / (2 * to),
        // round(i · (from − 1) / (to − 1)), halves up.
        Alignment::AlignCorners if to > 1 => (2 * i * (from - 1) + (to - 1)) / (2 * (to - 1)),
        Alignment::AlignCorners => 0,
    };
    (0..to).map(index).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(from: usize, to: usize, alignment: Alignment, values: &[f32], expected: &[f32]) {
        assert_eq!((values.len(), expected.len()), (from, to));
        let mut outputs = vec![f32::NAN; to];
        Axis::bilinear(from, to, alignment).apply(values, &mut outputs);
        for (output, expected) in outputs.iter().zip(expected) {
            assert!((output - expected).abs() < 1e-6, "{outputs:?} instead of {expected:?}");
        }
    }

    #[test]
    fn enlarging_twice_by_hand() {
        use Alignment::{AlignCorners, HalfPixel};
        check(2, 4, HalfPixel, &[0.0, 4.0], &[0.0, 1.0, 3.0, 4.0]);
        check(2, 4, AlignCorners, &[0.0, 3.0], &[0.0, 1.0, 2.0, 3.0]);
    }

    #[test]
    fn shrinking_is_antialiased_only_in_half_pixel() {
        use Alignment::{AlignCorners, HalfPixel};
        // Triangle of half-width 2 around 1 and 3: weights (3, 3, 1)/7 and (1, 3, 3)/7.
        check(4, 2, HalfPixel, &[7.0, 0.0, 0.0, 7.0], &[3.0, 3.0]);
        check(4, 2, AlignCorners, &[7.0, 0.0, 0.0, 5.0], &[7.0, 5.0]);
    }

    #[test]
    fn the_same_size_changes_nothing_and_single_samples_spread() {
        for alignment in [Alignment::HalfPixel, Alignment::AlignCorners] {
            check(3, 3, alignment, &[1.0, 5.0, 2.0], &[1.0, 5.0, 2.0]);
            check(1, 3, alignment, &[4.0], &[4.0, 4.0, 4.0]);
        }
        check(3, 1, Alignment::HalfPixel, &[3.0, 3.0, 3.0], &[3.0]);
        check(3, 1, Alignment::AlignCorners, &[3.0, 9.0, 9.0], &[3.0]);
    }

    #[test]
    fn weights_sum_to_one_for_all_small_sizes() {
        for alignment in [Alignment::HalfPixel, Alignment::AlignCorners] {
            for (from, to) in (1..20).flat_map(|from| (1..20).map(move |to| (from, to))) {
                let axis = Axis::bilinear(from, to, alignment);
                for i in 0..to {
                    let (start, weights) = axis.taps(i);
                    assert!(start + weights.len() <= from);
                    assert!((weights.iter().sum::<f32>() - 1.0).abs() < 1e-6);
                }
            }
        }
    }

    #[test]
    fn a_picture_becomes_three_planes() {
        // Two pixels, (0, 10, 20) and (4, 10, 60), made four wide: by hand as above.
        let picture = [0, 10, 20, 4, 10, 60];
        let whole = Part::whole((4, 1));
        let planes = resize_rgb8(&picture, (2, 1), (4, 1), whole, Alignment::HalfPixel);
        assert_eq!(planes, [0.0, 1.0, 3.0, 4.0, 10.0, 10.0, 10.0, 10.0, 20.0, 30.0, 50.0, 60.0]);
        let part = Part { x: 1, width: 2, ..whole };
        let planes = resize_rgb8(&picture, (2, 1), (4, 1), part, Alignment::HalfPixel);
        assert_eq!(planes, [1.0, 3.0, 10.0, 10.0, 30.0, 50.0]);
    }

    #[test]
    fn nearest_takes_the_pixel_whose_area_holds_the_centre() {
        assert_eq!(nearest_indices(2, 4, Alignment::HalfPixel), [0, 0, 1, 1]);
        assert_eq!(nearest_indices(4, 2, Alignment::HalfPixel), [1, 3]);
        assert_eq!(nearest_indices(3, 5, Alignment::AlignCorners), [0, 1, 1, 2, 2]);
        assert_eq!(nearest_indices(5, 1, Alignment::AlignCorners), [0]);
    }
}
