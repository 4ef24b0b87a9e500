//! An export in progress: images in, a format's files out. Encoding is separate from writing, so that images can be
//! encoded on all cores and written in order. Each format has its own file.

use crate::destination::Destination;
use crate::format::{ExportFormat, ExportOptions};
use crate::labelled_image::{LabelledImage, Photograph, ScoresOnGrid};
use crate::parts::without_specks;
use crate::{ExportError, coco, cvat, label_studio, labelme, voc, yolo};
use std::borrow::Cow;
use vitpcm_masks::{Classes, LabelMap, encode_label_png};

/// Encodes images for a format. Cheap to clone; independent of the destination.
#[derive(Clone, Debug)]
pub struct Encoder {
    format: ExportFormat,
    classes: Classes,
    options: ExportOptions,
}

/// One image, encoded for a format.
#[derive(Debug)]
pub struct EncodedImage {
    file_name: String,
    name: String,
    size: (usize, usize),
    content: Content,
}

#[derive(Debug)]
enum Content {
    /// Separate files.
    Files(Vec<(String, Vec<u8>)>),
    /// Entries of COCO's collected file.
    CocoObjects(Vec<coco::Object>),
    /// An entry of Label Studio's collected file.
    Task(String),
}

impl Encoder {
    /// Encodes one image.
    pub fn encode(&self, image: &LabelledImage<'_>) -> Result<EncodedImage, ExportError> {
        image.check(&self.classes)?;
        let Encoder { format, classes, options } = self;
        let mut mask = Cow::Borrowed(image.mask);
        if options.min_area > 1 {
            mask = Cow::Owned(without_specks(&mask, options.min_area));
        }
        if let Some(threshold) = options.unsure_below.filter(|_| format.knows_255()) {
            mask = Cow::Owned(voc::with_unsure_pixels(&mask, self.scores(image)?, threshold));
        }
        let name = image.name().to_string();
        let files = |contents: Vec<Vec<u8>>| {
            Content::Files(format.label_files(&name).into_iter().zip(contents).collect())
        };
        let content = match format {
            ExportFormat::Png => files(vec![png(&mask)]),
            ExportFormat::Coco => Content::CocoObjects(coco::objects(&mask, options)),
            ExportFormat::Yolo => files(vec![yolo::labels(&mask, options.polygon_error).into_bytes()]),
            ExportFormat::LabelStudio => {
                Content::Task(label_studio::task(image.file_name, &mask, classes, options))
            }
            ExportFormat::Cvat => files(vec![png(&mask), png(&cvat::object_mask(&mask, options.objects))]),
            ExportFormat::Labelme => {
                files(vec![labelme::file(image.file_name, &mask, classes, options).into_bytes()])
            }
            ExportFormat::Voc => files(vec![png(&mask)]),
        };
        Ok(EncodedImage { file_name: image.file_name.to_string(), name, size: mask.size(), content })
    }

    fn scores<'a>(&self, image: &LabelledImage<'a>) -> Result<ScoresOnGrid<'a>, ExportError> {
        let format = self.format.name();
        image.scores.ok_or_else(|| ExportError::NoScores { name: image.file_name.to_string(), format })
    }
}

/// An export in progress. If dropped before [`Exporter::finish`], it leaves no collected file behind.
#[derive(Debug)]
pub struct Exporter<D: Destination> {
    encoder: Encoder,
    destination: D,
    num_images: u64,
    num_objects: u64,
    /// Written at the end: COCO's list of images, VOC's and CVAT's lists of names.
    records: String,
}

impl<D: Destination> Exporter<D> {
    /// Starts an export.
    pub fn begin(
        format: ExportFormat,
        classes: &Classes,
        options: &ExportOptions,
        mut destination: D,
    ) -> Result<Self, ExportError> {
        let class_list = || classes.names()[1..].join("\n") + "\n";
        match format {
            ExportFormat::Png => destination.file("classes.txt", class_list().as_bytes())?,
            ExportFormat::Coco => {
                destination.begin(coco::FILE)?;
                destination.write(coco::head(classes, options).as_bytes())?;
            }
            ExportFormat::Yolo => destination.file(yolo::DATA_FILE, yolo::data_yaml(classes).as_bytes())?,
            ExportFormat::LabelStudio => {
                let interface = label_studio::interface(classes);
                destination.file(label_studio::INTERFACE_FILE, interface.as_bytes())?;
                destination.begin(label_studio::TASKS_FILE)?;
                destination.write(b"[")?;
            }
            ExportFormat::Cvat => destination.file(cvat::LABEL_MAP, cvat::label_map(classes)?.as_bytes())?,
            ExportFormat::Voc => destination.file(voc::CLASS_LIST, class_list().as_bytes())?,
            ExportFormat::Labelme => {
                destination.file(labelme::LABELS_FILE, labelme::labels_file(classes).as_bytes())?;
            }
        }
        let encoder = Encoder { format, classes: classes.clone(), options: options.clone() };
        Ok(Exporter { encoder, destination, num_images: 0, num_objects: 0, records: String::new() })
    }

    /// The encoder of this export's images, for use on several threads.
    pub fn encoder(&self) -> Encoder {
        self.encoder.clone()
    }

    /// Adds an image.
    pub fn add(&mut self, image: &LabelledImage<'_>) -> Result<(), ExportError> {
        let encoded = self.encoder.encode(image)?;
        self.add_encoded(encoded, image.photograph)
    }

    /// Adds an image from this export's encoder; formats that include images also take the photograph.
    pub fn add_encoded(
        &mut self,
        image: EncodedImage,
        photograph: Photograph<'_>,
    ) -> Result<(), ExportError> {
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
            Content::Task(task) => {
                destination.write(if self.num_images > 1 { b",\n" } else { b"\n" })?;
                destination.write(task.as_bytes())?;
            }
        }
        if let Some(path) = self.encoder.format.image_file(&image.file_name) {
            destination.place(&path, photograph)?;
        }
        if matches!(self.encoder.format, ExportFormat::Voc | ExportFormat::Cvat) {
            self.records.push_str(&image.name);
            self.records.push('\n');
        }
        Ok(())
    }

    /// Completes the export.
    pub fn finish(self) -> Result<D, ExportError> {
        let Exporter { mut destination, records, encoder, .. } = self;
        match encoder.format {
            ExportFormat::Coco => {
                destination.write(format!("\n],\"images\":[{records}\n]}}\n").as_bytes())?;
                destination.end()?;
            }
            ExportFormat::LabelStudio => {
                destination.write(b"\n]\n")?;
                destination.end()?;
            }
            ExportFormat::Cvat => destination.file(cvat::LIST, records.as_bytes())?,
            ExportFormat::Voc => destination.file(voc::LIST, records.as_bytes())?,
            _ => {}
        }
        Ok(destination)
    }
}

fn png(mask: &LabelMap) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_label_png(&mut bytes, mask)
        .expect("memory takes all bytes, and label maps have sizes that PNG has");
    bytes
}
