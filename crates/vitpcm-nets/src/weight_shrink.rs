//! Writes the weights of any supported container as one safetensors file of half the size, with unchanged names and
//! layouts, to distribute pretrained backbones.

use std::collections::BTreeMap;
use std::path::Path;

use candle_core::{Device, Tensor};

use crate::error::Result;
use crate::model_file::{Storage, write_parameters};
use crate::parameters::Parameters;
use crate::variants::ParameterShape;
use crate::weight_file::WeightFile;

/// Writes all floating-point arrays of a file: matrices and kernels as f16, vectors (biases, and norms whose statistics
/// exceed f16) as f32. Other arrays are left out.
pub fn shrink_weights(file: &WeightFile, path: impl AsRef<Path>) -> Result<()> {
    let (mut parameters, mut shapes) = (Parameters::new(), Vec::new());
    for entry in file.entries().filter(|entry| entry.element_type.is_float()) {
        let values = Tensor::from_vec(file.read_f32(entry)?, entry.shape.as_slice(), &Device::Cpu)?;
        parameters.insert(entry.name.clone(), values);
        shapes.push(ParameterShape { name: entry.name.clone(), shape: entry.shape.clone() });
    }
    let metadata = BTreeMap::from([("made_from", file.path().display().to_string())]);
    write_parameters(path.as_ref(), &metadata, shapes, &parameters, Storage::F16Matrices)
}
