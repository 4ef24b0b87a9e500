//! Pixel positions in feature space, in units of the kernel's standard deviations: from coordinates, from an 8-bit
//! image or from the caller's features, with an optional linear map.
//!
//! Features are produced block by block when the lattice is built and are never stored.

use std::ops::Range;

use crate::Error;

/// How many pixels are embedded at a time; one AVX register of `f32`.
pub(crate) const LANES: usize = 8;

/// The largest number of feature dimensions.
pub(crate) const MAX_DIMENSION: usize = 15;

/// One feature of a block of pixels.
pub(crate) type Lane = [f32; LANES];

pub(crate) struct Features<'a> {
    source: Source<'a>,
    dimension: usize,
    /// `dimension × dimension`, row-major; maps features of the source to those of the kernel.
    map: Option<Vec<f32>>,
}

enum Source<'a> {
    /// Column and row, divided by their standard deviations.
    Position { x: Vec<f32>, y: Vec<f32> },
    /// As above, and each 8-bit channel through a table of `value / sigma`.
    PositionAndColor { x: Vec<f32>, y: Vec<f32>, image: &'a [u8], tables: Vec<[f32; 256]> },
    /// `dimension × num_pixels` values, feature-major.
    Given { values: &'a [f32] },
}

impl<'a> Features<'a> {
    pub(crate) fn position(width: usize, height: usize, sigma_xy: [f32; 2]) -> Result<Self, Error> {
        let (x, y) = scaled_axes(width, height, sigma_xy)?;
        Ok(Self { source: Source::Position { x, y }, dimension: 2, map: None })
    }

    pub(crate) fn position_and_color(
        width: usize,
        height: usize,
        sigma_xy: [f32; 2],
        image: &'a [u8],
        sigma_color: &[f32],
    ) -> Result<Self, Error> {
        let dimension = 2 + sigma_color.len();
        check_dimension(dimension)?;
        if image.len() != width * height * sigma_color.len() {
            return Err(Error::Length {
                what: "image",
                got: image.len(),
                expected: width * height * sigma_color.len(),
                shape: "height × width × channels, one channel for each sigma_color",
            });
        }
        let (x, y) = scaled_axes(width, height, sigma_xy)?;
        let mut tables = Vec::with_capacity(sigma_color.len());
        for &sigma in sigma_color {
            check_sigma("sigma_color", sigma)?;
            tables.push(std::array::from_fn(|value| value as f32 / sigma));
        }
        Ok(Self { source: Source::PositionAndColor { x, y, image, tables }, dimension, map: None })
    }

    pub(crate) fn given(num_pixels: usize, values: &'a [f32], dimension: usize) -> Result<Self, Error> {
        check_dimension(dimension)?;
        if values.len() != dimension * num_pixels {
            return Err(Error::Length {
                what: "features",
                got: values.len(),
                expected: dimension * num_pixels,
                shape: "features × height × width",
            });
        }
        if let Some(index) = values.iter().position(|value| !value.is_finite()) {
            return Err(Error::NotFinite { what: "features", index, value: values[index] });
        }
        Ok(Self { source: Source::Given { values }, dimension, map: None })
    }

    /// Applies a linear map (`dimension × dimension`, row-major) to the features.
    pub(crate) fn mapped(self, map: Vec<f32>) -> Self {
        Self { map: Some(map), ..self }
    }

    pub(crate) fn dimension(&self) -> usize {
        self.dimension
    }

    /// An interval that holds every value of each feature.
    pub(crate) fn bounds(&self) -> Vec<[f32; 2]> {
        let last = |axis: &[f32]| [0.0, axis[axis.len() - 1]];
        let bounds: Vec<[f32; 2]> = match &self.source {
            Source::Position { x, y } => vec![last(x), last(y)],
            Source::PositionAndColor { x, y, tables, .. } => {
                [last(x), last(y)].into_iter().chain(tables.iter().map(|table| last(table))).collect()
            }
            Source::Given { values } => values
                .chunks_exact(values.len() / self.dimension)
                .map(|feature| {
                    feature
                        .iter()
                        .fold([f32::INFINITY, f32::NEG_INFINITY], |b, &v| [b[0].min(v), b[1].max(v)])
                })
                .collect(),
        };
        let Some(map) = &self.map else { return bounds };
        map.chunks_exact(self.dimension)
            .map(|row| {
                row.iter().zip(&bounds).fold([0.0, 0.0], |sum, (&factor, bound)| {
                    let (a, b) = (factor * bound[0], factor * bound[1]);
                    [sum[0] + a.min(b), sum[1] + a.max(b)]
                })
            })
            .collect()
    }

    /// Writes the features of up to [`LANES`] neighbouring pixels of one image row. Lanes beyond the range repeat its last
    /// pixel.
    pub(crate) fn fill(&self, pixels: Range<usize>, block: &mut [Lane; MAX_DIMENSION]) {
        let last = pixels.len() - 1;
        match &self.source {
            Source::Position { x, y } => fill_position(x, y, &pixels, block),
            Source::PositionAndColor { x, y, image, tables } => {
                fill_position(x, y, &pixels, block);
                let num_channels = tables.len();
                let values = &image[pixels.start * num_channels..pixels.end * num_channels];
                for (channel, table) in tables.iter().enumerate() {
                    block[2 + channel] = std::array::from_fn(|lane| {
                        table[values[lane.min(last) * num_channels + channel] as usize]
                    });
                }
            }
            Source::Given { values } => {
                let features = values.chunks_exact(values.len() / self.dimension);
                for (out, feature) in block.iter_mut().zip(features) {
                    let feature = &feature[pixels.clone()];
                    *out = std::array::from_fn(|lane| feature[lane.min(last)]);
                }
            }
        }
        if let Some(map) = &self.map {
            let source = *block;
            for (out, row) in block.iter_mut().zip(map.chunks_exact(self.dimension)) {
                *out = [0.0; LANES];
                for (factor, feature) in row.iter().zip(&source) {
                    for lane in 0..LANES {
                        out[lane] += factor * feature[lane];
                    }
                }
            }
        }
    }
}

fn fill_position(x: &[f32], y: &[f32], pixels: &Range<usize>, block: &mut [Lane; MAX_DIMENSION]) {
    let (row, column) = (pixels.start / x.len(), pixels.start % x.len());
    let columns = &x[column..column + pixels.len()];
    block[0] = std::array::from_fn(|lane| columns[lane.min(columns.len() - 1)]);
    block[1] = [y[row]; LANES];
}

fn scaled_axes(width: usize, height: usize, sigma_xy: [f32; 2]) -> Result<(Vec<f32>, Vec<f32>), Error> {
    sigma_xy.into_iter().try_for_each(|sigma| check_sigma("sigma_xy", sigma))?;
    let axis = |length: usize, sigma: f32| (0..length).map(|i| i as f32 / sigma).collect();
    Ok((axis(width, sigma_xy[0]), axis(height, sigma_xy[1])))
}

fn check_sigma(what: &'static str, value: f32) -> Result<(), Error> {
    if value.is_finite() && value > 0.0 { Ok(()) } else { Err(Error::NotPositive { what, value }) }
}

fn check_dimension(dimension: usize) -> Result<(), Error> {
    match dimension {
        0 => Err(Error::Length {
            what: "features",
            got: 0,
            expected: 1,
            shape: "at least one feature per pixel",
        }),
        1..=MAX_DIMENSION => Ok(()),
        got => Err(Error::TooLarge { what: "the number of features", got, limit: MAX_DIMENSION }),
    }
}
