//! What a page shows of the evaluation of a language model or an encoder.

use super::{Object, Part, blocks, number, percent, table, with_error};

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
    parts
}

fn figures(object: &Object<'_>) -> Vec<(String, String)> {
    let rows = [
        ("perplexity", object.number("perplexity").map(|value| number(Some(value)))),
        ("perplexity of the reference", object.number("reference_perplexity").map(|value| number(Some(value)))),
        ("KL divergence, nats", object.number("kl_mean").map(|value| number(Some(value)))),
        ("same top token", object.number("top1_agreement").map(|value| percent(Some(value)))),
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
    let rows = [
        ("tokens scored", count("tokens")),
        ("windows", count("windows")),
        ("samples", count("sequences")),
        ("tokens per window", count("seq_len")),
        ("KL divergence, mean", error("kl_mean")),
        ("KL divergence, 99th percentile", object.number("kl_p99").map(|value| number(Some(value)))),
        ("perplexity by that of the reference", error("perplexity_ratio")),
        ("least cosine of embeddings", object.number("embedding_cosine_min").map(|value| format!("{value:.6}"))),
        ("engine", Some(object.text("engine").to_owned()).filter(|engine| !engine.is_empty())),
    ];
    rows.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
}
