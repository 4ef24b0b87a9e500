//! Our side of `benches/peer/compare.py` for whole networks: runs once for every line on standard input and answers
//! with the seconds that took. The first line it prints is a number that the other side must find as well.
//!
//! `cargo run --release -p vitpcm-train --example time_network -- DEVICE PRECISION forward MODEL SIDE`
//! `cargo run --release -p vitpcm-train --example time_network -- DEVICE PRECISION step MODEL IMAGES`

#![allow(clippy::print_stdout)]

use std::io::BufRead;
use std::time::Instant;

use vitpcm::{Device, DeviceName, Precision};
use vitpcm_nets::{Dropout, DropoutRates, Mode, Model};
use vitpcm_train::optimiser::{Optimiser, UpdateRule};
use vitpcm_train::pcm_step::PcmStep;
use vitpcm_train::{TaggedBatch, TrainConfig, Trained};

type Error = Box<dyn std::error::Error + Send + Sync>;
type Tensor = candle_core::Tensor;

/// Blocks that are trained.
const NUM_TRAINED_BLOCKS: usize = 5;

fn main() -> Result<(), Error> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let [device, precision, task, model, number] = arguments[..] else {
        return Err(
            "expected: DEVICE PRECISION forward MODEL SIDE, or DEVICE PRECISION step MODEL IMAGES".into()
        );
    };
    let device = device.parse::<DeviceName>()?.open()?;
    let precision = match precision {
        "bf16" => Precision::Bf16,
        "int8" => Precision::Int8,
        _ => Precision::F32,
    };
    let model = Model::load(model, &device)?;
    match task {
        "forward" => time_forward(&model, number.parse()?, precision, &device),
        _ => time_step(model, number.parse()?, precision, &device),
    }
}

/// The network on one image.
fn time_forward(model: &Model, side: usize, precision: Precision, device: &Device) -> Result<(), Error> {
    let network = model.network()?.with_precision(precision).for_inference()?;
    let pixels = pattern(&[1, 3, side, side], device)?;
    // As `Segmenter` runs it.
    let run = || vitpcm_nets::on_worker(|| network.forward(&pixels, &mut Mode::Inference));
    println!("{}", run()?.scores_on_grid.sqr()?.sum_all()?.to_scalar::<f32>()?);
    answer(device, || {
        run()?;
        Ok(())
    })
}

/// A whole training step: three passes, gradients, Adam.
fn time_step(model: Model, num_images: usize, precision: Precision, device: &Device) -> Result<(), Error> {
    let config = TrainConfig::official();
    let network = &model.info.network;
    let (grid, side) = (config.model.grid, config.model.grid * network.backbone.patch());
    let mut tags = vec![0f32; num_images * network.num_classes];
    for (image, tags) in tags.chunks_exact_mut(network.num_classes).enumerate() {
        (tags[0], tags[image % (network.num_classes - 1) + 1]) = (1.0, 1.0);
    }
    // Every cell of a second view is the mean of four of the first.
    let half = grid / 2;
    let mut second_from_first = vec![0f32; num_images * half.pow(2) * grid.pow(2)];
    for (index, row) in second_from_first.chunks_exact_mut(grid.pow(2)).enumerate() {
        let (y, x) = (index % half.pow(2) / half * 2, index % half * 2);
        for cell in [y * grid + x, y * grid + x + 1, (y + 1) * grid + x, (y + 1) * grid + x + 1] {
            row[cell] = 0.25;
        }
    }
    let batch = TaggedBatch {
        first_views: pattern(&[num_images, 3, side, side], device)?,
        merged_views: pattern(&[num_images / 4, 3, side, side], device)?,
        tags: Tensor::from_vec(tags, (num_images, network.num_classes), device)?,
        second_from_first: Tensor::from_vec(
            second_from_first,
            (num_images, half.pow(2), grid.pow(2)),
            device,
        )?,
        pseudo_masks: None,
        names: (0..num_images).map(|image| image.to_string()).collect(),
        place: None,
    };
    let batches = [batch];
    let trained = Trained::LastBlocks(NUM_TRAINED_BLOCKS);
    let step = PcmStep::new(network, &config.losses, trained, precision, model.parameters)?;
    let mut adam = Optimiser::new(UpdateRule::from(&config.schedule), step.variables())?;
    let without = DropoutRates::NONE;
    println!("{}", step.gradients(&batches, &mut Dropout::new(0, without))?.0.total);
    let mut dropout = Dropout::new(0, config.model.dropout);
    answer(device, || {
        let (_, gradients) = step.gradients(&batches, &mut dropout)?;
        Ok(adam.step(&gradients, config.schedule.rate)?)
    })
}

/// Runs once a line.
fn answer(device: &Device, mut run: impl FnMut() -> Result<(), Error>) -> Result<(), Error> {
    for line in std::io::stdin().lock().lines() {
        line?;
        let start = Instant::now();
        run()?;
        device.synchronize()?;
        println!("{}", start.elapsed().as_secs_f64());
    }
    Ok(())
}

/// Numbers between -1 and 1 that both sides can make: a hash of the position.
fn pattern(dims: &[usize], device: &Device) -> Result<Tensor, Error> {
    let count = u32::try_from(dims.iter().product::<usize>())?;
    let value = |i: u32| (i.wrapping_mul(2_654_435_761) >> 8) as f32 / 8_388_608.0 - 1.0;
    Ok(Tensor::from_vec((0..count).map(value).collect::<Vec<_>>(), dims, device)?)
}
