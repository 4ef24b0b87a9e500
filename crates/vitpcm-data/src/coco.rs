//! COCO: `instances_*.json` files with images, categories and objects. Sparse category ids become classes 1, 2, … in id
//! order; each file is a split. The polygons of the full train file take about a third of the file's size in memory.

use crate::file_index::{FileIndex, IMAGES, Unresolved};
use crate::listing::{ClassNames, Entry, Listing, MaskCoverage};
use crate::tag_rows::problem_of_unresolved;
use crate::{CocoTruth, DataError, MaskSource, Problem, ProblemKind, ReadingNote, annotation_file, split};
use serde::de::{self, Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use vitpcm_masks::MaskError;
use vitpcm_masks::coco_rle::Rle;

#[derive(serde::Deserialize)]
struct InstanceFile {
    images: Vec<Image>,
    #[serde(default)]
    annotations: Vec<Annotation>,
    #[serde(default)]
    categories: Vec<Category>,
}

#[derive(serde::Deserialize)]
struct Image {
    id: i64,
    file_name: String,
    #[serde(default)]
    width: usize,
    #[serde(default)]
    height: usize,
}

#[derive(serde::Deserialize)]
struct Annotation {
    image_id: i64,
    category_id: i64,
    #[serde(default)]
    segmentation: Shape,
}

#[derive(serde::Deserialize)]
struct Category {
    id: i64,
    name: String,
}

/// One annotated object of an image.
#[derive(Clone, Debug)]
pub(crate) struct CocoObject {
    /// Index in the list of category names.
    pub(crate) category: usize,
    pub(crate) shape: Shape,
}

/// An object's segmentation.
#[derive(Clone, Debug, Default)]
pub(crate) enum Shape {
    /// A box only, or an empty list.
    #[default]
    None,
    Polygons(Box<[Polygon]>),
    /// Run lengths; `size` is height and width.
    Counts {
        size: (usize, usize),
        counts: Box<[u32]>,
    },
    Compressed {
        size: (usize, usize),
        counts: Box<str>,
    },
}

/// Coordinates x0, y0, x1, y1, … of one outline.
#[derive(Clone, Debug)]
pub(crate) enum Polygon {
    /// In hundredths of a pixel: COCO writes two decimals, and an integer divided by 100 is the double nearest to the
    /// decimal number.
    Hundredths(Box<[u16]>),
    Exact(Box<[f64]>),
}

impl Shape {
    /// Gives `label` to the pixels of this object that are still background.
    pub(crate) fn paint(
        &self,
        width: usize,
        height: usize,
        label: u8,
        labels: &mut [u8],
    ) -> Result<(), MaskError> {
        let check_size = |size: (usize, usize)| {
            if size == (height, width) {
                return Ok(());
            }
            let found =
                format!("run lengths for {}×{} pixels, the image has {width}×{height}", size.1, size.0);
            Err(MaskError::BadCocoSegmentation(found))
        };
        let mut paint_one = |rle: Rle| {
            for at in rle.runs().flatten() {
                let pixel = &mut labels[at % height * width + at / height];
                if *pixel == 0 {
                    *pixel = label;
                }
            }
        };
        match self {
            Shape::None => {}
            // The union needs no bitmap: what one polygon has painted, the next leaves alone.
            Shape::Polygons(polygons) => {
                for polygon in polygons {
                    paint_one(Rle::from_polygon(width, height, &polygon.coordinates())?);
                }
            }
            Shape::Counts { size, counts } => {
                check_size(*size)?;
                paint_one(Rle::from_counts(width, height, counts.to_vec())?);
            }
            Shape::Compressed { size, counts } => {
                check_size(*size)?;
                paint_one(Rle::from_compressed(width, height, counts)?);
            }
        }
        Ok(())
    }
}

impl Polygon {
    fn new(coordinates: Vec<f64>) -> Self {
        let hundredths = |&value: &f64| {
            let scaled = (value * 100.0).round();
            let fits = (0.0..=65535.0).contains(&scaled) && scaled / 100.0 == value;
            fits.then_some(scaled as u16)
        };
        match coordinates.iter().map(hundredths).collect() {
            Some(packed) => Polygon::Hundredths(packed),
            None => Polygon::Exact(coordinates.into()),
        }
    }

    fn coordinates(&self) -> Cow<'_, [f64]> {
        match self {
            Polygon::Hundredths(packed) => packed.iter().map(|&value| f64::from(value) / 100.0).collect(),
            Polygon::Exact(values) => Cow::Borrowed(values),
        }
    }
}

impl<'de> Deserialize<'de> for Polygon {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Vec::deserialize(deserializer).map(Polygon::new)
    }
}

impl<'de> Deserialize<'de> for Shape {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ShapeVisitor)
    }
}

struct ShapeVisitor;

impl<'de> Visitor<'de> for ShapeVisitor {
    type Value = Shape;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of polygons, or run lengths with `size` and `counts`")
    }

    fn visit_unit<E>(self) -> Result<Shape, E> {
        Ok(Shape::None)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut polygons: A) -> Result<Shape, A::Error> {
        let mut all = Vec::new();
        while let Some(polygon) = polygons.next_element()? {
            all.push(polygon);
        }
        Ok(if all.is_empty() { Shape::None } else { Shape::Polygons(all.into()) })
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Shape, A::Error> {
        let (mut size, mut counts) = (None, None);
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "size" => size = Some(map.next_value()?),
                "counts" => counts = Some(map.next_value()?),
                _ => _ = map.next_value::<IgnoredAny>()?,
            }
        }
        let size = size.ok_or_else(|| de::Error::missing_field("size"))?;
        match counts.ok_or_else(|| de::Error::missing_field("counts"))? {
            RunLengths::Counts(counts) => Ok(Shape::Counts { size, counts }),
            RunLengths::Compressed(counts) => Ok(Shape::Compressed { size, counts }),
        }
    }
}

#[derive(serde::Deserialize)]
#[serde(untagged)]
enum RunLengths {
    Counts(Box<[u32]>),
    Compressed(Box<str>),
}

/// Reads all instance files of a data set.
pub(crate) fn read(index: &FileIndex, files: &[PathBuf]) -> Listing {
    let mut problems = Vec::new();
    let mut parsed = Vec::new();
    for path in files {
        match parse(path) {
            Ok(file) => parsed.push((path, file)),
            Err(reason) => problems.push(Problem::new(ProblemKind::UnreadableAnnotation, path, reason)),
        }
    }
    let categories = Categories::of(parsed.iter().flat_map(|(_, file)| &file.categories));
    let mut entries: Vec<Entry> = Vec::new();
    let mut entry_of_image: HashMap<usize, usize> = HashMap::new();
    for (path, file) in parsed {
        let split = split_name(path);
        let folders = [format!("{IMAGES}/{split}"), split.clone(), IMAGES.to_string()];
        let folders = folders.each_ref().map(String::as_str);
        let holds_images =
            |folder: &String| index.images.iter().any(|image| image.relative.starts_with(folder));
        let own_folder = folders[..2].iter().map(|folder| format!("{folder}/")).find(holds_images);
        for truth in truths_of(path, file, &categories, &mut problems) {
            let found = index.resolve(&truth.file_name, &folders).and_then(|image| {
                // Splits may share file names: an image missing here must not be taken from another split.
                let is_foreign =
                    own_folder.as_ref().is_some_and(|own| !index.images[image].relative.starts_with(own));
                if is_foreign && !truth.file_name.contains('/') {
                    Err(Unresolved::Missing)
                } else {
                    Ok(image)
                }
            });
            let image = match found {
                Ok(image) => image,
                Err(why) => {
                    let place = format!("image {}", truth.image_id);
                    problems.push(problem_of_unresolved(index, path, &place, &truth.file_name, &why));
                    continue;
                }
            };
            let entry = truth.into_entry(index, image, path, split::tidy(&split), &categories);
            match entry_of_image.get(&image) {
                None => {
                    entry_of_image.insert(image, entries.len());
                    entries.push(entry);
                }
                Some(&earlier) => {
                    let first = &mut entries[earlier];
                    if first.splits.contains(&entry.splits[0]) {
                        let detail = "two images of one instance file have this file name";
                        problems.push(Problem::new(ProblemKind::DuplicateEntry, &entry.path, detail));
                    }
                    first.tags.extend(entry.tags);
                    first.splits.extend(entry.splits);
                }
            }
        }
    }
    let notes = unlisted(index, &entry_of_image);
    let class_names = ClassNames::Given(categories.names.to_vec());
    Listing { entries, class_names, mask_coverage: MaskCoverage::Whole, problems, notes }
}

/// The masks of one instance file, with or without its images.
#[derive(Debug)]
pub struct CocoMasks {
    /// Category names in id order.
    pub categories: Vec<String>,
    /// File name and mask of each image, in file order.
    pub images: Vec<(String, MaskSource)>,
    /// Annotations that refer to nothing.
    pub problems: Vec<Problem>,
}

/// Reads the masks of one instance file. An image without a size, or a file without segmentations, is an error.
pub fn read_coco_masks(path: &Path) -> Result<CocoMasks, DataError> {
    let bad = |reason: String| DataError::Image { path: path.to_path_buf(), reason };
    let file = parse(path).map_err(bad)?;
    let categories = Categories::of(file.categories.iter());
    let mut problems = Vec::new();
    let has_objects = !file.annotations.is_empty();
    let images = truths_of(path, file, &categories, &mut problems);
    if has_objects && !images.iter().any(|image| image.has_masks) {
        return Err(bad("its annotations are boxes only; expected polygons or run lengths".to_string()));
    }
    let truth = |image: ImageObjects| {
        let ImageObjects { file_name, width, height, objects, .. } = image;
        if width == 0 || height == 0 {
            return Err(bad(format!("image {file_name} has no width and height")));
        }
        let (image, categories) = (PathBuf::from(&file_name), categories.names.clone());
        Ok((file_name, MaskSource::Coco(CocoTruth { image, width, height, objects, categories })))
    };
    let images = images.into_iter().map(truth).collect::<Result<_, _>>()?;
    Ok(CocoMasks { categories: categories.names.to_vec(), images, problems })
}

fn parse(path: &Path) -> Result<InstanceFile, String> {
    let file = annotation_file::open(path).map_err(|e| e.to_string())?;
    serde_json::from_reader(BufReader::with_capacity(1 << 20, file))
        .map_err(|e| format!("not COCO instances: {e}"))
}

/// `train2014` of `instances_train2014.json`.
fn split_name(path: &Path) -> String {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    stem.strip_prefix("instances_").unwrap_or(&stem).to_string()
}

/// Category names in id order. Two ids with the same name are one class.
struct Categories {
    names: Arc<Vec<String>>,
    position_of_id: HashMap<i64, usize>,
}

impl Categories {
    fn of<'a>(categories: impl Iterator<Item = &'a Category>) -> Self {
        let by_id: BTreeMap<i64, &str> =
            categories.map(|category| (category.id, category.name.trim())).collect();
        let mut names: Vec<String> = Vec::new();
        let mut position_of_id = HashMap::new();
        for (id, name) in by_id {
            let known = names.iter().position(|other| other == name);
            let position = known.unwrap_or_else(|| {
                names.push(name.to_string());
                names.len() - 1
            });
            position_of_id.insert(id, position);
        }
        Categories { names: Arc::new(names), position_of_id }
    }
}

/// The objects of one image of one file.
struct ImageObjects {
    image_id: i64,
    file_name: String,
    width: usize,
    height: usize,
    objects: Vec<CocoObject>,
    has_masks: bool,
}

impl ImageObjects {
    fn into_entry(
        self,
        index: &FileIndex,
        image: usize,
        source: &Path,
        split: String,
        categories: &Categories,
    ) -> Entry {
        let names: HashSet<&String> = self.objects.iter().map(|o| &categories.names[o.category]).collect();
        let tags = names.into_iter().map(|name| name.as_str().into()).collect();
        let mut entry = Entry::of_indexed(index, image, source.into(), tags, vec![split.into()]);
        if self.has_masks && entry.truth.is_none() {
            entry.truth = Some(MaskSource::Coco(CocoTruth {
                image: entry.path.clone(),
                width: self.width,
                height: self.height,
                objects: self.objects,
                categories: categories.names.clone(),
            }));
        }
        entry
    }
}

/// Groups a file's annotations by image, in the order of its images.
fn truths_of(
    path: &Path,
    file: InstanceFile,
    categories: &Categories,
    problems: &mut Vec<Problem>,
) -> Vec<ImageObjects> {
    // If every object is only a box, there are no masks; otherwise an image without objects is all background.
    let has_masks = file.annotations.iter().any(|object| !matches!(object.segmentation, Shape::None));
    let mut images = Vec::with_capacity(file.images.len());
    let mut position_of: HashMap<i64, usize> = HashMap::with_capacity(file.images.len());
    for image in file.images {
        position_of.insert(image.id, images.len());
        let has_masks = has_masks && image.width > 0 && image.height > 0;
        let Image { id: image_id, file_name, width, height } = image;
        images.push(ImageObjects { image_id, file_name, width, height, objects: Vec::new(), has_masks });
    }
    for Annotation { image_id, category_id, segmentation } in file.annotations {
        let Some(&position) = position_of.get(&image_id) else {
            let detail = format!("an annotation belongs to image {image_id}, which the file does not list");
            problems.push(Problem::new(ProblemKind::TagWithoutImage, path, detail));
            continue;
        };
        let Some(&category) = categories.position_of_id.get(&category_id) else {
            let detail = format!("category {category_id} of image {image_id} is not among the categories");
            problems.push(Problem::new(ProblemKind::UnknownClass, path, detail));
            continue;
        };
        images[position].objects.push(CocoObject { category, shape: segmentation });
    }
    images
}

/// Images that no instance file lists, in folders with listed images.
fn unlisted(index: &FileIndex, entry_of_image: &HashMap<usize, usize>) -> Vec<ReadingNote> {
    let folder_of = |image: usize| index.images[image].path.parent();
    let folders: HashSet<Option<&Path>> = entry_of_image.keys().map(|&image| folder_of(image)).collect();
    let all = 0..index.images.len();
    let unlisted =
        all.filter(|image| !entry_of_image.contains_key(image) && folders.contains(&folder_of(*image)));
    let names: Vec<String> = unlisted.map(|image| index.images[image].relative.clone()).collect();
    let file = "the instance files".to_string();
    if names.is_empty() { Vec::new() } else { vec![ReadingNote::Unlisted { file, names }] }
}
