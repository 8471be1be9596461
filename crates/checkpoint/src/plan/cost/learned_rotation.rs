//! What learning a rotation takes: steps through the whole model, of which one block is in memory.

use super::{CalibrationSize, FLOAT};
use crate::plan::{Plan, PlannedLayer};
use kvant_quant::rotation::Rotate;
use std::collections::BTreeMap;

/// Matrices of a rotation in f64 that exist at a time: what is learned, its average gradient, and what a step is computed with.
const MATRICES: u64 = 10;
/// Widest activations on a tape, with their gradients: about a dozen values of a token in a block are as wide as a layer.
const TAPE: u64 = 24;
/// Bytes of an element of these.
const DOUBLE: u64 = 8;
/// Products of such matrices that a step takes.
const PRODUCTS: f64 = 8.0;

/// The cost of learning a rotation. Weights outside of the plan do not count, and of experts all do.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct LearnedRotationCost {
    /// Floating-point operations.
    pub operations: f64,
    /// Bytes of private memory beside what the engine takes.
    pub memory: u64,
    /// Bytes of files.
    pub disk: u64,
}

impl LearnedRotationCost {
    pub fn of(plan: &Plan, rotate: Rotate, size: CalibrationSize) -> LearnedRotationCost {
        let layers = || plan.layers.iter();
        let weights = |layer: &PlannedLayer| (layer.rows * layer.columns) as u64;
        let mut blocks: BTreeMap<&str, u64> = BTreeMap::new();
        layers().for_each(|layer| *blocks.entry(block_of(&layer.module)).or_default() += weights(layer));
        let MatrixSize { channels, mixed } = MatrixSize::of(plan, rotate);
        let all: u64 = layers().map(weights).sum();
        let (steps, batch) = (f64::from(rotate.steps), size.batch() as f64);
        let measured = if size.held_out > 0 { size.held_out * size.length } else { size.tokens() } as f64;
        // Weights are rotated twice for each step and once for each loss; a batch runs twice forwards and once back, and as much again for
        // products of what layers read and give with their gradients.
        let rotated = (2.0 * steps + 2.0) * 2.0 * all as f64 * mixed as f64;
        let passed = 2.0 * all as f64 * (5.0 * steps * batch + 2.0 * measured + size.all_tokens() as f64);
        let sums = 2.0 * steps * batch * (mixed * channels) as f64 * layers().count() as f64;
        let moved = steps * PRODUCTS * 2.0 * (mixed * mixed * channels) as f64;
        let streams = (size.all_tokens() + size.batch() * blocks.len() as u64) * channels * FLOAT;
        let widest = layers().map(|layer| layer.rows.max(layer.columns) as u64).max().unwrap_or(0);
        let matrices = mixed * channels * DOUBLE;
        let largest = blocks.values().max().copied().unwrap_or(0);
        let held = streams.min(size.memory);
        LearnedRotationCost {
            operations: rotated + passed + sums + moved,
            memory: 3 * FLOAT * largest + TAPE * size.chunk(widest) * FLOAT + MATRICES * matrices + held,
            // Matrices and averages are kept for an interrupted run.
            disk: (streams - held).saturating_add(2 * matrices),
        }
    }
}

/// The size of the largest matrix.
struct MatrixSize {
    channels: u64,
    /// Channels that are mixed with each other.
    mixed: u64,
}

impl MatrixSize {
    fn of(plan: &Plan, rotate: Rotate) -> MatrixSize {
        // Every layer reads the stream or writes to it, and most are wider on the other side.
        let channels = plan.layers.iter().map(|layer| layer.rows.max(layer.columns)).min().unwrap_or(0) as u64;
        let mixed = Some(u64::from(rotate.size)).filter(|group| *group > 0).unwrap_or(channels);
        MatrixSize { channels, mixed }
    }
}

impl Plan {
    /// Bytes of learned matrices while weights are read: the tensors that hold them, and their elements.
    pub(in crate::plan) fn learned_rotation_bytes(&self) -> u64 {
        let bytes = |rotate| {
            let MatrixSize { channels, mixed } = MatrixSize::of(self, rotate);
            2 * channels * mixed * DOUBLE
        };
        self.recipe.algorithms().learned_rotation().map_or(0, bytes)
    }
}

/// The part of a module's name that names its block: up to the first number.
fn block_of(module: &str) -> &str {
    let mut end = 0;
    for part in module.split_inclusive('.') {
        end += part.len();
        if part.trim_end_matches('.').bytes().all(|byte| byte.is_ascii_digit()) {
            return &module[..end];
        }
    }
    ""
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_of_a_block_have_one_name_for_it() {
        let names = ["model.layers.3.mlp.up_proj", "model.layers.3.mlp.experts.7.w1", "lm_head", "h.12"];
        assert_eq!(names.map(block_of), ["model.layers.3.", "model.layers.3.", "", "h.12"]);
    }
}
