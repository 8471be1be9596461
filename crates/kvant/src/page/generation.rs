//! What a page shows of continued prompts: the texts of the model and its reference beside each other.

use super::{Object, Part, known_facts, number};

/// A text of one of the models, split where it stops being that of the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sample {
    /// Whose text it is, and why it ends.
    pub title: String,
    /// What both models wrote.
    pub same: String,
    /// What this model wrote from the first difference on.
    pub different: String,
}

pub(super) fn parts(object: &Object<'_>) -> Vec<Part> {
    let prompts: Vec<Object<'_>> = object.objects("prompts").collect();
    let speed = |key: &str| object.number(key).map(|speed| number(Some(speed))).unwrap_or_default();
    let mut facts = vec![
        ("tokens per second", speed("tokens_per_second")),
        ("tokens per second, reference", speed("reference_tokens_per_second")),
    ];
    if prompts.iter().any(|prompt| prompt.has("reference")) {
        let same = prompts.iter().filter(|prompt| !prompt.has("first_difference")).count();
        facts.insert(0, ("same text as the reference", format!("{same} of {}", prompts.len())));
    }
    let mut parts = vec![known_facts(facts)];
    let activations = object.texts("quantized_activations");
    if !activations.is_empty() {
        parts.extend([Part::Heading("Quantized activations".to_owned()), Part::List(activations)]);
    }
    for (index, prompt) in prompts.iter().enumerate() {
        parts.push(Part::Heading(format!("Prompt {}", index + 1)));
        parts.push(Part::Code(prompt.text("prompt").to_owned()));
        parts.push(Part::Samples(samples(prompt)));
    }
    parts
}

fn samples(prompt: &Object<'_>) -> Vec<Sample> {
    let reference = prompt.has("reference").then(|| prompt.object("reference"));
    let (text, other) = (prompt.text("text"), reference.as_ref().map(|reference| reference.text("text")));
    let same = other.map_or(text.len(), |other| same_bytes(text, other));
    let sample = |name: &str, object: &Object<'_>| {
        let (same, different) = object.text("text").split_at(same);
        let (same, different) = (same.to_owned(), different.to_owned());
        Sample { title: format!("{name}: {}", ending(object)), same, different }
    };
    let reference = reference.as_ref().map(|reference| sample("reference", reference));
    reference.into_iter().chain([sample("model", prompt)]).collect()
}

/// The length of the text that both begin with.
fn same_bytes(a: &str, b: &str) -> usize {
    a.char_indices().zip(b.chars()).find(|((_, a), b)| a != b).map_or(a.len().min(b.len()), |((at, _), _)| at)
}

/// How many tokens were written, and why no more.
fn ending(object: &Object<'_>) -> String {
    let tokens = object.list("tokens").len();
    let why = match object.text("finish") {
        "eos" => ", to the end of the text",
        "stop" => ", to a stop text",
        _ => "",
    };
    format!("{tokens} tokens{why}")
}
