//! Hints of a request: points and scribbles, in fractions of the image's width and height, so that they mean the same
//! place at the size of the view and of the image.

use crate::answer::Refusal;
use crate::kept_image::unknown_tag;
use crate::object::Object;
use serde::Deserialize;
use vitpcm::Hint;
use vitpcm_masks::Classes;

/// Most points of all hints of a request: their lines take time.
const MAX_POINTS: usize = 2000;

/// One hint.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(from = "Object<HintWishFields>")]
pub(crate) struct HintWish(HintWishFields);

/// Unknown keys are errors.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct HintWishFields {
    /// A class, or `background`.
    class: String,
    /// A point, or the corners of a line: x and y from 0 to 1.
    line: Vec<[f32; 2]>,
}

impl From<Object<HintWishFields>> for HintWish {
    fn from(Object(fields): Object<HintWishFields>) -> HintWish {
        HintWish(fields)
    }
}

/// The hints in pixels of an image or mask of this size.
pub(crate) fn in_pixels(
    wishes: &[HintWish],
    (width, height): (usize, usize),
    classes: &Classes,
) -> Result<Vec<Hint>, Refusal> {
    let num_points: usize = wishes.iter().map(|wish| wish.0.line.len()).sum();
    if num_points > MAX_POINTS {
        let text = format!("hints with {num_points} points; expected at most {MAX_POINTS}");
        return Err(Refusal::unprocessable(text));
    }
    let in_pixels = |HintWish(wish): &HintWish| {
        let is_inside = |[x, y]: &[f32; 2]| (0.0..=1.0).contains(x) && (0.0..=1.0).contains(y);
        if wish.line.is_empty() || !wish.line.iter().all(is_inside) {
            return Err(Refusal::unprocessable("a hint needs points with x and y from 0 to 1"));
        }
        let class = classes.index_of(&wish.class).ok_or_else(|| unknown_tag(&wish.class, classes))?;
        // The right and lower edges belong to the last pixels.
        let pixel = |share: f32, side: usize| (share * side as f32).min(side as f32 - 0.5);
        let line = wish.line.iter().map(|&[x, y]| (pixel(x, width), pixel(y, height)));
        Ok(Hint { class, line: line.collect() })
    };
    wishes.iter().map(in_pixels).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<Vec<Hint>, Refusal> {
        let wishes: Vec<HintWish> = serde_json::from_str(json).unwrap();
        in_pixels(&wishes, (200, 100), &Classes::from_names(["dog"]).unwrap())
    }

    #[test]
    fn fractions_become_pixels_and_names_classes() {
        let hints = read(
            r#"[{"class": "dog", "line": [[0.5, 0.25], [1, 1]]}, {"class": "background", "line": [[0, 0]]}]"#,
        );
        let expected = [
            Hint { class: 1, line: vec![(100.0, 25.0), (199.5, 99.5)] },
            Hint { class: 0, line: vec![(0.0, 0.0)] },
        ];
        assert_eq!(hints.unwrap(), expected);
    }

    #[test]
    fn points_outside_and_unknown_classes_are_refused() {
        for json in [
            r#"[{"class": "dog", "line": []}]"#,
            r#"[{"class": "dog", "line": [[0.5, 1.5]]}]"#,
            r#"[{"class": "dog", "line": [[-0.1, 0.5]]}]"#,
            r#"[{"class": "horse", "line": [[0.5, 0.5]]}]"#,
        ] {
            assert!(read(json).is_err(), "{json}");
        }
        let many = format!(r#"[{{"class": "dog", "line": [{}[0, 0]]}}]"#, "[0, 0],".repeat(MAX_POINTS));
        assert!(read(&many).is_err());
    }
}
