//! How far to trust the masks of each class without true masks, by their agreement with other masks of the same images,
//! e.g. those that a round was trained on. docs/guide/own-data.md measures how well that ranks classes.

use super::mask_faults::MaskFault;
use super::page::{escaped, swatch};
use super::review_sections::bar;
use super::summary::Summary;
use crate::table::{Table, grouped, percent};
use serde::Serialize;

/// Agreement in percent from which a class counts as stable, and below which its masks need a check.
const STABLE_FROM: f64 = 80.0;
const LOW_BELOW: f64 = 50.0;

/// The agreement of two sets of masks.
#[derive(Serialize)]
pub(crate) struct Trust {
    /// Mean over the classes without background; percent.
    mean: Option<f64>,
    classes: Vec<ClassTrust>,
}

#[derive(Serialize)]
struct ClassTrust {
    class: String,
    /// IoU between the two masks over all images, in percent; `None` if neither contains the class.
    agreement: Option<f64>,
    /// An obvious fault in most of its masks: both rounds may agree on it.
    #[serde(skip_serializing_if = "Option::is_none")]
    fault: Option<MaskFault>,
}

impl ClassTrust {
    fn advice(&self) -> &'static str {
        match self.agreement {
            Some(_) if self.fault == Some(MaskFault::MarksCorners) => {
                "marks corners: do not use without checking each mask"
            }
            Some(_) if self.fault == Some(MaskFault::IsEmpty) => {
                "most masks are empty: train longer or add images"
            }
            None => "found nowhere: check its tags",
            Some(iou) if iou >= STABLE_FROM => "stable: look at a few masks",
            Some(iou) if iou >= LOW_BELOW => "check the least confident images first",
            Some(_) => "do not use without checking each mask",
        }
    }
}

impl Trust {
    /// `None` if no image was compared.
    pub(crate) fn new(summary: &Summary) -> Option<Trust> {
        if summary.num_with_other == 0 {
            return None;
        }
        let scores = summary.agreement.scores(&summary.classes);
        let classes: Vec<ClassTrust> = scores.per_class[1..]
            .iter()
            .zip(&summary.per_class[1..])
            .map(|(scores, sum)| ClassTrust {
                class: scores.name.clone(),
                agreement: scores.iou,
                fault: sum.faults.fault(),
            })
            .collect();
        let known: Vec<f64> = classes.iter().filter_map(|class| class.agreement).collect();
        let mean = (!known.is_empty()).then(|| known.iter().sum::<f64>() / known.len() as f64);
        Some(Trust { mean, classes })
    }

    pub(super) fn mean(&self) -> Option<f64> {
        self.mean
    }

    /// For the terminal.
    pub(crate) fn table(&self) -> String {
        let mut table = Table::new(["class", "agreement of the rounds, %", "what to do"]);
        for class in &self.classes {
            table.row([class.class.clone(), percent(class.agreement), class.advice().to_owned()]);
        }
        table.to_string()
    }

    /// The report section.
    pub(super) fn html(&self, summary: &Summary) -> String {
        let mut html = format!(
            "<p class=\"note\">Agreement is the IoU between these masks and those they are compared with, over {} {}. Classes on which \
             two rounds agree are usually the better ones, but both can make the same mistake: check the images before you \
             rely on a class.</p>\n<div class=\"panel\"><table><thead><tr><th>class</th><th class=\"wide-only\"></th>\
             <th>agreement</th><th>tagged images</th><th class=\"left\">what to do</th></tr></thead><tbody>\n",
            grouped(summary.num_with_other as u64),
            if summary.num_with_other == 1 { "image" } else { "images" },
        );
        for (index, class) in self.classes.iter().enumerate() {
            let width = class.agreement.unwrap_or(0.0) as f32 / 100.0;
            html += &format!(
                "<tr><th>{}<span>{}</span></th><td class=\"left wide-only\">{}</td><td>{}</td><td>{}</td><td class=\"left\">{}</td></tr>\n",
                swatch(index as u8 + 1),
                escaped(&class.class),
                bar(width),
                class.agreement.map_or("–".to_owned(), |agreement| format!("{agreement:.0} %")),
                grouped(summary.per_class[index + 1].num_given as u64),
                class.advice(),
            );
        }
        html + "</tbody></table></div>\n"
    }
}

#[cfg(test)]
mod tests {
    use super::super::summary::tests::review;
    use super::*;
    use vitpcm_masks::Classes;

    #[test]
    fn classes_on_which_rounds_differ_are_not_to_be_used_unseen() {
        let mut summary = Summary::new(&Classes::from_names(["dog", "cat"]).unwrap(), 0.5);
        let mut reviewed = review("a", Some(vec![1, 2]), [1.0, 0.9, 0.9]);
        assert!(Trust::new(&summary).is_none());
        reviewed.agreement = vec![(0, 0, 50), (1, 1, 40), (1, 0, 10), (2, 2, 1), (2, 0, 9)];
        assert!(summary.add(&reviewed));
        let trust = Trust::new(&summary).unwrap();
        let agreements: Vec<f64> = trust.classes.iter().map(|class| class.agreement.unwrap()).collect();
        assert_eq!(agreements, [80.0, 10.0]);
        assert_eq!(trust.mean(), Some(45.0));
        let table = trust.table();
        let row = |name: &str| table.lines().find(|line| line.starts_with(name)).unwrap().to_owned();
        assert!(row("dog").contains("stable") && row("cat").contains("do not use"), "{table}");
        assert!(trust.html(&summary).contains("over 1 image."));
    }

    #[test]
    fn classes_in_the_corners_of_the_pictures_are_not_stable_however_much_rounds_agree() {
        let mut summary = Summary::new(&Classes::from_names(["dog", "cat"]).unwrap(), 0.5);
        for name in ["a", "b", "c", "d"] {
            let mut reviewed = review(name, Some(vec![1, 2]), [1.0, 0.9, 0.9]);
            reviewed.agreement = vec![(0, 0, 50), (1, 1, 40), (2, 2, 10)];
            reviewed.areas = vec![(1, 40), (2, 10)];
            reviewed.corner_classes = if name < "c" { vec![1] } else { vec![] };
            assert!(summary.add(&reviewed));
        }
        let table = Trust::new(&summary).unwrap().table();
        let row = |name: &str| table.lines().find(|line| line.starts_with(name)).unwrap().to_owned();
        assert!(row("dog").contains("marks corners") && row("cat").contains("stable"), "{table}");
        assert_eq!(summary.fault_sentences().len(), 1);
    }
}
