//! Photographs, unary energies and stored arrays that several tests use; the twin of `reference/dense-crf/scene.py`.
#![allow(dead_code)]

use std::path::PathBuf;

pub(crate) fn reference(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../reference/dense-crf")).join(name)
}

/// An RGB image, HWC.
pub(crate) struct Photo {
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) rgb: Vec<u8>,
}

impl Photo {
    pub(crate) fn chelsea() -> Self {
        Self::read("chelsea.png")
    }

    pub(crate) fn coffee() -> Self {
        Self::read("coffee.png")
    }

    fn read(name: &str) -> Self {
        let file = std::io::BufReader::new(std::fs::File::open(reference(name)).unwrap());
        let mut reader = png::Decoder::new(file).read_info().unwrap();
        let mut rgb = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut rgb).unwrap();
        assert_eq!(info.color_type, png::ColorType::Rgb);
        Self { width: info.width as usize, height: info.height as usize, rgb }
    }

    /// The part from the top left corner.
    pub(crate) fn crop(&self, width: usize, height: usize) -> Self {
        let rows = self.rgb.chunks_exact(self.width * 3).take(height);
        Self { width, height, rgb: rows.flat_map(|row| row[..width * 3].to_vec()).collect() }
    }
}

/// `random_grid` of scene.py.
fn random_grid(count: usize, seed: u64) -> Vec<f64> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f64 / f64::from(1 << 24)
    };
    (0..count).map(|_| next()).collect()
}

/// `smooth_scores` of scene.py: probabilities, class-major.
pub(crate) fn smooth_scores(
    num_classes: usize,
    height: usize,
    width: usize,
    seed: u64,
    cell: usize,
) -> Vec<f64> {
    let (rows, columns) = (height / cell + 2, width / cell + 2);
    let grid: Vec<f64> =
        random_grid(num_classes * rows * columns, seed).iter().map(|score| score.powi(4)).collect();
    let mut scores = Vec::with_capacity(num_classes * height * width);
    for class in 0..num_classes {
        for y in 0..height {
            for x in 0..width {
                let at =
                    |dy: usize, dx: usize| grid[(class * rows + y / cell + dy) * columns + x / cell + dx];
                let fraction = |i: usize| (i % cell) as f64 / cell as f64;
                let (fy, fx) = (fraction(y), fraction(x));
                let top = at(0, 0) * (1.0 - fx) + at(0, 1) * fx;
                let bottom = at(1, 0) * (1.0 - fx) + at(1, 1) * fx;
                scores.push(top * (1.0 - fy) + bottom * fy + 1e-4);
            }
        }
    }
    let num_pixels = height * width;
    for pixel in 0..num_pixels {
        let sum: f64 = scores[pixel..].iter().step_by(num_pixels).sum();
        scores[pixel..].iter_mut().step_by(num_pixels).for_each(|score| *score /= sum);
    }
    scores
}

/// `energies` of scene.py.
pub(crate) fn energies(probabilities: &[f64]) -> Vec<f32> {
    probabilities.iter().map(|p| -p.max(1e-5).ln() as f32).collect()
}

/// A two-dimensional little-endian f32 array and its number of columns.
pub(crate) fn read_npy(name: &str) -> (Vec<f32>, usize) {
    let bytes = std::fs::read(reference(name)).unwrap();
    let header_length = u16::from_le_bytes([bytes[8], bytes[9]]) as usize;
    let header = std::str::from_utf8(&bytes[10..10 + header_length]).unwrap();
    assert!(header.contains("'descr': '<f4'") && header.contains("'fortran_order': False"), "{header}");
    let shape = header.split_once("'shape': (").unwrap().1.split_once(')').unwrap().0;
    let columns = shape.split(',').nth(1).unwrap().trim().parse().unwrap();
    let values = bytes[10 + header_length..].chunks_exact(4);
    (values.map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect(), columns)
}
