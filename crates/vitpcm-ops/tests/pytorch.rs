//! The operations and their gradients against PyTorch's, stored by `reference/ops/make.py`.

use std::collections::HashMap;

use candle_core::{Device, Result, Tensor, Var};
use vitpcm_ops::{
    Activation, ConvNorm, HvBiLstmWeights, LstmWeights, PoolWindows, Products, ResizeRule, SgdStep, Window,
    attention, conv_norm, cross_entropy, depthwise, hv_bilstm, layer_norm, linear, linear_gelu,
    max_over_grid, max_pool, neighbour_sums, resize_grid, sgd_step, softmax,
};

const REFERENCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../reference/ops/ops.safetensors");

/// Runs an operation on a case's inputs and holds its output and all its gradients to PyTorch's. Inputs are handed over
/// twice: as they are, and as transposed views of transposed copies, which are not contiguous.
#[track_caller]
fn check(case: &str, run: impl Fn(&HashMap<String, Tensor>) -> Result<Tensor>) {
    let stored = candle_core::safetensors::load(REFERENCE, &Device::Cpu).expect("the stored reference");
    let of_case: HashMap<String, Tensor> = stored
        .into_iter()
        .filter_map(|(name, tensor)| Some((name.strip_prefix(case)?.strip_prefix('.')?.to_owned(), tensor)))
        .collect();
    for layout in [Layout::Contiguous, Layout::Transposed] {
        compare(case, &of_case, layout, &run).expect("the operation runs");
    }
}

#[derive(Debug, Clone, Copy)]
enum Layout {
    Contiguous,
    Transposed,
}

fn compare(
    case: &str,
    stored: &HashMap<String, Tensor>,
    layout: Layout,
    run: &impl Fn(&HashMap<String, Tensor>) -> Result<Tensor>,
) -> Result<()> {
    let mut variables = HashMap::new();
    let mut inputs = HashMap::new();
    for name in stored.keys().filter_map(|name| name.strip_prefix("grad.")) {
        let value = &stored[name];
        let (variable, input) = match layout {
            Layout::Transposed if value.rank() > 1 => {
                let variable = Var::from_tensor(&value.transpose(0, 1)?.contiguous()?)?;
                let input = variable.transpose(0, 1)?;
                (variable, input)
            }
            _ => {
                let variable = Var::from_tensor(value)?;
                let input = variable.as_tensor().clone();
                (variable, input)
            }
        };
        variables.insert(name.to_owned(), variable);
        inputs.insert(name.to_owned(), input);
    }
    let output = run(&inputs)?;
    assert_close(&output, &stored["output"], &format!("{case}, {layout:?}: output"))?;
    // Without a graph other code runs; the result must be the same.
    let detached = inputs.iter().map(|(name, input)| (name.clone(), input.detach())).collect();
    let without_graph = run(&detached)?;
    assert_close(&without_graph, &stored["output"], &format!("{case}, {layout:?}: output without graph"))?;
    assert!(!without_graph.track_op(), "{case}: a graph was built for tensors that need no gradient");

    let grads = (output * &stored["cotangent"])?.sum_all()?.backward()?;
    for (name, variable) in variables {
        let grad = grads.get(&variable).expect("a gradient for every input");
        let expected = &stored[&format!("grad.{name}")];
        let grad = match layout {
            Layout::Transposed if expected.rank() > 1 => grad.transpose(0, 1)?,
            _ => grad.clone(),
        };
        assert_close(&grad, expected, &format!("{case}, {layout:?}: gradient of {name}"))?;
    }
    Ok(())
}

fn assert_close(actual: &Tensor, expected: &Tensor, what: &str) -> Result<()> {
    assert_eq!(actual.dims(), expected.dims(), "{what}: shape");
    let actual = actual.flatten_all()?.to_vec1::<f32>()?;
    for (index, (actual, expected)) in
        actual.iter().zip(expected.flatten_all()?.to_vec1::<f32>()?).enumerate()
    {
        // Single precision on both sides: sums of some dozens of terms of size 1.
        let close = (actual - expected).abs() <= 2e-5 * expected.abs().max(1.0);
        assert!(close, "{what}: element {index} is {actual}, PyTorch says {expected}");
    }
    Ok(())
}

#[test]
fn linear_with_gelu_is_pytorchs() {
    check("linear_gelu", |inputs| linear_gelu(&inputs["x"], &inputs["weight"], Some(&inputs["bias"])));
}

#[test]
fn layer_norm_is_pytorchs() {
    check("layer_norm", |inputs| layer_norm(&inputs["x"], &inputs["weight"], &inputs["bias"], 1e-6));
}

#[test]
fn softmax_is_pytorchs() {
    check("softmax", |inputs| softmax(&inputs["x"]));
}

#[test]
fn attention_is_pytorchs() {
    check("attention", |inputs| attention(&inputs["qkv"], 2));
}

#[test]
fn the_hv_bilstm_is_two_bidirectional_lstms_of_pytorch() {
    check("hv_bilstm", |inputs| {
        let direction = |name: &str| LstmWeights {
            weight_ih: inputs[&format!("{name}_weight_ih")].clone(),
            weight_hh: inputs[&format!("{name}_weight_hh")].clone(),
            bias_ih: inputs[&format!("{name}_bias_ih")].clone(),
            bias_hh: inputs[&format!("{name}_bias_hh")].clone(),
        };
        let weights = HvBiLstmWeights {
            row_forward: direction("row_forward"),
            row_backward: direction("row_backward"),
            column_forward: direction("column_forward"),
            column_backward: direction("column_backward"),
        };
        hv_bilstm(&inputs["grid"], &weights, Products::Exact)
    });
}

#[test]
fn pooling_is_pytorchs() {
    check("max", |inputs| max_over_grid(&inputs["scores"]));
}

#[test]
fn resizing_is_pytorchs_interpolation() {
    check("enlarge_half_pixel", |inputs| resize_grid(&inputs["scores"], 9, 13, ResizeRule::HalfPixel));
    check("enlarge_half_pixel", |inputs| {
        resize_grid(&inputs["scores"], 9, 13, ResizeRule::HalfPixelUnfiltered)
    });
    check("shrink_half_pixel", |inputs| resize_grid(&inputs["scores"], 3, 4, ResizeRule::HalfPixel));
    check("shrink_unfiltered", |inputs| {
        resize_grid(&inputs["scores"], 3, 4, ResizeRule::HalfPixelUnfiltered)
    });
    check("align_corners", |inputs| resize_grid(&inputs["scores"], 9, 3, ResizeRule::AlignCorners));
}

#[test]
fn convolutions_are_pytorchs() {
    let stored = candle_core::safetensors::load(REFERENCE, &Device::Cpu).expect("the stored reference");
    for (case, stride, padding, dilation) in [
        ("conv_entrance", 2, 3, 1),
        ("conv_pointwise", 1, 0, 1),
        ("conv_pointwise_stride", 2, 0, 1),
        ("conv_atrous", 1, 2, 2),
    ] {
        let norm = ConvNorm {
            window: Window { stride, padding, dilation },
            scale: stored["conv_scale"].clone(),
            shift: stored["conv_shift"].clone(),
            activation: Activation::Relu,
        };
        check(case, |inputs| conv_norm(&inputs["x"], &inputs["weight"], &norm, Some(&inputs["residual"])));
    }
}

#[test]
fn max_pooling_is_pytorchs_with_its_choice_among_equals() {
    check("max_pool", |inputs| max_pool(&inputs["x"], PoolWindows::EverySecond));
    check("max_pool_same", |inputs| max_pool(&inputs["x"], PoolWindows::EverySecondSame));
    check("max_pool_every", |inputs| max_pool(&inputs["x"], PoolWindows::Every));
}

#[test]
fn depthwise_convolutions_are_pytorchs() {
    check("depthwise", |inputs| depthwise(&inputs["x"], &inputs["weight"], 1));
    check("depthwise_atrous", |inputs| depthwise(&inputs["x"], &inputs["weight"], 2));
}

#[test]
fn products_and_sums_of_neighbours_are_an_atrous_convolution() {
    check("few_classes", |inputs| {
        let weight = inputs["weight"].reshape((4 * 9, 6))?;
        neighbour_sums(&linear(&inputs["x"], &weight, None)?, 4, &[3])
    });
}

#[test]
fn cross_entropy_of_resized_logits_is_pytorchs() {
    let label = |index: u32| match index * 7 % 6 {
        5 => 255,
        class => class as u8,
    };
    let labels = Tensor::from_vec((0..2 * 13 * 11).map(label).collect(), (2, 13, 11), &Device::Cpu).unwrap();
    check("cross_entropy", |inputs| cross_entropy(&inputs["logits"], &labels));
}

#[test]
fn steps_of_sgd_follow_their_definition() -> Result<()> {
    let weight = Tensor::new(&[1f32, -2.0], &Device::Cpu)?;
    let velocity = Tensor::new(&[0.5f32, 0.0], &Device::Cpu)?;
    let gradient = Tensor::new(&[0.25f32, 1.0], &Device::Cpu)?;
    sgd_step(&weight, &velocity, &gradient, SgdStep { rate: 0.5, momentum: 0.5, weight_decay: 0.25 })?;
    // 0.25 + 0.25 + 0.25 · 1; 0 + 1 − 0.25 · 2
    assert_eq!(velocity.to_vec1::<f32>()?, [0.75, 0.5]);
    assert_eq!(weight.to_vec1::<f32>()?, [0.625, -2.25]);
    Ok(())
}

#[test]
fn the_gradient_of_a_tied_maximum_goes_to_the_first_cell() -> Result<()> {
    let scores = Var::new(&[[[[1f32], [5.0]], [[5.0], [2.0]]]], &Device::Cpu)?;
    let grads = max_over_grid(&scores)?.sum_all()?.backward()?;
    let grad = grads.get(&scores).expect("a gradient").flatten_all()?.to_vec1::<f32>()?;
    assert_eq!(grad, [0.0, 1.0, 0.0, 0.0]);
    Ok(())
}

#[test]
fn shapes_that_do_not_fit_are_errors() -> Result<()> {
    let zeros = |dims: &[usize]| Tensor::zeros(dims, candle_core::DType::F32, &Device::Cpu);
    assert!(linear_gelu(&zeros(&[2, 3])?, &zeros(&[4, 5])?, None).is_err());
    assert!(linear_gelu(&zeros(&[2, 5])?, &zeros(&[4, 5])?, Some(&zeros(&[5])?)).is_err());
    assert!(layer_norm(&zeros(&[2, 3])?, &zeros(&[4])?, &zeros(&[4])?, 1e-6).is_err());
    assert!(attention(&zeros(&[1, 4, 10])?, 2).is_err());
    assert!(max_over_grid(&zeros(&[1, 0, 2, 3])?).is_err());
    assert!(resize_grid(&zeros(&[1, 2, 2, 3])?, 0, 4, ResizeRule::HalfPixel).is_err());
    Ok(())
}
