//! Whole runs on drawn scenes with a network of seconds: what the run folder holds, that a resumed run is the same run,
//! and what happens to broken images, missing masks, missing tags and losses that explode.

mod run_copy;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;

use run_copy::copy_run;
use vitpcm_data::{Dataset, DrawnScenes, ImageLimits, OpenOptions};
use vitpcm_nets::{DropoutRates, Model};
use vitpcm_train::{
    Ending, EtTarget, Event, InitialBackbone, Ranks, Settings, Start, TrainConfig, TrainData, TrainError,
    TrainJob, TrainOutcome, Unfreeze, losses, train,
};

/// Three epochs of three steps, the first with a frozen backbone; every kind of random number and state in use.
fn config() -> TrainConfig {
    let mut config = TrainConfig::default();
    config.model.backbone = "vit-nano16".to_owned();
    config.model.grid = 4;
    config.model.inference_grid = 4;
    config.model.lstm_units = 8;
    config.model.dropout = DropoutRates::OFFICIAL;
    config.validation.grid = 4;
    config.schedule.batch = 4;
    config.schedule.effective_batch = 8;
    config.schedule.epochs = 3;
    config.schedule.unfreeze = Unfreeze::LastBlocks(2);
    config.schedule.ema_decay = 0.9;
    config.seed = 5;
    config
}

fn job(data: &Path, out: &Path, config: TrainConfig, start: Start) -> TrainJob {
    let dataset = Dataset::open(data, &OpenOptions::default()).unwrap();
    TrainJob {
        config,
        data: TrainData::of(&dataset, ImageLimits::default()),
        backbone: InitialBackbone::Scratch,
        out: out.to_owned(),
        start,
        device: vitpcm::Device::Cpu,
        precision: vitpcm::Precision::F32,
        features: None,
        provenance: Default::default(),
    }
}

/// Runs a job, asking it to stop once step `stop_at` is heard of.
fn run(job: &TrainJob, stop_at: u64) -> (Result<TrainOutcome, TrainError>, Vec<Event>) {
    let stop = AtomicBool::new(false);
    let (sender, receiver) = sync_channel(10_000);
    std::thread::scope(|scope| {
        let listener = scope.spawn(|| {
            let mut heard = Vec::new();
            for event in receiver {
                if matches!(&event, Event::Step { row, .. } if row.step >= stop_at) {
                    stop.store(true, Ordering::Relaxed);
                }
                heard.push(event);
            }
            heard
        });
        let outcome = train(job, &Ranks::Single, &sender, &stop);
        drop(sender);
        (outcome, listener.join().unwrap())
    })
}

fn scenes(folder: &Path) -> std::path::PathBuf {
    let data = folder.join("data");
    DrawnScenes { seed: 2, side: 48 }.write(&data, 20, 6).unwrap();
    data
}

/// The metrics without the column of speeds, which differ from run to run.
fn metrics(out: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(out.join("metrics.csv")).unwrap();
    let without_speed = |line: &str| {
        let cells = line.split(',').enumerate().filter(|(i, _)| *i != 9).map(|(_, cell)| cell);
        cells.collect::<Vec<_>>().join(",")
    };
    text.lines().map(without_speed).collect()
}

#[test]
fn a_resumed_run_is_the_same_run_bit_for_bit() {
    let folder = tempfile::tempdir().unwrap();
    let data = scenes(folder.path());
    let whole = folder.path().join("whole");
    let (outcome, events) = run(&job(&data, &whole, config(), Start::Fresh), u64::MAX);
    let outcome = outcome.unwrap();
    assert_eq!((outcome.ending, outcome.steps), (Ending::Finished, 9));
    assert!(outcome.best.is_some());
    assert_eq!(events.iter().filter(|event| matches!(event, Event::Validated { .. })).count(), 3);
    for file in ["config.toml", "metrics.csv", "model.safetensors", "last/state.safetensors"] {
        assert!(whole.join(file).is_file(), "{file}");
    }

    // In the warm-up, at the end of an epoch, behind the change of phase.
    for stop_at in [1, 3, 4, 8] {
        let out = folder.path().join(format!("stopped at {stop_at}"));
        let (first, _) = run(&job(&data, &out, config(), Start::Fresh), stop_at);
        let first = first.unwrap();
        assert!(first.steps >= stop_at);
        let (second, _) = run(&job(&data, &out, config(), Start::Resume), u64::MAX);
        let second = second.unwrap();
        assert_eq!((second.ending, second.steps, second.best), (Ending::Finished, 9, outcome.best));
        for file in ["last/state.safetensors", "model.safetensors", "config.toml"] {
            let same = std::fs::read(out.join(file)).unwrap() == std::fs::read(whole.join(file)).unwrap();
            assert!(same, "{file} differs after a stop at step {} and a resume", first.steps);
        }
        assert_eq!(metrics(&out), metrics(&whole));
    }
}

#[test]
fn kept_features_change_no_number_and_serve_other_runs_over_the_same_images() {
    let folder = tempfile::tempdir().unwrap();
    let data = scenes(folder.path());
    let mut pooled = config();
    pooled.views.pool = 2;
    let features = folder.path().join("features");
    let train_in = |name: &str, config: &TrainConfig, start: Start, stop_at: u64| {
        let out = folder.path().join(name);
        let mut job = job(&data, &out, config.clone(), start);
        job.features = Some(features.clone());
        run(&job, stop_at).0.unwrap();
        metrics(&out)
    };
    let whole = train_in("whole", &pooled, Start::Fresh, u64::MAX);
    let kept = || -> Vec<_> {
        let mut files: Vec<_> = std::fs::read_dir(&features).unwrap().map(|file| file.unwrap()).collect();
        files.sort_by_key(|file| file.file_name());
        files.iter().map(|file| (file.file_name(), file.metadata().unwrap().modified().unwrap())).collect()
    };
    // Two sets of views; batches of 4 of 20 images, steps of 8.
    let first = kept();
    assert_eq!(first.len(), 2 * 5);
    assert_eq!(train_in("again", &pooled, Start::Fresh, u64::MAX), whole);
    train_in("stopped", &pooled, Start::Fresh, 4);
    assert_eq!(train_in("stopped", &pooled, Start::Resume, u64::MAX), whole);
    assert_eq!(kept(), first, "features were computed again");
    let mut without = pooled.clone();
    without.views.kept_megabytes = 0;
    std::fs::remove_dir_all(&features).unwrap();
    assert_eq!(train_in("without", &without, Start::Fresh, u64::MAX), whole);
    assert!(!features.exists());
    // The third epoch draws new views without a pool.
    let fresh = train_in("fresh", &config(), Start::Fresh, u64::MAX);
    assert!(fresh != whole && !features.exists());
}

#[test]
fn a_folder_with_something_in_it_needs_resume_and_another_data_set_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let data = scenes(folder.path());
    let out = folder.path().join("run");
    let short = || {
        let mut config = config();
        config.schedule.epochs = 1;
        config
    };
    let message = run(&job(&data, &out, short(), Start::Resume), u64::MAX).0.unwrap_err().to_string();
    assert!(message.contains("no run to resume"), "{message}");
    // A run that was killed before it saved a state begins again.
    std::fs::write(out.join("config.toml"), short().to_toml().unwrap()).unwrap();
    run(&job(&data, &out, short(), Start::Resume), u64::MAX).0.unwrap();
    let message = run(&job(&data, &out, short(), Start::Fresh), u64::MAX).0.unwrap_err().to_string();
    assert!(message.contains("not empty") && message.contains("--resume"), "{message}");

    let other = folder.path().join("other");
    DrawnScenes { seed: 9, side: 48 }.write(&other, 20, 6).unwrap();
    let message = run(&job(&other, &out, short(), Start::Resume), u64::MAX).0.unwrap_err().to_string();
    assert!(message.contains("another data set"), "{message}");
    let mut wider = short();
    wider.model.lstm_units = 16;
    let message = run(&job(&data, &out, wider, Start::Resume), u64::MAX).0.unwrap_err().to_string();
    assert!(message.contains("another network"), "{message}");
    // More epochs are no other run.
    let mut longer = short();
    longer.schedule.epochs = 2;
    assert_eq!(run(&job(&data, &out, longer, Start::Resume), u64::MAX).0.unwrap().steps, 6);
}

#[test]
fn a_run_goes_on_without_images_that_are_gone_as_it_does_without_broken_ones() {
    let folder = tempfile::tempdir().unwrap();
    let data = scenes(folder.path());
    let [gone, broken, back] = ["gone", "broken", "back"].map(|name| folder.path().join(name));
    assert_eq!(run(&job(&data, &gone, config(), Start::Fresh), 2).0.unwrap().ending, Ending::Interrupted);
    copy_run(&gone, &broken);
    copy_run(&gone, &back);
    let names = ["scene-0000.png", "scene-0007.png"];
    let paths = names.map(|name| data.join("images").join(name));
    let bytes = paths.clone().map(|path| std::fs::read(path).unwrap());

    paths.iter().for_each(|path| std::fs::write(path, b"broken").unwrap());
    assert_eq!(run(&job(&data, &broken, config(), Start::Resume), u64::MAX).0.unwrap().steps, 9);
    paths.iter().for_each(|path| std::fs::remove_file(path).unwrap());
    let (outcome, events) = run(&job(&data, &gone, config(), Start::Resume), u64::MAX);
    assert_eq!(outcome.unwrap().steps, 9);
    let warnings = events.iter().filter_map(|event| match event {
        Event::Warning(text) => Some(text.as_str()),
        _ => None,
    });
    let warnings = warnings.collect::<Vec<_>>().join("\n");
    assert!(warnings.contains("2 of the 20 images that the run began with are gone"), "{warnings}");
    for name in names {
        assert_eq!(warnings.matches(name).count(), 1, "{warnings}");
    }
    for file in ["last/state.safetensors", "model.safetensors"] {
        let read = |run: &Path| std::fs::read(run.join(file)).unwrap();
        assert!(read(&gone) == read(&broken), "{file}: gone or broken, the run is the same");
    }

    // Once more without, then with: they are missed, not forgotten.
    run(&job(&data, &back, config(), Start::Resume), 5).0.unwrap();
    paths.iter().zip(bytes).for_each(|(path, bytes)| std::fs::write(path, bytes).unwrap());
    let (outcome, events) = run(&job(&data, &back, config(), Start::Resume), u64::MAX);
    assert_eq!(outcome.unwrap().steps, 9);
    assert!(!events.iter().any(|event| matches!(event, Event::Warning(_))));
}

#[test]
fn an_image_replaced_under_the_same_name_is_refused_unless_it_is_accepted() {
    let folder = tempfile::tempdir().unwrap();
    let data = scenes(folder.path());
    let [whole, out, old] = ["whole", "run", "old"].map(|name| folder.path().join(name));
    run(&job(&data, &whole, config(), Start::Fresh), u64::MAX).0.unwrap();
    run(&job(&data, &out, config(), Start::Fresh), 2).0.unwrap();
    copy_run(&out, &old);
    let replaced = data.join("images/scene-0003.png");
    let bytes = std::fs::read(&replaced).unwrap();
    let replace = |index| DrawnScenes { seed: 9, side: 48 }.scene(index).image.save(&replaced).unwrap();

    replace(0);
    let before = std::fs::read(out.join("last/state.safetensors")).unwrap();
    let message = run(&job(&data, &out, config(), Start::Resume), u64::MAX).0.unwrap_err().to_string();
    assert!(message.contains("1 of the 20 training images"), "{message}");
    assert!(
        message.contains(": scene-0003.png;") && message.contains("--accept-changed-images"),
        "{message}"
    );
    assert!(std::fs::read(out.join("last/state.safetensors")).unwrap() == before);

    // Accepted once, it is the run's image from then on.
    let accepted = folder.path().join("accepted");
    copy_run(&out, &accepted);
    let (outcome, events) = run(&job(&data, &accepted, config(), Start::ResumeWithChangedImages), 5);
    assert_eq!(outcome.unwrap().ending, Ending::Interrupted);
    assert!(events.iter().any(|e| matches!(e, Event::Note(text) if text.contains("scene-0003.png"))));
    assert_eq!(run(&job(&data, &accepted, config(), Start::Resume), u64::MAX).0.unwrap().steps, 9);
    replace(1);
    assert!(run(&job(&data, &accepted, config(), Start::Resume), u64::MAX).0.is_err());

    // A run of an earlier version remembers no files.
    let list = old.join("last/images.jsonl");
    let text = std::fs::read_to_string(&list).unwrap();
    let names = text.lines().map(|line| format!("{}}}\n", line.split(",\"files\"").next().unwrap()));
    std::fs::write(&list, names.collect::<String>()).unwrap();
    assert_eq!(run(&job(&data, &old, config(), Start::Resume), u64::MAX).0.unwrap().steps, 9);

    // Restored, with another time, it is the same image.
    std::fs::write(&replaced, bytes).unwrap();
    assert_eq!(run(&job(&data, &out, config(), Start::Resume), u64::MAX).0.unwrap().steps, 9);
    for file in ["last/state.safetensors", "model.safetensors"] {
        assert!(std::fs::read(out.join(file)).unwrap() == std::fs::read(whole.join(file)).unwrap(), "{file}");
    }
}

#[test]
fn more_than_a_few_missing_images_make_another_data_set() {
    let folder = tempfile::tempdir().unwrap();
    let data = scenes(folder.path());
    let out = folder.path().join("run");
    run(&job(&data, &out, config(), Start::Fresh), 1).0.unwrap();
    let refused = || run(&job(&data, &out, config(), Start::Resume), u64::MAX).0.unwrap_err().to_string();
    let tags = std::fs::read_to_string(data.join("tags.csv")).unwrap();
    let change =
        |from: &str, to: &str| std::fs::write(data.join("tags.csv"), tags.replace(from, to)).unwrap();
    let line = tags.lines().find(|line| line.contains("scene-0003.png")).unwrap();
    let (name, rest) = line.split_once(',').unwrap();
    let other = if rest.contains("disc") { rest.replace("disc", "") } else { format!("disc;{rest}") };
    change(line, &format!("{name},{other}"));
    assert!(refused().contains("scene-0003.png had other tags"), "{}", refused());
    change("", "");
    std::fs::copy(data.join("images/scene-0003.png"), data.join("images/more.png")).unwrap();
    std::fs::write(data.join("tags.csv"), format!("{tags}{}\n", line.replace("scene-0003", "more"))).unwrap();
    assert!(refused().contains("more.png was not in it"), "{}", refused());
    std::fs::write(data.join("tags.csv"), &tags).unwrap();
    for image in 0..11 {
        std::fs::remove_file(data.join(format!("images/scene-{image:04}.png"))).unwrap();
    }
    assert!(refused().contains("only 9 of the 20 images"), "{}", refused());
    // Runs of versions that kept no list are refused as before.
    std::fs::remove_file(out.join("last/images.jsonl")).unwrap();
    assert!(refused().contains("another data set"), "{}", refused());
}

#[test]
fn a_loss_that_explodes_names_the_batch_and_leaves_the_last_good_state() {
    let folder = tempfile::tempdir().unwrap();
    let data = scenes(folder.path());
    let out = folder.path().join("run");
    let mut exploding = config();
    exploding.schedule.warmup_rate = 1e30;
    let error = run(&job(&data, &out, exploding, Start::Fresh), u64::MAX).0.unwrap_err();
    let TrainError::NotFinite { names, step, .. } = &error else { panic!("{error}") };
    assert!(names.len() == 8 && *step <= 3, "{error}");
    assert!(error.to_string().contains(&names[0]) && names[0].contains("scene-"));
    // The state from before can go on at a sensible rate.
    assert_eq!(run(&job(&data, &out, config(), Start::Resume), u64::MAX).0.unwrap().steps, 9);
}

#[test]
fn broken_images_are_left_out_and_named_once() {
    let folder = tempfile::tempdir().unwrap();
    let data = scenes(folder.path());
    for broken in ["scene-0002.png", "scene-0021.png"] {
        std::fs::write(data.join("images").join(broken), b"broken").unwrap();
    }
    let (outcome, events) = run(&job(&data, &folder.path().join("run"), config(), Start::Fresh), u64::MAX);
    assert_eq!(outcome.unwrap().ending, Ending::Finished);
    let about = |name: &str| {
        let warnings = events.iter().filter(|e| matches!(e, Event::Warning(text) if text.contains(name)));
        warnings.count()
    };
    assert_eq!((about("scene-0002.png"), about("scene-0021.png")), (1, 1));
}

#[test]
fn without_masks_tags_and_equivariance_decide() {
    let folder = tempfile::tempdir().unwrap();
    let data = scenes(folder.path());
    std::fs::remove_dir_all(data.join("masks")).unwrap();
    let (outcome, events) = run(&job(&data, &folder.path().join("run"), config(), Start::Fresh), u64::MAX);
    let best = outcome.unwrap().best.unwrap();
    let validations = events.iter().filter_map(|event| match event {
        Event::Validated { validation, .. } => validation.clone(),
        _ => None,
    });
    let validations: Vec<_> = validations.collect();
    assert_eq!(validations.len(), 3);
    assert!(validations.iter().all(|v| v.miou.is_none() && v.et_loss.is_some_and(|loss| loss > 0.0)));
    assert!(validations.iter().all(|v| v.score.is_some_and(|score| score <= best.1)));
}

#[test]
fn one_class_images_without_tags_and_no_validation_split_are_enough() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let scenes = DrawnScenes { seed: 4, side: 32 };
    std::fs::create_dir_all(data.join("images")).unwrap();
    let mut table = "image,tags\n".to_owned();
    for i in 0..9 {
        let scene = scenes.scene(i);
        scene.image.save(data.join(format!("images/{i}.png"))).unwrap();
        table += &format!("{i}.png,{}\n", if scene.tags.contains(1) { "disc" } else { "" });
    }
    std::fs::write(data.join("tags.csv"), table).unwrap();
    for et_target in [EtTarget::None, EtTarget::Symmetric] {
        let mut config = config();
        config.losses.et_target = et_target;
        let out = folder.path().join(format!("{et_target:?}"));
        let (outcome, _) = run(&job(&data, &out, config, Start::Fresh), u64::MAX);
        assert_eq!(outcome.unwrap().best, None);
        let model = Model::load(out.join("model.safetensors"), &vitpcm::Device::Cpu).unwrap();
        assert_eq!(model.info.classes, ["background", "disc"]);
        assert_eq!(model.info.provenance["epoch"], "3");
    }
}

#[test]
fn a_second_round_learns_from_pseudo_masks_and_is_resumed_with_them_only() {
    let folder = tempfile::tempdir().unwrap();
    let data = scenes(folder.path());
    let masks = folder.path().join("pseudo-masks");
    std::fs::create_dir(&masks).unwrap();
    for mask in std::fs::read_dir(data.join("masks")).unwrap().map(Result::unwrap) {
        std::fs::copy(mask.path(), masks.join(mask.file_name())).unwrap();
    }
    std::fs::remove_file(masks.join("scene-0003.png")).unwrap(); // this image does without
    std::fs::write(masks.join("scene-0004.png"), b"no mask").unwrap();
    let out = folder.path().join("run");
    let second_round = |start| {
        let mut job = job(&data, &out, config(), start);
        job.data.pseudo_masks = Some(masks.clone());
        job
    };
    assert_eq!(second_round(Start::Fresh).data.num_pseudo_masks(), 19);
    let (outcome, events) = run(&second_round(Start::Fresh), 4);
    assert_eq!(outcome.unwrap().ending, Ending::Interrupted);
    let losses = events.iter().filter_map(|event| match event {
        Event::Step { row, .. } => Some(row.losses.get(losses::MASKS)),
        _ => None,
    });
    let losses: Vec<f32> = losses.collect();
    assert!(losses.iter().all(|&loss| loss > 0.0) && losses.last() < losses.first(), "{losses:?}");
    assert!(
        events.iter().any(|event| matches!(event, Event::Warning(text) if text.contains("scene-0004.png")))
    );

    let message = run(&job(&data, &out, config(), Start::Resume), u64::MAX).0.unwrap_err().to_string();
    assert!(message.contains("pseudo-masks"), "{message}");
    let mask = masks.join("scene-0005.png");
    let bytes = std::fs::read(&mask).unwrap();
    std::fs::copy(masks.join("scene-0006.png"), &mask).unwrap();
    let message = run(&second_round(Start::Resume), u64::MAX).0.unwrap_err().to_string();
    assert!(message.contains("masks, changed since the run began: scene-0005.png;"), "{message}");
    std::fs::write(mask, bytes).unwrap();
    assert_eq!(run(&second_round(Start::Resume), u64::MAX).0.unwrap().steps, 9);
}
