//! Recurrent token mixers, which hybrid models have in most of their blocks in place of attention: linear attention and state-space
//! layers. They keep a state of a fixed size where attention keeps keys and values. What is named here is data of the families; what
//! the mixers compute is in the forward pass.

use super::description::{Linears, Text};
use super::leaked::leaked;
use super::role::{NormKind, RowOrder};
use crate::model_config::ModelConfig;
use serde::{Deserialize, Serialize};

/// The recurrent token mixer of a family.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recurrent {
    /// The formula.
    pub mixer: RecurrentMixer,
    /// Its linear layers, the output last.
    #[serde(deserialize_with = "leaked")]
    pub linears: Linears,
    /// How the rows of its inputs are laid out where one matrix holds several.
    pub rows: RowOrder,
    /// Its tensors that belong to no linear layer and no norm.
    #[serde(deserialize_with = "leaked")]
    pub parameters: &'static [(RecurrentParameter, Text)],
    /// The formula of the norm of its output, which differs from the family's other norms.
    pub norm_kind: NormKind,
    /// Where config.json has no `layer_types`: the key whose value `n` says that every `n`-th block has attention, and its default.
    #[serde(deserialize_with = "leaked")]
    pub attention_interval: (Text, usize),
}

/// What a recurrent mixer computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RecurrentMixer {
    /// Gated delta net (arXiv 2412.06464). Queries, keys and values pass a causal depthwise convolution and SiLU; queries and keys are
    /// divided by their lengths. For each value head, with the state `S` of a key head's width by its own,
    /// `S := exp(g) S + k (beta (v - exp(g) S^T k))^T` and `o = S^T q / sqrt(d_k)`, where `g = -exp(A_log) softplus(a + dt_bias)` and
    /// `beta = sigmoid(b)`. The output layer reads `norm(o) * silu(z)`.
    GatedDelta,
}

/// A tensor of a recurrent mixer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RecurrentParameter {
    /// The weight of the depthwise convolution, `[channels, 1, kernel]`.
    Convolution,
    /// `A_log`: the logarithm of the rate of decay of each head.
    DecayLog,
    /// `dt_bias`: what is added to the step of each head.
    StepBias,
}

impl Recurrent {
    /// The name of a tensor inside its block.
    pub fn parameter(&self, parameter: RecurrentParameter) -> Option<&'static str> {
        self.parameters.iter().find(|(listed, _)| *listed == parameter).map(|(_, path)| *path)
    }

    /// Returns whether a block has this mixer: its `layer_types` say so, or else the interval.
    pub fn is_in_block(&self, config: &ModelConfig, block: usize) -> bool {
        if let Some(kind) = config.layer_types.get(block) {
            return kind == LINEAR_ATTENTION;
        }
        let (key, default) = self.attention_interval;
        let interval = config.number(key).ok().flatten().map_or(default, |interval| interval.max(1.0) as usize);
        !(block + 1).is_multiple_of(interval)
    }
}

/// The entry of `layer_types` for blocks with a recurrent mixer.
pub const LINEAR_ATTENTION: &str = "linear_attention";
