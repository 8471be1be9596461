//! The head: there where it is not the embedding, and where it is, not there with other values.

use crate::verify::scan;
use crate::verify::subject::CheckpointView;
use kvant_container::TensorView;
use kvant_model::network::{Linear, Place};
use kvant_quant::finding::Findings;

pub(super) fn run(subject: &CheckpointView<'_>, findings: &mut Findings) {
    missing(subject, findings);
    let head = head(subject).filter(|_| subject.config.tie_word_embeddings == Some(true));
    if let Some(head) = head.filter(|head| differs(subject, head)) {
        let hint = "set tie_word_embeddings to false, or take the head out of the checkpoint";
        let reason = "is another matrix than the embedding, and tie_word_embeddings is true: some loaders read it, others do not";
        findings.error(&head.module, reason, hint);
    }
}

fn missing(subject: &CheckpointView<'_>, findings: &mut Findings) {
    // A head that a rotation separates from the embeddings is in no file of the source.
    let is_made = subject.checkpoint.rewriting().is_some();
    let is_known =
        subject.network.family().is_some() && subject.json.is_some() && !is_made && !is_without_head(subject);
    if is_known && subject.config.tie_word_embeddings == Some(false) && head(subject).is_none() {
        let hint = "set tie_word_embeddings to true if the head is the embedding, else download the missing shard";
        findings.error("lm_head.weight", "is missing, and tie_word_embeddings is false", hint);
    }
}

/// Ends of the names of classes that have no head for tokens.
const HEADLESS: [&str; 5] =
    ["Model", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering", "ForMultipleChoice"];

fn is_without_head(subject: &CheckpointView<'_>) -> bool {
    let class = subject.config.architectures.first();
    class.is_some_and(|class| HEADLESS.iter().any(|end| class.ends_with(end)) && !class.ends_with("LMHeadModel"))
}

/// The head of a model whose family and configuration are known.
fn head<'s>(subject: &'s CheckpointView<'_>) -> Option<&'s Linear> {
    subject.json.as_ref().and(subject.network.family())?;
    subject.network.head().map(|id| subject.network.linear(id))
}

/// Returns whether the head is not the embedding.
fn differs(subject: &CheckpointView<'_>, head: &Linear) -> bool {
    let plain = |name: &str| subject.survey.plain.iter().find(|(plain, _)| plain == name).map(|(_, view)| *view);
    let mut both = subject.survey.tensors.iter().zip(subject.network.places());
    let embedding = both.find(|(_, place)| **place == Place::Embedding).and_then(|(tensor, _)| plain(&tensor.name));
    match (plain(&format!("{}.weight", head.module)), embedding) {
        (Some(head), Some(embedding)) => !is_same(head, embedding),
        _ => true,
    }
}

fn is_same(one: TensorView<'_>, other: TensorView<'_>) -> bool {
    (one.dtype(), one.shape()) == (other.dtype(), other.shape()) && scan::are_same(one, other)
}
