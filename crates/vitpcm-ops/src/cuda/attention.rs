//! Attention. Forward in bf16 with 64 features a head, which all published ViTs have, is a kernel of ours that never
//! stores the matrix of tokens by tokens. Everything else is cuBLAS's products over all heads at once and a softmax of
//! ours between them; the matrix exists for some images at a time, and backward computes it again.

use candle_core::{DType, Result};

use super::gemm::{Matrix, Product, gemm};
use super::launch::{ATTENTION, Argument, FLASH_ATTENTION, SOFTMAX, Threads, kernel_for, launch};
use super::{Array, View};
use crate::cpu::attention::AttentionShape;

/// Bytes that one matrix of all pairs of tokens may take; batches beyond it are taken image by image.
const PAIRS_BYTES: usize = 1 << 30;

/// Heads apart, with tokens padded so that every row of every matrix begins on 16 bytes.
struct Heads {
    shape: AttentionShape,
    padded: usize,
    dtype: DType,
}

impl Heads {
    fn new(shape: AttentionShape, dtype: DType) -> Self {
        Self { shape, padded: shape.tokens.next_multiple_of(8), dtype }
    }

    fn count(&self) -> usize {
        self.shape.batch * self.shape.heads
    }

    /// Elements of one part (queries, keys or values).
    fn part_len(&self) -> usize {
        self.count() * self.padded * self.shape.head_dim
    }

    fn layout_arguments(&self, from: u64, to: u64, parts: usize) -> [Argument; 8] {
        let AttentionShape { batch, tokens, heads, head_dim } = self.shape;
        let int = |value: usize| Argument::Int(value as i32);
        [
            Argument::Pointer(from),
            Argument::Pointer(to),
            int(batch),
            int(tokens),
            int(self.padded),
            int(parts),
            int(heads),
            int(head_dim),
        ]
    }

    /// `[B, N, parts, heads, d]` to `[parts, B, heads, P, d]`.
    fn split(&self, packed: &View<'_>, parts: usize) -> Result<Array> {
        let split = Array::new(&packed.device, self.dtype, parts * self.part_len())?;
        let name = kernel_for("split_heads", self.dtype);
        let arguments = self.layout_arguments(packed.pointer, split.pointer, parts);
        let threads = Threads::striding(parts * self.part_len() / 4);
        // SAFETY: both sides have the sizes that the kernel is told.
        unsafe { launch(&packed.device, ATTENTION, &name, threads, &arguments) }?;
        Ok(split)
    }

    /// The way back, into `packed` from its first element on.
    fn join(&self, split: &Array, packed: &View<'_>, parts: usize) -> Result<()> {
        let name = kernel_for("join_heads", self.dtype);
        let arguments = self.layout_arguments(split.pointer, packed.pointer, parts);
        let threads = Threads::striding(parts * self.part_len() / 4);
        // SAFETY: both sides have the sizes that the kernel is told.
        unsafe { launch(&packed.device, ATTENTION, &name, threads, &arguments) }
    }

    /// Part `index` of a split array as matrices of `[P, d]`.
    fn part(&self, split: &Array, index: usize) -> Matrix {
        let pointer = split.pointer + (index * self.part_len() * self.dtype.size_in_bytes()) as u64;
        let head_dim = self.shape.head_dim;
        Matrix::new(pointer, self.dtype, head_dim).batched(self.padded * head_dim)
    }

    fn pairs_array(&self, like: &View<'_>) -> Result<Array> {
        Array::new(&like.device, self.dtype, self.count() * self.padded * self.padded)
    }

    /// All pairs of tokens as matrices of `[P, P]`.
    fn pairs(&self, array: &Array) -> Matrix {
        Matrix::new(array.pointer, self.dtype, self.padded).batched(self.padded * self.padded)
    }

    fn scale(&self) -> f32 {
        1.0 / (self.shape.head_dim as f32).sqrt()
    }

    /// `[P, P] = scale · [P, d] · [P, d]ᵀ`
    fn product_of_pairs(&self, scale: f32) -> Product {
        Product { batch: self.count(), scale, ..Product::new(self.padded, self.padded, self.shape.head_dim) }
    }

    /// `[P, d] = [P, P] · [P, d]`
    fn product_over_pairs(&self) -> Product {
        Product { batch: self.count(), ..Product::new(self.padded, self.shape.head_dim, self.padded) }
    }

    /// The weights of attention, from queries and keys.
    fn weights(&self, like: &View<'_>, qkv: &Array) -> Result<Array> {
        let weights = self.pairs_array(like)?;
        let (query, key) = (self.part(qkv, 0), self.part(qkv, 1));
        let product = self.product_of_pairs(self.scale());
        // SAFETY: the parts of `qkv` and `weights` have the sizes of the product.
        unsafe { gemm(&like.device, product, query, key.transposed(), self.pairs(&weights)) }?;
        let rows = self.count() * self.padded;
        let (columns, stride) = (self.shape.tokens as i32, self.padded as i32);
        let (name, threads, arguments) = if (1281..=4096).contains(&stride) {
            let arguments =
                vec![Argument::Pointer(weights.pointer), Argument::Int(columns), Argument::Int(stride)];
            ("wide_attention_softmax", Threads::block_a_row(rows, 256), arguments)
        } else {
            let arguments = vec![
                Argument::Pointer(weights.pointer),
                Argument::Long(rows as i64),
                Argument::Int(columns),
                Argument::Int(stride),
            ];
            ("attention_softmax", Threads::warp_a_row(rows), arguments)
        };
        // SAFETY: `weights` is `rows` rows of `stride`, which is at least `columns`; the wide kernel takes up to 4096.
        unsafe { launch(&like.device, SOFTMAX, &kernel_for(name, self.dtype), threads, &arguments) }?;
        Ok(weights)
    }
}

/// Parts of a batch whose matrix of pairs stays within bounds: first image and shape.
fn parts_of(shape: AttentionShape, dtype: DType) -> impl Iterator<Item = (usize, AttentionShape)> {
    let padded = shape.tokens.next_multiple_of(8);
    let image_bytes = shape.heads * padded * padded * dtype.size_in_bytes();
    let images = (PAIRS_BYTES / image_bytes.max(1)).clamp(1, shape.batch.max(1));
    (0..shape.batch)
        .step_by(images)
        .map(move |first| (first, AttentionShape { batch: images.min(shape.batch - first), ..shape }))
}

pub(crate) fn forward(shape: AttentionShape, qkv: &View<'_>) -> Result<Array> {
    let image_len = shape.tokens * shape.features();
    let y = Array::new(&qkv.device, qkv.dtype, shape.batch * image_len)?;
    if qkv.dtype == DType::BF16 && shape.head_dim == 64 && qkv.pointer.is_multiple_of(16) {
        let scale = std::f32::consts::LOG2_E / (shape.head_dim as f32).sqrt();
        let arguments = [
            Argument::Pointer(qkv.pointer),
            Argument::Pointer(y.pointer),
            Argument::Int(shape.tokens as i32),
            Argument::Int(shape.heads as i32),
            Argument::Float(scale),
        ];
        let threads = Threads::grid((shape.tokens.div_ceil(128), shape.batch * shape.heads), (128, 1));
        // SAFETY: qkv and y have the sizes that the kernel is told, and qkv begins on 16 bytes.
        unsafe { launch(&qkv.device, FLASH_ATTENTION, "flash_attention", threads, &arguments) }?;
        return Ok(y);
    }
    for (first, part) in parts_of(shape, qkv.dtype) {
        let heads = Heads::new(part, qkv.dtype);
        let split = heads.split(&qkv.skip(first * 3 * image_len), 3)?;
        let weights = heads.weights(qkv, &split)?;
        let attended = Array::new(&qkv.device, qkv.dtype, heads.part_len())?;
        let (weights, values) = (heads.pairs(&weights), heads.part(&split, 2));
        // SAFETY: the arrays have the sizes of the product.
        unsafe { gemm(&qkv.device, heads.product_over_pairs(), weights, values, heads.part(&attended, 0)) }?;
        heads.join(&attended, &y.view().skip(first * image_len), 1)?;
    }
    Ok(y)
}

/// The gradient of qkv.
pub(crate) fn backward(shape: AttentionShape, qkv: &View<'_>, grad_y: &View<'_>) -> Result<Array> {
    let device = &qkv.device;
    let grad_y = grad_y.clone().expect(qkv.dtype)?;
    let image_len = shape.tokens * shape.features();
    let grad_qkv = Array::new(device, qkv.dtype, qkv.len)?;
    for (first, part) in parts_of(shape, qkv.dtype) {
        let heads = Heads::new(part, qkv.dtype);
        let split = heads.split(&qkv.skip(first * 3 * image_len), 3)?;
        let grad_attended = heads.split(&grad_y.skip(first * image_len), 1)?;
        let weights = heads.weights(qkv, &split)?;
        let grads = Array::new(device, qkv.dtype, 3 * heads.part_len())?;
        let grad_scores = heads.pairs_array(qkv)?;
        let (query, key, values) = (heads.part(&split, 0), heads.part(&split, 1), heads.part(&split, 2));
        let (pairs, grad_pairs) = (heads.pairs(&weights), heads.pairs(&grad_scores));
        let grad_out = heads.part(&grad_attended, 0);
        let over_pairs = heads.product_over_pairs();
        // SAFETY: all arrays have the sizes of these products.
        unsafe {
            gemm(device, over_pairs, pairs.transposed(), grad_out, heads.part(&grads, 2))?;
            gemm(device, heads.product_of_pairs(1.0), grad_out, values.transposed(), grad_pairs)?;
        }
        let rows = heads.count() * heads.padded;
        let arguments = [
            Argument::Pointer(weights.pointer),
            Argument::Pointer(grad_scores.pointer),
            Argument::Long(rows as i64),
            Argument::Int(heads.padded as i32),
            Argument::Int(heads.padded as i32),
            Argument::Float(heads.scale()),
        ];
        let name = kernel_for("attention_softmax_backward", qkv.dtype);
        // SAFETY: both are `rows` rows of `padded`. SAFETY: and the arrays have the sizes of the products.
        unsafe {
            launch(device, SOFTMAX, &name, Threads::warp_a_row(rows), &arguments)?;
            gemm(device, over_pairs, grad_pairs, key, heads.part(&grads, 0))?;
            gemm(device, over_pairs, grad_pairs.transposed(), query, heads.part(&grads, 1))?;
        }
        heads.join(&grads, &grad_qkv.view().skip(first * 3 * image_len), 3)?;
    }
    Ok(grad_qkv)
}
