//! What a page shows of a quantized checkpoint, GGUF file or pipeline.

use super::chart::Bars;
use super::{Object, Part, blocks, number, percent, scientific, table, with_error};
use super::{activations, experts, weights};
use crate::text::size;
use serde_json::Value;
use std::time::Duration;

/// Bars of the layers that kept most of their error.
const SHOWN: usize = 40;

pub(super) fn parts(object: &Object<'_>) -> Vec<Part> {
    let mut parts = vec![Part::Figures(figures(object)), Part::Facts(facts(object))];
    let loading = object.objects("loading").map(|row| match row.text("line") {
        "" => row.text("loader").to_owned(),
        line => format!("{}: {line}", row.text("loader")),
    });
    section(
        &mut parts,
        "How to load it",
        Some(Part::Code(loading.collect::<Vec<_>>().join("\n"))).filter(|_| object.has("loading")),
    );
    let calibration = object.object("calibration");
    let warnings: Vec<String> = object.texts("notices").into_iter().chain(starved(&calibration)).collect();
    section(&mut parts, "Notices", (!warnings.is_empty()).then_some(Part::List(warnings)));
    if let Some(found) = object.get("evaluation") {
        quality(&Object::of(found), &mut parts);
    }
    section(&mut parts, "Size", sizes(object));
    let components = object.list("components");
    section(&mut parts, "Components", (!components.is_empty()).then(|| of_components(object)));
    let layers: Vec<Object<'_>> = calibration.objects("layers").collect();
    // Tuning alone reads no inputs of layers, so that their errors are not known.
    if layers.iter().any(|layer| layer.has("loss")) {
        losses(&layers, &mut parts);
    }
    section(&mut parts, "Tuning of blocks", tunings(&calibration));
    parts.extend(experts::parts(&calibration));
    parts.extend(activations::parts(object));
    parts.extend(weights::parts(object));
    let used = calibration.object("data");
    section(&mut parts, "Calibration data", amount(&used));
    parts.extend(data(&used));
    section(&mut parts, "Statistics of inputs", statistics(&calibration.object("statistics")));
    if let Some(recipe) = object.get("recipe") {
        let text = serde_json::to_string_pretty(recipe).unwrap_or_default();
        section(&mut parts, "Recipe", Some(Part::Code(text)));
    }
    parts
}

/// A part under a heading, if there is one.
fn section(parts: &mut Vec<Part>, heading: &str, part: Option<Part>) {
    if let Some(part) = part {
        parts.extend([Part::Heading(heading.to_owned()), part]);
    }
}

fn figures(object: &Object<'_>) -> Vec<(String, String)> {
    let (before, after) = (object.count("source_bytes").unwrap_or(0), object.count("output_bytes").unwrap_or(0));
    let mut figures =
        vec![("size".to_owned(), size::bytes(after)), ("size of the source".to_owned(), size::bytes(before))];
    if let Some(bits) = object.number("bits_per_weight") {
        figures.push(("bits per quantized weight".to_owned(), format!("{bits:.2}")));
    }
    let found = object.object("evaluation");
    if let Some(kl) = found.number("kl_mean") {
        figures.push(("KL divergence, nats".to_owned(), number(Some(kl))));
        figures.push(("same top token".to_owned(), percent(found.number("top1_agreement"))));
    }
    figures
}

fn facts(object: &Object<'_>) -> Vec<(String, String)> {
    let recipe = object.object("recipe");
    let layers = object.count("quantized_layers").map(|count| {
        let kept = object.count("kept_tensors").unwrap_or(0);
        format!("{count} quantized; {kept} tensors kept as they are")
    });
    let time = object.number("seconds").map(|seconds| size::duration(Duration::from_secs_f64(seconds.max(0.0))));
    let text = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    let types: Vec<String> =
        object.counts("types").into_iter().map(|(kind, count)| format!("{count} {kind}")).collect();
    let rows = [
        ("output", text(object.text("output"))),
        ("architecture", text(object.text("architecture"))),
        ("family", text(object.text("family"))),
        ("pipeline", text(object.text("pipeline"))),
        ("scheme", text(recipe.text("scheme"))),
        ("format", text(object.text("format"))),
        ("algorithms", Some(recipe.texts("algorithm").join(", ")).filter(|list| !list.is_empty())),
        ("layers", layers),
        ("types of tensors", Some(types.join(", ")).filter(|list| !list.is_empty())),
        ("time", time),
    ];
    rows.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
}

/// How far the result is from its source.
fn quality(found: &Object<'_>, parts: &mut Vec<Part>) {
    let facts = [
        ("measured on", format!("{} tokens of {}", found.count("tokens").unwrap_or(0), found.text("data"))),
        ("KL divergence from the source, nats", with_error(found.number("kl_mean"), found.number("kl_mean_error"))),
        ("perplexity", number(found.number("perplexity"))),
        ("perplexity of the source", number(found.number("reference_perplexity"))),
        ("same top token", percent(found.number("top1_agreement"))),
    ];
    let facts = facts.map(|(name, value)| (name.to_owned(), value));
    section(parts, "Quality", Some(Part::Facts(facts.to_vec())));
    parts.extend(blocks(found.list("blocks_sqnr_db").iter().map(Value::as_f64).collect()));
}

/// Layers that saw fewer tokens of the calibration data than they have inputs.
fn starved(calibration: &Object<'_>) -> Vec<String> {
    let sentence = |layer: Object<'_>| {
        let count = |key: &str| layer.count(key).unwrap_or(0);
        format!(
            "{} saw only {} calibration tokens for {} inputs: {}",
            layer.text("layer"),
            count("tokens"),
            count("inputs"),
            layer.text("treatment")
        )
    };
    calibration.objects("starved").map(sentence).collect()
}

/// What takes the room in the result, the most first.
fn sizes(object: &Object<'_>) -> Option<Part> {
    let total = object.objects("sizes").filter_map(|kind| kind.count("bytes")).sum::<u64>().max(1) as f64;
    let mut all = table(&["kind", "stored"], &["tensors", "size", "share"]);
    for kind in object.objects("sizes") {
        let bytes = kind.count("bytes").unwrap_or(0);
        let stored = if kind.flag("quantized") { "quantized" } else { "kept" };
        let numbers =
            [kind.count("tensors").unwrap_or(0).to_string(), size::bytes(bytes), percent(Some(bytes as f64 / total))];
        all.push([kind.text("kind").to_owned(), stored.to_owned()].into_iter().chain(numbers));
    }
    (!all.rows().is_empty()).then_some(Part::Table(all))
}

/// The loss of each block before and after tuning.
fn tunings(calibration: &Object<'_>) -> Option<Part> {
    let mut all = table(&["block", "tuning"], &["loss before", "loss after", "lower by"]);
    for tuning in calibration.objects("tunings") {
        let [before, after] = ["loss_before", "loss_after"].map(|key| tuning.number(key));
        let lower = before.zip(after).filter(|(before, _)| *before > 0.0).map(|(before, after)| 1.0 - after / before);
        let texts = [tuning.count("block").unwrap_or(0).to_string(), tuning.text("tuning").to_owned()];
        all.push(texts.into_iter().chain([scientific(before), scientific(after), percent(lower)]));
    }
    (!all.rows().is_empty()).then_some(Part::Table(all))
}

/// What algorithms have left of the error of rounding to nearest, layer by layer.
fn losses(layers: &[Object<'_>], parts: &mut Vec<Part>) {
    let share =
        |layer: &Object<'_>| Some(100.0 * layer.number("loss")? / layer.number("loss_rtn").filter(|loss| *loss > 0.0)?);
    let rows = layers.iter().filter_map(|layer| Some((layer.text("layer").to_owned(), share(layer)?)));
    let mut rows: Vec<(String, f64)> = rows.collect();
    rows.sort_by(|a, b| b.1.total_cmp(&a.1));
    let most = if rows.len() > SHOWN { format!(" of {SHOWN} of {} layers", rows.len()) } else { String::new() };
    rows.truncate(SHOWN);
    let measured = if layers.iter().any(|layer| layer.has("held_out")) { "held-out" } else { "calibration" };
    let title = format!(
        "Error of outputs{most} on {measured} tokens, as a share of what rounding to nearest leaves, the most first (lower is better)"
    );
    parts.push(Part::Heading("Layers".to_owned()));
    parts.push(Part::Bars(Bars { title, unit: "%".to_owned(), rows }));
    let titles = ["squared error per token", "rounding to nearest", "share, %", "calibration tokens"];
    let mut all = table(&["layer", "algorithm"], &titles);
    for layer in layers {
        // Sums over the tokens on which losses are measured.
        let measured_on = layer.count("held_out").or(layer.count("tokens")).unwrap_or(1).max(1) as f64;
        let of_token = |key: &str| scientific(layer.number(key).map(|loss| loss / measured_on));
        let cells = [layer.text("layer").to_owned(), layer.text("algorithm").to_owned()];
        let numbers = [of_token("loss"), of_token("loss_rtn"), number(share(layer))];
        let tokens = layer.count("tokens").map_or_else(String::new, |count| count.to_string());
        all.push(cells.into_iter().chain(numbers).chain([tokens]));
    }
    parts.push(Part::Table(all));
}

/// How much of the calibration data was used.
fn amount(data: &Object<'_>) -> Option<Part> {
    let (samples, length) = (data.count("samples")?, data.count("sequence_length")?);
    let held_out = data.object("held_out");
    let measured = held_out.count("tokens").filter(|tokens| *tokens > 0);
    let measured =
        measured.map_or_else(String::new, |tokens| format!("; {tokens} further tokens are held out to measure errors"));
    let tokens = data.count("tokens").unwrap_or(0);
    Some(Part::Text(format!("{tokens} tokens in {samples} sequences of {length} at most{measured}.")))
}

/// The files of calibration data with their hashes.
fn data(data: &Object<'_>) -> Option<Part> {
    let mut files = table(&["file", "XXH3 hash"], &["bytes", "rows used"]);
    for file in data.objects("files") {
        let count = |key: &str| file.count(key).map_or_else(String::new, |count| count.to_string());
        files.push([
            file.text("name").to_owned(),
            file.text("xxh3_128").to_owned(),
            count("bytes"),
            count("rows_used"),
        ]);
    }
    (!files.rows().is_empty()).then_some(Part::Table(files))
}

/// The file of statistics that took the place of calibration data, with its hash.
fn statistics(given: &Object<'_>) -> Option<Part> {
    let mut files = table(&["file", "component", "XXH3 hash"], &["bytes"]);
    if given.has("xxh3_128") {
        let texts = ["name", "component", "xxh3_128"].map(|key| given.text(key).to_owned());
        let bytes = given.count("bytes").map_or_else(String::new, |count| count.to_string());
        files.push(texts.into_iter().chain([bytes]));
    }
    (!files.rows().is_empty()).then_some(Part::Table(files))
}

fn of_components(object: &Object<'_>) -> Part {
    let mut all = table(&["component", "class", "scheme", "format"], &["before", "after"]);
    for component in object.objects("components") {
        let bytes = |key: &str| component.count(key).map_or_else(String::new, size::bytes);
        let scheme = match component.object("recipe").text("scheme") {
            "" => format!("kept: {}", component.text("reason")),
            scheme => scheme.to_owned(),
        };
        let texts = [component.text("name"), component.text("class"), &scheme, component.text("format")];
        all.push(texts.map(str::to_owned).into_iter().chain([bytes("source_bytes"), bytes("output_bytes")]));
    }
    Part::Table(all)
}
