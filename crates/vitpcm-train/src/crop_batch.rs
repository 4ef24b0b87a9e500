//! What a verification step takes: crops, and for each grid on which logits are compared what they should be. Batches
//! are put together on a thread of their own while the step before is computed.

use std::sync::mpsc::{Receiver, sync_channel};

use candle_core::{Device, Tensor};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use vitpcm_data::{Crop, CropLoader, LoadedCrop};
use vitpcm_masks::IGNORE;
use vitpcm_masks::resampling::{Alignment, nearest_indices};
use vitpcm_nets::Normalisation;
use vitpcm_nets::deeplab::OUTPUT_STRIDE;
use vitpcm_ops::Uploader;

use crate::batch_stream::StepImages;
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
    /// What the logits of each of [`SCALES`] should be; one for all where pixels are compared.
    targets: Vec<CropTarget>,
    /// The images' names, for messages.
    pub names: Vec<String>,
}

/// What logits should be.
#[derive(Debug, Clone)]
pub struct CropTarget {
    /// Labels that the logits are resized to, 255 for "ignore", `[B, N, N]`, u8.
    pub labels: Tensor,
    /// How many of them are classes.
    pub num_labelled: usize,
}

/// Where logits are compared with labels.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CompareAt {
    /// At the points of the network's grid, of every scale (DeepLabV2).
    #[default]
    Points,
    /// At every pixel of the crop, to which the logits are resized (DeepLabV3): what is thinner than the grid counts.
    Pixels,
}

/// At what scales the network sees a crop.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SeenAt {
    /// At [`SCALES`], and the largest of their logits (DeepLabV2).
    #[default]
    ThreeScales,
    /// As it is: 55 % of the products.
    OneScale,
}

impl SeenAt {
    /// The scales.
    pub fn scales(self) -> &'static [f64] {
        match self {
            SeenAt::ThreeScales => &SCALES,
            SeenAt::OneScale => &SCALES[..1],
        }
    }
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
        compare_at: CompareAt,
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
        let target = |labels: Vec<u8>, len: usize| {
            let num_labelled = labels.iter().filter(|&&label| label != IGNORE).count();
            Ok(CropTarget { labels: Tensor::from_vec(labels, (count, len, len), device)?, num_labelled })
        };
        let targets: Result<Vec<CropTarget>> = match compare_at {
            CompareAt::Pixels => {
                let labels = crops.iter().flat_map(|(_, crop)| crop.labels.iter().copied());
                [target(labels.collect(), side)].into_iter().collect()
            }
            CompareAt::Points => {
                let at_scale = |scale: f64| {
                    let points = nearest_indices(side, cells_at(side, scale), Alignment::AlignCorners);
                    let under = |crop: &Crop| -> Vec<u8> {
                        let at =
                            |y: &usize| points.iter().map(|x| crop.labels[y * side + x]).collect::<Vec<_>>();
                        points.iter().flat_map(at).collect()
                    };
                    target(crops.iter().flat_map(|(_, crop)| under(crop)).collect(), points.len())
                };
                SCALES.into_iter().map(at_scale).collect()
            }
        };
        Ok(Self {
            pixels: Tensor::from_vec(pixels, (count, side, side, 3), device)?,
            targets: targets?,
            names: crops.iter().map(|(name, _)| name.clone()).collect(),
        })
    }

    /// What the logits of a scale should be, by its place in [`SCALES`].
    pub fn target(&self, scale: usize) -> &CropTarget {
        &self.targets[scale.min(self.targets.len() - 1)]
    }

    /// The same batch in the device's memory.
    pub fn uploaded(self, uploader: &mut Uploader) -> Result<Self> {
        let pixels = uploader.upload(&self.pixels)?;
        let target = |CropTarget { labels, num_labelled }: CropTarget| {
            Ok(CropTarget { labels: uploader.upload(&labels)?, num_labelled })
        };
        Ok(Self {
            pixels,
            targets: self.targets.into_iter().map(target).collect::<Result<_>>()?,
            names: self.names,
        })
    }
}

/// How crops become batches.
#[derive(Clone)]
pub(crate) struct CropBatchMaker {
    pub(crate) loader: CropLoader,
    pub(crate) batch: usize,
    pub(crate) side: usize,
    pub(crate) normalisation: Normalisation,
    pub(crate) compare_at: CompareAt,
    pub(crate) device: Device,
}

impl CropBatchMaker {
    /// Images of a step.
    fn step_places(&self) -> usize {
        self.batch.min(self.loader.images().len())
    }

    /// Images of an epoch. Its last images do not form a step where they are fewer than a batch: another epoch has
    /// others last.
    pub(crate) fn epoch_places(&self) -> usize {
        (self.loader.images().len() / self.batch).max(1) * self.step_places()
    }

    fn step(
        &self,
        stream: &mut impl Iterator<Item = LoadedCrop>,
        uploader: &mut Uploader,
    ) -> Result<StepImages<CropBatch>> {
        let mut step = StepImages::new(self.step_places());
        let mut crops = Vec::with_capacity(step.num_places);
        for loaded in stream.by_ref().take(step.num_places) {
            match loaded {
                LoadedCrop::Crop { index, crop } => {
                    crops.push((self.loader.images()[index].name.clone(), crop));
                }
                LoadedCrop::Broken { reason, .. } => step.broken.push(reason),
            }
        }
        if !crops.is_empty() {
            let Self { side, normalisation, compare_at, .. } = self;
            let batch = CropBatch::new(&crops, *side, normalisation, *compare_at, &Device::Cpu)?;
            step.names = batch.names.clone();
            step.batches.push(batch.uploaded(uploader)?);
        }
        Ok(step)
    }

    /// The steps of an epoch from position `start` on. The thread ends when the stream is dropped.
    pub(crate) fn epoch(&self, epoch: u64, start: usize) -> Receiver<Result<StepImages<CropBatch>>> {
        let (sender, receiver) = sync_channel(AHEAD);
        let maker = self.clone();
        std::thread::spawn(move || {
            let num_steps = maker.epoch_places().saturating_sub(start).div_ceil(maker.step_places());
            let mut stream = maker.loader.epoch(epoch, start);
            let mut uploader = Uploader::new(&maker.device);
            for _ in 0..num_steps {
                if sender.send(maker.step(&mut stream, &mut uploader)).is_err() {
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
        let target = |compare_at: CompareAt, scale: usize| {
            let batch = CropBatch::new(&crops, 17, &Normalisation::HALF, compare_at, &Device::Cpu).unwrap();
            let target = batch.target(scale);
            (target.labels.get(0).unwrap().to_vec2::<u8>().unwrap(), target.num_labelled)
        };
        assert_eq!(target(CompareAt::Points, 0), (vec![vec![0, 0, 0], vec![0, 0, 1], vec![0, 0, IGNORE]], 8));
        assert_eq!(target(CompareAt::Points, 2), (vec![vec![0, 0], vec![0, IGNORE]], 3));
        for scale in 0..SCALES.len() {
            let (labels, num_labelled) = target(CompareAt::Pixels, scale);
            assert_eq!((labels.len(), labels[8][16], num_labelled), (17, 1, 17 * 17 - 1));
        }
    }
}
