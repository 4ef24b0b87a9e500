//! Import of published ViT weights: detects the naming scheme and the variant, then reads exactly the tensors that the
//! ViT needs. Strict: one error lists everything missing, left over or of another shape.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use candle_core::{Device, Tensor};
use serde::Serialize;

use crate::error::{Fault, NetsError, Result};
use crate::normalisation::Normalisation;
use crate::parameters::Parameters;
use crate::variants::{HEAD_WIDTH, ParameterShape, Variant, VitConfig};
use crate::vit::ClassificationHead;
use crate::weight_file::{ArrayEntry, Container, WeightFile};
use crate::weight_names::{Layout, Naming, Part, may_be_left_over};

/// The weights of a backbone, and a summary of their file.
#[derive(Debug, Clone)]
pub struct ImportedBackbone {
    /// A summary of the file.
    pub summary: BackboneSummary,
    /// The ViT's parameters, f32.
    pub parameters: Parameters,
    /// The classification head of pretraining, if the file has one.
    pub head: Option<ClassificationHead>,
}

/// Summary of a file of ViT weights.
#[derive(Debug, Clone, Serialize)]
pub struct BackboneSummary {
    /// The file.
    pub path: PathBuf,
    /// Its container format.
    pub container: Container,
    /// Its naming scheme.
    pub naming: Naming,
    /// The variant's name, or `custom`.
    pub variant: String,
    /// The ViT's configuration.
    pub config: VitConfig,
    /// Number of the ViT's parameters.
    pub num_parameters: usize,
    /// The element types found.
    pub element_types: Vec<String>,
    /// Number of classes of the head on the class token, if there is one.
    pub num_head_classes: Option<usize>,
    /// The normalisation that these weights most likely expect; files do not say.
    pub likely_normalisation: Normalisation,
    /// Pretraining tensors that segmentation does not need.
    pub left_over: Vec<String>,
}

/// How the tensors of a file differ from those of the network.
#[derive(Debug, Clone, Serialize)]
pub struct Mismatch {
    /// The file.
    pub path: PathBuf,
    /// The network it was compared with.
    pub network: String,
    /// Parameters that the file lacks.
    pub missing: Vec<String>,
    /// Tensors of another shape or element type.
    pub different: Vec<DifferentTensor>,
    /// Tensors that the network does not have.
    pub unused: Vec<String>,
}

/// A tensor of another shape or element type than the network's.
#[derive(Debug, Clone, Serialize)]
pub struct DifferentTensor {
    /// Its name in the file.
    pub name: String,
    /// Shape and element type found.
    pub found: String,
    /// Shape or element types expected.
    pub expected: String,
}

impl Mismatch {
    pub(crate) fn new(path: &Path, network: String) -> Self {
        let path = path.to_owned();
        Self { path, network, missing: Vec::new(), different: Vec::new(), unused: Vec::new() }
    }

    pub(crate) fn into_result(self) -> Result<()> {
        if self.missing.is_empty() && self.different.is_empty() && self.unused.is_empty() {
            return Ok(());
        }
        Err(NetsError::Mismatch(Box::new(self)))
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A hostile file may hold a million names; a message should not.
        const MOST: usize = 400;
        write!(f, "{}: the tensors are not those of {}", self.path.display(), self.network)?;
        let mut section = |title: &str, lines: &[String]| {
            if lines.is_empty() {
                return Ok(());
            }
            write!(f, "\n  {title} ({}):", lines.len())?;
            lines.iter().take(MOST).try_for_each(|line| write!(f, "\n    {line}"))?;
            if lines.len() > MOST { write!(f, "\n    … and {} more", lines.len() - MOST) } else { Ok(()) }
        };
        section("missing", &self.missing)?;
        let different: Vec<String> = self
            .different
            .iter()
            .map(|tensor| format!("{}: {}, expected {}", tensor.name, tensor.found, tensor.expected))
            .collect();
        section("of another shape or type", &different)?;
        section("unused", &self.unused)
    }
}

/// Imports the backbone of a file. With `expected`, it must be that variant; otherwise the tensors' shapes tell the
/// variant.
pub fn import_backbone(
    path: impl AsRef<Path>,
    expected: Option<Variant>,
    device: &Device,
) -> Result<ImportedBackbone> {
    ImportedBackbone::from_weight_file(&WeightFile::open(path)?, expected, device)
}

impl ImportedBackbone {
    /// As [`import_backbone`], from an open file.
    pub fn from_weight_file(file: &WeightFile, expected: Option<Variant>, device: &Device) -> Result<Self> {
        let plan = Plan::new(file, expected)?;
        let mut parameters = Parameters::new();
        for ParameterShape { name, shape } in plan.summary.config.parameter_shapes() {
            let values = match name.as_str() {
                "pos_embed" => plan.read_positions(file, &shape)?,
                _ => plan.read(file, &name, &shape)?,
            };
            parameters.insert(name, Tensor::from_vec(values, shape, device)?);
        }
        let head = match plan.summary.num_head_classes {
            None => None,
            Some(num_classes) => {
                let width = plan.summary.config.width;
                let weight = plan.read(file, "head.weight", &[num_classes, width])?;
                let bias = plan.read(file, "head.bias", &[num_classes])?;
                Some(ClassificationHead::new(
                    Tensor::from_vec(weight, (num_classes, width), device)?,
                    Tensor::from_vec(bias, num_classes, device)?,
                ))
            }
        };
        Ok(Self { summary: plan.summary, parameters, head })
    }
}

/// Which arrays of a file become which parameters, from names and shapes alone.
pub(crate) struct Plan<'a> {
    pub(crate) summary: BackboneSummary,
    sources: BTreeMap<String, Vec<Source<'a>>>,
}

/// An array of the file: a whole parameter, or its queries, keys or values.
struct Source<'a> {
    entry: &'a ArrayEntry,
    part: Part,
    layout: Layout,
}

impl Source<'_> {
    /// The shape in the parameter's layout.
    fn shape(&self) -> Option<Vec<usize>> {
        self.layout.parameter_shape(&self.entry.shape)
    }
}

impl<'a> Plan<'a> {
    pub(crate) fn new(file: &'a WeightFile, expected: Option<Variant>) -> Result<Self> {
        let naming = Naming::recognise(file.entries().map(|entry| entry.name.as_str())).ok_or_else(|| {
            Fault::from(
                "no ViT by its tensor names; expected those of timm, DINO or DINOv2 \
                 (patch_embed.proj.weight), Hugging Face (…embeddings.patch_embeddings.projection.weight) or \
                 google-research (embedding/kernel)",
            )
            .at(file.path())
        })?;
        let mut sources: BTreeMap<String, Vec<Source<'a>>> = BTreeMap::new();
        for entry in file.entries() {
            let meaning = naming.meaning(&entry.name);
            let source = Source { entry, part: meaning.part, layout: meaning.layout };
            sources.entry(meaning.parameter).or_default().push(source);
        }
        sources.values_mut().for_each(|parts| parts.sort_by_key(|source| source.part));

        let config = config_of(&sources, expected).map_err(|reason| Fault::from(reason).at(file.path()))?;
        let network = format!("{} ({naming} names)", config.name());
        let mut mismatch = Mismatch::new(file.path(), network);
        let shapes = config.parameter_shapes();
        for wanted in &shapes {
            match sources.get(&wanted.name) {
                None => mismatch.missing.push(wanted.name.clone()),
                Some(parts) => compare(wanted, parts, &mut mismatch),
            }
        }
        let num_head_classes = head_classes(&sources, config.width);
        let mut left_over = Vec::new();
        for (parameter, parts) in &sources {
            if shapes.iter().any(|wanted| wanted.name == *parameter) {
                continue;
            }
            let names = parts.iter().map(|source| source.entry.name.clone());
            if num_head_classes.is_some() && (parameter == "head.weight" || parameter == "head.bias") {
                continue;
            } else if may_be_left_over(parameter) {
                left_over.extend(names);
            } else {
                mismatch.unused.extend(names);
            }
        }
        mismatch.into_result()?;

        let mut element_types: Vec<String> =
            file.entries().map(|entry| entry.element_type.to_string()).collect();
        element_types.sort();
        element_types.dedup();
        let container = file.container();
        let summary = BackboneSummary {
            path: file.path().to_owned(),
            container,
            naming,
            variant: config.name().to_owned(),
            num_parameters: shapes.iter().map(ParameterShape::num_elements).sum(),
            element_types,
            num_head_classes,
            // DINOv2 alone has LayerScale, and DINO alone is published as PyTorch files.
            likely_normalisation: if config.layer_scale || container == Container::TorchZip {
                Normalisation::IMAGENET
            } else {
                Normalisation::HALF
            },
            left_over,
            config,
        };
        Ok(Self { summary, sources })
    }

    /// The values of a parameter in our layout; shapes were checked before.
    fn read(&self, file: &WeightFile, name: &str, shape: &[usize]) -> Result<Vec<f32>> {
        let parts = self.sources.get(name).map(Vec::as_slice).unwrap_or_default();
        let mut values: Vec<f32> = Vec::new();
        for source in parts {
            let mut part_shape = shape.to_vec();
            if source.part != Part::Whole {
                part_shape[0] /= 3;
            }
            let part = source.layout.rearrange(file.read_f32(source.entry)?, &part_shape);
            // A single part, the usual case, is moved rather than copied.
            if values.is_empty() { values = part } else { values.extend(part) }
        }
        Ok(values)
    }

    /// Position embeddings. timm's DINOv2 adds the class token's position into the token and stores none, so it is zero
    /// here.
    fn read_positions(&self, file: &WeightFile, shape: &[usize]) -> Result<Vec<f32>> {
        let mut values = self.read(file, "pos_embed", shape)?;
        let missing = shape.iter().product::<usize>() - values.len();
        values.splice(0..0, std::iter::repeat_n(0.0, missing));
        Ok(values)
    }
}

/// The ViT's configuration, from the tensors' shapes or the expected variant.
fn config_of(
    sources: &BTreeMap<String, Vec<Source<'_>>>,
    expected: Option<Variant>,
) -> std::result::Result<VitConfig, String> {
    let shape_of = |name: &str| sources.get(name).and_then(|parts| parts.first()).and_then(Source::shape);
    // Missing or non-square positions are reported later; any grid will do until then.
    let position_grid = match shape_of("pos_embed").as_deref() {
        Some(&[1, num_positions, _]) => square_side(num_positions),
        _ => None,
    }
    .unwrap_or_else(|| expected.map_or(14, |variant| variant.config().position_grid));
    if let Some(variant) = expected {
        return Ok(VitConfig { position_grid, ..variant.config() });
    }
    let Some(&[width, 3, patch, patch_width]) = shape_of("patch_embed.proj.weight").as_deref() else {
        return Err("the patch embedding's weight has another shape than [width, 3, patch, patch]".to_owned());
    };
    if patch != patch_width || !width.is_multiple_of(HEAD_WIDTH) {
        return Err(format!(
            "patches of {patch} × {patch_width} pixels and width {width}; expected square patches and heads of \
             {HEAD_WIDTH} features"
        ));
    }
    let block_of = |name: &String| name.strip_prefix("blocks.")?.split('.').next()?.parse::<usize>().ok();
    let depth = sources.keys().filter_map(block_of).max().map_or(0, |last| last.saturating_add(1));
    let config = VitConfig {
        patch,
        width,
        depth,
        heads: width / HEAD_WIDTH,
        registers: match shape_of("reg_token").as_deref() {
            Some(&[1, registers, _]) => registers,
            _ => 0,
        },
        layer_scale: sources.keys().any(|name| name.ends_with(".ls1.gamma")),
        position_grid,
    };
    config.check().map_err(|error| error.to_string())?;
    Ok(config)
}

/// The side of a square grid of positions, with or without one for the class token.
fn square_side(num_positions: usize) -> Option<usize> {
    [num_positions.checked_sub(1)?, num_positions]
        .into_iter()
        .map(|cells| (cells.isqrt(), cells))
        .find(|&(side, cells)| side > 0 && side.checked_mul(side) == Some(cells))
        .map(|(side, _)| side)
}

fn compare(wanted: &ParameterShape, parts: &[Source<'_>], mismatch: &mut Mismatch) {
    // Sorted by part, whole parameters first.
    let whole = parts.iter().any(|source| source.part == Part::Whole);
    let wanted_parts: &[Part] = if whole { &[Part::Whole] } else { &[Part::Query, Part::Key, Part::Value] };
    if !parts.iter().map(|source| source.part).eq(wanted_parts.iter().copied()) {
        for part in wanted_parts {
            if !parts.iter().any(|source| source.part == *part) {
                mismatch.missing.push(format!("{} ({})", wanted.name, format!("{part:?}").to_lowercase()));
            }
        }
        let again = parts.windows(2).filter(|pair| whole || pair[0].part == pair[1].part);
        mismatch
            .unused
            .extend(again.map(|pair| format!("{} ({} a second time)", pair[1].entry.name, wanted.name)));
        return;
    }
    let mut expected = wanted.shape.clone();
    if !whole {
        expected[0] /= 3;
    }
    for source in parts {
        let found = source.shape();
        let fits = found.as_deref() == Some(&expected) || is_without_class_position(wanted, found.as_deref());
        let readable = source.entry.element_type.is_float();
        if fits && readable {
            continue;
        }
        mismatch.different.push(DifferentTensor {
            name: source.entry.name.clone(),
            found: format!("{:?} {}", source.entry.shape, source.entry.element_type),
            expected: match (fits, source.layout) {
                (true, _) => "f32, f16, bf16 or f64".to_owned(),
                (false, _) if wanted.name == "pos_embed" => {
                    format!("[1, 1 + a square number, {}]", expected[2])
                }
                (false, Layout::AsStored) => format!("{expected:?}"),
                (false, _) => format!("what becomes {expected:?}"),
            },
        });
    }
}

fn is_without_class_position(wanted: &ParameterShape, found: Option<&[usize]>) -> bool {
    wanted.name == "pos_embed"
        && matches!((found, wanted.shape.as_slice()), (Some([1, cells, width]), [_, with_class, wanted_width])
            if cells + 1 == *with_class && width == wanted_width)
}

/// Number of classes of the head on the class token. Hugging Face's DINOv2 heads read more than that token and are left
/// over.
fn head_classes(sources: &BTreeMap<String, Vec<Source<'_>>>, width: usize) -> Option<usize> {
    let only = |name: &str| match sources.get(name)?.as_slice() {
        [source] if source.entry.element_type.is_float() => source.shape(),
        _ => None,
    };
    match (only("head.weight")?.as_slice(), only("head.bias")?.as_slice()) {
        (&[classes, features], &[biases]) if features == width && biases == classes && classes > 0 => {
            Some(classes)
        }
        _ => None,
    }
}
