//! The layers in the order in which a control of accuracy gives them wider types: those first whose codes cost most.

use kvant_quant::recipe::OverrideEntry;

use super::bench::Bench;
use super::report::Row;
use super::search::{noise, only};

/// A layer gets a candidate's types.
#[derive(Debug, Clone)]
pub struct Widening {
    /// The layer.
    pub layer: String,
    /// The candidate.
    pub candidate: String,
    /// What that adds to the recipe, behind those of the steps before it.
    pub overrides: Vec<OverrideEntry>,
}

/// All steps: each layer with the first candidate's types, then each with the next one's. Among the steps of a candidate those come first
/// whose layers have the most noise before (`10^(-SQNR / 10)` with that layer alone quantized), so that the fewest layers are widened.
/// Steps that change no tensor are left out.
pub fn widenings(bench: &Bench, rows: &[Row]) -> Vec<Widening> {
    let mut steps = Vec::new();
    for level in 1..=bench.candidates.len() {
        let mut layers: Vec<usize> = (0..bench.layers.len()).collect();
        let before = |layer: &usize| noise(bench, rows, *layer, level - 1);
        layers.sort_by(|a, b| before(b).total_cmp(&before(a)));
        steps.extend(layers.into_iter().map(|layer| Widening {
            layer: bench.layers[layer].name.clone(),
            candidate: bench.candidates[level - 1].to_string(),
            overrides: bench.overrides(&only(bench, layer, Some(level), Some(0))),
        }));
    }
    steps.retain(|step| !step.overrides.is_empty());
    steps
}
