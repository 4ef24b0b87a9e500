//! Two hundred steps of training on an NVIDIA GPU, held to the CPU's: the losses of every step, in f32 and bf16. Without a
//! GPU the test says so and passes.
#![cfg(feature = "cuda")]
#![allow(clippy::print_stdout)] // to say what was measured, or that nothing was

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::sync_channel;

use vitpcm::{Device, DeviceName, Precision};
use vitpcm_data::{Dataset, DrawnScenes, ImageLimits, OpenOptions};
use vitpcm_train::{Backbone, Event, Ranks, Start, TrainConfig, TrainData, TrainJob, train};

/// The loss of every step of eight epochs on drawn scenes.
fn curve(data: &Path, out: &Path, device: Device, precision: Precision) -> Vec<f32> {
    let dataset = Dataset::open(data, &OpenOptions::default()).unwrap();
    let mut config = TrainConfig::demo();
    // From nothing at the demo's rate of 1e-3 any rounding grows: the curves part by a tenth and meet again.
    config.schedule.rate = 1e-4;
    config.schedule.epochs = 8;
    config.validation.every_epochs = 8;
    let job = TrainJob {
        config,
        data: TrainData::of(&dataset, ImageLimits::default()),
        backbone: Backbone::Scratch,
        out: out.to_owned(),
        start: Start::Fresh,
        device,
        precision,
        provenance: Default::default(),
    };
    let (sender, receiver) = sync_channel(10_000);
    train(&job, &Ranks::Single, &sender, &AtomicBool::new(false)).unwrap();
    drop(sender);
    let loss = |event: Event| match event {
        Event::Step { row, .. } => Some(row.loss),
        _ => None,
    };
    receiver.into_iter().filter_map(loss).collect()
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
    let of = |name: &str, device: &Device, precision| {
        curve(&data, &folder.path().join(name), device.clone(), precision)
    };
    let cpu = of("cpu", &Device::Cpu, Precision::F32);
    assert_eq!(cpu.len(), 200);
    let mut failures = Vec::new();
    for (name, precision, limit) in [("f32", Precision::F32, 1e-3), ("bf16", Precision::Bf16, 2e-2)] {
        let found = of(name, &gpu, precision);
        let differences: Vec<f32> = cpu.iter().zip(&found).map(|(a, b)| (a - b).abs()).collect();
        let (step, largest) = differences.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).unwrap();
        let mean = differences.iter().sum::<f32>() / differences.len() as f32;
        let (first, last) = (cpu[0], cpu[199]);
        println!(
            "{name}: largest difference {largest:.1e} (step {}), mean {mean:.1e}; losses {first} to {last}",
            step + 1
        );
        if *largest > limit {
            failures.push(format!("{name}: a loss differs by {largest:e}"));
        }
    }
    assert!(failures.is_empty(), "{failures:?}");
}
