//! Criterion benches of the operations at the sizes of ViT-S at 384 px (577 tokens) and of the 24 x 24 grid.
//! `examples/time_ops.rs` has the larger sizes and the comparison with PyTorch.
//!
//! `cargo bench -p vitpcm-ops`

#![allow(missing_docs)]

use candle_core::{Device, Tensor, Var};
use criterion::{Criterion, criterion_group, criterion_main};
use vitpcm_ops::{
    DropoutMask, HvBiLstmWeights, LstmWeights, Products, ResizeRule, attention, dropout, gelu, hv_bilstm,
    layer_norm, linear, linear_gelu, max_over_grid, resize_grid, softmax,
};

fn noise(dims: &[usize]) -> Tensor {
    Tensor::randn(0f32, 1.0, dims, &Device::Cpu).expect("noise")
}

fn variable(dims: &[usize]) -> Tensor {
    Var::from_tensor(&(noise(dims) * 0.05).expect("scaled")).expect("a variable").as_tensor().clone()
}

fn forward(criterion: &mut Criterion) {
    let (x, hidden, qkv) = (noise(&[1, 577, 384]), noise(&[1, 577, 1536]), noise(&[1, 577, 1152]));
    let (weight, bias) = (noise(&[1536, 384]), noise(&[1536]));
    let (scale, shift) = (noise(&[384]), noise(&[384]));
    let scores = noise(&[1, 24, 24, 21]);
    criterion.bench_function("linear 384-1536", |b| b.iter(|| linear(&x, &weight, Some(&bias))));
    criterion
        .bench_function("linear and gelu 384-1536", |b| b.iter(|| linear_gelu(&x, &weight, Some(&bias))));
    criterion.bench_function("gelu 1536", |b| b.iter(|| gelu(&hidden)));
    criterion.bench_function("layer norm 384", |b| b.iter(|| layer_norm(&x, &scale, &shift, 1e-6)));
    criterion.bench_function("attention 6 heads", |b| b.iter(|| attention(&qkv, 6)));
    criterion.bench_function("softmax 21", |b| b.iter(|| softmax(&scores)));
    criterion.bench_function("max over grid", |b| b.iter(|| max_over_grid(&scores)));
    criterion.bench_function("resize grid to 384", |b| {
        b.iter(|| resize_grid(&scores, 384, 384, ResizeRule::HalfPixel));
    });
}

fn forward_and_backward(criterion: &mut Criterion) {
    let qkv = variable(&[1, 577, 1152]);
    criterion.bench_function("attention 6 heads, with gradient", |b| {
        b.iter(|| attention(&qkv, 6)?.sum_all()?.backward());
    });
    let (x, weight, bias) = (variable(&[577, 384]), variable(&[1536, 384]), variable(&[1536]));
    criterion.bench_function("linear and gelu 384-1536, with gradient", |b| {
        b.iter(|| linear_gelu(&x, &weight, Some(&bias))?.sum_all()?.backward());
    });
    let mask = DropoutMask { key: 1, position: 0, rate: 0.1 };
    criterion.bench_function("dropout 384", |b| b.iter(|| dropout(&x, mask)));
    let direction = || LstmWeights {
        weight_ih: variable(&[768, 384]),
        weight_hh: variable(&[768, 192]),
        bias_ih: variable(&[768]),
        bias_hh: variable(&[768]),
    };
    let weights = HvBiLstmWeights {
        row_forward: direction(),
        row_backward: direction(),
        column_forward: direction(),
        column_backward: direction(),
    };
    let grid = variable(&[1, 24, 24, 384]);
    criterion.bench_function("hv-bilstm 24 x 24, with gradient", |b| {
        b.iter(|| hv_bilstm(&grid, &weights, Products::Exact)?.sum_all()?.backward());
    });
}

criterion_group!(benches, forward, forward_and_backward);
criterion_main!(benches);
