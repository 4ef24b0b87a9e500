//! From image to scores: resize, normalise, run the network, average over scales and symmetries, merge tiles. Masks and
//! refinement are left to `segmentation` and `refinement`.

use crate::average::Average;
use crate::deeplab_scorer::DeepLabScorer;
use crate::grid_plan::{GridPlan, blend_weight};
use crate::refinement::NEVER;
use crate::{ImageFeatures, RawScores, SegmentError, Segmentation, TagMode};
use candle_core::{Device, Tensor};
use image::RgbImage;
use rayon::prelude::*;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use vitpcm_masks::resampling::{Alignment, Part, resize_rgb8};
use vitpcm_masks::{Classes, ScoreMap, Symmetry};
use vitpcm_nets::{
    DeepLabModel, GridAlignment, Initialisation, Localisation, Mode, Model, ModelInfo, Normalisation,
    PcmConfig, PcmNetwork, PcmOutput, Precision, TagEvidence, Variant, WeightFile,
};

/// When to cut a large image into overlapping tiles instead of shrinking it. Tiling bounds memory and keeps small
/// objects, but can miss objects larger than a tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tiling {
    /// Images with a side longer than this, in pixels, are tiled.
    pub above: usize,
    /// Tile side, in image pixels.
    pub tile_side: usize,
}

impl Default for Tiling {
    fn default() -> Self {
        Tiling { above: 8192, tile_side: 2048 }
    }
}

/// How a model is run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SegmenterOptions {
    /// Side in pixels to which images are resized, rounded to whole patches; by default the model's own.
    pub size: Option<usize>,
    /// Scales to average over; empty means scale 1 only.
    pub scales: Vec<f64>,
    /// Whether to average over the image and its mirror image, at twice the cost.
    pub flip: bool,
    /// Treatment of large images.
    pub tiling: Tiling,
    /// Compute precision.
    pub precision: Precision,
}

impl SegmenterOptions {
    /// The symmetries to average over.
    pub(crate) fn symmetries(&self) -> &'static [Symmetry] {
        &Symmetry::ALL[..if self.flip { 2 } else { 1 }]
    }
}

/// A loaded model, ready to segment images.
#[derive(Debug)]
pub struct Segmenter {
    classes: Classes,
    device: Device,
    options: SegmenterOptions,
    network: Network,
}

/// The kinds of networks.
#[derive(Debug)]
enum Network {
    /// A network trained from tags.
    Pcm(Box<PcmScorer>),
    /// A network trained on masks.
    DeepLab(Box<DeepLabScorer>),
}

/// The supervision that a model was trained with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Supervision {
    /// Image tags: masks improve with given or predicted tags.
    Tags,
    /// Masks: no tags needed.
    Masks,
}

#[derive(Debug)]
struct PcmScorer {
    info: ModelInfo,
    network: PcmNetwork,
    alignment: Alignment,
    /// Grid cells per side, for each scale.
    cells_by_scale: Vec<usize>,
}

impl Segmenter {
    /// Opens a model file, trained from tags or from masks.
    pub fn open(path: &Path, device: &Device, options: SegmenterOptions) -> Result<Self, SegmentError> {
        let file = WeightFile::open(path)?;
        match DeepLabModel::is_in(&file) {
            true => Self::of_deeplab(&DeepLabModel::from_weight_file(&file, device)?, device, options),
            false => Self::new(&Model::from_weight_file(&file, device)?, device, options),
        }
    }

    /// Takes the embedded model, which knows the 20 classes of PASCAL VOC. In a build without it
    /// ([`HAS_EMBEDDED_MODEL`](crate::HAS_EMBEDDED_MODEL)) the error is [`SegmentError::NoEmbeddedModel`].
    pub fn embedded(device: &Device, options: SegmenterOptions) -> Result<Self, SegmentError> {
        Self::new(&crate::embedded_model(device)?, device, options)
    }

    /// Takes a verification network that is loaded already.
    pub fn of_deeplab(
        model: &DeepLabModel,
        device: &Device,
        options: SegmenterOptions,
    ) -> Result<Self, SegmentError> {
        let classes = Classes::from_names(model.info.classes.iter().cloned())?;
        let network = Network::DeepLab(Box::new(DeepLabScorer::new(model, &options)?));
        Ok(Segmenter { classes, device: device.clone(), options, network })
    }

    /// Wraps a loaded model.
    pub fn new(model: &Model, device: &Device, options: SegmenterOptions) -> Result<Self, SegmentError> {
        let info = model.info.clone();
        let classes = Classes::from_names(info.classes.iter().cloned())?;
        let size = options.size.unwrap_or(info.inference_size) as f64;
        let patch = info.network.backbone.patch() as f64;
        let scales = if options.scales.is_empty() { &[1.0][..] } else { &options.scales };
        let mut cells_by_scale = Vec::with_capacity(scales.len());
        for &scale in scales {
            let cells = (size * scale / patch).round();
            // 256 cells per side are 65,536 tokens: too many for attention on any current machine.
            if !(1.0..=256.0).contains(&cells) {
                let problem = format!(
                    "size {size} × scale {scale}: a grid of {cells} patches per side, expected 1 to 256"
                );
                return Err(SegmentError::BadOptions(problem));
            }
            cells_by_scale.push(cells as usize);
        }
        // Patches smaller than a pixel would add nothing.
        let least = cells_by_scale.iter().max().copied().unwrap_or(1);
        if options.tiling.tile_side < least {
            let side = options.tiling.tile_side;
            let problem = format!("tiles of {side} pixels: expected at least {least}, one pixel per patch");
            return Err(SegmentError::BadOptions(problem));
        }
        let network = model.network()?.with_precision(options.precision).for_inference()?;
        let alignment = match info.alignment {
            GridAlignment::HalfPixel => Alignment::HalfPixel,
            GridAlignment::AlignCorners => Alignment::AlignCorners,
        };
        let network = Network::Pcm(Box::new(PcmScorer { info, network, alignment, cells_by_scale }));
        Ok(Segmenter { classes, device: device.clone(), options, network })
    }

    /// The classes of the masks, background first.
    pub fn classes(&self) -> &Classes {
        &self.classes
    }

    /// The supervision it was trained with.
    pub fn supervision(&self) -> Supervision {
        match &self.network {
            Network::Pcm(_) => Supervision::Tags,
            Network::DeepLab(_) => Supervision::Masks,
        }
    }

    /// The model's provenance, as stored in its file.
    pub fn provenance(&self) -> &BTreeMap<String, String> {
        match &self.network {
            Network::Pcm(pcm) => &pcm.info.provenance,
            Network::DeepLab(deeplab) => &deeplab.info.provenance,
        }
    }

    /// Segments one image.
    pub fn segment(&self, image: &RgbImage, tags: TagMode<'_>) -> Result<Segmentation, SegmentError> {
        self.score(image)?.with_tags(tags)
    }

    /// As [`segment`](Self::segment), but returns [`SegmentError::Stopped`] at the next scale, symmetry or tile once
    /// `stop` is set.
    pub fn segment_until(
        &self,
        image: &RgbImage,
        tags: TagMode<'_>,
        stop: &AtomicBool,
    ) -> Result<Segmentation, SegmentError> {
        self.score_until(image, stop)?.with_tags(tags)
    }

    /// Segments several images, batching those with the same input size.
    pub fn segment_batch(
        &self,
        images: &[(&RgbImage, TagMode<'_>)],
    ) -> Result<Vec<Segmentation>, SegmentError> {
        let scores = self.score_batch(&images.iter().map(|(image, _)| *image).collect::<Vec<_>>())?;
        scores.iter().zip(images).map(|(scores, (_, tags))| scores.with_tags(*tags)).collect()
    }

    /// Runs the network on one image; the result gives masks for any tags.
    pub fn score(&self, image: &RgbImage) -> Result<RawScores, SegmentError> {
        self.score_until(image, &NEVER)
    }

    /// As [`score`](Self::score), but returns [`SegmentError::Stopped`] at the next scale, symmetry or tile once `stop`
    /// is set.
    pub fn score_until(&self, image: &RgbImage, stop: &AtomicBool) -> Result<RawScores, SegmentError> {
        Ok(self.score_batch_until(&[image], stop)?.remove(0))
    }

    /// Runs the network on a batch of images: faster than one by one on a GPU, but needs more memory.
    pub fn score_batch(&self, images: &[&RgbImage]) -> Result<Vec<RawScores>, SegmentError> {
        self.score_batch_until(images, &NEVER)
    }

    /// The inputs that a tag head is fitted to: the image without augmentation, at the first scale.
    pub fn tag_evidence(&self, image: &RgbImage) -> Result<TagEvidence, SegmentError> {
        let Network::Pcm(pcm) = &self.network else {
            let problem = "the model was trained on masks; only models trained from tags have a tag head";
            return Err(SegmentError::BadOptions(problem.to_owned()));
        };
        let plan = GridPlan::whole(pcm.cells_by_scale[0]);
        let pixels = pcm.pixels(&[image], &plan, plan.tiles[0], Symmetry::ALL[0], &self.device)?;
        Ok(vitpcm_nets::on_worker(|| pcm.network.tag_evidence(&pixels))?)
    }

    /// As [`score`](Self::score), with the features by which [hints](crate::Hint) spread over the image. The network runs
    /// no more often, except on images in tiles and for averages.
    pub fn score_with_features(&self, image: &RgbImage) -> Result<(RawScores, ImageFeatures), SegmentError> {
        let Network::Pcm(pcm) = &self.network else {
            let problem = "the model was trained on masks; only models trained from tags take hints";
            return Err(SegmentError::BadOptions(problem.to_owned()));
        };
        let plan = GridPlan::whole(pcm.cells_by_scale[0]);
        let pixels = pcm.pixels(&[image], &plan, plan.tiles[0], Symmetry::ALL[0], &self.device)?;
        let (output, features) = vitpcm_nets::on_worker(|| pcm.network.forward_with_features(&pixels))?;
        let by_block = features.iter().map(|features| features.flatten_to(2)?.to_vec2());
        let features = ImageFeatures::new(plan.grid, &by_block.collect::<Result<Vec<_>, _>>()?);
        let num_passes = pcm.cells_by_scale.len() * self.options.symmetries().len();
        if num_passes > 1 || self.is_tiled(image) {
            return Ok((self.score(image)?, features));
        }
        let scores = upright_scores(&output, Symmetry::ALL[0], plan.grid)?.remove(0);
        Ok((pcm.finished(Average::of(scores), image)?, features))
    }

    fn score_batch_until(
        &self,
        images: &[&RgbImage],
        stop: &AtomicBool,
    ) -> Result<Vec<RawScores>, SegmentError> {
        let pcm = match &self.network {
            Network::Pcm(pcm) => pcm,
            // Images keep their aspect ratio, so few share an input size.
            Network::DeepLab(deeplab) => {
                return images.iter().map(|image| deeplab.score(image, &self.device, stop)).collect();
            }
        };
        let any_tiled = images.iter().any(|image| self.is_tiled(image));
        if images.len() > 1 && any_tiled {
            return images.iter().map(|image| self.score_until(image, stop)).collect();
        }
        let mut sums: Vec<Option<Average>> = images.iter().map(|_| None).collect();
        for &cells in &pcm.cells_by_scale {
            for &symmetry in self.options.symmetries() {
                let scores = self.score_once(pcm, images, cells, symmetry, stop)?;
                for (sum, scores) in sums.iter_mut().zip(scores) {
                    match sum {
                        Some(sum) => sum.add(&scores, pcm.alignment)?,
                        None => *sum = Some(Average::of(scores)),
                    }
                }
            }
        }
        sums.into_iter().flatten().zip(images).map(|(sum, image)| pcm.finished(sum, image)).collect()
    }

    fn is_tiled(&self, image: &RgbImage) -> bool {
        image.width().max(image.height()) as usize > self.options.tiling.above
    }

    /// One scale and one symmetry: the upright scores of each image. Takes one image in any number of tiles, or several
    /// images of one tile each.
    fn score_once(
        &self,
        pcm: &PcmScorer,
        images: &[&RgbImage],
        cells: usize,
        symmetry: Symmetry,
        stop: &AtomicBool,
    ) -> Result<Vec<(ScoreMap, Vec<f32>)>, SegmentError> {
        let plan = match images {
            [image] if self.is_tiled(image) => self.tiled_plan(cells, image)?,
            _ => GridPlan::whole(cells),
        };
        go_on_unless(stop)?;
        if let [tile] = plan.tiles[..] {
            return pcm.run(images, &plan, tile, symmetry, &self.device);
        }
        let mut sum = TileSum::new(self.classes.len(), plan.grid);
        for &tile in &plan.tiles {
            go_on_unless(stop)?;
            for (scores, tag_probabilities) in pcm.run(images, &plan, tile, symmetry, &self.device)? {
                sum.add(tile, &scores, &tag_probabilities);
            }
        }
        Ok(vec![sum.blended()?])
    }

    fn tiled_plan(&self, cells: usize, image: &RgbImage) -> Result<GridPlan, SegmentError> {
        let size = (image.width() as usize, image.height() as usize);
        let tile_side = self.options.tiling.tile_side;
        GridPlan::tiled(cells, size, tile_side, MOST_TILED_SCORES / self.classes.len()).ok_or_else(|| {
            SegmentError::BadOptions(format!(
                "{} × {} pixels in tiles of {tile_side}: more than 1 GiB of scores; use larger tiles",
                size.0, size.1
            ))
        })
    }
}

/// Limit on the scores of a tiled image held at once: 1 GiB.
const MOST_TILED_SCORES: usize = 1 << 28;

/// Fails once the stop flag is set.
pub(crate) fn go_on_unless(stop: &AtomicBool) -> Result<(), SegmentError> {
    if stop.load(Ordering::Relaxed) { Err(SegmentError::Stopped) } else { Ok(()) }
}

impl PcmScorer {
    fn finished(&self, sum: Average, image: &RgbImage) -> Result<RawScores, SegmentError> {
        let (scores_on_grid, tag_probabilities) = sum.mean()?;
        let image_size = (image.width() as usize, image.height() as usize);
        let background_threshold = match self.info.network.localisation {
            Localisation::Pcm => None,
            Localisation::Cam { background_threshold } => Some(background_threshold),
        };
        let alignment = self.alignment;
        Ok(RawScores { scores_on_grid, tag_probabilities, background_threshold, image_size, alignment })
    }

    /// Runs the network on the same tile of every image.
    fn run(
        &self,
        images: &[&RgbImage],
        plan: &GridPlan,
        tile: Part,
        symmetry: Symmetry,
        device: &Device,
    ) -> Result<Vec<(ScoreMap, Vec<f32>)>, SegmentError> {
        let pixels = self.pixels(images, plan, tile, symmetry, device)?;
        let output = vitpcm_nets::on_worker(|| self.network.forward(&pixels, &mut Mode::Inference))?;
        upright_scores(&output, symmetry, (tile.width, tile.height))
    }

    /// The same tile of every image, as network input.
    fn pixels(
        &self,
        images: &[&RgbImage],
        plan: &GridPlan,
        tile: Part,
        symmetry: Symmetry,
        device: &Device,
    ) -> Result<Tensor, SegmentError> {
        let patch = self.info.network.backbone.patch();
        let to = (plan.grid.0 * patch, plan.grid.1 * patch);
        let part = Part {
            x: tile.x * patch,
            y: tile.y * patch,
            width: tile.width * patch,
            height: tile.height * patch,
        };
        let planes = images.par_iter().map(|image| {
            let from = (image.width() as usize, image.height() as usize);
            let mut planes = resize_rgb8(image.as_raw(), from, to, part, self.alignment);
            self.info.normalisation.normalise_planes(&mut planes);
            symmetry.apply(&planes, (part.width, part.height))
        });
        let input = planes.collect::<Vec<_>>().concat();
        let (width, height) = symmetry.size((part.width, part.height));
        Ok(Tensor::from_vec(input, (images.len(), 3, height, width), device)?)
    }
}

/// Score maps (class-major, turned upright) and tag probabilities, one pair per image.
fn upright_scores(
    output: &PcmOutput,
    symmetry: Symmetry,
    size: (usize, usize),
) -> Result<Vec<(ScoreMap, Vec<f32>)>, SegmentError> {
    // [B, rows, columns, classes] -> [B, classes, rows, columns]
    let planes = output.scores_on_grid.permute((0, 3, 1, 2))?.flatten_from(1)?.to_vec2::<f32>()?;
    let tag_probabilities = output.tag_probabilities.to_vec2::<f32>()?;
    let turned_size = symmetry.size(size);
    let image = |(planes, tags): (Vec<f32>, Vec<f32>)| {
        let num_classes = tags.len();
        let upright = symmetry.inverse().apply(&planes, turned_size);
        Ok((ScoreMap::new(num_classes, size.0, size.1, upright)?, tags))
    };
    planes.into_iter().zip(tag_probabilities).map(image).collect()
}

/// Tiles blended on one grid. A tag's probability is its maximum over tiles.
struct TileSum {
    grid: (usize, usize),
    scores: Vec<f32>,
    weights: Vec<f32>,
    tag_probabilities: Vec<f32>,
}

impl TileSum {
    fn new(num_classes: usize, grid: (usize, usize)) -> Self {
        let num_cells = grid.0 * grid.1;
        TileSum {
            grid,
            scores: vec![0.0; num_classes * num_cells],
            weights: vec![0.0; num_cells],
            tag_probabilities: vec![0.0; num_classes],
        }
    }

    fn add(&mut self, tile: Part, scores: &ScoreMap, tag_probabilities: &[f32]) {
        let num_cells = self.grid.0 * self.grid.1;
        for y in 0..tile.height {
            for x in 0..tile.width {
                let weight = blend_weight(x, tile.width) * blend_weight(y, tile.height);
                let cell = (tile.y + y) * self.grid.0 + tile.x + x;
                self.weights[cell] += weight;
                for (class, plane) in self.scores.chunks_exact_mut(num_cells).enumerate() {
                    plane[cell] += weight * scores.plane(class)[y * tile.width + x];
                }
            }
        }
        for (best, &probability) in self.tag_probabilities.iter_mut().zip(tag_probabilities) {
            *best = best.max(probability);
        }
    }

    fn blended(mut self) -> Result<(ScoreMap, Vec<f32>), SegmentError> {
        for plane in self.scores.chunks_exact_mut(self.weights.len()) {
            plane.iter_mut().zip(&self.weights).for_each(|(sum, weight)| *sum /= weight);
        }
        let num_classes = self.tag_probabilities.len();
        Ok((ScoreMap::new(num_classes, self.grid.0, self.grid.1, self.scores)?, self.tag_probabilities))
    }
}

/// An untrained model of a named variant, to measure time and memory and for tests. Its masks are meaningless.
pub fn random_model(variant: &str, foreground: &[&str], seed: u64) -> Result<Model, SegmentError> {
    let classes = Classes::from_names(foreground.iter().copied())?;
    let backbone = Variant::named(variant)?.config();
    let train_size = 24 * backbone.patch;
    let network = PcmConfig::paper(backbone, classes.len());
    let parameters = Initialisation::official(seed).network(&network, &Device::Cpu)?;
    let provenance = BTreeMap::from([("untrained".to_string(), format!("random weights, seed {seed}"))]);
    let info = ModelInfo {
        network,
        classes: classes.names().to_vec(),
        train_size,
        inference_size: train_size * 5 / 2,
        normalisation: Normalisation::HALF,
        alignment: GridAlignment::HalfPixel,
        preset: "default".to_string(),
        provenance,
    };
    Ok(Model { info, parameters })
}
