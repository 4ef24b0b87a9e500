//! Label Studio: `tasks.json` with one task an image and its masks as predictions, which people then correct, and
//! `labels.xml`, the labelling interface to paste into the project's settings. Masks are brush strokes in the
//! run-length packing of `@thi.ng/rle-pack`, over red, green, blue and alpha of every pixel.

use crate::format::ExportOptions;
use crate::parts::Parts;
use serde::Serialize;
use std::fmt::Write;
use vitpcm_masks::palette::voc_colour;
use vitpcm_masks::{Classes, LabelMap};

pub(crate) const TASKS_FILE: &str = "tasks.json";
pub(crate) const INTERFACE_FILE: &str = "labels.xml";

/// Names of the two tags in the labelling interface.
const BRUSH: &str = "brush";
const IMAGE: &str = "image";

#[derive(Serialize)]
struct Task {
    data: Data,
    predictions: [Prediction; 1],
}

#[derive(Serialize)]
struct Data {
    image: String,
}

#[derive(Serialize)]
struct Prediction {
    model_version: String,
    result: Vec<Region>,
}

#[derive(Serialize)]
struct Region {
    id: String,
    r#type: &'static str,
    from_name: &'static str,
    to_name: &'static str,
    original_width: usize,
    original_height: usize,
    image_rotation: u8,
    value: Brush,
}

#[derive(Serialize)]
struct Brush {
    format: &'static str,
    rle: Vec<u8>,
    brushlabels: [String; 1],
}

/// The labelling interface that knows the classes.
pub(crate) fn interface(classes: &Classes) -> String {
    let mut text = format!(
        "<View>\n  <Image name=\"{IMAGE}\" value=\"$image\" zoom=\"true\"/>\n  <BrushLabels name=\"{BRUSH}\" toName=\"{IMAGE}\">\n"
    );
    for (index, name) in classes.names().iter().enumerate().skip(1) {
        let [red, green, blue] = voc_colour(index as u8);
        let name = xml_escaped(name);
        let _ =
            writeln!(text, "    <Label value=\"{name}\" background=\"#{red:02x}{green:02x}{blue:02x}\"/>");
    }
    text + "  </BrushLabels>\n</View>\n"
}

fn xml_escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// One task of the list.
pub(crate) fn task(file_name: &str, map: &LabelMap, classes: &Classes, options: &ExportOptions) -> String {
    let parts = Parts::of(map);
    let grouping = parts.grouped(options.objects);
    let mut runs: Vec<Vec<(usize, usize)>> = vec![Vec::new(); grouping.label_of_object.len()];
    for (at, &part) in parts.part_of_pixel.iter().enumerate() {
        let Some(object) = grouping.object_of_part[part as usize] else { continue };
        let runs = &mut runs[object as usize];
        match runs.last_mut().filter(|(start, length)| start + length == at) {
            Some((_, length)) => *length += 1,
            None => runs.push((at, 1)),
        }
    }
    let objects = grouping.label_of_object.iter().zip(runs).enumerate();
    let region = |(index, (&label, runs)): (usize, (&u8, Vec<(usize, usize)>))| Region {
        id: format!("object{}", index + 1),
        r#type: "brushlabels",
        from_name: BRUSH,
        to_name: IMAGE,
        original_width: map.width(),
        original_height: map.height(),
        image_rotation: 0,
        value: Brush {
            format: "rle",
            rle: packed(&runs, parts.part_of_pixel.len()),
            brushlabels: [classes.names()[usize::from(label)].clone()],
        },
    };
    let result = objects.map(region).collect();
    let image = format!("{}{}", options.image_prefix, percent_encoded(file_name));
    let prediction = Prediction { model_version: options.made_by.clone(), result };
    serde_json::to_string(&Task { data: Data { image }, predictions: [prediction] }).expect("plain data")
}

/// Letters, digits and a few signs as they are, all other bytes as `%XX`.
fn percent_encoded(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

/// Bits of a run's length for each of the four sizes that the packing's header declares.
const RUN_BITS: [u32; 4] = [3, 4, 8, 16];

/// Bits, highest first.
#[derive(Default)]
struct BitWriter {
    bytes: Vec<u8>,
    num_bits: usize,
}

impl BitWriter {
    fn push(&mut self, value: u32, bits: u32) {
        for bit in (0..bits).rev() {
            if self.num_bits.is_multiple_of(8) {
                self.bytes.push(0);
            }
            *self.bytes.last_mut().expect("just pushed") |=
                ((value >> bit & 1) as u8) << (7 - self.num_bits % 8);
            self.num_bits += 1;
        }
    }

    /// A run of one value: a 1, which size of length follows, the length less one, the value.
    fn run(&mut self, mut length: usize, value: u8) {
        while length > 0 {
            let part = length.min(1 << 16);
            let size = RUN_BITS.iter().position(|&bits| part <= 1 << bits).expect("at most 2^16");
            self.push(1, 1);
            self.push(size as u32, 2);
            self.push(part as u32 - 1, RUN_BITS[size]);
            self.push(u32::from(value), 8);
            length -= part;
        }
    }
}

/// Runs of pixels, row by row, as Label Studio packs them: byte for byte what its own converter gives.
fn packed(runs: &[(usize, usize)], num_pixels: usize) -> Vec<u8> {
    let mut bits = BitWriter::default();
    bits.push(4 * num_pixels as u32, 32);
    bits.push(8 - 1, 5);
    RUN_BITS.iter().for_each(|&size| bits.push(size - 1, 4));
    let mut end = 0;
    for &(start, length) in runs {
        bits.run(4 * (start - end), 0);
        bits.run(4 * length, 255);
        end = start + length;
    }
    bits.run(4 * (num_pixels - end), 0);
    // The converter pads by 1 to 8 bits.
    bits.push(0, 8 - (bits.num_bits % 8) as u32);
    bits.bytes
}
