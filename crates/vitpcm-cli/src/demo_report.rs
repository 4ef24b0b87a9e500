//! The report of `vitpcm demo`: scores and examples from held-out images.

use crate::invocation::Invocation;
use crate::report::{Curves, Page, escaped, legend};
use crate::table::{Table, percent};
use base64::Engine;
use image::RgbImage;
use vitpcm_masks::{Classes, LabelMap, Picture, ScoreMap, Scores, heat_map, overlay};

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

/// A held-out image with its masks.
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
    pub(crate) fn html(&self, invocation: &Invocation) -> String {
        let given = &self.rows[0].scores;
        let lead = format!(
            "A small vision transformer saw {} drawn images and, for each, only the <em>names</em> of the objects in it. On {} \
             images that it never saw it now marks these objects pixel by pixel: <strong>{} % mIoU</strong>, tags given.",
            self.num_train,
            self.num_held_out,
            percent(given.mean_iou)
        );
        let mut page = Page::new("demo", "From tags to masks", lead);
        let examples: String = self.examples.iter().map(|example| self.example(example)).collect();
        page.section("examples", "Held-out images", legend(&self.classes) + &examples);
        page.section("scores", "Scores on the held-out images", self.score_table());
        page.section("course", "Training", self.curves.charts());
        page.section("your-own", "The same with your own images", OWN_DATA.to_string());
        page.origin_section(invocation, "");
        page.html()
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
            "<h3>{}</h3><p class=\"note\">tags: {}; predicted: {}</p><div class=\"strip\">{}</div>\n",
            escaped(&example.name),
            self.names(&example.tags),
            self.names(&example.predicted_tags),
            figures.concat()
        )
    }

    fn score_table(&self) -> String {
        let heading: String =
            self.classes.names().iter().map(|name| format!("<th>{}</th>", escaped(name))).collect();
        let mut table = format!(
            "<p class=\"note\">IoU in percent. <em>Tags given</em>: the mask may show the classes in the image's tags, \
             as in the paper. <em>Tags predicted</em>: those that the network predicts. The true masks were used for these \
             figures and to choose the best epoch, never for training.</p>\n<div class=\"panel\"><table><thead><tr>\
             <th></th><th>mIoU</th>{heading}<th>pixel accuracy</th></tr></thead><tbody>\n"
        );
        for ScoreRow { protocol, scores } in &self.rows {
            let cells: String =
                scores.per_class.iter().map(|class| format!("<td>{}</td>", percent(class.iou))).collect();
            let (miou, accuracy) = (percent(scores.mean_iou), percent(scores.pixel_accuracy));
            table +=
                &format!("<tr><th>{protocol}</th><td><b>{miou}</b></td>{cells}<td>{accuracy}</td></tr>\n");
        }
        table + "</tbody></table></div>\n"
    }
}

fn figure(picture: &Picture, caption: &str) -> String {
    let data = base64::engine::general_purpose::STANDARD.encode(picture.png());
    format!(
        "<figure><img alt=\"{caption}\" src=\"data:image/png;base64,{data}\"><figcaption>{caption}</figcaption></figure>"
    )
}

const OWN_DATA: &str = "<p>Put the images in a folder, write what is in each into <code>tags.csv</code> next to them, and run</p>
<pre>image,tags
field-001.jpg,rust;mildew
field-002.jpg,rust
field-003.jpg,</pre>
<pre>vitpcm data inspect my-images                       # what was understood, and all problems
vitpcm train --data my-images --out run             # fine-tunes the embedded network
vitpcm segment my-images --model run/model.safetensors --tags-file my-images/tags.csv --crf --out masks</pre>
<p>Folders named by class, VOC, COCO, Label Studio and CVAT exports work as well. A network of this
demo's size learns drawn shapes only: training on your images fine-tunes the embedded network.</p>
";
