//! What a verification step takes: crops, and for each grid on which logits are compared what they should be. Batches
//! are put together on a thread of their own while the step before is computed.

use std::sync::mpsc::{Receiver, sync_channel};

use candle_core::{Device, Tensor};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use vitpcm_data::{Crop, CropLoader, LoadedCrop};
use vitpcm_masks::IGNORE;
use vitpcm_masks::resampling::{Alignment, Axis, nearest_indices};
use vitpcm_nets::Normalisation;
use vitpcm_nets::deeplab::OUTPUT_STRIDE;
use vitpcm_ops::Uploader;

use crate::error::Result;

/// The scales at which the network sees a crop: DeepLabV2's multi-scale training.
pub const SCALES: [f64; 3] = [1.0, 0.75, 0.5];

/// Batches made ahead of the step that takes them.
const AHEAD: usize = 2;

/// A batch of crops of side `S`.
#[derive(Debug, Clone)]
pub struct CropBatch {
    /// Normalised, `[B, S, S, 3]`.
    pub pixels: Tensor,
    /// For each of [`SCALES`] what the logits should be.
    pub targets: Vec<CropTarget>,
    /// The images' names, for messages.
    pub names: Vec<String>,
}

/// What the logits of a grid should be.
#[derive(Debug, Clone)]
pub struct CropTarget {
    /// The share of each class at each point; they sum to less than one where pixels are not learned from, and to zero
    /// where none is, `[B, G, G, classes]`.
    pub shares: Tensor,
    /// The sum of all shares: how many points are learned from.
    pub num_points: f64,
}

/// What a point of a grid stands for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Labels {
    /// The pixel that lies under it (DeepLabV2).
    #[default]
    Points,
    /// The pixels around it, each as much as it would take from the point if logits were resized to the image: what is
    /// thinner than the grid counts, and a wrong pixel counts little.
    Areas,
}

/// Cells along a side of the grid of a crop seen at a scale.
pub(crate) fn cells_at(side: usize, scale: f64) -> usize {
    ((side - 1) as f64 / OUTPUT_STRIDE as f64 * scale).round() as usize + 1
}

impl CropBatch {
    /// Puts crops of one side together. At least one.
    pub fn new(
        crops: &[(String, Crop)],
        side: usize,
        normalisation: &Normalisation,
        num_classes: usize,
        labels: Labels,
        device: &Device,
    ) -> Result<Self> {
        let (count, len) = (crops.len(), 3 * side * side);
        let mut pixels = vec![0f32; count * len];
        pixels.par_chunks_exact_mut(len).zip(crops).for_each(|(target, (_, crop))| {
            for (target, pixel) in target.chunks_exact_mut(3).zip(crop.pixels.chunks_exact(3)) {
                for channel in 0..3 {
                    target[channel] = normalisation.normalise(channel, pixel[channel]);
                }
            }
        });
        let targets = SCALES.map(|scale| {
            let cells = cells_at(side, scale);
            let len = cells * cells * num_classes;
            let mut shares = vec![0f32; count * len];
            shares.par_chunks_exact_mut(len).zip(crops).for_each(|(shares, (_, crop))| match labels {
                Labels::Points => at_points(&crop.labels, side, cells, shares),
                Labels::Areas => over_areas(&crop.labels, side, cells, shares),
            });
            let num_points = shares
                .par_chunks(len)
                .map(|shares| shares.iter().map(|&share| f64::from(share)).sum::<f64>());
            let num_points = num_points.collect::<Vec<_>>().iter().sum();
            let shares = Tensor::from_vec(shares, (count, cells, cells, num_classes), device)?;
            Ok(CropTarget { shares, num_points })
        });
        Ok(Self {
            pixels: Tensor::from_vec(pixels, (count, side, side, 3), device)?,
            targets: targets.into_iter().collect::<Result<_>>()?,
            names: crops.iter().map(|(name, _)| name.clone()).collect(),
        })
    }

    /// The same batch in the device's memory.
    pub fn uploaded(self, uploader: &mut Uploader) -> Result<Self> {
        let pixels = uploader.upload(&self.pixels)?;
        let target = |CropTarget { shares, num_points }: CropTarget| {
            Ok(CropTarget { shares: uploader.upload(&shares)?, num_points })
        };
        Ok(Self {
            pixels,
            targets: self.targets.into_iter().map(target).collect::<Result<_>>()?,
            names: self.names,
        })
    }
}

/// The pixels under a grid's points, of `side × side` labels. `shares` holds zeros, `[cells, cells, classes]`.
fn at_points(labels: &[u8], side: usize, cells: usize, shares: &mut [f32]) {
    let num_classes = shares.len() / (cells * cells);
    let points = nearest_indices(side, cells, Alignment::AlignCorners);
    let under = points.iter().flat_map(|y| points.iter().map(move |x| labels[y * side + x]));
    for (label, shares) in under.zip(shares.chunks_exact_mut(num_classes)) {
        if label != IGNORE {
            shares[usize::from(label)] = 1.0;
        }
    }
}

/// The pixels around a grid's points: resizing of the grid to the labels, transposed, with a sum of one at every point.
fn over_areas(labels: &[u8], side: usize, cells: usize, shares: &mut [f32]) {
    let num_classes = shares.len() / (cells * cells);
    let axis = Axis::bilinear(cells, side, Alignment::AlignCorners);
    let points_of = |pixel: usize| {
        let (first, weights) = axis.taps(pixel);
        weights.iter().enumerate().map(move |(step, weight)| (first + step, *weight))
    };
    let mut sums = vec![0f32; cells];
    (0..side).flat_map(points_of).for_each(|(point, weight)| sums[point] += weight);
    for (y, row) in labels.chunks_exact(side).enumerate() {
        for (point_y, weight_y) in points_of(y) {
            let weight_y = weight_y / sums[point_y];
            for (x, &label) in row.iter().enumerate().filter(|(_, label)| **label != IGNORE) {
                for (point_x, weight_x) in points_of(x) {
                    let point = point_y * cells + point_x;
                    shares[point * num_classes + usize::from(label)] += weight_y * weight_x / sums[point_x];
                }
            }
        }
    }
}

/// The crops of one step.
pub(crate) struct StepCrops {
    /// In the device's memory; none where no image could be read.
    pub(crate) batch: Option<CropBatch>,
    /// Images that could not be read, and why.
    pub(crate) broken: Vec<String>,
    /// Places of the epoch's order that the step takes.
    pub(crate) num_places: usize,
}

/// How crops become batches.
#[derive(Clone)]
pub(crate) struct CropBatchMaker {
    pub(crate) loader: CropLoader,
    pub(crate) batch: usize,
    pub(crate) side: usize,
    pub(crate) normalisation: Normalisation,
    pub(crate) num_classes: usize,
    pub(crate) labels: Labels,
    pub(crate) device: Device,
}

impl CropBatchMaker {
    /// Steps of an epoch. Its last images do not form a step where they are fewer than a batch: another epoch has
    /// others last.
    pub(crate) fn steps_of_epoch(&self) -> usize {
        (self.loader.images().len() / self.batch).max(1)
    }

    /// The steps of an epoch from position `start` on. The thread ends when the stream is dropped.
    pub(crate) fn epoch(&self, epoch: u64, start: usize) -> Receiver<Result<StepCrops>> {
        let (sender, receiver) = sync_channel(AHEAD);
        let maker = self.clone();
        std::thread::spawn(move || {
            let num_images = maker.loader.images().len();
            let batch = maker.batch.min(num_images);
            let num_steps = (maker.steps_of_epoch() * batch).saturating_sub(start).div_ceil(batch);
            let mut stream = maker.loader.epoch(epoch, start);
            let mut uploader = Uploader::new(&maker.device);
            for _ in 0..num_steps {
                let mut step = StepCrops { batch: None, broken: Vec::new(), num_places: batch };
                let mut crops = Vec::with_capacity(batch);
                for loaded in stream.by_ref().take(batch) {
                    match loaded {
                        LoadedCrop::Crop { index, crop } => {
                            crops.push((maker.loader.images()[index].name.clone(), crop));
                        }
                        LoadedCrop::Broken { reason, .. } => step.broken.push(reason),
                    }
                }
                let step = match crops.is_empty() {
                    true => Ok(step),
                    false => {
                        let CropBatchMaker { side, normalisation, num_classes, labels, .. } = &maker;
                        CropBatch::new(&crops, *side, normalisation, *num_classes, *labels, &Device::Cpu)
                            .and_then(|batch| batch.uploaded(&mut uploader))
                            .map(|batch| StepCrops { batch: Some(batch), ..step })
                    }
                };
                if sender.send(step).is_err() {
                    return;
                }
            }
        });
        receiver
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grids_are_those_of_the_released_training() {
        // 321, 241 and 161 pixels in the released prototxt; 41, 31 and 21 points.
        assert_eq!(SCALES.map(|scale| cells_at(321, scale)), [41, 31, 21]);
    }

    #[test]
    fn targets_are_the_labels_at_the_grids_points() {
        let mut labels = vec![0u8; 17 * 17];
        labels[8 * 17 + 16] = 1; // row 1, column 2 of the 3 × 3 grid at scale 1
        labels[16 * 17 + 16] = IGNORE;
        let crop = Crop { pixels: vec![0.0; 3 * 17 * 17], labels };
        let crops = [("a".to_owned(), crop)];
        let target = |labels: Labels| {
            let batch = CropBatch::new(&crops, 17, &Normalisation::HALF, 2, labels, &Device::Cpu).unwrap();
            let target = &batch.targets[0];
            (target.shares.get(0).unwrap().to_vec3::<f32>().unwrap(), target.num_points)
        };
        let (shares, num_points) = target(Labels::Points);
        assert_eq!(num_points, 8.0);
        assert_eq!((shares[0][0].as_slice(), shares[1][2].as_slice()), (&[1.0, 0.0][..], &[0.0, 1.0][..]));
        assert_eq!(shares[2][2], [0.0, 0.0]);

        // Around a point at the edge lie 8 pixels on one side: weights 1, 7/8, … 1/8 along it, of which the pixel under the
        // point has 1 of 4.5; along the other axis, 1 of 8.
        let (shares, num_points) = target(Labels::Areas);
        assert!(shares[0][0][0] > 0.9999 && (shares[1][2][1] - 1.0 / 36.0).abs() < 1e-6, "{shares:?}");
        assert!((shares[2][2].iter().sum::<f32>() - (1.0 - 1.0 / 4.5f32.powi(2))).abs() < 1e-6);
        assert!((num_points - (9.0 - 1.0 / 4.5f64.powi(2))).abs() < 1e-5);
    }
}
