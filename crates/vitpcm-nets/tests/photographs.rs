//! Real weights on real photographs: import, normalisation and network together name what is in the picture.

mod formula;

use candle_core::{Device, Tensor};
use fast_image_resize::images::Image;
use fast_image_resize::{FilterType, PixelType, ResizeAlg, ResizeOptions, Resizer};
use formula::{reference, shared};
use vitpcm_nets::{Mode, Normalisation, Vit, import_backbone};

const SIDE: u32 = 224;

/// A photograph at the network's size (bicubic, antialiased, aspect not kept), normalised.
fn network_input(photograph: &str) -> Tensor {
    let rgb = image::open(reference(&format!("photos/{photograph}"))).unwrap().into_rgb8();
    let (width, height) = rgb.dimensions();
    let source = Image::from_vec_u8(width, height, rgb.into_raw(), PixelType::U8x3).unwrap();
    let mut resized = Image::new(SIDE, SIDE, PixelType::U8x3);
    let bicubic = ResizeOptions::new().resize_alg(ResizeAlg::Convolution(FilterType::CatmullRom));
    Resizer::new().resize(&source, &mut resized, &bicubic).unwrap();
    let values = Normalisation::HALF.network_input_from_rgb(resized.buffer());
    Tensor::from_vec(values, (1, 3, SIDE as usize, SIDE as usize), &Device::Cpu).unwrap()
}

#[test]
fn the_imagenet_vit_names_what_is_in_the_photographs() {
    let Some(path) = shared("weights/vit-tiny-patch16-224-imagenet.safetensors") else { return };
    let imported = import_backbone(path, None, &Device::Cpu).unwrap();
    assert_eq!(imported.summary.variant, "vit-ti16");
    assert_eq!(imported.summary.config.position_grid, 14);
    assert_eq!(imported.summary.likely_normalisation, Normalisation::HALF);
    let head = imported.head.unwrap();
    assert_eq!(head.num_classes().unwrap(), 1000);
    let vit = Vit::new(&imported.summary.config, &imported.parameters).unwrap();

    // Class indices of ImageNet-1k.
    for (photograph, class, index) in
        [("chelsea.jpg", "Egyptian cat", 285), ("coffee.jpg", "espresso", 967), ("camera.jpg", "tripod", 872)]
    {
        let tokens = vit.forward(&network_input(photograph), &mut Mode::Inference).unwrap();
        let logits = head.forward(&vit.class_feature(&tokens).unwrap()).unwrap();
        let top = logits.squeeze(0).unwrap().argmax(0).unwrap().to_scalar::<u32>().unwrap();
        assert_eq!(top, index, "{photograph} shows class {index} ({class})");
    }
}
