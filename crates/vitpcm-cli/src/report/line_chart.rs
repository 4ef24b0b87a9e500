//! Line charts as inline SVG; the page's style sheet sets the colours.

use super::page::escaped;
use std::fmt::Write;

const WIDTH: f64 = 460.0;
const HEIGHT: f64 = 200.0;
const LEFT: f64 = 46.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 34.0;

/// Colours that the style sheet has for curves.
const COLOURS: usize = 6;

/// A named curve through points (x, y).
pub(crate) struct Curve {
    pub(crate) name: String,
    pub(crate) points: Vec<(f64, f64)>,
}

/// Curves on one pair of axes, from (0, 0) to the largest values, with a heading and a legend. Curves without a finite
/// point are left out; without any curve the result is empty.
pub(crate) fn line_chart(title: &str, x_title: &str, curves: &[Curve]) -> String {
    let finite = |point: &&(f64, f64)| point.0.is_finite() && point.1.is_finite();
    let curves: Vec<(&str, Vec<(f64, f64)>)> = curves
        .iter()
        .map(|curve| (curve.name.as_str(), curve.points.iter().filter(finite).copied().collect::<Vec<_>>()))
        .filter(|(_, points)| !points.is_empty())
        .collect();
    let largest =
        |of: fn(&(f64, f64)) -> f64| curves.iter().flat_map(|(_, points)| points).map(of).fold(0.0, f64::max);
    let (x_max, y_max) = (largest(|point| point.0), largest(|point| point.1));
    if curves.is_empty() || x_max <= 0.0 || y_max <= 0.0 {
        return String::new();
    }
    let tick = round_step(y_max);
    let y_top = (y_max / tick).ceil() * tick;
    let x_of = |x: f64| LEFT + x / x_max * (WIDTH - LEFT - RIGHT);
    let y_of = |y: f64| HEIGHT - BOTTOM - y / y_top * (HEIGHT - TOP - BOTTOM);

    let title = escaped(title);
    let mut html = format!(
        "<div class=\"panel\"><h3>{title}</h3><svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{title}\" \
         class=\"chart\">\n"
    );
    // Writing to a String cannot fail.
    let mut put = |text: std::fmt::Arguments<'_>| html.write_fmt(text).expect("a String takes all");
    let right = WIDTH - RIGHT;
    for i in 0..=(y_top / tick).round() as usize {
        let value = i as f64 * tick;
        let (y, label, text_x) = (y_of(value), short(value), LEFT - 7.0);
        put(format_args!("<line x1=\"{LEFT}\" x2=\"{right}\" y1=\"{y:.1}\" y2=\"{y:.1}\" class=\"rule\"/>"));
        put(format_args!("<text x=\"{text_x}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>\n", y + 4.0));
    }
    let (below, step) = (HEIGHT - BOTTOM + 16.0, round_step(x_max));
    for i in 0..=(x_max / step) as usize {
        let (x, label) = (x_of(i as f64 * step), short(i as f64 * step));
        put(format_args!("<text x=\"{x:.1}\" y=\"{below}\" text-anchor=\"middle\">{label}</text>"));
    }
    put(format_args!(
        "<text x=\"{right}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\n",
        below + 14.0,
        escaped(x_title)
    ));
    for (i, (_, points)) in (0..COLOURS).cycle().zip(&curves) {
        if let [(x, y)] = points[..] {
            put(format_args!(
                "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\" class=\"dot curve-{i}\"/>\n",
                x_of(x),
                y_of(y)
            ));
            continue;
        }
        put(format_args!("<polyline class=\"curve curve-{i}\" points=\""));
        points.iter().for_each(|&(x, y)| put(format_args!("{:.1},{:.1} ", x_of(x), y_of(y.max(0.0)))));
        put(format_args!("\"/>\n"));
    }
    put(format_args!("</svg><ul class=\"chart-legend\">"));
    for (i, (name, points)) in (0..COLOURS).cycle().zip(&curves) {
        let last = points.last().map_or_else(String::new, |point| short(point.1));
        put(format_args!("<li><i class=\"curve-{i}\"></i>{}: {last} now</li>", escaped(name)));
    }
    put(format_args!("</ul></div>\n"));
    html
}

/// 1, 2 or 5 times a power of ten, so that three to seven steps cover the value.
fn round_step(value: f64) -> f64 {
    let power = 10f64.powf((value / 4.0).log10().floor());
    let leading = value / 4.0 / power;
    power
        * if leading < 1.5 {
            1.0
        } else if leading < 3.5 {
            2.0
        } else if leading < 7.5 {
            5.0
        } else {
            10.0
        }
}

fn short(value: f64) -> String {
    match value {
        _ if value == 0.0 => "0".to_owned(),
        _ if value.abs() < 0.001 => format!("{value:.1e}").replace(".0e", "e"),
        _ if value.abs() >= 100.0 => format!("{value:.0}"),
        _ => {
            let text = if value.abs() >= 10.0 { format!("{value:.2}") } else { format!("{value:.3}") };
            text.trim_end_matches('0').trim_end_matches('.').to_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_round_numbers() {
        for (value, step) in [(0.8, 0.2), (66.0, 20.0), (100.0, 20.0), (3.9, 1.0), (0.05, 0.01)] {
            assert!((round_step(value) - step).abs() < 1e-9, "{value}: {}", round_step(value));
        }
    }

    #[test]
    fn numbers_are_short() {
        let values = [0.0, 0.25, 90.7312, 1500.0, 0.0002, 0.00015].map(short);
        assert_eq!(values, ["0", "0.25", "90.73", "1500", "2e-4", "1.5e-4"]);
    }

    #[test]
    fn a_chart_holds_its_curves_and_survives_having_none() {
        let curve = |points: &[(f64, f64)]| Curve { name: "tags".to_owned(), points: points.to_vec() };
        assert_eq!(line_chart("Loss", "step", &[]), "");
        assert_eq!(line_chart("Loss", "step", &[curve(&[(1.0, f64::NAN)])]), "");
        let chart = line_chart("Loss", "step", &[curve(&[(1.0, 2.0), (2.0, f64::NAN), (3.0, 1.0)])]);
        assert!(
            chart.contains("tags: 1 now") && chart.contains("polyline") && !chart.contains("NaN"),
            "{chart}"
        );
        assert!(line_chart("Loss", "step", &[curve(&[(1.0, 2.0)])]).contains("circle"));
    }
}
