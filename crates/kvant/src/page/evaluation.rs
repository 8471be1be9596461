//! What a page shows of the evaluation of a language model or an encoder.

use super::chart::{Points, Series};
use super::compared::by_position;
use super::{Object, Part, blocks, number, percent, table, with_error};
use serde_json::Value;

pub(super) fn parts(object: &Object<'_>) -> Vec<Part> {
    let mut parts = vec![Part::Figures(figures(object)), Part::Facts(facts(object))];
    let activations = object.texts("quantized_activations");
    if !activations.is_empty() {
        parts.extend([Part::Heading("Quantized activations".to_owned()), Part::List(activations)]);
    }
    let mut outputs = table(&["output"], &["SQNR, dB", "same largest"]);
    for output in object.objects("outputs") {
        outputs.push([
            output.text("name").to_owned(),
            number(output.number("sqnr_db")),
            percent(output.number("top1_agreement")),
        ]);
    }
    if !outputs.rows().is_empty() {
        parts.extend([Part::Heading("Outputs".to_owned()), Part::Table(outputs)]);
    }
    let of_blocks = object.objects("blocks").map(|block| block.number("sqnr_db")).collect();
    if let Some(chart) = blocks(of_blocks) {
        parts.extend([Part::Heading("Blocks".to_owned()), chart]);
    }
    parts.extend(positions(object));
    parts.extend(changed(object));
    parts
}

/// The tokens whose prediction differs most from the reference's.
fn changed(object: &Object<'_>) -> Vec<Part> {
    let texts = ["text before", "next token", "reference predicts", "model predicts"];
    let numbers = ["next token, reference", "next token, model", "KL of all tokens, nats"];
    let mut all = table(&texts, &numbers);
    for token in object.objects("changed_tokens") {
        let (model, reference) = (token.object("model"), token.object("reference"));
        let predicted = |prediction: &Object<'_>| {
            let share = percent(prediction.number("probability")).replace(' ', "\u{a0}");
            format!("{} ({share})", named(prediction, "text", "token"))
        };
        let context = match token.text("context") {
            "" => token.list("context_tokens").iter().map(ToString::to_string).collect::<Vec<_>>().join(" "),
            text => visible(text),
        };
        let texts = [context, named(&token, "expected", "expected_token"), predicted(&reference), predicted(&model)];
        let shares = [&reference, &model].map(|prediction| percent(prediction.number("expected_probability")));
        all.push(texts.into_iter().chain(shares).chain([number(token.number("kl"))]));
    }
    match all.rows().is_empty() {
        true => Vec::new(),
        false => vec![Part::Heading("Tokens that changed most".to_owned()), Part::Table(all)],
    }
}

/// The text of a token in quotes, or its number where there is no tokenizer.
fn named(object: &Object<'_>, text: &str, token: &str) -> String {
    match object.get(text).and_then(Value::as_str) {
        Some(text) => format!("\u{201c}{}\u{201d}", visible(text)),
        None => object.count(token).map(|token| token.to_string()).unwrap_or_default(),
    }
}

/// Ends of lines and tabs as signs: a table has neither.
fn visible(text: &str) -> String {
    text.replace('\n', "\u{21b5}").replace('\t', "\u{21e5}")
}

/// Charts of losses and divergences by position in the window, where windows are long enough to show something.
fn positions(object: &Object<'_>) -> Vec<Part> {
    let chart = |title: &str, series: Vec<Series>| {
        let (title, x, y) = (title.to_owned(), "tokens before, at most".to_owned(), "nats".to_owned());
        Part::Points(Points { title, x, y, series })
    };
    let all = |series: Vec<Series>| series.into_iter().filter(|series| series.points.len() > 1).collect::<Vec<_>>();
    let losses =
        all(vec![by_position("model", object, "loss_mean"), by_position("reference", object, "reference_loss_mean")]);
    let divergences = all(vec![by_position("model", object, "kl_mean")]);
    let mut parts = Vec::new();
    if !losses.is_empty() {
        parts.push(Part::Heading("Positions".to_owned()));
        parts.push(chart("Loss by position in the window (lower is better)", losses));
    }
    if !divergences.is_empty() {
        parts.push(chart("KL divergence by position in the window (lower is better)", divergences));
    }
    parts
}

fn figures(object: &Object<'_>) -> Vec<(String, String)> {
    let rows = [
        ("perplexity", object.number("perplexity").map(|value| number(Some(value)))),
        ("perplexity of the reference", object.number("reference_perplexity").map(|value| number(Some(value)))),
        ("KL divergence, nats", object.number("kl_mean").map(|value| number(Some(value)))),
        ("same top token", object.number("top1_agreement").map(|value| percent(Some(value)))),
        ("accuracy", object.number("accuracy").map(|value| percent(Some(value)))),
        ("accuracy by length", object.number("accuracy_norm").map(|value| percent(Some(value)))),
        ("flips", object.count("flips").map(|count| count.to_string())),
        ("cosine of embeddings", object.number("embedding_cosine_mean").map(|value| format!("{value:.6}"))),
        ("hidden states, dB", object.number("hidden_sqnr_db").map(|value| number(Some(value)))),
    ];
    rows.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
}

fn facts(object: &Object<'_>) -> Vec<(String, String)> {
    let count = |key: &str| object.count(key).map(|count| count.to_string());
    let error = |value: &str| {
        let found = object.number(value)?;
        Some(with_error(Some(found), object.number(&format!("{value}_error"))))
    };
    let share = |value: &str| {
        let found = percent(Some(object.number(value)?));
        let error = object.number(&format!("{value}_error"));
        Some(error.map_or_else(|| found.clone(), |error| format!("{found} ± {:.2}", 100.0 * error)))
    };
    let rows = [
        ("questions", count("questions").map(|count| format!("{count} of {}", object.text("form")))),
        ("accuracy with its standard error", share("accuracy")),
        ("accuracy by length with its standard error", share("accuracy_norm")),
        ("accuracy of the reference", share("reference_accuracy")),
        ("answers that only the model has right", count("flips_to_right")),
        ("answers that only the reference has right", count("flips_to_wrong")),
        ("mean change of the right choice's probability", error("right_probability_change")),
        ("perplexity with its standard error", error("perplexity")),
        ("tokens scored", count("tokens")),
        ("windows", count("windows")),
        ("samples", count("sequences")),
        ("tokens per window", count("seq_len")),
        ("KL divergence, mean", error("kl_mean")),
        ("KL divergence, 99th percentile", object.number("kl_p99").map(|value| number(Some(value)))),
        ("perplexity as a multiple of the reference's", error("perplexity_ratio")),
        ("least cosine of embeddings", object.number("embedding_cosine_min").map(|value| format!("{value:.6}"))),
        ("engine", Some(object.text("engine").to_owned()).filter(|engine| !engine.is_empty())),
    ];
    rows.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
}
