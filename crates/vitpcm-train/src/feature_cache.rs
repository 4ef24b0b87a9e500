//! What the frozen blocks make of a batch's views, computed once and kept in half precision: epochs that see the same
//! views again, and later rounds over the same images, continue from there. A cache is a folder of one file a batch; a
//! file that is missing, damaged or of something else is made anew, so nothing is lost with it.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use candle_core::{DType, Device, Tensor};
use half::f16;
use half::slice::HalfFloatSliceExt;
use vitpcm_data::TaggedImage;
use vitpcm_masks::atomic_file;
use vitpcm_nets::{BackboneConfig, Parameters};

use crate::batch::TaggedBatch;
use crate::config::{TrainConfig, ViewsConfig};
use crate::error::Result;
use crate::fingerprint;
use crate::pcm_run::TrainJob;

/// Bytes before the numbers: a fingerprint of what they belong to, a checksum, three sizes.
const HEADER: usize = 8 + 4 + 3 * 4;

/// Which batch of an epoch's order, of which set of views.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchPlace {
    /// Which of the views that an image has.
    pub view_set: u64,
    /// Place of the batch's first image in the epoch's order.
    pub first: usize,
}

/// A folder of frozen features.
#[derive(Debug)]
pub struct FeatureCache {
    folder: PathBuf,
    /// Tells weights, settings and images apart.
    key: u64,
    num_blocks: usize,
    max_bytes: u64,
    num_bytes: AtomicU64,
}

impl FeatureCache {
    /// The cache of frozen features, where views are seen again and some blocks stay frozen. Its key stands for all that features
    /// depend on: frozen weights, pixels and their views, and which images go together.
    pub(crate) fn of_run(
        job: &TrainJob,
        backbone: &BackboneConfig,
        training: &[TaggedImage],
        parameters: &Parameters,
    ) -> Result<Option<Self>> {
        let TrainConfig { seed, model, views, schedule, .. } = &job.config;
        let trained = schedule.trained(usize::MAX);
        let num_blocks = match (backbone, trained.num_frozen_blocks(backbone.depth())) {
            (BackboneConfig::Vit(_), Some(num_blocks)) if views.pool > 0 => num_blocks,
            _ => return Ok(None),
        };
        let drawn = ViewsConfig { kept_megabytes: 0, pool: 0, ..views.clone() };
        let mut key = format!(
            "{seed} {} {num_blocks} {:?} {drawn:?} {} {} {:?}",
            model.grid, model.normalisation, schedule.batch, schedule.effective_batch, job.precision
        )
        .into_bytes();
        for image in training {
            let about = std::fs::metadata(&image.path).ok();
            let state = about.map(|about| (about.len(), about.modified().ok()));
            key.extend(format!("{} {state:?}\n", image.name).bytes());
        }
        let frozen = parameters.iter().filter(|(name, _)| !trained.includes(name, backbone));
        for (_, tensor) in frozen {
            let values = tensor.flatten_all()?.to_dtype(DType::F32)?.to_vec1::<f32>()?;
            let sum =
                crc32fast::hash(&values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>());
            key.extend(sum.to_le_bytes());
        }
        let folder = job.features.clone().unwrap_or_else(|| job.out.join("features"));
        let max_bytes = views.kept_megabytes << 20;
        Ok(Some(Self::open(&folder, fingerprint::of_bytes(key.into_iter()), num_blocks, max_bytes)))
    }

    /// Opens the cache in a folder, which is made with the first batch. Features behind `num_blocks` blocks are kept, up
    /// to `max_bytes` in all; `key` stands for everything but the batch that they depend on.
    pub fn open(folder: &Path, key: u64, num_blocks: usize, max_bytes: u64) -> Self {
        let files = fs::read_dir(folder).into_iter().flatten().flatten();
        let num_bytes = files.filter_map(|file| file.metadata().ok()).map(|about| about.len()).sum();
        Self { folder: folder.to_owned(), key, num_blocks, max_bytes, num_bytes: AtomicU64::new(num_bytes) }
    }

    /// How many blocks the features went through.
    pub fn num_blocks(&self) -> usize {
        self.num_blocks
    }

    /// The features of a batch, `[B, N, D]`, f32 with the precision of f16: those that are kept, or else what `compute`
    /// makes, rounded alike, so that a run does not depend on what is kept.
    pub(crate) fn features(
        &self,
        batch: &TaggedBatch,
        place: BatchPlace,
        device: &Device,
        compute: impl FnOnce() -> Result<Tensor>,
    ) -> Result<Tensor> {
        let path = self.folder.join(format!("views-{}-at-{:06}", place.view_set, place.first));
        let names = batch.names.iter().flat_map(|name| name.bytes().chain([0]));
        let mark = fingerprint::of_bytes(self.key.to_le_bytes().into_iter().chain(names));
        if let Some((values, sizes)) = fs::read(&path).ok().and_then(|bytes| parse(&bytes, mark)) {
            return Ok(Tensor::from_vec(values, &sizes, &Device::Cpu)?
                .to_dtype(DType::F32)?
                .to_device(device)?);
        }
        let rounded = compute()?.to_dtype(DType::F16)?;
        self.keep(&path, mark, &rounded)?;
        Ok(rounded.to_dtype(DType::F32)?)
    }

    /// A disk that is full, or a folder that cannot be written, costs time and nothing else.
    fn keep(&self, path: &Path, mark: u64, values: &Tensor) -> Result<()> {
        let sizes = values.dims3()?;
        let bytes = encode(mark, [sizes.0, sizes.1, sizes.2], &values.flatten_all()?.to_vec1::<f16>()?);
        let replaced = fs::metadata(path).map_or(0, |about| about.len());
        let grown = (bytes.len() as u64).saturating_sub(replaced);
        let more = |held: u64| held.checked_add(grown).filter(|&sum| sum <= self.max_bytes);
        if self.num_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok() {
            let write = || -> std::io::Result<()> {
                fs::create_dir_all(&self.folder)?;
                atomic_file::write(path, |file| file.write_all(&bytes))
            };
            let _ = write();
        }
        Ok(())
    }
}

fn encode(mark: u64, sizes: [usize; 3], values: &[f16]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER + 2 * values.len());
    bytes.extend(mark.to_le_bytes());
    bytes.extend([0; 4]);
    sizes.iter().for_each(|&size| bytes.extend((size as u32).to_le_bytes()));
    values.reinterpret_cast().iter().for_each(|bits| bytes.extend(bits.to_le_bytes()));
    let sum = crc32fast::hash(&bytes[12..]);
    bytes[8..12].copy_from_slice(&sum.to_le_bytes());
    bytes
}

fn parse(bytes: &[u8], mark: u64) -> Option<(Vec<f16>, [usize; 3])> {
    let (header, values) = bytes.split_at_checked(HEADER)?;
    let word = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    let is_whole = header[..8] == mark.to_le_bytes() && word(8) == crc32fast::hash(&bytes[12..]);
    let sizes = [12, 16, 20].map(|at| word(at) as usize);
    let count = sizes.iter().try_fold(1usize, |product, &size| product.checked_mul(size))?;
    (is_whole && values.len() == 2 * count).then(|| {
        let values = values.chunks_exact(2).map(|pair| f16::from_le_bytes([pair[0], pair[1]]));
        (values.collect(), sizes)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(name: &str) -> TaggedBatch {
        let empty = || Tensor::zeros(1, DType::F32, &Device::Cpu).unwrap();
        TaggedBatch {
            first_views: empty(),
            merged_views: empty(),
            tags: empty(),
            second_from_first: empty(),
            pseudo_masks: None,
            names: vec![name.to_owned()],
            place: None,
        }
    }

    fn values(start: f32) -> Tensor {
        let values: Vec<f32> = (0..24).map(|index| start + index as f32 / 3.0).collect();
        Tensor::from_vec(values, (2, 3, 4), &Device::Cpu).unwrap()
    }

    fn flat(tensor: &Tensor) -> Vec<f32> {
        tensor.flatten_all().unwrap().to_vec1().unwrap()
    }

    #[test]
    fn features_are_computed_once_and_read_back_to_the_bit() {
        let folder = tempfile::tempdir().unwrap();
        let cache = FeatureCache::open(folder.path(), 7, 10, 1 << 20);
        let place = BatchPlace { view_set: 1, first: 32 };
        let first = cache.features(&batch("a"), place, &Device::Cpu, || Ok(values(1.0))).unwrap();
        let again = FeatureCache::open(folder.path(), 7, 10, 1 << 20);
        let kept = again.features(&batch("a"), place, &Device::Cpu, || panic!("computed twice")).unwrap();
        assert_eq!(flat(&first), flat(&kept));
        assert!(flat(&first).iter().zip(flat(&values(1.0))).all(|(kept, exact)| (kept - exact).abs() < 4e-3));
    }

    #[test]
    fn another_key_other_images_and_damaged_files_are_computed_anew() {
        let folder = tempfile::tempdir().unwrap();
        let place = BatchPlace { view_set: 0, first: 0 };
        let make = |key: u64, name: &str, start: f32| {
            let cache = FeatureCache::open(folder.path(), key, 10, 1 << 20);
            flat(&cache.features(&batch(name), place, &Device::Cpu, || Ok(values(start))).unwrap())[0]
        };
        assert_eq!([make(1, "a", 1.0), make(1, "a", 2.0)], [1.0, 1.0]);
        assert_eq!([make(2, "a", 3.0), make(2, "b", 4.0), make(2, "b", 5.0)], [3.0, 4.0, 4.0]);
        let file = folder.path().join("views-0-at-000000");
        let mut bytes = fs::read(&file).unwrap();
        bytes[HEADER + 1] ^= 1;
        fs::write(&file, &bytes).unwrap();
        assert_eq!(make(2, "b", 6.0), 6.0);
        fs::write(&file, &bytes[..HEADER + 3]).unwrap();
        assert_eq!(make(2, "b", 7.0), 7.0);
    }

    #[test]
    fn no_more_is_kept_than_allowed() {
        let folder = tempfile::tempdir().unwrap();
        let cache = FeatureCache::open(folder.path(), 1, 10, 100);
        for first in 0..3 {
            let place = BatchPlace { view_set: 0, first };
            cache.features(&batch("a"), place, &Device::Cpu, || Ok(values(0.0))).unwrap();
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
