//! A verification run on drawn scenes: it learns, resumes bit for bit, and leaves a segmenter that needs no tags.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;

use vitpcm::{Device, Precision, Segmenter, SegmenterOptions, Supervision};
use vitpcm_data::{Crop, Dataset, DrawnScenes, ImageLimits, MaskPairing, OpenOptions, Random};
use vitpcm_masks::Classes;
use vitpcm_nets::{DeepLabConfig, Normalisation, ResNetVariant, WeightFile};
use vitpcm_train::crop_batch::{CompareAt, CropBatch, SeenAt};
use vitpcm_train::optimiser::{Optimiser, UpdateRule};
use vitpcm_train::verify_step::VerifyStep;
use vitpcm_train::{
    Ending, Event, InitialBackbone, ScoreOptions, Start, TrainOutcome, VerifyConfig, VerifyJob,
    score_segmenter, verify,
};

fn config(steps: u64) -> VerifyConfig {
    let mut config = VerifyConfig::default().from_scratch();
    config.model.backbone = "resnet-nano".to_owned();
    (config.crops.side, config.crops.scales) = (65, [0.8, 1.2]);
    (config.schedule.steps, config.schedule.batch, config.schedule.rate) = (steps, 4, 0.02);
    config.validation.every_steps = 0;
    config.loader.cache_megabytes = 16;
    config
}

/// With an average of the weights and other colours, which must go on as well.
fn averaged(steps: u64) -> VerifyConfig {
    let mut config = config(steps);
    (config.schedule.ema_decay, config.crops.colour_probability) = (0.9, 0.5);
    config
}

fn job(data: &Path, out: &Path, start: Start, config: VerifyConfig) -> VerifyJob {
    let dataset = Dataset::open(data, &OpenOptions::default()).unwrap();
    let mut pairs = MaskPairing::find(&data.join("images"), &data.join("masks"), None).pairs;
    let validation = pairs.split_off(pairs.len() - 8);
    VerifyJob {
        config,
        classes: Classes::from_names(dataset.classes().names().iter().cloned()).unwrap(),
        training: pairs,
        validation,
        backbone: InitialBackbone::Scratch,
        out: out.to_owned(),
        start,
        device: Device::Cpu,
        precision: Precision::F32,
        limits: ImageLimits::default(),
        provenance: Default::default(),
    }
}

/// Runs, and stops after so many steps of this session.
fn run(job: &VerifyJob, stop_after: Option<usize>) -> TrainOutcome {
    let (events, heard) = sync_channel(10_000);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let runner = scope.spawn(|| {
            let events = events; // dropped with the thread: that ends the listening
            verify(job, &events, &stop).unwrap()
        });
        let steps = heard.iter().filter(|event| matches!(event, Event::Step { .. }));
        for (count, _) in steps.enumerate() {
            if Some(count + 1) == stop_after {
                stop.store(true, Ordering::Relaxed);
            }
        }
        runner.join().unwrap()
    })
}

#[test]
fn a_run_that_was_stopped_continues_bit_for_bit() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    DrawnScenes { seed: 5, side: 48 }.write(&data, 15, 8).unwrap();
    let (whole, parts) = (folder.path().join("whole"), folder.path().join("parts"));
    // 15 images in batches of 4: three steps an epoch, the last images left out.
    let outcome = run(&job(&data, &whole, Start::Fresh, averaged(8)), None);
    assert_eq!(outcome, TrainOutcome { ending: Ending::Finished, steps: 8, best: None });
    let stopped = run(&job(&data, &parts, Start::Fresh, averaged(8)), Some(2));
    assert_eq!(stopped.ending, Ending::Interrupted);
    assert!((2..8).contains(&stopped.steps), "{stopped:?}");
    let outcome = run(&job(&data, &parts, Start::Resume, averaged(8)), None);
    assert_eq!(outcome, TrainOutcome { ending: Ending::Finished, steps: 8, best: None });
    for file in ["model.safetensors", "last/state.safetensors"] {
        let read = |run: &Path| std::fs::read(run.join(file)).unwrap();
        assert!(read(&whole) == read(&parts), "{file} differs");
    }
    // The model is the average, not the last weights, which the state holds as well.
    let weight = |file: &str, name: &str| {
        let file = WeightFile::open(whole.join(file)).unwrap();
        file.read_f32(file.entry(name).unwrap()).unwrap()
    };
    let (state, model) = ("last/state.safetensors", "model.safetensors");
    assert_eq!(weight(model, "aspp.c0.weight"), weight(state, "average/aspp.c0.weight"));
    assert_ne!(weight(model, "aspp.c0.weight"), weight(state, "weight/aspp.c0.weight"));
    // All but the speed.
    let rows = |run: &Path| {
        let text = std::fs::read_to_string(run.join("metrics.csv")).unwrap();
        let without_speed = |line: &str| {
            line.split(',').enumerate().filter(|(i, _)| *i != 9).map(|(_, cell)| cell.to_owned()).collect()
        };
        text.lines().map(without_speed).collect::<Vec<Vec<String>>>()
    };
    assert_eq!(rows(&whole), rows(&parts));
    assert_eq!(rows(&whole).len(), 9);
    // More steps, without an image and the mask of another.
    for gone in ["images/scene-0001.png", "masks/scene-0002.png"] {
        std::fs::remove_file(data.join(gone)).unwrap();
    }
    assert_eq!(run(&job(&data, &parts, Start::Resume, averaged(10)), None).steps, 10);

    let (events, _heard) = sync_channel(10_000);
    let fresh = verify(&job(&data, &whole, Start::Fresh, averaged(8)), &events, &AtomicBool::new(false));
    assert!(fresh.unwrap_err().to_string().contains("not empty"));
    let mut other = averaged(8);
    other.crops.side = 33;
    let other = verify(&job(&data, &whole, Start::Resume, other), &events, &AtomicBool::new(false));
    assert!(other.unwrap_err().to_string().contains("crops.side"));
    std::fs::copy(data.join("masks/scene-0005.png"), data.join("masks/scene-0004.png")).unwrap();
    let changed = verify(&job(&data, &parts, Start::Resume, averaged(12)), &events, &AtomicBool::new(false));
    let message = changed.unwrap_err().to_string();
    assert!(message.contains("changed since the run began: scene-0004;"), "{message}");
    let accepted = job(&data, &parts, Start::ResumeWithChangedImages, averaged(12));
    assert_eq!(run(&accepted, None).steps, 12);

    // A run without an average goes on, but not with one.
    let plain = folder.path().join("plain");
    run(&job(&data, &plain, Start::Fresh, config(1)), None);
    assert_eq!(run(&job(&data, &plain, Start::Resume, config(2)), None).steps, 2);
    let late = verify(&job(&data, &plain, Start::Resume, averaged(3)), &events, &AtomicBool::new(false));
    assert!(late.unwrap_err().to_string().contains("average"));
}

#[test]
fn a_run_that_ended_with_an_epoch_goes_on_with_the_next() {
    let folder = tempfile::tempdir().unwrap();
    let (data, out) = (folder.path().join("data"), folder.path().join("run"));
    DrawnScenes { seed: 5, side: 48 }.write(&data, 8, 8).unwrap();
    for (start, steps) in [(Start::Fresh, 2), (Start::Resume, 3)] {
        assert_eq!(run(&job(&data, &out, start, config(steps)), None).steps, steps);
    }
}

#[test]
fn a_small_network_learns_drawn_scenes_and_segments_without_tags() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    DrawnScenes { seed: 5, side: 64 }.write(&data, 64, 8).unwrap();
    let job = job(&data, &folder.path().join("run"), Start::Fresh, config(160));
    run(&job, None);
    let options = SegmenterOptions { scales: vec![0.75, 1.0, 1.25], ..SegmenterOptions::default() };
    let segmenter = Segmenter::open(&job.out.join("model.safetensors"), &Device::Cpu, options).unwrap();
    assert_eq!(segmenter.supervision(), Supervision::Masks);
    let options = ScoreOptions { crf: None, limits: ImageLimits::default(), pictures: 0 };
    let never = AtomicBool::new(false);
    let scores =
        score_segmenter(&segmenter, &job.validation, &options, &mut |_| (), &never).unwrap().unwrap();
    assert_eq!((scores.num_images, scores.failures.len()), (8, 0));
    // All background: a fifth of some 80 %. Measured: see the assertion's message.
    let miou = scores.baseline.mean_iou.unwrap();
    assert!(miou > 40.0, "mIoU {miou}");
}

#[test]
fn a_deep_network_from_nothing_learns_at_the_usual_rate() {
    // Left dark, right light, and noise; the same two crops every step.
    const SIDE: usize = 33;
    let mut random = Random::new(&[1]);
    let mut crop = || {
        let labels: Vec<u8> = (0..SIDE * SIDE).map(|i| u8::from(i % SIDE > SIDE / 2)).collect();
        let mut pixel = |label: u8| [(); 3].map(|()| 150.0 * f32::from(label) + random.range(0.0, 100.0));
        Crop { pixels: labels.iter().flat_map(|&label| pixel(label)).collect(), labels }
    };
    let crops = [(String::new(), crop()), (String::new(), crop())];
    let batch =
        CropBatch::new(&crops, SIDE, &Normalisation::IMAGENET, CompareAt::Points, &Device::Cpu).unwrap();
    let network = DeepLabConfig::new(ResNetVariant::named("resnet50").unwrap().config(), 2);
    let mut parameters = network.initial_head(0, &Device::Cpu).unwrap();
    parameters.extend(network.initial_backbone(0, &Device::Cpu).unwrap());
    let step = VerifyStep::new(&network, Precision::F32, SeenAt::ThreeScales, parameters).unwrap();
    let config = VerifyConfig::default().from_scratch();
    let mut sgd = Optimiser::new(UpdateRule::from(&config.schedule), step.variables()).unwrap();
    let mut losses = Vec::new();
    for index in 0..15 {
        let (loss, gradients) = step.gradients(&batch).unwrap();
        losses.push(loss.total);
        sgd.step(&gradients, config.rate_at(index)).unwrap();
    }
    let highest = losses.iter().copied().fold(0.0, f32::max);
    assert!(losses.iter().all(|loss| loss.is_finite()) && highest < 1.5 * losses[0], "{losses:?}");
    assert!(losses[14] < 0.5 * losses[0], "{losses:?}");
}
