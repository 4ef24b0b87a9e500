//! Tensors with a few words about them as one safetensors file with checksums, written beside its place and renamed, so that
//! there is always a whole one. What the tensors and words mean is left to the two kinds of runs.

use std::collections::BTreeMap;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use candle_core::{DType, Device, Tensor};
use serde::Serialize;
use serde::de::DeserializeOwned;
use vitpcm_masks::atomic_file;
use vitpcm_nets::{NetsError, Parameters, PlannedTensor, SafetensorsWriter, WeightFile};

use crate::error::{Result, TrainError};

const VERSION: &str = "1";

/// In front of tensor names: what they are, in both kinds of runs.
pub(crate) const WEIGHT: &str = "weight/";
pub(crate) const AVERAGE: &str = "average/";

/// The state's place in a run folder.
pub(crate) fn state_path(out: &Path) -> PathBuf {
    out.join("last").join("state.safetensors")
}

/// What a state says beside its tensors: its kind, and values by name.
pub(crate) struct Words {
    path: PathBuf,
    words: BTreeMap<&'static str, String>,
}

impl Words {
    /// For a state of this kind at this path.
    pub(crate) fn new(path: &Path, format: &str) -> Self {
        let words = BTreeMap::from([("format", format.to_owned()), ("format_version", VERSION.to_owned())]);
        Self { path: path.to_owned(), words }
    }

    /// Adds a value.
    pub(crate) fn with(mut self, key: &'static str, value: &impl Serialize) -> Result<Self> {
        let text = serde_json::to_string(value)
            .map_err(|error| TrainError::Io { path: self.path.clone(), source: io::Error::other(error) })?;
        self.words.insert(key, text);
        Ok(self)
    }

    /// Writes the state. On any failure the one before stays.
    pub(crate) fn write(self, tensors: &[(String, Tensor)]) -> Result<()> {
        let path = self.path;
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(TrainError::io(folder))?;
        }
        let plan = tensors.iter().map(|(name, tensor)| PlannedTensor {
            name: name.clone(),
            element_type: "F32",
            element_size: 4,
            shape: tensor.dims().to_vec(),
        });
        atomic_file::write(&path, |file| {
            let file = SafetensorsWriter::begin(file, &self.words, plan.collect())?;
            let mut file = BufWriter::new(file);
            for (name, tensor) in tensors {
                let values =
                    tensor.to_dtype(DType::F32).and_then(|tensor| tensor.flatten_all()?.to_vec1::<f32>());
                for value in values.map_err(io::Error::other)? {
                    if !value.is_finite() {
                        let reason = format!("not written: `{name}` holds {value}; the training diverged, and the state saved before stays");
                        return Err(io::Error::other(reason));
                    }
                    file.write_all(&value.to_le_bytes())?;
                }
            }
            file.into_inner().map_err(io::IntoInnerError::into_error)?.finish()
        })
        .map_err(TrainError::io(&path))
    }
}

/// Opens a state; `None` where there is none.
pub(crate) fn open(out: &Path) -> Result<Option<WeightFile>> {
    let path = state_path(out);
    path.exists().then(|| WeightFile::open(&path).map_err(of_state)).transpose()
}

/// An error of a state's file; where the file is damaged, with what to do.
fn of_state(error: NetsError) -> TrainError {
    match error {
        NetsError::Damaged { .. } | NetsError::NotFinite { .. } => TrainError::DamagedState(error),
        other => TrainError::Nets(other),
    }
}

/// Refuses a file of another kind.
pub(crate) fn check_format(file: &WeightFile, format: &str) -> Result<()> {
    let word = |key: &str| file.metadata().get(key).map(String::as_str);
    if (word("format"), word("format_version")) == (Some(format), Some(VERSION)) {
        return Ok(());
    }
    let reason = format!("expected a {format} of version {VERSION}");
    Err(TrainError::RunFolder { path: file.path().to_owned(), reason })
}

/// A value that [`Words::with`] added.
pub(crate) fn word<T: DeserializeOwned>(file: &WeightFile, key: &str) -> Result<T> {
    let bad = |reason: String| TrainError::RunFolder { path: file.path().to_owned(), reason };
    let text =
        file.metadata().get(key).ok_or_else(|| bad(format!("no `{key}`; expected the state of a run")))?;
    serde_json::from_str(text).map_err(|error| bad(format!("`{key}`: {error}")))
}

/// A state's tensors beside the weights, by name with what they are in front.
#[derive(Debug)]
pub(crate) struct SavedTensors {
    path: PathBuf,
    tensors: BTreeMap<String, Tensor>,
}

/// All tensors of a state: the weights, and the rest.
pub(crate) fn read_tensors(file: &WeightFile, device: &Device) -> Result<(Parameters, SavedTensors)> {
    let (mut parameters, mut tensors) = (Parameters::new(), BTreeMap::new());
    for entry in file.entries() {
        let tensor =
            Tensor::from_vec(file.read_f32(entry).map_err(of_state)?, entry.shape.as_slice(), device)?;
        match entry.name.strip_prefix(WEIGHT) {
            Some(name) => parameters.insert(name, tensor),
            None => _ = tensors.insert(entry.name.clone(), tensor),
        }
    }
    Ok((parameters, SavedTensors { path: file.path().to_owned(), tensors }))
}

impl SavedTensors {
    /// Takes out a tensor, which must have the shape of `like`.
    pub(crate) fn take(&mut self, kind: &str, name: &str, like: &Tensor) -> Result<Tensor> {
        let bad = |reason: String| TrainError::RunFolder { path: self.path.clone(), reason };
        match self.tensors.remove(&format!("{kind}{name}")) {
            Some(tensor) if tensor.dims() == like.dims() => Ok(tensor),
            Some(tensor) => {
                Err(bad(format!("`{kind}{name}` is {:?}, expected {:?}", tensor.dims(), like.dims())))
            }
            None => Err(bad(format!("`{kind}{name}` is missing; was the schedule or the average changed?"))),
        }
    }
}

/// Property tests of saved states: the same cases on every machine.
#[cfg(test)]
pub(crate) fn drawn(cases: u32) -> proptest::test_runner::Config {
    let rng_seed = proptest::test_runner::RngSeed::Fixed(2022);
    proptest::test_runner::Config { cases, rng_seed, failure_persistence: None, ..Default::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;
    use proptest::prelude::*;
    use proptest::sample::Index;

    /// Some tensors of drawn shapes, and drawn numbers, some of them unusual ones.
    fn tensors() -> impl Strategy<Value = Vec<(Vec<usize>, Vec<f32>)>> {
        let value = prop_oneof![
            1 => Just(f32::MIN_POSITIVE / 2.0),
            1 => Just(-0.0f32),
            1 => Just(f32::MAX),
            5 => -1.0..1.0f32,
        ];
        let tensor = proptest::collection::vec(1..8usize, 0..4).prop_flat_map(move |shape| {
            let count: usize = shape.iter().product();
            (Just(shape), proptest::collection::vec(value.clone(), count))
        });
        proptest::collection::vec(tensor, 1..7)
    }

    proptest! {
        #![proptest_config(drawn(50))]

        #[test]
        fn states_are_read_as_they_were_written_and_never_in_part(
            drawn in tensors(),
            numbers in any::<Vec<u64>>(),
            text in any::<String>(),
            cuts in any::<[Index; 20]>(),
        ) {
            let folder = tempfile::tempdir().unwrap();
            let path = state_path(folder.path());
            let tensor = |(shape, values): &(Vec<usize>, Vec<f32>)| {
                Tensor::from_vec(values.clone(), shape.as_slice(), &Device::Cpu).unwrap()
            };
            let written = drawn.iter().enumerate().map(|(at, drawn)| (format!("weight/{at}"), tensor(drawn)));
            let words = Words::new(&path, "drawn").with("numbers", &numbers).unwrap();
            words.with("text", &text).unwrap().write(&written.collect::<Vec<_>>()).unwrap();

            let file = WeightFile::open(&path).unwrap();
            check_format(&file, "drawn").unwrap();
            prop_assert!(check_format(&file, "another").is_err());
            prop_assert_eq!(word::<Vec<u64>>(&file, "numbers").unwrap(), numbers);
            prop_assert_eq!(word::<String>(&file, "text").unwrap(), text);
            prop_assert!(word::<u64>(&file, "text").is_err() && word::<u64>(&file, "nothing").is_err());
            prop_assert_eq!(file.entries().count(), drawn.len());
            for (at, (shape, values)) in drawn.iter().enumerate() {
                let entry = file.entry(&format!("weight/{at}")).unwrap();
                prop_assert_eq!(&entry.shape, shape);
                let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
                prop_assert_eq!(bits(&file.read_f32(entry).unwrap()), bits(values));
            }

            let whole = std::fs::read(&path).unwrap();
            for cut in cuts {
                let length = cut.index(whole.len());
                let part = WeightFile::from_bytes("part", whole[..length].to_vec());
                prop_assert!(part.is_err(), "{} bytes were taken for the whole", length);
            }
        }
    }

    #[test]
    fn a_flipped_bit_of_a_state_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = state_path(folder.path());
        let tensor = |count: usize| Tensor::arange(0.0, count as f32, &Device::Cpu).unwrap();
        let tensors = [("weight/a".to_owned(), tensor(40)), ("average/a".to_owned(), tensor(40))];
        Words::new(&path, "drawn").with("step", &7).unwrap().write(&tensors).unwrap();
        let read = |bytes: Vec<u8>| {
            let file = WeightFile::from_bytes("state", bytes).map_err(of_state)?;
            check_format(&file, "drawn")?;
            word::<u64>(&file, "step")?;
            read_tensors(&file, &Device::Cpu).map(drop)
        };
        let whole = std::fs::read(&path).unwrap();
        read(whole.clone()).unwrap();
        let data_start = whole.len() - 2 * 4 * 40;
        for bit in 0..8 * whole.len() {
            let mut flipped = whole.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let message = read(flipped).expect_err(&format!("bit {bit} of byte {}", bit / 8)).to_string();
            if bit / 8 >= data_start {
                let name = if bit / 8 < data_start + 4 * 40 { "weight/a" } else { "average/a" };
                assert!(message.contains(name) && message.contains("another folder"), "{message}");
            }
        }
    }

    #[test]
    fn a_state_that_is_not_finite_is_not_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = state_path(folder.path());
        let write = |value: f32| {
            let tensor = Tensor::full(value, (2, 2), &Device::Cpu).unwrap();
            Words::new(&path, "drawn").write(&[("weight/a".to_owned(), tensor)])
        };
        write(1.0).unwrap();
        let before = std::fs::read(&path).unwrap();
        for value in [f32::NAN, f32::INFINITY] {
            let message = write(value).unwrap_err().to_string();
            assert!(message.contains("`weight/a` holds"), "{message}");
        }
        assert!(std::fs::read(&path).unwrap() == before);
    }
}
