//! What a page shows of searches: mixes for checkpoints and GGUF files, and sensitivities of graphs.

use super::chart::{Bars, Point, Points, Series};
use super::{Object, Part, known_facts, number, percent, scientific, table, with_error};
use crate::text::size;

/// Bars of the most sensitive groups or layers.
const SHOWN: usize = 40;

/// What predictions are, and how to get a mix that is only predicted.
const PREDICTED: &str = "Predictions are sums of what each group loses alone, scaled to the measured mixes of one type. A predicted mix is the best that \
    is known of its size: give a little more than its size as the target to get its recipe.";

/// Mixes by size and divergence, and what every option loses in each group.
pub(super) fn mixes(object: &Object<'_>) -> Vec<Part> {
    let chosen = object.object("chosen");
    let mut parts = Vec::new();
    if let Some(bytes) = chosen.count("bytes") {
        let figures = [
            ("size of the mix", size::bytes(bytes)),
            ("bits per weight", number(chosen.number("bits_per_weight"))),
            ("KL divergence, nats", with_error(kl(&chosen), chosen.number("kl_error"))),
            ("same top token", percent(chosen.number("top1_agreement"))),
        ];
        parts.push(Part::Figures(figures.map(|(name, value)| (name.to_owned(), value)).to_vec()));
    }
    let facts = [
        ("format", object.text("format").to_owned()),
        ("types to choose from", object.texts("options").join(", ")),
        ("loads with", object.texts("loaders").join(", ")),
        ("losses of groups", object.text("method").to_owned()),
        ("tokens of the text", number_of(object.count("tokens"))),
    ];
    parts.push(known_facts(facts));
    parts.extend([
        Part::Heading("Size and divergence".to_owned()),
        Part::Points(front(object)),
        Part::Text(PREDICTED.to_owned()),
        Part::Table(compared(object)),
    ]);
    parts.extend([
        Part::Heading("Groups of layers".to_owned()),
        Part::Bars(groups(object)),
        Part::Table(choices(object)),
    ]);
    parts
}

fn number_of(count: Option<u64>) -> String {
    count.map_or_else(String::new, |count| count.to_string())
}

/// The measured divergence, else the predicted one.
fn kl(mix: &Object<'_>) -> Option<f64> {
    mix.number("kl").or_else(|| mix.number("predicted_kl"))
}

fn front(object: &Object<'_>) -> Points {
    let point = |mix: Object<'_>| {
        Some(Point { x: mix.count("bytes")? as f64 / 1e6, y: kl(&mix).filter(|kl| *kl > 0.0)?, name: name(&mix) })
    };
    let series = |name: &str, is_line, points: Vec<Point>| Series { name: name.to_owned(), is_line, points };
    let all = [
        series("predicted mixes", true, object.objects("front").filter_map(point).collect()),
        series(
            "one type everywhere, or higher at both ends (measured)",
            false,
            object.objects("compared").filter_map(point).collect(),
        ),
        series("the mix for the target (measured)", false, point(object.object("chosen")).into_iter().collect()),
    ];
    Points {
        title: "KL divergence from the model by size (lower and further left is better)".to_owned(),
        x: "MB".to_owned(),
        y: "nats".to_owned(),
        series: all.into_iter().filter(|series| !series.points.is_empty()).collect(),
    }
}

fn name(mix: &Object<'_>) -> String {
    match mix.text("name") {
        "front" => "a mix, predicted".to_owned(),
        "search" => "the mix for the target".to_owned(),
        name => name.to_owned(),
    }
}

fn compared(object: &Object<'_>) -> crate::text::Table {
    let mut all = table(&["mix"], &["size", "bits per weight", "KL predicted", "KL measured", "same top token"]);
    let mut mixes: Vec<Object<'_>> = object.objects("front").chain(object.objects("compared")).collect();
    mixes.extend(Some(object.object("chosen")).filter(|chosen| chosen.has("bytes")));
    mixes.sort_by_key(|mix| mix.count("bytes"));
    for mix in mixes {
        let numbers = [
            number(mix.number("bits_per_weight")),
            number(mix.number("predicted_kl")),
            with_error(mix.number("kl"), mix.number("kl_error")),
        ];
        // Neighbours differ by less than rounded sizes show.
        let size = format!("{} MB", number(Some(mix.count("bytes").unwrap_or(0) as f64 / 1e6)));
        all.push([name(&mix), size].into_iter().chain(numbers).chain([percent(mix.number("top1_agreement"))]));
    }
    all
}

/// The most that a type loses in a group.
fn worst(group: &Object<'_>) -> f64 {
    group.objects("choices").filter_map(|choice| choice.number("kl")).fold(0.0, f64::max)
}

/// The same of all groups.
fn groups(object: &Object<'_>) -> Bars {
    let row = |group: Object<'_>| (group.text("group").to_owned(), worst(&group));
    let mut rows: Vec<(String, f64)> = object.objects("groups").map(row).collect();
    rows.sort_by(|a, b| b.1.total_cmp(&a.1));
    rows.truncate(SHOWN);
    let title = "KL divergence with the group alone in its worst type, the most sensitive first";
    Bars { title: title.to_owned(), unit: "nats".to_owned(), rows }
}

/// What each group loses alone in each type, in nats, in the order of the bars.
fn choices(object: &Object<'_>) -> crate::text::Table {
    let options = object.texts("options");
    let columns: Vec<&str> = options.iter().map(String::as_str).filter(|option| *option != "float").collect();
    let titles: Vec<String> = columns.iter().map(|option| format!("{option}, nats")).collect();
    let numbers: Vec<&str> = std::iter::once("weights").chain(titles.iter().map(String::as_str)).collect();
    let mut all = table(&["group", "chosen"], &numbers);
    let mut groups: Vec<Object<'_>> = object.objects("groups").collect();
    groups.sort_by(|a, b| worst(b).total_cmp(&worst(a)));
    for group in groups {
        let losses = columns.iter().map(|option| {
            let choice = group.objects("choices").find(|choice| choice.text("option") == *option);
            scientific(choice.and_then(|choice| choice.number("kl")))
        });
        let texts = [group.text("group").to_owned(), group.text("chosen").to_owned()];
        all.push(texts.into_iter().chain([number_of(group.count("weights"))]).chain(losses));
    }
    all
}

/// What each layer of a graph loses alone.
pub(super) fn layers(object: &Object<'_>) -> Vec<Part> {
    let decibels = |value: &serde_json::Value| Object::of(value).number("sqnr_db");
    let mut rows: Vec<(String, f64)> = object
        .objects("layers")
        .filter_map(|layer| Some((layer.text("layer").to_owned(), layer.list("alone").first().and_then(decibels)?)))
        .collect();
    rows.sort_by(|a, b| a.1.total_cmp(&b.1));
    rows.truncate(SHOWN);
    let candidates = object.texts("candidates");
    let columns: Vec<String> =
        candidates.iter().filter(|name| *name != "float").map(|name| format!("{name}, dB")).collect();
    let mut all = table(&["layer", "operator", "chosen"], &columns.iter().map(String::as_str).collect::<Vec<_>>());
    for layer in object.objects("layers") {
        let texts = [layer.text("layer"), layer.text("op"), layer.text("chosen")].map(str::to_owned);
        let alone = layer.list("alone").iter().map(|found| number(decibels(found)));
        all.push(texts.into_iter().chain(alone.take(columns.len())));
    }
    let figures = [("with the recipe, dB", object.object("recipe")), ("with the mix, dB", object.object("mix"))];
    let figures = figures.into_iter().filter(|(_, found)| found.has("sqnr_db"));
    vec![
        Part::Figures(figures.map(|(name, found)| (name.to_owned(), number(found.number("sqnr_db")))).collect()),
        Part::Heading("Layers".to_owned()),
        Part::Bars(Bars {
            title: "Signal-to-noise ratio with one layer alone quantized, the most sensitive first (higher is better)"
                .to_owned(),
            unit: "dB".to_owned(),
            rows,
        }),
        Part::Table(all),
    ]
}
