//! What a page shows of ONNX graphs, quantized and evaluated.

use super::activations;
use super::chart::Bars;
use super::histograms::{Histogram, Histograms, logarithms};
use super::pictures;
use super::{Object, Part, known_facts, number, percent, table};
use crate::text::size;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Bars of the tensors that differ most.
const SHOWN: usize = 40;

pub(super) fn quantized(object: &Object<'_>) -> Vec<Part> {
    let (before, after) = (object.count("source_bytes").unwrap_or(0), object.count("output_bytes").unwrap_or(0));
    let quality = object.object("quality");
    let outputs: Vec<Object<'_>> = quality.objects("outputs").collect();
    let least = outputs.iter().filter_map(|output| output.number("sqnr_db")).reduce(f64::min);
    let mut figures =
        vec![("size".to_owned(), size::bytes(after)), ("size of the source".to_owned(), size::bytes(before))];
    figures.extend(least.map(|least| ("SQNR of outputs, dB".to_owned(), number(Some(least)))));
    figures.extend(quality.number("top1_agreement").map(|share| ("same top class".to_owned(), percent(Some(share)))));
    let report = object.object("report");
    let count = |key: &str| report.count(key).map(|count| count.to_string()).unwrap_or_default();
    let facts = [
        ("output", object.text("output").to_owned()),
        ("nodes", format!("{} of {} quantized", count("quantized_nodes"), count("nodes"))),
        ("activations", types(&report, "activation")),
        ("weights", types(&report, "weight")),
        ("calibration samples", count("samples")),
        ("algorithms", report.texts("algorithms").join(", ")),
        ("engine", object.text("engine").to_owned()),
    ];
    let mut parts = vec![Part::Figures(figures), known_facts(facts)];
    parts.extend(attempts(&object.object("accuracy")));
    parts.extend(closeness("Outputs", outputs));
    parts.extend(pictures::parts(&quality));
    parts.extend(closeness("Tensors that differ most", quality.objects("worst_tensors").collect()));
    let fails = quality.text("optimized_fails");
    let fails =
        (!fails.is_empty()).then(|| format!("onnxruntime does not run it with its graph optimizations: {fails}"));
    let notes: Vec<String> = fails.into_iter().chain(quality.texts("warnings")).collect();
    if !notes.is_empty() {
        parts.extend([Part::Heading("Notices".to_owned()), Part::List(notes)]);
    }
    let ways = quality.objects("suggestions").map(|way| format!("{}: {}", way.text("option"), way.text("about")));
    let ways: Vec<String> = ways.collect();
    if !ways.is_empty() {
        parts.extend([Part::Heading("What may help, the cheapest first".to_owned()), Part::List(ways)]);
    }
    parts.extend(activations::of_tensors(&report));
    let mut all = table(&["tensor", "role", "type", "method"], &["least", "largest", "scale"]);
    for tensor in report.objects("tensors") {
        let texts = ["name", "role", "dtype", "method"].map(|key| tensor.text(key).to_owned());
        let range = tensor.object("range");
        let numbers = [range.number("low"), range.number("high"), tensor.number("scale")].map(number);
        all.push(texts.into_iter().chain(numbers));
    }
    if !all.rows().is_empty() {
        parts.extend([Part::Heading("Quantized tensors".to_owned()), Part::Table(all)]);
    }
    parts
}

/// The types of the tensors of a role, the most frequent first.
fn types(report: &Object<'_>, role: &str) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for tensor in report.objects("tensors").filter(|tensor| tensor.text("role") == role) {
        *counts.entry(tensor.text("dtype")).or_default() += 1;
    }
    let mut counts: Vec<(&str, usize)> = counts.into_iter().collect();
    counts.sort_by_key(|(_, count)| Reverse(*count));
    counts.iter().map(|(dtype, count)| format!("{count} of {dtype}")).collect::<Vec<_>>().join(", ")
}

pub(super) fn evaluated(object: &Object<'_>) -> Vec<Part> {
    let rows = [
        ("same top class", object.number("top1_agreement").map(|share| percent(Some(share)))),
        ("accuracy", object.number("top1").map(|share| percent(Some(share)))),
        ("accuracy of the reference", object.number("reference_top1").map(|share| percent(Some(share)))),
        ("samples", object.count("samples").map(|count| count.to_string())),
    ];
    let figures: Vec<(String, String)> =
        rows.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect();
    let mut parts = if figures.is_empty() { Vec::new() } else { vec![Part::Figures(figures)] };
    parts.extend(times(&object.object("time")));
    parts.extend(closeness("Outputs", object.objects("outputs").collect()));
    parts.extend(pictures::parts(object));
    parts.extend(closeness("Tensors", object.objects("tensors").collect()));
    parts
}

/// The recipes that were tried, and what was measured of each.
fn attempts(accuracy: &Object<'_>) -> Vec<Part> {
    let mut all = table(&["recipe", "result"], &["metric", "drop", "SQNR, dB", "size", "seconds"]);
    for attempt in accuracy.objects("attempts") {
        let problem = attempt.text("problem");
        let is_accepted = attempt.get("accepted").and_then(serde_json::Value::as_bool) == Some(true);
        let result = match (is_accepted, problem.is_empty()) {
            (true, _) => "within the limits".to_owned(),
            (false, true) => "rejected".to_owned(),
            (false, false) => format!("rejected: {problem}"),
        };
        let widened = attempt.list("widened").len();
        let recipe = match widened {
            0 => attempt.text("recipe").to_owned(),
            _ => format!(
                "{}, {} with wider types",
                attempt.text("recipe"),
                kvant_quant::counts::number(widened, "layer")
            ),
        };
        let bytes = attempt.count("bytes").map_or_else(|| "-".to_owned(), size::bytes);
        let [value, drop, sqnr, seconds] =
            ["value", "drop", "sqnr_db", "seconds"].map(|key| number(attempt.number(key)));
        all.push([recipe, result, value, drop, sqnr, bytes, seconds]);
    }
    if all.rows().is_empty() {
        return Vec::new();
    }
    let facts = [
        ("metric", accuracy.text("metric").to_owned()),
        (
            "metric of the float graph",
            accuracy.number("reference").map(|value| number(Some(value))).unwrap_or_default(),
        ),
        ("largest drop allowed", accuracy.number("max_drop").map(|value| number(Some(value))).unwrap_or_default()),
        ("samples", accuracy.count("samples").map(|count| count.to_string()).unwrap_or_default()),
    ];
    vec![Part::Heading("Recipes that were tried".to_owned()), known_facts(facts), Part::Table(all)]
}

/// How long an inference takes.
fn times(time: &Object<'_>) -> Vec<Part> {
    let mut all = table(&["graph"], &["median, ms", "lower quartile", "upper quartile"]);
    for (title, key) in
        [("the model", "model"), ("its reference", "reference")].into_iter().filter(|(_, key)| time.has(key))
    {
        let found = time.object(key);
        let numbers = ["median_ms", "q1_ms", "q3_ms"].map(|key| number(found.number(key)));
        all.push(std::iter::once(title.to_owned()).chain(numbers));
    }
    if all.rows().is_empty() {
        return Vec::new();
    }
    let facts = [
        ("engine", time.text("engine").to_owned()),
        ("threads", time.count("threads").map(|count| count.to_string()).unwrap_or_default()),
        ("inferences of each graph", time.count("runs").map(|count| count.to_string()).unwrap_or_default()),
        (
            "median as a multiple of the reference's",
            time.number("ratio").map(|ratio| number(Some(ratio))).unwrap_or_default(),
        ),
    ];
    vec![Part::Heading("Time of an inference".to_owned()), known_facts(facts), Part::Table(all)]
}

/// How close tensors are to those of the float graph, the furthest first.
fn closeness(heading: &str, mut tensors: Vec<Object<'_>>) -> Vec<Part> {
    if tensors.is_empty() {
        return Vec::new();
    }
    let decibels = |tensor: &Object<'_>| tensor.number("sqnr_db").unwrap_or(f64::MAX);
    tensors.sort_by(|a, b| decibels(a).total_cmp(&decibels(b)));
    let bars = tensors.iter().filter_map(|tensor| Some((tensor.text("name").to_owned(), tensor.number("sqnr_db")?)));
    let rows: Vec<(String, f64)> = bars.take(SHOWN).collect();
    let mut all = table(&["tensor", "operator"], &["SQNR, dB", "cosine", "largest error"]);
    for tensor in &tensors {
        let numbers = ["sqnr_db", "cosine", "max_error"].map(|key| number(tensor.number(key)));
        all.push([tensor.text("name"), tensor.text("op")].map(str::to_owned).into_iter().chain(numbers));
    }
    let title = "Signal-to-noise ratio beside the float graph (higher is better)".to_owned();
    let bars = Part::Bars(Bars { title, unit: "dB".to_owned(), rows });
    [Part::Heading(heading.to_owned()), bars].into_iter().chain(values(&tensors)).chain([Part::Table(all)]).collect()
}

/// The values of tensors in both graphs, where these were gathered.
fn values(tensors: &[Object<'_>]) -> Option<Part> {
    let of_tensor = |tensor: &Object<'_>| {
        let found = tensor.object("histogram");
        let bins = found.object("bins");
        Histogram {
            name: tensor.text("name").to_owned(),
            note: String::new(),
            ends: ["low", "high"].map(|end| bins.number(end).unwrap_or(0.0)),
            area: logarithms(&found.numbers("before")),
            line: logarithms(&found.numbers("after")),
            covered: None,
            is_clipped: false,
        }
    };
    let rows: Vec<Histogram> = tensors.iter().filter(|tensor| tensor.has("histogram")).map(of_tensor).collect();
    let title =
        "Values of the float graph (area) and of the quantized graph (line), with logarithmic counts".to_owned();
    (!rows.is_empty()).then_some(Part::Histograms(Histograms { title, rows }))
}
