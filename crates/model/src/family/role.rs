//! The vocabulary of a decoder: the role of a linear layer, its position, the position of a norm and the order in which a
//! weight is stored. Names of tensors are not here; they are data of the families.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The role of a linear layer inside a decoder.
///
/// In the names below `x` is the residual stream after its norm, `c` a latent of multi-head latent attention (MLA,
/// arXiv 2405.04434) and `h` the hidden activation of a feed-forward network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Queries `q = W x` (of every head).
    Query,
    /// Keys `k = W x` (of every key/value head).
    Key,
    /// Values `v = W x` (of every key/value head).
    Value,
    /// Queries, keys and values in one matrix; [`RowOrder`] says how the rows are laid out.
    QueryKeyValue,
    /// Keys in one matrix, which are values as well.
    KeyValue,
    /// Entries of tokens beside their keys: what they are sums of.
    CompressedKey,
    /// The same: the scores of its terms.
    CompressedGate,
    /// MLA: the query latent `c_q = W x`.
    QueryDown,
    /// MLA: queries from the query latent.
    QueryUp,
    /// MLA: the key/value latent and the shared rotary key, `[c_kv; k_rope] = W x`.
    KeyValueDown,
    /// MLA: keys and values from the key/value latent; per head `[k_nope; v]`.
    KeyValueUp,
    /// Sparse attention: what chooses keys, its queries, from the query latent where there is one.
    IndexQuery,
    /// Sparse attention: the keys of what chooses keys.
    IndexKey,
    /// Sparse attention to entries: the scores of the terms of their keys.
    IndexGate,
    /// Sparse attention: the weight of each head of what chooses keys.
    IndexWeights,
    /// The gate `g = W x` of attention: its sigmoid multiplies the heads' outputs.
    HeadGate,
    /// The latents of groups of heads, from their outputs: one matrix with rows for each group.
    OutputDown,
    /// The output projection of attention, or of a recurrent mixer.
    Output,
    /// Recurrent mixers: what passes the convolution; of a gated delta net queries, keys and values, of a short convolution its gates too;
    /// of lightning attention queries, keys and values, which pass none.
    RecurrentInput,
    /// Gated delta net: queries, where [`Role::RecurrentInput`] is three matrices.
    RecurrentQuery,
    /// Gated delta net: keys, likewise.
    RecurrentKey,
    /// Gated delta net: values, likewise.
    RecurrentValue,
    /// Recurrent mixers: the gate `z` on the output.
    RecurrentGate,
    /// Recurrent mixers: [`Role::RecurrentInput`] and [`Role::RecurrentGate`] in one matrix; of Mamba 2 the gate first, and last the step of
    /// each head, of Mamba the gate last.
    RecurrentInputGate,
    /// Gated delta net: the step `a` of each head's decay.
    RecurrentDecay,
    /// Delta net with a decay for each channel: the steps of its decays, where they have no latent.
    RecurrentSteps,
    /// Delta net with a decay for each channel: the latent of the steps of its decays.
    RecurrentDecayDown,
    /// The same: the steps from their latent, one for each channel of each key.
    RecurrentDecayUp,
    /// The same: the latent of the gates on the output.
    RecurrentGateDown,
    /// The same: the gates on the output from their latent.
    RecurrentGateUp,
    /// Gated delta net: the strength `b` with which each head writes.
    RecurrentStrength,
    /// [`Role::RecurrentStrength`] and [`Role::RecurrentDecay`] in one matrix.
    RecurrentRates,
    /// Mamba: from what the convolution gives, the latent of the steps, what is written into the state, and what reads it.
    RecurrentChoice,
    /// Mamba: the step of each channel, from the latent of the steps.
    RecurrentStep,
    /// The gate `g` of a gated feed-forward `h = act(g) * u`.
    Gate,
    /// The up projection `u`; in a plain feed-forward the first layer, `h = act(u)`.
    Up,
    /// Gate and up projection in one matrix.
    GateUp,
    /// The down projection, from `h` back to the residual stream.
    Down,
    /// The router of a mixture of experts.
    Router,
    /// The scalar gate on the shared expert.
    SharedGate,
    /// The inputs that blocks have of their own, of all of them, from the embeddings (Gemma 4).
    LayerInputs,
    /// The gate on a block's own input.
    LayerInputGate,
    /// From a block's own input, gated, back to the residual stream.
    LayerInputOutput,
    /// Several residual streams side by side (Gemma 3n): from the embeddings to one of them.
    LaneInput,
    /// From one of several streams to what the last norm reads.
    LaneOutput,
    /// The router of a block among several streams.
    LaneRouter,
    /// How a block predicts streams from each other.
    LanePrediction,
    /// How a block moves streams by what it computes.
    LaneCorrection,
    /// The first of two narrow layers beside attention (Gemma 3n).
    LowRankDown,
    /// The second of them.
    LowRankUp,
    /// The output head: logits from the last hidden state.
    Head,
    /// Encoders: behind the last hidden states, as a pooler, a classifier and what stands before the output head.
    Readout,
    /// Embedding width to hidden size, before the first block.
    ProjectIn,
    /// Hidden size to embedding width, after the last block.
    ProjectOut,
    /// A linear layer whose purpose is not known.
    #[serde(rename = "linear")]
    Unknown,
}

impl Role {
    /// Every role, in the order of the declaration.
    pub const ALL: [Role; 55] = [
        Role::Query,
        Role::Key,
        Role::Value,
        Role::QueryKeyValue,
        Role::KeyValue,
        Role::CompressedKey,
        Role::CompressedGate,
        Role::QueryDown,
        Role::QueryUp,
        Role::KeyValueDown,
        Role::KeyValueUp,
        Role::IndexQuery,
        Role::IndexKey,
        Role::IndexGate,
        Role::IndexWeights,
        Role::HeadGate,
        Role::OutputDown,
        Role::Output,
        Role::RecurrentInput,
        Role::RecurrentQuery,
        Role::RecurrentKey,
        Role::RecurrentValue,
        Role::RecurrentGate,
        Role::RecurrentInputGate,
        Role::RecurrentDecay,
        Role::RecurrentSteps,
        Role::RecurrentDecayDown,
        Role::RecurrentDecayUp,
        Role::RecurrentGateDown,
        Role::RecurrentGateUp,
        Role::RecurrentStrength,
        Role::RecurrentRates,
        Role::RecurrentChoice,
        Role::RecurrentStep,
        Role::Gate,
        Role::Up,
        Role::GateUp,
        Role::Down,
        Role::Router,
        Role::SharedGate,
        Role::LayerInputs,
        Role::LayerInputGate,
        Role::LayerInputOutput,
        Role::LaneInput,
        Role::LaneOutput,
        Role::LaneRouter,
        Role::LanePrediction,
        Role::LaneCorrection,
        Role::LowRankDown,
        Role::LowRankUp,
        Role::Head,
        Role::Readout,
        Role::ProjectIn,
        Role::ProjectOut,
        Role::Unknown,
    ];

    /// The role's name as printed in plans and reports.
    pub fn name(self) -> &'static str {
        match self {
            Role::Query => "query",
            Role::Key => "key",
            Role::Value => "value",
            Role::QueryKeyValue => "query-key-value",
            Role::KeyValue => "key-value",
            Role::CompressedKey => "compressed-key",
            Role::CompressedGate => "compressed-gate",
            Role::QueryDown => "query-down",
            Role::QueryUp => "query-up",
            Role::KeyValueDown => "key-value-down",
            Role::KeyValueUp => "key-value-up",
            Role::IndexQuery => "index-query",
            Role::IndexKey => "index-key",
            Role::IndexGate => "index-gate",
            Role::IndexWeights => "index-weights",
            Role::HeadGate => "head-gate",
            Role::OutputDown => "output-down",
            Role::Output => "output",
            Role::RecurrentInput => "recurrent-input",
            Role::RecurrentQuery => "recurrent-query",
            Role::RecurrentKey => "recurrent-key",
            Role::RecurrentValue => "recurrent-value",
            Role::RecurrentGate => "recurrent-gate",
            Role::RecurrentInputGate => "recurrent-input-gate",
            Role::RecurrentDecay => "recurrent-decay",
            Role::RecurrentSteps => "recurrent-steps",
            Role::RecurrentDecayDown => "recurrent-decay-down",
            Role::RecurrentDecayUp => "recurrent-decay-up",
            Role::RecurrentGateDown => "recurrent-gate-down",
            Role::RecurrentGateUp => "recurrent-gate-up",
            Role::RecurrentStrength => "recurrent-strength",
            Role::RecurrentRates => "recurrent-rates",
            Role::RecurrentChoice => "recurrent-choice",
            Role::RecurrentStep => "recurrent-step",
            Role::Gate => "gate",
            Role::Up => "up",
            Role::GateUp => "gate-up",
            Role::Down => "down",
            Role::Router => "router",
            Role::SharedGate => "shared-gate",
            Role::LayerInputs => "layer-inputs",
            Role::LayerInputGate => "layer-input-gate",
            Role::LayerInputOutput => "layer-input-output",
            Role::LaneInput => "lane-input",
            Role::LaneOutput => "lane-output",
            Role::LaneRouter => "lane-router",
            Role::LanePrediction => "lane-prediction",
            Role::LaneCorrection => "lane-correction",
            Role::LowRankDown => "low-rank-down",
            Role::LowRankUp => "low-rank-up",
            Role::Head => "head",
            Role::Readout => "readout",
            Role::ProjectIn => "project-in",
            Role::ProjectOut => "project-out",
            Role::Unknown => "linear",
        }
    }

    /// Whether layers of this role stay in the source's precision unless the user asks otherwise: the output head and readouts,
    /// layers that route tokens, and those that give a recurrent mixer one number a head. They are small, and errors there cost most.
    pub fn is_kept_by_default(self) -> bool {
        use Role::{Head, LaneCorrection, LanePrediction, LaneRouter, Readout, Router, SharedGate};
        matches!(self, Head | Readout | Router | SharedGate | LaneRouter | LanePrediction | LaneCorrection)
            || self.is_rate()
    }

    /// Returns whether layers of this role have one output for each head of a recurrent mixer.
    pub fn is_rate(self) -> bool {
        matches!(self, Role::RecurrentDecay | Role::RecurrentStrength | Role::RecurrentRates)
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The part of the model a linear layer belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    /// Self-attention.
    Attention,
    /// A recurrent mixer in place of attention.
    Recurrent,
    /// Attention to what an encoder gives.
    CrossAttention,
    /// A dense feed-forward network.
    Mlp,
    /// One of the routed experts.
    Experts,
    /// The experts that every token passes.
    SharedExperts,
    /// The router, which chooses among the experts.
    Routing,
    /// Outside the decoder blocks.
    Trunk,
    /// Not known (architectures without a description).
    Unknown,
}

/// How a weight matrix is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Orientation {
    /// `[out_features, in_features]`, as `torch.nn.Linear` stores it.
    OutIn,
    /// `[in_features, out_features]`: GPT-2's `Conv1D`, the experts of gpt-oss.
    InOut,
}

/// How several projections share the output rows of one matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RowOrder {
    /// One after the other: all of q, then all of k, then all of v; all of gate, then all of up.
    Stacked,
    /// Per head `[q; k; v]`, heads one after the other (GPT-NeoX, lightning attention). In the recurrent mixers of Qwen3-Next, per key head `[q; k; v; z]` with
    /// the values and gates of all value heads that read it.
    PerHead,
    /// Per key head the queries that share it, its key, its value: `[q ..; k; v]` (Falcon).
    PerGroup,
    /// Alternating rows, `g_0, u_0, g_1, u_1, ...` (gpt-oss).
    Interleaved,
}

/// The position of a norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NormSite {
    /// On the embeddings, before the first block.
    Embedding,
    /// Before attention. In a parallel block without a second norm it feeds the feed-forward network too.
    AttentionInput,
    /// Before attention to what an encoder gives. In a network that is [`NormSite::AttentionInput`] of a block of its own.
    CrossAttentionInput,
    /// On the queries, before (rarely after) the rotary embedding.
    Query,
    /// On the keys, before (rarely after) the rotary embedding.
    Key,
    /// On the query latent of MLA.
    QueryLatent,
    /// On the key/value latent of MLA.
    KeyValueLatent,
    /// On entries of tokens beside their keys.
    CompressedKey,
    /// On the queries of what chooses keys (sparse attention).
    IndexQuery,
    /// On the keys of what chooses keys (sparse attention).
    IndexKey,
    /// On the heads' outputs, before the output projection (BitNet).
    Heads,
    /// On the output of a recurrent mixer: of each head before its gate, all heads sharing it; of Mamba 2 behind the gate, over all heads.
    RecurrentOutput,
    /// Mamba: on the latent of the steps.
    RecurrentStep,
    /// Mamba: on what is written into the state.
    RecurrentWrites,
    /// Mamba: on what reads the state.
    RecurrentReads,
    /// On the output of attention, before it joins the residual stream.
    AttentionOutput,
    /// Before the feed-forward network.
    FeedForwardInput,
    /// On the hidden activation of the feed-forward network, before the down projection (BitNet).
    Hidden,
    /// On the output of the feed-forward network, before it joins the residual stream.
    FeedForwardOutput,
    /// On the output of the dense network that stands beside routed experts (Gemma 4).
    DenseOutput,
    /// Before routed experts that stand beside a dense network.
    RoutedInput,
    /// On the output of these experts.
    RoutedOutput,
    /// On the inputs that blocks have of their own, of each block.
    LayerInputs,
    /// On what the router among several streams reads.
    LaneRouter,
    /// On what two narrow layers beside attention give.
    LowRankOutput,
    /// On what a block's own input adds, before it joins the residual stream.
    LayerInputOutput,
    /// After the last block.
    Final,
    /// Encoder-decoders: on the embeddings of what the encoder reads.
    SourceEmbedding,
    /// Encoder-decoders: after the last block of the encoder.
    SourceFinal,
    /// Encoders: on the embeddings of distances.
    Distances,
    /// Models of sounds: behind convolutions, before their activations.
    SoundConvolution,
    /// Models of sounds: on what convolutions give, before its projection to the width of the stream.
    SoundFeatures,
    /// Encoders: in what is read out of the last hidden states.
    Readout,
}

/// The formula of a norm with weight `w`, bias `b` and a small `eps`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NormKind {
    /// `x / sqrt(mean(x^2) + eps) * w`.
    Rms,
    /// `x / sqrt(mean(x^2) + eps) * (1 + w)` (Gemma).
    RmsUnitOffset,
    /// `(x - mean(x)) / sqrt(var(x) + eps) * w + b`; `b` may be absent.
    LayerNorm,
    /// `(x - mean(x)) / sqrt(var(x) + eps) * (1 + w) + b` (Nemotron).
    LayerNormUnitOffset,
    /// `(x - mean(x)) / sqrt(var(x) + eps)`: no parameters (OLMo), so nothing can be folded into it.
    LayerNormPlain,
    /// `x / sqrt(mean(x^2) + eps)`: likewise (nanochat).
    RmsPlain,
}

impl NormKind {
    /// The offset added to the stored weight before multiplication, 0 or 1.
    pub fn offset(self) -> f32 {
        match self {
            NormKind::RmsUnitOffset | NormKind::LayerNormUnitOffset => 1.0,
            NormKind::Rms | NormKind::RmsPlain | NormKind::LayerNorm | NormKind::LayerNormPlain => 0.0,
        }
    }

    /// Returns whether the mean is subtracted.
    pub fn subtracts_mean(self) -> bool {
        !matches!(self, NormKind::Rms | NormKind::RmsUnitOffset | NormKind::RmsPlain)
    }

    /// Returns whether the norm has a weight tensor.
    pub fn has_weight(self) -> bool {
        !matches!(self, NormKind::LayerNormPlain | NormKind::RmsPlain)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn all_roles_are_listed_once_with_unique_names() {
        let names: HashSet<_> = Role::ALL.iter().map(|role| role.name()).collect();
        assert_eq!(names.len(), Role::ALL.len());
        // The last variant's position shows whether one was forgotten.
        assert_eq!(Role::Unknown as usize + 1, Role::ALL.len());
    }

    #[test]
    fn norm_offsets_match_their_formulas() {
        assert_eq!(NormKind::RmsUnitOffset.offset(), 1.0);
        assert_eq!(NormKind::Rms.offset(), 0.0);
        assert!(NormKind::LayerNormUnitOffset.subtracts_mean());
        assert!(!NormKind::LayerNormPlain.has_weight() && !NormKind::RmsPlain.has_weight());
        assert!(NormKind::LayerNormPlain.subtracts_mean() && !NormKind::RmsPlain.subtracts_mean());
    }
}
