//! Fills polygons by the even-odd rule. Polygons along pixel edges contain the pixels whose centres are inside;
//! polygons over pixels also contain those on their outline, as in OpenCV and Pillow. COCO's own rule is in
//! `vitpcm_masks::coco_rle`.

use crate::outlines::Corner;
use crate::polygons::PolygonPart;
use std::ops::Range;
use vitpcm_masks::{Components, LabelMap};

/// Visits the spans of pixels inside the rings, as row and column range, clipped to the image.
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
            // Rows whose centre y + 0.5 lies in upper.1 .. lower.1, excluding the lower end.
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

/// How many pixels of its own component a polygon covers, and how many in total.
pub(crate) fn num_common_pixels(parts: &Components, polygon: &PolygonPart) -> (u64, u64) {
    let real = |ring: &Vec<(i32, i32)>| ring.iter().map(|&(x, y)| (f64::from(x), f64::from(y))).collect();
    let rings: Vec<Vec<(f64, f64)>> = [&polygon.outer].into_iter().chain(&polygon.holes).map(real).collect();
    let (mut common, mut filled) = (0, 0);
    for_each_span((parts.width, parts.height), &rings, |y, columns| {
        filled += columns.len() as u64;
        let row = &parts.component_of_pixel[y * parts.width..][..parts.width];
        common += row[columns].iter().filter(|&&part| part == polygon.part).count() as u64;
    });
    (common, filled)
}

/// Visits all pixels of polygons over pixels, inside and on their outlines, clipped to the image; some twice.
pub(crate) fn for_each_pixel(
    (width, height): (usize, usize),
    rings: &[&[Corner]],
    mut visit: impl FnMut(usize, usize),
) {
    let centre = |&(x, y): &Corner| (f64::from(x) + 0.5, f64::from(y) + 0.5);
    let centres: Vec<Vec<(f64, f64)>> = rings.iter().map(|ring| ring.iter().map(centre).collect()).collect();
    for_each_span((width, height), &centres, |y, columns| columns.for_each(|x| visit(x, y)));
    let mut visit_inside = |x: i32, y: i32| {
        if x >= 0 && y >= 0 && (x as usize) < width && (y as usize) < height {
            visit(x as usize, y as usize);
        }
    };
    for ring in rings {
        for (i, &from) in ring.iter().enumerate() {
            for_each_pixel_of_line(from, ring[(i + 1) % ring.len()], &mut visit_inside);
        }
    }
}

/// Bresenham's line, including both ends.
fn for_each_pixel_of_line(from: Corner, to: Corner, visit: &mut impl FnMut(i32, i32)) {
    let (dx, dy) = ((to.0 - from.0).abs(), -(to.1 - from.1).abs());
    let step = ((to.0 - from.0).signum(), (to.1 - from.1).signum());
    let (mut at, mut error) = (from, dx + dy);
    loop {
        visit(at.0, at.1);
        if at == to {
            return;
        }
        let twice = 2 * error;
        if twice >= dy {
            error += dy;
            at.0 += step.0;
        }
        if twice <= dx {
            error += dx;
            at.1 += step.1;
        }
    }
}

/// A label map under construction, painted object by object.
pub(crate) struct Canvas {
    width: usize,
    height: usize,
    labels: Vec<u8>,
}

impl Canvas {
    /// All background. The size comes from a file and is checked against a limit.
    pub(crate) fn new((width, height): (usize, usize), max_pixels: u64) -> Result<Canvas, String> {
        let is_taken = |num_pixels: &usize| (1..=max_pixels).contains(&(*num_pixels as u64));
        match width.checked_mul(height).filter(is_taken) {
            Some(num_pixels) => Ok(Canvas { width, height, labels: vec![0; num_pixels] }),
            None => Err(format!("{width}×{height} pixels; expected 1 to {max_pixels} in all")),
        }
    }

    pub(crate) fn size(&self) -> (usize, usize) {
        (self.width, self.height)
    }

    /// Paints a polygon over pixels, including its outline, over existing labels. Coordinates are truncated to whole
    /// pixels, as in the tools.
    pub(crate) fn polygon(&mut self, outline: &[(f64, f64)], label: u8) {
        // Outlines are walked pixel by pixel, so points that a hostile file puts far outside are moved closer.
        let far = (4 * self.width.max(self.height)).min(1 << 28) as f64;
        let pixel = |&(x, y): &(f64, f64)| (x.clamp(-far, far) as i32, y.clamp(-far, far) as i32);
        let pixels: Vec<Corner> = outline.iter().map(pixel).collect();
        let (width, height) = (self.width, self.height);
        for_each_pixel((width, height), &[&pixels], |x, y| self.labels[y * width + x] = label);
    }

    /// Paints one pixel, if it is inside the map.
    pub(crate) fn pixel(&mut self, x: usize, y: usize, label: u8) {
        if x < self.width && y < self.height {
            self.labels[y * self.width + x] = label;
        }
    }

    pub(crate) fn into_map(self) -> LabelMap {
        LabelMap::new(self.width, self.height, self.labels).expect("one label a pixel")
    }
}
