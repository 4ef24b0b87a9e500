//! Refines a coarse score map along the edges of a photograph and draws the README's picture: the photograph, the label map
//! of the scores, and that of the marginals.
//!
//! `cargo run --release -p dense-crf --example refine_photo -- reference/dense-crf/coffee.png picture.png`

use std::error::Error;
use std::fs::File;
use std::io::{BufReader, BufWriter};

use dense_crf::{Layout, Params};

/// Side of a grid cell in pixels, as of a ViT's patch.
const CELL: f32 = 16.0;

/// Ellipses of a class, in pixels of the photograph: centre and half axes. Hand-drawn: 1 is the saucer, 2 the cup.
const SHAPES: [(usize, [f32; 4]); 2] = [(1, [138.0, 112.0, 96.0, 80.0]), (2, [142.0, 62.0, 56.0, 54.0])];

const COLORS: [[u8; 3]; 3] = [[0, 0, 0], [230, 60, 60], [60, 160, 230]];

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [photo_path, picture_path] = &arguments[..] else {
        return Err("usage: refine_photo PHOTO.png PICTURE.png".into());
    };
    let (width, height, rgb) = read_rgb(photo_path)?;

    let scores: Vec<f32> =
        (0..width * height).flat_map(|i| coarse_scores((i % width) as f32, (i / width) as f32)).collect();
    let params = Params {
        bilateral_sigma_xy: 40.0,
        bilateral_sigma_rgb: 8.0,
        bilateral_weight: 8.0,
        ..Params::default()
    };
    let marginals = params.refine(width, height, &rgb, COLORS.len(), &scores, Layout::PixelMajor)?;

    let coarse: Vec<u16> = scores.chunks_exact(COLORS.len()).map(arg_max).collect();
    let panels = [rgb.clone(), overlay(&rgb, &coarse), overlay(&rgb, &marginals.arg_max())];
    let rows =
        (0..height).flat_map(|y| panels.iter().flat_map(move |panel| &panel[y * width * 3..][..width * 3]));
    write_rgb(picture_path, width * panels.len(), height, &rows.copied().collect::<Vec<u8>>())
}

/// Scores at a pixel, constant in a grid cell and then interpolated, as a network at stride 16 gives them.
fn coarse_scores(x: f32, y: f32) -> [f32; 3] {
    let (column, row) = ((x / CELL - 0.5).floor(), (y / CELL - 0.5).floor());
    let (fx, fy) = (x / CELL - 0.5 - column, y / CELL - 0.5 - row);
    let mut scores = [0.0; 3];
    for (dx, wx) in [(0.5, 1.0 - fx), (1.5, fx)] {
        for (dy, wy) in [(0.5, 1.0 - fy), (1.5, fy)] {
            let cell = scores_of_cell((column + dx) * CELL, (row + dy) * CELL);
            scores.iter_mut().zip(cell).for_each(|(score, value)| *score += wx * wy * value);
        }
    }
    scores
}

fn scores_of_cell(x: f32, y: f32) -> [f32; 3] {
    let inside = |[center_x, center_y, half_width, half_height]: [f32; 4]| {
        ((x - center_x) / half_width).powi(2) + ((y - center_y) / half_height).powi(2) < 1.0
    };
    let class = SHAPES.iter().rev().find(|(_, ellipse)| inside(*ellipse)).map_or(0, |(class, _)| *class);
    let mut scores = [0.1; 3];
    scores[class] = 0.8;
    scores
}

fn arg_max(scores: &[f32]) -> u16 {
    (0..scores.len()).max_by(|&a, &b| scores[a].total_cmp(&scores[b])).unwrap_or(0) as u16
}

/// The photograph darkened, with each class but the background in its colour.
fn overlay(rgb: &[u8], labels: &[u16]) -> Vec<u8> {
    let pixels = rgb.chunks_exact(3).zip(labels);
    pixels
        .flat_map(|(pixel, &label)| {
            let color = COLORS[label as usize];
            [0, 1, 2].map(|i| ((u16::from(pixel[i]) + u16::from(color[i])) / 2) as u8)
        })
        .collect()
}

fn read_rgb(path: &str) -> Result<(usize, usize, Vec<u8>), Box<dyn Error>> {
    let mut reader = png::Decoder::new(BufReader::new(File::open(path)?)).read_info()?;
    let mut rgb = vec![0; reader.output_buffer_size().ok_or("image too large")?];
    let info = reader.next_frame(&mut rgb)?;
    if info.color_type != png::ColorType::Rgb || info.bit_depth != png::BitDepth::Eight {
        return Err(format!("{path}: expected an 8-bit RGB PNG").into());
    }
    Ok((info.width as usize, info.height as usize, rgb))
}

fn write_rgb(path: &str, width: usize, height: usize, rgb: &[u8]) -> Result<(), Box<dyn Error>> {
    let mut encoder = png::Encoder::new(BufWriter::new(File::create(path)?), width as u32, height as u32);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_compression(png::Compression::High);
    encoder.write_header()?.write_image_data(rgb)?;
    Ok(())
}
