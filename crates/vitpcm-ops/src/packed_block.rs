//! Transformer blocks for inference on the CPU, with weights packed once for all passes.

use std::sync::Arc;

use candle_core::{Result, Tensor, bail};

use crate::cpu::bf16;
use crate::cpu::block::{Block, Layer, Norm, PackedNumbers};
use crate::cpu::byte_dots::DotPath;
use crate::cpu::simd::SimdPath;
use crate::tensors::{Floats, output, run_on_cpu, tensor};
use crate::transformer_block::{Affine, BlockWeights};

/// Whether this machine multiplies 8-bit integers faster than floats (VNNI).
pub fn has_fast_int8() -> bool {
    DotPath::detect().is_fast()
}

/// Whether this machine multiplies bf16 faster than f32 (AVX-512 BF16).
pub fn has_fast_bf16() -> bool {
    bf16::is_fast()
}

/// A pre-norm transformer block with packed weights, shared between clones.
#[derive(Debug, Clone)]
pub struct PackedBlock(Arc<Block>);

impl PackedBlock {
    /// Packs a block's weights; `None` unless they are f32 on the CPU.
    pub fn new(
        weights: &BlockWeights,
        heads: usize,
        eps: f64,
        numbers: PackedNumbers,
    ) -> Result<Option<Self>> {
        let BlockWeights { norm1, qkv, projection, scale1, norm2, fc1, fc2, scale2 } = weights;
        let is_on_cpu = |layer: &&Affine| run_on_cpu(&[&layer.weight, &layer.bias]);
        if ![norm1, qkv, projection, norm2, fc1, fc2].iter().all(is_on_cpu) {
            return Ok(None);
        }
        let norm = |norm: &Affine| {
            let (weight, bias) = (floats(&norm.weight)?, floats(&norm.bias)?);
            Ok::<_, candle_core::Error>(Norm { weight, bias, eps: eps as f32 })
        };
        let layer = |layer: &Affine, scale: Option<&Tensor>| {
            let scale = scale.map(floats).transpose()?;
            let (out_features, _) = layer.weight.dims2()?;
            let fits = |len: usize| len == out_features;
            if !fits(layer.bias.elem_count()) || !scale.as_ref().is_none_or(|scale| fits(scale.len())) {
                bail!("a bias or LayerScale does not fit weight {:?}", layer.weight.dims());
            }
            let (weight, bias) = (layer.weight.contiguous()?, floats(&layer.bias)?);
            Ok::<_, candle_core::Error>(Layer::new(
                numbers,
                Floats::of(&weight)?.get()?,
                &bias,
                scale.as_deref(),
            ))
        };
        let width = norm1.weight.elem_count();
        if heads == 0 || !width.is_multiple_of(heads) || qkv.weight.dims() != [3 * width, width] {
            bail!("queries, keys and values of {:?} do not split into {heads} heads", qkv.weight.dims());
        }
        Ok(Some(Self(Arc::new(Block {
            heads,
            norm1: norm(norm1)?,
            qkv: layer(qkv, None)?,
            projection: layer(projection, scale1.as_ref())?,
            norm2: norm(norm2)?,
            fc1: layer(fc1, None)?,
            fc2: layer(fc2, scale2.as_ref())?,
        }))))
    }

    /// The block's packed queries, keys and values, in the layout of [`attention`](crate::attention()).
    ///
    /// # Shapes
    /// x `[B, N, D]`, f32; result `[B, N, 3·D]`
    pub fn queries_keys_values(&self, x: &Tensor) -> Result<Tensor> {
        let (batch, tokens, _) = self.check(x)?;
        let x = x.contiguous()?;
        let mut qkv = output(3 * x.elem_count());
        self.0.queries_keys_values(SimdPath::detect(), Floats::of(&x)?.get()?, &mut qkv);
        tensor(qkv, &[batch, tokens, 3 * self.0.width()])
    }

    fn check(&self, x: &Tensor) -> Result<(usize, usize, usize)> {
        let (batch, tokens, width) = x.dims3()?;
        if !run_on_cpu(&[x]) || width != self.0.width() {
            bail!("a packed block of width {} was given {x:?}", self.0.width());
        }
        Ok((batch, tokens, width))
    }
}

/// A sequence of packed blocks. Records no graph.
///
/// # Shapes
/// x `[B, N, D]`, f32, on the CPU; result as x.
pub fn packed_blocks(x: &Tensor, blocks: &[&PackedBlock]) -> Result<Tensor> {
    let mut values = floats(x)?;
    for block in blocks {
        let (_, tokens, _) = block.check(x)?;
        block.0.forward(SimdPath::detect(), tokens, &mut values);
    }
    tensor(values, x.dims())
}

fn floats(tensor: &Tensor) -> Result<Vec<f32>> {
    tensor.flatten_all()?.to_vec1()
}

#[cfg(test)]
mod tests {
    use candle_core::DType;

    use super::*;
    use crate::tensors::testing::{assert_close, noise};
    use crate::transformer_block::{BlockOptions, transformer_blocks};

    const WIDTH: usize = 24;

    fn weights(seed: u64) -> BlockWeights {
        let affine = |place: u64, out: usize, weight: &[usize]| Affine {
            weight: noise(weight, seed + place),
            bias: noise(&[out], seed + place + 1),
        };
        let hidden = 4 * WIDTH;
        BlockWeights {
            norm1: affine(0, WIDTH, &[WIDTH]),
            qkv: affine(2, 3 * WIDTH, &[3 * WIDTH, WIDTH]),
            projection: affine(4, WIDTH, &[WIDTH, WIDTH]),
            scale1: Some(noise(&[WIDTH], seed + 6)),
            norm2: affine(7, WIDTH, &[WIDTH]),
            fc1: affine(9, hidden, &[hidden, WIDTH]),
            fc2: affine(11, WIDTH, &[WIDTH, hidden]),
            scale2: None,
        }
    }

    fn packed(x: &Tensor, weights: &[BlockWeights], numbers: PackedNumbers) -> Tensor {
        let pack = |weights| PackedBlock::new(weights, 3, 1e-6, numbers).unwrap().unwrap();
        let blocks: Vec<PackedBlock> = weights.iter().map(pack).collect();
        packed_blocks(x, &blocks.iter().collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn packed_blocks_equal_unpacked_ones_and_nearly_so_rounded() {
        let (weights, x) = ([weights(0), weights(100)], noise(&[2, 70, WIDTH], 1000));
        let options =
            BlockOptions { heads: 3, eps: 1e-6, dtype: DType::F32, products: DType::F32, dropout: [None; 3] };
        let blocks = weights.each_ref().map(|weights| (weights, options.clone()));
        let expected = transformer_blocks(&x, &blocks, None).unwrap();
        assert_close(&packed(&x, &weights, PackedNumbers::F32), &expected);

        let square = |x: &Tensor| x.sqr().unwrap().mean_all().unwrap().to_scalar::<f32>().unwrap();
        for (numbers, most) in [(PackedNumbers::Int8, 1e-4), (PackedNumbers::Bf16, 1e-5)] {
            let rounded = packed(&x, &weights, numbers);
            let error = square(&(&rounded - &expected).unwrap()) / square(&expected);
            assert!(error > 0.0 && error < most, "{numbers:?}: {error}");
        }
    }

    #[test]
    fn packed_blocks_are_the_same_bits_on_any_number_of_threads() {
        let (weights, x) = ([weights(0), weights(100)], noise(&[2, 70, WIDTH], 1000));
        for numbers in [PackedNumbers::F32, PackedNumbers::Bf16, PackedNumbers::Int8] {
            let on_threads = |threads: usize| {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                let y = pool.install(|| packed(&x, &weights, numbers));
                y.flatten_all().unwrap().to_vec1::<f32>().unwrap()
            };
            let alone = on_threads(1);
            for threads in [2, 3, 7] {
                assert_eq!(on_threads(threads), alone, "{numbers:?} on {threads} threads");
            }
        }
    }
}
