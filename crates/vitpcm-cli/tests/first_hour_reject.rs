//! Things of no known class get no tag: `model fit-tags` fits the tag head, `model check-tags` measures predicted tags, and masks
//! with given tags stay the same.

mod program;
mod untrained;

use program::run;
use std::fs;
use std::path::Path;
use vitpcm_data::DrawnScenes;

/// Drawn scenes, photographs of other things (noise) and a network that knows nothing yet.
fn stage() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    DrawnScenes { seed: 2, side: 48 }.write(&folder.path().join("data"), 12, 2).unwrap();
    fs::create_dir(folder.path().join("others")).unwrap();
    for index in 0..12u32 {
        let noise = image::RgbImage::from_fn(48, 48, |x, y| {
            let value = x.wrapping_mul(2_654_435_761).wrapping_add(y * 40_503 + index * 977) >> 7;
            image::Rgb([value as u8, (value >> 3) as u8, (value >> 5) as u8])
        });
        noise.save(folder.path().join(format!("others/{index}.png"))).unwrap();
    }
    untrained::write(&folder.path().join("m.safetensors"), &DrawnScenes::classes(), 0);
    folder
}

fn json(folder: &Path, name: &str) -> serde_json::Value {
    serde_json::from_slice(&fs::read(folder.join(name)).unwrap()).unwrap()
}

#[test]
fn a_tag_head_lowers_predicted_tags_and_leaves_masks_with_given_tags_alone() {
    let stage = stage();
    let folder = stage.path();
    run(folder, "model fit-tags --model=m.safetensors --data=data --others others --out=h.safetensors", 0);
    let said = run(folder, "model inspect h.safetensors", 0);
    assert!(said.contains("checked by a tag head"), "{said}");
    assert!(said.contains("fitted on 14 tagged images and 12 of other things"), "{said}");
    for model in ["m", "h"] {
        let segment = format!("segment data/images --model={model}.safetensors --size=64");
        run(folder, &format!("{segment} --tags-file=data/tags.csv --out=given-{model}"), 0);
        run(folder, &format!("{segment} --tag-threshold=0 --out=found-{model} --json={model}.json"), 0);
    }
    let mut num_masks = 0;
    for entry in fs::read_dir(folder.join("given-m")).unwrap().flatten() {
        if entry.path().extension().is_some_and(|extension| extension == "png") {
            let same = fs::read(folder.join("given-h").join(entry.file_name())).unwrap();
            assert_eq!(fs::read(entry.path()).unwrap(), same, "{:?}", entry.file_name());
            num_masks += 1;
        }
    }
    assert_eq!(num_masks, 14);
    let probabilities = |name: &str| -> Vec<f64> {
        let images = json(folder, name);
        let of_image = |image: &serde_json::Value| image["probabilities"].as_array().unwrap().clone();
        images.as_array().unwrap().iter().flat_map(of_image).map(|value| value.as_f64().unwrap()).collect()
    };
    let (pooled, checked) = (probabilities("m.json"), probabilities("h.json"));
    assert_eq!(pooled.len(), checked.len());
    assert!(pooled.iter().zip(&checked).all(|(pooled, checked)| *checked <= pooled + 1e-6));
    assert!(pooled.iter().zip(&checked).any(|(pooled, checked)| *checked < pooled - 1e-3));
}

#[test]
fn predicted_tags_are_measured_on_tagged_images_and_on_others() {
    let stage = stage();
    let folder = stage.path();
    let check = "model check-tags --model=m.safetensors --data=data --others others";
    let said = run(folder, &format!("{check} --json=figures.json"), 0);
    assert!(said.contains("tag F1") && said.contains("with a false tag"), "{said}");
    let figures = json(folder, "figures.json");
    assert_eq!((figures["tagged_images"].as_u64(), figures["other_images"].as_u64()), (Some(14), Some(12)));
    // Every class everywhere: all tags are found, and every other image has a false one.
    run(folder, &format!("{check} --tag-threshold=0 --json=figures.json"), 0);
    let figures = json(folder, "figures.json");
    assert_eq!(figures["recall"].as_f64(), Some(100.0));
    assert_eq!(figures["other_images_with_a_tag"].as_u64(), Some(12));
    fs::write(folder.join("others/broken.png"), b"no image").unwrap();
    let said = run(folder, check, 1);
    assert!(said.contains("broken.png"), "{said}");
}

#[test]
fn a_tag_head_without_anything_to_reject_is_refused() {
    let stage = stage();
    let folder = stage.path();
    let said = run(folder, "model fit-tags --model=m.safetensors --data=data --out=h.safetensors", 2);
    assert!(said.contains("--others") && !folder.join("h.safetensors").exists(), "{said}");
    let said = run(folder, "model check-tags --data=data", 2);
    assert!(said.contains("the model does not know"), "{said}");
}
