//! The file itself: read back by its field numbers, it is a graph whose operators come in order, with names, sizes and
//! metadata that other programs rely on; what cannot be exported is refused by name.

mod untrained;

use prost::Message;
use std::collections::{BTreeMap, BTreeSet};
use untrained::{deeplab, model, small_resnet, small_vit};
use vitpcm::Model;
use vitpcm_nets::{GridAlignment, Localisation, PatchConditioning, PcmConfig, XceptionVariant};
use vitpcm_onnx::onnx_proto::{ElementType, ModelProto};
use vitpcm_onnx::{GraphOptions, OnnxFile, Preprocessing, TagConditioning, WeightNumbers};

fn small_model() -> Model {
    model(small_vit(), GridAlignment::HalfPixel, 64)
}

fn read_back(file: &OnnxFile) -> ModelProto {
    ModelProto::decode(file.to_bytes().as_slice()).unwrap()
}

fn metadata(file: &ModelProto) -> BTreeMap<&str, &str> {
    file.metadata_props.iter().map(|line| (line.key.as_str(), line.value.as_str())).collect()
}

/// Names and dimensions of what a graph takes and gives; a free dimension is a name.
fn declared(values: &[vitpcm_onnx::onnx_proto::ValueInfoProto]) -> Vec<String> {
    let one = |value: &vitpcm_onnx::onnx_proto::ValueInfoProto| {
        let tensor = value.r#type.clone().unwrap().tensor_type.unwrap();
        assert_eq!(tensor.elem_type, ElementType::F32 as i32);
        let dimensions = tensor.shape.unwrap().dim;
        let dimensions: Vec<String> = dimensions
            .into_iter()
            .map(|dimension| match dimension.dim_param.is_empty() {
                true => dimension.dim_value.to_string(),
                false => dimension.dim_param,
            })
            .collect();
        format!("{} {}", value.name, dimensions.join("×"))
    };
    values.iter().map(one).collect()
}

#[test]
fn every_operator_reads_what_is_known_before_it() {
    let given = GraphOptions { tags: TagConditioning::Given, ..GraphOptions::default() };
    let resnet = model(small_resnet(), GridAlignment::AlignCorners, 64);
    let outside = GraphOptions { preprocessing: Preprocessing::Outside, ..GraphOptions::default() };
    let files = [
        OnnxFile::of_model(&small_model(), &outside),
        OnnxFile::of_model(&small_model(), &given),
        OnnxFile::of_model(&resnet, &GraphOptions { weights: WeightNumbers::I8, ..given }),
        OnnxFile::of_deeplab(&deeplab(), &GraphOptions { weights: WeightNumbers::F16, ..given }),
    ];
    for file in files {
        let graph = read_back(&file.unwrap()).graph.unwrap();
        let mut known: BTreeSet<String> = graph.input.iter().map(|value| value.name.clone()).collect();
        for tensor in &graph.initializer {
            let bytes = match ElementType::try_from(tensor.data_type).unwrap() {
                ElementType::I8 => 1,
                ElementType::F16 => 2,
                ElementType::F32 => 4,
                ElementType::I64 => 8,
                other => panic!("{}: {other:?}", tensor.name),
            };
            let elements: i64 = tensor.dims.iter().product();
            assert_eq!(tensor.raw_data.len() as i64, elements * bytes, "{}", tensor.name);
            assert!(known.insert(tensor.name.clone()), "two tensors are called {}", tensor.name);
        }
        for node in &graph.node {
            for input in &node.input {
                assert!(known.contains(input), "{} reads {input} too early", node.name);
            }
            for output in &node.output {
                assert!(known.insert(output.clone()), "two results are called {output}");
            }
        }
        assert!(graph.output.iter().all(|value| known.contains(&value.name)));
        let read: BTreeSet<&String> = graph.node.iter().flat_map(|node| &node.input).collect();
        let unread: Vec<_> = graph.initializer.iter().filter(|tensor| !read.contains(&tensor.name)).collect();
        assert!(unread.is_empty(), "nothing reads {:?}", unread[0].name);
    }
}

#[test]
fn inputs_and_outputs_say_which_sizes_are_free() {
    let given = GraphOptions { tags: TagConditioning::Given, ..GraphOptions::default() };
    let graph = read_back(&OnnxFile::of_model(&small_model(), &given).unwrap()).graph.unwrap();
    assert_eq!(declared(&graph.input), ["image batch×3×height×width", "tags batch×3"]);
    assert_eq!(declared(&graph.output), ["probabilities batch×4×height×width", "tag_probabilities batch×3"]);
    let outside = GraphOptions { preprocessing: Preprocessing::Outside, ..GraphOptions::default() };
    let graph = read_back(&OnnxFile::of_model(&small_model(), &outside).unwrap()).graph.unwrap();
    assert_eq!(declared(&graph.input), ["pixels batch×3×64×64"]);
}

#[test]
fn the_metadata_have_what_a_program_needs_to_run_the_file() {
    let tags = TagConditioning::Predicted { threshold: 0.25 };
    let options = GraphOptions { tags, size: Some(40), ..GraphOptions::default() };
    let file = read_back(&OnnxFile::of_model(&small_model(), &options).unwrap());
    assert_eq!((file.ir_version, file.opset_import[0].version), (8, 18));
    assert_eq!(file.producer_name, "vitpcm");
    let metadata = metadata(&file);
    assert_eq!(metadata["classes"], r#"["background","circle","square","star"]"#);
    assert_eq!(metadata["palette"], "[[0,0,0],[128,0,0],[0,128,0],[128,128,0]]");
    assert_eq!(metadata["provenance"], r#"{"weights":"random"}"#);
    for (key, value) in [
        ("preprocessing", "inside"),
        ("resampling", "half-pixel"),
        ("size", "40"),
        ("tags", "predicted"),
        ("tag_threshold", "0.25"),
        ("weights", "f32"),
        ("vitpcm_version", env!("CARGO_PKG_VERSION")),
    ] {
        assert_eq!(metadata[key], value, "{key}");
    }
    let normalisation = r#"{"mean":[0.485,0.456,0.406],"std":[0.229,0.224,0.225]}"#;
    assert_eq!(metadata["normalisation"], normalisation);
}

#[test]
fn smaller_weights_make_smaller_files() {
    // Wide enough for the layers to be most of the file.
    let file =
        |weights| OnnxFile::of_model(&small_model(), &GraphOptions { weights, ..GraphOptions::default() });
    let [f32, f16, i8] = [WeightNumbers::F32, WeightNumbers::F16, WeightNumbers::I8]
        .map(|weights| file(weights).unwrap().to_bytes().len());
    assert!(f16 * 10 < f32 * 6 && i8 < f16, "{f32} {f16} {i8}");
    assert_eq!(file(WeightNumbers::I8).unwrap().to_bytes(), file(WeightNumbers::I8).unwrap().to_bytes());
}

#[test]
fn what_cannot_be_exported_is_refused_by_name() {
    let refusal =
        |model: &Model, options: &GraphOptions| OnnxFile::of_model(model, options).unwrap_err().to_string();
    let options = GraphOptions::default();
    let cam = PcmConfig {
        localisation: Localisation::Cam { background_threshold: 0.2 },
        conditioning: PatchConditioning::None,
        tag_head: false,
        ..small_vit()
    };
    let text = refusal(&model(cam, GridAlignment::HalfPixel, 64), &options);
    assert!(text.contains("class activation maps") && text.contains("expected a model on"), "{text}");

    let xception = XceptionVariant::named("xception-nano").unwrap().config();
    let network = PcmConfig { conditioning: PatchConditioning::None, ..PcmConfig::paper(xception, 4) };
    let text = refusal(&model(network, GridAlignment::HalfPixel, 64), &options);
    assert!(text.contains("xception-nano"), "{text}");

    let text = refusal(&small_model(), &GraphOptions { size: Some(3), ..options });
    assert!(text.contains("size 3: a grid of 0 patches"), "{text}");

    let mut large = small_model();
    let name = "blocks.0.mlp.fc1.weight";
    let weights = (large.parameters.get(name).unwrap() * 1e7).unwrap();
    large.parameters.insert(name, weights);
    let text = refusal(&large, &GraphOptions { weights: WeightNumbers::F16, ..options });
    assert!(text.contains(name) && text.contains("65504"), "{text}");
}
