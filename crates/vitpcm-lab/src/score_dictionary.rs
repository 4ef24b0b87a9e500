//! The score dictionaries of PSA and IRN: `.npy` files, one per image, for `numpy.load(file,
//! allow_pickle=True).item()`. Classes count from 0, without background; each class's scores are divided by their peak,
//! as in both projects. The pickle is written by hand; none is ever read.

use vitpcm_masks::StoredScores;
use vitpcm_masks::resampling::resize_plane;

/// Stride of IRN's second map.
const STRIDE: usize = 4;

/// PSA: `{class: scores at the image's size}`.
pub(crate) fn psa(stored: &StoredScores) -> Vec<u8> {
    let (size, classes) = (stored.image_size, scored_classes(stored));
    let mut pickle = Pickle::with_room_for(planes_bytes(classes.len(), size));
    pickle.dictionary(|pickle| {
        for class in classes {
            pickle.int(class as u32 - 1);
            pickle.planes(&[size.1, size.0], [peak_one(stored, class, size)].into_iter());
        }
    });
    pickle.npy_file()
}

/// IRN: `keys` (the classes), `cam` (their scores at a quarter of the size) and `high_res` (at the image's size).
pub(crate) fn irn(stored: &StoredScores) -> Vec<u8> {
    let classes = scored_classes(stored);
    let size = stored.image_size;
    let small = (size.0.div_ceil(STRIDE), size.1.div_ceil(STRIDE));
    let planes = |size| classes.iter().map(move |&class| peak_one(stored, class, size));
    let keys: Vec<i64> = classes.iter().map(|&class| class as i64 - 1).collect();
    let mut pickle =
        Pickle::with_room_for(planes_bytes(classes.len(), size) + planes_bytes(classes.len(), small));
    pickle.dictionary(|pickle| {
        pickle.text("keys");
        pickle.array("<i8", &[keys.len()], keys.iter().flat_map(|key| key.to_le_bytes()));
        pickle.text("cam");
        pickle.planes(&[classes.len(), small.1, small.0], planes(small));
        pickle.text("high_res");
        pickle.planes(&[classes.len(), size.1, size.0], planes(size));
    });
    pickle.npy_file()
}

fn planes_bytes(num_planes: usize, (width, height): (usize, usize)) -> usize {
    num_planes * width * height * size_of::<f32>()
}

/// Classes with any score: the image's tags, if these were known.
fn scored_classes(stored: &StoredScores) -> Vec<usize> {
    let peaks = stored.scores.peaks();
    (1..peaks.len()).filter(|&class| peaks[class] > 0.0).collect()
}

fn peak_one(stored: &StoredScores, class: usize, size: (usize, usize)) -> Vec<f32> {
    let grid = &stored.scores;
    let mut plane = resize_plane(grid.plane(class), grid.size(), size, stored.alignment);
    let peak = plane.iter().copied().fold(f32::MIN_POSITIVE, f32::max);
    plane.iter_mut().for_each(|score| *score = (*score / peak).max(0.0));
    plane
}

/// A pickle of protocol 3, which every Python 3 reads, built from public names of NumPy only, which all versions have.
/// It is the only object of a `.npy` file.
struct Pickle {
    bytes: Vec<u8>,
}

impl Pickle {
    /// `num_bytes`: size of the arrays.
    fn with_room_for(num_bytes: usize) -> Pickle {
        let mut pickle = Pickle { bytes: vitpcm_masks::npy_bytes("|O", &[], b"") };
        pickle.bytes.reserve_exact(num_bytes + 4096);
        pickle.op(b"\x80\x03"); // PROTO 3
        pickle.array_begin("O", &[]);
        pickle.op(b"]"); // EMPTY_LIST
        pickle
    }

    fn op(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    fn int(&mut self, value: u32) {
        self.op(b"J"); // BININT: 4 bytes, signed
        self.op(&(value as i32).to_le_bytes());
    }

    fn text(&mut self, text: &str) {
        self.op(b"X"); // BINUNICODE
        self.op(&(text.len() as u32).to_le_bytes());
        self.op(text.as_bytes());
    }

    /// `{…}`; `fill` pushes keys and values in turn.
    fn dictionary(&mut self, fill: impl FnOnce(&mut Pickle)) {
        self.op(b"}("); // EMPTY_DICT, MARK
        fill(self);
        self.op(b"u"); // SETITEMS
    }

    /// An array of floats, written plane by plane.
    fn planes(&mut self, shape: &[usize], planes: impl Iterator<Item = Vec<f32>>) {
        self.array("<f4", shape, planes.flatten().flat_map(f32::to_le_bytes));
    }

    /// An array, as NumPy pickles it: an empty array whose state is then set.
    fn array(&mut self, descr: &str, shape: &[usize], data: impl Iterator<Item = u8>) {
        self.array_begin(descr, shape);
        self.op(b"B"); // BINBYTES
        let length_at = self.bytes.len();
        self.op(&[0; 4]);
        self.bytes.extend(data);
        let length = (self.bytes.len() - length_at - 4) as u32;
        self.bytes[length_at..length_at + 4].copy_from_slice(&length.to_le_bytes());
        self.op(b"tb"); // TUPLE, BUILD
    }

    /// `numpy.ndarray((0,), 'b')`, and the state (1, shape, type, not in Fortran's order, …) up to the data.
    fn array_begin(&mut self, descr: &str, shape: &[usize]) {
        self.op(b"cnumpy\nndarray\n");
        self.int(0);
        self.op(b"\x85"); // TUPLE1
        self.text("b");
        self.op(b"\x86R("); // TUPLE2, REDUCE, MARK
        self.int(1);
        self.op(b"(");
        shape.iter().for_each(|&size| self.int(size as u32));
        self.op(b"tcnumpy\ndtype\n");
        self.text(descr);
        self.op(b"\x85R\x89"); // TUPLE1, REDUCE, NEWFALSE
    }

    /// The complete file.
    fn npy_file(mut self) -> Vec<u8> {
        self.op(b"atb."); // APPEND, TUPLE, BUILD, STOP
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;
    use vitpcm_masks::resampling::Alignment;
    use vitpcm_masks::{Classes, ScoreMap};

    /// `reference/exports/check.py` has read these files as PSA and IRN do, and compared them with PyTorch's resizing.
    #[test]
    fn dictionaries_are_those_that_numpy_has_read() {
        // Five classes on 4×3 cells, as after conditioning: the last class is absent.
        let score = |i: usize| if i >= 4 * 12 { 0.0 } else { ((7 * i + 3) % 32) as f32 / 64.0 };
        let scores = ScoreMap::new(5, 4, 3, (0..5 * 12).map(score).collect()).unwrap();
        let classes = Classes::numbered(4).unwrap();
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../reference/exports");
        for (name, image_size) in [("scene", (48, 48)), ("nested/ring around", (40, 30)), ("empty", (12, 10))]
        {
            let (scores, classes) = (scores.clone(), classes.clone());
            let stored = StoredScores { scores, classes, image_size, alignment: Alignment::HalfPixel };
            for (format, bytes) in [("psa", psa(&stored)), ("irn", irn(&stored))] {
                let path = folder.join(format!("{format}/{name}.npy"));
                assert!(bytes == std::fs::read(&path).unwrap(), "{}", path.display());
            }
        }
    }
}
