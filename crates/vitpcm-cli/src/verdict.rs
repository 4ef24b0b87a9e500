//! The verdict on a trained model: which classes it recognises in held-out images better than chance, how stable that
//! was over the epochs, and what to do about the rest. Worded for the terminal and the report; `figures` has it for programs.

mod figures;

pub(crate) use figures::VerdictFigures;

use crate::counting::{counted, images};
use crate::printable;
use crate::report::{FaultCounts, MaskFault, escaped};
use crate::table::Table;
use vitpcm::Review;
use vitpcm_masks::Classes;

/// A class is judged from this many images with it and as many without it.
const LEAST_IMAGES: usize = 3;
/// Standard deviations above one half from which a class counts as recognised: one-sided 5 % level.
const CHANCE_DEVIATIONS: f64 = 1.645;
/// From this many images of each kind on, a score within chance means that the class is not recognised.
const ENOUGH_IMAGES: usize = 10;
/// Range of tag F1, in percentage points, that counts as stable.
const STEADY_POINTS: f64 = 5.0;
/// Classes named in a sentence.
const NAMED: usize = 3;

/// The images it was measured on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MeasuredOn {
    /// Images that `train` held out itself.
    HeldOut,
    /// The data set's own validation split, or the user's.
    ValidationSplit,
}

impl MeasuredOn {
    fn counted(self, count: usize) -> String {
        match self {
            MeasuredOn::HeldOut => counted(count, "held-out image", "held-out images"),
            MeasuredOn::ValidationSplit => counted(count, "validation image", "validation images"),
        }
    }
}

/// The verdict.
#[derive(Debug)]
pub(crate) enum Verdict {
    Measured(Measured),
    /// Nothing was held out; the reason, as a sentence.
    NotMeasured(String),
}

#[derive(Debug)]
pub(crate) struct Measured {
    on: MeasuredOn,
    num_images: usize,
    classes: Vec<ClassVerdict>,
    course: Option<Course>,
}

/// The verdict on one class.
#[derive(Debug)]
struct ClassVerdict {
    name: String,
    /// Numbers of training and held-out images with it.
    num_learned: usize,
    num_measured: usize,
    /// Area under the ROC curve of its tag probability: the fraction of pairs (image with the class, image without)
    /// ranked correctly. Chance gives ½.
    ranked_right: Option<f64>,
    /// Faults in the masks of held-out images.
    faults: FaultCounts,
    finding: Finding,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Finding {
    Well,
    Mostly,
    Weakly,
    /// Its masks have an obvious fault, whatever its tag probabilities.
    Faulty(MaskFault),
    /// Within chance, on enough images.
    Chance,
    /// Within chance, on few images.
    Unclear,
    NotMeasured,
}

impl Finding {
    fn new(ranked_right: f64, num_with: usize, num_without: usize) -> Finding {
        let (with, without) = (num_with as f64, num_without as f64);
        // Standard deviation of the Mann-Whitney statistic under the null hypothesis.
        let deviation = ((with + without + 1.0) / (12.0 * with * without)).sqrt();
        let is_better = ranked_right - 0.5 > CHANCE_DEVIATIONS * deviation;
        let are_enough = num_with.min(num_without) >= ENOUGH_IMAGES;
        match ranked_right {
            _ if !is_better && (are_enough || ranked_right < 0.6) => Finding::Chance,
            _ if !is_better => Finding::Unclear,
            _ if ranked_right >= 0.9 => Finding::Well,
            _ if ranked_right >= 0.75 => Finding::Mostly,
            _ => Finding::Weakly,
        }
    }

    fn words(self) -> &'static str {
        match self {
            Finding::Well => "recognised well",
            Finding::Mostly => "recognised in most images",
            Finding::Weakly => "recognised little better than by chance",
            Finding::Faulty(fault) => fault.words(),
            Finding::Chance => "recognised no better than by chance",
            Finding::Unclear => "too few images to tell it from chance",
            Finding::NotMeasured => "not measured: too few images with it or without it",
        }
    }

    fn is_recognised(self) -> bool {
        matches!(self, Finding::Well | Finding::Mostly)
    }
}

/// How tag F1 moved over the last validations, in percent.
#[derive(Debug, PartialEq)]
enum Course {
    Steady(f64, f64),
    Rising(f64, f64),
    Varying(f64, f64),
}

impl Course {
    /// From the tag F1 of all validations in order; `None` if there are too few.
    fn new(tag_f1: &[f64]) -> Option<Course> {
        let num_last = (tag_f1.len() / 3).max(3);
        let (before, last) = tag_f1.split_at_checked(tag_f1.len().checked_sub(num_last)?)?;
        let before = &before[before.len().saturating_sub(num_last)..];
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
        let low = last.iter().copied().fold(f64::INFINITY, f64::min);
        let high = last.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        Some(match high - low {
            // No earlier validation to compare with, or no correct tag at all.
            _ if before.is_empty() || high == 0.0 => return None,
            _ if mean(last) - mean(before) > STEADY_POINTS => Course::Rising(mean(before), mean(last)),
            spread if spread <= STEADY_POINTS => Course::Steady(low, high),
            _ => Course::Varying(low, high),
        })
    }

    fn sentence(&self) -> String {
        match self {
            Course::Steady(low, high) => {
                format!(
                    "Steady at the end: tags {low:.0} to {high:.0} % right (F1) in the last third of the epochs."
                )
            }
            Course::Rising(before, last) => format!(
                "Still rising at the end: tags {before:.0} %, then {last:.0} % right (F1). More epochs may help: the same \
                 command with --resume and a larger --epochs."
            ),
            Course::Varying(low, high) => format!(
                "Unsteady at the end: tags {low:.0} to {high:.0} % right (F1) from epoch to epoch. More images make it steadier."
            ),
        }
    }
}

impl Verdict {
    /// From the kept model's reviews, the number of training images per class, and the tag F1 of all validations.
    pub(crate) fn new(
        on: MeasuredOn,
        classes: &Classes,
        learned: &[usize],
        reviews: &[Review],
        tag_f1: &[f64],
    ) -> Verdict {
        let of_class = |(class, name): (usize, &String)| {
            let num_learned = learned.get(class).copied().unwrap_or(0);
            let has = |review: &&Review| review.given_tags.as_ref().is_some_and(|tags| tags.contains(&class));
            let (with, without): (Vec<&Review>, Vec<&Review>) = reviews.iter().partition(has);
            let scores = |reviews: &[&Review]| -> Vec<f32> {
                reviews.iter().filter_map(|review| review.tag_probabilities.get(class).copied()).collect()
            };
            let ranked_right = (with.len().min(without.len()) >= LEAST_IMAGES)
                .then(|| ranked_right(&scores(&with), &scores(&without)));
            let (num_measured, mut faults) = (with.len(), FaultCounts::default());
            with.iter().for_each(|review| faults.add(review, class));
            let finding = ranked_right
                .map_or(Finding::NotMeasured, |share| Finding::new(share, with.len(), without.len()));
            let finding = match faults.fault() {
                Some(fault) if finding != Finding::Chance => Finding::Faulty(fault),
                _ => finding,
            };
            ClassVerdict { name: name.clone(), num_learned, num_measured, ranked_right, faults, finding }
        };
        let classes = classes.names().iter().enumerate().skip(1).map(of_class);
        Verdict::Measured(Measured {
            on,
            num_images: reviews.len(),
            classes: classes.filter(|class| class.num_learned + class.num_measured > 0).collect(),
            course: Course::new(tag_f1),
        })
    }

    /// The verdict in one line.
    pub(crate) fn sentence(&self) -> String {
        match self {
            Verdict::Measured(measured) => measured.sentence(),
            Verdict::NotMeasured(why) => {
                format!("Not measured: {why} Look at the masks before you use them.")
            }
        }
    }

    /// For the terminal: the classes, the trend, and the verdict as the last line.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        if let Verdict::Measured(measured) = self {
            text += &measured.table();
            text += &measured.course.as_ref().map_or(String::new(), |course| course.sentence() + "\n");
        }
        text + "verdict: " + &self.sentence() + "\n"
    }

    /// For the report.
    pub(crate) fn html(&self) -> String {
        let mut html = format!("<p><strong>{}</strong></p>\n", escaped(&self.sentence()));
        if let Verdict::Measured(measured) = self {
            if let Some(course) = &measured.course {
                html += &format!("<p>{}</p>\n", escaped(&course.sentence()));
            }
            html += &measured.html();
        }
        html
    }
}

impl Measured {
    fn sentence(&self) -> String {
        let those = |is_one: fn(Finding) -> bool| -> Vec<&ClassVerdict> {
            self.classes.iter().filter(|class| is_one(class.finding)).collect()
        };
        let recognised = those(Finding::is_recognised);
        let (chance, weak) = (those(|it| it == Finding::Chance), those(|it| it == Finding::Weakly));
        let faulty = those(|it| matches!(it, Finding::Faulty(_)));
        let open = those(|finding| matches!(finding, Finding::Unclear | Finding::NotMeasured));
        let (num_classes, num_recognised) = (self.classes.len(), recognised.len());
        let on = self.on.counted(self.num_images);
        let mut text = match num_recognised {
            0 if !faulty.is_empty() => format!("No class can be relied on in {on}."),
            0 if chance.is_empty() && weak.is_empty() => {
                format!("{on} are too few to say whether any class is recognised.")
            }
            0 if weak.is_empty() => {
                format!("No class is recognised better than by chance in {on}: do not use these masks.")
            }
            0 => format!("No class is recognised well in {on}."),
            _ if num_recognised == num_classes && num_classes == 1 => {
                format!("The class is recognised in {on}.")
            }
            _ if num_recognised == num_classes => {
                format!("All {num_classes} classes are recognised in {on}.")
            }
            _ => format!(
                "{num_recognised} of {} {} recognised in {on}.",
                counted(num_classes, "class", "classes"),
                if num_recognised == 1 { "is" } else { "are" }
            ),
        };
        let learned_from = |class: &ClassVerdict| images(class.num_learned) + " to learn from";
        for (classes, how) in [(&chance, "no better"), (&weak, "little better")] {
            if !classes.is_empty() {
                text += &format!(" Recognised {how} than by chance: {}.", named(classes, learned_from));
            }
        }
        if !(chance.is_empty() && weak.is_empty()) {
            text += " Add images that show what is missed and similar ones that do not, and check the tags.";
        }
        for fault in MaskFault::ALL {
            let such: Vec<&ClassVerdict> =
                faulty.iter().copied().filter(|class| class.finding == Finding::Faulty(fault)).collect();
            if !such.is_empty() {
                text += " ";
                text += &fault.sentence(&named(&such, |class| class.faults.share(fault)));
            }
        }
        if !faulty.is_empty() {
            text += " Do not use these masks as they are. More epochs may help, and so may images with the same surroundings but \
                     without the class.";
        }
        if !open.is_empty() {
            text += &format!(
                " Too few images to tell: {}.",
                named(&open, |class| self.on.counted(class.num_measured))
            );
        }
        if num_recognised > 0 {
            text +=
                " Recognised tags do not prove good outlines: look at the masks, the least certain first.";
        }
        text
    }

    fn table(&self) -> String {
        let mut table = Table::new(["class", "learned from", "measured on", "ranked right (chance 50 %)"]);
        for class in &self.classes {
            let counts = [class.num_learned, class.num_measured].map(|count| count.to_string());
            table.row([class.name.clone()].into_iter().chain(counts).chain([class.percent()]));
        }
        let words = self.classes.iter().map(|class| class.finding.words());
        let lines = table.to_string();
        let lines = lines.lines().zip(std::iter::once("").chain(words));
        lines.map(|(line, words)| format!("{line}  {words}").trim_end().to_owned() + "\n").collect()
    }

    fn html(&self) -> String {
        let mut html = format!(
            "<p class=\"note\">Measured on {}, which were not trained on: the fraction of pairs (an image with the class, one without) in which the \
             first has the higher probability. Chance is 50 %. The columns count images with the tag.</p>\n<div class=\"panel\"><table>\n<thead><tr><th>class</th><th>learned from</th><th>measured on</th>\
             <th>ranked right</th><th class=\"left\">verdict</th></tr></thead>\n<tbody>\n",
            self.on.counted(self.num_images)
        );
        for class in &self.classes {
            html += &format!(
                "<tr><th>{}</th><td>{}</td><td>{}</td><td>{}</td><td class=\"left\">{}</td></tr>\n",
                escaped(&class.name),
                class.num_learned,
                class.num_measured,
                class.percent(),
                class.finding.words()
            );
        }
        html + "</tbody></table></div>\n"
    }
}

impl ClassVerdict {
    fn percent(&self) -> String {
        self.ranked_right.map_or("–".to_owned(), |share| format!("{:.0} %", 100.0 * share))
    }
}

/// The first classes by name, each with a remark.
fn named(classes: &[&ClassVerdict], remark: impl Fn(&ClassVerdict) -> String) -> String {
    let shown = classes.iter().take(NAMED);
    let shown: Vec<String> =
        shown.map(|class| format!("`{}` ({})", printable::one_line(&class.name), remark(class))).collect();
    let rest = classes.len().saturating_sub(NAMED);
    match rest {
        0 => shown.join(", "),
        _ => format!("{} and {}", shown.join(", "), counted(rest, "other class", "other classes")),
    }
}

/// The fraction of correctly ranked pairs; ties count half.
fn ranked_right(with: &[f32], without: &[f32]) -> f64 {
    let pairs = with.iter().flat_map(|a| without.iter().map(move |b| (a, b)));
    let points: f64 = pairs
        .map(|(a, b)| {
            if a > b {
                1.0
            } else if a == b {
                0.5
            } else {
                0.0
            }
        })
        .sum();
    points / (with.len() * without.len()).max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Images of the first class, of the second and of neither; the first is recognised, the second gets random
    /// probabilities.
    fn reviews(count: usize) -> Vec<Review> {
        let review = |i: usize| {
            let tags = [vec![1], vec![2], vec![]][i % 3].clone();
            let first = if tags == [1] { 0.9 } else { 0.1 };
            let second = ((i / 3) % 2) as f32;
            Review {
                agreement: Vec::new(),
                corner_classes: Vec::new(),
                name: i.to_string(),
                confidence: 0.5,
                areas: vec![(1, 10), (2, 10)],
                given_tags: Some(tags),
                tag_probabilities: vec![1.0, first, second],
                confusion: Vec::new(),
                pictures: None,
            }
        };
        (0..count).map(review).collect()
    }

    fn verdict(num_images: usize) -> Verdict {
        let classes = Classes::from_names(["rust", "miner"]).unwrap();
        Verdict::new(MeasuredOn::HeldOut, &classes, &[0, 80, 14], &reviews(num_images), &[])
    }

    #[test]
    fn a_class_at_chance_is_named_with_what_to_do() {
        let text = verdict(36).text();
        for expected in [
            "recognised well",
            "1 of 2 classes is recognised in 36 held-out images",
            "Recognised no better than by chance: `miner` (14 images to learn from). Add images",
        ] {
            assert!(text.contains(expected), "{expected}: {text}");
        }
        assert!(text.trim_end().lines().last().unwrap().starts_with("verdict: "), "{text}");
    }

    #[test]
    fn few_images_are_not_judged_by() {
        let text = verdict(6).text();
        assert!(text.contains("6 held-out images are too few to say"), "{text}");
        assert_eq!(Finding::new(0.8, 3, 9), Finding::Unclear);
        assert_eq!(Finding::new(0.45, 3, 9), Finding::Chance);
        // With 1000 images of each kind, three standard deviations are 0.03.
        assert_eq!(Finding::new(0.60, 1000, 1000), Finding::Weakly);
        assert_eq!(Finding::new(0.51, 1000, 1000), Finding::Chance);
    }

    #[test]
    fn masks_of_classes_at_chance_are_not_recommended() {
        let classes = Classes::from_names(["miner"]).unwrap();
        let mut reviews = reviews(60);
        reviews.iter_mut().for_each(|review| {
            review.given_tags = Some(vec![1; review.name.parse::<usize>().unwrap() % 2]);
            review.tag_probabilities.truncate(2);
        });
        let verdict = Verdict::new(MeasuredOn::ValidationSplit, &classes, &[0, 14], &reviews, &[]);
        assert!(verdict.sentence().contains("do not use these masks"), "{}", verdict.sentence());
        assert!(verdict.html().contains("60 validation images"), "{}", verdict.html());
    }

    #[test]
    fn a_class_whose_masks_mark_the_corners_is_not_called_recognised() {
        let classes = Classes::from_names(["rust", "miner"]).unwrap();
        let mut reviews = reviews(36);
        reviews.iter_mut().filter(|review| review.given_tags == Some(vec![1])).for_each(|review| {
            review.corner_classes = vec![1];
        });
        let verdict = Verdict::new(MeasuredOn::HeldOut, &classes, &[0, 80, 14], &reviews, &[]);
        let (text, sentence) = (verdict.text(), verdict.sentence());
        assert!(text.contains("its masks mark the corners of the images"), "{text}");
        assert!(!text.contains("recognised well"), "{text}");
        let expected = "Masks mark the corners of the images, which seldom show the object: `rust` (12 of 12 images). Do not use";
        assert!(
            sentence.starts_with("No class can be relied on") && sentence.contains(expected),
            "{sentence}"
        );
    }

    #[test]
    fn figures_say_what_the_text_says() {
        let figures = serde_json::to_value(verdict(36).figures()).unwrap();
        assert_eq!(figures["measured_on"], "held-out");
        assert_eq!(figures["images"], 36);
        let [rust, miner] = [&figures["classes"][0], &figures["classes"][1]];
        assert_eq!((&rust["class"], &rust["ranked_right"]), (&"rust".into(), &100.0.into()));
        assert_eq!((&rust["is_recognised"], &miner["is_recognised"]), (&true.into(), &false.into()));
        assert_eq!((&miner["learned_from"], &miner["measured_on"]), (&14.into(), &12.into()));
        let none = Verdict::NotMeasured("no images were held out.".into()).figures();
        assert!(serde_json::to_value(none).unwrap()["measured_on"].is_null());
    }

    #[test]
    fn pairs_are_ranked_by_hand() {
        assert_eq!(ranked_right(&[0.9, 0.5], &[0.5, 0.1]), 3.5 / 4.0);
    }

    #[test]
    fn the_course_is_that_of_the_last_third() {
        let course = |values: &[f64]| Course::new(values).unwrap();
        assert_eq!(
            course(&[10.0, 40.0, 60.0, 90.0, 92.0, 91.0, 90.0, 92.0, 91.0]),
            Course::Steady(90.0, 92.0)
        );
        assert_eq!(course(&[10.0, 20.0, 30.0, 60.0, 60.0, 60.0]), Course::Rising(20.0, 60.0));
        assert_eq!(course(&[60.0, 60.0, 60.0, 40.0, 80.0, 60.0]), Course::Varying(40.0, 80.0));
        assert!(Course::new(&[1.0, 2.0]).is_none() && Course::new(&[]).is_none());
    }
}
