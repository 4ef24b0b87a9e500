//! `--weights` of `train` and `verify` as a user runs them: what a network starts from when nothing is said, when a model of
//! ours is named, and when nothing is wanted; and where the run says so.

mod program;
mod untrained;

use program::run;
use std::path::Path;
use vitpcm::{Device, Model, embedded_model};
use vitpcm_data::DrawnScenes;
use vitpcm_masks::Classes;
use vitpcm_nets::{Parameters, PretrainedBackbone};

/// One epoch on small images. It is the warm-up's: the backbone stays as it started.
const SMALL: &str = "train --data data --device=cpu --epochs=1 --batch=4 --set=model.grid=4 --set=model.inference_grid=4 \
                     --set=validation.grid=4 --set=model.lstm_units=8";

fn folder_with_scenes() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    DrawnScenes { seed: 3, side: 48 }.write(&folder.path().join("data"), 6, 2).unwrap();
    folder
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}

/// Whether a network's backbone is another's to the bit.
fn has_backbone(network: &Parameters, backbone: &PretrainedBackbone) -> bool {
    let values =
        |of: &Parameters, name: &str| of.get(name).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
    backbone.parameters.iter().all(|(name, _)| values(network, name) == values(&backbone.parameters, name))
}

#[track_caller]
fn check_backbone(model: &Path, backbone: &PretrainedBackbone) {
    let model = Model::load(model, &Device::Cpu).unwrap();
    assert_eq!(model.info.network.backbone, backbone.config);
    assert_eq!(model.info.normalisation, backbone.normalisation);
    assert!(has_backbone(&model.parameters, backbone));
}

#[test]
fn training_starts_from_the_embedded_backbone_and_says_so() {
    let folder = folder_with_scenes();
    let root = folder.path();
    let embedded = PretrainedBackbone::of_model(&embedded_model(&Device::Cpu).unwrap()).unwrap();
    let said = run(root, &format!("{SMALL} --out run"), 0);
    assert!(said.contains("starts from the embedded DINOv2 ViT-S/14 (learned on VOC tags)"), "{said}");
    check_backbone(&root.join("run/model.safetensors"), &embedded);
    let inspected = run(root, "model inspect run/model.safetensors", 0);
    assert!(inspected.contains("embedded (voc20)"), "{inspected}");
    let config = read(&root.join("run/config.toml"));
    for line in ["weights = \"embedded\"", "backbone = \"dinov2-s14-reg\""] {
        assert!(config.contains(line), "{config}");
    }
    assert!(read(&root.join("run/report.html")).contains("started from the embedded weights"));

    run(root, &format!("{SMALL} --weights embedded --backbone dinov2-s14-reg --out named"), 0);
    let model = |run: &str| std::fs::read(root.join(run).join("model.safetensors")).unwrap();
    assert!(model("run") == model("named"));
}

#[test]
fn training_starts_from_a_model_of_ours_and_resumes_without_it() {
    let folder = folder_with_scenes();
    let root = folder.path();
    untrained::write(&root.join("f32.safetensors"), &Classes::voc(), 5);
    for storage in ["f16", "i8"] {
        run(root, &format!("model convert f32.safetensors --store {storage} --out {storage}.safetensors"), 0);
    }
    for storage in ["f32", "f16", "i8"] {
        let weights = root.join(format!("{storage}.safetensors"));
        let source = PretrainedBackbone::import(&weights, None, &Device::Cpu).unwrap();
        let said = run(root, &format!("{SMALL} --weights {storage}.safetensors --out {storage}"), 0);
        assert!(said.contains(&format!("starts from the vit-nano16 of {storage}.safetensors")), "{said}");
        let model = root.join(storage).join("model.safetensors");
        check_backbone(&model, &source);
        let inspected = run(root, &format!("model inspect {storage}/model.safetensors"), 0);
        assert!(inspected.contains(&format!("weights         {storage}.safetensors")), "{inspected}");

        std::fs::remove_file(weights).unwrap();
        run(root, &format!("train --data data --out {storage} --resume --epochs=2 --quiet"), 0);
        let resumed = Model::load(&model, &Device::Cpu).unwrap();
        assert_eq!(resumed.info.provenance["weights"], format!("{storage}.safetensors"));
        assert!(
            read(&root.join(storage).join("config.toml")).contains(&format!("\"{storage}.safetensors\""))
        );
    }
}

#[test]
fn a_models_training_size_is_kept() {
    let folder = folder_with_scenes();
    let root = folder.path();
    run(root, &format!("{SMALL} --preset demo --out first"), 0);
    let small = "train --data data --device=cpu --epochs=1 --quiet --set=model.lstm_units=8";
    run(root, &format!("{small} --weights first/model.safetensors --out second"), 0);
    let [first, second] = ["first", "second"]
        .map(|run| Model::load(root.join(run).join("model.safetensors"), &Device::Cpu).unwrap().info);
    assert_eq!((first.train_size, second.train_size), (32, 32));
    // The default preset's 448 pixels after training at 384, in proportion and in whole patches of 8.
    assert_eq!(second.inference_size, 40);
}

#[test]
fn random_numbers_are_for_those_who_ask() {
    let folder = folder_with_scenes();
    let root = folder.path();
    let said = run(root, &format!("{SMALL} --weights none --backbone vit-nano16 --out run"), 0);
    assert!(said.contains("vit-nano16 starts from random weights"), "{said}");
    assert!(read(&root.join("run/config.toml")).contains("weights = \"none\""));
    let inspected = run(root, "model inspect run/model.safetensors", 0);
    assert!(inspected.contains("random numbers"), "{inspected}");
}

#[test]
fn weights_that_do_not_fit_are_refused_with_what_to_do() {
    let folder = folder_with_scenes();
    let root = folder.path();
    untrained::write(&root.join("mine.safetensors"), &Classes::voc(), 0);
    for (more, parts) in [
        ("--backbone vit-s16", ["--weights FILE", "--weights none"]),
        ("--weights embedded --backbone resnet50", ["dinov2-s14-reg", "resnet50"]),
        ("--backbone vit-x", ["unknown backbone", "vit-x"]),
        ("--weights mine.safetensors --backbone vit-s16", ["mine.safetensors", "expected vit-s16"]),
        ("--weights mine.safetensors --set model.backbone=vit-s16", ["vit-nano16", "--backbone"]),
        ("--weights mine.safetensors --set model.weights=none", ["model.weights", "--weights"]),
        ("--weights ./none", ["./none", "No such file"]),
        ("--weights data/tags.csv", ["data/tags.csv", ""]),
    ] {
        let said = run(root, &format!("{SMALL} --out out {more}"), 2);
        assert!(parts.iter().all(|part| said.contains(part)), "{more}: {said}");
        assert!(!root.join("out").exists(), "{more} left a folder");
    }
}

#[test]
fn a_resnet_goes_from_verification_to_training_and_back() {
    let folder = folder_with_scenes();
    let root = folder.path();
    std::fs::write(root.join("names.txt"), "disc\nsquare\ntriangle\ncross\n").unwrap();
    let verify = "verify --images data/images --masks data/masks --val-images data/images --val-truth data/masks \
                  --classes names.txt --device=cpu --batch=4 --steps=2 --scales=1 --set=crops.side=33";
    run(root, &format!("{verify} --backbone resnet-nano --out first"), 0);

    let pcm = "--set=model.conditioning=none --set=losses.et_target=none";
    let said = run(root, &format!("{SMALL} {pcm} --weights first/model.safetensors --out run"), 0);
    assert!(said.contains("starts from the resnet-nano of first/model.safetensors"), "{said}");
    let first = root.join("first/model.safetensors");
    let first = PretrainedBackbone::import(first, None, &Device::Cpu).unwrap();
    check_backbone(&root.join("run/model.safetensors"), &first);

    let said = run(root, &format!("{verify} --weights run/model.safetensors --out second"), 0);
    assert!(said.contains("resnet-nano (vitpcm model)"), "{said}");

    untrained::write(&root.join("vit.safetensors"), &Classes::voc(), 0);
    let said = run(root, &format!("{verify} --weights vit.safetensors --out third"), 2);
    assert!(said.contains("vit.safetensors") && said.contains("expected those of a ResNet"), "{said}");
}
