//! The tokens whose prediction differs most from the reference's, with their texts.

use super::{Evaluation, EvaluationReport};
use crate::job::SourceKind;
use kvant_container::directory_of;
use kvant_data::tokenizer::ModelTokenizer;
use kvant_forward::evaluation::{ChangedToken, Prediction};
use serde_json::{Value, json};
use std::path::Path;

/// The texts of a token and what stands beside it; `None` where there is no tokenizer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChangedTexts {
    /// The text before it.
    pub context: Option<String>,
    /// The token.
    pub expected: Option<String>,
    /// The likeliest token of the model.
    pub model: Option<String>,
    /// That of the reference.
    pub reference: Option<String>,
}

/// Gives the tokens of all models their texts, if there is a tokenizer.
pub(super) fn add_texts(report: &mut EvaluationReport, evaluation: &Evaluation) {
    match report {
        EvaluationReport::Text(report) => {
            let changed = report.found.comparison.as_ref().map_or(&[][..], |comparison| &comparison.changed);
            if !changed.is_empty() {
                let tokenizer = tokenizer(evaluation);
                report.changed = changed.iter().map(|token| texts(token, tokenizer.as_ref())).collect();
            }
        }
        EvaluationReport::Models(report) => {
            report.models.iter_mut().for_each(|model| add_texts(&mut model.report, evaluation));
        }
        EvaluationReport::Encoder(_)
        | EvaluationReport::Graph(_)
        | EvaluationReport::Time(_)
        | EvaluationReport::Choices(_) => {}
    }
}

/// The tokenizer that the text was read with, if any: data of tokens need none.
fn tokenizer(evaluation: &Evaluation) -> Option<ModelTokenizer> {
    let model = evaluation.source.model.as_path();
    let places: Vec<&Path> = match (&evaluation.tokenizer, SourceKind::of(model)) {
        (Some(named), _) => vec![named],
        (None, SourceKind::Graph) => directory_of(model).ancestors().take(2).collect(),
        (None, _) => vec![model],
    };
    places.into_iter().find_map(|place| ModelTokenizer::open(place).ok())
}

fn texts(token: &ChangedToken, tokenizer: Option<&ModelTokenizer>) -> ChangedTexts {
    let Some(tokenizer) = tokenizer else { return ChangedTexts::default() };
    // As it continues the text: the space before a word is part of it.
    let after = |next: u32| {
        let mut stream = tokenizer.stream(&token.context);
        let (first, rest) = (stream.push(next).ok()?, stream.finish().ok()?);
        Some(first + &rest)
    };
    ChangedTexts {
        context: tokenizer.decode(&token.context, false).ok(),
        expected: after(token.expected),
        model: after(token.model.token),
        reference: after(token.reference.token),
    }
}

/// The tokens as objects of `docs/schemas/eval.schema.json`.
pub(super) fn to_json(changed: &[ChangedToken], texts: &[ChangedTexts]) -> Value {
    let none = ChangedTexts::default();
    let object = |(index, token): (usize, &ChangedToken)| {
        let texts = texts.get(index).unwrap_or(&none);
        let predicted = |found: &Prediction, text: &Option<String>| {
            json!({
                "token": found.token,
                "text": text,
                "probability": found.probability,
                "expected_probability": found.expected,
            })
        };
        json!({
            "window": token.window,
            "position": token.position,
            "context": texts.context,
            "context_tokens": token.context,
            "expected": texts.expected,
            "expected_token": token.expected,
            "model": predicted(&token.model, &texts.model),
            "reference": predicted(&token.reference, &texts.reference),
            "kl": token.kl,
        })
    };
    changed.iter().enumerate().map(object).collect()
}
