//! The head: there where it is not the embedding, and where it is, not there with other values.

use crate::network::{Linear, Place};
use crate::verify::subject::Subject;
use kvant_container::TensorView;
use kvant_quant::finding::Findings;

pub(super) fn run(subject: &Subject<'_>, findings: &mut Findings) {
    if subject.network.family().is_none() || subject.json.is_none() {
        return;
    }
    let head = subject.network.head().map(|id| subject.network.linear(id));
    match (subject.config.tie_word_embeddings, head) {
        (Some(false), None) => {
            let hint = "set tie_word_embeddings to true if the head is the embedding, else download the missing shard";
            findings.error("lm_head.weight", "is missing, and tie_word_embeddings is false", hint);
        }
        (Some(true), Some(head)) if differs(subject, head) => {
            let hint = "set tie_word_embeddings to false, or take the head out of the checkpoint";
            let reason =
                "is another matrix than the embedding, and tie_word_embeddings is true: loaders do not read it";
            findings.warning(&head.module, reason, hint);
        }
        _ => {}
    }
}

/// Whether the head is not the embedding.
fn differs(subject: &Subject<'_>, head: &Linear) -> bool {
    let plain = |name: &str| subject.survey.plain.iter().find(|(plain, _)| plain == name).map(|(_, view)| *view);
    let mut both = subject.survey.tensors.iter().zip(subject.network.places());
    let embedding = both.find(|(_, place)| **place == Place::Embedding).and_then(|(tensor, _)| plain(&tensor.name));
    match (plain(&format!("{}.weight", head.module)), embedding) {
        (Some(head), Some(embedding)) => !is_same(head, embedding),
        _ => true,
    }
}

fn is_same(one: TensorView<'_>, other: TensorView<'_>) -> bool {
    (one.dtype(), one.shape()) == (other.dtype(), other.shape()) && one.bytes() == other.bytes()
}
