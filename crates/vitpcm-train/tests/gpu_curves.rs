//! Training on an NVIDIA GPU, held to the CPU's: the losses of every step. In f32 200 steps from nothing, and 200 more from what
//! these have learned, in f32 and bf16. Without a GPU the test says so and passes.
//!
//! From nothing the demo's losses fall steeply, and there any rounding grows a hundredfold, be it that of the patches
//! alone: such a curve says little about bf16, and only its mean is held. From a network that has learned, which is how
//! people train, every step is.
#![cfg(feature = "cuda")]
#![allow(clippy::print_stdout)] // to say what was measured, or that nothing was

mod run_copy;

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::sync_channel;

use candle_core::Tensor;
use run_copy::copy_run;
use vitpcm::{Device, DeviceName, Precision};
use vitpcm_data::{Crop, Dataset, DrawnScenes, ImageLimits, OpenOptions};
use vitpcm_nets::{DeepLabConfig, Normalisation, ResNetVariant};
use vitpcm_train::crop_batch::{CompareAt, CropBatch, SeenAt};
use vitpcm_train::verify_step::VerifyStep;
use vitpcm_train::{Event, InitialBackbone, Ranks, Start, TrainConfig, TrainData, TrainJob, has_run, train};

/// Steps of eight epochs.
const STEPS: usize = 200;

/// How far the losses of a step may be apart.
#[derive(Clone, Copy)]
enum Held {
    Largest(f32),
    Mean(f32),
}

/// The loss of every step up to an epoch, on drawn scenes.
fn curve(data: &Path, out: &Path, epochs: usize, device: &Device, precision: Precision) -> Vec<f32> {
    let dataset = Dataset::open(data, &OpenOptions::default()).unwrap();
    let mut config = TrainConfig::demo();
    config.schedule.rate = 1e-4;
    config.schedule.epochs = epochs;
    config.validation.every_epochs = 8;
    let job = TrainJob {
        config,
        data: TrainData::of(&dataset, ImageLimits::default()),
        backbone: InitialBackbone::Scratch,
        out: out.to_owned(),
        start: if has_run(out) { Start::Resume } else { Start::Fresh },
        device: device.clone(),
        precision,
        features: None,
        provenance: Default::default(),
    };
    let (sender, receiver) = sync_channel(10_000);
    train(&job, &Ranks::Single, &sender, &AtomicBool::new(false)).unwrap();
    drop(sender);
    let loss = |event: Event| match event {
        Event::Step { row, .. } => Some(row.losses.total),
        _ => None,
    };
    let losses: Vec<f32> = receiver.into_iter().filter_map(loss).collect();
    assert_eq!(losses.len(), STEPS);
    losses
}

/// Whether two curves stay together; says how far apart they are.
fn stay_together(name: &str, cpu: &[f32], gpu: &[f32], held: Held) -> bool {
    let differences: Vec<f32> = cpu.iter().zip(gpu).map(|(a, b)| (a - b).abs()).collect();
    let (step, &largest) = differences.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).unwrap();
    let mean = differences.iter().sum::<f32>() / differences.len() as f32;
    println!(
        "{name}: largest difference {largest:.1e} (step {}), mean {mean:.1e}; losses {} to {}",
        step + 1,
        cpu[0],
        cpu[STEPS - 1]
    );
    match held {
        Held::Largest(limit) => largest <= limit,
        Held::Mean(limit) => mean <= limit,
    }
}

/// Labels at every pixel, at three scales: all that a verification step can be asked for.
#[test]
fn the_losses_and_gradients_of_a_verification_step_are_those_of_the_cpu() {
    let gpu = match DeviceName::Cuda(0).open() {
        Ok(gpu) => gpu,
        Err(error) => return println!("skipped: no NVIDIA GPU answers ({error})"),
    };
    const SIDE: usize = 65;
    let wave = |i: usize| (i as f32 * 0.37).sin();
    let crop = |first: usize| Crop {
        pixels: (0..3 * SIDE * SIDE).map(|i| 127.5 + 127.5 * wave(first + i)).collect(),
        labels: (0..SIDE * SIDE)
            .map(|i| if i % 7 == 0 { 255 } else { ((i + first) / 900 % 3) as u8 })
            .collect(),
    };
    let crops = [("a".to_owned(), crop(0)), ("b".to_owned(), crop(99))];
    let network = DeepLabConfig::new(ResNetVariant::named("resnet-nano").unwrap().config(), 3);
    let step_on = |device: &Device| {
        let mut parameters = network.initial_head(0, device).unwrap();
        parameters.extend(network.initial_backbone(0, device).unwrap());
        let step = VerifyStep::new(&network, Precision::F32, SeenAt::ThreeScales, parameters);
        let batch = CropBatch::new(&crops, SIDE, &Normalisation::CAFFE, CompareAt::Pixels, device).unwrap();
        let (losses, gradients) = step.unwrap().gradients(&batch).unwrap();
        let numbers = |gradient: &Tensor| gradient.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        (losses, gradients.iter().map(numbers).collect::<Vec<_>>())
    };
    let ((on_cpu, cpu), (on_gpu, gpu)) = (step_on(&Device::Cpu), step_on(&gpu));
    println!("{on_cpu:?}\n{on_gpu:?}");
    assert!((on_cpu.total - on_gpu.total).abs() < 1e-3 * on_cpu.total);
    for (index, (cpu, gpu)) in cpu.iter().zip(&gpu).enumerate() {
        let length = |values: &mut dyn Iterator<Item = f32>| values.map(|v| v * v).sum::<f32>().sqrt();
        let apart = length(&mut cpu.iter().zip(gpu).map(|(a, b)| a - b));
        assert!(apart <= 1e-2 * length(&mut cpu.iter().copied()) + 1e-6, "gradient {index}: {apart}");
    }
}

#[test]
fn the_losses_of_200_steps_stay_with_those_of_the_cpu() {
    let gpu = match DeviceName::Cuda(0).open() {
        Ok(gpu) => gpu,
        Err(error) => return println!("skipped: no NVIDIA GPU answers ({error})"),
    };
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    DrawnScenes { seed: 0, side: 96 }.write(&data, 400, 8).unwrap();
    let run = |name: &str| folder.path().join(name);

    let cpu = curve(&data, &run("cpu"), 8, &Device::Cpu, Precision::F32);
    let from_nothing = [
        ("f32, from nothing", "f32", Precision::F32, Held::Largest(1e-3)),
        ("bf16, from nothing", "bf16", Precision::Bf16, Held::Mean(2e-2)),
    ];
    let mut together = Vec::new();
    for (name, out, precision, held) in from_nothing {
        together.push(stay_together(name, &cpu, &curve(&data, &run(out), 8, &gpu, precision), held));
    }

    let learned = [
        ("f32, from what was learned", "f32 on", Precision::F32, Held::Largest(1e-3)),
        ("bf16, from what was learned", "bf16 on", Precision::Bf16, Held::Largest(2e-2)),
    ];
    learned.iter().for_each(|(_, out, ..)| copy_run(&run("cpu"), &run(out)));
    let cpu = curve(&data, &run("cpu"), 16, &Device::Cpu, Precision::F32);
    for (name, out, precision, held) in learned {
        together.push(stay_together(name, &cpu, &curve(&data, &run(out), 16, &gpu, precision), held));
    }
    assert!(together.iter().all(|&together| together), "curves part");
}
