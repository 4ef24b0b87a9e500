//! The naming schemes of published ViT weights, translated to timm's names, which this crate uses. Knows names and
//! layouts only; which tensors a network needs is left to `import`.

use std::fmt;

use serde::Serialize;

/// A naming scheme of ViT weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Naming {
    /// timm's names, which the original DINO and DINOv2 share (`blocks.0.attn.qkv.weight`).
    Timm,
    /// Hugging Face's ViT and DINOv2 (`encoder.layer.0.attention.attention.query.weight`).
    HuggingFace,
    /// google-research's JAX checkpoints (`Transformer/encoderblock_0/…`).
    GoogleResearch,
}

impl fmt::Display for Naming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Naming::Timm => "timm / DINO",
            Naming::HuggingFace => "Hugging Face",
            Naming::GoogleResearch => "google-research",
        })
    }
}

/// What a tensor of a file is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Meaning {
    /// The parameter it belongs to, by timm's name.
    pub(crate) parameter: String,
    pub(crate) part: Part,
    pub(crate) layout: Layout,
}

/// Which part of its parameter a tensor holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Part {
    Whole,
    Query,
    Key,
    Value,
}

/// How a tensor's dimensions relate to the parameter's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layout {
    /// The same.
    AsStored,
    /// Flattened: JAX splits a bias by heads.
    Flat,
    /// JAX's kernels: inputs (this many dimensions) before outputs.
    InputsFirst { num_input_dims: usize },
    /// JAX's convolutions: height, width, inputs, outputs.
    HeightWidthInOut,
}

/// Prefixes that training code adds to a module's names.
const WRAPPERS: [&str; 4] = ["module.", "_orig_mod.", "backbone.", "model."];
const HUGGING_FACE_WRAPPERS: [&str; 4] = ["vit.", "dinov2.", "dinov2_with_registers.", "backbone."];

impl Naming {
    /// Detects the scheme by the patch embedding, which every ViT has.
    pub(crate) fn recognise<'a>(names: impl IntoIterator<Item = &'a str>) -> Option<Self> {
        names.into_iter().find_map(|name| match name {
            "embedding/kernel" => Some(Naming::GoogleResearch),
            _ if name.ends_with("embeddings.patch_embeddings.projection.weight") => Some(Naming::HuggingFace),
            _ if name.ends_with("patch_embed.proj.weight") => Some(Naming::Timm),
            _ => None,
        })
    }

    /// Interprets a tensor's name. Unknown names are kept as they are and match no parameter.
    pub(crate) fn meaning(self, name: &str) -> Meaning {
        match self {
            Naming::Timm => timm_meaning(name),
            Naming::HuggingFace => hugging_face_meaning(name),
            Naming::GoogleResearch => google_meaning(name),
        }
    }
}

/// Whether a pretraining parameter may be left over: heads, mask tokens, poolers. Takes timm's names.
pub(crate) fn may_be_left_over(parameter: &str) -> bool {
    ["mask_token", "head", "head_dist", "pre_logits", "pooler", "dino_head", "ibot_head", "classifier"]
        .iter()
        .any(|known| {
            parameter.strip_prefix(known).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '/']))
        })
}

fn as_stored(parameter: impl Into<String>) -> Meaning {
    Meaning { parameter: parameter.into(), part: Part::Whole, layout: Layout::AsStored }
}

fn strip_all<'a>(mut name: &'a str, wrappers: &[&str]) -> &'a str {
    while let Some(inner) = wrappers.iter().find_map(|wrapper| name.strip_prefix(wrapper)) {
        name = inner;
    }
    name
}

/// `"3.rest"` to block 3 and `"rest"`.
fn block_and_rest(name: &str, separator: char) -> Option<(usize, &str)> {
    let (block, rest) = name.split_once(separator)?;
    Some((block.parse().ok()?, rest))
}

fn timm_meaning(name: &str) -> Meaning {
    let name = strip_all(name, &WRAPPERS);
    if name == "register_tokens" {
        return as_stored("reg_token");
    }
    let Some((mut block, mut rest)) = name.strip_prefix("blocks.").and_then(|rest| block_and_rest(rest, '.'))
    else {
        return as_stored(name);
    };
    // DINOv2's training checkpoints group blocks in chunks: blocks.CHUNK.BLOCK.rest, with continuous block numbers.
    if let Some((inner, inner_rest)) = block_and_rest(rest, '.') {
        (block, rest) = (inner, inner_rest);
    }
    let separate = [
        ("attn.q.", Part::Query),
        ("attn.k.", Part::Key),
        ("attn.v.", Part::Value),
        ("attn.q_proj.", Part::Query),
        ("attn.k_proj.", Part::Key),
        ("attn.v_proj.", Part::Value),
    ];
    for (prefix, part) in separate {
        if let Some(kind) = rest.strip_prefix(prefix) {
            return Meaning { part, ..as_stored(format!("blocks.{block}.attn.qkv.{kind}")) };
        }
    }
    as_stored(format!("blocks.{block}.{rest}"))
}

fn hugging_face_meaning(name: &str) -> Meaning {
    let inner = strip_all(name, &HUGGING_FACE_WRAPPERS);
    let translated = match inner {
        "embeddings.cls_token" => "cls_token",
        "embeddings.position_embeddings" => "pos_embed",
        "embeddings.register_tokens" => "reg_token",
        "embeddings.mask_token" => "mask_token",
        "embeddings.patch_embeddings.projection.weight" => "patch_embed.proj.weight",
        "embeddings.patch_embeddings.projection.bias" => "patch_embed.proj.bias",
        "layernorm.weight" => "norm.weight",
        "layernorm.bias" => "norm.bias",
        "classifier.weight" => "head.weight",
        "classifier.bias" => "head.bias",
        _ => inner,
    };
    let Some((block, rest)) = inner.strip_prefix("encoder.layer.").and_then(|rest| block_and_rest(rest, '.'))
    else {
        return as_stored(translated);
    };
    let block_parts = [
        ("attention.attention.query.", "attn.qkv.", Part::Query),
        ("attention.attention.key.", "attn.qkv.", Part::Key),
        ("attention.attention.value.", "attn.qkv.", Part::Value),
        ("attention.output.dense.", "attn.proj.", Part::Whole),
        ("layernorm_before.", "norm1.", Part::Whole),
        ("layernorm_after.", "norm2.", Part::Whole),
        ("norm1.", "norm1.", Part::Whole),
        ("norm2.", "norm2.", Part::Whole),
        ("intermediate.dense.", "mlp.fc1.", Part::Whole),
        ("output.dense.", "mlp.fc2.", Part::Whole),
        ("mlp.fc1.", "mlp.fc1.", Part::Whole),
        ("mlp.fc2.", "mlp.fc2.", Part::Whole),
        ("layer_scale1.lambda1", "ls1.gamma", Part::Whole),
        ("layer_scale2.lambda1", "ls2.gamma", Part::Whole),
    ];
    for (theirs, ours, part) in block_parts {
        if let Some(kind) = rest.strip_prefix(theirs) {
            return Meaning { part, ..as_stored(format!("blocks.{block}.{ours}{kind}")) };
        }
    }
    as_stored(inner)
}

fn google_meaning(name: &str) -> Meaning {
    let meaning = |parameter: String, part, layout| Meaning { parameter, part, layout };
    let kernel = Layout::InputsFirst { num_input_dims: 1 };
    let whole = |parameter: &str, layout| meaning(parameter.to_owned(), Part::Whole, layout);
    match name {
        "cls" => return whole("cls_token", Layout::AsStored),
        "embedding/kernel" => return whole("patch_embed.proj.weight", Layout::HeightWidthInOut),
        "embedding/bias" => return whole("patch_embed.proj.bias", Layout::AsStored),
        "Transformer/posembed_input/pos_embedding" => return whole("pos_embed", Layout::AsStored),
        "Transformer/encoder_norm/scale" => return whole("norm.weight", Layout::AsStored),
        "Transformer/encoder_norm/bias" => return whole("norm.bias", Layout::AsStored),
        "head/kernel" => return whole("head.weight", kernel),
        "head/bias" => return whole("head.bias", Layout::AsStored),
        _ => {}
    }
    let in_block = name.strip_prefix("Transformer/encoderblock_").and_then(|rest| block_and_rest(rest, '/'));
    let Some((block, rest)) = in_block else {
        return as_stored(name);
    };
    let heads_to_width = Layout::InputsFirst { num_input_dims: 2 };
    let (part_name, part, layout) = match rest {
        "LayerNorm_0/scale" => ("norm1.weight", Part::Whole, Layout::AsStored),
        "LayerNorm_0/bias" => ("norm1.bias", Part::Whole, Layout::AsStored),
        "MultiHeadDotProductAttention_1/query/kernel" => ("attn.qkv.weight", Part::Query, kernel),
        "MultiHeadDotProductAttention_1/query/bias" => ("attn.qkv.bias", Part::Query, Layout::Flat),
        "MultiHeadDotProductAttention_1/key/kernel" => ("attn.qkv.weight", Part::Key, kernel),
        "MultiHeadDotProductAttention_1/key/bias" => ("attn.qkv.bias", Part::Key, Layout::Flat),
        "MultiHeadDotProductAttention_1/value/kernel" => ("attn.qkv.weight", Part::Value, kernel),
        "MultiHeadDotProductAttention_1/value/bias" => ("attn.qkv.bias", Part::Value, Layout::Flat),
        "MultiHeadDotProductAttention_1/out/kernel" => ("attn.proj.weight", Part::Whole, heads_to_width),
        "MultiHeadDotProductAttention_1/out/bias" => ("attn.proj.bias", Part::Whole, Layout::AsStored),
        "LayerNorm_2/scale" => ("norm2.weight", Part::Whole, Layout::AsStored),
        "LayerNorm_2/bias" => ("norm2.bias", Part::Whole, Layout::AsStored),
        "MlpBlock_3/Dense_0/kernel" => ("mlp.fc1.weight", Part::Whole, kernel),
        "MlpBlock_3/Dense_0/bias" => ("mlp.fc1.bias", Part::Whole, Layout::AsStored),
        "MlpBlock_3/Dense_1/kernel" => ("mlp.fc2.weight", Part::Whole, kernel),
        "MlpBlock_3/Dense_1/bias" => ("mlp.fc2.bias", Part::Whole, Layout::AsStored),
        _ => return as_stored(name),
    };
    meaning(format!("blocks.{block}.{part_name}"), part, layout)
}

impl Layout {
    /// The parameter's shape for a tensor with this stored shape; `None` if the number of dimensions does not fit.
    pub(crate) fn parameter_shape(self, stored: &[usize]) -> Option<Vec<usize>> {
        let product = |dims: &[usize]| dims.iter().try_fold(1usize, |product, &n| product.checked_mul(n));
        match self {
            Layout::AsStored => Some(stored.to_vec()),
            Layout::Flat => Some(vec![product(stored)?]),
            Layout::InputsFirst { num_input_dims } => {
                let (inputs, outputs) = stored.split_at_checked(num_input_dims)?;
                (!outputs.is_empty()).then_some(())?;
                Some(vec![product(outputs)?, product(inputs)?])
            }
            Layout::HeightWidthInOut => match *stored {
                [height, width, inputs, outputs] => Some(vec![outputs, inputs, height, width]),
                _ => None,
            },
        }
    }

    /// Reorders stored values (row-major) to the parameter's layout; `shape` is the parameter's.
    pub(crate) fn rearrange(self, values: Vec<f32>, shape: &[usize]) -> Vec<f32> {
        match (self, shape) {
            (Layout::AsStored | Layout::Flat, _) => values,
            (Layout::InputsFirst { .. }, &[outputs, inputs]) => transposed(&values, inputs, outputs),
            // [height·width·inputs, outputs] to [outputs, height·width, inputs] to [outputs, inputs, height·width]
            (Layout::HeightWidthInOut, &[outputs, inputs, height, width]) => {
                let area = height * width;
                let by_output = transposed(&values, area * inputs, outputs);
                by_output
                    .chunks_exact(area * inputs)
                    .flat_map(|kernel| transposed(kernel, area, inputs))
                    .collect()
            }
            _ => values,
        }
    }
}

/// `[rows, columns]` to `[columns, rows]`.
fn transposed(values: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    let mut out = Vec::with_capacity(values.len());
    for column in 0..columns {
        out.extend((0..rows).map(|row| values[row * columns + column]));
    }
    out
}
