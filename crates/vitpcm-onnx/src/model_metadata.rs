//! What an ONNX file says about itself: classes, colours, preprocessing, tags, where its weights come from.

use std::collections::BTreeMap;

use serde_json::json;
use vitpcm_masks::palette::voc_colour;
use vitpcm_nets::Normalisation;

use crate::model_graph::{GraphOptions, TagConditioning};
use crate::onnx_proto::StringStringEntryProto;

/// The part of a model's description that its file repeats.
pub(crate) struct Description<'a> {
    pub(crate) network: String,
    /// Background first.
    pub(crate) classes: &'a [String],
    pub(crate) normalisation: &'a Normalisation,
    pub(crate) resampling: String,
    /// The square side, or a sentence.
    pub(crate) size: String,
    pub(crate) provenance: &'a BTreeMap<String, String>,
}

/// The lines of metadata, in alphabetical order. Values that are no plain text are JSON.
pub(crate) fn metadata(description: &Description<'_>, options: &GraphOptions) -> Vec<StringStringEntryProto> {
    let colours: Vec<[u8; 3]> =
        (0..description.classes.len()).map(|class| voc_colour(class.min(255) as u8)).collect();
    // As text of f32: a JSON value would show the digits of f64.
    let normalisation = serde_json::to_string(description.normalisation).expect("six numbers");
    let tags = match options.tags {
        TagConditioning::None => "none",
        TagConditioning::Given => "given",
        TagConditioning::Predicted { .. } => "predicted",
    };
    let mut lines = vec![
        ("classes", json!(description.classes).to_string()),
        ("network", description.network.clone()),
        ("normalisation", normalisation),
        ("palette", json!(colours).to_string()),
        ("preprocessing", options.preprocessing.name().to_owned()),
        ("provenance", json!(description.provenance).to_string()),
        ("resampling", description.resampling.clone()),
        ("size", description.size.clone()),
        ("tags", tags.to_owned()),
        ("vitpcm_version", env!("CARGO_PKG_VERSION").to_owned()),
        ("weights", options.weights.name().to_owned()),
    ];
    if let TagConditioning::Predicted { threshold } = options.tags {
        lines.push(("tag_threshold", threshold.to_string()));
    }
    lines.sort();
    lines.into_iter().map(|(key, value)| StringStringEntryProto { key: key.to_owned(), value }).collect()
}
