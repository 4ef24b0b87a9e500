//! The report of `vitpcm demo`: one HTML file with everything in it, that opens anywhere and loads nothing.

use crate::line_chart::{Curve, line_chart};
use crate::table::{Table, percent};
use anyhow::Context;
use base64::Engine;
use image::RgbImage;
use std::fmt::Write;
use std::path::Path;
use vitpcm_masks::palette::voc_colour;
use vitpcm_masks::{Classes, LabelMap, Picture, ScoreMap, Scores, heat_map, overlay};

/// Points of a loss curve; more would not be seen.
const CURVE_POINTS: usize = 150;

/// Everything the report shows.
pub(crate) struct DemoReport {
    pub(crate) classes: Classes,
    pub(crate) rows: Vec<ScoreRow>,
    pub(crate) examples: Vec<Example>,
    pub(crate) curves: Curves,
    pub(crate) num_train: usize,
    pub(crate) num_held_out: usize,
}

/// Scores of one way to make masks.
pub(crate) struct ScoreRow {
    pub(crate) protocol: &'static str,
    pub(crate) scores: Scores,
}

/// A held-out image with all that became of it.
pub(crate) struct Example {
    pub(crate) name: String,
    pub(crate) image: RgbImage,
    pub(crate) scores: ScoreMap,
    pub(crate) tags: Vec<usize>,
    pub(crate) predicted_tags: Vec<usize>,
    pub(crate) mask: LabelMap,
    pub(crate) refined: LabelMap,
    pub(crate) truth: LabelMap,
}

/// The course of a training run.
#[derive(Default)]
pub(crate) struct Curves {
    mce: Vec<(f64, f64)>,
    et: Vec<(f64, f64)>,
    miou: Vec<(f64, f64)>,
}

impl Curves {
    /// From a run's `metrics.csv`, averaged to as many points as can be seen.
    pub(crate) fn read(path: &Path) -> anyhow::Result<Curves> {
        let mut reader = csv::Reader::from_path(path).with_context(|| format!("{}", path.display()))?;
        let headings = reader.headers()?.clone();
        let column =
            |name: &str| headings.iter().position(|heading| heading == name).context("a column is missing");
        let (step, mce, et, miou) =
            (column("step")?, column("loss_mce")?, column("loss_et")?, column("val_miou")?);
        let mut curves = Curves::default();
        for record in reader.records() {
            let record = record.with_context(|| format!("{}", path.display()))?;
            let value = |i: usize| record.get(i).and_then(|text| text.parse::<f64>().ok());
            let Some(step) = value(step) else { continue };
            curves.mce.extend(value(mce).map(|y| (step, y)));
            curves.et.extend(value(et).map(|y| (step, y)));
            curves.miou.extend(value(miou).map(|y| (step, y)));
        }
        curves.mce = averaged(&curves.mce);
        curves.et = averaged(&curves.et);
        Ok(curves)
    }
}

fn averaged(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let group = points.len().div_ceil(CURVE_POINTS).max(1);
    let mean = |points: &[(f64, f64)]| {
        let count = points.len() as f64;
        (points.iter().map(|p| p.0).sum::<f64>() / count, points.iter().map(|p| p.1).sum::<f64>() / count)
    };
    points.chunks(group).map(mean).collect()
}

impl DemoReport {
    /// The scores as a table for the terminal.
    pub(crate) fn table(&self) -> Table {
        let mut table = Table::new(["held-out images", "mIoU %", "pixel accuracy %"]);
        for row in &self.rows {
            let scores = &row.scores;
            table.row([row.protocol.to_string(), percent(scores.mean_iou), percent(scores.pixel_accuracy)]);
        }
        table
    }

    /// The whole page.
    pub(crate) fn html(&self) -> String {
        let mut page = String::from(HEAD);
        // Writing to a String cannot fail.
        let mut put = |text: String| page.write_str(&text).expect("a String takes all");
        let given = &self.rows[0].scores;
        put(format!(
            "<h1>From tags to masks</h1>\n<p class=\"lead\">A small vision transformer saw {} drawn images and, for each, \
             only the <em>names</em> of the things in it. On {} images that it never saw it now marks those things pixel by \
             pixel: <strong>{} % mIoU</strong>, tags given.</p>\n",
            self.num_train,
            self.num_held_out,
            percent(given.mean_iou)
        ));
        put(self.legend());
        put("<h2>Held-out images</h2>\n".to_string());
        for example in &self.examples {
            put(self.example(example));
        }
        put("<h2>Scores on the held-out images</h2>\n".to_string());
        put(self.score_table());
        put("<p class=\"note\">IoU in percent. <em>Tags given</em>: the mask may show the classes that the image is known \
             to hold, as in the paper. <em>Tags predicted</em>: those that the network itself finds. The masks were used \
             for these figures and for choosing the best epoch, never for learning.</p>\n"
            .to_string());
        put("<h2>Training</h2>\n<div class=\"charts\">\n".to_string());
        let Curves { mce, et, miou } = &self.curves;
        let losses = [
            Curve { name: "tags (L_MCE)", points: mce.clone() },
            Curve { name: "views agree (L_ET)", points: et.clone() },
        ];
        put(line_chart("step", &losses));
        put(line_chart("step", &[Curve { name: "mIoU % on held-out images", points: miou.clone() }]));
        put("</div>\n".to_string());
        put(OWN_DATA.to_string());
        page
    }

    fn legend(&self) -> String {
        let entries = self.classes.names().iter().enumerate().skip(1).map(|(class, name)| {
            let [red, green, blue] = voc_colour(class as u8);
            format!("<span><i style=\"background: rgb({red} {green} {blue})\"></i>{}</span>", escaped(name))
        });
        format!("<p class=\"legend\">{}</p>\n", entries.collect::<Vec<_>>().join(" "))
    }

    fn names(&self, classes: &[usize]) -> String {
        let names: Vec<String> = classes.iter().map(|&class| escaped(&self.classes.names()[class])).collect();
        if names.is_empty() { "none".to_string() } else { names.join(", ") }
    }

    fn example(&self, example: &Example) -> String {
        let size = (example.image.width() as usize, example.image.height() as usize);
        let image = Picture { width: size.0, height: size.1, rgb: example.image.as_raw().clone() };
        let over = |mask: &LabelMap| overlay(example.image.as_raw(), mask, 0.6);
        let mut figures = vec![figure(&image, "image")];
        for &class in &example.tags {
            let heat = heat_map(&example.scores, class, size);
            figures.push(figure(&heat, &format!("score of {}", escaped(&self.classes.names()[class]))));
        }
        figures.push(figure(&over(&example.mask), "mask"));
        figures.push(figure(&over(&example.refined), "mask + CRF"));
        figures.push(figure(&over(&example.truth), "truth"));
        format!(
            "<section><h3>{}</h3><p class=\"note\">tags: {}; predicted: {}</p><div class=\"strip\">{}</div></section>\n",
            escaped(&example.name),
            self.names(&example.tags),
            self.names(&example.predicted_tags),
            figures.concat()
        )
    }

    fn score_table(&self) -> String {
        let heading: Vec<String> =
            self.classes.names().iter().map(|name| format!("<th>{}</th>", escaped(name))).collect();
        let mut table =
            format!("<table><tr><th></th><th>mIoU</th>{}<th>pixel accuracy</th></tr>\n", heading.concat());
        for ScoreRow { protocol, scores } in &self.rows {
            let cells: Vec<String> =
                scores.per_class.iter().map(|class| format!("<td>{}</td>", percent(class.iou))).collect();
            let (miou, accuracy) = (percent(scores.mean_iou), percent(scores.pixel_accuracy));
            let row = format!(
                "<tr><th>{protocol}</th><td><b>{miou}</b></td>{}<td>{accuracy}</td></tr>\n",
                cells.concat()
            );
            table.push_str(&row);
        }
        table + "</table>\n"
    }
}

fn figure(picture: &Picture, caption: &str) -> String {
    let data = base64::engine::general_purpose::STANDARD.encode(picture.png());
    format!(
        "<figure><img alt=\"{caption}\" src=\"data:image/png;base64,{data}\"><figcaption>{caption}</figcaption></figure>"
    )
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

const OWN_DATA: &str = "<h2>The same with your own images</h2>
<p>Put the images in a folder, write what is in each into <code>tags.csv</code> beside them, and run</p>
<pre>image,tags
field-001.jpg,rust;mildew
field-002.jpg,rust
field-003.jpg,</pre>
<pre>vitpcm data inspect my-images                       # what we understood, and every problem found
vitpcm train --data my-images --out run --weights vit.safetensors
vitpcm segment my-images --model run/model.safetensors --tags-file my-images/tags.csv --crf --out masks</pre>
<p>Folders named by class, VOC, COCO, Label Studio and CVAT exports work as well. Start from published ViT or DINOv2 weights:
a network of this demo's size learns drawn shapes, not the world.</p>
</main></body></html>
";

const HEAD: &str = "<!doctype html>
<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">
<title>vitpcm demo</title>
<style>
:root { color-scheme: light dark; --ink: #1c2024; --soft: #5b6570; --line: #d9dee3; --page: #ffffff; --accent: #0b5cad; --second: #b4540a; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8eaed; --soft: #a4adb7; --line: #3a4149; --page: #16191d; --accent: #6cb2ff; --second: #ffad66; }
}
body { margin: 0; background: var(--page); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 60rem; margin: 0 auto; padding: 1.5rem; }
h1 { margin: 0 0 .5rem; font-size: 1.9rem; } h2 { margin: 2.2rem 0 .6rem; font-size: 1.25rem; } h3 { margin: 1rem 0 0; font-size: 1rem; }
.lead { font-size: 1.1rem; max-width: 44rem; } .note { color: var(--soft); margin: .2rem 0 .5rem; font-size: .9rem; }
.legend span { margin-right: 1rem; } .legend i { display: inline-block; width: .9em; height: .9em; margin-right: .35em; border-radius: 2px; vertical-align: -1px; }
.strip { display: flex; flex-wrap: wrap; gap: .75rem; } figure { margin: 0; } figure img { width: 144px; display: block; image-rendering: pixelated; }
figcaption { color: var(--soft); font-size: .85rem; text-align: center; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; display: block; overflow-x: auto; }
th, td { padding: .3rem .7rem; border-bottom: 1px solid var(--line); text-align: right; } tr > th:first-child { text-align: left; }
pre { background: color-mix(in srgb, var(--line) 40%, transparent); padding: .8rem 1rem; border-radius: 6px; overflow-x: auto; }
.charts { display: flex; flex-wrap: wrap; gap: 1rem; } .chart { width: 28rem; max-width: 100%; }
.chart text { font: 11px system-ui, sans-serif; fill: var(--soft); } .chart .rule { stroke: var(--line); }
.chart .curve { fill: none; stroke-width: 1.8; } .curve-0 { stroke: var(--accent); } .curve-1 { stroke: var(--second); }
.chart text.curve-name-0 { fill: var(--accent); } .chart text.curve-name-1 { fill: var(--second); }
</style></head><body><main>
";
