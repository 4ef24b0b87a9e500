//! The model file: one safetensors file with the parameters and, in its metadata, checksums and everything needed to
//! run them. It is read by mapping and written atomically.

use std::collections::BTreeMap;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use candle_core::{DType, Device, Tensor};
use half::f16;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::{Fault, NetsError, Parsed, Result};
use crate::import::{DifferentTensor, Mismatch};
use crate::normalisation::Normalisation;
use crate::parameters::Parameters;
use crate::pcm::{PcmConfig, PcmNetwork};
use crate::safetensors_writer::{PlannedTensor, SafetensorsWriter};
use crate::variants::ParameterShape;
use crate::weight_file::{ArrayEntry, ElementType, WeightFile};

/// The format's name in the metadata.
const FORMAT: &str = "vitpcm-model";
/// The format version written, and the only one read.
const FORMAT_VERSION: &str = "1";

/// A model file's description of its network.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelInfo {
    /// The network.
    pub network: PcmConfig,
    /// Class names, background first.
    pub classes: Vec<String>,
    /// Side in pixels of its square training images.
    pub train_size: usize,
    /// Side in pixels of the square images to run it on.
    pub inference_size: usize,
    /// Normalisation of its input pixels.
    pub normalisation: Normalisation,
    /// How images and score maps were resized in training, and have to be in inference.
    pub alignment: GridAlignment,
    /// The preset it was trained with.
    pub preset: String,
    /// Provenance: the program, the command, the data, the scores. Free keys.
    pub provenance: BTreeMap<String, String>,
}

impl ModelInfo {
    /// Checks the description for contradictions.
    pub fn check(&self) -> Result<()> {
        self.network.check()?;
        check_number_of_names(&self.classes, self.network.num_classes)?;
        let bad = |reason: String| Err(NetsError::BadConfig { reason });
        let mut sorted: Vec<&str> = self.classes.iter().map(String::as_str).collect();
        sorted.sort_unstable();
        if let Some(twice) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            return bad(format!("two classes are called `{}`", twice[0]));
        }
        let patch = self.network.backbone.patch();
        for (what, size) in [("train_size", self.train_size), ("inference_size", self.inference_size)] {
            if size == 0 || !size.is_multiple_of(patch) || size > 1 << 16 {
                return bad(format!("{what} is {size}; expected a multiple of the patch size {patch}"));
            }
        }
        self.normalisation.check()
    }
}

/// Checks that there is a name for every class.
pub(crate) fn check_number_of_names(names: &[String], num_classes: usize) -> Result<()> {
    if names.len() == num_classes {
        return Ok(());
    }
    Err(NetsError::BadConfig { reason: format!("{} class names for {num_classes} classes", names.len()) })
}

/// Where samples sit when images and score maps are resized.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GridAlignment {
    /// At pixel centres.
    #[default]
    HalfPixel,
    /// With coinciding end points, as in the paper's released code.
    AlignCorners,
}

impl std::fmt::Display for GridAlignment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            GridAlignment::HalfPixel => "half-pixel",
            GridAlignment::AlignCorners => "align-corners",
        })
    }
}

/// How a model file stores its parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Storage {
    /// 32-bit floats.
    F32,
    /// Half the space; read back as f32.
    F16,
    /// Matrices and kernels in half the space, vectors as f32.
    F16Matrices,
    /// A quarter of the space: matrices as 8-bit integers with one scale per row, the rest as f16.
    I8,
}

/// Suffix of the array with the row scales of an 8-bit matrix.
const ROW_SCALES: &str = ".row_scales";

/// How one parameter is stored.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    F32,
    F16,
    I8Rows,
}

impl Storage {
    fn form_of(self, tensor: &Tensor) -> Form {
        // The layers' matrices; not positions and tokens (one row), nor the small classifier, which needs full
        // precision.
        let is_large_matrix = tensor.rank() >= 2 && tensor.dims()[0] > 1 && tensor.elem_count() >= 1 << 16;
        match self {
            Storage::F32 => Form::F32,
            Storage::F16Matrices if tensor.rank() < 2 => Form::F32,
            Storage::I8 if is_large_matrix => Form::I8Rows,
            Storage::F16 | Storage::F16Matrices | Storage::I8 => Form::F16,
        }
    }
}

/// A model: its description and its parameters.
#[derive(Debug, Clone)]
pub struct Model {
    /// The network's description and provenance.
    pub info: ModelInfo,
    /// All parameters, f32.
    pub parameters: Parameters,
}

/// Reads all parameters of a file that matches its description.
pub(crate) fn read_parameters(file: &WeightFile, device: &Device) -> Result<Parameters> {
    let mut parameters = Parameters::new();
    for entry in file.entries() {
        let values = match entry.element_type {
            ElementType::I8 => read_rows(file, entry)?,
            _ if entry.name.ends_with(ROW_SCALES) => continue,
            _ => file.read_f32(entry)?,
        };
        parameters.insert(entry.name.clone(), Tensor::from_vec(values, entry.shape.as_slice(), device)?);
    }
    Ok(parameters)
}

/// Writes a file of parameters atomically. The same parameters and metadata give the same bytes.
pub(crate) fn write_parameters(
    path: &Path,
    metadata: &BTreeMap<&'static str, String>,
    shapes: Vec<ParameterShape>,
    parameters: &Parameters,
    storage: Storage,
) -> Result<()> {
    parameters.check(&shapes)?;
    let mut tensors = Vec::new();
    for wanted in shapes {
        let tensor = parameters.get(&wanted.name)?;
        tensors.push((wanted.name, tensor));
    }
    tensors.sort_by(|a, b| a.0.cmp(&b.0));
    let plan = tensors.iter().flat_map(|(name, tensor)| planned(name, tensor, storage)).collect();
    let io = |source| NetsError::Io { path: path.to_owned(), source };

    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut file = temporary_file_in(folder).map_err(io)?;
    let mut writer = BufWriter::new(SafetensorsWriter::begin(&mut file, metadata, plan).map_err(io)?);
    for (name, tensor) in tensors {
        let values = tensor.detach().to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?;
        let form = storage.form_of(tensor);
        check_storable(path, &name, &values, form)?;
        match form {
            Form::F32 => write_f32(&mut writer, &values),
            Form::F16 => write_f16(&mut writer, &values),
            Form::I8Rows => write_rows(&mut writer, &values, tensor.dims()[0]),
        }
        .map_err(io)?;
    }
    let writer = writer.into_inner().map_err(|error| io(error.into_error()))?;
    writer.finish().map_err(io)?;
    file.as_file().sync_all().map_err(io)?;
    file.persist(path).map_err(|error| io(error.error))?;
    // Makes the renaming durable. Some file systems cannot sync folders; the file is complete anyway.
    if let Ok(folder) = std::fs::File::open(folder) {
        let _ = folder.sync_all();
    }
    Ok(())
}

impl Model {
    /// Reads a model file.
    pub fn load(path: impl AsRef<Path>, device: &Device) -> Result<Self> {
        Self::from_weight_file(&WeightFile::open(path)?, device)
    }

    /// Reads a model from an open or embedded file.
    pub fn from_weight_file(file: &WeightFile, device: &Device) -> Result<Self> {
        let info = read_info(file)?;
        compare(&info, file).into_result()?;
        let parameters = read_parameters(file, device)?;
        Ok(Self { info, parameters })
    }

    /// The network, sharing the model's parameters.
    pub fn network(&self) -> Result<PcmNetwork> {
        PcmNetwork::new(&self.info.network, &self.parameters)
    }

    /// The model with the mean parameters of several models, which must agree in all but their provenance; it gets the
    /// first one's. At least one.
    pub fn mean(models: &[Self]) -> Result<Self> {
        let plain = |model: &Self| ModelInfo { provenance: BTreeMap::new(), ..model.info.clone() };
        let parameters = mean_of_alike(models.iter().map(|model| (plain(model), &model.parameters)))?;
        Ok(Self { info: models[0].info.clone(), parameters })
    }

    /// Writes the model file atomically. The same model gives the same bytes.
    pub fn save(&self, path: impl AsRef<Path>, storage: Storage) -> Result<()> {
        self.info.check()?;
        let shapes = self.info.network.parameter_shapes();
        write_parameters(path.as_ref(), &write_info(&self.info), shapes, &self.parameters, storage)
    }
}

/// The mean parameters of several models, whose descriptions must be equal. At least one.
pub(crate) fn mean_of_alike<'a, T: PartialEq>(
    models: impl Iterator<Item = (T, &'a Parameters)>,
) -> Result<Parameters> {
    let (infos, stores): (Vec<T>, Vec<&Parameters>) = models.unzip();
    if infos.windows(2).any(|pair| pair[0] != pair[1]) {
        return Err(NetsError::ModelsDiffer);
    }
    Parameters::mean(&stores)
}

/// A temporary file with the permissions of any new file, not `tempfile`'s private ones. Its name holds the process id,
/// so that leftovers of a killed process are removed with the other half-written files.
fn temporary_file_in(folder: &Path) -> io::Result<tempfile::NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    let prefix = format!(".model.{}-", std::process::id());
    builder.prefix(&prefix).suffix(".tmp");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        builder.permissions(std::fs::Permissions::from_mode(0o666));
    }
    builder.tempfile_in(folder)
}

/// Refuses values that would read back as infinite or NaN.
fn check_storable(path: &Path, name: &str, values: &[f32], form: Form) -> Result<()> {
    let not_storable = |value: &f32, expected| {
        Err(NetsError::NotStorable { path: path.to_owned(), name: name.to_owned(), value: *value, expected })
    };
    if let Some(value) = values.iter().find(|value| !value.is_finite()) {
        return not_storable(value, "expected finite numbers");
    }
    match values.iter().find(|&&value| form == Form::F16 && !f16::from_f32(value).is_finite()) {
        Some(value) => not_storable(value, "f16 holds numbers up to 65504; store the model as f32"),
        None => Ok(()),
    }
}

fn write_f32(writer: &mut impl Write, values: &[f32]) -> io::Result<()> {
    values.iter().try_for_each(|value| writer.write_all(&value.to_le_bytes()))
}

fn write_f16(writer: &mut impl Write, values: &[f32]) -> io::Result<()> {
    values.iter().try_for_each(|&value| writer.write_all(&f16::from_f32(value).to_le_bytes()))
}

/// The scales of all rows, then the rows, in the order that [`planned`] declares.
fn write_rows(writer: &mut impl Write, values: &[f32], num_rows: usize) -> io::Result<()> {
    let rows = || values.chunks_exact(values.len() / num_rows);
    let scale = |row: &[f32]| row.iter().fold(0f32, |largest, value| largest.max(value.abs())) / 127.0;
    write_f32(writer, &rows().map(scale).collect::<Vec<_>>())?;
    for row in rows() {
        let scale = scale(row).max(f32::MIN_POSITIVE);
        let bytes: Vec<u8> = row.iter().map(|value| (value / scale).round() as i8 as u8).collect();
        writer.write_all(&bytes)?;
    }
    Ok(())
}

/// Reads a matrix that [`write_rows`] wrote; [`compare`] has checked that its scales are there.
fn read_rows(file: &WeightFile, entry: &ArrayEntry) -> Result<Vec<f32>> {
    let mut values = file.read_numbers(entry)?;
    let Some(scales) = file.entry(&format!("{}{ROW_SCALES}", entry.name)) else { return Ok(values) };
    let scales = file.read_f32(scales)?;
    let row_len = values.len() / scales.len().max(1);
    for (row, scale) in values.chunks_exact_mut(row_len.max(1)).zip(scales) {
        row.iter_mut().for_each(|value| *value *= scale);
    }
    file.check_finite(&entry.name, &values)?;
    Ok(values)
}

/// The arrays that store a parameter.
fn planned(name: &str, tensor: &Tensor, storage: Storage) -> Vec<PlannedTensor> {
    let plan = |name: String, element_type, element_size, shape: &[usize]| PlannedTensor {
        name,
        element_type,
        element_size,
        shape: shape.to_vec(),
    };
    match storage.form_of(tensor) {
        Form::F32 => vec![plan(name.to_owned(), "F32", 4, tensor.dims())],
        Form::F16 => vec![plan(name.to_owned(), "F16", 2, tensor.dims())],
        Form::I8Rows => vec![
            plan(format!("{name}{ROW_SCALES}"), "F32", 4, &tensor.dims()[..1]),
            plan(name.to_owned(), "I8", 1, tensor.dims()),
        ],
    }
}

fn write_info(info: &ModelInfo) -> BTreeMap<&'static str, String> {
    let json = |value: serde_json::Value| value.to_string();
    BTreeMap::from([
        ("format", FORMAT.to_owned()),
        ("format_version", FORMAT_VERSION.to_owned()),
        ("variant", info.network.backbone.name().to_owned()),
        ("network", json(serde_json::json!(info.network))),
        ("classes", json(serde_json::json!(info.classes))),
        ("train_size", info.train_size.to_string()),
        ("inference_size", info.inference_size.to_string()),
        ("normalisation", json(serde_json::json!(info.normalisation))),
        ("alignment", json(serde_json::json!(info.alignment))),
        ("preset", info.preset.clone()),
        ("provenance", json(serde_json::json!(info.provenance))),
    ])
}

/// Whether a file is a vitpcm model, by its metadata.
pub(crate) fn is_model(file: &WeightFile) -> bool {
    file.metadata().get("format").is_some_and(|format| format == FORMAT)
}

/// Reads a model's description from its file's metadata.
pub(crate) fn read_info(file: &WeightFile) -> Result<ModelInfo> {
    if !is_model(file) {
        let reason = "not a vitpcm model (its metadata lack `format: vitpcm-model`); is it backbone weights?";
        return Err(Fault::from(reason).at(file.path()));
    }
    let info = parse_info(file.metadata()).map_err(|fault| fault.at(file.path()))?;
    info.check().map_err(|error| Fault::from(error.to_string()).at(file.path()))?;
    Ok(info)
}

fn parse_info(metadata: &BTreeMap<String, String>) -> Parsed<ModelInfo> {
    let get = |key: &str| metadata_value(metadata, key);
    let version = get("format_version")?;
    if version != FORMAT_VERSION {
        return Err(format!(
            "a model of format version {version}; this program reads version {FORMAT_VERSION}"
        )
        .into());
    }
    Ok(ModelInfo {
        network: network(get("network")?)?,
        classes: json("classes", get("classes")?)?,
        train_size: json("train_size", get("train_size")?)?,
        inference_size: json("inference_size", get("inference_size")?)?,
        normalisation: json("normalisation", get("normalisation")?)?,
        alignment: json("alignment", get("alignment")?)?,
        preset: get("preset")?.clone(),
        provenance: json("provenance", get("provenance")?)?,
    })
}

/// Parses the network's description. Earlier versions had a second kind of pooling and named the one they used.
fn network(text: &str) -> Parsed<PcmConfig> {
    let mut value: serde_json::Value = json("network", text)?;
    if let Some(pooling) = value.as_object_mut().and_then(|fields| fields.remove("pooling"))
        && pooling != "max"
    {
        return Err(format!("a model with pooling {pooling}, which is no longer supported").into());
    }
    json("network", &value.to_string())
}

/// A required metadata value.
pub(crate) fn metadata_value<'a>(metadata: &'a BTreeMap<String, String>, key: &str) -> Parsed<&'a String> {
    metadata.get(key).ok_or_else(|| Fault::from(format!("a model without `{key}` in its metadata")))
}

/// Parses a metadata value.
pub(crate) fn json<T: DeserializeOwned>(key: &str, text: &str) -> Parsed<T> {
    serde_json::from_str(text)
        .map_err(|error| format!("the model's `{key}` is not understood: {error}").into())
}

/// How the file's tensors differ from those of its description.
pub(crate) fn compare(info: &ModelInfo, file: &WeightFile) -> Mismatch {
    compare_parameters(info.network.backbone.name(), &info.network.parameter_shapes(), file)
}

/// How the file's tensors differ from those wanted.
pub(crate) fn compare_parameters(network: &str, wanted: &[ParameterShape], file: &WeightFile) -> Mismatch {
    let mut mismatch = Mismatch::new(file.path(), format!("its own description ({network})"));
    for parameter in wanted {
        let Some(entry) = file.entry(&parameter.name) else {
            mismatch.missing.push(parameter.name.clone());
            continue;
        };
        let readable = match entry.element_type {
            ElementType::I8 => file.entry(&format!("{}{ROW_SCALES}", entry.name)).is_some_and(|scales| {
                scales.element_type.is_float() && scales.shape == entry.shape[..1.min(entry.shape.len())]
            }),
            _ => entry.element_type.is_float(),
        };
        if entry.shape != parameter.shape || !readable {
            mismatch.different.push(DifferentTensor {
                name: entry.name.clone(),
                found: format!("{:?} {}", entry.shape, entry.element_type),
                expected: format!("{:?} f32, f16, or i8 with a scale per row", parameter.shape),
            });
        }
    }
    let known: std::collections::HashSet<&str> =
        wanted.iter().map(|parameter| parameter.name.as_str()).collect();
    let is_known = |name: &str| known.contains(name.strip_suffix(ROW_SCALES).unwrap_or(name));
    let unused = file.entries().filter(|entry| !is_known(&entry.name));
    mismatch.unused = unused.map(|entry| entry.name.clone()).collect();
    mismatch
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_half_written_model_says_whose_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let file = temporary_file_in(folder.path()).unwrap();
        let name = file.path().file_name().unwrap().to_str().unwrap().to_owned();
        // The pattern of `vitpcm_masks::atomic_file`.
        let own = name.strip_prefix(&format!(".model.{}-", std::process::id())).unwrap();
        let own = own.strip_suffix(".tmp").unwrap();
        assert!(!own.is_empty() && own.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{name}");
    }
}
