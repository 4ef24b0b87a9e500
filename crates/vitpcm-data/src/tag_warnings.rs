//! Warnings about what a data set's tags cannot teach: classes with too few examples or counterexamples, classes that
//! never occur apart, equal images with different tags, images too large for the network's input. Computed from image
//! descriptions; only [`describe_images`] reads files.

use crate::sentence::{counted, listed, listed_with};
use crate::spelling::{are_similar, folded};
use crate::{ImageLimits, TaggedImage, Tags, read_image_header, same_content};
use rayon::prelude::*;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use vitpcm_masks::Classes;

/// A class needs about this many images with it and as many without it. A rule of thumb.
const ENOUGH_IMAGES: usize = 15;
/// From this percentage on, messages say "always".
const NEARLY_ALWAYS_PERCENT: usize = 95;
/// With fewer images, co-occurrence by chance is too likely for a warning.
const LEAST_TOGETHER: usize = 5;
/// An image is coarse if its longer side is reduced by more than this: at 448 pixels input, full HD is and 1600 pixels
/// are not.
const COARSE_REDUCTION: usize = 4;
/// Names of classes that mean "nothing to find", folded; names with the word `healthy` count too.
const NOTHING_TO_FIND: [&str; 12] = [
    "normal", "ok", "good", "clean", "negative", "no disease", "no defect", "no defects", "defect free",
    "no damage", "undamaged", "intact",
];
/// Coarse images below this percentage of all need no warning.
const COARSE_PERCENT: usize = 10;

/// What the warnings need to know about an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageDescription<'a> {
    /// Name, for messages.
    pub name: &'a str,
    /// The classes in the image.
    pub tags: &'a Tags,
    /// Width and height in pixels, if known.
    pub size: Option<(u32, u32)>,
    /// Images with the same number have the same content; `None` if the content is unique.
    pub content: Option<usize>,
}

/// The network's square input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InputGrid {
    /// Patches per side.
    pub patches: usize,
    /// Side of a patch in pixels.
    pub patch: usize,
}

impl InputGrid {
    /// Side in pixels.
    pub fn side(self) -> usize {
        self.patches * self.patch
    }
}

/// The embedded model's input: 448 pixels in patches of 14.
impl Default for InputGrid {
    fn default() -> Self {
        InputGrid { patches: 32, patch: 14 }
    }
}

/// Something that a data set's tags cannot teach. `Display` says what, in numbers, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum TagWarning {
    /// No image has a tag.
    NoTags {
        /// Number of images.
        images: usize,
    },
    /// There is a single class and every image has it: nothing shows the background.
    OnlyClassEverywhere {
        /// Its name.
        class: String,
        /// Number of images.
        images: usize,
    },
    /// Classes in all but a few images.
    FewNegatives {
        /// The classes, most frequent first.
        classes: Vec<ClassImages>,
        /// Total number of images.
        of: usize,
    },
    /// Classes that only occur with another one.
    AlwaysTogether {
        /// The pairs.
        pairs: Vec<ClassPair>,
    },
    /// Classes with few images.
    FewImages {
        /// The classes, rarest first.
        classes: Vec<ClassImages>,
    },
    /// Listed classes without images, while others have some.
    UnusedClasses {
        /// Their names.
        classes: Vec<String>,
    },
    /// Classes whose names look like variants of one.
    SimilarNames {
        /// The pairs, rarer class first.
        pairs: Vec<[ClassImages; 2]>,
    },
    /// Classes that mean "nothing to find", such as `healthy`.
    NothingToFind {
        /// The classes.
        classes: Vec<ClassImages>,
    },
    /// All classes are numbers.
    NumberedClasses {
        /// The classes.
        classes: Vec<ClassImages>,
    },
    /// Images with the same content but different tags.
    ContradictoryDuplicates {
        /// The images of each group.
        groups: Vec<Vec<NamedTags>>,
    },
    /// Images that are reduced so much that objects become smaller than a patch.
    CoarseImages {
        /// Number of such images.
        images: usize,
        /// Number of images of known size.
        of: usize,
        /// Median of their longer sides, in pixels.
        longer_side: usize,
        /// Side of the network's input, in pixels.
        input_side: usize,
        /// Pixels of an image with that longer side that one patch covers, along that side.
        patch_covers: usize,
    },
}

/// Number of images with a class.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ClassImages {
    /// Its name.
    pub class: String,
    /// Images with it.
    pub images: usize,
}

/// A class that hardly ever occurs without another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ClassPair {
    /// The class.
    pub class: String,
    /// The other class.
    pub other: String,
    /// Images with the class.
    pub class_images: usize,
    /// Images with the other.
    pub other_images: usize,
    /// Images with both.
    pub together: usize,
}

/// An image and the names of its tags.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NamedTags {
    /// Name of the image.
    pub image: String,
    /// Names of its tags.
    pub tags: Vec<String>,
}

/// Reads what the warnings need: the headers of all images, and enough of their content to find duplicates.
pub fn describe_images<'a>(images: &'a [TaggedImage], limits: &ImageLimits) -> Vec<ImageDescription<'a>> {
    let size = |image: &TaggedImage| {
        read_image_header(&image.path, limits).ok().map(|header| (header.width, header.height))
    };
    let sizes: Vec<_> = images.par_iter().map(size).collect();
    let paths: Vec<_> = images.iter().map(|image| image.path.as_path()).collect();
    describe(images, &sizes, &same_content::groups(&paths))
}

/// Descriptions from known sizes and groups of equal content.
pub(crate) fn describe<'a>(
    images: &'a [TaggedImage],
    sizes: &[Option<(u32, u32)>],
    same_content: &[Vec<usize>],
) -> Vec<ImageDescription<'a>> {
    let described = images.iter().zip(sizes);
    let mut descriptions: Vec<_> = described
        .map(|(image, &size)| ImageDescription { name: &image.name, tags: &image.tags, size, content: None })
        .collect();
    for (content, group) in same_content.iter().enumerate() {
        group.iter().for_each(|&index| descriptions[index].content = Some(content));
    }
    descriptions
}

/// All warnings about the tags of these images, most serious first. Tags are indices into `classes`.
pub fn tag_warnings(classes: &Classes, images: &[ImageDescription<'_>], input: InputGrid) -> Vec<TagWarning> {
    if images.is_empty() {
        return Vec::new();
    }
    let counts = Counts::of(classes, images);
    let warnings = if counts.together.iter().flatten().all(|&count| count == 0) {
        vec![Some(TagWarning::NoTags { images: images.len() })]
    } else {
        vec![
            counts.similar_names(),
            counts.nothing_to_find(),
            counts.numbered_classes(),
            counts.few_negatives(),
            counts.always_together(),
            counts.few_images(),
            counts.unused_classes(),
            contradictory_duplicates(classes, images),
        ]
    };
    warnings.into_iter().chain([coarse_images(images, input)]).flatten().collect()
}

/// Number of images with both of two classes, by class index; the diagonal counts single classes.
struct Counts<'a> {
    classes: &'a Classes,
    num_images: usize,
    together: Vec<Vec<usize>>,
}

impl<'a> Counts<'a> {
    fn of(classes: &'a Classes, images: &[ImageDescription<'_>]) -> Self {
        let mut together = vec![vec![0; classes.len()]; classes.len()];
        for image in images {
            for a in image.tags.iter() {
                image.tags.iter().for_each(|b| together[usize::from(a)][usize::from(b)] += 1);
            }
        }
        Counts { classes, num_images: images.len(), together }
    }

    fn name(&self, class: usize) -> String {
        self.classes.names()[class].clone()
    }

    fn images_with(&self, class: usize) -> usize {
        self.together[class][class]
    }

    /// The classes whose number of images satisfies a condition, rarest first.
    fn classes_where(&self, is_such: impl Fn(usize) -> bool) -> Vec<ClassImages> {
        let indices = (1..self.classes.len()).filter(|&class| is_such(self.images_with(class)));
        let counted =
            indices.map(|class| ClassImages { class: self.name(class), images: self.images_with(class) });
        let mut classes: Vec<_> = counted.collect();
        classes.sort_by_key(|class| class.images);
        classes
    }

    fn few_negatives(&self) -> Option<TagWarning> {
        let of = self.num_images;
        let is_everywhere = |images: usize| {
            let negatives = of - images;
            // A class with few images as well is only named there.
            let hardly_missing = negatives < ENOUGH_IMAGES || is_nearly_all(images, of);
            negatives == 0 || images >= ENOUGH_IMAGES && hardly_missing
        };
        let mut classes = self.classes_where(is_everywhere);
        classes.reverse();
        match &classes[..] {
            [] => None,
            [only] if self.classes.num_foreground() == 1 && only.images == of => {
                Some(TagWarning::OnlyClassEverywhere { class: only.class.clone(), images: of })
            }
            _ => Some(TagWarning::FewNegatives { classes, of }),
        }
    }

    fn always_together(&self) -> Option<TagWarning> {
        let mut pairs = Vec::new();
        for a in 1..self.classes.len() {
            for b in a + 1..self.classes.len() {
                let (class, other) = if self.images_with(a) <= self.images_with(b) { (a, b) } else { (b, a) };
                let [class_images, other_images] = [class, other].map(|it| self.images_with(it));
                let together = self.together[a][b];
                // A class in nearly every image occurs with every class and has its own warning.
                if class_images >= LEAST_TOGETHER
                    && is_nearly_all(together, class_images)
                    && !is_nearly_all(other_images, self.num_images)
                {
                    let [class, other] = [class, other].map(|it| self.name(it));
                    pairs.push(ClassPair { class, other, class_images, other_images, together });
                }
            }
        }
        (!pairs.is_empty()).then_some(TagWarning::AlwaysTogether { pairs })
    }

    fn few_images(&self) -> Option<TagWarning> {
        let classes = self.classes_where(|images| (1..ENOUGH_IMAGES).contains(&images));
        (!classes.is_empty()).then_some(TagWarning::FewImages { classes })
    }

    fn similar_names(&self) -> Option<TagWarning> {
        let used = self.classes_where(|images| images > 0);
        let mut pairs = Vec::new();
        for (i, rarer) in used.iter().enumerate() {
            let similar = used[i + 1..].iter().filter(|other| are_similar(&rarer.class, &other.class));
            pairs.extend(similar.map(|other| [rarer.clone(), other.clone()]));
        }
        (!pairs.is_empty()).then_some(TagWarning::SimilarNames { pairs })
    }

    fn nothing_to_find(&self) -> Option<TagWarning> {
        let mut classes = self.classes_where(|images| images > 0);
        classes.retain(|it| {
            let name = folded(&it.class.replace(['-', '_'], " "));
            NOTHING_TO_FIND.contains(&name.as_str()) || name.split(' ').any(|word| word == "healthy")
        });
        (!classes.is_empty()).then_some(TagWarning::NothingToFind { classes })
    }

    fn numbered_classes(&self) -> Option<TagWarning> {
        let classes = self.classes_where(|images| images > 0);
        let are_numbers = classes.iter().all(|it| it.class.parse::<f64>().is_ok());
        are_numbers.then_some(TagWarning::NumberedClasses { classes })
    }

    fn unused_classes(&self) -> Option<TagWarning> {
        let unused = self.classes_where(|images| images == 0);
        let classes: Vec<String> = unused.into_iter().map(|class| class.class).collect();
        (!classes.is_empty()).then_some(TagWarning::UnusedClasses { classes })
    }
}

fn is_nearly_all(part: usize, whole: usize) -> bool {
    part * 100 >= whole * NEARLY_ALWAYS_PERCENT
}

fn contradictory_duplicates(classes: &Classes, images: &[ImageDescription<'_>]) -> Option<TagWarning> {
    let mut by_content: BTreeMap<usize, Vec<&ImageDescription<'_>>> = BTreeMap::new();
    for image in images {
        if let Some(content) = image.content {
            by_content.entry(content).or_default().push(image);
        }
    }
    let named = |image: &&ImageDescription<'_>| NamedTags {
        image: image.name.to_string(),
        tags: image.tags.iter().map(|tag| classes.names()[usize::from(tag)].clone()).collect(),
    };
    let contradict = |group: &Vec<&ImageDescription<'_>>| group.iter().any(|it| it.tags != group[0].tags);
    let contradictory = by_content.into_values().filter(contradict);
    let mut groups: Vec<Vec<NamedTags>> =
        contradictory.map(|group| group.iter().map(named).collect()).collect();
    groups.sort_by(|a, b| a[0].image.cmp(&b[0].image));
    (!groups.is_empty()).then_some(TagWarning::ContradictoryDuplicates { groups })
}

fn coarse_images(images: &[ImageDescription<'_>], input: InputGrid) -> Option<TagWarning> {
    let sizes = images.iter().filter_map(|image| image.size);
    let longer_sides: Vec<usize> = sizes.map(|(width, height)| width.max(height) as usize).collect();
    let of = longer_sides.len();
    let is_coarse = |side: &usize| *side > COARSE_REDUCTION * input.side();
    let mut coarse: Vec<usize> = longer_sides.into_iter().filter(is_coarse).collect();
    coarse.sort_unstable();
    if coarse.is_empty() || coarse.len() * 100 < of * COARSE_PERCENT {
        return None;
    }
    let longer_side = coarse[(coarse.len() - 1) / 2];
    Some(TagWarning::CoarseImages {
        images: coarse.len(),
        of,
        longer_side,
        input_side: input.side(),
        patch_covers: longer_side.div_ceil(input.patches),
    })
}

impl TagWarning {
    /// The finding, in numbers, and its consequence.
    pub fn finding(&self) -> String {
        match self {
            TagWarning::NoTags { images } => {
                format!("none of the {images} images has a tag: there is nothing to learn from")
            }
            TagWarning::OnlyClassEverywhere { class, images } => format!(
                "`{class}` is the only class, and it is in every image ({images} of {images}): nothing shows what \
                 is background"
            ),
            TagWarning::FewNegatives { classes, of } => {
                let classes =
                    listed(classes, |it| format!("`{}` is in {} of {of} images", it.class, it.images));
                format!("{classes}: too few images without it to learn what does not belong to it")
            }
            TagWarning::AlwaysTogether { pairs } => {
                let pair = |pair: &ClassPair| {
                    let ClassPair { class, other, class_images, together, .. } = pair;
                    format!("{together} of {class_images} images with `{class}` also have `{other}`")
                };
                format!("{}: too little tells them apart", listed(pairs, pair))
            }
            TagWarning::FewImages { classes } => {
                let classes =
                    listed(classes, |it| format!("`{}` has {}", it.class, counted(it.images, "image")));
                format!("{classes}: fewer than {ENOUGH_IMAGES} are seldom enough to learn a class")
            }
            TagWarning::UnusedClasses { classes } => {
                let names = listed(classes, |name| format!("`{name}`"));
                format!("no image has {names}: masks will not contain these classes")
            }
            TagWarning::SimilarNames { pairs } => {
                let counted = |it: &ClassImages| format!("`{}` ({})", it.class, counted(it.images, "image"));
                let pair =
                    |[rarer, other]: &[ClassImages; 2]| format!("{} and {}", counted(rarer), counted(other));
                format!("{}: two classes with nearly the same name", listed(pairs, pair))
            }
            TagWarning::NothingToFind { classes } => {
                let classes =
                    listed(classes, |it| format!("`{}` ({})", it.class, counted(it.images, "image")));
                format!(
                    "{classes}: as a class it gets a mask, although it means that there is nothing to find"
                )
            }
            TagWarning::NumberedClasses { classes } => {
                let classes =
                    listed(classes, |it| format!("`{}` ({})", it.class, counted(it.images, "image")));
                format!(
                    "{classes}: the classes are numbers, and each gets a mask, even one that means that there is \
                     nothing to find"
                )
            }
            TagWarning::ContradictoryDuplicates { groups } => {
                let image = |it: &NamedTags| {
                    let tags = if it.tags.is_empty() { "no tags".to_string() } else { it.tags.join(", ") };
                    format!("{} ({tags})", it.image)
                };
                let contents = listed(groups, |group| listed_with(group, image, " = "));
                format!(
                    "{} in the data set more than once, with different tags: {contents}",
                    if groups.len() == 1 {
                        "1 picture is".into()
                    } else {
                        format!("{} pictures are", groups.len())
                    }
                )
            }
            TagWarning::CoarseImages { images, of, longer_side, input_side, patch_covers } => format!(
                "{images} of {of} images are large (longer side: {longer_side} pixels, median) and are reduced to \
                 {input_side}: things smaller than about {patch_covers} pixels are smaller than one patch of the \
                 network and are likely to be missed"
            ),
        }
    }

    /// What to do about it.
    pub fn advice(&self) -> String {
        match self {
            TagWarning::NoTags { .. } => "name what is in each image".to_string(),
            TagWarning::OnlyClassEverywhere { .. } => {
                format!(
                    "add {ENOUGH_IMAGES} or more images of the same kind without it, and leave their tags empty"
                )
            }
            TagWarning::FewNegatives { .. } => format!(
                "add images without it ({ENOUGH_IMAGES} or more, and at least {} % of all), or drop a tag that is \
                 true of every image",
                100 - NEARLY_ALWAYS_PERCENT
            ),
            TagWarning::AlwaysTogether { .. } => {
                "add images that show one without the other, or make them one class".to_string()
            }
            TagWarning::FewImages { .. } => "add images with it, or leave the class out".to_string(),
            TagWarning::UnusedClasses { .. } => {
                "add images with them, or remove them from the class list".to_string()
            }
            TagWarning::SimilarNames { pairs } => {
                let pair = |[rarer, other]: &[ClassImages; 2]| format!("`{}` for `{}`", other.class, rarer.class);
                format!("if they are the same thing, write {}", listed(pairs, pair))
            }
            TagWarning::NothingToFind { .. } => {
                "leave the tags of these images empty (class folders: move the images out of theirs, beside the \
                 folders), so that they are negative examples; keep the class if you want a mask of it"
                    .to_string()
            }
            TagWarning::NumberedClasses { .. } => {
                "use class names, and leave the tags of images with nothing to find empty"
                    .to_string()
            }
            TagWarning::ContradictoryDuplicates { .. } => {
                "keep one image of each, with the right tags".to_string()
            }
            TagWarning::CoarseImages { .. } => {
                "if what you look for is that small, cut the images into tiles and \
                 tag each tile, or enlarge the network's input"
                    .to_string()
            }
        }
    }
}

impl fmt::Display for TagWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}. To do: {}.", self.finding(), self.advice())
    }
}
