//! One chart as SVG, for pages without scripts.
//!
//! A chart is text from numbers: no scripts, no fonts, no network. Points carry their values as
//! `<title>`, which browsers show when the mouse rests on them. `chart.js` draws the same where scripts run.

use maud::{Markup, html};

/// A curve: its name and its points, by step.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// Its name.
    pub name: String,
    /// Its points: step and value.
    pub points: Vec<(f64, f64)>,
}

const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 240.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 30.0;

/// More points than pixels make a file large and no curve clearer.
const MOST_POINTS: usize = 1000;

/// Draws curves that share their axes.
pub fn chart(title: &str, curves: &[Curve]) -> Markup {
    let all = || curves.iter().flat_map(|curve| &curve.points).copied();
    let (x_low, x_high) = range(all().map(|(x, _)| x));
    let (y_low, y_high) = padded(range(all().map(|(_, y)| y)));
    let x = |value: f64| LEFT + (value - x_low) / (x_high - x_low) * (WIDTH - LEFT - RIGHT);
    let y =
        |value: f64| HEIGHT - BOTTOM - (value - y_low) / (y_high - y_low) * (HEIGHT - TOP - BOTTOM);

    let whole_steps = ticks(x_low, x_high).into_iter();
    let whole_steps = whole_steps.filter(|tick| tick.fract() == 0.0);
    html! {
        svg.plot viewBox=(format_args!("0 0 {WIDTH} {HEIGHT}")) role="img" aria-label=(title) {
            @for tick in ticks(y_low, y_high) {
                line.gridline x1=(pixels(LEFT)) y1=(pixels(y(tick))) x2=(pixels(WIDTH - RIGHT)) y2=(pixels(y(tick))) {}
                text.tick.end x=(pixels(LEFT - 6.0)) y=(pixels(y(tick) + 4.0)) { (number(tick)) }
            }
            @for tick in whole_steps {
                text.tick.mid x=(pixels(x(tick))) y=(pixels(HEIGHT - 10.0)) { (number(tick)) }
            }
            @for (index, curve) in curves.iter().enumerate() {
                @let points = thinned(&curve.points);
                @let path = points.iter().map(|(a, b)| format!("{},{}", pixels(x(*a)), pixels(y(*b))));
                polyline class=(format_args!("curve k{index}")) points=(path.collect::<Vec<_>>().join(" ")) {}
                // Dots where there is room to point at one.
                @if points.len() <= 100 {
                    @for (a, b) in points {
                        circle class=(format_args!("dot k{index}")) cx=(pixels(x(a))) cy=(pixels(y(b))) r="2.5" {
                            title { (curve.name) ", step " (number(a)) ": " (number(b)) }
                        }
                    }
                }
            }
        }
    }
}

/// Writes a place to a tenth of a pixel.
fn pixels(place: f64) -> String {
    format!("{place:.1}")
}

fn range(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let start = (f64::INFINITY, f64::NEG_INFINITY);
    let (low, high) = values.fold(start, |(low, high), value| {
        (low.min(value), high.max(value))
    });
    match (low.is_finite(), low < high) {
        (false, _) => (0.0, 1.0),
        // A single value gets room on both sides.
        (true, false) => (low - 0.5, low + 0.5),
        (true, true) => (low, high),
    }
}

fn padded((low, high): (f64, f64)) -> (f64, f64) {
    let margin = (high - low) * 0.05;
    (low - margin, high + margin)
}

/// Returns three to eight round numbers in a range.
fn ticks(low: f64, high: f64) -> Vec<f64> {
    let rough = (high - low) / 5.0;
    let power = 10_f64.powf(rough.log10().floor());
    let factor = [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .find(|factor| factor * power >= rough);
    let step = factor.unwrap_or(10.0) * power;
    let first = (low / step).ceil();
    let count = ((high / step).floor() - first).max(0.0) as usize;
    (0..=count.min(20))
        .map(|index| (first + index as f64) * step)
        .collect()
}

/// Writes a number with four significant digits.
pub fn number(value: f64) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    let digits = value.abs().log10().floor() as i32;
    if !(-4..7).contains(&digits) {
        return format!("{value:.2e}");
    }
    let text = format!("{value:.*}", (3 - digits).max(0) as usize);
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

fn thinned(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let every = points.len().div_ceil(MOST_POINTS).max(1);
    let last = points
        .last()
        .filter(|_| !points.len().saturating_sub(1).is_multiple_of(every));
    points.iter().step_by(every).chain(last).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_inside() {
        assert_eq!(ticks(0.0, 10.0), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        for (low, high) in [(0.0, 1e-7), (-3.0, 17.0), (1e6, 1.1e6), (0.37, 0.38)] {
            let ticks = ticks(low, high);
            assert!((2..=8).contains(&ticks.len()), "{low} to {high}: {ticks:?}");
        }
    }

    #[test]
    fn numbers_are_short() {
        let cases = [
            (0.0, "0"),
            (1.0, "1"),
            (0.12345, "0.1235"),
            (-12.5, "-12.5"),
            (123456.0, "123456"),
            (1e-9, "1.00e-9"),
        ];
        for (value, text) in cases {
            assert_eq!(number(value), text);
        }
    }

    #[test]
    fn a_curve_of_one_point_or_none_is_drawn_without_nonsense() {
        for points in [vec![], vec![(0.0, 2.0)], vec![(0.0, 1.0), (1.0, 1.0)]] {
            let svg = chart(
                "x",
                &[Curve {
                    name: "x".to_owned(),
                    points,
                }],
            )
            .into_string();
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
    }

    #[test]
    fn long_curves_keep_their_ends() {
        let points: Vec<_> = (0..5000).map(|n| (f64::from(n), 0.0)).collect();
        let thin = thinned(&points);
        assert!(thin.len() <= MOST_POINTS + 1);
        assert_eq!((thin[0].0, thin[thin.len() - 1].0), (0.0, 4999.0));
    }
}
