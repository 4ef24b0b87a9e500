//! Curves as SVG, to stand in an HTML page; colours come from the page's style sheet.

use std::fmt::Write;

const WIDTH: f64 = 460.0;
const HEIGHT: f64 = 210.0;
const LEFT: f64 = 44.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 34.0;

/// A named curve through points (x, y).
pub(crate) struct Curve {
    pub(crate) name: &'static str,
    pub(crate) points: Vec<(f64, f64)>,
}

/// The curves over one pair of axes, from y = 0 up to the largest value. Nothing where there is no point.
pub(crate) fn line_chart(x_title: &str, curves: &[Curve]) -> String {
    let points =
        || curves.iter().flat_map(|curve| &curve.points).filter(|(x, y)| x.is_finite() && y.is_finite());
    let x_max = points().map(|point| point.0).fold(0.0, f64::max);
    let y_max = points().map(|point| point.1).fold(0.0, f64::max);
    if points().next().is_none() || x_max <= 0.0 || y_max <= 0.0 {
        return String::new();
    }
    let tick = round_step(y_max);
    let y_top = (y_max / tick).ceil() * tick;
    let x_of = |x: f64| LEFT + x / x_max * (WIDTH - LEFT - RIGHT);
    let y_of = |y: f64| HEIGHT - BOTTOM - y / y_top * (HEIGHT - TOP - BOTTOM);

    let mut svg = format!("<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" class=\"chart\">\n");
    // Writing to a String cannot fail.
    let mut put = |text: String| svg.write_str(&text).expect("a String takes all");
    for i in 0..=(y_top / tick).round() as usize {
        let value = i as f64 * tick;
        let (y, label) = (y_of(value), short(value));
        let (right, text_x, text_y) = (WIDTH - RIGHT, LEFT - 6.0, y + 4.0);
        put(format!("<line x1=\"{LEFT}\" x2=\"{right}\" y1=\"{y:.1}\" y2=\"{y:.1}\" class=\"rule\"/>"));
        put(format!("<text x=\"{text_x}\" y=\"{text_y:.1}\" text-anchor=\"end\">{label}</text>\n"));
    }
    for (x, anchor) in [(0.0, "start"), (x_max, "end")] {
        let (text_x, text_y, label) = (x_of(x), HEIGHT - BOTTOM + 16.0, short(x));
        put(format!("<text x=\"{text_x:.1}\" y=\"{text_y}\" text-anchor=\"{anchor}\">{label}</text>"));
    }
    let (middle, text_y) = ((LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - BOTTOM + 16.0);
    put(format!("<text x=\"{middle}\" y=\"{text_y}\" text-anchor=\"middle\">{x_title}</text>\n"));
    for (i, curve) in curves.iter().enumerate() {
        let coordinates: Vec<String> =
            curve.points.iter().map(|&(x, y)| format!("{:.1},{:.1}", x_of(x), y_of(y))).collect();
        put(format!("<polyline points=\"{}\" class=\"curve curve-{i}\"/>\n", coordinates.join(" ")));
        let (x, y) = (LEFT + 10.0 + 110.0 * i as f64, HEIGHT - 4.0);
        put(format!("<text x=\"{x}\" y=\"{y}\" class=\"curve-name-{i}\">● {}</text>\n", curve.name));
    }
    put("</svg>".to_string());
    svg
}

/// 1, 2 or 5 times a power of ten, so that three to seven of them make up the value.
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
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_string()
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
    fn a_chart_holds_its_curves_and_survives_having_none() {
        assert_eq!(line_chart("step", &[]), "");
        let chart = line_chart("step", &[Curve { name: "loss", points: vec![(1.0, 2.0), (2.0, f64::NAN)] }]);
        assert!(chart.contains("loss") && chart.contains("polyline"));
    }
}
