//! The public CRF: checks its input, stores the unary of the classes present in tile order, collects pairwise terms and
//! passes all of it to the mean field.

use rayon::prelude::*;

use crate::blur::lanes_for;
use crate::features::Features;
use crate::large_buffer::zeros;
use crate::mean_field::{MeanField, Potential, TileSink};
use crate::pairwise::{Filter, LatticeFilter, Term};
use crate::stencil::{self, Stencil};
use crate::tiles::Tiles;
use crate::{Compatibility, Error, Kernel, Layout, Marginals, Normalization};

/// A fully connected CRF over the pixels of one image.
///
/// Made from probabilities or energies; pairwise terms are added; [`infer`](Self::infer) can then be called any number of
/// times. Work runs on the current rayon thread pool; results do not depend on the number of threads.
pub struct DenseCrf {
    width: usize,
    height: usize,
    num_classes: usize,
    tiles: Tiles,
    /// The classes that are possible at some pixel, ascending. The others are left out.
    classes: Vec<usize>,
    lanes: usize,
    /// Negated energies of `classes` in tile order, padded to `lanes` with −∞.
    logits: Vec<f32>,
    terms: Vec<Term>,
}

impl DenseCrf {
    /// A CRF whose unary energies are `−ln(max(p, floor))`.
    ///
    /// `probabilities` holds `num_classes × height × width` values in the given layout, usually between 0 and 1; larger
    /// ones count as 1. A class that never exceeds the floor is left out, and its marginal is 0. (If all classes are at
    /// the floor, none is.) A usual floor is 1e-5.
    ///
    /// # Errors
    /// If a size is zero, the length does not match, the floor is not positive or a value is not finite.
    pub fn from_probabilities(
        width: usize,
        height: usize,
        num_classes: usize,
        probabilities: &[f32],
        layout: Layout,
        floor: f32,
    ) -> Result<Self, Error> {
        if !(floor.is_finite() && floor > 0.0) {
            return Err(Error::NotPositive { what: "the floor of probabilities", value: floor });
        }
        check_shape("probabilities", width, height, num_classes, probabilities)?;
        if let Some(index) = first_where(probabilities, |value| !value.is_finite()) {
            return Err(Error::NotFinite { what: "probabilities", index, value: probabilities[index] });
        }
        let present = classes_where(num_classes, probabilities, layout, |p| p > floor);
        let log_probability = |p: f32| p.clamp(floor, floor.max(1.0)).ln();
        Ok(Self::new(
            width,
            height,
            num_classes,
            present,
            |index| log_probability(probabilities[index]),
            layout,
        ))
    }

    /// A CRF with the given unary energies (negative log-likelihoods), `num_classes × height × width` values in the
    /// given layout. `+∞` makes a class impossible at a pixel; a class that is impossible everywhere is left out.
    ///
    /// # Errors
    /// If a size is zero, the length does not match, a value is NaN or `−∞`, or a pixel has no possible class.
    pub fn from_energies(
        width: usize,
        height: usize,
        num_classes: usize,
        energies: &[f32],
        layout: Layout,
    ) -> Result<Self, Error> {
        check_shape("energies", width, height, num_classes, energies)?;
        if let Some(index) = first_where(energies, |value| !value.is_finite() && value != f32::INFINITY) {
            return Err(Error::NotFinite { what: "energies", index, value: energies[index] });
        }
        if first_where(energies, f32::is_infinite).is_some() {
            let num_pixels = width * height;
            let energy = |class, pixel| energies[layout.index(num_classes, num_pixels, class, pixel)];
            let impossible =
                |pixel: &usize| (0..num_classes).all(|class| energy(class, *pixel).is_infinite());
            if let Some(pixel) = (0..num_pixels).into_par_iter().find_first(impossible) {
                return Err(Error::NoPossibleClass { pixel });
            }
        }
        let present = classes_where(num_classes, energies, layout, |energy| energy < f32::INFINITY);
        Ok(Self::new(width, height, num_classes, present, |index| -energies[index], layout))
    }

    fn new(
        width: usize,
        height: usize,
        num_classes: usize,
        present: Vec<usize>,
        logit_at: impl Fn(usize) -> f32 + Sync,
        layout: Layout,
    ) -> Self {
        let classes = if present.is_empty() { (0..num_classes).collect() } else { present };
        let tiles = Tiles::new(width, height);
        let lanes = lanes_for(classes.len());
        let num_pixels = width * height;
        let mut logits = zeros(num_pixels * lanes);
        tiles.split_mut(&mut logits, lanes).into_par_iter().enumerate().for_each(|(tile, logits)| {
            logits.fill(f32::NEG_INFINITY);
            let mut rest = logits;
            for run in tiles.runs(tile) {
                let (rows, tail) = rest.split_at_mut(run.len() * lanes);
                rest = tail;
                for (lane, &class) in classes.iter().enumerate() {
                    for (row, pixel) in rows.chunks_exact_mut(lanes).zip(run.clone()) {
                        row[lane] = logit_at(layout.index(num_classes, num_pixels, class, pixel));
                    }
                }
            }
        });
        Self { width, height, num_classes, tiles, classes, lanes, logits, terms: Vec::new() }
    }

    /// Adds a smoothness term: nearby pixels prefer equal classes. `sigma_xy` is in pixels.
    ///
    /// # Errors
    /// If a sigma is not positive or so small that the lattice cannot address the image, or the compatibility does not
    /// fit the number of classes.
    pub fn add_gaussian(
        &mut self,
        sigma_xy: [f32; 2],
        compatibility: Compatibility,
        normalization: Normalization,
    ) -> Result<&mut Self, Error> {
        // Checks the sigmas, too.
        let features = Features::position(self.width, self.height, sigma_xy)?;
        if sigma_xy != [stencil::SIGMA; 2] {
            return self.add_lattice(features, &Kernel::Const, compatibility, normalization);
        }
        let filter = Filter::Stencil(Stencil::new(self.width, self.height, normalization)?);
        self.add(filter, compatibility)
    }

    /// Adds an appearance term: nearby pixels of similar colour prefer equal classes.
    ///
    /// `image` is row-major with interleaved channels (HWC, 0..=255), as many channels as `sigma_color` has values.
    /// `sigma_xy` is in pixels, `sigma_color` in grey levels. For images of another type see [`add_pairwise`](Self::add_pairwise).
    ///
    /// # Errors
    /// As [`add_gaussian`](Self::add_gaussian), and if the image's length does not match.
    pub fn add_bilateral(
        &mut self,
        image: &[u8],
        sigma_xy: [f32; 2],
        sigma_color: &[f32],
        compatibility: Compatibility,
        normalization: Normalization,
    ) -> Result<&mut Self, Error> {
        let features = Features::position_and_color(self.width, self.height, sigma_xy, image, sigma_color)?;
        self.add_lattice(features, &Kernel::Const, compatibility, normalization)
    }

    /// Adds a term over any features: depth, time, infrared, the output of a network.
    ///
    /// `features` holds `num_features × height × width` values, feature-major, 1 to 15 features in units of their standard
    /// deviations unless the kernel scales them.
    ///
    /// # Errors
    /// If lengths do not match, a feature is not finite, or the features span too many standard deviations.
    pub fn add_pairwise(
        &mut self,
        features: &[f32],
        num_features: usize,
        kernel: &Kernel,
        compatibility: Compatibility,
        normalization: Normalization,
    ) -> Result<&mut Self, Error> {
        let features = Features::given(self.width * self.height, features, num_features)?;
        self.add_lattice(features, kernel, compatibility, normalization)
    }

    fn add_lattice(
        &mut self,
        features: Features<'_>,
        kernel: &Kernel,
        compatibility: Compatibility,
        normalization: Normalization,
    ) -> Result<&mut Self, Error> {
        let filter = LatticeFilter::new(features, kernel, normalization, &self.tiles)?;
        self.add(Filter::Lattice(filter), compatibility)
    }

    fn add(&mut self, filter: Filter, compatibility: Compatibility) -> Result<&mut Self, Error> {
        compatibility.check(self.num_classes)?;
        self.terms.push(Term { filter, compatibility });
        Ok(self)
    }

    /// The marginals after this many mean-field iterations; with 0, or without terms, the softmax of the unary.
    #[must_use]
    pub fn infer(&self, iterations: usize) -> Marginals {
        self.infer_while(iterations, || true).expect("it goes on to the end")
    }

    /// As [`infer`](Self::infer), but calls `goes_on` before every iteration; `None` as soon as it returns false.
    #[must_use]
    pub fn infer_while(&self, iterations: usize, goes_on: impl Fn() -> bool) -> Option<Marginals> {
        let mut values = zeros(self.width * self.height * self.num_classes);
        let sinks = self.tiles.split_runs_mut(&mut values, self.width * self.num_classes, self.num_classes);
        let sinks = sinks.into_iter().map(|runs| ToMarginals { crf: self, runs }).collect();
        self.mean_field().run(iterations, sinks, goes_on)?;
        Some(Marginals::new(self.width, self.height, self.num_classes, values))
    }

    /// The most probable class of each pixel, row-major; the lower class wins ties. Needs no memory for marginals.
    #[must_use]
    pub fn infer_labels(&self, iterations: usize) -> Vec<u16> {
        self.infer_labels_while(iterations, || true).expect("it goes on to the end")
    }

    /// As [`infer_labels`](Self::infer_labels), but calls `goes_on` before every iteration; `None` as soon as it
    /// returns false.
    #[must_use]
    pub fn infer_labels_while(&self, iterations: usize, goes_on: impl Fn() -> bool) -> Option<Vec<u16>> {
        let mut labels = vec![0; self.width * self.height];
        let sinks = self.tiles.split_runs_mut(&mut labels, self.width, 1);
        let sinks = sinks.into_iter().map(|runs| ToLabels { crf: self, runs }).collect();
        self.mean_field().run(iterations, sinks, goes_on)?;
        Some(labels)
    }

    /// The classes that take part, ascending: those possible at some pixel.
    #[must_use]
    pub fn classes_present(&self) -> &[usize] {
        &self.classes
    }

    /// The number of lattice vertices of each term, in the order of adding, to which the blur's cost is proportional. A
    /// Gaussian with a sigma of one pixel needs none.
    pub fn num_vertices(&self) -> impl Iterator<Item = usize> + '_ {
        self.terms.iter().map(|term| match &term.filter {
            Filter::Lattice(filter) => filter.lattice.num_vertices(),
            Filter::Stencil(_) => 0,
        })
    }

    fn mean_field(&self) -> MeanField<'_> {
        let (mut stencils, mut lattices) = (Vec::new(), Vec::new());
        for term in &self.terms {
            let potential = Potential::new(&term.compatibility, &self.classes, self.num_classes, self.lanes);
            match &term.filter {
                Filter::Lattice(filter) => lattices.push((filter, potential)),
                Filter::Stencil(stencil) => stencils.push((stencil, potential)),
            }
        }
        MeanField { tiles: &self.tiles, logits: &self.logits, lanes: self.lanes, stencils, lattices }
    }
}

/// Writes a tile's marginals into its runs of a pixel-major image of all classes.
struct ToMarginals<'a> {
    crf: &'a DenseCrf,
    runs: Vec<&'a mut [f32]>,
}

impl TileSink for ToMarginals<'_> {
    fn take<const L: usize>(&mut self, run: usize, marginals: &[f32]) {
        let rows = marginals.chunks_exact(self.crf.lanes);
        for (out, row) in self.runs[run].chunks_exact_mut(self.crf.num_classes).zip(rows) {
            for (&value, &class) in row.iter().zip(&self.crf.classes) {
                out[class] = value;
            }
        }
    }
}

/// Writes the most probable class of a tile's pixels into its runs of a label map.
struct ToLabels<'a> {
    crf: &'a DenseCrf,
    runs: Vec<&'a mut [u16]>,
}

impl TileSink for ToLabels<'_> {
    fn take<const L: usize>(&mut self, run: usize, marginals: &[f32]) {
        let rows = marginals.chunks_exact(self.crf.lanes);
        for (out, row) in self.runs[run].iter_mut().zip(rows) {
            let best = crate::marginals::arg_max(&row[..self.crf.classes.len()]);
            *out = self.crf.classes[best] as u16;
        }
    }
}

fn check_shape(
    what: &'static str,
    width: usize,
    height: usize,
    num_classes: usize,
    values: &[f32],
) -> Result<(), Error> {
    if width == 0 || height == 0 || num_classes == 0 {
        return Err(Error::Empty { width, height, num_classes });
    }
    let limit = u16::MAX as usize + 1;
    if num_classes > limit {
        return Err(Error::TooLarge { what: "the number of classes", got: num_classes, limit });
    }
    let limit = i32::MAX as usize;
    let expected =
        width.checked_mul(height).filter(|&pixels| pixels <= limit).map(|pixels| pixels * num_classes);
    match expected {
        None => {
            let got = width.saturating_mul(height);
            Err(Error::TooLarge { what: "the number of pixels", got, limit })
        }
        Some(expected) if values.len() != expected => {
            Err(Error::Length { what, got: values.len(), expected, shape: "classes × height × width" })
        }
        Some(_) => Ok(()),
    }
}

/// The position of the first value that fulfils a condition.
fn first_where(values: &[f32], holds: impl Fn(f32) -> bool + Sync) -> Option<usize> {
    const CHUNK: usize = 1 << 14;
    let found = |chunk: &[f32]| chunk.iter().fold(false, |found, &value| found | holds(value));
    let chunk = values.par_chunks(CHUNK).position_first(found)?;
    let offset = values[chunk * CHUNK..].iter().position(|&value| holds(value))?;
    Some(chunk * CHUNK + offset)
}

/// The classes for which some pixel's value fulfils a condition.
fn classes_where(
    num_classes: usize,
    values: &[f32],
    layout: Layout,
    holds: impl Fn(f32) -> bool + Sync,
) -> Vec<usize> {
    let num_pixels = values.len() / num_classes;
    (0..num_classes)
        .into_par_iter()
        .filter(|&class| {
            (0..num_pixels).any(|pixel| holds(values[layout.index(num_classes, num_pixels, class, pixel)]))
        })
        .collect()
}
