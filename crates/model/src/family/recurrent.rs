//! Recurrent token mixers, which hybrid models have in most of their blocks in place of attention: linear attention, state-space layers
//! and short convolutions. They keep a state of a fixed size where attention keeps keys and values. What is named here is data of the families; what
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
    /// The key of config.json that says whether the convolution has biases, and its value where that is absent; `None` for a convolution
    /// without biases.
    #[serde(deserialize_with = "leaked", default)]
    pub convolution_bias: Option<(Text, bool)>,
    /// Which blocks have it, where config.json has no `layer_types`.
    pub blocks: RecurrentBlocks,
}

/// The blocks that have the recurrent mixer of a family, where config.json does not list types of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RecurrentBlocks {
    /// All but every `n`-th, where this key of config.json has `n`, with its default (Qwen3-Next).
    AllButEvery(#[serde(deserialize_with = "leaked")] Text, usize),
    /// All but those whose indices a key of config.json lists.
    AllButListed {
        /// The key.
        #[serde(deserialize_with = "leaked")]
        key: Text,
        /// Whether all have it where there is no list (Bamba), or none (LFM2).
        without: bool,
    },
    /// All but those at an offset in periods, where these keys of config.json have period and offset, with their defaults (Jamba).
    AllButPeriodic {
        /// The key of the period.
        #[serde(deserialize_with = "leaked")]
        period: (Text, usize),
        /// The key of the offset.
        #[serde(deserialize_with = "leaked")]
        offset: (Text, usize),
    },
    /// None but those that config.json lists, in whatever form it does (Kimi Linear).
    Listed,
    /// All of them.
    Every,
    /// All of them, which have attention as well: both mixers read the same norm, and their outputs are added (Falcon-H1).
    BesideAttention,
}

/// What a recurrent mixer computes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RecurrentMixer {
    /// Gated delta net (arXiv 2412.06464). Queries, keys and values pass a causal depthwise convolution and SiLU; queries and keys are
    /// divided by their lengths. For each value head, with the state `S` of a key head's width by its own,
    /// `S := exp(g) S + k (beta (v - exp(g) S^T k))^T` and `o = S^T q / sqrt(d_k)`, where `g = -exp(A_log) softplus(a + dt_bias)` and
    /// `beta = sigmoid(b)`, or twice that. The output layer reads `norm(o) * silu(z)`.
    GatedDelta {
        /// The key of config.json that says whether `beta` is twice the sigmoid, with its default; `None` where it never is.
        #[serde(deserialize_with = "leaked", default)]
        doubled_if: Option<(Text, bool)>,
        /// The small number under the root of the norm, where it is not that of other norms.
        #[serde(default)]
        eps: Option<f64>,
    },
    /// Kimi delta attention (arXiv 2510.26692): [`RecurrentMixer::GatedDelta`] with a decay for each channel of keys, so that `exp(g)` scales
    /// the rows of the state, where `g = -exp(A_log) softplus(f + dt_bias)`. Steps `f` and gates `z` come through latents. There are as many
    /// heads of keys as of values, and the output layer reads `norm(o) * sigmoid(z)`. Where decays are bounded, `g = l sigmoid(exp(A_log) (f +
    /// dt_bias))`, and neither `f` nor `z` has a latent.
    ChannelDelta {
        /// Whether decays are bounded by `l`, the `kda_lower_bound` of config.json, unless its `kda_safe_gate` is false.
        is_bounded: bool,
    },
    /// Lightning attention (arXiv 2405.17381): linear attention with a fixed decay for each head. The first layer gives for each head a query,
    /// a key and a value, which pass the model's activation. With a state `S` for each head, `S := exp(-r) S + k v^T` and `o = S^T q`. Of `n`
    /// heads in `l` blocks, head `h`, counted from 1, of block `i`, counted from 0, has `r = 2^(-8 h / n) (1 - i / (l - 1 + 1e-5) + 1e-5)`
    /// unless the checkpoint holds its rates. The output layer reads `norm(o) sigmoid(g)`, where the norm is over all heads.
    Lightning {
        /// The small number under the root of the norm.
        eps: f64,
    },
    /// Short convolution with two gates (LFM2). The first layer gives `b`, `c` and `x`, each as wide as the hidden state, and the output
    /// layer reads `c * conv(b * x)`, a causal depthwise convolution without activation.
    ShortConvolution,
    /// Mamba (arXiv 2312.00752). The first layer gives `x`, which passes a causal depthwise convolution and its activation, then the gate
    /// `z`. A second layer gives from `x` the latent of the steps, `b` and `c`, which may be normalised, and a third one the step of each
    /// channel from its latent. For each channel, with a state `s` of as many elements as `b` and `c`, `d = softplus(step)`,
    /// `s := exp(-exp(A_log) d) s + d x b` and `y = c s + D x`. The output layer reads `y * silu(z)`.
    Mamba1 {
        /// The norms of the latent, of `b` and of `c`.
        norms: Mamba1Norms,
    },
    /// Mamba 2 (arXiv 2405.21060). The first layer gives the gate `z`, then `x`, `b` and `c`, which pass a causal depthwise convolution and
    /// its activation, then a step for each head. For each head, with the state `S` of its width by the size of the state, and with `b` and
    /// `c` of its group, `d = softplus(step + dt_bias)`, `S := exp(-exp(A_log) d) S + d x b^T` and `y = S c + D x`. The output layer reads
    /// `norm(y * silu(z))`, where the norm is over each of equal parts of all heads.
    Mamba2 {
        /// The norm.
        norm: Mamba2Norm,
    },
}

/// The norms inside of a Mamba mixer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mamba1Norms {
    /// None (Mamba).
    None,
    /// Without weights, with `mixer_rms_eps` of config.json (Falcon Mamba).
    Plain,
    /// With weights (Jamba).
    Weighted,
}

/// The norm of a Mamba 2 mixer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mamba2Norm {
    /// Behind the gate, over all heads.
    AllHeads,
    /// Behind the gate, over the heads of each group.
    PerGroup,
    /// The same if `mamba_rms_norm` of config.json is true, before the gate unless `mamba_norm_before_gate` is false; else none.
    PerGroupIfAny,
}

/// A tensor of a recurrent mixer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RecurrentParameter {
    /// The weight of the depthwise convolution, `[channels, 1, kernel]`.
    Convolution,
    /// Its rows for queries, where queries, keys and values have a tensor each.
    QueryConvolution,
    /// Those for keys.
    KeyConvolution,
    /// Those for values.
    ValueConvolution,
    /// `A_log`: the logarithm of the rate of decay of each head; of Mamba, of each element of the state of each channel.
    DecayLog,
    /// The rate of decay of each head, which follows from its number where the checkpoint does not hold it.
    DecayRate,
    /// Powers of the decay, which follow from [`RecurrentParameter::DecayRate`] and are not read.
    DecayPowers,
    /// `dt_bias`: what is added to the step of each head, or channel.
    StepBias,
    /// `D`: the factor on what passes the state of each head, or channel, by.
    Skip,
}

impl RecurrentParameter {
    /// Returns whether checkpoints may do without the tensor.
    pub fn is_optional(self) -> bool {
        matches!(self, RecurrentParameter::DecayRate | RecurrentParameter::DecayPowers)
    }
}

impl Recurrent {
    /// The name of a tensor inside its block.
    pub fn parameter(&self, parameter: RecurrentParameter) -> Option<&'static str> {
        self.parameters.iter().find(|(listed, _)| *listed == parameter).map(|(_, path)| *path)
    }

    /// Returns whether a block has this mixer: its `layer_types` say so, or else the family's rule.
    pub fn is_in_block(&self, config: &ModelConfig, block: usize) -> bool {
        let listed = config.layer_types.get(block).filter(|_| self.blocks != RecurrentBlocks::BesideAttention);
        if let Some(kind) = listed {
            return is_recurrent(kind);
        }
        match self.blocks {
            RecurrentBlocks::AllButEvery(key, default) => {
                let interval = config.number(key).ok().flatten().map_or(default, |interval| interval.max(1.0) as usize);
                !(block + 1).is_multiple_of(interval)
            }
            RecurrentBlocks::AllButListed { key, without } => match config.lists(key, block) {
                Some(listed) => !listed,
                None => without,
            },
            RecurrentBlocks::AllButPeriodic { period, offset } => {
                let read = |(key, default): (Text, usize)| {
                    config.number(key).ok().flatten().map_or(default, |number| number.max(0.0) as usize)
                };
                block % read(period).max(1) != read(offset)
            }
            RecurrentBlocks::Listed => false,
            RecurrentBlocks::Every | RecurrentBlocks::BesideAttention => true,
        }
    }

    /// Returns whether a norm belongs to it.
    pub fn has_norm(&self, config: &ModelConfig) -> bool {
        match self.mixer {
            RecurrentMixer::GatedDelta { .. }
            | RecurrentMixer::ChannelDelta { .. }
            | RecurrentMixer::Lightning { .. } => true,
            RecurrentMixer::ShortConvolution | RecurrentMixer::Mamba1 { .. } => false,
            RecurrentMixer::Mamba2 { norm: Mamba2Norm::PerGroupIfAny } => config.flag_or("mamba_rms_norm", false),
            RecurrentMixer::Mamba2 { .. } => true,
        }
    }

    /// Returns whether the convolution has biases.
    pub fn has_convolution_bias(&self, config: &ModelConfig) -> bool {
        self.convolution_bias.is_some_and(|(key, default)| config.flag_or(key, default))
    }
}

/// Returns whether an entry of `layer_types` is that of blocks with a recurrent mixer; older names of it included.
pub fn is_recurrent(kind: &str) -> bool {
    matches!(kind, "linear_attention" | "conv" | "mamba")
}

/// Returns whether an entry of `layer_types` is that of blocks that have nothing but a feed-forward network.
pub fn is_feed_forward(kind: &str) -> bool {
    matches!(kind, "mlp" | "moe")
}

/// Returns whether an entry of `layer_types` is that of blocks that attend to all earlier tokens; older names of it included.
pub fn attends_to_all(kind: &str) -> bool {
    matches!(kind, "full_attention" | "attention")
}
