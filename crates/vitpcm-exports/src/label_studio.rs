//! Label Studio: `tasks.json` with one task per image and its masks as predictions for people to correct, and
//! `labels.xml`, the labelling interface to paste into the project's settings. Masks are brush strokes in the
//! run-length format of `@thi.ng/rle-pack`, over red, green, blue and alpha of every pixel.

use crate::filling::Canvas;
use crate::format::ExportOptions;
use crate::parts::grouped;
use quick_xml::XmlVersion;
use quick_xml::events::Event;
use serde::{Deserialize, Serialize};
use std::fmt::Write;
use std::io::Read;
use std::ops::Range;
use vitpcm_masks::palette::voc_colour;
use vitpcm_masks::{Classes, Components, LabelMap};

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

/// The labelling interface for the classes.
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

/// A row-major run of pixels.
type Run = Range<usize>;

/// One task of the list.
pub(crate) fn task(file_name: &str, map: &LabelMap, classes: &Classes, options: &ExportOptions) -> String {
    let parts = Components::of(map);
    let grouping = grouped(&parts, options.objects);
    let mut runs: Vec<Vec<Run>> = vec![Vec::new(); grouping.label_of_object.len()];
    for (at, &part) in parts.component_of_pixel.iter().enumerate() {
        let Some(object) = grouping.object_of_part[part as usize] else { continue };
        let runs = &mut runs[object as usize];
        match runs.last_mut().filter(|run| run.end == at) {
            Some(run) => run.end += 1,
            None => runs.push(at..at + 1),
        }
    }
    let objects = grouping.label_of_object.iter().zip(runs).enumerate();
    let region = |(index, (&label, runs)): (usize, (&u8, Vec<Run>))| Region {
        id: format!("object{}", index + 1),
        r#type: "brushlabels",
        from_name: BRUSH,
        to_name: IMAGE,
        original_width: map.width(),
        original_height: map.height(),
        image_rotation: 0,
        value: Brush {
            format: "rle",
            rle: packed(&runs, parts.component_of_pixel.len()),
            brushlabels: [classes.names()[usize::from(label)].clone()],
        },
    };
    let result = objects.map(region).collect();
    let image = format!("{}{}", options.image_prefix, percent_encoded(file_name));
    let prediction = Prediction { model_version: options.made_by.clone(), result };
    serde_json::to_string(&Task { data: Data { image }, predictions: [prediction] }).expect("plain data")
}

/// Percent-encodes all but letters, digits and a few signs.
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

/// Bits of a run's length for each of the four sizes in the format's header.
const RUN_BITS: [u32; 4] = [3, 4, 8, 16];

/// Writes bits, most significant first.
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

    /// A run of one value: a 1, the index of the length's size, the length minus one, the value.
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

/// Row-major runs in Label Studio's format, byte for byte as its own converter writes them.
fn packed(runs: &[Run], num_pixels: usize) -> Vec<u8> {
    let mut bits = BitWriter::default();
    bits.push(4 * num_pixels as u32, 32);
    bits.push(8 - 1, 5);
    RUN_BITS.iter().for_each(|&size| bits.push(size - 1, 4));
    let mut end = 0;
    for run in runs {
        bits.run(4 * (run.start - end), 0);
        bits.run(4 * run.len(), 255);
        end = run.end;
    }
    bits.run(4 * (num_pixels - end), 0);
    // The converter pads by 1 to 8 bits.
    bits.push(0, 8 - (bits.num_bits % 8) as u32);
    bits.bytes
}

/// The parts of a task, exported or imported, that concern masks.
#[derive(Deserialize)]
struct ReadTask {
    data: serde_json::Map<String, serde_json::Value>,
    #[serde(default)]
    annotations: Vec<ReadResult>,
    #[serde(default)]
    predictions: Vec<ReadResult>,
}

#[derive(Deserialize)]
struct ReadResult {
    #[serde(default)]
    was_cancelled: bool,
    result: Vec<ReadRegion>,
}

#[derive(Debug, Deserialize)]
struct ReadRegion {
    #[serde(default)]
    original_width: usize,
    #[serde(default)]
    original_height: usize,
    #[serde(default)]
    value: ReadValue,
}

#[derive(Debug, Default, Deserialize)]
struct ReadValue {
    #[serde(default)]
    rle: Vec<u8>,
    #[serde(default)]
    brushlabels: Vec<String>,
}

/// The masks of one image.
#[derive(Debug)]
pub(crate) struct ReadImage {
    pub(crate) file_name: String,
    regions: Vec<ReadRegion>,
}

/// Reads all tasks: the annotations of an image or, without any, its predictions.
pub(crate) fn read_tasks(reader: impl Read) -> Result<Vec<ReadImage>, String> {
    let tasks: Vec<ReadTask> = serde_json::from_reader(reader)
        .map_err(|error| format!("not a list of Label Studio tasks: {error}"))?;
    let image = |task: ReadTask| {
        let address =
            task.data.get(IMAGE).or_else(|| task.data.values().next()).and_then(|value| value.as_str());
        let address = address.ok_or("a task whose data names no image")?;
        // Local storage has the path in its query; other addresses end in the file's name.
        let name = address.split_once("?d=").map(|(_, path)| path);
        let name = name.unwrap_or_else(|| address.rsplit('/').next().unwrap_or(address));
        let mut results = task.annotations.into_iter().filter(|result| !result.was_cancelled);
        let result = results.next().or_else(|| task.predictions.into_iter().next());
        let regions = result.map_or_else(Vec::new, |result| result.result);
        Ok(ReadImage { file_name: percent_decoded(name), regions })
    };
    tasks.into_iter().map(image).collect()
}

/// The labels of a labelling interface.
pub(crate) fn read_interface(xml: &str) -> Result<Vec<String>, String> {
    let mut reader = quick_xml::Reader::from_str(xml);
    let mut names = Vec::new();
    loop {
        match reader.read_event().map_err(|error| format!("not XML: {error}"))? {
            Event::Start(tag) | Event::Empty(tag) if tag.name().as_ref() == "Label" => {
                let value = tag.try_get_attribute("value").map_err(|error| error.to_string())?;
                let value = value.ok_or("a `Label` without `value`")?;
                let text =
                    value.normalized_value(XmlVersion::Explicit1_0).map_err(|error| error.to_string())?;
                names.push(text.into_owned());
            }
            Event::Eof => return Ok(names),
            _ => {}
        }
    }
}

impl ReadImage {
    /// The labels of all strokes.
    pub(crate) fn labels(&self) -> impl Iterator<Item = &str> {
        self.regions.iter().flat_map(|region| &region.value.brushlabels).map(String::as_str)
    }

    /// Paints the strokes in order. Each states the image's size; `size` is used without any stroke.
    pub(crate) fn mask(
        &self,
        classes: &Classes,
        size: Option<(usize, usize)>,
        max_pixels: u64,
    ) -> Result<LabelMap, String> {
        let mut strokes = self.regions.iter().filter(|region| !region.value.rle.is_empty()).peekable();
        let size = strokes.peek().map(|stroke| (stroke.original_width, stroke.original_height)).or(size);
        let size = size.ok_or("no brush stroke, so that the size of the image is not known")?;
        let mut canvas = Canvas::new(size, max_pixels)?;
        for region in strokes {
            let (width, height) = (region.original_width, region.original_height);
            if (width, height) != canvas.size() {
                return Err(format!("strokes of {width}×{height} and of {:?} pixels", canvas.size()));
            }
            let name = region.value.brushlabels.first().ok_or("a brush stroke without a label")?;
            let label = classes
                .index_of(name)
                .ok_or_else(|| format!("the label `{name}` is not among the classes"))?;
            for_each_packed(&region.value.rle, width * height, |at| {
                canvas.pixel(at % width, at / width, label as u8);
            })?;
        }
        Ok(canvas.into_map())
    }
}

fn percent_decoded(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut i = 0;
    while i < bytes.len() {
        let code = (bytes[i] == b'%')
            .then(|| text.get(i + 1..i + 3).and_then(|digits| u8::from_str_radix(digits, 16).ok()))
            .flatten();
        decoded.push(code.unwrap_or(bytes[i]));
        i += if code.is_some() { 3 } else { 1 };
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

struct BitReader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl BitReader<'_> {
    fn read(&mut self, bits: u32) -> Result<u32, String> {
        let mut value = 0;
        for _ in 0..bits {
            let byte = self.bytes.get(self.at / 8).ok_or("a brush stroke is cut off")?;
            value = value << 1 | u32::from(byte >> (7 - self.at % 8) & 1);
            self.at += 1;
        }
        Ok(value)
    }
}

/// Visits the pixels, row-major, whose alpha is not 0.
fn for_each_packed(rle: &[u8], num_pixels: usize, mut visit: impl FnMut(usize)) -> Result<(), String> {
    let mut bits = BitReader { bytes: rle, at: 0 };
    let num_values = bits.read(32)? as usize;
    if num_values != 4 * num_pixels {
        return Err(format!(
            "a brush stroke of {num_values} values, expected 4 for each of {num_pixels} pixels"
        ));
    }
    let word_bits = bits.read(5)? + 1;
    let mut run_bits = [0; 4];
    for size in &mut run_bits {
        *size = bits.read(4)? + 1;
    }
    let mut at = 0;
    while at < num_values {
        let is_run = bits.read(1)? == 1;
        let size = run_bits[bits.read(2)? as usize];
        let end = at + 1 + bits.read(size)? as usize;
        if end > num_values {
            return Err("a brush stroke that goes on after the last pixel".to_string());
        }
        if is_run {
            let is_on = bits.read(word_bits)? != 0;
            // Every fourth value is an alpha.
            (at..end).filter(|value| is_on && value % 4 == 3).for_each(|value| visit(value / 4));
        } else {
            for value in at..end {
                let is_on = bits.read(word_bits)? != 0;
                if is_on && value % 4 == 3 {
                    visit(value / 4);
                }
            }
        }
        at = end;
    }
    Ok(())
}
