//! One export: images go in one after the other, a format's files come out. Encoding an image is apart from writing
//! it, so that images may be encoded on all cores and written in order. Each format's content is in its own file.

use crate::destination::Destination;
use crate::format::{ExportFormat, ExportOptions};
use crate::labelled_image::{LabelledImage, Photograph};
use crate::parts::without_specks;
use crate::{ExportError, coco, yolo};
use std::borrow::Cow;
use vitpcm_masks::{Classes, LabelMap, encode_label_png};

/// Turns images into what a format writes of them. Cheap to clone; knows nothing of where it goes.
#[derive(Clone, Debug)]
pub struct Encoder {
    format: ExportFormat,
    classes: Classes,
    options: ExportOptions,
}

/// What a format writes of one image.
#[derive(Debug)]
pub struct EncodedImage<'a> {
    file_name: String,
    name: String,
    size: (usize, usize),
    photograph: Photograph<'a>,
    content: Content,
}

#[derive(Debug)]
enum Content {
    /// Files of its own.
    Files(Vec<(String, Vec<u8>)>),
    /// Entries of the collected file.
    CocoObjects(Vec<coco::Object>),
}

impl Encoder {
    /// What one image becomes.
    pub fn encode<'a>(&self, image: &LabelledImage<'a>) -> Result<EncodedImage<'a>, ExportError> {
        image.check(&self.classes)?;
        let mut mask = Cow::Borrowed(image.mask);
        if self.options.min_area > 1 {
            mask = Cow::Owned(without_specks(&mask, self.options.min_area));
        }
        let name = image.name().to_string();
        let content = match self.format {
            ExportFormat::Png => Content::Files(vec![(format!("{name}.png"), png(&mask)?)]),
            ExportFormat::Coco => Content::CocoObjects(coco::objects(&mask, &self.options)),
            ExportFormat::Yolo => {
                let labels = yolo::labels(&mask, self.options.polygon_error);
                Content::Files(vec![(yolo::label_path(&name), labels.into_bytes())])
            }
            _ => unreachable!("not yet there"),
        };
        let (file_name, photograph) = (image.file_name.to_string(), image.photograph);
        Ok(EncodedImage { file_name, name, size: mask.size(), photograph, content })
    }
}

/// An export under way. Dropped before [`Exporter::finish`], it leaves no collected file behind.
#[derive(Debug)]
pub struct Exporter<D: Destination> {
    encoder: Encoder,
    destination: D,
    num_images: u64,
    num_objects: u64,
    /// What the end of the collected file is made of: COCO's list of images.
    records: String,
}

impl<D: Destination> Exporter<D> {
    /// Begins an export.
    pub fn begin(
        format: ExportFormat,
        classes: &Classes,
        options: &ExportOptions,
        mut destination: D,
    ) -> Result<Self, ExportError> {
        match format {
            ExportFormat::Png => {
                destination.file("classes.txt", (classes.names()[1..].join("\n") + "\n").as_bytes())?;
            }
            ExportFormat::Coco => {
                destination.begin(coco::FILE)?;
                destination.write(coco::head(classes, options).as_bytes())?;
            }
            ExportFormat::Yolo => destination.file(yolo::DATA_FILE, yolo::data_yaml(classes).as_bytes())?,
            _ => {}
        }
        let encoder = Encoder { format, classes: classes.clone(), options: options.clone() };
        Ok(Exporter { encoder, destination, num_images: 0, num_objects: 0, records: String::new() })
    }

    /// What encodes this export's images, for use on several threads.
    pub fn encoder(&self) -> Encoder {
        self.encoder.clone()
    }

    /// Adds an image.
    pub fn add(&mut self, image: &LabelledImage<'_>) -> Result<(), ExportError> {
        let encoded = self.encoder.encode(image)?;
        self.add_encoded(encoded)
    }

    /// Adds an image that this export's encoder has encoded.
    pub fn add_encoded(&mut self, image: EncodedImage<'_>) -> Result<(), ExportError> {
        self.num_images += 1;
        let destination = &mut self.destination;
        match image.content {
            Content::Files(files) => {
                for (path, bytes) in files {
                    destination.file(&path, &bytes)?;
                }
            }
            Content::CocoObjects(objects) => {
                for object in objects {
                    let comma = if self.num_objects > 0 { ",\n" } else { "\n" };
                    self.num_objects += 1;
                    let text = coco::numbered(&object, self.num_objects, self.num_images);
                    destination.write(comma.as_bytes())?;
                    destination.write(text.as_bytes())?;
                }
                self.records.push_str(if self.num_images > 1 { ",\n" } else { "\n" });
                self.records.push_str(&coco::image(self.num_images, image.size, &image.file_name));
            }
        }
        if self.encoder.format == ExportFormat::Yolo {
            destination.place(&yolo::image_path(&image.file_name), image.photograph)?;
        }
        Ok(())
    }

    /// Ends the export; what it wrote is whole now.
    pub fn finish(mut self) -> Result<D, ExportError> {
        if self.encoder.format == ExportFormat::Coco {
            let tail = format!("\n],\"images\":[{}\n]}}\n", self.records);
            self.destination.write(tail.as_bytes())?;
            self.destination.end()?;
        }
        Ok(self.destination)
    }
}

fn png(mask: &LabelMap) -> Result<Vec<u8>, ExportError> {
    let mut bytes = Vec::new();
    encode_label_png(&mut bytes, mask).map_err(|e| ExportError::io("mask.png", e))?;
    Ok(bytes)
}
