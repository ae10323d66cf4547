//! Draws latency over load as SVG text. Pure functions.

use super::tally::Point;
use std::fmt::Write;

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 440.0;
/// Margins around the curves: left, top, right, bottom.
const MARGIN: [f64; 4] = [70.0, 70.0, 90.0, 60.0];
/// With more horizontal lines than this, only whole decades are labelled.
const NAMED_MAX: usize = 10;

/// A percentile: its name, its colour and its value.
type Curve = (&'static str, &'static str, fn(&Point) -> f64);

/// Colours that differ in lightness as well.
const CURVES: [Curve; 4] = [
    ("p50", "#1b7837", |point| point.p50),
    ("p95", "#2166ac", |point| point.p95),
    ("p99", "#b2182b", |point| point.p99),
    ("p99.9", "#762a83", |point| point.p99_9),
];

/// 1, 2 and 5 of each decade, from the last value not above `low` to the first not below `high`.
fn ticks(low: f64, high: f64) -> Vec<f64> {
    let decades = low.log10().floor() as i32..=high.log10().ceil() as i32;
    let all: Vec<f64> =
        decades.flat_map(|power| [1.0, 2.0, 5.0].map(|digit| digit * 10_f64.powi(power))).collect();
    let first = all.iter().rposition(|ms| *ms <= low).unwrap_or(0);
    // At least one step, even if all values are equal.
    let last = all.iter().position(|ms| *ms >= high && *ms > all[first]).unwrap_or(all.len() - 1);
    all[first..=last].to_vec()
}

/// Draws the measurements over their load. `what` is a title and a line on how they were made, `axis` names the load, and
/// `bound_ms` is drawn as a horizontal line.
pub(super) fn draw(what: [&str; 2], axis: &str, points: &[Point], bound_ms: f64) -> String {
    let mut drawn: Vec<&Point> = points.iter().filter(|point| point.answered > 0).collect();
    drawn.sort_by(|a, b| a.load.total_cmp(&b.load));
    let latencies =
        drawn.iter().flat_map(|point| CURVES.map(|(_, _, value)| value(point))).filter(|ms| *ms > 0.0);
    let (low, high) =
        latencies.chain([bound_ms]).fold((f64::MAX, 0.0_f64), |(low, high), ms| (low.min(ms), high.max(ms)));
    // Logarithmic: latencies under load span several decades.
    let ticks = ticks(low, high);
    let (lowest, low, high) = (ticks[0], ticks[0].log10(), ticks[ticks.len() - 1].log10());
    let load_max = drawn.iter().map(|point| point.load).fold(0.0, f64::max).max(1.0);
    let [left, top, right, bottom] = MARGIN;
    let x = |load: f64| left + load / load_max * (WIDTH - left - right);
    let y = |ms: f64| top + (high - ms.log10()) / (high - low) * (HEIGHT - top - bottom);

    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<title>{0}</title>\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n<text x=\"{left}\" y=\"28\" font-size=\"15\">{0}</text>\n\
         <text x=\"{left}\" y=\"46\" fill=\"#444444\">{1}</text>\n",
        escaped(what[0]),
        escaped(what[1])
    );
    let mut line = |from: (f64, f64), to: (f64, f64), style: &str| {
        let ((x1, y1), (x2, y2)) = (from, to);
        writeln!(svg, "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" {style}/>")
            .expect("text takes all");
    };
    const GRID: &str = "stroke=\"#dddddd\"";
    for ms in &ticks {
        line((left, y(*ms)), (WIDTH - right, y(*ms)), GRID);
    }
    for point in &drawn {
        line((x(point.load), top), (x(point.load), HEIGHT - bottom), GRID);
    }
    line((left, y(bound_ms)), (WIDTH - right, y(bound_ms)), "stroke=\"#444444\" stroke-dasharray=\"6 4\"");

    let mut text = |at: (f64, f64), anchor: &str, fill: &str, words: &str| {
        let (x, y) = at;
        let words = escaped(words);
        writeln!(
            svg,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" fill=\"{fill}\">{words}</text>"
        )
        .expect("text takes all");
    };
    for ms in &ticks {
        if ticks.len() <= NAMED_MAX || ms.log10().fract() == 0.0 {
            text((left - 8.0, y(*ms) + 4.0), "end", "black", &format!("{ms} ms"));
        }
    }
    // Skips labels that would overlap: loads grow by factors, and are close together near the bound.
    let mut last = f64::MIN;
    for point in &drawn {
        if x(point.load) - last >= 40.0 {
            last = x(point.load);
            text((last, HEIGHT - bottom + 18.0), "middle", "black", &format!("{:.0}", point.load));
        }
    }
    text(((left + WIDTH - right) / 2.0, HEIGHT - 16.0), "middle", "black", axis);
    text((left + 6.0, y(bound_ms) - 5.0), "start", "#444444", &format!("bound: {bound_ms} ms"));
    // Each name is at the end of its curve; placed from below, so that none overlaps another.
    let mut below = f64::MAX;
    for (name, colour, value) in CURVES {
        let end = drawn.last().map_or(top, |point| y(value(point).max(lowest)));
        below = end.min(below - 14.0);
        text((WIDTH - right + 6.0, below + 4.0), "start", colour, name);
    }
    for (name, colour, value) in CURVES {
        let places =
            drawn.iter().map(|point| format!("{:.1},{:.1}", x(point.load), y(value(point).max(lowest))));
        let places = places.collect::<Vec<_>>();
        writeln!(
            svg,
            "<polyline class=\"{name}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" points=\"{}\"/>",
            places.join(" ")
        )
        .expect("text takes all");
        for place in places {
            let (x, y) = place.split_once(',').unwrap_or_default();
            writeln!(svg, "<circle cx=\"{x}\" cy=\"{y}\" r=\"3\" fill=\"{colour}\"/>")
                .expect("text takes all");
        }
    }
    svg.push_str("</svg>\n");
    svg
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn point(load: f64, p50: f64) -> Point {
        let mut tally = super::super::tally::Tally::new(Duration::from_secs(1));
        tally.add(&super::super::tally::Ended {
            status: Ok(200),
            why: String::new(),
            latency: Duration::from_secs_f64(p50 / 1e3),
            late: Duration::ZERO,
            timing: String::new(),
        });
        tally.point(load, 1.0)
    }

    #[test]
    fn each_percentile_is_a_curve_that_rises_with_latency() {
        let svg =
            draw(["a < b & c", "so"], "requests per second", &[point(10.0, 2.0), point(100.0, 50.0)], 100.0);
        assert!(svg.contains("<title>a &lt; b &amp; c</title>"));
        assert_eq!(svg.matches("<polyline").count(), CURVES.len());
        let (_, rest) = svg.split_once("class=\"p50\"").expect("a curve");
        let (_, rest) = rest.split_once("points=\"").expect("its places");
        let places: Vec<Vec<f64>> = rest
            .split('"')
            .next()
            .expect("places")
            .split(' ')
            .map(|place| place.split(',').map(|number| number.parse().expect("a number")).collect())
            .collect();
        // To the right and upwards (towards 0).
        assert!(places[0][0] < places[1][0] && places[0][1] > places[1][1], "{places:?}");
        let inside =
            |place: &Vec<f64>| (0.0..=WIDTH).contains(&place[0]) && (0.0..=HEIGHT).contains(&place[1]);
        assert!(places.iter().all(inside));
    }

    #[test]
    fn a_picture_of_nothing_is_one_all_the_same() {
        assert!(draw(["none", ""], "callers", &[], 100.0).ends_with("</svg>\n"));
    }

    #[test]
    fn lines_across_enclose_what_was_measured() {
        assert_eq!(ticks(1.4, 38.7), [1.0, 2.0, 5.0, 10.0, 20.0, 50.0]);
        assert_eq!(ticks(0.03, 0.05), [0.02, 0.05]);
        assert_eq!(ticks(100.0, 100.0), [100.0, 200.0]);
    }
}
