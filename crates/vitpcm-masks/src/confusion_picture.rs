//! The confusion matrix as a self-contained SVG.

use crate::{Classes, ConfusionMatrix};
use std::fmt::Write;

const CELL: usize = 30;
const FONT: &str = "font-family=\"Helvetica,Arial,sans-serif\"";

/// Rows are true classes, columns predicted ones; cells are percentages of their row. Classes that occur in neither are
/// left out.
pub fn confusion_svg(matrix: &ConfusionMatrix, classes: &Classes) -> String {
    let scores = matrix.scores(classes);
    let shown: Vec<_> =
        scores.per_class.iter().filter(|class| class.truth_pixels + class.predicted_pixels > 0).collect();
    let longest_name = shown.iter().map(|class| class.name.chars().count()).max().unwrap_or(0);
    let margin = 30 + 7 * longest_name.clamp(6, 30);
    let side = CELL * shown.len();
    let (width, height) = (margin + side + 20, margin + side + 44);

    let mut svg = String::new();
    // Writing to a String cannot fail.
    let mut put = |text: std::fmt::Arguments| svg.write_fmt(text).expect("a String takes all");
    put(format_args!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
         height=\"{height}\">\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n"
    ));
    for (i, class) in shown.iter().enumerate() {
        let name = escaped(&class.name);
        let (near, centre) = (margin - 8, margin + i * CELL + CELL / 2);
        put(format_args!(
            "<text x=\"{near}\" y=\"{}\" {FONT} font-size=\"13\" text-anchor=\"end\">{name}</text>\n",
            centre + 5
        ));
        put(format_args!(
            "<text transform=\"translate({} {near}) rotate(-90)\" {FONT} font-size=\"13\">{name}</text>\n",
            centre + 5
        ));
    }
    for (row, truth) in shown.iter().enumerate() {
        for (column, prediction) in shown.iter().enumerate() {
            let count = matrix.count(truth.index, prediction.index);
            let share = if truth.truth_pixels > 0 { count as f64 / truth.truth_pixels as f64 } else { 0.0 };
            let (x, y) = (margin + column * CELL, margin + row * CELL);
            let ink = if share > 0.5 { "#ffffff" } else { "#202020" };
            put(format_args!(
                "<g><title>{} predicted as {}: {count} pixels, {:.2} %</title>\
                 <rect x=\"{x}\" y=\"{y}\" width=\"{CELL}\" height=\"{CELL}\" fill=\"{}\" stroke=\"#e4e4e4\"/>",
                escaped(&truth.name),
                escaped(&prediction.name),
                100.0 * share,
                shade(share)
            ));
            if share >= 0.005 {
                put(format_args!(
                    "<text x=\"{}\" y=\"{}\" {FONT} font-size=\"11\" text-anchor=\"middle\" fill=\"{ink}\">{:.0}</text>",
                    x + CELL / 2,
                    y + CELL / 2 + 4,
                    100.0 * share
                ));
            }
            put(format_args!("</g>\n"));
        }
    }
    let mean_iou =
        scores.mean_iou.map_or("no class in the truth".to_string(), |value| format!("mIoU {value:.2} %"));
    put(format_args!(
        "<text x=\"{margin}\" y=\"{}\" {FONT} font-size=\"13\">{mean_iou}. Rows: truth, columns: prediction, \
         in % of the row.</text>\n</svg>\n",
        height - 16
    ));
    svg
}

/// White to dark blue; the square root makes small confusions visible.
fn shade(share: f64) -> String {
    let mix = |from: f64, to: f64| (from + (to - from) * share.sqrt()).round() as u8;
    format!("#{:02x}{:02x}{:02x}", mix(255.0, 8.0), mix(255.0, 48.0), mix(255.0, 107.0))
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LabelMap;

    #[test]
    fn the_picture_shows_shares_and_survives_names_with_markup() {
        let mut matrix = ConfusionMatrix::new(4);
        let truth = LabelMap::new(4, 1, vec![1, 1, 1, 1]).unwrap();
        matrix.add(&LabelMap::new(4, 1, vec![1, 1, 1, 2]).unwrap(), &truth).unwrap();
        let svg = confusion_svg(&matrix, &Classes::from_names(["<b>&", "rust", "never"]).unwrap());
        assert!(svg.contains("&lt;b&gt;&amp; predicted as rust: 1 pixels, 25.00 %"), "{svg}");
        assert!(!svg.contains("<b>") && !svg.contains("never"), "{svg}");
    }
}
