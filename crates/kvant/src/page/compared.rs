//! Several evaluations on one page.

use super::chart::{Bars, Point, Points, Series};
use super::{NamedResult, Object, Page, Part, number, percent, table, with_error};
use crate::error::{Error, ErrorKind};
use crate::text::{Table, counts, short_names, size};
use serde_json::Value;
use std::path::Path;

/// What evaluations measure, and the key that only these have.
const KINDS: [(&str, &str); 4] = [
    ("a language model on text", "perplexity"),
    (QUESTIONS, "accuracy"),
    (ENCODER, "embedding_cosine_mean"),
    (SAMPLES, "samples"),
];
const QUESTIONS: &str = "answers to questions";
const ENCODER: &str = "an encoder";
const SAMPLES: &str = "a graph on samples";

/// Figures of which a chart is drawn where some evaluation has them: the heading, the title, the unit and the key.
const CHARTS: [(&str, &str, &str, &str); 5] = [
    ("Perplexity", "Perplexity (lower is better)", "", "perplexity"),
    ("Divergence", "KL divergence from the reference (lower is better)", "nats", "kl_mean"),
    ("Accuracy", "Accuracy (higher is better)", "", "accuracy"),
    ("Flips", "Answers that differ from those of the reference (fewer are better)", "", "flips"),
    ("Hidden states", "Signal-to-noise ratio of the last hidden states (higher is better)", "dB", "hidden_sqnr_db"),
];

/// The results, with one for each model of those that have several.
pub(super) fn expanded(results: &[NamedResult]) -> Vec<NamedResult> {
    results.iter().flat_map(of_models).collect()
}

fn of_models(result: &NamedResult) -> Vec<NamedResult> {
    let object = Object::of(&result.value);
    if object.schema() != "kvant.eval" || !object.has("models") {
        return vec![result.clone()];
    }
    let paths: Vec<&Path> = object.objects("models").map(|model| Path::new(model.text("model"))).collect();
    let named = short_names(&paths).into_iter().zip(object.list("models"));
    let with_schema = |(name, model): (String, &Value)| {
        let mut value = model.clone();
        if let Value::Object(members) = &mut value {
            members.insert("schema".to_owned(), object.text("schema").into());
        }
        NamedResult { name, value }
    };
    named.map(with_schema).collect()
}

/// The page.
///
/// # Errors
/// No results, other objects than evaluations, and evaluations of different kinds.
pub(super) fn page(results: &[NamedResult]) -> Result<Page, Error> {
    let evaluations: Vec<(&str, Object<'_>)> =
        results.iter().map(|result| (result.name.as_str(), Object::of(&result.value))).collect();
    let Some((first, expected)) = evaluations.first() else {
        return Err(Error::new(ErrorKind::Usage, "a report needs a result"));
    };
    let expected = kind(expected);
    if let Some((name, object)) =
        evaluations.iter().find(|(_, object)| kind(object).is_none() || kind(object) != expected)
    {
        let hint = "name what `kvant eval` printed with ‹json›, or one result alone".to_owned();
        let message = match (kind(object), expected) {
            (Some(found), Some(expected)) => {
                format!("{name} is the evaluation of {found}, and {first} that of {expected}")
            }
            _ => format!("{name} is not the evaluation of a model, and only these are compared"),
        };
        return Err(Error::new(ErrorKind::Invalid, message).with_hint(Some(hint)));
    }
    let warnings = differences(&evaluations);
    let mut parts = vec![Part::Table(figures(&evaluations))];
    if !warnings.is_empty() {
        parts.extend([Part::Heading("Notices".to_owned()), Part::List(warnings.clone())]);
    }
    for (heading, title, unit, key) in CHARTS {
        let rows = evaluations.iter().filter_map(|(name, object)| Some(((*name).to_owned(), object.number(key)?)));
        let rows: Vec<(String, f64)> = rows.collect();
        if !rows.is_empty() {
            parts.push(Part::Heading(heading.to_owned()));
            parts.push(Part::Bars(Bars { title: title.to_owned(), unit: unit.to_owned(), rows }));
        }
    }
    let lines = |of: fn(&str, &Object<'_>) -> Series| -> Vec<Series> {
        evaluations.iter().map(|(name, object)| of(name, object)).collect()
    };
    let series = lines(of_blocks);
    if series.iter().any(|series| !series.points.is_empty()) {
        let title = "Signal-to-noise ratio after each block (higher is better)".to_owned();
        parts.push(Part::Heading("Blocks".to_owned()));
        parts.push(Part::Points(Points { title, x: "block".to_owned(), y: "dB".to_owned(), series }));
    }
    let has_reference = evaluations.iter().any(|(_, object)| object.has("kl_mean"));
    let (title, series) = match has_reference {
        true => ("KL divergence by position in the window (lower is better)", lines(divergence_by_position)),
        false => ("Loss by position in the window (lower is better)", lines(loss_by_position)),
    };
    if series.iter().any(|series| series.points.len() > 1) {
        let (title, x, y) = (title.to_owned(), "tokens before, at most".to_owned(), "nats".to_owned());
        parts.push(Part::Heading("Positions".to_owned()));
        parts.push(Part::Points(Points { title, x, y, series }));
    }
    Ok(Page { title: format!("{} models", results.len()), warnings, parts })
}

/// Why evaluations do not compare with the first of them: other data, or another part of the same. Results of older versions say nothing of
/// their data.
fn differences(evaluations: &[(&str, Object<'_>)]) -> Vec<String> {
    let Some(((first, expected), others)) = evaluations.split_first() else { return Vec::new() };
    let hash = |object: &Object<'_>| object.object("data").text("xxh3_128").to_owned();
    let file = |object: &Object<'_>| object.object("data").text("name").to_owned();
    let difference = |(name, object): &(&str, Object<'_>)| {
        if [hash(object), hash(expected)].iter().all(|hash| !hash.is_empty()) && hash(object) != hash(expected) {
            let [own, other] = [object, expected].map(file);
            return Some(format!(
                "{name} and {first} were evaluated on different data ({own}, {other}): their numbers do not compare"
            ));
        }
        let [own, other] = [object, expected].map(extent);
        (own != other).then(|| format!("{name} ({own}) and {first} ({other}) do not compare"))
    };
    others.iter().filter_map(difference).collect()
}

/// How much was evaluated, in words.
fn extent(object: &Object<'_>) -> String {
    let count = |key: &str| object.count(key).unwrap_or(0);
    match kind(object) {
        Some(QUESTIONS) => {
            format!("{} of the form {}", counts::number(count("questions") as usize, "question"), object.text("form"))
        }
        Some(ENCODER) => {
            format!("{} tokens in {}", count("tokens"), counts::number(count("sequences") as usize, "sequence"))
        }
        Some(SAMPLES) => counts::number(count("samples") as usize, "sample"),
        _ => {
            let [tokens, windows, length] = ["tokens", "windows", "seq_len"].map(count);
            format!("{tokens} tokens scored in {windows} windows of {length}")
        }
    }
}

/// What an evaluation measures; `None` of other objects.
fn kind(object: &Object<'_>) -> Option<&'static str> {
    let known = KINDS.iter().find(|(_, key)| object.has(key)).map(|(kind, _)| *kind);
    known.filter(|_| object.schema() == "kvant.eval")
}

/// A column: its title, and the text of an object that has it.
type Column = (&'static str, fn(&Object<'_>) -> Option<String>);

const COLUMNS: [Column; 15] = [
    ("size", |object| object.count("bytes").map(size::bytes)),
    ("bits per weight", |object| object.number("bits_per_weight").map(|bits| format!("{bits:.2}"))),
    ("perplexity", |object| figure(object, "perplexity")),
    ("KL divergence", |object| figure(object, "kl_mean")),
    ("KL 99 %", |object| figure(object, "kl_p99")),
    ("same top token", |object| object.number("kl_mean").map(|_| percent(object.number("top1_agreement")))),
    ("accuracy", |object| share(object, "accuracy")),
    ("accuracy by length", |object| share(object, "accuracy_norm")),
    ("questions", |object| object.count("questions").map(|count| count.to_string())),
    ("flips", |object| object.count("flips").map(|count| count.to_string())),
    ("embedding cosine", |object| object.number("embedding_cosine_mean").map(|cosine| format!("{cosine:.6}"))),
    ("least cosine", |object| object.number("embedding_cosine_min").map(|cosine| format!("{cosine:.6}"))),
    ("hidden states, dB", |object| figure(object, "hidden_sqnr_db")),
    ("least SQNR of outputs, dB", |object| {
        let outputs = object.objects("outputs").filter_map(|output| output.number("sqnr_db"));
        object.has("samples").then(|| number(outputs.reduce(f64::min)))
    }),
    ("tokens", |object| object.count("tokens").map(|count| count.to_string())),
];

/// A number with its standard error.
fn figure(object: &Object<'_>, key: &str) -> Option<String> {
    let value = object.number(key)?;
    Some(with_error(Some(value), object.number(&format!("{key}_error"))))
}

fn share(object: &Object<'_>, key: &str) -> Option<String> {
    let value = percent(Some(object.number(key)?));
    let error = object.number(&format!("{key}_error"));
    Some(error.map_or_else(|| value.clone(), |error| format!("{value} ± {:.2}", 100.0 * error)))
}

/// The columns that some evaluation has.
fn figures(evaluations: &[(&str, Object<'_>)]) -> Table {
    let is_there = |(_, text): &&Column| evaluations.iter().any(|(_, object)| text(object).is_some());
    let columns: Vec<&Column> = COLUMNS.iter().filter(is_there).collect();
    let mut all = table(&["model"], &columns.iter().map(|(title, _)| *title).collect::<Vec<_>>());
    for (name, object) in evaluations {
        let cells = columns.iter().map(|(_, text)| text(object).unwrap_or_else(|| "-".to_owned()));
        all.push(std::iter::once((*name).to_owned()).chain(cells));
    }
    all
}

fn of_blocks(name: &str, object: &Object<'_>) -> Series {
    let points = object.objects("blocks").enumerate().filter_map(|(index, block)| {
        Some(Point { x: index as f64, y: block.number("sqnr_db")?, name: format!("{name}, block {index}") })
    });
    Series { name: name.to_owned(), is_line: true, points: points.collect() }
}

fn divergence_by_position(name: &str, object: &Object<'_>) -> Series {
    by_position(name, object, "kl_mean")
}

fn loss_by_position(name: &str, object: &Object<'_>) -> Series {
    by_position(name, object, "loss_mean")
}

/// A figure of tokens by their positions in windows, at the end of each range.
pub(super) fn by_position(name: &str, object: &Object<'_>, key: &str) -> Series {
    let points = object.objects("positions").filter_map(|range| {
        let (from, to) = (range.count("from")?, range.count("to")?);
        Some(Point { x: to as f64, y: range.number(key)?, name: format!("{name}, {from} to {to}") })
    });
    Series { name: name.to_owned(), is_line: true, points: points.collect() }
}
