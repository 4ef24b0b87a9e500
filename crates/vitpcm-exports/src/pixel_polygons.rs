//! Polygons over pixels, through the centres of a component's outermost pixels, as OpenCV traces and fills them, and so
//! YOLO's trainer and Labelme. With polygons along pixel edges, as in `polygons`, every component would come back a
//! pixel too large.

use crate::filling::for_each_pixel;
use crate::outlines::{Corner, pixel_chains_of};
use crate::polygons::{PolygonPart, douglas_peucker, finer, squared_distance};
use vitpcm_masks::{Components, IGNORE, LabelMap};

/// Minimum IoU of a component's polygon with its pixels. Pillow draws slanted lines differently from OpenCV and this
/// crate; the margin over 0.98 is for that.
const MIN_IOU: f64 = 0.99;

/// Tolerance for collinear pixels, for rounding.
const STRAIGHT: f64 = 1e-3;

/// Formats refuse polygons with fewer corners.
const MIN_CORNERS: usize = 3;

impl PolygonPart {
    /// Outer ring and holes as one outline through pixel centres, with at least three corners.
    pub(crate) fn outline_of_centres(&self) -> Vec<(f64, f64)> {
        let mut pixels = self.bridged();
        while pixels.len() < MIN_CORNERS {
            pixels.push(pixels[0]);
        }
        pixels.into_iter().map(|(x, y)| (f64::from(x) + 0.5, f64::from(y) + 0.5)).collect()
    }
}

/// All components of all classes except background and 255, in the order of their first pixels, as polygons over
/// pixels. No outermost pixel is further than `max_error` from its polygon, or less if a component would lose too much.
pub(crate) fn pixel_polygon_parts(map: &LabelMap, max_error: f64) -> Vec<PolygonPart> {
    let parts = Components::of(map);
    let chains = pixel_chains_of(&parts, |part| !matches!(parts.labels[part as usize], 0 | IGNORE));
    let mut covered = Covered { polygon_of_pixel: vec![0; parts.component_of_pixel.len()], num_polygons: 0 };
    let of_one_part = chains.chunk_by(|(part, _), (other, _)| part == other);
    of_one_part.map(|rings| simplified(&parts, rings, max_error, &mut covered)).collect()
}

/// The polygon of one component, with the largest error that keeps its IoU high enough.
fn simplified(
    parts: &Components,
    rings: &[(u32, Vec<Corner>)],
    max_error: f64,
    covered: &mut Covered,
) -> PolygonPart {
    let part = rings[0].0;
    let (label, area) = (parts.labels[part as usize], parts.areas[part as usize]);
    let mut error = max_error;
    loop {
        let mut rings = rings.iter().map(|(_, ring)| simplified_ring(ring, error));
        let outer = rings.next().expect("a part has an outline");
        let polygon = PolygonPart { part, label, area, outer, holes: rings.collect() };
        let (common, filled) = covered.count(parts, &polygon);
        let union = filled + u64::from(area) - common;
        if error <= 0.0 || common as f64 >= MIN_IOU * union as f64 {
            return polygon;
        }
        error = finer(error);
    }
}

fn simplified_ring(ring: &[Corner], max_error: f64) -> Vec<Corner> {
    let farthest_from = |from: Corner| {
        (0..ring.len()).max_by_key(|&i| squared_distance(from, ring[i])).expect("a ring has pixels")
    };
    // Two pixels that stay, approximately the farthest pair.
    let start = farthest_from(ring[0]);
    let end = farthest_from(ring[start]);
    if ring[start] == ring[end] {
        return vec![ring[start]];
    }
    let around: Vec<Corner> = ring[start..].iter().chain(&ring[..=start]).copied().collect();
    let middle = (end + ring.len() - start) % ring.len();
    let error = max_error.max(STRAIGHT);
    let mut simple = douglas_peucker(&around[..=middle], error);
    simple.pop();
    simple.extend(douglas_peucker(&around[middle..], error));
    simple.pop();
    simple
}

/// Which pixels a polygon covers, each counted once.
struct Covered {
    polygon_of_pixel: Vec<u32>,
    num_polygons: u32,
}

impl Covered {
    /// How many pixels of its own component a polygon covers, and how many in total.
    fn count(&mut self, parts: &Components, polygon: &PolygonPart) -> (u64, u64) {
        self.num_polygons += 1;
        let (mut common, mut filled) = (0, 0);
        // As it is written: with holes joined to the outer ring.
        for_each_pixel((parts.width, parts.height), &[&polygon.bridged()], |x, y| {
            let at = y * parts.width + x;
            if self.polygon_of_pixel[at] != self.num_polygons {
                self.polygon_of_pixel[at] = self.num_polygons;
                filled += 1;
                common += u64::from(parts.component_of_pixel[at] == polygon.part);
            }
        });
        (common, filled)
    }
}
