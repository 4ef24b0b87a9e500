//! Outlines along the edges of pixels: every connected part of a label map as closed rings over the corners of its
//! pixels, outer ring first, then its holes. Filled, they give back exactly the pixels.

use crate::parts::Parts;

/// A corner of pixels: `(x, y)` is the upper left corner of pixel `(x, y)`.
pub(crate) type Corner = (i32, i32);

/// A stretch of outline between two fixed corners, along which the same two parts meet.
#[derive(Clone, Debug)]
pub(crate) struct Arc {
    /// Corners at which the outline turns, both ends included.
    pub(crate) corners: Vec<Corner>,
    /// The part on the other side, if it is not the end of the image.
    pub(crate) neighbour: Option<u32>,
}

/// A closed outline. The part lies to its right as one goes along, y pointing down: outer rings run clockwise,
/// holes the other way.
#[derive(Clone, Debug)]
pub(crate) struct Ring {
    pub(crate) part: u32,
    /// Each begins where the one before it ends. A ring that meets no third part is a single arc that ends where it
    /// begins.
    pub(crate) arcs: Vec<Arc>,
}

/// All rings of all parts that `is_wanted`, in the order of the parts' first pixels; a part's outer ring is its
/// first.
pub(crate) fn rings_of(parts: &Parts, is_wanted: impl Fn(u32) -> bool) -> Vec<Ring> {
    let mut rings = Vec::new();
    // Every ring passes over some pixel's upper edge from left to right; that edge is where it is found.
    let mut is_seen = vec![false; parts.part_of_pixel.len()];
    for y in 0..parts.height as i32 {
        for x in 0..parts.width as i32 {
            let at = y as usize * parts.width + x as usize;
            let part = parts.part_of_pixel[at];
            if !is_seen[at] && parts.at(x, y - 1) != Some(part) && is_wanted(part) {
                rings.push(follow(parts, part, (x, y), &mut is_seen));
            }
        }
    }
    rings.sort_by_key(|ring| ring.part);
    rings
}

/// Right, down, left, up.
const STEPS: [Corner; 4] = [(1, 0), (0, 1), (-1, 0), (0, -1)];
/// The pixel ahead on the right and on the left of a corner, for each of the directions above.
const RIGHT_AHEAD: [Corner; 4] = [(0, 0), (-1, 0), (-1, -1), (0, -1)];
const LEFT_AHEAD: [Corner; 4] = [(0, -1), (0, 0), (-1, 0), (-1, -1)];

/// Follows the outline of a part from the upper left corner of one of its pixels: the
/// leftmost of an upper edge, so that the outline turns there or the corner is fixed.
fn follow(parts: &Parts, part: u32, start: Corner, is_seen: &mut [bool]) -> Ring {
    let pixel = |corner: Corner, offset: Corner| parts.at(corner.0 + offset.0, corner.1 + offset.1);
    let mut arcs: Vec<Arc> = Vec::new();
    let mut arc = Arc { corners: vec![start], neighbour: pixel(start, LEFT_AHEAD[0]) };
    let (mut at, mut direction) = (start, 0);
    loop {
        if direction == 0 {
            is_seen[at.1 as usize * parts.width + at.0 as usize] = true;
        }
        at = (at.0 + STEPS[direction].0, at.1 + STEPS[direction].1);
        // Parts hold together along sides only, so that at a corner the own pixel is gone round first.
        let next = if pixel(at, RIGHT_AHEAD[direction]) != Some(part) {
            (direction + 1) % 4
        } else if pixel(at, LEFT_AHEAD[direction]) != Some(part) {
            direction
        } else {
            (direction + 3) % 4
        };
        let is_end = at == start && next == 0;
        let is_fixed = is_fixed(parts, at);
        if next != direction || is_fixed || is_end {
            arc.corners.push(at);
        }
        direction = next;
        if is_fixed || is_end {
            let following = Arc { corners: vec![at], neighbour: pixel(at, LEFT_AHEAD[direction]) };
            arcs.push(std::mem::replace(&mut arc, following));
        }
        if is_end {
            break;
        }
    }
    if !is_fixed(parts, start) {
        let first = arcs.remove(0);
        match arcs.last_mut() {
            // The walk began anywhere; what lies before the first fixed corner belongs to the last arc.
            Some(last) => last.corners.extend(&first.corners[1..]),
            // Nothing is fixed. Both sides of the border shall begin at the same corner: the least.
            None => {
                let mut around = first.corners;
                around.pop();
                let least = (0..around.len()).min_by_key(|&i| around[i]).expect("a ring has corners");
                around.rotate_left(least);
                around.push(around[0]);
                arcs.push(Arc { corners: around, neighbour: first.neighbour });
            }
        }
    }
    Ring { part, arcs }
}

/// Whether a corner must stay where it is: three parts meet there, two meet twice, or the image has its corner there.
fn is_fixed(parts: &Parts, (x, y): Corner) -> bool {
    let [a, b, c, d] = [(x - 1, y - 1), (x, y - 1), (x, y), (x - 1, y)].map(|(x, y)| parts.at(x, y));
    let num_changes = [a != b, b != c, c != d, d != a].into_iter().filter(|&change| change).count();
    let num_outside = [a, b, c, d].iter().filter(|part| part.is_none()).count();
    num_changes > 2 || num_outside == 3
}

#[cfg(test)]
mod tests {
    use super::*;
    use vitpcm_masks::LabelMap;

    fn rings(width: usize, labels: &[u8]) -> Vec<Vec<Corner>> {
        let map = LabelMap::new(width, labels.len() / width, labels.to_vec()).unwrap();
        let parts = Parts::of(&map);
        let rings = rings_of(&parts, |part| parts.labels[part as usize] != 0);
        let corners = |ring: Ring| {
            let arcs = ring.arcs.iter().flat_map(|arc| &arc.corners[..arc.corners.len() - 1]);
            arcs.copied().collect()
        };
        rings.into_iter().map(corners).collect()
    }

    #[test]
    fn a_pixel_has_four_corners_and_a_hole_runs_the_other_way() {
        assert_eq!(rings(3, &[0, 0, 0, 0, 1, 0, 0, 0, 0]), [[(1, 1), (2, 1), (2, 2), (1, 2)]]);
        let frame = rings(5, &[0, 0, 0, 0, 0, 0, 1, 1, 1, 0, 0, 1, 0, 1, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(frame, [[(1, 1), (4, 1), (4, 4), (1, 4)], [(2, 2), (2, 3), (3, 3), (3, 2)]]);
    }

    #[test]
    fn corners_that_touch_are_two_rings_and_third_parts_fix_corners() {
        assert_eq!(rings(2, &[1, 0, 0, 1]).len(), 2);
        // Where 1, 2 and the end of the image meet, both keep a corner though neither turns there.
        let halves = rings(2, &[1, 2, 1, 2]);
        assert_eq!(halves, [[(0, 0), (1, 0), (1, 2), (0, 2)], [(1, 0), (2, 0), (2, 2), (1, 2)]]);
    }
}
