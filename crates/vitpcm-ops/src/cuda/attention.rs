//! Attention. For bf16 with 64 features per head, as in all published ViTs, our kernels never store the attention
//! matrix. Otherwise it is cuBLAS products over all heads with our softmax between them; the matrix exists for some
//! images at a time, and backward recomputes it.

use candle_core::{DType, Result, bail};

use super::gemm::{Matrix, Product, gemm};
use super::launch::{
    ATTENTION, Argument, FLASH_ATTENTION, FLASH_ATTENTION_BACKWARD, SOFTMAX, Threads, kernel_for, launch,
};
use super::{Array, View};
use crate::cpu::attention::AttentionShape;

/// Limit on an attention matrix in bytes; larger batches are split by images.
const PAIRS_BYTES: usize = 1 << 30;

/// Separate heads, with tokens padded so that every matrix row is aligned to 16 bytes.
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

    fn layout_arguments(&self, pointers: &[u64], parts: usize) -> Vec<Argument> {
        let AttentionShape { batch, tokens, heads, head_dim } = self.shape;
        let int = |value: usize| Argument::Int(value as i32);
        let pointers = pointers.iter().map(|&pointer| Argument::Pointer(pointer));
        let sizes = [int(batch), int(tokens), int(self.padded), int(parts), int(heads), int(head_dim)];
        pointers.chain(sizes).collect()
    }

    /// `[B, N, parts, heads, d]` to `[parts, B, heads, P, d]`, plus a bias `[parts, heads, d]`.
    fn split(&self, packed: &View<'_>, bias: Option<&View<'_>>, parts: usize) -> Result<Array> {
        let split = Array::new(&packed.device, self.dtype, parts * self.part_len())?;
        let name = kernel_for("split_heads", self.dtype);
        let bias = bias.map_or(0, |bias| bias.pointer);
        let arguments = self.layout_arguments(&[packed.pointer, bias, split.pointer], parts);
        let threads = Threads::striding(parts * self.part_len() / 4);
        // SAFETY: both sides have the sizes passed to the kernel.
        unsafe { launch(&packed.device, ATTENTION, &name, threads, &arguments) }?;
        Ok(split)
    }

    /// The inverse, written to the start of `packed`.
    fn join(&self, split: &Array, packed: &View<'_>, parts: usize) -> Result<()> {
        let name = kernel_for("join_heads", self.dtype);
        let arguments = self.layout_arguments(&[split.pointer, packed.pointer], parts);
        let threads = Threads::striding(parts * self.part_len() / 4);
        // SAFETY: both sides have the sizes passed to the kernel.
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

    /// The attention weights, from queries and keys.
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

/// Parts of a batch whose attention matrix stays within the limit: first image and shape.
fn parts_of(shape: AttentionShape, dtype: DType) -> impl Iterator<Item = (usize, AttentionShape)> {
    let padded = shape.tokens.next_multiple_of(8);
    let image_bytes = shape.heads * padded * padded * dtype.size_in_bytes();
    let images = (PAIRS_BYTES / image_bytes.max(1)).clamp(1, shape.batch.max(1));
    (0..shape.batch)
        .step_by(images)
        .map(move |first| (first, AttentionShape { batch: images.min(shape.batch - first), ..shape }))
}

/// The bias still to be added to queries, keys and values.
fn checked(bias: Option<&View<'_>>, shape: AttentionShape) -> Result<()> {
    match bias {
        Some(bias) if bias.dtype != DType::F32 || bias.len != 3 * shape.features() => {
            bail!("attention: a bias of {} {:?} does not fit", bias.len, bias.dtype)
        }
        _ => Ok(()),
    }
}

/// Whether the kernels that never store the attention matrix support these values; tensors are then aligned to 16
/// bytes.
pub(crate) fn is_flash(head_dim: usize, dtype: DType) -> bool {
    dtype == DType::BF16 && head_dim == 64
}

/// Result of a forward pass.
pub(crate) struct Attended {
    pub(crate) y: Array,
    /// Logarithms of the softmax sums, if the kernels of [`is_flash`] ran and were asked for them.
    pub(crate) log_sums: Option<Array>,
}

/// Whether a backward pass will follow.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pass {
    Inference,
    Training,
}

/// `bias` is added to qkv first.
pub(crate) fn forward(
    shape: AttentionShape,
    qkv: &View<'_>,
    bias: Option<&View<'_>>,
    pass: Pass,
) -> Result<Attended> {
    checked(bias, shape)?;
    let image_len = shape.tokens * shape.features();
    let y = Array::new(&qkv.device, qkv.dtype, shape.batch * image_len)?;
    if is_flash(shape.head_dim, qkv.dtype) && qkv.pointer.is_multiple_of(16) {
        let log_sums = match pass {
            Pass::Inference => None,
            Pass::Training => Some(Array::new(&qkv.device, DType::F32, shape.rows())?),
        };
        let arguments = [
            Argument::Pointer(qkv.pointer),
            Argument::Pointer(bias.map_or(0, |bias| bias.pointer)),
            Argument::Pointer(y.pointer),
            Argument::Pointer(log_sums.as_ref().map_or(0, |log_sums| log_sums.pointer)),
            Argument::Int(shape.tokens as i32),
            Argument::Int(shape.heads as i32),
            Argument::Float(flash_scale(shape)),
        ];
        let threads = Threads::grid((shape.tokens.div_ceil(128), shape.batch * shape.heads), (128, 1));
        // SAFETY: qkv, y and the sums have the sizes passed to the kernel, and qkv is aligned to 16 bytes.
        unsafe { launch(&qkv.device, FLASH_ATTENTION, "flash_attention", threads, &arguments) }?;
        return Ok(Attended { y, log_sums });
    }
    for (first, part) in parts_of(shape, qkv.dtype) {
        let heads = Heads::new(part, qkv.dtype);
        let split = heads.split(&qkv.skip(first * 3 * image_len), bias, 3)?;
        let weights = heads.weights(qkv, &split)?;
        let attended = Array::new(&qkv.device, qkv.dtype, heads.part_len())?;
        let (weights, values) = (heads.pairs(&weights), heads.part(&split, 2));
        // SAFETY: the arrays have the sizes of the product.
        unsafe { gemm(&qkv.device, heads.product_over_pairs(), weights, values, heads.part(&attended, 0)) }?;
        heads.join(&attended, &y.view().skip(first * image_len), 1)?;
    }
    Ok(Attended { y, log_sums: None })
}

/// Factor on the scores for base-2 exponentials.
fn flash_scale(shape: AttentionShape) -> f32 {
    std::f32::consts::LOG2_E / (shape.head_dim as f32).sqrt()
}

/// The gradient of qkv (including its bias), from the `log_sums` and y of [`forward`].
pub(crate) fn flash_backward(
    shape: AttentionShape,
    qkv: &View<'_>,
    y: &View<'_>,
    log_sums: &View<'_>,
    grad_y: &View<'_>,
) -> Result<Array> {
    let grad_y = grad_y.clone().expect(qkv.dtype)?;
    if ![qkv, y, &grad_y].iter().all(|view| view.pointer.is_multiple_of(16)) {
        bail!("attention: a tensor is not aligned to 16 bytes");
    }
    let device = &qkv.device;
    let int = |value: usize| Argument::Int(value as i32);
    let along = Array::new(device, DType::F32, shape.rows())?;
    let arguments = [
        Argument::Pointer(y.pointer),
        Argument::Pointer(grad_y.pointer),
        Argument::Pointer(along.pointer),
        int(shape.rows()),
        int(shape.tokens),
        int(shape.heads),
    ];
    // SAFETY: y and grad_y are as many rows of 64 features as there are sums.
    unsafe {
        launch(
            device,
            FLASH_ATTENTION_BACKWARD,
            "features_along",
            Threads::each(8 * shape.rows()),
            &arguments,
        )
    }?;
    let grad_qkv = Array::new(device, qkv.dtype, qkv.len)?;
    let arguments = [
        Argument::Pointer(qkv.pointer),
        Argument::Pointer(grad_y.pointer),
        Argument::Pointer(log_sums.pointer),
        Argument::Pointer(along.pointer),
        Argument::Pointer(grad_qkv.pointer),
        int(shape.tokens),
        int(shape.heads),
        Argument::Float(1.0 / (shape.head_dim as f32).sqrt()),
        Argument::Float(flash_scale(shape)),
    ];
    let threads = Threads::grid((shape.tokens.div_ceil(64), shape.batch * shape.heads), (128, 1));
    for name in ["grad_keys_and_values", "grad_queries"] {
        // SAFETY: all arrays have the sizes passed to the kernel and are aligned to 16 bytes. Together the two kernels
        // write every element of the gradient.
        unsafe { launch(device, FLASH_ATTENTION_BACKWARD, name, threads, &arguments) }?;
    }
    Ok(grad_qkv)
}

/// The gradient of qkv (including its bias).
pub(crate) fn backward(shape: AttentionShape, qkv: &View<'_>, grad_y: &View<'_>) -> Result<Array> {
    let device = &qkv.device;
    let grad_y = grad_y.clone().expect(qkv.dtype)?;
    let image_len = shape.tokens * shape.features();
    let grad_qkv = Array::new(device, qkv.dtype, qkv.len)?;
    for (first, part) in parts_of(shape, qkv.dtype) {
        let heads = Heads::new(part, qkv.dtype);
        let split = heads.split(&qkv.skip(first * 3 * image_len), None, 3)?;
        let grad_attended = heads.split(&grad_y.skip(first * image_len), None, 1)?;
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
