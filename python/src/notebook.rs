//! A segmentation as a notebook shows it: the mask over its image, and the classes with their colours.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use std::fmt::Write;
use vitpcm_masks::palette::display_colour;
use vitpcm_masks::resampling::{Alignment, Part, resize_rgb8};
use vitpcm_masks::{LabelMap, Picture};

/// Longer side in pixels of the picture, at most: notebooks keep what they show.
const LONGEST_SIDE: usize = 640;

/// The HTML of a picture, with the classes that its mask shows.
pub(crate) fn html(picture: Picture, mask: &LabelMap, classes: &[String]) -> String {
    let picture = BASE64_STANDARD.encode(reduced(picture).png());
    let mut html = format!("<img alt=\"mask\" src=\"data:image/png;base64,{picture}\"><div>");
    let num_pixels = mask.labels().len() as f64;
    for (label, class) in (0..=255u8).zip(classes).skip(1) {
        let count = mask.labels().iter().filter(|&&of_pixel| of_pixel == label).count();
        if count > 0 {
            let ([red, green, blue], percent) = (display_colour(label), 100.0 * count as f64 / num_pixels);
            let _ = write!(
                html,
                "<span style=\"display:inline-block;width:0.8em;height:0.8em;background:rgb({red},{green},{blue})\"></span> \
                 {} {percent:.1} %&ensp;",
                escaped(class)
            );
        }
    }
    html + "</div>"
}

fn reduced(picture: Picture) -> Picture {
    let longer = picture.width.max(picture.height);
    if longer <= LONGEST_SIDE {
        return picture;
    }
    let side = |side: usize| (side * LONGEST_SIDE / longer).max(1);
    let (width, height) = (side(picture.width), side(picture.height));
    let part = Part { x: 0, y: 0, width, height };
    let from = (picture.width, picture.height);
    let planes = resize_rgb8(&picture.rgb, from, (width, height), part, Alignment::HalfPixel);
    let value = |i: usize| planes[i % 3 * width * height + i / 3].round() as u8;
    Picture { width, height, rgb: (0..3 * width * height).map(value).collect() }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
