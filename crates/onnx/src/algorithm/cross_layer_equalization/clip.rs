//! A Clip between two layers whose channels are scaled: it clips what is scaled only if its bounds are scaled too.

use kvant_container::onnx::{DataType, GraphProto, tensor};

use crate::algorithm_settings::ClipRule;
use crate::graph::{Edit, Index, node};
use crate::placement::clip_bounds;

/// A Clip whose lower bound is zero, and so scales with everything.
#[derive(Debug, Clone)]
pub(super) struct Clip {
    position: usize,
    high: f32,
    /// Axes behind that of the channels.
    behind: usize,
}

impl Clip {
    /// Of a node; `None` where its bounds are not those, or the place of its channels is not known.
    pub fn of(graph: &GraphProto, index: &Index, position: usize, axis: i64, rank: Option<usize>) -> Option<Self> {
        let (low, high) = clip_bounds(graph, index, &graph.node[position])?;
        let behind = if axis < 0 { 0 } else { rank?.checked_sub(2)? };
        (low == 0.0 && high > 0.0).then_some(Self { position, high, behind })
    }

    /// Puts the operators in place that clip channels scaled by `scales`.
    pub fn rewrite(&self, graph: &GraphProto, rule: ClipRule, scales: &[f32], edit: &mut Edit) {
        let old = &graph.node[self.position];
        let (Some(input), Some(output)) = (old.input.first(), old.output.first()) else { return };
        let name = if old.name().is_empty() { output } else { old.name() };
        if rule == ClipRule::Relu {
            edit.replace(self.position, vec![node("Relu", name, &[input], &[output])]);
            return;
        }
        let between = edit.fresh(graph, &format!("{output}_relu"));
        let bound = edit.fresh(graph, &format!("{output}_bound"));
        let values: Vec<u8> = scales.iter().flat_map(|s| (self.high * s).to_le_bytes()).collect();
        let shape: Vec<usize> = [scales.len()].into_iter().chain(std::iter::repeat_n(1, self.behind)).collect();
        edit.add(tensor(&bound, DataType::FLOAT, &shape, values));
        let relu = node("Relu", name, &[input], &[&between]);
        let min = node("Min", &format!("{name}_bound"), &[&between, &bound], &[output]);
        edit.replace(self.position, vec![relu, min]);
    }
}
