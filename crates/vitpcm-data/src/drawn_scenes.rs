//! Drawn scenes: textured shapes on textured backgrounds, with tags and exact masks. `vitpcm demo` and the tests use
//! this synthetic data set; a seed gives the same images on every machine.

use crate::random::Random;
use crate::{DataError, Tags};
use image::{ImageFormat, RgbImage};
use std::io::{Cursor, ErrorKind, Write};
use std::path::Path;
use vitpcm_masks::{Classes, LabelMap, atomic_file, encode_label_png};

/// Appearance of a class: its own range of hues and its own pattern. Size, rotation, shade and pattern scale vary, and
/// the hues overlap with the background's.
struct Look {
    name: &'static str,
    hue: f32,
    pattern: Pattern,
    /// Whether a point is inside a shape of radius 1.
    inside: fn(f32, f32) -> bool,
}

#[derive(Clone, Copy)]
enum Pattern {
    Stripes,
    Dots,
    Checks,
    Speckles,
}

const LOOKS: [Look; 4] = [
    Look { name: "disc", hue: 0.02, pattern: Pattern::Dots, inside: |x, y| x * x + y * y < 1.0 },
    Look { name: "square", hue: 0.60, pattern: Pattern::Stripes, inside: |x, y| x.abs().max(y.abs()) < 0.85 },
    Look {
        name: "triangle",
        hue: 0.33,
        pattern: Pattern::Checks,
        inside: |x, y| y < 0.6 && 1.732 * x.abs() - y < 1.1,
    },
    Look {
        name: "cross",
        hue: 0.83,
        pattern: Pattern::Speckles,
        inside: |x, y| x.abs().min(y.abs()) < 0.38 && x.abs().max(y.abs()) < 1.0,
    },
];

const DISC: usize = 0;
const TRIANGLE: usize = 2;
const CROSS: usize = 3;

/// Fractions of scenes: negatives, and crosses that accompany a triangle.
const NEGATIVE_SHARE: f32 = 0.06;
const CROSS_WITH_TRIANGLE: f32 = 0.5;

/// A class with fewer visible pixels per thousand would make its tag wrong.
const MIN_VISIBLE_PER_MILLE: usize = 12;

/// A source of scenes, each determined by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrawnScenes {
    /// The seed.
    pub seed: u64,
    /// Side in pixels.
    pub side: usize,
}

/// An image with its mask and tags.
#[derive(Clone, Debug)]
pub struct Scene {
    /// The picture.
    pub image: RgbImage,
    /// The class of every pixel.
    pub mask: LabelMap,
    /// The classes in the picture.
    pub tags: Tags,
}

impl DrawnScenes {
    /// The classes of all drawn scenes.
    pub fn classes() -> Classes {
        Classes::from_names(LOOKS.map(|look| look.name)).expect("the names are distinct")
    }

    /// Scene number `index`.
    pub fn scene(&self, index: u64) -> Scene {
        // A draw in which one object hides another is rejected; the scene's next draw is used.
        (0..)
            .find_map(|attempt| self.draw(&mut Random::new(&[self.seed, index, attempt])))
            .expect("draws go on")
    }

    fn draw(&self, random: &mut Random) -> Option<Scene> {
        let side = self.side;
        let mut pixels = ground(side, random);
        let mut labels = vec![0u8; side * side];
        let things = draw_things(random);
        for &thing in &things {
            paint(thing, side, &mut pixels, &mut labels, random);
        }
        let noise = random.range(2.0, 9.0);
        let bytes =
            pixels.iter().map(|value| (value + noise * (random.unit() - 0.5)).clamp(0.0, 255.0) as u8);
        let bytes = bytes.collect();

        let mask = LabelMap::new(side, side, labels).expect("one label a pixel");
        let visible = mask.histogram();
        let is_hidden =
            |thing: &usize| (visible[thing + 1] as usize) * 1000 < MIN_VISIBLE_PER_MILLE * side * side;
        if things.iter().any(is_hidden) {
            return None;
        }
        let image = RgbImage::from_raw(side as u32, side as u32, bytes).expect("three bytes a pixel");
        Some(Scene { image, mask, tags: things.iter().map(|&thing| thing as u8 + 1).collect() })
    }

    /// Writes `num_train` and `num_val` scenes as a data set: `images/`, `masks/`, `tags.csv` and `classes.txt`. Fails
    /// without writing if an existing file differs.
    pub fn write(&self, folder: &Path, num_train: usize, num_val: usize) -> Result<(), DataError> {
        if folder.exists() {
            self.for_each_file(num_train, num_val, |name, bytes| {
                let path = folder.join(name);
                match std::fs::read(&path) {
                    Ok(found) if found != bytes => Err(DataError::InTheWay { path }),
                    Err(error) if error.kind() != ErrorKind::NotFound => Err(DataError::io(path, error)),
                    _ => Ok(()),
                }
            })?;
        }
        for name in ["images", "masks"] {
            let path = folder.join(name);
            std::fs::create_dir_all(&path).map_err(|e| DataError::io(path, e))?;
        }
        self.for_each_file(num_train, num_val, |name, bytes| {
            let path = folder.join(name);
            atomic_file::write(&path, |file| file.write_all(bytes)).map_err(|e| DataError::io(path, e))
        })
    }

    /// Names and contents of a data set's files.
    fn for_each_file(
        &self,
        num_train: usize,
        num_val: usize,
        mut take: impl FnMut(&str, &[u8]) -> Result<(), DataError>,
    ) -> Result<(), DataError> {
        let classes = Self::classes();
        let mut table = String::from("image,tags,split\n");
        for index in 0..num_train + num_val {
            let scene = self.scene(index as u64);
            let name = format!("scene-{index:04}");
            let (mut image, mut mask) = (Cursor::new(Vec::new()), Vec::new());
            scene.image.write_to(&mut image, ImageFormat::Png).expect("memory takes all bytes");
            encode_label_png(&mut mask, &scene.mask).expect("memory takes all bytes");
            take(&format!("images/{name}.png"), image.get_ref())?;
            take(&format!("masks/{name}.png"), &mask)?;
            let tags: Vec<&str> =
                scene.tags.iter().filter_map(|tag| classes.name(usize::from(tag))).collect();
            let split = if index < num_train { "train" } else { "val" };
            table += &format!("{name}.png,{},{split}\n", tags.join(";"));
        }
        // Mask indices are positions in this list; without it, names would be sorted alphabetically.
        let class_list = classes.names()[1..].join("\n") + "\n";
        take("classes.txt", class_list.as_bytes())?;
        take("tags.csv", table.as_bytes())
    }
}

/// The objects of one scene, back to front: none, or one to three, some of which tend to occur together.
fn draw_things(random: &mut Random) -> Vec<usize> {
    if random.chance(NEGATIVE_SHARE) {
        return Vec::new();
    }
    // Crosses are drawn less often on their own, because triangles bring them along.
    let mut things = vec![random.below(LOOKS.len())];
    if things[0] == CROSS && random.chance(0.5) {
        things[0] = DISC;
    }
    if random.chance(0.4) {
        things.push(random.below(LOOKS.len()));
    }
    if things.contains(&TRIANGLE) && random.chance(CROSS_WITH_TRIANGLE) {
        things.push(CROSS);
    }
    things.sort_unstable();
    things.dedup();
    let order = random.permutation(things.len());
    order.into_iter().map(|i| things[i]).collect()
}

/// A muted background: two shades mixed by smooth noise, interleaved red, green, blue of 0..=255.
fn ground(side: usize, random: &mut Random) -> Vec<f32> {
    let hue = random.unit();
    let shade = |random: &mut Random| {
        let (saturation, value) = (random.range(0.05, 0.35), random.range(0.25, 0.8));
        (saturation, value)
    };
    let dark = colour(hue, shade(random));
    let light = colour(hue + random.range(-0.1, 0.1), shade(random));
    let coarse = smooth_noise(side, 5, random);
    let fine = smooth_noise(side, 19, random);
    let mix = coarse.iter().zip(&fine).map(|(coarse, fine)| 0.7 * coarse + 0.3 * fine);
    mix.flat_map(|t| [0, 1, 2].map(|c| dark[c] + t * (light[c] - dark[c]))).collect()
}

/// Noise of 0..=1: interpolated random values on a lattice of `cells` per side.
fn smooth_noise(side: usize, cells: usize, random: &mut Random) -> Vec<f32> {
    let lattice: Vec<f32> = (0..cells * cells).map(|_| random.unit()).collect();
    let alignment = vitpcm_masks::resampling::Alignment::AlignCorners;
    vitpcm_masks::resampling::resize_plane(&lattice, (cells, cells), (side, side), alignment)
}

fn paint(thing: usize, side: usize, pixels: &mut [f32], labels: &mut [u8], random: &mut Random) {
    let look = &LOOKS[thing];
    let scale = side as f32;
    let radius = scale * random.range(0.13, 0.27);
    let centre = [random.range(0.15, 0.85) * scale, random.range(0.15, 0.85) * scale];
    let (sin, cos) = random.range(0.0, std::f32::consts::TAU).sin_cos();
    let hue = look.hue + random.range(-0.06, 0.06);
    let light = colour(hue, (random.range(0.45, 0.9), random.range(0.65, 1.0)));
    let dark = colour(hue + random.range(-0.04, 0.04), (random.range(0.5, 0.9), random.range(0.3, 0.6)));
    let period = scale * random.range(0.05, 0.08);
    let speckles = smooth_noise(side, 30, random);
    for y in 0..side {
        for x in 0..side {
            let (dx, dy) = (x as f32 + 0.5 - centre[0], y as f32 + 0.5 - centre[1]);
            let (u, v) = (cos * dx + sin * dy, cos * dy - sin * dx);
            if !(look.inside)(u / radius, v / radius) {
                continue;
            }
            let phase = |t: f32| (t / period).rem_euclid(1.0);
            let is_light = match look.pattern {
                Pattern::Stripes => phase(u) < 0.5,
                Pattern::Dots => (phase(u) - 0.5).hypot(phase(v) - 0.5) > 0.3,
                Pattern::Checks => (phase(u / 1.4) < 0.5) == (phase(v / 1.4) < 0.5),
                Pattern::Speckles => speckles[y * side + x] > 0.5,
            };
            let i = y * side + x;
            pixels[3 * i..3 * i + 3].copy_from_slice(if is_light { &light } else { &dark });
            labels[i] = thing as u8 + 1;
        }
    }
}

/// Red, green, blue of 0..=255 from a hue (a full turn is 1), a saturation and a value.
fn colour(hue: f32, (saturation, value): (f32, f32)) -> [f32; 3] {
    [5.0, 3.0, 1.0].map(|offset: f32| {
        let position = (offset + 6.0 * hue).rem_euclid(6.0);
        255.0 * value * (1.0 - saturation * position.min(4.0 - position).clamp(0.0, 1.0))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCENES: DrawnScenes = DrawnScenes { seed: 1, side: 48 };

    #[test]
    fn a_scene_depends_on_its_seed_and_number_alone() {
        assert_eq!(SCENES.scene(3).image, SCENES.scene(3).image);
        assert_ne!(SCENES.scene(3).image, SCENES.scene(4).image);
        assert_ne!(SCENES.scene(3).image, DrawnScenes { seed: 2, ..SCENES }.scene(3).image);
    }

    #[test]
    fn tags_say_exactly_what_the_mask_shows() {
        for index in 0..200 {
            let scene = SCENES.scene(index);
            let shown: Tags = scene.mask.labels().iter().copied().collect();
            assert_eq!(shown, scene.tags, "scene {index}");
        }
    }

    #[test]
    fn a_written_data_set_is_read_back_with_masks_that_fit_its_tags() {
        let folder = tempfile::tempdir().unwrap();
        SCENES.write(folder.path(), 6, 2).unwrap();
        let dataset = crate::Dataset::open(folder.path(), &crate::OpenOptions::default()).unwrap();
        assert_eq!(dataset.classes(), &DrawnScenes::classes());
        assert_eq!((dataset.training().indices.len(), dataset.validation().unwrap().indices.len()), (6, 2));
        for (index, image) in dataset.images().iter().enumerate() {
            let shown: Tags = dataset
                .truth(index)
                .unwrap()
                .read(dataset.classes(), &crate::ImageLimits::default())
                .unwrap()
                .into_labels()
                .into_iter()
                .collect();
            assert_eq!(shown, image.tags, "{}", image.name);
        }
    }

    #[test]
    fn every_class_occurs_and_some_scenes_have_several_or_none() {
        let tags: Vec<Tags> = (0..400).map(|index| SCENES.scene(index).tags).collect();
        let count = |f: &dyn Fn(&Tags) -> bool| tags.iter().filter(|tags| f(tags)).count();
        for class in 1..=4 {
            assert!(count(&|tags| tags.contains(class)) > 60, "class {class}");
        }
        assert!(count(&|tags| tags.len() >= 2) > 100);
        assert!((8..60).contains(&count(&Tags::is_empty)));
        let with_triangle = count(&|tags| tags.contains(3));
        assert!(count(&|tags| tags.contains(3) && tags.contains(4)) * 5 > with_triangle * 2);
    }
}
