//! COCO's run-length encoding of masks, compressed or not, and its polygon rasterisation.
//!
//! Agrees to the bit with `pycocotools`, because scores and exchanged files depend on it, including its choice of
//! boundary pixels, which no other rasteriser shares.

use crate::MaskError;
use crate::label_map::checked_num_pixels;
use std::ops::Range;

/// A binary mask as column-major runs, alternately off and on, starting with off. The runs cover the mask exactly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rle {
    width: usize,
    height: usize,
    counts: Vec<u32>,
}

/// Larger polygon coordinates are refused, because rasterising time grows with them.
const MAX_COORDINATE: f64 = 1e6;

/// Limit on the steps, a fifth of a pixel each, along one polygon's outline: ten million pixels.
const MAX_STEPS: u64 = 50_000_000;

impl Rle {
    /// From the uncompressed form. The counts must cover the mask exactly.
    pub fn from_counts(width: usize, height: usize, counts: Vec<u32>) -> Result<Self, MaskError> {
        let num_pixels = checked_num_pixels(width, height)?;
        let covered: u64 = counts.iter().map(|&count| u64::from(count)).sum();
        if covered != num_pixels as u64 {
            return Err(bad(format!(
                "the runs cover {covered} pixels, expected {width}×{height} = {num_pixels}"
            )));
        }
        Ok(Rle { width, height, counts })
    }

    /// From the compressed form: the printable string of COCO's JSON files.
    ///
    /// Each count is written in groups of 5 bits, lowest first, with a sixth bit as continuation flag, plus 48; from
    /// the fourth count on, it is the difference to the count two before.
    pub fn from_compressed(width: usize, height: usize, text: &str) -> Result<Self, MaskError> {
        let mut counts: Vec<u32> = Vec::new();
        let mut bytes = text.bytes();
        while let Some(first) = bytes.next() {
            let mut byte = first;
            let (mut value, mut shift) = (0i64, 0u32);
            loop {
                let group = byte.checked_sub(48).filter(|group| *group < 64);
                let group =
                    group.ok_or_else(|| bad(format!("`{}` in a run-length string", byte.escape_ascii())))?;
                // Seven groups hold any 32-bit difference; more would only overflow.
                if shift > 30 {
                    return Err(bad("a run of more than 32 bits".to_string()));
                }
                value |= i64::from(group & 31) << shift;
                shift += 5;
                if group & 32 == 0 {
                    // The highest bit of the last group is the sign.
                    value |= if group & 16 != 0 { -1 << shift } else { 0 };
                    break;
                }
                byte =
                    bytes.next().ok_or_else(|| bad("the run-length string ends within a run".to_string()))?;
            }
            if counts.len() > 2 {
                value += i64::from(counts[counts.len() - 2]);
            }
            counts.push(u32::try_from(value).map_err(|_| bad(format!("a run of {value} pixels")))?);
        }
        Self::from_counts(width, height, counts)
    }

    /// From row-major pixels; `is_on` is called once per pixel.
    pub fn from_pixels(
        width: usize,
        height: usize,
        is_on: impl Fn(usize, usize) -> bool,
    ) -> Result<Self, MaskError> {
        checked_num_pixels(width, height)?;
        let mut counts = vec![0u32];
        let mut current = false;
        for x in 0..width {
            for y in 0..height {
                if is_on(x, y) != current {
                    current = !current;
                    counts.push(0);
                }
                *counts.last_mut().expect("never empty") += 1;
            }
        }
        Ok(Rle { width, height, counts })
    }

    /// Rasterises one polygon, given as x0, y0, x1, y1, …, as `pycocotools` does.
    pub fn from_polygon(width: usize, height: usize, coordinates: &[f64]) -> Result<Self, MaskError> {
        let num_pixels = checked_num_pixels(width, height)? as u32;
        let mut boundary = polygon_boundary(width, height, &upsampled_points(coordinates)?);
        boundary.push(num_pixels);
        boundary.sort_unstable();
        let mut counts: Vec<u32> = Vec::with_capacity(boundary.len());
        let mut previous = 0;
        let mut joins_last = false;
        for at in boundary {
            let run = at - previous;
            previous = at;
            // Two boundaries at the same place cancel: the run between them is empty, and its neighbours merge.
            if joins_last {
                *counts.last_mut().expect("a run was joined") += run;
                joins_last = false;
            } else if run == 0 && !counts.is_empty() {
                joins_last = true;
            } else {
                counts.push(run);
            }
        }
        Self::from_counts(width, height, counts)
    }

    /// The union of several polygons.
    pub fn from_polygons<P: AsRef<[f64]>>(
        width: usize,
        height: usize,
        polygons: &[P],
    ) -> Result<Self, MaskError> {
        if let [only] = polygons {
            return Self::from_polygon(width, height, only.as_ref());
        }
        let mut bitmap = vec![false; checked_num_pixels(width, height)?];
        for polygon in polygons {
            for run in Self::from_polygon(width, height, polygon.as_ref())?.runs() {
                bitmap[run].fill(true);
            }
        }
        Self::from_pixels(width, height, |x, y| bitmap[x * height + y])
    }

    /// The compressed form, as [`from_compressed`](Self::from_compressed) reads it.
    pub fn to_compressed(&self) -> String {
        let mut text = String::new();
        for (i, &count) in self.counts.iter().enumerate() {
            let mut value = i64::from(count) - if i > 2 { i64::from(self.counts[i - 2]) } else { 0 };
            loop {
                let group = (value & 31) as u8;
                value >>= 5;
                let is_last = value == if group & 16 != 0 { -1 } else { 0 };
                text.push(char::from(group + if is_last { 48 } else { 48 + 32 }));
                if is_last {
                    break;
                }
            }
        }
        text
    }

    /// Pixels per row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Number of rows.
    pub fn height(&self) -> usize {
        self.height
    }

    /// Lengths of the runs, alternately off and on, starting with off.
    pub fn counts(&self) -> &[u32] {
        &self.counts
    }

    /// Number of pixels that are on.
    pub fn area(&self) -> u64 {
        self.counts.iter().skip(1).step_by(2).map(|&count| u64::from(count)).sum()
    }

    /// The runs that are on, as ranges of column-major positions `x × height + y`.
    pub fn runs(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        let mut end = 0;
        let ranges = self.counts.iter().map(move |&count| {
            let start = end;
            end += count as usize;
            start..end
        });
        ranges.skip(1).step_by(2)
    }
}

/// Polygon corners on a grid five times finer than the pixels.
fn upsampled_points(coordinates: &[f64]) -> Result<Vec<(i32, i32)>, MaskError> {
    if !coordinates.len().is_multiple_of(2) {
        return Err(bad(format!("a polygon of {} numbers, expected pairs", coordinates.len())));
    }
    if let Some(wrong) = coordinates.iter().find(|value| value.is_nan() || value.abs() > MAX_COORDINATE) {
        return Err(bad(format!("a polygon with the coordinate {wrong}")));
    }
    // Truncates negative values towards zero, like the reference's cast from double to int.
    let upsampled = |value: f64| (UPSAMPLING * value + 0.5) as i32;
    let points: Vec<(i32, i32)> =
        coordinates.chunks_exact(2).map(|pair| (upsampled(pair[0]), upsampled(pair[1]))).collect();
    let ends = points.iter().zip(points.iter().cycle().skip(1));
    let steps = ends.map(|(from, to)| from.0.abs_diff(to.0).max(from.1.abs_diff(to.1)) as u64);
    if steps.sum::<u64>() > MAX_STEPS {
        return Err(bad("a polygon whose outline is millions of pixels long".to_string()));
    }
    Ok(points)
}

const UPSAMPLING: f64 = 5.0;

/// Column-major positions where the outline crosses, in outline order.
fn polygon_boundary(width: usize, height: usize, corners: &[(i32, i32)]) -> Vec<u32> {
    let mut boundary = Vec::new();
    let mut previous = None;
    for (i, &from) in corners.iter().enumerate() {
        let to = corners[(i + 1) % corners.len()];
        for_each_point(from, to, |u, v| {
            if let Some((previous_u, previous_v)) = previous {
                boundary.extend(crossing(width, height, (previous_u, previous_v), (u, v)));
            }
            previous = Some((u, v));
        });
    }
    boundary
}

/// Dense points of an edge, including both ends; steps run along the longer axis.
fn for_each_point(from: (i32, i32), to: (i32, i32), mut visit: impl FnMut(i32, i32)) {
    let (dx, dy) = ((from.0 - to.0).abs(), (from.1 - to.1).abs());
    let along_x = dx >= dy;
    let is_flipped = if along_x { from.0 > to.0 } else { from.1 > to.1 };
    let (start, end) = if is_flipped { (to, from) } else { (from, to) };
    let steps = dx.max(dy);
    let rise = if along_x { end.1 - start.1 } else { end.0 - start.0 };
    // Without a step the reference divides 0 by 0 and ignores the result.
    let slope = if steps == 0 { 0.0 } else { f64::from(rise) / f64::from(steps) };
    for step in 0..=steps {
        let t = if is_flipped { steps - step } else { step };
        if along_x {
            visit(start.0 + t, (f64::from(start.1) + slope * f64::from(t) + 0.5) as i32);
        } else {
            visit((f64::from(start.0) + slope * f64::from(t) + 0.5) as i32, start.1 + t);
        }
    }
}

/// The position of a boundary between two neighbouring points, if they lie on opposite sides of a column's centre.
fn crossing(width: usize, height: usize, previous: (i32, i32), current: (i32, i32)) -> Option<u32> {
    if current.0 == previous.0 {
        return None;
    }
    let to_pixel = |upsampled: i32| (f64::from(upsampled) + 0.5) / UPSAMPLING - 0.5;
    let x = to_pixel(if current.0 < previous.0 { current.0 } else { current.0 - 1 });
    if x.floor() != x || x < 0.0 || x > (width - 1) as f64 {
        return None;
    }
    let y = to_pixel(current.1.min(previous.1)).clamp(0.0, height as f64).ceil();
    Some(x as u32 * height as u32 + y as u32)
}

fn bad(reason: String) -> MaskError {
    MaskError::BadCocoSegmentation(reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A mask made by pycocotools (reference/data/make.py).
    #[derive(serde::Deserialize)]
    struct Case {
        width: usize,
        height: usize,
        polygons: Vec<Vec<f64>>,
        parts: Vec<String>,
        compressed: String,
        counts: Vec<u32>,
        area: u64,
    }

    fn cases() -> Vec<Case> {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../reference/data/coco_masks.json");
        serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
    }

    #[test]
    fn polygons_are_rasterised_as_pycocotools_does() {
        let cases = cases();
        assert!(cases.len() >= 69);
        for Case { width, height, polygons, parts, compressed, area, .. } in cases {
            for (polygon, part) in polygons.iter().zip(parts) {
                let rle = Rle::from_polygon(width, height, polygon).unwrap();
                assert_eq!(rle.to_compressed(), part, "{width}×{height} {polygon:?}");
            }
            let union = Rle::from_polygons(width, height, &polygons).unwrap();
            assert_eq!(union.to_compressed(), compressed, "{width}×{height} {polygons:?}");
            assert_eq!(union.area(), area);
        }
    }

    #[test]
    fn both_forms_of_run_lengths_give_the_same_mask() {
        for Case { width, height, compressed, counts, .. } in cases() {
            let plain = Rle::from_counts(width, height, counts).unwrap();
            let packed = Rle::from_compressed(width, height, &compressed).unwrap();
            let pixels = |rle: &Rle| {
                let mut on = vec![false; width * height];
                rle.runs().for_each(|run| on[run].fill(true));
                on
            };
            let on = pixels(&plain);
            assert_eq!(on, pixels(&packed));
            let encoded = Rle::from_pixels(width, height, |x, y| on[x * height + y]).unwrap();
            assert_eq!(pixels(&encoded), on);
            assert_eq!(Rle::from_compressed(width, height, &encoded.to_compressed()).unwrap(), encoded);
        }
    }

    #[test]
    fn long_runs_survive_compression() {
        let counts = vec![0, 1, 3_999_999_000, 5, 0, 900, 94];
        let rle = Rle::from_counts(40_000, 100_000, counts).unwrap();
        assert_eq!(Rle::from_compressed(40_000, 100_000, &rle.to_compressed()).unwrap(), rle);
    }

    #[test]
    fn malformed_segmentations_are_refused_with_the_reason() {
        let reason = |result: Result<Rle, MaskError>| result.unwrap_err().to_string();
        assert!(reason(Rle::from_counts(3, 2, vec![1, 2])).contains("cover 3 pixels, expected 3×2 = 6"));
        assert!(reason(Rle::from_counts(3, 2, vec![u32::MAX; 3])).contains("cover 12884901885"));
        assert!(reason(Rle::from_compressed(3, 2, "6 ")).contains("` `"));
        assert!(reason(Rle::from_compressed(3, 2, "ooooooooo")).contains("32 bits"));
        assert!(reason(Rle::from_compressed(3, 2, "o")).contains("ends within a run"));
        assert!(reason(Rle::from_compressed(3, 2, "O6")).contains("a run of -1 pixels"));
        assert!(reason(Rle::from_compressed(3, 2, "é")).contains("\\xc3"));
        assert!(reason(Rle::from_polygon(3, 2, &[1.0, 2.0, 3.0])).contains("3 numbers"));
        assert!(reason(Rle::from_polygon(3, 2, &[1.0, f64::NAN])).contains("NaN"));
        assert!(reason(Rle::from_polygon(3, 2, &[1.0, 1e12])).contains("1000000000000"));
        assert!(Rle::from_polygon(0, 2, &[]).is_err());
        assert_eq!(Rle::from_polygon(3, 2, &[]).unwrap().area(), 0);
    }

    // Found by `vitpcm-fuzz run-lengths`: a line of text took seconds.
    #[test]
    fn an_outline_that_goes_to_and_fro_for_millions_of_pixels_is_refused() {
        let message = Rle::from_polygon(3, 2, &[-1e6, 0.0, 1e6, 0.0].repeat(16)).unwrap_err().to_string();
        assert!(message.contains("millions of pixels long"), "{message}");
    }
}
