//! Report sections about reviewed images: the least confident in pictures, classes with areas and scores, likely tag
//! mistakes, and a row per image.

use super::page::{Page, escaped, swatch};
use super::summary::{
    ABSENT_FROM, GIVEN_BELOW, MistakeKind, Summary, image_agreement, image_miou, mistakes_of,
};
use super::trust::Trust;
use crate::table::{grouped, percent};
use std::fmt::Write;
use vitpcm::{Review, ReviewPictures};
use vitpcm_masks::{IGNORE, confusion_svg};

/// Whether names link to mask files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MaskLinks {
    /// `NAME.png` is in the report's folder.
    BesideReport,
    None,
}

/// Reviewed images, in total and one by one.
pub(crate) struct Reviewed<'a> {
    pub(crate) summary: &'a Summary,
    /// Least confident first; truncated if there are very many. Those with pictures are shown.
    pub(crate) rows: &'a [Review],
    pub(crate) links: MaskLinks,
    /// Noun for the images: "images" or "validation images".
    pub(crate) what: &'static str,
}

impl Reviewed<'_> {
    /// Adds the key figures over all images.
    pub(crate) fn put_figures(&self, page: &mut Page) {
        let summary = self.summary;
        if let Some(confidence) = summary.mean_confidence() {
            page.figure("mean confidence", &format!("{confidence:.2}"), "of 1");
        }
        if summary.num_compared > 0 {
            let scores = summary.matrix.scores(&summary.classes);
            let compared = format!("% · {} true masks", grouped(summary.num_compared as u64));
            page.figure("mIoU", &percent(scores.mean_iou), &compared);
            page.figure("pixel accuracy", &percent(scores.pixel_accuracy), "%");
        }
        if let Some(mean) = Trust::new(summary).and_then(|trust| trust.mean()) {
            page.figure("agreement", &format!("{mean:.0}"), "% · mean of the classes");
        }
        if summary.num_tagged > 0 {
            page.figure("likely tag mistakes", &grouped(summary.num_mistakes as u64), "to look at");
        }
    }

    /// Adds all sections, in reading order.
    pub(crate) fn put_sections(&self, page: &mut Page) {
        let trust = Trust::new(self.summary).map(|trust| trust.html(self.summary));
        page.section("trust", "How far to trust the masks", trust.unwrap_or_default());
        page.section("least-sure", "Least confident first", self.cards());
        page.section("classes", "Classes", self.class_table());
        page.section("tag-mistakes", "Likely tag mistakes", self.mistake_table());
        page.section("images", "All images", self.image_table());
    }

    fn cards(&self) -> String {
        let shown: Vec<(&Review, &ReviewPictures)> =
            self.rows.iter().filter_map(|review| Some((review, review.pictures.as_ref()?))).collect();
        if shown.is_empty() {
            return String::new();
        }
        let mut html = format!(
            "<p class=\"note\">The {} {} with the lowest confidence: check these first. Confidence is the best class's score minus the \
             second best's, given the tags and before any CRF, averaged over the patches that show a class: 0 undecided, \
             1 certain. It does not show where the model is confidently wrong.</p>\n",
            shown.len(),
            if shown.len() == 1 { self.what.trim_end_matches('s') } else { self.what }
        );
        let has_truth = shown.iter().any(|(_, pictures)| pictures.truth.is_some());
        let choices: &[(&str, &str)] = match has_truth {
            true => &[("mask", "Mask"), ("truth", "Truth"), ("photo", "Photograph")],
            false => &[("mask", "Mask"), ("photo", "Photograph")],
        };
        for (id, name) in choices {
            let checked = if *id == "mask" { " checked" } else { "" };
            html += &format!(
                "<input class=\"choice\" type=\"radio\" name=\"show\" id=\"show-{id}\" aria-label=\"{name}\"{checked}>\n"
            );
        }
        html += "<div class=\"choices\"><span>Show</span>";
        for (id, name) in choices {
            html += &format!("<label for=\"show-{id}\">{name}</label>");
        }
        html += "<span class=\"wide-only\">Point at a picture to see it bare.</span></div>\n<div class=\"cards\">\n";
        for (review, pictures) in shown {
            html += &self.card(review, pictures);
        }
        html + "</div>\n"
    }

    fn card(&self, review: &Review, pictures: &ReviewPictures) -> String {
        let (width, height) = pictures.size;
        let mut images =
            vec![("", "photograph", &pictures.photo), ("layer mask", "its mask", &pictures.mask)];
        images.extend(pictures.truth.as_ref().map(|truth| ("layer truth", "its true mask", truth)));
        let name = escaped(&review.name);
        let images = images.into_iter().map(|(class, what, url)| {
            let url = escaped(url);
            format!(
                "<img class=\"{class}\" src=\"{url}\" width=\"{width}\" height=\"{height}\" decoding=\"async\" alt=\"{name}: {what}\">"
            )
        });
        let images: String = images.collect();
        let miou =
            image_miou(review).map_or_else(String::new, |miou| format!("<span>mIoU {miou:.0} %</span>"));
        let agreement = image_agreement(review)
            .map_or_else(String::new, |agreement| format!("<span>agreement {agreement:.0} %</span>"));
        format!(
            "<article class=\"card\"><div class=\"picture\">{images}</div><div class=\"text\"><div class=\"name\">{}</div>\
             <div class=\"sure\">{}<span>confidence {:.2}</span>{miou}{agreement}</div><div class=\"chips\">{}{}</div></div></article>\n",
            self.linked_name(&review.name),
            bar(review.confidence),
            review.confidence,
            self.area_chips(review),
            self.doubt_chips(review)
        )
    }

    fn linked_name(&self, name: &str) -> String {
        match self.links {
            MaskLinks::BesideReport => {
                format!("<a href=\"{}.png\">{}</a>", escaped(&url_path(name)), escaped(name))
            }
            MaskLinks::None => escaped(name),
        }
    }

    fn class_name(&self, class: usize) -> String {
        let name =
            if class == usize::from(IGNORE) { Some("ignored") } else { self.summary.classes.name(class) };
        escaped(name.unwrap_or("?"))
    }

    fn area_chips(&self, review: &Review) -> String {
        let total: u64 = review.areas.iter().map(|area| area.1).sum();
        let mut areas: Vec<(u8, u64)> = review.areas.iter().copied().filter(|area| area.0 != 0).collect();
        areas.sort_by_key(|area| std::cmp::Reverse(area.1));
        if areas.is_empty() {
            return "<span class=\"chip\"><small>only background</small></span>".to_owned();
        }
        let chip = |(class, pixels): (u8, u64)| {
            let share = share(pixels as f64 / total.max(1) as f64);
            let name = self.class_name(class.into());
            format!("<span class=\"chip\">{}{name} <small>{share}</small></span>", swatch(class))
        };
        areas.into_iter().map(chip).collect()
    }

    fn doubt_chips(&self, review: &Review) -> String {
        let chip = |mistake: super::summary::Mistake| {
            let (name, probability) = (self.class_name(mistake.class), share(mistake.probability.into()));
            let said = match mistake.kind {
                MistakeKind::GivenInVain => format!("{name} given?"),
                MistakeKind::Missing => format!("{name} missing?"),
            };
            format!("<span class=\"chip doubt\">{said} <small>{probability}</small></span>")
        };
        mistakes_of(review).into_iter().map(chip).collect()
    }

    /// The given or predicted tags with their probabilities.
    fn tag_chips(&self, review: &Review) -> String {
        let threshold = self.summary.tag_threshold;
        let found =
            || (1..review.tag_probabilities.len()).filter(|&tag| review.tag_probabilities[tag] >= threshold);
        let tags = review.given_tags.clone().unwrap_or_else(|| found().collect());
        let chip = |tag: usize| {
            let (name, probability) = (self.class_name(tag), share(review.tag_probabilities[tag].into()));
            format!("<span class=\"chip\">{name} <small>{probability}</small></span>")
        };
        tags.into_iter().map(chip).collect::<String>() + &self.doubt_chips(review)
    }

    fn class_table(&self) -> String {
        let summary = self.summary;
        let (has_tags, has_truth) = (summary.num_tagged > 0, summary.num_compared > 0);
        let scores = summary.matrix.scores(&summary.classes);
        let num_pixels: u64 = summary.per_class.iter().map(|sum| sum.pixels).sum();
        let largest = summary.per_class.iter().skip(1).map(|sum| sum.pixels).max().unwrap_or(0);
        if summary.num_images == 0 {
            return String::new();
        }
        let mut html = String::new();
        let mut put = |text: &str| html.push_str(text);
        put("<p class=\"note\">Area is the fraction of all pixels. ");
        if has_tags {
            put("Tags are counted in images: given, predicted by the model, and both. ");
        }
        if has_truth {
            put("IoU, accuracy and precision are in percent. ");
        }
        put(
            "Classes that never occur are left out.</p>\n<div class=\"panel\"><table><thead><tr><th>class</th><th class=\"wide-only\"></th><th>area</th>",
        );
        put("<th>images</th>");
        put(if has_tags {
            "<th>tag given</th><th>predicted</th><th>both</th>"
        } else {
            "<th>tag predicted</th>"
        });
        put(if has_truth { "<th>IoU</th><th>accuracy</th><th>precision</th>" } else { "" });
        put("</tr></thead><tbody>\n");
        for (class, (sum, score)) in summary.per_class.iter().zip(&scores.per_class).enumerate() {
            let appears = sum.num_images + sum.num_given + sum.num_found > 0 || score.truth_pixels > 0;
            if class > 0 && !appears {
                continue;
            }
            // Bars compare foreground classes only; next to the background they would be slivers.
            let area_bar =
                if class == 0 { String::new() } else { bar(sum.pixels as f32 / largest.max(1) as f32) };
            put(&format!(
                "<tr><th>{}<span>{}</span></th><td class=\"left wide-only\">{area_bar}</td><td>{:.1} %</td><td>{}</td>",
                swatch(class as u8),
                self.class_name(class),
                100.0 * sum.pixels as f64 / num_pixels.max(1) as f64,
                grouped(sum.num_images as u64)
            ));
            let tag_counts: &[usize] =
                if has_tags { &[sum.num_given, sum.num_found, sum.num_both] } else { &[sum.num_found] };
            for &count in tag_counts {
                put(&format!("<td>{}</td>", if class == 0 { "–".to_owned() } else { grouped(count as u64) }));
            }
            if has_truth {
                let cells = [score.iou, score.accuracy, score.precision]
                    .map(|value| format!("<td>{}</td>", percent(value)));
                put(&cells.concat());
            }
            put("</tr>\n");
        }
        put("</tbody></table></div>\n");
        if has_truth {
            put(&format!(
                "<div class=\"panel\"><table class=\"narrow\"><tbody><tr><th>mIoU, classes of the truth</th><td>{}</td></tr>\
                 <tr><th>mIoU, classes of truth or mask</th><td>{}</td></tr><tr><th>pixel accuracy</th><td>{}</td></tr>\
                 <tr><th>mean accuracy</th><td>{}</td></tr><tr><th>frequency-weighted IoU</th><td>{}</td></tr>\
                 <tr><th>pixels compared</th><td>{}</td></tr></tbody></table></div>\n",
                percent(scores.mean_iou),
                percent(scores.mean_iou_with_union),
                percent(scores.pixel_accuracy),
                percent(scores.mean_accuracy),
                percent(scores.frequency_weighted_iou),
                grouped(scores.num_pixels)
            ));
            put("<details><summary>Confusion matrix</summary><div class=\"panel confusion\">");
            put(&confusion_svg(&summary.matrix, &summary.classes));
            put("</div></details>\n");
        }
        html
    }

    fn mistake_table(&self) -> String {
        let summary = self.summary;
        if summary.num_tagged == 0 {
            return String::new();
        }
        let mistakes = summary.likeliest_mistakes();
        let (low, high) = (share(GIVEN_BELOW.into()), share(ABSENT_FROM.into()));
        let mut html = format!(
            "<p class=\"note\">A given tag with a predicted probability below {low}, or a class without the tag at {high} or more: \
             either the tag or the model is wrong. {} in {} tagged {}{}.</p>\n",
            grouped(summary.num_mistakes as u64),
            grouped(summary.num_tagged as u64),
            self.what,
            if summary.num_mistakes > mistakes.len() { "; the likeliest are listed" } else { "" }
        );
        if mistakes.is_empty() {
            return html;
        }
        html += "<div class=\"panel\"><table><thead><tr><th>image</th><th class=\"left\">tag</th><th class=\"left\">evidence</th><th>probability</th></tr></thead><tbody>\n";
        for mistake in mistakes {
            let said = match mistake.kind {
                MistakeKind::GivenInVain => "given, but improbable",
                MistakeKind::Missing => "not given, but probable",
            };
            html += &format!(
                "<tr><td class=\"name\">{}</td><td class=\"left\">{}<span>{}</span></td><td class=\"left\">{said}</td>\
                 <td>{}</td></tr>\n",
                self.linked_name(&mistake.image),
                swatch(mistake.class as u8),
                self.class_name(mistake.class),
                share(mistake.probability.into())
            );
        }
        html + "</tbody></table></div>\n"
    }

    fn image_table(&self) -> String {
        if self.rows.is_empty() {
            return String::new();
        }
        let has_truth = self.summary.num_compared > 0;
        let mut html = String::new();
        // Writing to a String cannot fail.
        let mut put = |text: std::fmt::Arguments<'_>| html.write_fmt(text).expect("a String takes all");
        let num_left_out = self.summary.num_images.saturating_sub(self.rows.len());
        if num_left_out > 0 {
            put(format_args!(
                "<p class=\"note\">The {} least confident of {} {}; the others only count in the totals above.</p>\n",
                grouped(self.rows.len() as u64),
                grouped(self.summary.num_images as u64),
                self.what
            ));
        }
        let tags = if self.summary.num_tagged > 0 { "tags given" } else { "tags predicted" };
        put(format_args!(
            "<div class=\"panel\"><table data-sortable><thead><tr><th>image</th><th>confidence</th>\
             <th class=\"left\">mask shows</th><th class=\"left\">{tags}</th>{}</tr></thead><tbody>\n",
            if has_truth { "<th>mIoU</th>" } else { "" }
        ));
        for review in self.rows {
            put(format_args!(
                "<tr><td class=\"name\">{}</td><td data-label=\"confidence\" data-value=\"{}\">{:.2}</td><td class=\"left\"><div class=\"chips\">{}</div>\
                 </td><td class=\"left\" data-label=\"{tags}\"><div class=\"chips\">{}</div></td>",
                self.linked_name(&review.name),
                review.confidence,
                review.confidence,
                self.area_chips(review),
                self.tag_chips(review)
            ));
            if has_truth {
                let miou = image_miou(review);
                put(format_args!(
                    "<td data-label=\"mIoU\" data-value=\"{:.3}\">{}</td>",
                    miou.unwrap_or(-1.0),
                    percent(miou)
                ));
            }
            put(format_args!("</tr>\n"));
        }
        put(format_args!("</tbody></table></div>\n"));
        html
    }
}

pub(super) fn bar(value: f32) -> String {
    format!("<span class=\"bar\"><i style=\"width:{:.1}%\"></i></span>", 100.0 * value.clamp(0.0, 1.0))
}

/// A fraction in percent, as short as possible.
fn share(value: f64) -> String {
    match 100.0 * value {
        0.0 => "0 %".to_owned(),
        percent if percent < 1.0 => "&lt;1 %".to_owned(),
        percent if percent > 99.0 && percent < 100.0 => "&gt;99 %".to_owned(),
        percent => format!("{percent:.0} %"),
    }
}

/// A relative path as a URL, with special characters encoded.
fn url_path(path: &str) -> String {
    let mut url = String::from("./");
    for byte in path.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' | b'/' => {
                url.push(byte.into())
            }
            b'\\' if cfg!(windows) => url.push('/'),
            _ => url += &format!("%{byte:02X}"),
        }
    }
    url
}

#[cfg(test)]
mod tests {
    use super::super::summary::tests::review;
    use super::*;
    use vitpcm_masks::Classes;

    #[test]
    fn hostile_names_stay_text_everywhere() {
        let evil = "\"><script>alert(1)</script>";
        let classes = Classes::from_names([evil, "javascript:alert(1)"]).unwrap();
        let mut row = review(&format!("a/{evil}\u{202e}#?% é"), Some(vec![1]), [1.0, 0.01, 0.99]);
        let url = format!("data:image/png;base64,{evil}");
        let truth = Some(url.clone());
        row.pictures = Some(ReviewPictures { size: (1, 1), photo: url.clone(), mask: url, truth });
        let mut summary = Summary::new(&classes, 0.5);
        assert!(summary.add(&row));
        let rows = [row];
        let reviewed =
            Reviewed { summary: &summary, rows: &rows, links: MaskLinks::BesideReport, what: "images" };
        let mut page = Page::new("segment", "test", String::new());
        reviewed.put_figures(&mut page);
        reviewed.put_sections(&mut page);
        let html = page.html();
        assert!(!html.contains("<script>alert") && !html.contains("\u{202e}"));
        assert!(html.contains("&quot;&gt;&lt;script&gt;alert(1)&lt;/script&gt;"));
        assert!(html.contains("href=\"./a/%22%3E%3Cscript%3E"));
        for section in
            ["Least confident first", "Classes", "Likely tag mistakes", "All images", "Confusion matrix"]
        {
            assert!(html.contains(section), "{section}");
        }
    }

    #[test]
    fn shares_are_short_and_never_round_to_nothing_or_all() {
        let shares = [0.0, 0.002, 0.014, 0.5, 0.997, 1.0].map(share);
        assert_eq!(shares, ["0 %", "&lt;1 %", "1 %", "50 %", "&gt;99 %", "100 %"]);
    }
}
