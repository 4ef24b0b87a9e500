//! Frozen features: the patch tokens of a ViT after some of its blocks, for the whole image and for its quarters
//! encoded separately, reduced by a projection.

use std::fmt;

use candle_core::{DType, Device, Tensor};
use half::f16;
use image::RgbImage;
use rayon::prelude::*;
use vitpcm_masks::resampling::{Alignment, Part, resize_rgb8};
use vitpcm_nets::{Grid, Normalisation, Stream, Vit};

use crate::error::{HeadsError, Result};
use crate::patch_features::PatchFeatures;
use crate::projection::Projection;
use crate::tagged_images::draw;

/// Side of the patch grid that features, heads and masks share; images are resized to this many patches.
pub const GRID_SIDE: usize = 32;
/// Features per patch after projection.
pub const PROJECTED_WIDTH: usize = 128;
/// Images that the projection is fitted to; the features of all their patches are in memory together, 3 MB an image
/// and block.
const PROJECTION_IMAGES: usize = 64;
/// Blocks that features are taken from, evenly spaced up to the last one.
const NUM_BLOCKS: usize = 4;

/// What the network encodes at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Tiles {
    /// The whole image.
    Whole,
    /// Each quarter of the image separately, at twice the resolution; features are averaged over 2×2 patches.
    Quarters,
}

/// Where features come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Source {
    /// What the network encodes at once.
    pub tiles: Tiles,
    /// How many blocks the tokens went through.
    pub block: usize,
}

impl Source {
    /// The default sources of a ViT with this many blocks, after each quarter of them (3, 6, 9 and 12 of 12).
    pub fn of_depth(depth: usize, tiles: Tiles) -> [Source; NUM_BLOCKS] {
        std::array::from_fn(|i| Source { tiles, block: (i + 1) * depth / NUM_BLOCKS })
    }

    /// Whether these features suit a judge: whole images, all blocks but the last. In the last block attention has
    /// spread the image's label over all patches.
    pub fn is_judge(self, depth: usize) -> bool {
        self.tiles == Tiles::Whole && self.block < depth
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.tiles {
            Tiles::Whole => write!(f, "block {}", self.block),
            Tiles::Quarters => write!(f, "block {} of quarters", self.block),
        }
    }
}

/// Projected features of many images, and how they were projected.
#[derive(Debug, Clone)]
pub struct SourceFeatures {
    /// Where they come from.
    pub source: Source,
    /// From the ViT's features to these.
    pub projection: Projection,
    /// The features.
    pub patches: PatchFeatures,
}

/// Runs a ViT for its features.
#[derive(Debug, Clone)]
pub struct FeatureExtractor {
    vit: Vit,
    normalisation: Normalisation,
    device: Device,
    /// Batch size, in tiles.
    batch: usize,
}

impl FeatureExtractor {
    /// From a ViT on a device, the normalisation it was trained with, and the batch size in tiles.
    pub fn new(vit: Vit, normalisation: Normalisation, device: Device, batch: usize) -> Self {
        Self { vit, normalisation, device, batch: batch.max(1) }
    }

    /// The ViT's number of blocks.
    pub fn depth(&self) -> usize {
        self.vit.config().depth
    }

    /// Features of images after each of `blocks` (ascending), `[images, patches, D]` each.
    pub fn extract(&self, images: &[RgbImage], tiles: Tiles, blocks: &[usize]) -> Result<Vec<Vec<f16>>> {
        let mut features = vec![Vec::new(); blocks.len()];
        for some in images.chunks(self.images_at_once(tiles)) {
            for (features, tensor) in features.iter_mut().zip(self.forward(some, tiles, blocks)?) {
                features.extend(tensor.flatten_all()?.to_vec1::<f16>()?);
            }
        }
        Ok(features)
    }

    fn images_at_once(&self, tiles: Tiles) -> usize {
        match tiles {
            Tiles::Whole => self.batch,
            Tiles::Quarters => (self.batch / 4).max(1),
        }
    }

    fn forward(&self, images: &[RgbImage], tiles: Tiles, blocks: &[usize]) -> Result<Vec<Tensor>> {
        let side = GRID_SIDE * self.vit.config().patch;
        let whole = Part { x: 0, y: 0, width: side, height: side };
        let (to, parts) = match tiles {
            Tiles::Whole => ((side, side), vec![whole]),
            Tiles::Quarters => {
                let quarter = |(x, y)| Part { x: x * side, y: y * side, ..whole };
                ((2 * side, 2 * side), [(0, 0), (1, 0), (0, 1), (1, 1)].map(quarter).to_vec())
            }
        };
        let views: Vec<(&RgbImage, Part)> =
            images.iter().flat_map(|image| parts.iter().map(move |&part| (image, part))).collect();
        let planes: Vec<Vec<f32>> = views
            .par_iter()
            .map(|(image, part)| {
                let from = (image.width() as usize, image.height() as usize);
                let mut planes = resize_rgb8(image.as_raw(), from, to, *part, Alignment::HalfPixel);
                self.normalisation.normalise_planes(&mut planes);
                planes
            })
            .collect();
        let pixels = Tensor::from_vec(planes.concat(), (views.len(), 3, side, side), &self.device)?;
        let grids = vitpcm_nets::on_worker(|| self.vit.block_features(&pixels, blocks))?;
        let finish = |grid: &Tensor| match tiles {
            Tiles::Whole => Ok(grid.to_dtype(DType::F16)?),
            Tiles::Quarters => Ok(join_quarters(grid, images.len())?.to_dtype(DType::F16)?),
        };
        grids.iter().map(finish).collect()
    }

    /// Projected features of many images for each source. `fetch` loads an image by index and is called once per image
    /// and kind of tiles. Projections are fitted to a random sample of the images.
    pub fn project<E: From<HeadsError> + Send>(
        &self,
        num_images: usize,
        fetch: impl Fn(usize) -> std::result::Result<RgbImage, E> + Sync,
        sources: &[Source],
        seed: u64,
    ) -> std::result::Result<Vec<SourceFeatures>, E> {
        let mut projected = Vec::new();
        for tiles in [Tiles::Whole, Tiles::Quarters] {
            let mut blocks: Vec<usize> =
                sources.iter().filter(|source| source.tiles == tiles).map(|source| source.block).collect();
            blocks.sort_unstable();
            blocks.dedup();
            if blocks.is_empty() {
                continue;
            }
            projected.extend(self.project_tiles(num_images, &fetch, tiles, &blocks, seed)?);
        }
        Ok(projected)
    }

    fn project_tiles<E: From<HeadsError> + Send>(
        &self,
        num_images: usize,
        fetch: impl Fn(usize) -> std::result::Result<RgbImage, E> + Sync,
        tiles: Tiles,
        blocks: &[usize],
        seed: u64,
    ) -> std::result::Result<Vec<SourceFeatures>, E> {
        let width = self.vit.config().width;
        let grid = Grid { rows: GRID_SIDE, columns: GRID_SIDE };
        let mut order = draw(num_images, num_images, Stream::named(seed, "projection"), 0);
        let (sample, rest) = order.split_at_mut(PROJECTION_IMAGES.min(num_images));
        // Sorted, so that files are read in order.
        sample.sort_unstable();
        rest.sort_unstable();

        let an_image = grid.num_cells() * width;
        let extract = |indices: &[usize]| -> std::result::Result<Vec<Vec<f16>>, E> {
            let images =
                indices.par_iter().map(|&index| fetch(index)).collect::<std::result::Result<Vec<_>, E>>()?;
            Ok(self.extract(&images, tiles, blocks)?)
        };
        // The sample's features are kept until the projections are fitted to them.
        let mut waiting: Vec<Vec<f16>> = vec![Vec::new(); blocks.len()];
        for some in sample.chunks(self.images_at_once(tiles)) {
            waiting.iter_mut().zip(extract(some)?).for_each(|(all, some)| all.extend(some));
        }
        let projections = waiting
            .par_iter()
            .map(|features| {
                let parts: Vec<&[f16]> = features.chunks_exact(an_image).collect();
                Projection::fit(&parts, width, PROJECTED_WIDTH)
            })
            .collect::<Result<Vec<_>>>()?;

        let projected_width = projections[0].num_directions();
        let projected_image = grid.num_cells() * projected_width;
        let mut values = vec![vec![f16::ZERO; num_images * projected_image]; blocks.len()];
        let mut put = |indices: &[usize], features: Vec<Vec<f16>>| {
            for ((values, features), projection) in values.iter_mut().zip(features).zip(&projections) {
                let images: Vec<Vec<f16>> =
                    features.par_chunks_exact(an_image).map(|image| projection.apply(image)).collect();
                for (&index, image) in indices.iter().zip(images) {
                    values[index * projected_image..][..projected_image].copy_from_slice(&image);
                }
            }
        };
        put(sample, waiting);
        for some in rest.chunks(self.images_at_once(tiles)) {
            put(some, extract(some)?);
        }
        let of_blocks = blocks.iter().zip(projections).zip(values);
        let features = of_blocks.map(|((&block, projection), values)| {
            let patches = PatchFeatures::new(grid, projected_width, values)?;
            Ok(SourceFeatures { source: Source { tiles, block }, projection, patches })
        });
        Ok(features.collect::<Result<Vec<_>>>()?)
    }
}

/// `[4 · images, side, side, D]` to `[images, side, side, D]`: 2×2 patches averaged, quarters side by side.
fn join_quarters(quarters: &Tensor, images: usize) -> Result<Tensor> {
    let (_, side, _, width) = quarters.dims4()?;
    let half = side / 2;
    let quarters = quarters.reshape(&[4 * images * half, 2, half, 2, width][..])?;
    let averaged = quarters.mean(3)?.mean(1)?; // [4 · images · half, half, D]
    let joined = averaged.reshape(&[images, 2, 2, half, half, width][..])?.permute(vec![0, 1, 3, 2, 4, 5])?;
    Ok(joined.contiguous()?.reshape((images, side, side, width))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quarters_are_averaged_and_put_side_by_side() {
        // Two images of 4×4 cells: quarter q of image i holds 100·i + 10·q + its cell's row / 2.
        let values: Vec<f32> = (0..2 * 4 * 4 * 4)
            .map(|n| (100 * (n / 64) + 10 * (n / 16 % 4)) as f32 + (n / 4 % 4) as f32 / 2.0)
            .collect();
        let quarters = Tensor::from_vec(values, (8, 4, 4, 1), &Device::Cpu).unwrap();
        let joined = join_quarters(&quarters, 2).unwrap();
        let rows = joined.squeeze(3).unwrap().to_vec3::<f32>().unwrap();
        assert_eq!(
            rows[0],
            [
                [0.25, 0.25, 10.25, 10.25],
                [1.25, 1.25, 11.25, 11.25],
                [20.25, 20.25, 30.25, 30.25],
                [21.25, 21.25, 31.25, 31.25]
            ]
        );
        assert_eq!(rows[1][3], [121.25, 121.25, 131.25, 131.25]);
    }

    #[test]
    fn sources_are_quarters_of_the_depth() {
        assert_eq!(Source::of_depth(12, Tiles::Whole).map(|source| source.block), [3, 6, 9, 12]);
        let judges = Source::of_depth(12, Tiles::Whole).map(|source| source.is_judge(12));
        assert_eq!(judges, [true, true, true, false]);
        assert!(!Source::of_depth(12, Tiles::Quarters)[0].is_judge(12));
    }
}
