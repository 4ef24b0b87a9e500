//! The 8 symmetries of the square, for pictures, score maps and views: an optional horizontal flip, vertical flip and
//! transposition, in this order.

/// One of the 8 symmetries of the square. With a transposition, a W×H picture becomes H×W.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Symmetry {
    flip_columns: bool,
    flip_rows: bool,
    transpose: bool,
}

impl Symmetry {
    /// The identity.
    pub const IDENTITY: Symmetry = Symmetry::from_index(0);

    /// All eight, identity first.
    pub const ALL: [Symmetry; 8] = [
        Symmetry::from_index(0),
        Symmetry::from_index(1),
        Symmetry::from_index(2),
        Symmetry::from_index(3),
        Symmetry::from_index(4),
        Symmetry::from_index(5),
        Symmetry::from_index(6),
        Symmetry::from_index(7),
    ];

    const fn from_index(index: u8) -> Symmetry {
        Symmetry { flip_columns: index & 1 != 0, flip_rows: index & 2 != 0, transpose: index & 4 != 0 }
    }

    /// The inverse symmetry.
    pub fn inverse(self) -> Symmetry {
        if self.transpose {
            // Transposing and then flipping columns equals flipping rows and then transposing.
            Symmetry { flip_columns: self.flip_rows, flip_rows: self.flip_columns, transpose: true }
        } else {
            self
        }
    }

    /// Width and height of the result.
    pub fn size(self, (width, height): (usize, usize)) -> (usize, usize) {
        if self.transpose { (height, width) } else { (width, height) }
    }

    /// The cell of the original, of `size` = (width, height), that cell (x, y) of the result shows.
    pub fn source(self, (x, y): (usize, usize), size: (usize, usize)) -> (usize, usize) {
        let (x, y) = if self.transpose { (y, x) } else { (x, y) };
        (if self.flip_columns { size.0 - 1 - x } else { x }, if self.flip_rows { size.1 - 1 - y } else { y })
    }

    /// Applies the symmetry to each plane of `size` = (width, height) values.
    pub fn apply(self, planes: &[f32], size: (usize, usize)) -> Vec<f32> {
        if self == Self::IDENTITY {
            return planes.to_vec();
        }
        let (width, height) = self.size(size);
        let mut result = Vec::with_capacity(planes.len());
        for plane in planes.chunks_exact(size.0 * size.1) {
            for y in 0..height {
                result.extend((0..width).map(|x| {
                    let (source_x, source_y) = self.source((x, y), size);
                    plane[source_y * size.0 + source_x]
                }));
            }
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PICTURE: [f32; 6] = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]; // 3 wide, 2 high

    #[test]
    fn every_symmetry_is_undone_by_its_inverse() {
        for symmetry in Symmetry::ALL {
            let changed = symmetry.apply(&PICTURE, (3, 2));
            assert_eq!(symmetry.inverse().apply(&changed, symmetry.size((3, 2))), PICTURE, "{symmetry:?}");
        }
    }

    #[test]
    fn all_eight_differ_and_start_with_the_identity() {
        let pictures: Vec<_> =
            Symmetry::ALL.iter().map(|symmetry| symmetry.apply(&PICTURE, (3, 2))).collect();
        assert_eq!(pictures[0], PICTURE);
        for (i, picture) in pictures.iter().enumerate() {
            let size = Symmetry::ALL[i].size((3, 2));
            for (j, other) in pictures.iter().enumerate().skip(i + 1) {
                assert!(
                    picture != other || size != Symmetry::ALL[j].size((3, 2)),
                    "{i} and {j} are the same"
                );
            }
        }
    }

    #[test]
    fn flips_come_before_the_transposition() {
        let flip_and_transpose = Symmetry { flip_columns: true, flip_rows: false, transpose: true };
        // 0 1 2    2 1 0    2 5
        // 3 4 5 -> 5 4 3 -> 1 4
        //                   0 3
        assert_eq!(flip_and_transpose.apply(&PICTURE, (3, 2)), [2.0, 5.0, 1.0, 4.0, 0.0, 3.0]);
    }
}
