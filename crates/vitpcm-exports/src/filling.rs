//! Polygons back to pixels: a pixel belongs to a polygon if its centre does, by the even-odd rule over all rings.
//! COCO's own rule, which differs at slanted edges, is in `vitpcm_masks::coco_rle`.

use crate::parts::Parts;
use crate::polygons::PolygonPart;
use std::ops::Range;

/// Visits the spans of pixels inside the rings, as row and range of columns, clipped to the image.
pub(crate) fn for_each_span(
    (width, height): (usize, usize),
    rings: &[Vec<(f64, f64)>],
    mut visit: impl FnMut(usize, Range<usize>),
) {
    let mut crossings: Vec<(usize, f64)> = Vec::new();
    for ring in rings {
        for (i, &from) in ring.iter().enumerate() {
            let to = ring[(i + 1) % ring.len()];
            let (upper, lower) = if from.1 <= to.1 { (from, to) } else { (to, from) };
            // Rows whose centre y + 0.5 lies in upper.1 .. lower.1, the lower end not counted.
            let first = (upper.1 - 0.5).ceil().clamp(0.0, height as f64) as usize;
            let end = (lower.1 - 0.5).ceil().clamp(0.0, height as f64) as usize;
            for y in first..end {
                let t = (y as f64 + 0.5 - upper.1) / (lower.1 - upper.1);
                crossings.push((y, upper.0 + t * (lower.0 - upper.0)));
            }
        }
    }
    crossings.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
    // Closed rings cross every row an even number of times.
    for pair in crossings.chunks_exact(2) {
        let [start, end] = [pair[0].1, pair[1].1].map(|x| (x - 0.5).ceil().clamp(0.0, width as f64) as usize);
        if start < end {
            visit(pair[0].0, start..end);
        }
    }
}

/// How many pixels a polygon covers that are its part's, and how many it covers in all.
pub(crate) fn num_common_pixels(parts: &Parts, polygon: &PolygonPart) -> (u64, u64) {
    let real = |ring: &Vec<(i32, i32)>| ring.iter().map(|&(x, y)| (f64::from(x), f64::from(y))).collect();
    let rings: Vec<Vec<(f64, f64)>> = [&polygon.outer].into_iter().chain(&polygon.holes).map(real).collect();
    let (mut common, mut filled) = (0, 0);
    for_each_span((parts.width, parts.height), &rings, |y, columns| {
        filled += columns.len() as u64;
        let row = &parts.part_of_pixel[y * parts.width..][..parts.width];
        common += row[columns].iter().filter(|&&part| part == polygon.part).count() as u64;
    });
    (common, filled)
}
