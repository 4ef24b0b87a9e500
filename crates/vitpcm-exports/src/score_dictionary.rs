//! The score dictionaries that PSA and IRN store as `.npy` files, one an image, and read with
//! `numpy.load(file, allow_pickle=True).item()`. Classes count from 0 without the background; each class's scores
//! are divided by their peak, as both do. The pickle is written here by hand; none is ever read.

use crate::labelled_image::Scores;
use vitpcm_masks::resampling::resize_plane;

/// IRN's second map is this much smaller than the image.
const STRIDE: usize = 4;

/// PSA: `{class: scores at the image's size}`.
pub(crate) fn psa(scores: Scores<'_>, (width, height): (usize, usize)) -> Vec<u8> {
    let mut pickle = Pickle::default();
    pickle.dictionary(|pickle| {
        for class in scored_classes(scores) {
            pickle.int(class as u32 - 1);
            pickle.floats(&[height, width], &peak_one(scores, class, (width, height)));
        }
    });
    pickle.npy_file()
}

/// IRN: `keys` (the classes), `cam` (their scores at a quarter of the size) and `high_res` (at the image's size).
pub(crate) fn irn(scores: Scores<'_>, (width, height): (usize, usize)) -> Vec<u8> {
    let classes = scored_classes(scores);
    let small = (width.div_ceil(STRIDE), height.div_ceil(STRIDE));
    let planes = |size: (usize, usize)| -> Vec<f32> {
        classes.iter().flat_map(|&class| peak_one(scores, class, size)).collect()
    };
    let keys: Vec<i64> = classes.iter().map(|&class| class as i64 - 1).collect();
    let mut pickle = Pickle::default();
    pickle.dictionary(|pickle| {
        pickle.text("keys");
        pickle.array("<i8", &[keys.len()], keys.iter().flat_map(|key| key.to_le_bytes()));
        pickle.text("cam");
        pickle.floats(&[classes.len(), small.1, small.0], &planes(small));
        pickle.text("high_res");
        pickle.floats(&[classes.len(), height, width], &planes((width, height)));
    });
    pickle.npy_file()
}

/// Classes with any score: the image's tags, where those were known.
fn scored_classes(scores: Scores<'_>) -> Vec<usize> {
    let peaks = scores.on_grid.peaks();
    (1..peaks.len()).filter(|&class| peaks[class] > 0.0).collect()
}

fn peak_one(scores: Scores<'_>, class: usize, size: (usize, usize)) -> Vec<f32> {
    let grid = scores.on_grid;
    let mut plane = resize_plane(grid.plane(class), grid.size(), size, scores.alignment);
    let peak = plane.iter().copied().fold(f32::MIN_POSITIVE, f32::max);
    plane.iter_mut().for_each(|score| *score = (*score / peak).max(0.0));
    plane
}

/// A pickle of protocol 3, which every Python 3 reads, made of public names of NumPy only, which all its versions have.
#[derive(Default)]
struct Pickle {
    bytes: Vec<u8>,
}

impl Pickle {
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

    /// `{…}`; `fill` pushes key and value in turn.
    fn dictionary(&mut self, fill: impl FnOnce(&mut Pickle)) {
        self.op(b"}("); // EMPTY_DICT, MARK
        fill(self);
        self.op(b"u"); // SETITEMS
    }

    fn floats(&mut self, shape: &[usize], values: &[f32]) {
        self.array("<f4", shape, values.iter().flat_map(|value| value.to_le_bytes()));
    }

    /// An array, as NumPy itself pickles one: an empty array whose state is then set.
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

    /// A `.npy` file of a single object: the dictionary pickled so far.
    fn npy_file(self) -> Vec<u8> {
        let mut pickle = Pickle { bytes: b"\x80\x03".to_vec() }; // PROTO 3
        pickle.array_begin("O", &[]);
        pickle.op(b"]"); // EMPTY_LIST
        pickle.op(&self.bytes);
        pickle.op(b"atb."); // APPEND, TUPLE, BUILD, STOP
        vitpcm_masks::npy_bytes("|O", &[], &pickle.bytes)
    }
}
