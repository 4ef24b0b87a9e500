//! `vitpcm-lab heads`: scores every candidate that `vitpcm propose` compares against true masks, to measure how well
//! its ranking, which sees none, agrees with them. `scripts/leave_one_out.py` reads the tables of several data sets.

use rayon::prelude::*;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use vitpcm_cli::head_contest::{Contest, given_on_grid, spread, tags_of, with_masks};
use vitpcm_cli::number_bounds;
use vitpcm_cli::outcome::{Outcome, usage};
use vitpcm_cli::output;
use vitpcm_cli::session::Session;
use vitpcm_data::{Dataset, OpenOptions, TaggedImage};
use vitpcm_heads::{Candidate, GRID_SIDE};
use vitpcm_masks::resampling::{Alignment, nearest_indices};
use vitpcm_masks::{Classes, ConfusionMatrix, LabelMap, read_label_png_within};

#[derive(clap::Args)]
#[command(after_help = "Example, to paste (the first line draws tagged images with true masks):\n  \
    vitpcm demo --data-only scenes\n  \
    vitpcm-lab heads --data scenes --masks scenes/masks --truth scenes/masks --out heads.csv")]
pub(crate) struct Args {
    /// The data set: a folder with tagged images
    #[arg(long, value_name = "PATH")]
    data: PathBuf,
    /// Masks of its images to compare with those of the heads
    #[arg(long, value_name = "DIR")]
    masks: PathBuf,
    /// True masks with the same names
    #[arg(long, value_name = "DIR")]
    truth: PathBuf,
    /// The table: a line per candidate and class, with what the judges say and the true IoU
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Number of images to fit and judge heads on
    #[arg(long, value_name = "N", value_parser = number_bounds::sample_size, default_value_t = 600)]
    max_images: usize,
}

pub(crate) fn heads(args: &Args, session: &Session) -> anyhow::Result<Outcome> {
    let messages = &session.messages;
    let limits = session.image_limits();
    let options = OpenOptions { limits: limits.clone(), ..OpenOptions::default() };
    let dataset = Dataset::open(&args.data, &options)?;
    let classes = dataset.classes();
    let num_classes = classes.len() - 1;
    let (place, images) =
        with_masks(&args.masks, dataset.images().iter().collect(), messages).map_err(usage)?;
    let (truth, images) = with_masks(&args.truth, images, messages).map_err(usage)?;
    let images = spread(&images, args.max_images);
    session.check_outputs(dataset.files().map(Path::to_path_buf), [args.out.clone()])?;

    let cells = |image: &&TaggedImage| {
        let mask = read_label_png_within(&truth.join(image.mask_name()), limits.max_pixels)?;
        anyhow::Ok(true_cells(&mask))
    };
    let truths = images.par_iter().map(cells).collect::<anyhow::Result<Vec<_>>>()?;
    let tagged = tags_of(&images, num_classes, session.seed)?;
    let given = given_on_grid(&place, &images, num_classes, &limits)?;
    let contest = Contest::hold(given, &images, &tagged, &limits, session)?;
    let mut table = "candidate,score,miou,class,auc,area,empty,iou\n".to_owned();
    for candidate in contest.heads.iter().chain([&contest.given]) {
        add_rows(&mut table, candidate, &truths, classes)?;
    }
    output::write_file(&args.out, table.as_bytes())?;
    messages.note(format!("{} candidates: {}", contest.heads.len() + 1, args.out.display()));
    Ok(Outcome::Done)
}

/// True labels of the pixels of one image: cell of the grid, label, pixels.
type TrueCells = Vec<(usize, u8, u64)>;

fn true_cells(mask: &LabelMap) -> TrueCells {
    let (width, height) = mask.size();
    let [columns, rows] = [width, height].map(|side| nearest_indices(GRID_SIDE, side, Alignment::HalfPixel));
    let mut counts = vec![[0u64; 256]; GRID_SIDE * GRID_SIDE];
    for (labels, row) in mask.labels().chunks_exact(width).zip(rows) {
        for (&label, column) in labels.iter().zip(&columns) {
            counts[row * GRID_SIDE + column][usize::from(label)] += 1;
        }
    }
    let of_cell = |(cell, counts): (usize, &[u64; 256])| {
        let found = counts.iter().enumerate().filter(|(_, count)| **count > 0);
        found.map(|(label, &count)| (cell, label as u8, count)).collect::<Vec<_>>()
    };
    counts.iter().enumerate().flat_map(of_cell).collect()
}

fn add_rows(
    table: &mut String,
    candidate: &Candidate,
    truths: &[TrueCells],
    classes: &Classes,
) -> anyhow::Result<()> {
    let mut confusion = ConfusionMatrix::new(classes.len());
    for (mask, truth) in candidate.masks.iter().zip(truths) {
        let pixels = truth.iter().map(|&(cell, label, count)| (label, mask.labels()[cell], count));
        confusion.add_entries(&pixels.collect::<Vec<_>>())?;
    }
    let scores = confusion.scores(classes);
    let [score, miou] = [f64::from(candidate.score), scores.mean_iou.unwrap_or(f64::NAN)];
    for (judged, of_class) in candidate.classes.iter().zip(&scores.per_class[1..]) {
        let (name, iou) = (&of_class.name, of_class.iou.unwrap_or(f64::NAN));
        writeln!(
            table,
            "\"{}\",{score:.4},{miou:.2},\"{name}\",{:.4},{:.5},{:.4},{iou:.2}",
            candidate.origin, judged.auc, judged.area, judged.empty
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pixel_counts_in_its_cell() {
        let mut labels = vec![0u8; 64 * 32];
        labels[65] = 3;
        let cells = true_cells(&LabelMap::new(64, 32, labels).unwrap());
        assert_eq!(cells.iter().map(|cell| cell.2).sum::<u64>(), 64 * 32);
        assert!(
            cells.contains(&(GRID_SIDE, 3, 1)) && cells.contains(&(GRID_SIDE, 0, 1)),
            "two by one a cell"
        );
    }
}
