//! Several evaluations of language models on one page.

use super::chart::{Bars, Point, Points, Series};
use super::{NamedResult, Object, Page, Part, number, percent, table, with_error};
use crate::error::{Error, ErrorKind};

/// The page.
///
/// # Errors
/// No results, and other objects than evaluations with a perplexity.
pub(super) fn page(results: &[NamedResult]) -> Result<Page, Error> {
    let evaluations: Vec<(&str, Object<'_>)> =
        results.iter().map(|result| (result.name.as_str(), Object::of(&result.value))).collect();
    if results.is_empty() {
        return Err(Error::new(ErrorKind::Usage, "a report needs a result"));
    }
    let is_evaluation = |object: &Object<'_>| object.schema() == "kvant.eval" && object.has("perplexity");
    if let Some((name, _)) = evaluations.iter().find(|(_, object)| !is_evaluation(object)) {
        let message = format!("{name} is not the evaluation of a language model, and only these are compared");
        let hint = "name what `kvant eval` printed with ‹json›, or one result alone".to_owned();
        return Err(Error::new(ErrorKind::Invalid, message).with_hint(Some(hint)));
    }
    let warnings = differences(&evaluations);
    let mut parts = vec![Part::Table(figures(&evaluations))];
    if !warnings.is_empty() {
        parts.extend([Part::Heading("Notices".to_owned()), Part::List(warnings.clone())]);
    }
    let bars = |title: &str, unit: &str, key: &str| {
        let rows = evaluations.iter().filter_map(|(name, object)| Some(((*name).to_owned(), object.number(key)?)));
        Part::Bars(Bars { title: title.to_owned(), unit: unit.to_owned(), rows: rows.collect() })
    };
    parts.push(Part::Heading("Perplexity".to_owned()));
    parts.push(bars("Perplexity (lower is better)", "", "perplexity"));
    if evaluations.iter().any(|(_, object)| object.has("kl_mean")) {
        parts.push(Part::Heading("Divergence".to_owned()));
        parts.push(bars("KL divergence from the reference (lower is better)", "nats", "kl_mean"));
    }
    let series: Vec<Series> = evaluations.iter().map(|(name, object)| of_blocks(name, object)).collect();
    if series.iter().any(|series| !series.points.is_empty()) {
        let title = "Signal-to-noise ratio after each block (higher is better)".to_owned();
        parts.push(Part::Heading("Blocks".to_owned()));
        parts.push(Part::Points(Points { title, x: "block".to_owned(), y: "dB".to_owned(), series }));
    }
    Ok(Page { title: format!("{} models", results.len()), warnings, parts })
}

/// Why evaluations do not compare with the first of them: other text, or the same in other windows. Results of older versions say nothing
/// of their text.
fn differences(evaluations: &[(&str, Object<'_>)]) -> Vec<String> {
    let Some(((first, expected), others)) = evaluations.split_first() else { return Vec::new() };
    let hash = |object: &Object<'_>| object.object("data").text("xxh3_128").to_owned();
    let text = |object: &Object<'_>| object.object("data").text("name").to_owned();
    let difference = |(name, object): &(&str, Object<'_>)| {
        if [hash(object), hash(expected)].iter().all(|hash| !hash.is_empty()) && hash(object) != hash(expected) {
            let [own, other] = [object, expected].map(text);
            return Some(format!(
                "{name} and {first} were evaluated on different texts ({own}, {other}): their numbers do not compare"
            ));
        }
        let counts = |object: &Object<'_>| ["tokens", "windows", "seq_len"].map(|key| object.count(key));
        (counts(object) != counts(expected)).then(|| {
            let words = |object: &Object<'_>| {
                let [tokens, windows, length] = counts(object).map(|count| count.unwrap_or(0));
                format!("{tokens} tokens scored in {windows} windows of {length}")
            };
            format!("{name} ({}) and {first} ({}) do not compare", words(object), words(expected))
        })
    };
    others.iter().filter_map(difference).collect()
}

fn figures(evaluations: &[(&str, Object<'_>)]) -> crate::text::Table {
    let titles = ["perplexity", "KL divergence", "KL 99 %", "same top token", "tokens"];
    let mut all = table(&["model"], &titles);
    for (name, object) in evaluations {
        all.push([
            (*name).to_owned(),
            number(object.number("perplexity")),
            with_error(object.number("kl_mean"), object.number("kl_mean_error")),
            number(object.number("kl_p99")),
            percent(object.number("top1_agreement")),
            object.count("tokens").map_or_else(String::new, |count| count.to_string()),
        ]);
    }
    all
}

fn of_blocks(name: &str, object: &Object<'_>) -> Series {
    let points = object.objects("blocks").enumerate().filter_map(|(index, block)| {
        Some(Point { x: index as f64, y: block.number("sqnr_db")?, name: format!("{name}, block {index}") })
    });
    Series { name: name.to_owned(), is_line: true, points: points.collect() }
}
