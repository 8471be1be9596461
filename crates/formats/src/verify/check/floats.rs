//! Tensors that are kept in floats: every number is finite.

use super::DAMAGED;
use crate::verify::scan::{self, Floats};
use crate::verify::subject::CheckpointView;
use kvant_model::network::{Place, Reason};
use kvant_quant::counts::number_are;
use kvant_quant::finding::Findings;
use rayon::prelude::*;
use std::collections::HashSet;

pub(super) fn run(subject: &CheckpointView<'_>, findings: &mut Findings) {
    // Masks hold infinities on purpose.
    let both = subject.survey.tensors.iter().zip(subject.network.places());
    let buffers: HashSet<&str> =
        both.filter(|(_, place)| **place == Place::Other(Reason::Buffer)).map(|(tensor, _)| &*tensor.name).collect();
    let plain: Vec<_> = subject.survey.plain.iter().filter(|(name, _)| !buffers.contains(name.as_str())).collect();
    let found: Vec<_> = plain.par_iter().map(|(name, view)| (name, scan::floats(*view))).collect();
    for (name, found) in found {
        if let Some(Floats::NotFinite(count)) = found {
            findings.error(name, format!("{} NaN or infinite", number_are(count, "value")), DAMAGED);
        }
    }
}
