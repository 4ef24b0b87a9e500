//! The whole graph of a model: image in, preprocessing, network, class probabilities at the image's size and tag
//! probabilities out. What runs where is `vitpcm::Segmenter`'s order of things.

use vitpcm_nets::{
    BackboneConfig, DeepLabModel, GridAlignment, Localisation, Model, Normalisation, OutputStride,
    PatchConditioning,
};

use crate::bilstm_graph::bilstm_graph;
use crate::deeplab_graph::deeplab_graph;
use crate::error::{OnnxError, Result};
use crate::graph_builder::{Dimension, GraphBuilder, Value};
use crate::onnx_proto::GraphProto;
use crate::resampling_graph::{PictureSize, deeplab_size, normalised, resampled};
use crate::resnet_graph::resnet_graph;
use crate::stored_weights::{LayerWeights, WeightNumbers};
use crate::tag_graph::{conditioned, peaks, pooled_tags, reached, tag_head_graph};
use crate::vit_graph::vit_graph;

/// Longest side in pixels that DeepLab gets, as in `vitpcm::Segmenter`.
const LONGEST_SIDE: usize = 2049;

/// Patches per side of the largest grid, as in `vitpcm::Segmenter`.
const MOST_CELLS: usize = 256;

/// Name of the input: RGB images of 0..255 with preprocessing inside the graph.
pub const IMAGE: &str = "image";
/// Name of the input with preprocessing outside: the network's pixels.
pub const PIXELS: &str = "pixels";
/// Name of the second input, with [`TagConditioning::Given`].
pub const TAGS: &str = "tags";
/// Name of the output: class probabilities at the input's size, background first.
pub const PROBABILITIES: &str = "probabilities";
/// Name of the output: the probability of every tag, without the background.
pub const TAG_PROBABILITIES: &str = "tag_probabilities";

/// Who resizes and normalises images.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Preprocessing {
    /// The graph: it takes RGB images of any size, 0..255.
    #[default]
    Inside,
    /// The caller: the graph takes the network's own pixels.
    Outside,
}

impl Preprocessing {
    /// The name in options and metadata.
    pub fn name(self) -> &'static str {
        match self {
            Preprocessing::Inside => "inside",
            Preprocessing::Outside => "outside",
        }
    }
}

/// Which classes the probabilities may show.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum TagConditioning {
    /// All of them; scores are not conditioned.
    #[default]
    None,
    /// Those that the caller gives.
    Given,
    /// Those whose predicted probability reaches the threshold.
    Predicted {
        /// From 0 to 1.
        threshold: f32,
    },
}

/// What a graph takes, computes and stores.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GraphOptions {
    /// Side in pixels to which images are resized; by default the model's own.
    pub size: Option<usize>,
    /// Who resizes and normalises images.
    pub preprocessing: Preprocessing,
    /// Which classes the probabilities may show.
    pub tags: TagConditioning,
    /// How weights are stored.
    pub weights: WeightNumbers,
}

/// A graph, and the side of its network's square input if that is fixed.
pub(crate) struct ModelGraph {
    pub(crate) graph: GraphProto,
    pub(crate) side: Option<usize>,
}

/// The graph of a network trained from tags.
pub(crate) fn pcm_graph(model: &Model, options: &GraphOptions) -> Result<ModelGraph> {
    let (info, network) = (&model.info, &model.info.network);
    if let Localisation::Cam { .. } = network.localisation {
        return Err(not_exportable("a network of class activation maps (vitpcm-lab cam)".to_owned()));
    }
    let patch = network.backbone.patch();
    let size = options.size.unwrap_or(info.inference_size);
    let cells = (size as f64 / patch as f64).round() as usize;
    if !(1..=MOST_CELLS).contains(&cells) {
        return Err(OnnxError::BadSize { size, cells });
    }
    let side = cells * patch;

    let mut graph = GraphBuilder::new(options.weights);
    let dimensions = match options.preprocessing {
        Preprocessing::Inside => [Dimension::Free("height"), Dimension::Free("width")],
        Preprocessing::Outside => [Dimension::Fixed(side); 2],
    };
    let input = Input {
        preprocessing: options.preprocessing,
        normalisation: &info.normalisation,
        alignment: info.alignment,
        dimensions,
    };
    let (pixels, image_size) = input.graph(&mut graph, |graph, _| PictureSize::square(graph, side));

    let parameters = &model.parameters;
    let features = match &network.backbone {
        BackboneConfig::Vit(vit) => vit_graph(&mut graph, vit, parameters, cells, &pixels)?,
        BackboneConfig::ResNet(resnet) => {
            let features = resnet_graph(&mut graph, resnet, OutputStride::Sixteen, parameters, &pixels)?;
            graph.transpose(&features, &[0, 2, 3, 1])
        }
        BackboneConfig::Xception(_) => {
            return Err(not_exportable(format!("a network on {}", network.backbone.name())));
        }
    };
    let width = network.backbone.num_features();
    let (mixed, num_mixed) = match network.conditioning {
        PatchConditioning::None => (features.clone(), width),
        PatchConditioning::HvBilstm { units } => {
            (bilstm_graph(&mut graph, parameters, [cells, width, units], &features)?, 4 * units)
        }
    };
    graph.begin_part("patch_classifier");
    let name = vitpcm_nets::patch_classifier::CLASSIFIER_WEIGHT;
    let classifier =
        LayerWeights { values: parameters.values(name)?, shape: vec![network.num_classes, num_mixed] };
    let logits = graph.linear(&mixed, name, &classifier, None)?;
    let scores = graph.softmax(&logits, -1);
    let scores = graph.transpose(&scores, &[0, 3, 1, 2]); // [N, K + 1, cells, cells]

    let peaks = peaks(&mut graph, &scores);
    let mut tags = pooled_tags(&mut graph, &peaks, network.num_classes);
    if network.tag_head {
        let sizes = [network.num_classes, cells, width];
        tags = tag_head_graph(&mut graph, parameters, sizes, &tags, (&scores, &features))?;
    }
    let scores = Scores { scores, peaks, tags, num_classes: network.num_classes };
    scores.output(&mut graph, options.tags, (&image_size, dimensions), info.alignment);
    Ok(ModelGraph { graph: graph.finish(), side: Some(side) })
}

/// The graph of a network trained on masks.
pub(crate) fn deeplab_model_graph(model: &DeepLabModel, options: &GraphOptions) -> Result<ModelGraph> {
    let info = &model.info;
    let mut graph = GraphBuilder::new(options.weights);
    let dimensions = [Dimension::Free("height"), Dimension::Free("width")];
    let alignment = GridAlignment::AlignCorners;
    let input = Input {
        preprocessing: options.preprocessing,
        normalisation: &info.normalisation,
        alignment,
        dimensions,
    };
    let (pixels, image_size) =
        input.graph(&mut graph, |graph, size| deeplab_size(graph, size, options.size, LONGEST_SIDE));
    let scores = deeplab_graph(&mut graph, &info.network, &model.parameters, &pixels)?;
    let peaks = peaks(&mut graph, &scores);
    let num_classes = info.network.num_classes;
    let tags = pooled_tags(&mut graph, &peaks, num_classes);
    let scores = Scores { scores, peaks, tags, num_classes };
    scores.output(&mut graph, options.tags, (&image_size, dimensions), alignment);
    Ok(ModelGraph { graph: graph.finish(), side: None })
}

fn not_exportable(network: String) -> OnnxError {
    let expected = "a model on a ViT or ResNet trained from tags, or a DeepLab trained on masks";
    OnnxError::NotExportable { network, expected }
}

/// How images enter.
struct Input<'a> {
    preprocessing: Preprocessing,
    normalisation: &'a Normalisation,
    alignment: GridAlignment,
    dimensions: [Dimension<'a>; 2],
}

impl Input<'_> {
    /// The network's pixels, and the size of the image that they show.
    fn graph(
        &self,
        graph: &mut GraphBuilder,
        network_size: impl FnOnce(&mut GraphBuilder, &PictureSize) -> PictureSize,
    ) -> (Value, PictureSize) {
        let [height, width] = self.dimensions;
        let shape = [Dimension::Free("batch"), Dimension::Fixed(3), height, width];
        graph.begin_part("preprocessing");
        match self.preprocessing {
            Preprocessing::Inside => {
                let image = graph.input(IMAGE, &shape, "RGB images, 0..255");
                let image_size = PictureSize::of(graph, &image);
                let size = network_size(graph, &image_size);
                let resized = resampled(graph, &image, (&image_size, &size), self.alignment);
                (normalised(graph, self.normalisation, &resized), image_size)
            }
            Preprocessing::Outside => {
                let description = "RGB images, resized and normalised as the metadata say";
                let pixels = graph.input(PIXELS, &shape, description);
                let size = PictureSize::of(graph, &pixels);
                (pixels, size)
            }
        }
    }
}

/// What a network says of an image.
struct Scores {
    /// `[N, K + 1, rows, columns]`
    scores: Value,
    /// `[N, K + 1, 1, 1]`
    peaks: Value,
    /// `[N, K]`
    tags: Value,
    num_classes: usize,
}

impl Scores {
    /// Conditions the scores, resamples them to the image's size and declares the outputs.
    fn output(
        &self,
        graph: &mut GraphBuilder,
        tags: TagConditioning,
        (image_size, [height, width]): (&PictureSize, [Dimension<'_>; 2]),
        alignment: GridAlignment,
    ) {
        let batch = Dimension::Free("batch");
        let of_tags = [batch, Dimension::Fixed(self.num_classes - 1)];
        let scores = (&self.scores, &self.peaks);
        let scores = match tags {
            TagConditioning::None => self.scores.clone(),
            TagConditioning::Given => {
                let description = "1 for every class that the image may show, else 0; without the background";
                let given = graph.input(TAGS, &of_tags, description);
                conditioned(graph, &given, scores)
            }
            TagConditioning::Predicted { threshold } => {
                let predicted = reached(graph, &self.tags, threshold);
                conditioned(graph, &predicted, scores)
            }
        };
        graph.begin_part("at_image_size");
        let grid_size = PictureSize::of(graph, &scores);
        let probabilities = resampled(graph, &scores, (&grid_size, image_size), alignment);
        let shape = [batch, Dimension::Fixed(self.num_classes), height, width];
        let description = "probability of every class at every pixel, background first";
        graph.output(PROBABILITIES, &probabilities, &shape, description);
        let description = "probability that each class is in the image, without the background";
        graph.output(TAG_PROBABILITIES, &self.tags, &of_tags, description);
    }
}
