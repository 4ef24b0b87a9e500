//! The batches of an epoch, put together and brought to the device on a thread of their own while the step before is
//! computed.

use std::ops::Range;
use std::sync::mpsc::{Receiver, sync_channel};

use candle_core::Device;
use vitpcm_data::views::ViewMaker;
use vitpcm_data::{EpochStream, Loaded, Loader, TaggedImage};
use vitpcm_nets::Normalisation;
use vitpcm_ops::Uploader;

use crate::batch::{TaggedBatch, TaggedViews};
use crate::error::Result;
use crate::feature_cache::BatchPlace;
use crate::shares::Shares;

/// This rank's images of one optimiser step.
pub(crate) struct StepImages<B> {
    /// In the device's memory; none where no image could be read.
    pub(crate) batches: Vec<B>,
    /// The images in them.
    pub(crate) names: Vec<String>,
    /// Images that could not be read, and why.
    pub(crate) broken: Vec<String>,
    /// Places of the epoch's order that the step takes on all ranks together.
    pub(crate) num_places: usize,
}

impl<B> StepImages<B> {
    /// With no image yet.
    pub(crate) fn new(num_places: usize) -> Self {
        Self { batches: Vec::new(), names: Vec::new(), broken: Vec::new(), num_places }
    }
}

/// How images become batches.
#[derive(Clone)]
pub(crate) struct BatchMaker {
    pub(crate) maker: ViewMaker,
    pub(crate) normalisation: Normalisation,
    pub(crate) num_classes: usize,
    /// Where to.
    pub(crate) device: Device,
    /// Which images, and how many at a time.
    pub(crate) shares: Shares,
    /// Which set of views, where its features are kept.
    pub(crate) view_set: Option<u64>,
}

impl BatchMaker {
    fn step(
        &self,
        stream: &mut EpochStream,
        images: &[TaggedImage],
        places: Range<usize>,
        uploader: &mut Uploader,
    ) -> Result<StepImages<TaggedBatch>> {
        let num_places = places.len();
        let mut step = StepImages::new(num_places);
        for batch in self.shares.own_batches(num_places) {
            let count = self.shares.batch_places(batch, num_places);
            let (views, broken) = take_images(stream, images, count);
            step.broken.extend(broken);
            if !views.is_empty() {
                let Self { maker, normalisation, num_classes, .. } = self;
                let mut made = TaggedBatch::new(&views, maker, normalisation, *num_classes, &Device::Cpu)?;
                made.place = self.view_set.map(|view_set| BatchPlace {
                    view_set,
                    first: places.start + self.shares.batch_start(batch),
                });
                step.names.extend(made.names.iter().cloned());
                step.batches.push(made.uploaded(uploader)?);
            }
        }
        Ok(step)
    }
}

/// The steps of an epoch from position `start` on. One is made ahead; the thread ends when the stream is dropped.
pub(crate) fn steps_of_epoch(
    loader: &Loader,
    maker: &BatchMaker,
    epoch: u64,
    start: usize,
) -> Receiver<Result<StepImages<TaggedBatch>>> {
    let (sender, receiver) = sync_channel(1);
    let (loader, maker) = (loader.clone(), maker.clone());
    std::thread::spawn(move || {
        let mut uploader = Uploader::new(&maker.device);
        let mut num_left = loader.images().len() - start;
        let mut stream = loader.epoch_share(epoch, start, |place| maker.shares.is_own(place, num_left));
        while num_left > 0 {
            let first = loader.images().len() - num_left;
            let places = first..first + maker.shares.step_places(num_left);
            num_left -= places.len();
            if sender.send(maker.step(&mut stream, loader.images(), places, &mut uploader)).is_err() {
                return;
            }
        }
    });
    receiver
}

/// The next `count` images of an epoch, or those that are left: which could be read, and why the others could not. A
/// broken image leaves its place empty, since no rank knows of those that other ranks read.
pub(crate) fn take_images(
    stream: &mut EpochStream,
    images: &[TaggedImage],
    count: usize,
) -> (Vec<TaggedViews>, Vec<String>) {
    let (mut taken, mut broken) = (Vec::with_capacity(count), Vec::new());
    for loaded in stream.take(count) {
        match loaded {
            Loaded::Views { index, views } => {
                let TaggedImage { name, tags, .. } = images[index].clone();
                taken.push(TaggedViews { name, tags, views });
            }
            Loaded::Broken { reason, .. } => broken.push(reason),
        }
    }
    (taken, broken)
}
