//! The vision transformer: `vitpcm_nets::vit` as operators. Scales that follow a linear layer (of queries, LayerScale)
//! are multiplied into its weights.

use vitpcm_nets::{
    Grid, LAYER_NORM_EPS, MLP_RATIO, NetsError, Parameters, VitConfig, resize_position_embedding,
};

use crate::error::Result;
use crate::graph_builder::{Attribute, GraphBuilder, Value};
use crate::stored_weights::LayerWeights;

/// A transformer's patch features after the final norm, for square images of `side` patches.
///
/// # Shapes
/// pixels `[N, 3, side·patch, side·patch]`; result `[N, side, side, D]`
pub(crate) fn vit_graph(
    graph: &mut GraphBuilder,
    config: &VitConfig,
    parameters: &Parameters,
    side: usize,
    pixels: &Value,
) -> Result<Value> {
    graph.begin_part("embedding");
    let mut tokens = embedded(graph, config, parameters, side, pixels)?;
    for index in 0..config.depth {
        tokens = Block { config, parameters, index }.graph(graph, &tokens)?;
    }
    graph.begin_part("norm");
    let (first, end) = (config.num_prefix_tokens(), config.num_prefix_tokens() + side * side);
    let patches = graph.slice(&tokens, 1, first as i64, end as i64);
    let normalised = layer_norm(graph, &patches, parameters, "norm")?;
    Ok(graph.reshape(&normalised, &[0, side as i64, side as i64, config.width as i64]))
}

/// Pixels to tokens: the patches behind the class token and the registers.
fn embedded(
    graph: &mut GraphBuilder,
    config: &VitConfig,
    parameters: &Parameters,
    side: usize,
    pixels: &Value,
) -> Result<Value> {
    let width = config.width;
    let patch = config.patch as i64;
    let name = "patch_embed.proj.weight";
    let kernel =
        LayerWeights { values: parameters.values(name)?, shape: vec![width, 3, config.patch, config.patch] };
    let kernel = graph.layer(name, &kernel)?;
    let bias = graph.floats(&parameters.values("patch_embed.proj.bias")?, &[width]);
    let window =
        [("kernel_shape", Attribute::Ints(&[patch, patch])), ("strides", Attribute::Ints(&[patch, patch]))];
    let patches = graph.node("Conv", &[pixels, &kernel, &bias], &window); // [N, D, side, side]
    let patches = graph.reshape(&patches, &[0, width as i64, (side * side) as i64]);
    let patches = graph.transpose(&patches, &[0, 2, 1]); // [N, side², D]

    let grid = Grid { rows: side, columns: side };
    let positions = resize_position_embedding(parameters.get("pos_embed")?, grid)?;
    let positions = positions.flatten_all().and_then(|all| all.to_vec1::<f32>()).map_err(NetsError::from)?;
    let (of_class, of_patches) = positions.split_at(width);
    let of_patches = graph.matrix("positions", of_patches, &[1, side * side, width])?;
    let patches = graph.add(&patches, &of_patches);

    // The class token has a position; the registers behind it have none.
    let class_token = parameters.values("cls_token")?;
    let mut first: Vec<f32> = class_token.iter().zip(of_class).map(|(token, place)| token + place).collect();
    if config.registers > 0 {
        first.extend(parameters.values("reg_token")?);
    }
    let num_first = config.num_prefix_tokens();
    let first = graph.matrix("first_tokens", &first, &[1, num_first, width])?;
    let batch = graph.size_of(pixels, 0);
    let batch = graph.reshape(&batch, &[1]);
    let one_image = graph.integers(&[num_first as i64, width as i64]);
    let shape = graph.concat(&[&batch, &one_image], 0);
    let first = graph.node("Expand", &[&first, &shape], &[]);
    Ok(graph.concat(&[&first, &patches], 1))
}

/// One transformer block: attention and MLP, each on the norm of its input and added to it.
struct Block<'a> {
    config: &'a VitConfig,
    parameters: &'a Parameters,
    index: usize,
}

impl Block<'_> {
    fn graph(&self, graph: &mut GraphBuilder, tokens: &Value) -> Result<Value> {
        graph.begin_part(&format!("blocks.{}", self.index));
        let attended = self.attention(graph, tokens)?;
        let tokens = graph.add(tokens, &attended);
        let hidden = self.mlp(graph, &tokens)?;
        Ok(graph.add(&tokens, &hidden))
    }

    fn attention(&self, graph: &mut GraphBuilder, tokens: &Value) -> Result<Value> {
        let (width, heads) = (self.config.width, self.config.heads);
        let head_width = width / heads;
        let normalised = layer_norm(graph, tokens, self.parameters, &self.name("norm1"))?;
        // Queries come first, and take the factor of their products with the keys.
        let mut factors = vec![1.0; 3 * width];
        factors[..width].fill((head_width as f32).powf(-0.5));
        let qkv = self.linear(graph, &normalised, "attn.qkv", [3 * width, width], &factors)?;
        let qkv = graph.reshape(&qkv, &[0, -1, 3, heads as i64, head_width as i64]);
        let qkv = graph.transpose(&qkv, &[2, 0, 3, 1, 4]); // [3, N, heads, tokens, head width]
        let mut part = |index: i64| {
            let index = graph.integer(index);
            graph.node("Gather", &[&qkv, &index], &[("axis", Attribute::Int(0))])
        };
        let [queries, keys, values] = [part(0), part(1), part(2)];
        let keys = graph.transpose(&keys, &[0, 1, 3, 2]);
        let logits = graph.matmul(&queries, &keys);
        let weights = graph.softmax(&logits, -1);
        let attended = graph.matmul(&weights, &values);
        let attended = graph.transpose(&attended, &[0, 2, 1, 3]);
        let attended = graph.reshape(&attended, &[0, -1, width as i64]);
        self.linear(graph, &attended, "attn.proj", [width, width], &self.layer_scale("ls1")?)
    }

    fn mlp(&self, graph: &mut GraphBuilder, tokens: &Value) -> Result<Value> {
        let (width, hidden) = (self.config.width, self.config.width * MLP_RATIO);
        let normalised = layer_norm(graph, tokens, self.parameters, &self.name("norm2"))?;
        let x = self.linear(graph, &normalised, "mlp.fc1", [hidden, width], &vec![1.0; hidden])?;
        // The exact GELU, x · (1 + erf(x / √2)) / 2, in the form that runtimes fuse.
        let [root, one, half] = [std::f32::consts::SQRT_2, 1.0, 0.5].map(|number| graph.float(number));
        let scaled = graph.div(&x, &root);
        let erf = graph.node("Erf", &[&scaled], &[]);
        let shifted = graph.add(&erf, &one);
        let product = graph.mul(&x, &shifted);
        let activated = graph.mul(&product, &half);
        self.linear(graph, &activated, "mlp.fc2", [width, hidden], &self.layer_scale("ls2")?)
    }

    /// A linear layer whose outputs are multiplied by factors.
    fn linear(
        &self,
        graph: &mut GraphBuilder,
        x: &Value,
        layer: &str,
        shape: [usize; 2],
        factors: &[f32],
    ) -> Result<Value> {
        let name = self.name(&format!("{layer}.weight"));
        let weights = LayerWeights { values: self.parameters.values(&name)?, shape: shape.to_vec() };
        let bias = self.parameters.values(&self.name(&format!("{layer}.bias")))?;
        let bias: Vec<f32> = bias.iter().zip(factors).map(|(bias, factor)| bias * factor).collect();
        graph.linear(x, &name, &weights.scaled(factors), Some(&bias))
    }

    fn layer_scale(&self, name: &str) -> Result<Vec<f32>> {
        Ok(match self.config.layer_scale {
            true => self.parameters.values(&self.name(&format!("{name}.gamma")))?,
            false => vec![1.0; self.config.width],
        })
    }

    fn name(&self, part: &str) -> String {
        format!("blocks.{}.{part}", self.index)
    }
}

fn layer_norm(graph: &mut GraphBuilder, x: &Value, parameters: &Parameters, name: &str) -> Result<Value> {
    let weight = parameters.values(&format!("{name}.weight"))?;
    let weight = graph.floats(&weight, &[weight.len()]);
    let bias = parameters.values(&format!("{name}.bias"))?;
    let bias = graph.floats(&bias, &[bias.len()]);
    let settings = [("axis", Attribute::Int(-1)), ("epsilon", Attribute::Float(LAYER_NORM_EPS as f32))];
    Ok(graph.node("LayerNormalization", &[x, &weight, &bias], &settings))
}
