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
    assert_close(tolerance, &outcome(&Device::Cpu, inputs, &operation), &outcome(&gpu, inputs, &operation));
}

/// Results on the CPU and on the GPU: outputs, then gradients.
#[track_caller]
fn assert_close(tolerance: f32, on_cpu: &[Tensor], on_gpu: &[Tensor]) {
    assert_eq!(on_cpu.len(), on_gpu.len());
    for (index, (expected, found)) in on_cpu.iter().zip(on_gpu).enumerate() {
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
    // Rows for many stripes of sums, and columns of several blocks.
    for columns in [300, 301] {
        let tall = [f32s(&[3000, 8], 1), f32s(&[columns, 8], 2), f32s(&[columns], 3)];
        check(EXACT, &tall, |v| ops::linear(&v[0], &v[1], Some(&v[2])));
    }
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

/// Blocks of noise: norms, linear layers, and LayerScale where asked for. The MLP's width is that of no vector.
fn block_tensors(width: usize, mlp_width: usize, seed: u64) -> Vec<Tensor> {
    let affine = |out: usize| vec![vec![out, width], vec![out]];
    let mut shapes = vec![vec![width], vec![width], vec![width], vec![width]];
    shapes.extend([affine(3 * width), affine(width), affine(mlp_width)].concat());
    shapes.extend([vec![width, mlp_width], vec![width], vec![width], vec![width]]);
    let scaled =
        |(index, dims): (usize, &Vec<usize>)| (noise(dims, seed + index as u64) * 0.3).expect("scaled");
    shapes.iter().enumerate().map(scaled).collect()
}

#[derive(Clone, Copy)]
enum LayerScale {
    With,
    Without,
}

fn block_weights(tensors: &[Tensor], scale: LayerScale) -> ops::BlockWeights {
    let affine =
        |first: usize| ops::Affine { weight: tensors[first].clone(), bias: tensors[first + 1].clone() };
    let scale = |index: usize| match scale {
        LayerScale::With => Some(tensors[index].clone()),
        LayerScale::Without => None,
    };
    let (norm1, norm2, qkv, projection) = (affine(0), affine(2), affine(4), affine(6));
    let (fc1, fc2, scale1, scale2) = (affine(8), affine(10), scale(12), scale(13));
    ops::BlockWeights { norm1, qkv, projection, scale1, norm2, fc1, fc2, scale2 }
}

#[derive(Clone, Copy)]
struct BlockCase {
    dims: [usize; 3],
    heads: usize,
    mlp_width: usize,
    scale: LayerScale,
    rate: f32,
    dtype: DType,
}

impl BlockCase {
    fn options(&self, device: &Device) -> ops::BlockOptions {
        let dtype = if device.is_cuda() { self.dtype } else { DType::F32 };
        let mask = |position| ops::DropoutMask { key: 7, position, rate: self.rate };
        let dropout =
            [mask(3), mask(1_000_001), mask(9_000_002)].map(|mask| (mask.rate > 0.0).then_some(mask));
        ops::BlockOptions { heads: self.heads, eps: 1e-6, dtype, products: dtype, dropout }
    }

    /// The result of two blocks, then the gradients of x and of all parameters; without gradients, the result alone.
    fn run(&self, device: &Device, trained: bool) -> Result<Vec<Tensor>> {
        let to_variable = |tensor: &Tensor| match trained {
            true => Ok(Var::from_tensor(&tensor.to_device(device)?)?.as_tensor().clone()),
            false => tensor.to_device(device),
        };
        let tensors = |seed| -> Result<Vec<Tensor>> {
            block_tensors(self.dims[2], self.mlp_width, seed).iter().map(to_variable).collect()
        };
        let (first, second) = (tensors(100)?, tensors(200)?);
        let x = to_variable(&noise(&self.dims, 1))?;
        let weights = [block_weights(&first, self.scale), block_weights(&second, self.scale)];
        let blocks = weights.each_ref().map(|weights| (weights, self.options(device)));
        let gradients = ops::ParameterGradients::default();
        let y = ops::transformer_blocks(&x, &blocks, Some(&gradients))?;
        let mut results = vec![y.clone()];
        if trained {
            let cotangent = noise(&self.dims, 99).to_device(device)?;
            let store = (y * cotangent)?.sum_all()?.backward()?;
            let handed_over = gradients.take();
            results.push(store.get(&x).expect("a gradient of x").clone());
            let num_parameters = match self.scale {
                LayerScale::With => 14,
                LayerScale::Without => 12,
            };
            for parameter in first[..num_parameters].iter().chain(&second[..num_parameters]) {
                results.push(handed_over[&parameter.id()].clone());
            }
        }
        results.iter().map(|tensor| tensor.to_device(&Device::Cpu)).collect()
    }
}

#[test]
fn transformer_blocks_agree() {
    let Some(gpu) = gpu() else { return };
    for (dtype, tolerance) in [(DType::F32, 1e-4), (DType::BF16, 4e-2)] {
        // An MLP that no vector divides, and the attention kernel of 64 features a head.
        for (dims, heads, mlp_width) in [([2, 9, 36], 3, 37), ([2, 70, 128], 2, 520), ([1, 200, 64], 1, 96)] {
            for scale in [LayerScale::With, LayerScale::Without] {
                for rate in [0.0, 0.2] {
                    let case = BlockCase { dims, heads, mlp_width, scale, rate, dtype };
                    for trained in [true, false] {
                        let on = |device| case.run(device, trained).expect("the blocks run");
                        assert_close(tolerance, &on(&Device::Cpu), &on(&gpu));
                    }
                }
            }
        }
        // Without a graph, a width that no vector divides.
        let (scale, rate) = (LayerScale::With, 0.2);
        let case = BlockCase { dims: [2, 9, 21], heads: 3, mlp_width: 50, scale, rate, dtype };
        let on = |device| case.run(device, false).expect("the blocks run");
        assert_close(tolerance, &on(&Device::Cpu), &on(&gpu));
    }
}

#[test]
fn pooling_agrees() {
    check(EXACT, &[f32s(&[3, 24, 24, 21], 1)], |v| ops::max_over_grid(&v[0]));
    check(EXACT, &[f32s(&[2, 5, 7, 4], 1)], |v| ops::max_over_grid(&v[0]));
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

/// Two bottleneck blocks over two pictures: the result, then the gradients of x and of all weights.
fn run_bottlenecks(device: &Device, dtype: DType, handed_over: bool) -> Result<Vec<Tensor>> {
    let mut weights = Vec::new();
    let mut layer = |out: usize, kernel: usize, inputs: usize, activation: ops::Activation| {
        let seed = 10 + weights.len() as u64;
        let weight = Var::from_tensor(&noise(&[out, kernel, kernel, inputs], seed).to_device(device)?)?;
        weights.push(weight.as_tensor().clone());
        let window = ops::Window { stride: 1, padding: kernel / 2 * 2, dilation: kernel / 2 + 1 };
        let [scale, shift] = [1, 2].map(|seed| noise(&[out], seed).to_device(device));
        let norm = ops::ConvNorm { window, scale: scale?, shift: shift?, activation };
        Ok::<_, candle_core::Error>(ops::ConvLayer::new(weight.as_tensor().clone(), norm))
    };
    let mut block = |inputs: usize, is_first: bool| {
        let layers = [
            layer(16, 1, inputs, ops::Activation::Relu)?,
            layer(16, 3, 16, ops::Activation::Relu)?,
            layer(32, 1, 16, ops::Activation::Relu)?,
        ];
        let around = is_first.then(|| layer(32, 1, inputs, ops::Activation::None)).transpose()?;
        Ok::<_, candle_core::Error>(ops::Bottleneck { layers, around })
    };
    let blocks = [block(24, true)?, block(32, false)?];
    let x = Var::from_tensor(&noise(&[2, 9, 7, 24], 3).to_device(device)?.to_dtype(dtype)?)?;
    let gradients = ops::ParameterGradients::default();
    let cotangent = noise(&[2, 9, 7, 32], 4).to_device(device)?;
    let mut loss = Tensor::zeros((), DType::F32, device)?;
    let mut results = Vec::new();
    // Twice, so that gradients are summed; rounded weights the second time.
    for blocks in
        [blocks.to_vec(), blocks.iter().map(|block| block.for_products(dtype)).collect::<Result<_>>()?]
    {
        let y = ops::bottlenecks(x.as_tensor(), &blocks, handed_over.then_some(&gradients))?;
        loss = (loss + (y.to_dtype(DType::F32)? * &cotangent)?.sum_all()?)?;
        results.push(y);
    }
    let store = loss.backward()?;
    let of_blocks = gradients.take();
    assert_eq!(of_blocks.len(), if handed_over { weights.len() } else { 0 });
    results.push(store.get(&x).expect("a gradient of x").clone());
    for weight in &weights {
        results.push(of_blocks.get(&weight.id()).or_else(|| store.get(weight)).expect("a gradient").clone());
    }
    results.iter().map(|tensor| tensor.to_dtype(DType::F32)?.to_device(&Device::Cpu)).collect()
}

#[test]
fn bottleneck_blocks_agree() {
    let Some(gpu) = gpu() else { return };
    let run = |device, dtype, handed_over| run_bottlenecks(device, dtype, handed_over).expect("blocks run");
    assert_close(1e-4, &run(&Device::Cpu, DType::F32, true), &run(&gpu, DType::F32, true));
    // Rounding moves values over ReLU's edge: in bf16 the node is held to the single operations on the same device.
    assert_close(2e-2, &run(&gpu, DType::BF16, false), &run(&gpu, DType::BF16, true));
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
        let products = [in_type(&[2, 7, 9, 2 * 4 * 9 + 8], 1, dtype)];
        check(tolerance, &products, |v| ops::neighbour_sums(&v[0], 4, &[3, 1]));
    }
}

#[test]
fn cross_entropies_agree() {
    for (grid, size, classes) in
        [((5, 7), (5, 7), 21), ((5, 7), (33, 49), 21), ((4, 1), (9, 3), 81), ((3, 3), (1, 20), 200)]
    {
        let labels: Vec<u8> = (0..2 * size.0 * size.1).map(|i| [0, 20, 255, 3, 7, 77][i % 6]).collect();
        let labels = Tensor::from_vec(labels, (2, size.0, size.1), &Device::Cpu).expect("labels");
        check(EXACT, &[f32s(&[2, grid.0, grid.1, classes], 1)], |v| {
            ops::cross_entropy(&v[0], &labels.to_device(v[0].device())?)
        });
    }
}

#[test]
fn the_hv_bilstm_agrees() {
    for (height, width) in [(6, 6), (3, 5)] {
        for (products, tolerance) in [(ops::Products::Exact, 5e-5), (ops::Products::Rounded, 5e-3)] {
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
    // More parameters than one launch takes, some of them larger than its blocks, some that no vector divides.
    let on = |device: &Device| -> Result<Vec<Vec<f32>>> {
        let sizes = (0..130).map(|index| if index % 50 == 3 { 200_001 } else { 7 * index + 1 });
        let tensors = sizes.zip(0..).map(|(size, index)| {
            let tensor = |seed: u64| noise(&[size], 4 * index + seed).to_device(device);
            // A gradient that does not begin where its memory does.
            let gradient = noise(&[size + 1], 4 * index + 3).to_device(device)?.narrow(0, 1, size)?;
            Ok([tensor(0)?, tensor(1)?, tensor(2)?.sqr()?, gradient])
        });
        let tensors = tensors.collect::<Result<Vec<_>>>()?;
        let parameters = tensors.iter().map(|[weight, mean, mean_square, gradient]| ops::AdamParameter {
            weight,
            mean,
            mean_square,
            gradient,
        });
        ops::adam_step(&parameters.collect::<Vec<_>>(), step)?;
        let average = noise(&[200_001], 5).to_device(device)?;
        ops::follow(&average, &tensors[3][0], 0.9)?;
        let changed = tensors.iter().flat_map(|tensors| &tensors[..3]).chain([&average]);
        changed.map(|tensor| tensor.to_vec1::<f32>()).collect()
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
