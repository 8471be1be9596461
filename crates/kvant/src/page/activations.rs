//! The activations of checkpoints and graphs, with the ranges that their scales cover.

use super::histograms::{Histogram, Histograms, logarithms};
use super::{Object, Part, number, percent, table};
use kvant_quant::counts;

const WITH_RANGES: &str =
    "Activations by value, with logarithmic counts. The scale covers what is shaded; values beyond it are clipped";
const WITHOUT_RANGES: &str = "Activations by value, with logarithmic counts";

/// A histogram of each point of a checkpoint with its range, and a table of the same; what is said of scales that are found later.
pub(super) fn parts(object: &Object<'_>) -> Vec<Part> {
    let points: Vec<Object<'_>> = object.objects("activations").collect();
    let schemes: Vec<String> = object.objects("input_schemes").filter_map(|row| scheme(&row)).collect();
    if points.is_empty() && schemes.is_empty() {
        return Vec::new();
    }
    let mut parts = vec![Part::Heading("Activations".to_owned())];
    parts.extend(schemes.into_iter().map(Part::Text));
    if !points.is_empty() {
        parts.extend(of_points(points.into_iter().map(|point| (name(&point), missing(&point), point))));
    }
    parts
}

/// The histograms of the tensors of a graph that have one.
pub(super) fn of_tensors(report: &Object<'_>) -> Vec<Part> {
    let tensors = report.objects("tensors").filter(|tensor| tensor.has("histogram"));
    let rows = tensors.map(|tensor| (tensor.text("name").to_owned(), String::new(), tensor.object("histogram")));
    let rows: Vec<_> = rows.collect();
    if rows.is_empty() {
        return Vec::new();
    }
    let mut parts = vec![Part::Heading("Activations".to_owned())];
    parts.extend(of_points(rows.into_iter()));
    parts
}

/// The charts and the table of points, each with its name and what is said where there is no range.
fn of_points<'v>(points: impl Iterator<Item = (String, String, Object<'v>)>) -> [Part; 2] {
    let mut all = table(&["activations"], &["least", "greatest", "covered from", "to", "clipped", "values"]);
    let mut rows = Vec::new();
    for (name, missing, point) in points {
        let ends = ["low", "high"].map(|end| point.object("range").number(end));
        let clipped = point.number("clipped");
        let numbers = [point.number("min"), point.number("max"), ends[0], ends[1]].map(number);
        let values = point.count("values").map(|values| values.to_string()).unwrap_or_default();
        all.push(std::iter::once(name.clone()).chain(numbers).chain([percent(clipped), values]));
        let note = match ends {
            [Some(low), Some(high)] => format!("{}, {}", covered(low, high), clipped_share(clipped)),
            _ => missing,
        };
        rows.push(Histogram {
            name,
            note,
            ends: ["low", "high"].map(|end| point.object("bins").number(end).unwrap_or(0.0)),
            area: logarithms(&point.numbers("counts")),
            line: Vec::new(),
            covered: ends[0].zip(ends[1]).map(|(low, high)| [low, high]),
            is_clipped: clipped.is_some_and(|share| share > 0.0),
        });
    }
    let title = if rows.iter().any(|row| row.covered.is_some()) { WITH_RANGES } else { WITHOUT_RANGES };
    [Part::Histograms(Histograms { title: title.to_owned(), rows }), Part::Table(all)]
}

fn covered(low: f64, high: f64) -> String {
    format!("{} to {} covered", number(Some(low)), number(Some(high)))
}

fn clipped_share(share: Option<f64>) -> String {
    match share {
        None => "share of clipped values unknown".to_owned(),
        Some(0.0) => "nothing clipped".to_owned(),
        Some(share) if share < 0.000_05 => "less than 0.01 % clipped".to_owned(),
        share => format!("{} clipped", percent(share)),
    }
}

/// Why there is no range.
fn missing(point: &Object<'_>) -> String {
    let why = match point.text("timing") {
        "" => "not quantized",
        "dynamic" => "dynamic scales",
        _ => "a scale for each feature",
    };
    why.to_owned()
}

/// How the inputs of some layers are quantized. Of scales that are found while the model runs nobody should look for a range.
fn scheme(row: &Object<'_>) -> Option<String> {
    let layers = counts::number(usize::try_from(row.count("layers")?).ok()?, "layer");
    let said = format!("The inputs of {layers} are quantized as {}", row.text("scheme"));
    let later = "Their scales are found while the model runs: no range is chosen in advance.";
    Some(if row.text("timing") == "dynamic" { format!("{said}. {later}") } else { format!("{said}.") })
}

/// The layers that read the activations, the last parts of their names where the others are the same; or what the activations are.
fn name(point: &Object<'_>) -> String {
    let spelled = point.text("point");
    let (kind, rest) = spelled.split_once(':').unwrap_or(("", spelled));
    let layers = point.texts("layers");
    let joined = match layers.split_first() {
        Some((first, others)) => std::iter::once(first.clone()).chain(others.iter().map(|other| after(first, other))),
        None => return of_block(kind, rest),
    };
    let joined = joined.collect::<Vec<_>>().join(", ");
    if kind == "output" { format!("output of {joined}") } else { joined }
}

/// A name without the modules that it shares with another.
fn after(first: &str, other: &str) -> String {
    let parent = first.rsplit_once('.').map_or("", |(parent, _)| parent);
    let rest = other.strip_prefix(parent).and_then(|rest| rest.strip_prefix('.'));
    rest.filter(|_| !parent.is_empty()).unwrap_or(other).to_owned()
}

fn of_block(kind: &str, block: &str) -> String {
    let what = match kind {
        "key" => "keys",
        "value" => "values",
        "query" => "queries",
        "probabilities" => "attention weights",
        _ => return block.to_owned(),
    };
    format!("{what} of block {block}")
}
