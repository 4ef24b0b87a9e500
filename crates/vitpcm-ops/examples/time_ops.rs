//! Times the operations at the sizes of ViT-S, on all cores or on `RAYON_NUM_THREADS` of them, and prints one line
//! each: name, median milliseconds, GFLOP/s. `benches/peer/compare.py` runs it in turns with PyTorch.
//!
//! `cargo run --release -p vitpcm-ops --example time_ops [name ...]`

#![allow(clippy::print_stdout)]

use std::time::Instant;

use candle_core::{Device, Result, Tensor, Var};
use vitpcm_ops::{
    HvBiLstmWeights, LstmWeights, Products, attention, gelu, hv_bilstm, layer_norm, linear, linear_gelu,
};

fn main() -> Result<()> {
    // Inside rayon's pool, as `vitpcm_ops` recommends.
    rayon::scope(|_| run())
}

fn run() -> Result<()> {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let time = |name: &str, flops: f64, run: &dyn Fn() -> Result<()>| -> Result<()> {
        if wanted.is_empty() || wanted.iter().any(|wanted| name.starts_with(wanted.as_str())) {
            let milliseconds = median_milliseconds(run)?;
            println!("{name} {milliseconds:.3} ms {:.1} GFLOP/s", flops / milliseconds / 1e6);
        }
        Ok(())
    };
    let (left, right) = (noise(&[2048, 2048])?, noise(&[2048, 2048])?);
    time("product_2048", 2.0 * 2048f64.powi(3), &|| linear(&left, &right, None).map(drop))?;
    for tokens in [577, 3601] {
        let x = noise(&[1, tokens, 384])?;
        let hidden = noise(&[1, tokens, 1536])?;
        let (weight, bias) = (noise(&[1536, 384])?, noise(&[1536])?);
        let (back, back_bias) = (noise(&[384, 1536])?, noise(&[384])?);
        let (scale, shift) = (noise(&[384])?, noise(&[384])?);
        let qkv = noise(&[1, tokens, 1152])?;
        let product = 2.0 * tokens as f64 * 384.0 * 1536.0;
        let pairs = 4.0 * (tokens * tokens) as f64 * 384.0;
        time(&format!("linear_384_1536_{tokens}"), product, &|| linear(&x, &weight, Some(&bias)).map(drop))?;
        time(&format!("linear_gelu_384_1536_{tokens}"), product, &|| {
            linear_gelu(&x, &weight, Some(&bias)).map(drop)
        })?;
        time(&format!("linear_1536_384_{tokens}"), product, &|| {
            linear(&hidden, &back, Some(&back_bias)).map(drop)
        })?;
        time(&format!("gelu_1536_{tokens}"), 0.0, &|| gelu(&hidden).map(drop))?;
        time(&format!("layer_norm_384_{tokens}"), 0.0, &|| layer_norm(&x, &scale, &shift, 1e-6).map(drop))?;
        time(&format!("attention_{tokens}"), pairs, &|| attention(&qkv, 6).map(drop))?;
        let qkv = Var::from_tensor(&qkv)?;
        time(&format!("attention_backward_{tokens}"), 3.5 * pairs, &|| {
            attention(&qkv, 6)?.sum_all()?.backward().map(drop)
        })?;
    }
    let grid = noise(&[1, 24, 24, 384])?;
    let weights = lstm_weights()?;
    let constants = detached(&weights);
    // Four directions: input projections and recurrent products.
    let flops = 2.0 * 576.0 * 3072.0 * (384.0 + 192.0);
    time("hv_bilstm_24", flops, &|| hv_bilstm(&grid, &constants, Products::Exact).map(drop))?;
    let grid = Var::from_tensor(&grid)?;
    time("hv_bilstm_backward_24", 3.0 * flops, &|| {
        hv_bilstm(&grid, &weights, Products::Exact)?.sum_all()?.backward().map(drop)
    })
}

fn median_milliseconds(run: &dyn Fn() -> Result<()>) -> Result<f64> {
    run()?;
    let mut times = Vec::new();
    let begin = Instant::now();
    while times.len() < 5 || (begin.elapsed().as_secs_f64() < 0.5 && times.len() < 100) {
        let start = Instant::now();
        run()?;
        times.push(1e3 * start.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

fn noise(dims: &[usize]) -> Result<Tensor> {
    Tensor::randn(0f32, 1.0, dims, &Device::Cpu)
}

fn lstm_weights() -> Result<HvBiLstmWeights> {
    let parameter = |dims: &[usize]| -> Result<Tensor> {
        Ok(Var::from_tensor(&(noise(dims)? * 0.05)?)?.as_tensor().clone())
    };
    let direction = || -> Result<LstmWeights> {
        Ok(LstmWeights {
            weight_ih: parameter(&[768, 384])?,
            weight_hh: parameter(&[768, 192])?,
            bias_ih: parameter(&[768])?,
            bias_hh: parameter(&[768])?,
        })
    };
    Ok(HvBiLstmWeights {
        row_forward: direction()?,
        row_backward: direction()?,
        column_forward: direction()?,
        column_backward: direction()?,
    })
}

fn detached(weights: &HvBiLstmWeights) -> HvBiLstmWeights {
    let direction = |lstm: &LstmWeights| LstmWeights {
        weight_ih: lstm.weight_ih.detach(),
        weight_hh: lstm.weight_hh.detach(),
        bias_ih: lstm.bias_ih.detach(),
        bias_hh: lstm.bias_hh.detach(),
    };
    HvBiLstmWeights {
        row_forward: direction(&weights.row_forward),
        row_backward: direction(&weights.row_backward),
        column_forward: direction(&weights.column_forward),
        column_backward: direction(&weights.column_backward),
    }
}
