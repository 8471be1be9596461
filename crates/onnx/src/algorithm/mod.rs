//! The algorithms that recover accuracy lost by plain static quantization: one row of [`algorithms`] each. Their settings and the table are
//! `algorithm_settings`; roundings are those of [`kvant_quant::rounding`], for which `rounding` states the problems.
//!
//! They run in the order of the table, regardless of the requested order:
//!
//! 1. [`Stage::Float`] changes the float model without changing its function, before ranges are observed;
//! 2. [`Stage::Rounding`] chooses the codes of weights whose scales are known, layer by layer;
//! 3. [`Stage::Tuning`] learns codes and scales that are chosen, block by block;
//! 4. [`Stage::Correction`] changes the biases of layers whose codes are chosen.
//!
//! The last three see activations: `tune` runs the float model and the quantized one side by side, with the finished layers
//! quantized. No graph is written here.
//!
//! Adding one: a file here, and one with its settings, a variant and a row of the table there.

mod attention_scores;
mod block_tuning;
mod blocks;
mod channels;
mod cross_layer_equalization;
mod data;
mod form;
mod gradient;
mod im2col;
mod importance;
mod incremental_executor;
mod input_scaling;
mod layer;
mod layer_io;
mod learned;
mod mix;
mod normalization;
mod outcome;
#[cfg(test)]
mod reconstruction_tests;
mod rotate;
mod rounding;
mod samples;
mod scaling;
mod selection;
mod simulation;
mod target;
mod transform;
mod trial;
mod tuning;

pub use crate::algorithm_settings::{
    Algorithm, AlgorithmRow, Algorithms, BiasCorrection, ClipRule, Equalization, RotateSettings, SpellingError, Stage,
    algorithms, named, split_name,
};
pub use crate::error::AlgorithmError;
pub use cross_layer_equalization::{EqualizedPair, equalize};
pub use data::Data;
pub(crate) use importance::{Importance, weighed_inputs};
pub use input_scaling::ScaledInput;
pub use kvant_quant::reconstruction::ActivationFunction;
pub use layer::{Grid, Layer, Rounded};
pub use layer_io::{LayerIo, Pair};
pub use learned::{LearnedBlock, LeftBlock};
pub use rotate::{LeftStream, RotatedStream, Rotations, rotate};
pub use scaling::{LeftInput, LimitedWeight};
pub(crate) use scaling::{TransformedByData, Unlimited};
pub(crate) use simulation::Tunable;
pub(crate) use transform::{Transformed, check, transform, transform_with_data};
pub use tuning::LayerGain;
pub(crate) use tuning::{search_blocks, tune};

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn algorithm_names_are_unique_and_rows_follow_stages() {
        let rows = algorithms();
        let names: Vec<&str> = rows.iter().flat_map(|r| r.aliases.iter().copied().chain([&*r.name])).collect();
        assert_eq!(names.iter().collect::<HashSet<_>>().len(), names.len());
        assert!(rows.is_sorted_by_key(|row| row.default.stage()));
        for row in &rows {
            assert_eq!((row.default.name(), row.default.to_string().as_str()), (&*row.name, &*row.name));
            let sees_layers = row.default.stage() == Stage::Rounding && row.default.needs_data();
            assert_eq!(row.default.rounding().is_some(), sees_layers, "{}", row.name);
            assert!(!row.default.cost().is_empty() && !row.default.needs().is_empty());
        }
        for name in names {
            assert!(named(&name.to_uppercase().replace('-', "_")).is_some(), "{name}");
        }
    }
}
