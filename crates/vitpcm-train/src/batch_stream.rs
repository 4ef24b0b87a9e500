//! The batches of an epoch, put together on a thread of their own while the step before is computed.

use std::iter::Peekable;
use std::sync::mpsc::{Receiver, sync_channel};

use candle_core::Device;
use vitpcm_data::views::ViewMaker;
use vitpcm_data::{EpochStream, Loaded, Loader, TaggedImage};
use vitpcm_nets::Normalisation;

use crate::batch::{TaggedBatch, TaggedViews};
use crate::error::Result;

/// What one optimiser step takes.
pub(crate) struct StepImages {
    /// In memory of the CPU; none where no image could be read.
    pub(crate) batches: Vec<TaggedBatch>,
    /// Images that could not be read, and why.
    pub(crate) broken: Vec<String>,
    /// Images of the epoch's order that are taken by now, broken ones included.
    pub(crate) images_taken: usize,
    /// Whether the epoch is over behind it.
    pub(crate) is_last: bool,
}

/// How images become batches.
#[derive(Clone)]
pub(crate) struct BatchMaker {
    pub(crate) maker: ViewMaker,
    pub(crate) normalisation: Normalisation,
    pub(crate) num_classes: usize,
    /// Images a step.
    pub(crate) step_images: usize,
    /// Images a pass through the network.
    pub(crate) batch: usize,
}

/// The steps of an epoch from position `start` on. One is made ahead; the thread ends when the stream is dropped.
pub(crate) fn steps_of_epoch(
    loader: &Loader,
    maker: &BatchMaker,
    epoch: u64,
    start: usize,
) -> Receiver<Result<StepImages>> {
    let (sender, receiver) = sync_channel(1);
    let (loader, maker) = (loader.clone(), maker.clone());
    std::thread::spawn(move || {
        let mut stream = loader.epoch(epoch, start).peekable();
        while stream.peek().is_some() {
            let (images, broken) = take_batch(&mut stream, loader.images(), maker.step_images);
            let batches = images.chunks(maker.batch).map(|images| {
                TaggedBatch::new(images, &maker.maker, &maker.normalisation, maker.num_classes, &Device::Cpu)
            });
            let step = batches.collect::<Result<_>>().map(|batches| StepImages {
                batches,
                broken,
                images_taken: loader.images().len() - stream.size_hint().0,
                is_last: stream.peek().is_none(),
            });
            if sender.send(step).is_err() {
                return;
            }
        }
    });
    receiver
}

/// The next images of an epoch that could be read, at most `count`, and those that could not. Broken images behind the
/// last one are taken as well, so that an epoch is over exactly when its stream is.
pub(crate) fn take_batch(
    stream: &mut Peekable<EpochStream>,
    images: &[TaggedImage],
    count: usize,
) -> (Vec<TaggedViews>, Vec<String>) {
    let (mut taken, mut broken) = (Vec::with_capacity(count), Vec::new());
    loop {
        let wanted = |loaded: &Loaded| taken.len() < count || matches!(loaded, Loaded::Broken { .. });
        match stream.next_if(wanted) {
            Some(Loaded::Views { index, views }) => {
                let TaggedImage { name, tags, .. } = images[index].clone();
                taken.push(TaggedViews { name, tags, views });
            }
            Some(Loaded::Broken { reason, .. }) => broken.push(reason),
            None => return (taken, broken),
        }
    }
}
