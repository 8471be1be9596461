//! Codes: fp8 codes that are no numbers, and layers all of whose codes are the same.

use super::DAMAGED;
use crate::verify::scan::{self, Floats};
use crate::verify::subject::CheckpointView;
use kvant_container::TensorView;
use kvant_quant::finding::Findings;
use kvant_weights::parts::{Content, Packing};
use rayon::prelude::*;

pub(super) fn run(subject: &CheckpointView<'_>, findings: &mut Findings) {
    let weights = subject.survey.weights.iter().filter_map(|weight| Some((weight.float?.special_from()?, weight)));
    let views = weights.flat_map(|(least, weight)| codes(&weight.parts).map(move |view| (least, view)));
    let mut views: Vec<(u8, TensorView<'_>)> = views.collect();
    // Experts may share a tensor.
    views.dedup_by_key(|(_, view)| view.name());
    let found: Vec<_> =
        views.par_iter().map(|(least, view)| (view.name(), scan::codes_of_no_number(*view, *least))).collect();
    for (name, count) in found.into_iter().filter(|(_, count)| *count > 0) {
        findings.error(name, format!("{count} codes are NaN or infinite"), DAMAGED);
    }
}

/// The tensors of codes that have a byte each.
fn codes<'p, 'a>(parts: &'p [(Content, TensorView<'a>)]) -> impl Iterator<Item = TensorView<'a>> + use<'p, 'a> {
    let packed = parts.iter().filter(|(content, _)| matches!(content, Content::Codes { packing: Packing::Bytes, .. }));
    packed.map(|(_, view)| *view)
}

/// Layers of one value.
pub(super) fn constant(subject: &CheckpointView<'_>, findings: &mut Findings) {
    const HINT: &str = "the layer was not written, or its weights were lost before";
    for weight in &subject.survey.weights {
        let codes = weight.parts.iter().find(|(content, _)| matches!(content, Content::Codes { .. }));
        if let Some((_, view)) = codes.filter(|(_, view)| scan::is_constant(*view)) {
            findings.warning(view.name(), "all codes are the same", HINT);
        }
    }
    for linear in subject.float_linears() {
        let name = format!("{}.weight", linear.module);
        let view = subject.checkpoint.tensor(&name).filter(|view| scan::is_constant(*view));
        if view.is_some_and(|view| scan::floats(view) == Some(Floats::Zero)) {
            findings.warning(name, "all weights are 0", HINT);
        }
    }
}
