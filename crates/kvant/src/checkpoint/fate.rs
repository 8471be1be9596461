//! The planned action for each tensor of the source: one entry for every tensor, in the order of the source. A view of the
//! plan for printing.

use kvant_checkpoint::plan::{KeptTensor, LayerOutput, Plan, PlannedLayer, TensorAction};
use kvant_container::{Checkpoint, Dtype, TensorView};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// The action on a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// It becomes codes and scales, or floats on their grid.
    Quantize,
    /// It is copied unchanged.
    Keep,
    /// Its fp8 codes and scales become bfloat16.
    Widen,
    /// It has no successor.
    Drop,
}

/// A tensor of the source with its action.
#[derive(Clone, Debug)]
pub struct TensorSummary<'a> {
    /// The tensor.
    pub source: TensorView<'a>,
    /// Its action.
    pub action: Action,
    /// The spellings of the schemes, more than one where experts in one tensor differ; empty if it is not quantized.
    pub schemes: BTreeSet<String>,
    /// The reason that it is not quantized.
    pub reason: Option<&'static str>,
    /// The layers that it becomes.
    pub layers: Vec<&'a PlannedLayer>,
    /// The output's tensors: indices among the declarations.
    pub outputs: BTreeSet<usize>,
}

impl TensorSummary<'_> {
    /// Bytes of the output's tensors.
    pub fn output_bytes(&self, plan: &Plan) -> u64 {
        self.outputs.iter().filter_map(|tensor| plan.layout().places().get(*tensor)).map(|place| place.len).sum()
    }

    /// In words: `int4:g128`, `kept (norm)`.
    pub fn becomes(&self) -> String {
        let reason = self.reason.map(|reason| reason.strip_prefix("kept ").unwrap_or(reason));
        let reason = reason.map(|reason| format!(" ({reason})")).unwrap_or_default();
        match self.action {
            Action::Quantize => self.schemes.iter().cloned().collect::<Vec<_>>().join(", "),
            Action::Keep => format!("kept{reason}"),
            Action::Widen => format!("widened to BF16{reason}"),
            Action::Drop => format!("dropped{reason}"),
        }
    }
}

/// The fates of all tensors.
pub fn fates<'a>(plan: &'a Plan, checkpoint: &'a Checkpoint) -> Vec<TensorSummary<'a>> {
    let dropped: BTreeMap<&str, &'static str> = plan.dropped().iter().map(|d| (d.name.as_str(), d.reason)).collect();
    let fate = |source: TensorView<'a>| TensorSummary {
        source,
        action: Action::Drop,
        schemes: BTreeSet::new(),
        reason: dropped.get(source.name()).copied(),
        layers: Vec::new(),
        outputs: BTreeSet::new(),
    };
    let mut fates: Vec<TensorSummary<'a>> = checkpoint.tensors().map(fate).collect();
    for layer in plan.layers() {
        if let Some(fate) = fates.get_mut(layer.source.position) {
            add_layer(fate, layer);
        }
    }
    for kept in plan.kept() {
        if let Some(fate) = fates.get_mut(kept.position) {
            add_kept(fate, kept, plan.layout().declarations()[kept.tensor].dtype);
        }
    }
    fates
}

fn add_layer<'a>(fate: &mut TensorSummary<'a>, layer: &'a PlannedLayer) {
    fate.action = Action::Quantize;
    let kept = if layer.is_recoded() { " (codes of the source)" } else { "" };
    fate.schemes.insert(format!("{}{kept}", layer.scheme));
    fate.layers.push(layer);
    match &layer.output {
        LayerOutput::Parts { parts, first, .. } => fate.outputs.extend(*first..first + parts.len()),
        LayerOutput::Values { tensor, .. } => fate.outputs.extend([*tensor]),
    }
}

fn add_kept(fate: &mut TensorSummary<'_>, kept: &KeptTensor, dtype: Dtype) {
    fate.action = match kept.action {
        TensorAction::Copy(_) => Action::Keep,
        TensorAction::Round { .. } => Action::Quantize,
        // Floats into which an adapter is merged keep their type.
        TensorAction::Dequantize { .. } if fate.source.dtype() == dtype => Action::Keep,
        TensorAction::Widen { .. } | TensorAction::Dequantize { .. } | TensorAction::Cast { .. } => Action::Widen,
    };
    let parts = match &kept.action {
        TensorAction::Round { scheme, parts, .. } => {
            fate.schemes.insert(scheme.to_string());
            parts.len()
        }
        _ => 0,
    };
    fate.reason = Some(kept.reason);
    fate.outputs.extend(kept.tensor..kept.tensor + parts.max(1));
}
