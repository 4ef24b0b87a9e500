//! Every operation on an NVIDIA GPU, held to its twin on the CPU: values and gradients, in f32 and, where the network runs
//! in it, in bf16. Without a GPU the tests say so and pass.
#![cfg(feature = "cuda")]
#![allow(clippy::print_stdout)] // to say that a test was skipped

use candle_core::{DType, Device, Result, Tensor, Var};
use vitpcm_ops as ops;

/// The GPU; one for all tests, since each would bring its own handles.
fn gpu() -> Option<Device> {
    static GPU: std::sync::OnceLock<Option<Device>> = std::sync::OnceLock::new();
    GPU.get_or_init(|| match ops::open_cuda(0) {
        Ok(device) => Some(device),
        Err(error) => {
            println!("skipped: no NVIDIA GPU answers ({error})");
            None
        }
    })
    .clone()
}

/// Numbers around zero, the same every time.
fn noise(dims: &[usize], seed: u64) -> Tensor {
    let count = dims.iter().product::<usize>() as u64;
    // The sum of three uniform numbers, of variance one.
    let value = |i: u64| {
        let sum: f32 = (0..3).map(|k| ops::uniform(ops::random_bits(seed, 3 * i + k))).sum();
        (sum - 1.5) * 2.0
    };
    Tensor::from_vec((0..count).map(value).collect::<Vec<f32>>(), dims, &Device::Cpu).expect("noise")
}

struct Input {
    value: Tensor,
    /// Its type on the GPU; on the CPU everything is f32.
    dtype: DType,
}

fn f32s(dims: &[usize], seed: u64) -> Input {
    Input { value: noise(dims, seed), dtype: DType::F32 }
}

fn in_type(dims: &[usize], seed: u64, dtype: DType) -> Input {
    // Rounded on both sides, so that only the arithmetic differs.
    let value = noise(dims, seed).to_dtype(dtype).and_then(|x| x.to_dtype(DType::F32)).expect("a cast");
    Input { value, dtype }
}

/// Output and gradients of all inputs, as f32 on the CPU.
fn outcome(
    device: &Device,
    inputs: &[Input],
    operation: &dyn Fn(&[Tensor]) -> Result<Tensor>,
) -> Vec<Tensor> {
    let run = || -> Result<Vec<Tensor>> {
        let variables = inputs
            .iter()
            .map(|input| {
                let dtype = if device.is_cuda() { input.dtype } else { DType::F32 };
                Var::from_tensor(&input.value.to_device(device)?.to_dtype(dtype)?)
            })
            .collect::<Result<Vec<_>>>()?;
        let tensors: Vec<Tensor> = variables.iter().map(|variable| variable.as_tensor().clone()).collect();
        let output = operation(&tensors)?;
        let cotangent = noise(output.dims(), 99).to_device(device)?;
        let loss = (output.to_dtype(DType::F32)? * cotangent)?.sum_all()?;
        let gradients = loss.backward()?;
        let mut all = vec![output];
        for variable in &variables {
            all.push(gradients.get(variable).expect("a gradient").clone());
        }
        all.iter().map(|tensor| tensor.to_dtype(DType::F32)?.to_device(&Device::Cpu)).collect()
    };
    run().expect("the operation runs")
}

#[track_caller]
fn check(tolerance: f32, inputs: &[Input], operation: impl Fn(&[Tensor]) -> Result<Tensor>) {
    let Some(gpu) = gpu() else { return };
    let (on_cpu, on_gpu) = (outcome(&Device::Cpu, inputs, &operation), outcome(&gpu, inputs, &operation));
    for (index, (expected, found)) in on_cpu.iter().zip(&on_gpu).enumerate() {
        assert_eq!(expected.dims(), found.dims(), "shape of result {index}");
        let values =
            |tensor: &Tensor| tensor.flatten_all().and_then(|flat| flat.to_vec1::<f32>()).expect("floats");
        let (expected, found) = (values(expected), values(found));
        let largest = expected.iter().fold(0f32, |largest, value| largest.max(value.abs()));
        let worst = expected.iter().zip(&found).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
        assert!(
            worst <= tolerance * largest.max(1e-3) && found.iter().all(|value| value.is_finite()),
            "result {index} (0: output, then gradients): off by {worst}, largest value {largest}"
        );
    }
}

const EXACT: f32 = 2e-5;
/// bf16 keeps 8 bits: one rounding is up to 0.4 %, and a result goes through several.
const ROUNDED: f32 = 2e-2;

#[test]
fn linear_layers_agree() {
    for (dtype, tolerance) in [(DType::F32, EXACT), (DType::BF16, ROUNDED)] {
        let layer = [in_type(&[2, 37, 48], 1, dtype), f32s(&[40, 48], 2), f32s(&[40], 3)];
        check(tolerance, &layer, |v| ops::linear(&v[0], &v[1], Some(&v[2])));
        check(tolerance, &layer, |v| ops::linear_gelu(&v[0], &v[1], Some(&v[2])));
        check(tolerance, &layer[..2], |v| ops::linear(&v[0], &v[1], None));
    }
    // Numbers of features that no vector divides.
    let odd = [f32s(&[5, 7], 1), f32s(&[21, 7], 2), f32s(&[21], 3)];
    check(EXACT, &odd, |v| ops::linear(&v[0], &v[1], Some(&v[2])));
}

#[test]
fn a_fused_gelu_without_a_graph_agrees() {
    let Some(gpu) = gpu() else { return };
    let (x, weight, bias) = (noise(&[9, 16], 1), noise(&[12, 16], 2), noise(&[12], 3));
    let on = |device: &Device| -> Result<Vec<Vec<f32>>> {
        let [x, weight, bias] = [&x, &weight, &bias].map(|tensor| tensor.to_device(device));
        ops::linear_gelu(&x?, &weight?, Some(&bias?))?.to_vec2()
    };
    let (a, b) = (on(&Device::Cpu).unwrap().concat(), on(&gpu).unwrap().concat());
    assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 1e-4));
}

#[test]
fn gelu_agrees() {
    for (dtype, tolerance) in [(DType::F32, EXACT), (DType::BF16, ROUNDED)] {
        check(tolerance, &[in_type(&[3, 1001], 1, dtype)], |v| ops::gelu(&v[0]));
    }
}

#[test]
fn layer_norm_agrees() {
    for columns in [21, 192, 768] {
        let norm = [f32s(&[3, 50, columns], 1), f32s(&[columns], 2), f32s(&[columns], 3)];
        check(EXACT, &norm, |v| ops::layer_norm(&v[0], &v[1], &v[2], 1e-6));
        check(ROUNDED, &norm, |v| {
            let dtype = if v[0].device().is_cuda() { DType::BF16 } else { DType::F32 };
            ops::layer_norm_to(&v[0], &v[1], &v[2], 1e-6, dtype)
        });
    }
}

#[test]
fn softmax_agrees() {
    for classes in [2, 21, 81] {
        check(EXACT, &[f32s(&[7, 6, classes], 1)], |v| ops::softmax(&v[0]));
    }
}

#[test]
fn attention_agrees() {
    // Sizes of every softmax kernel: in a warp's registers, wider, in a block's registers, without any.
    for (batch, tokens, heads, head_dim) in
        [(2, 9, 3, 12), (2, 577, 2, 64), (1, 1000, 1, 64), (1, 2000, 1, 16), (1, 4200, 1, 16)]
    {
        let dims = [batch, tokens, 3 * heads * head_dim];
        check(1e-4, &[f32s(&dims, 1)], |v| ops::attention(&v[0], heads));
        check(3e-2, &[in_type(&dims, 1, DType::BF16)], |v| ops::attention(&v[0], heads));
    }
}

#[test]
fn residual_sums_agree() {
    for (dtype, tolerance) in [(DType::F32, EXACT), (DType::BF16, ROUNDED)] {
        let sum = [f32s(&[4, 30, 96], 1), in_type(&[4, 30, 96], 2, dtype), f32s(&[96], 3)];
        check(tolerance, &sum, |v| ops::add_scaled(&v[0], &v[1], Some(&v[2])));
        check(tolerance, &sum[..2], |v| ops::add_scaled(&v[0], &v[1], None));
    }
}

#[test]
fn dropout_drops_the_same_elements() {
    let mask = ops::DropoutMask { key: 77, position: 12_345, rate: 0.3 };
    for (dtype, tolerance) in [(DType::F32, 0.0), (DType::BF16, ROUNDED)] {
        check(tolerance, &[in_type(&[3, 1003], 1, dtype)], |v| ops::dropout(&v[0], mask));
    }
}

#[test]
fn pooling_agrees() {
    check(EXACT, &[f32s(&[3, 24, 24, 21], 1)], |v| ops::max_over_grid(&v[0]));
    check(EXACT, &[f32s(&[2, 5, 7, 4], 1)], |v| ops::max_over_grid(&v[0]));
    check(EXACT, &[f32s(&[2, 5, 7, 4], 1)], |v| ops::top_k_over_grid(&v[0], 6));
}

#[test]
fn resampling_agrees() {
    check(EXACT, &[f32s(&[2, 5, 7, 4], 1)], |v| ops::resize_grid(&v[0], 9, 3, ops::ResizeRule::HalfPixel));
}

#[test]
fn convolutions_agree() {
    // Entrance, 1×1, 1×1 with a stride, 3×3 with a stride, atrous; channels that vectors divide, and that none does.
    for (kernel, stride, padding, dilation) in
        [(7, 2, 3, 1), (1, 1, 0, 1), (1, 2, 0, 1), (3, 2, 1, 1), (3, 1, 4, 4)]
    {
        for (channels, outputs) in [(3, 5), (16, 24)] {
            let out = |size: usize| (size + 2 * padding - dilation * (kernel - 1) - 1) / stride + 1;
            for (dtype, tolerance) in [(DType::F32, EXACT), (DType::BF16, ROUNDED)] {
                let convolution = [
                    in_type(&[3, 13, 10, channels], 1, dtype),
                    f32s(&[outputs, kernel, kernel, channels], 2),
                    in_type(&[3, out(13), out(10), outputs], 3, dtype),
                ];
                let norm = |device: &Device| ops::ConvNorm {
                    window: ops::Window { stride, padding, dilation },
                    scale: noise(&[outputs], 4).to_device(device).expect("a scale"),
                    shift: noise(&[outputs], 5).to_device(device).expect("a shift"),
                    activation: ops::Activation::None,
                };
                check(tolerance, &convolution, |v| {
                    ops::conv_norm(&v[0], &v[1], &norm(v[0].device()), Some(&v[2]))
                });
                // Rounding moves values over ReLU's edge; only exact numbers can be held to it.
                if dtype == DType::F32 {
                    check(tolerance, &convolution[..2], |v| {
                        let norm = ops::ConvNorm { activation: ops::Activation::Relu, ..norm(v[0].device()) };
                        ops::conv_norm(&v[0], &v[1], &norm, None)
                    });
                }
            }
        }
    }
}

#[test]
fn max_pooling_agrees() {
    for dtype in [DType::F32, DType::BF16] {
        for (height, width) in [(9, 8), (8, 9), (1, 2)] {
            // Rounded to bf16 on both sides, so that equals are equal on both.
            let x = in_type(&[2, height, width, 5], 1, DType::BF16);
            let x = [Input { dtype, ..x }];
            use ops::PoolWindows::{Every, EverySecond, EverySecondSame};
            for windows in [Every, EverySecond, EverySecondSame] {
                check(ROUNDED, &x, |v| ops::max_pool(&v[0], windows));
            }
        }
    }
}

#[test]
fn depthwise_convolutions_agree() {
    for (dtype, tolerance) in [(DType::F32, EXACT), (DType::BF16, ROUNDED)] {
        for (height, width, channels, dilation) in
            [(9, 7, 40, 1), (13, 10, 5, 2), (2, 1, 3, 4), (40, 30, 33, 1)]
        {
            let inputs = [in_type(&[3, height, width, channels], 1, dtype), f32s(&[3, 3, channels], 2)];
            check(tolerance, &inputs, |v| ops::depthwise(&v[0], &v[1], dilation));
        }
    }
}

#[test]
fn sums_of_neighbours_agree() {
    for (dtype, tolerance) in [(DType::F32, EXACT), (DType::BF16, ROUNDED)] {
        check(tolerance, &[in_type(&[2, 7, 9, 4 * 9], 1, dtype)], |v| ops::neighbour_sums(&v[0], 3));
    }
}

#[test]
fn the_hv_bilstm_agrees() {
    for (height, width) in [(6, 6), (3, 5)] {
        for (products, tolerance) in [(ops::Products::Exact, 5e-5), (ops::Products::Tf32, 5e-3)] {
            let (features, units) = (24, 16);
            let mut inputs = vec![f32s(&[2, height, width, features], 1)];
            for direction in 0..4 {
                let seed = 10 * (direction + 1);
                for (part, dims) in
                    [vec![4 * units, features], vec![4 * units, units], vec![4 * units], vec![4 * units]]
                        .iter()
                        .enumerate()
                {
                    let value = (noise(dims, seed + part as u64) * 0.3).expect("scaled");
                    inputs.push(Input { value, dtype: DType::F32 });
                }
            }
            check(tolerance, &inputs, |v| {
                let direction = |index: usize| ops::LstmWeights {
                    weight_ih: v[4 * index + 1].clone(),
                    weight_hh: v[4 * index + 2].clone(),
                    bias_ih: v[4 * index + 3].clone(),
                    bias_hh: v[4 * index + 4].clone(),
                };
                let weights = ops::HvBiLstmWeights {
                    row_forward: direction(0),
                    row_backward: direction(1),
                    column_forward: direction(2),
                    column_backward: direction(3),
                };
                ops::hv_bilstm(&v[0], &weights, products)
            });
        }
    }
}

#[test]
fn optimisers_agree() {
    let Some(gpu) = gpu() else { return };
    let step = ops::AdamStep { beta1: 0.9, beta2: 0.999, rate: 0.01, root_correction2: 0.03, eps: 1e-7 };
    let on = |device: &Device| -> Result<Vec<Vec<f32>>> {
        let tensor = |seed: u64| noise(&[5000], seed).to_device(device);
        let (weight, mean, gradient) = (tensor(1)?, tensor(2)?, tensor(4)?);
        let (mean_square, average) = (tensor(3)?.sqr()?, tensor(5)?);
        ops::adam_step(&weight, &mean, &mean_square, &gradient, step)?;
        ops::follow(&average, &weight, 0.9)?;
        [weight, mean, mean_square, average].iter().map(|tensor| tensor.to_vec1::<f32>()).collect()
    };
    let (a, b) = (on(&Device::Cpu).unwrap().concat(), on(&gpu).unwrap().concat());
    assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() <= 1e-5 * a.abs().max(1.0)));

    let step = ops::SgdStep { rate: 0.1, momentum: 0.9, weight_decay: 5e-4 };
    let on = |device: &Device| -> Result<Vec<Vec<f32>>> {
        let tensor = |seed: u64| noise(&[5000], seed).to_device(device);
        let (weight, velocity, gradient) = (tensor(1)?, tensor(2)?, tensor(3)?);
        ops::sgd_step(&weight, &velocity, &gradient, step)?;
        [weight, velocity].iter().map(|tensor| tensor.to_vec1::<f32>()).collect()
    };
    let (a, b) = (on(&Device::Cpu).unwrap().concat(), on(&gpu).unwrap().concat());
    assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() <= 1e-5 * a.abs().max(1.0)));
}

#[test]
fn what_is_uploaded_arrives_in_order() {
    let Some(gpu) = gpu() else { return };
    let mut uploader = ops::Uploader::new(&gpu);
    // More than there are buffers, and parts of larger tensors.
    let sent: Vec<Tensor> =
        (0..5).map(|i| noise(&[3, 700, 401], i).narrow(0, 1, 2).expect("a part")).collect();
    // Copies wait behind work of the GPU, as in training: a buffer may not be filled again before its turn has come.
    let large = noise(&[4096, 4096], 9).to_device(&gpu).expect("on the GPU");
    let upload = |tensor: &Tensor| {
        (0..20).for_each(|_| drop(large.matmul(&large).expect("a product")));
        uploader.upload(tensor).expect("uploaded")
    };
    let there: Vec<Tensor> = sent.iter().map(upload).collect();
    for (sent, there) in sent.iter().zip(&there) {
        assert!(there.device().is_cuda());
        let values = |tensor: &Tensor| tensor.flatten_all().and_then(|t| t.to_vec1::<f32>()).expect("values");
        assert_eq!(values(sent), values(there));
    }
}

#[test]
fn a_group_of_one_gpu_sums_to_itself() {
    let Some(gpu) = gpu() else { return };
    let nccl = match ops::Nccl::load() {
        Ok(nccl) => nccl,
        Err(error) => return println!("skipped: no NCCL ({error})"),
    };
    println!("NCCL {}", nccl.version());
    let id = nccl.new_id().expect("an id");
    let id = ops::NcclId::from_bytes(id.as_bytes()).expect("the same id");
    let mut group = nccl.join(id, 0, 1, &gpu).expect("a group");
    let tensors = [noise(&[1000, 30], 1), noise(&[7], 2)];
    let summed = tensors.each_ref().map(|tensor| tensor.to_device(&gpu).expect("on the GPU"));
    group.sum_in_place(&summed).expect("a sum");
    for (tensor, sum) in tensors.iter().zip(&summed) {
        let values = |tensor: &Tensor| tensor.flatten_all().and_then(|t| t.to_vec1::<f32>()).expect("values");
        assert_eq!(values(tensor), values(sum));
    }
}
