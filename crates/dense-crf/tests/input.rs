//! Degenerate and wrong input gives a defined result or a clear error; results do not depend on threads or layout.

mod scene;

use dense_crf::{Compatibility, DenseCrf, Error, Kernel, Layout, Normalization, Params};
use scene::{Photo, smooth_scores};

const POTTS: Compatibility = Compatibility::Potts(3.0);
const SYMMETRIC: Normalization = Normalization::Symmetric;

fn probabilities(num_classes: usize, photo: &Photo, seed: u64) -> Vec<f32> {
    smooth_scores(num_classes, photo.height, photo.width, seed, 16).iter().map(|p| *p as f32).collect()
}

fn small() -> DenseCrf {
    DenseCrf::from_probabilities(4, 3, 2, &[0.5; 24], Layout::ClassMajor, 1e-5).unwrap()
}

#[test]
fn one_pixel_keeps_the_arg_max_of_its_unary() {
    let marginals =
        Params::default().refine(1, 1, &[10, 20, 30], 3, &[0.2, 0.7, 0.1], Layout::ClassMajor).unwrap();
    assert_eq!(marginals.arg_max(), [1]);
    assert!((marginals.at(0, 0).iter().sum::<f32>() - 1.0).abs() < 1e-6);
}

#[test]
fn one_class_has_probability_one_everywhere() {
    let photo = Photo::chelsea();
    let ones = vec![1.0; photo.width * photo.height];
    let marginals = Params::default()
        .refine(photo.width, photo.height, &photo.rgb, 1, &ones, Layout::PixelMajor)
        .unwrap();
    assert!(marginals.as_pixel_major().iter().all(|&p| p == 1.0));
}

#[test]
fn single_rows_and_columns_work() {
    for (width, height) in [(300, 1), (1, 300)] {
        let num_pixels = width * height;
        let rgb: Vec<u8> = (0..num_pixels * 3).map(|i| (i * 7 % 256) as u8).collect();
        let scores: Vec<f32> =
            (0..num_pixels).flat_map(|i| if i < num_pixels / 2 { [0.8, 0.2] } else { [0.3, 0.7] }).collect();
        let marginals =
            Params::default().refine(width, height, &rgb, 2, &scores, Layout::PixelMajor).unwrap();
        assert!(marginals.as_pixel_major().iter().all(|p| p.is_finite()));
        assert_eq!(marginals.arg_max()[0], 0);
        assert_eq!(marginals.arg_max()[num_pixels - 1], 1);
    }
}

#[test]
fn a_constant_image_is_smoothed_to_its_majority() {
    let (width, height) = (40, 30);
    let rgb = vec![128; width * height * 3];
    let mut scores: Vec<f32> = [0.7, 0.3].repeat(width * height);
    scores[2 * 500..2 * 500 + 2].copy_from_slice(&[0.4, 0.6]);
    let marginals = Params::default().refine(width, height, &rgb, 2, &scores, Layout::PixelMajor).unwrap();
    assert!(marginals.arg_max().iter().all(|&class| class == 0));
}

#[test]
fn a_huge_sigma_couples_all_pixels_alike() {
    let mut crf = small();
    crf.add_gaussian([1e30; 2], POTTS, SYMMETRIC).unwrap();
    crf.add_bilateral(&[7; 36], [1e30; 2], &[1e30; 3], POTTS, SYMMETRIC).unwrap();
    let marginals = crf.infer(5);
    assert!(marginals.as_pixel_major().iter().all(|&p| (p - 0.5).abs() < 1e-6));
}

#[test]
fn a_tiny_sigma_is_refused_with_the_reason() {
    let error = small().add_gaussian([1e-9; 2], POTTS, SYMMETRIC).map(|_| ()).unwrap_err();
    assert!(matches!(error, Error::FeatureRange { dimension: 2, .. }), "{error}");
    assert!(error.to_string().contains("raise sigma"), "{error}");
}

#[test]
fn sigmas_must_be_positive_and_finite() {
    for sigma in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        let gaussian = small().add_gaussian([1.0, sigma], POTTS, SYMMETRIC).map(|_| ());
        assert!(matches!(gaussian, Err(Error::NotPositive { what: "sigma_xy", .. })), "{sigma}");
        let bilateral =
            small().add_bilateral(&[0; 36], [1.0; 2], &[1.0, sigma, 1.0], POTTS, SYMMETRIC).map(|_| ());
        assert!(matches!(bilateral, Err(Error::NotPositive { what: "sigma_color", .. })), "{sigma}");
    }
}

#[test]
fn values_that_are_not_numbers_are_refused_and_named() {
    let mut scores = vec![0.5; 24];
    scores[5] = f32::NAN;
    let error =
        DenseCrf::from_probabilities(4, 3, 2, &scores, Layout::ClassMajor, 1e-5).map(|_| ()).unwrap_err();
    assert!(matches!(error, Error::NotFinite { what: "probabilities", index: 5, .. }), "{error}");
    let energies = DenseCrf::from_energies(4, 3, 2, &scores, Layout::ClassMajor).map(|_| ());
    assert!(matches!(energies, Err(Error::NotFinite { what: "energies", index: 5, .. })));
    let features = small().add_pairwise(&scores[..12], 1, &Kernel::Const, POTTS, SYMMETRIC).map(|_| ());
    assert!(matches!(features, Err(Error::NotFinite { what: "features", index: 5, .. })));
    let weight = small().add_gaussian([1.0; 2], Compatibility::Potts(f32::NAN), SYMMETRIC).map(|_| ());
    assert!(matches!(weight, Err(Error::NotFinite { what: "Potts weight", .. })));
}

#[test]
fn lengths_that_do_not_match_are_refused() {
    let length =
        |result: Result<(), Error>| assert!(matches!(result, Err(Error::Length { .. })), "{result:?}");
    length(DenseCrf::from_probabilities(4, 3, 2, &[0.5; 23], Layout::ClassMajor, 1e-5).map(|_| ()));
    length(small().add_bilateral(&[0; 35], [1.0; 2], &[1.0; 3], POTTS, SYMMETRIC).map(|_| ()));
    length(small().add_pairwise(&[0.0; 25], 2, &Kernel::Const, POTTS, SYMMETRIC).map(|_| ()));
    length(
        small().add_pairwise(&[0.0; 24], 2, &Kernel::Diagonal(vec![1.0; 3]), POTTS, SYMMETRIC).map(|_| ()),
    );
    length(small().add_pairwise(&[0.0; 24], 2, &Kernel::Full(vec![1.0; 2]), POTTS, SYMMETRIC).map(|_| ()));
    length(small().add_gaussian([1.0; 2], Compatibility::Diagonal(vec![1.0]), SYMMETRIC).map(|_| ()));
    length(small().add_gaussian([1.0; 2], Compatibility::Matrix(vec![1.0; 3]), SYMMETRIC).map(|_| ()));
}

#[test]
fn empty_and_oversized_shapes_are_refused() {
    for (width, height, num_classes) in [(0, 3, 2), (4, 0, 2), (4, 3, 0)] {
        let result = DenseCrf::from_energies(width, height, num_classes, &[], Layout::ClassMajor).map(|_| ());
        assert!(matches!(result, Err(Error::Empty { .. })));
    }
    let pixels = DenseCrf::from_energies(usize::MAX, 2, 1, &[], Layout::ClassMajor).map(|_| ());
    assert!(matches!(pixels, Err(Error::TooLarge { .. })));
    let features = small().add_pairwise(&[0.0; 192], 16, &Kernel::Const, POTTS, SYMMETRIC).map(|_| ());
    assert!(matches!(features, Err(Error::TooLarge { got: 16, limit: 15, .. })));
}

#[test]
fn infinite_energy_rules_a_class_out() {
    let infinity = f32::INFINITY;
    let energies = [1.0, infinity, 0.0, 2.0, 0.0, infinity];
    let mut crf = DenseCrf::from_energies(2, 1, 3, &energies, Layout::PixelMajor).unwrap();
    crf.add_gaussian([1.0; 2], POTTS, SYMMETRIC).unwrap();
    let marginals = crf.infer(10);
    assert_eq!(marginals.at(0, 0)[1], 0.0);
    assert_eq!(marginals.at(1, 0)[2], 0.0);
    let error = DenseCrf::from_energies(2, 1, 1, &[0.0, infinity], Layout::PixelMajor).map(|_| ());
    assert_eq!(error, Err(Error::NoPossibleClass { pixel: 1 }));
}

#[test]
fn absent_classes_are_dropped_and_get_zero_marginals() {
    let photo = Photo::chelsea();
    let num_pixels = photo.width * photo.height;
    let present = probabilities(3, &photo, 1);
    let mut all = vec![0.0; 21 * num_pixels];
    for (plane, class) in present.chunks_exact(num_pixels).zip([0, 7, 20]) {
        all[class * num_pixels..][..num_pixels].copy_from_slice(plane);
    }
    let params = Params::default();
    let (width, height) = (photo.width, photo.height);
    let crf = params.build(width, height, &photo.rgb, 21, &all, Layout::ClassMajor).unwrap();
    assert_eq!(crf.classes_present(), [0, 7, 20]);
    let small =
        params.refine(width, height, &photo.rgb, 3, &present, Layout::ClassMajor).unwrap().to_class_major();
    let large = crf.infer(params.iterations).to_class_major();
    for (class, plane) in large.chunks_exact(num_pixels).enumerate() {
        match [0, 7, 20].iter().position(|&c| c == class) {
            Some(i) => assert_eq!(plane, &small[i * num_pixels..][..num_pixels]),
            None => assert!(plane.iter().all(|&p| p == 0.0)),
        }
    }
    // Kept at the floor instead, absent classes would change the others' marginals by less than the parity asked for.
    let energies: Vec<f32> = all.iter().map(|p| -p.max(params.floor).ln()).collect();
    let mut kept = DenseCrf::from_energies(width, height, 21, &energies, Layout::ClassMajor).unwrap();
    kept.add_gaussian([1.0; 2], Compatibility::Potts(3.0), SYMMETRIC).unwrap();
    kept.add_bilateral(&photo.rgb, [67.0; 2], &[3.0; 3], Compatibility::Potts(4.0), SYMMETRIC).unwrap();
    let kept = kept.infer(params.iterations).to_class_major();
    let difference: f32 = kept.iter().zip(&large).map(|(a, b)| (a - b).abs()).sum();
    assert!(difference / (kept.len() as f32) < 1e-4);
}

#[test]
fn more_classes_than_have_code_of_their_own_work() {
    let photo = Photo::chelsea().crop(70, 40);
    let scores = probabilities(83, &photo, 3);
    let marginals = Params::default()
        .refine(photo.width, photo.height, &photo.rgb, 83, &scores, Layout::ClassMajor)
        .unwrap();
    for row in marginals.as_pixel_major().chunks_exact(83) {
        assert!((row.iter().sum::<f32>() - 1.0).abs() < 1e-5);
    }
}

#[test]
fn results_are_the_same_bit_for_bit_on_any_number_of_threads() {
    let photo = Photo::coffee();
    let scores = probabilities(5, &photo, 2);
    let run = |num_threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(num_threads).build().unwrap();
        pool.install(|| {
            Params::default()
                .refine(photo.width, photo.height, &photo.rgb, 5, &scores, Layout::ClassMajor)
                .unwrap()
        })
    };
    let one = run(1);
    assert_eq!(one, run(2));
    assert_eq!(one, run(5));
}

#[test]
fn layouts_and_label_maps_agree() {
    let photo = Photo::chelsea();
    let (width, height, num_pixels) = (photo.width, photo.height, photo.width * photo.height);
    let planes = probabilities(3, &photo, 4);
    let pixels: Vec<f32> =
        (0..num_pixels).flat_map(|pixel| [0, 1, 2].map(|class| planes[class * num_pixels + pixel])).collect();
    let a = Params::default().build(width, height, &photo.rgb, 3, &planes, Layout::ClassMajor).unwrap();
    let b = Params::default().build(width, height, &photo.rgb, 3, &pixels, Layout::PixelMajor).unwrap();
    assert_eq!(a.infer(10), b.infer(10));
    assert_eq!(a.infer(10).arg_max(), a.infer_labels(10));
}

#[test]
fn a_covariance_equals_the_sigmas_it_holds() {
    let covariance = Kernel::from_covariance(2, &[4.0, 0.0, 0.0, 9.0]).unwrap();
    assert_eq!(covariance, Kernel::Full(vec![0.5, 0.0, 0.0, 1.0 / 3.0]));
    assert!(matches!(
        Kernel::from_covariance(2, &[1.0, 2.0, 2.0, 1.0]),
        Err(Error::NotPositiveDefinite { .. })
    ));
    assert!(matches!(
        Kernel::from_covariance(2, &[1.0, 0.5, 0.1, 1.0]),
        Err(Error::NotPositiveDefinite { .. })
    ));

    let photo = Photo::chelsea();
    let (width, height) = (photo.width, photo.height);
    let scores = probabilities(3, &photo, 6);
    let positions: Vec<f32> = (0..width * height)
        .map(|i| (i % width) as f32)
        .chain((0..width * height).map(|i| (i / width) as f32))
        .collect();
    let run = |add: &dyn Fn(&mut DenseCrf)| {
        let mut crf =
            DenseCrf::from_probabilities(width, height, 3, &scores, Layout::ClassMajor, 1e-5).unwrap();
        add(&mut crf);
        crf.infer(5).into_pixel_major()
    };
    let sigmas = run(&|crf| {
        crf.add_gaussian([2.0, 3.0], POTTS, SYMMETRIC).unwrap();
    });
    let full = run(&|crf| {
        crf.add_pairwise(&positions, 2, &covariance, POTTS, SYMMETRIC).unwrap();
    });
    let diagonal = Kernel::Diagonal(vec![0.5, 1.0 / 3.0]);
    let scaled = run(&|crf| {
        crf.add_pairwise(&positions, 2, &diagonal, POTTS, SYMMETRIC).unwrap();
    });
    for (a, b) in sigmas.iter().zip(full.iter().zip(&scaled)) {
        assert!((a - b.0).abs() < 1e-3 && (a - b.1).abs() < 1e-3);
    }
}

#[test]
fn inference_ends_at_the_iteration_at_which_it_is_not_to_go_on() {
    let photo = Photo::chelsea().crop(70, 40);
    let scores = vec![0.5; 2 * photo.width * photo.height];
    let crf = Params::default()
        .build(photo.width, photo.height, &photo.rgb, 2, &scores, Layout::ClassMajor)
        .unwrap();
    let asked = std::cell::Cell::new(0);
    let goes_on = || asked.replace(asked.get() + 1) < 3;
    assert_eq!(crf.infer_while(usize::MAX, goes_on), None);
    assert_eq!(asked.get(), 4);
    assert_eq!(crf.infer_labels_while(usize::MAX, || false), None);
    assert_eq!(crf.infer_while(3, || true), Some(crf.infer(3)));
}
