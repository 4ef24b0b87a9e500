//! How a run of either kind begins: from the state of its folder, or with a network that has seen nothing yet. What is refused
//! is refused before a file of the folder changes.

use std::path::{Path, PathBuf};
use std::sync::mpsc::SyncSender;

use candle_core::Device;
use vitpcm_data::ImageLimits;
use vitpcm_masks::FolderLock;
use vitpcm_nets::{Parameters, PretrainedBackbone};

use crate::begun_with::{self, KnownImage};
use crate::checkpoint::{self, NetworkInfo, Progress, Saved};
use crate::ema::Ema;
use crate::error::{Result, TrainError};
use crate::events::{Event, RunSummary, Teller};
use crate::file_record::{self, FoundImage};
use crate::fingerprint;
use crate::optimiser::Optimiser;
use crate::ranks::Ranks;
use crate::run_files::{RunFiles, check_empty, check_run, lock};
use crate::run_loop::{Plan, RunLoop, Training};
use crate::state_file::SavedTensors;
use crate::train_data::remember_held_out;

/// What the backbone starts from.
#[derive(Debug)]
pub enum InitialBackbone {
    /// Random numbers.
    Scratch,
    /// Published weights, or those of a model of ours.
    Weights(Box<PretrainedBackbone>),
}

/// Whether a run is new.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// In a folder that is new or empty.
    Fresh,
    /// From the folder's saved state; from the beginning where the run was stopped before it saved one. A folder without a run is
    /// refused, and so are training images that changed since the run began.
    Resume,
    /// The same, and with images that changed.
    ResumeWithChangedImages,
}

/// A run as it is asked for.
pub(crate) struct RunStart<'a> {
    /// The command that holds the folder meanwhile.
    pub(crate) command: &'static str,
    pub(crate) out: &'a Path,
    pub(crate) start: Start,
    pub(crate) device: &'a Device,
    pub(crate) limits: &'a ImageLimits,
    /// All settings, as they are kept with the run.
    pub(crate) settings: String,
    /// The training images that are found now.
    pub(crate) found: Vec<FoundImage>,
    /// Tells data sets apart by their training images.
    pub(crate) fingerprint: &'a dyn Fn(&[FoundImage]) -> u64,
    /// What is wrong where names and tags are those of the run and the fingerprint is not.
    pub(crate) other_data: &'static str,
    /// Images that a new run sets aside.
    pub(crate) held_out: &'a [String],
}

/// A run that has its state, and has written nothing yet.
pub(crate) struct Begun<I> {
    pub(crate) info: I,
    pub(crate) parameters: Parameters,
    pub(crate) progress: Progress,
    /// What a user may want to know.
    pub(crate) notes: Vec<String>,
    /// The images that the run began with, and their positions among those that are found.
    images: Vec<FoundImage>,
    places: Vec<Option<usize>>,
    /// The saved state's; none of a new run.
    tensors: Option<SavedTensors>,
    /// The list of images, for the other ranks.
    list: Option<Vec<u8>>,
    lock: Option<FolderLock>,
}

/// Finds the state and the images that a run begins with: loaded, or new; on other ranks the first one's. `fault` says why a run
/// that began with such a network cannot go on.
pub(crate) fn begin<I: NetworkInfo>(
    run: &RunStart<'_>,
    ranks: &Ranks,
    fault: impl FnOnce(&I) -> Option<&'static str>,
    initial: impl FnOnce() -> Result<(I, Parameters)>,
) -> Result<Begun<I>> {
    let (out, found) = (run.out, &run.found);
    let refuse = |reason: String| TrainError::RunFolder { path: out.to_owned(), reason };
    let data_fingerprint = (run.fingerprint)(found);
    if !ranks.all_equal(fingerprint::of_bytes(run.settings.bytes()) ^ data_fingerprint) {
        let reason = "the ranks do not see the same settings and the same data set".to_owned();
        return Err(TrainError::Ranks(reason));
    }
    let lock = ranks.is_first().then(|| lock(out, run.command)).transpose()?;
    let saved = match (ranks.is_first(), run.start) {
        (false, _) => Some(checkpoint::receive(ranks, run.device)?),
        (true, Start::Fresh) => check_empty(out).map(|()| None)?,
        (true, _) => check_run(out).and_then(|()| checkpoint::load(out, run.device))?,
    };
    let (info, parameters, progress, tensors) = match saved {
        Some(Saved { info, parameters, progress, tensors }) => (info, parameters, progress, Some(tensors)),
        None => {
            let (info, parameters) = initial()?;
            (info, parameters, Progress { data_fingerprint, ..Progress::default() }, None)
        }
    };
    if let Some(fault) = fault(&info).filter(|_| tensors.is_some()) {
        return Err(refuse(fault.to_owned()));
    }
    let places = (0..found.len()).map(Some).collect();
    let (images, notes) = (found.clone(), Vec::new());
    let mut begun = Begun { info, parameters, progress, notes, images, places, tensors, list: None, lock };
    if begun.progress.data_fingerprint != data_fingerprint {
        let list = match ranks.is_first() {
            true => begun_with::read(out)?,
            // The first rank sends it behind the state.
            false => ranks.broadcast(Vec::new()),
        };
        let known = found.iter().map(|(image, _)| image.clone());
        let image = |(known, place): (KnownImage, Option<usize>)| match place {
            Some(index) => (found[index].clone(), place),
            None => ((known, vec![PathBuf::new()]), None),
        };
        (begun.images, begun.places) =
            begun_with::places(&list, known).map_err(refuse)?.into_iter().map(image).unzip();
        if (run.fingerprint)(&begun.images) != begun.progress.data_fingerprint {
            return Err(refuse(run.other_data.to_owned()));
        }
        begun.list = Some(list);
    }
    if ranks.is_first() && begun.tensors.is_some() {
        begun.notes.extend(file_record::check(out, run.start, &begun.images, run.limits)?);
    }
    Ok(begun)
}

impl<I> Begun<I> {
    /// The images that the run began with, those that are gone as such.
    pub(crate) fn images<T: Clone>(&self, found: &[T], gone: impl Fn(&KnownImage) -> T) -> Vec<T> {
        let image = |(place, (known, _)): (&Option<usize>, &FoundImage)| match place {
            Some(index) => found[*index].clone(),
            None => gone(known),
        };
        self.places.iter().zip(&self.images).map(image).collect()
    }
}

/// Opens the run folder's files, which the first rank writes, and says how the run begins.
pub(crate) fn open<'a, I: NetworkInfo, T: Training>(
    run: &RunStart<'a>,
    begun: Begun<I>,
    plan: Plan,
    training: T,
    ranks: &'a Ranks,
    events: &'a SyncSender<Event>,
) -> Result<RunLoop<'a, I, T>> {
    let Begun { info, progress, mut tensors, images, mut notes, list, lock, .. } = begun;
    let (out, is_new) = (run.out, tensors.is_none());
    let mut optimiser = Optimiser::new(plan.rule, training.variables())?;
    let mut average = Ema::of_decay(plan.ema_decay, training.variables())?;
    if let Some(tensors) = &mut tensors {
        optimiser.restore(progress.optimiser_steps, tensors)?;
        if let Some(average) = &mut average {
            average.restore(progress.average_updates.unwrap_or(progress.step), tensors)?;
        }
    }
    let mut files = None;
    if ranks.is_first() {
        files = Some(RunFiles::open(out, &run.settings, plan.columns, progress.step)?);
        if is_new || !begun_with::exists(out) {
            file_record::remember(out, &images)?;
        }
        if is_new && !run.held_out.is_empty() {
            remember_held_out(out, run.held_out)?;
        }
    }
    let teller = Teller::new(events, ranks.is_first());
    let summary = RunSummary { steps_before: progress.step, ..plan.summary.clone() };
    let mut under_way = RunLoop {
        training,
        plan,
        info,
        out,
        progress,
        optimiser,
        average,
        files,
        ranks,
        teller,
        _lock: lock,
    };
    if is_new {
        under_way.save()?;
    }
    if ranks.is_first() {
        checkpoint::send(out, ranks)?;
        list.map(|list| ranks.broadcast(list));
    }
    under_way.teller.tell(Event::Started(summary));
    notes.extend(ranks.connect_devices(run.device));
    notes.into_iter().for_each(|text| under_way.teller.tell(Event::Note(text)));
    let (num_images, num_found) = (images.len(), run.found.len());
    if num_found < num_images && ranks.is_first() {
        under_way.teller.warn(begun_with::warning(num_images - num_found, num_images));
    }
    Ok(under_way)
}
