//! The seam between what a decoder computes and what computes it. Everything that takes time passes through here, so that
//! another device needs these operations and no more. Buffers are rows of `f32`, one per token, in any precision.

use super::heads::{HeadLayout, Heads};
use super::recurrent_state::RecurrentState;
use super::rope::Angles;
use kvant_model::family::{Activation, NormKind, Pairing};
use kvant_numeric::ComputeDType;
use kvant_numeric::linalg::{Precision, ScoreBias};
use kvant_weights::weight::WeightMatrix;
use std::ops::Range;

/// A norm, ready to be applied.
#[derive(Clone, Debug, PartialEq)]
pub struct NormWeights {
    /// The formula.
    pub kind: NormKind,
    /// The weight; empty if the formula does not use one. It may be as long as one head, or as all heads of a row.
    pub weight: Vec<f32>,
    /// The bias; empty if there is none.
    pub bias: Vec<f32>,
    /// The small number under the root.
    pub eps: f32,
}

/// What an indexer chooses keys by.
#[derive(Clone, Copy, Debug)]
pub struct KeyIndex<'a> {
    /// `q`, a row for each query.
    pub queries: Heads<'a>,
    /// `k`, one head, a row for each key.
    pub keys: Heads<'a>,
    /// The choice.
    pub rule: IndexRule<'a>,
}

/// How an indexer chooses keys.
#[derive(Clone, Copy, Debug)]
pub enum IndexRule<'a> {
    /// For each query the keys with the largest `sum_h w_h relu(q_h k)`, which all heads of attention see.
    Keys {
        /// `w`, one for each query and head.
        weights: &'a [f32],
        /// Keys of each query at most.
        most: usize,
    },
    /// For each query and each head of the indexer the blocks of keys with the largest `q_h k` of one of their keys that the query sees. As
    /// many heads of attention share a choice as there are for each head of the indexer.
    Blocks {
        /// Keys of a block.
        size: usize,
        /// Blocks of each query at most.
        most: usize,
        /// Of these, how many up to its own are always among them.
        local: usize,
    },
}

impl KeyIndex<'_> {
    /// Choices of each query.
    pub fn choices(&self) -> usize {
        match self.rule {
            IndexRule::Keys { .. } => 1,
            IndexRule::Blocks { .. } => self.queries.layout.count,
        }
    }
}

/// Keys beside those of tokens, which are values as well: entries, each made of the tokens of a window. A query sees those whose windows end
/// with its token or before.
#[derive(Clone, Copy, Debug)]
pub struct FurtherKeys<'a> {
    /// The entries of each sequence, one after the other; a row begins with the key.
    pub entries: &'a [Vec<f32>],
    /// Elements of a row.
    pub row_width: usize,
    /// Tokens of a window.
    pub rate: usize,
    /// What chooses among them; `None` where queries attend to all that they see.
    pub choice: Option<EntryChoice<'a>>,
}

/// The choice of the entries with the largest `sum_h w_h relu(q_h k)`.
#[derive(Clone, Copy, Debug)]
pub struct EntryChoice<'a> {
    /// `q`, a row for each query.
    pub queries: Heads<'a>,
    /// `w`, one for each query and head.
    pub weights: &'a [f32],
    /// Where `k` begins in the row of an entry.
    pub start: usize,
    /// Entries of each query at most.
    pub most: usize,
}

/// Attention of several sequences of the same length.
#[derive(Clone, Debug)]
pub struct Attention<'a> {
    /// Queries.
    pub queries: Heads<'a>,
    /// Keys; each serves as many query heads as there are per key head.
    pub keys: Heads<'a>,
    /// Values, as many heads as keys.
    pub values: Heads<'a>,
    /// Queries of a sequence.
    pub length: usize,
    /// Tokens of a sequence before its first query: it has as many more keys than queries.
    pub past: usize,
    /// Keys of a sequence where they are not of its tokens, but of what an encoder gives: every query sees all.
    pub foreign: Option<usize>,
    /// The factor on `q k^T`.
    pub scale: f32,
    /// `c` of the soft-cap `c tanh(s / c)` on scores.
    pub cap: Option<f32>,
    /// The number of positions a token sees, itself included and later ones aside; `None` for all before it.
    pub window: Option<usize>,
    /// How many later positions a token sees: none where attention is causal.
    pub ahead: usize,
    /// The position behind the last one that each token sees, in place of `ahead`, where tokens of an image see all of it: there is one
    /// sequence then. Empty otherwise.
    pub ends: &'a [usize],
    /// Positions of a chunk: a token sees its own chunk, from its first position on; `None` where there are no chunks.
    pub chunk: Option<usize>,
    /// A further score per query head; empty if there are none.
    pub sinks: &'a [f32],
    /// What is added to scores: for each query head as many numbers as for the others.
    pub bias: ScoreBias<'a>,
    /// What chooses the keys that queries attend to; `None` where that are all that they see.
    pub index: Option<KeyIndex<'a>>,
    /// Keys beside those of tokens.
    pub further: Option<FurtherKeys<'a>>,
}

impl Attention<'_> {
    /// What is added to the scores of a query head.
    pub fn bias_of(&self, head: usize) -> ScoreBias<'_> {
        let part = |all: &'_ [f32]| -> Range<usize> {
            let count = all.len() / self.queries.layout.count.max(1);
            head * count..(head + 1) * count
        };
        match self.bias {
            ScoreBias::OfKeys(all) => ScoreBias::OfKeys(&all[part(all)]),
            ScoreBias::OfDistances(all) => ScoreBias::OfDistances(&all[part(all)]),
            ScoreBias::OfPairs { biases, keys } => ScoreBias::OfPairs { biases: &biases[part(biases)], keys },
        }
    }

    /// Keys of a sequence.
    pub fn key_count(&self) -> usize {
        self.foreign.unwrap_or(self.past + self.length)
    }

    /// The first position that the one at `position` sees.
    pub fn seen_from(&self, position: usize) -> usize {
        let window = self.window.map_or(0, |window| (position + 1).saturating_sub(window));
        self.chunk.map_or(window, |chunk| window.max(position - position % chunk.max(1)))
    }

    /// The positions that the one at `position` sees.
    pub fn seen(&self, position: usize) -> Range<usize> {
        if let Some(count) = self.foreign {
            return 0..count;
        }
        let end = self.ends.get(position).copied().unwrap_or((position + 1).saturating_add(self.ahead));
        let end = end.min(self.past + self.length);
        self.seen_from(position)..end
    }
}

/// The parameters of [`Activation::Xielu`], as they are stored.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Xielu {
    /// The logit of the quadratic term.
    pub alpha_p: f32,
    /// The logit of the exponential term.
    pub alpha_n: f32,
    /// The slope.
    pub beta: f32,
    /// The largest argument of the exponential function.
    pub eps: f32,
}

/// The output of the first layers of a feed-forward network.
#[derive(Clone, Copy, Debug)]
pub enum Hidden<'a> {
    /// `act(x)`.
    Plain(&'a [f32]),
    /// `act(gate) * up`.
    Pair {
        /// The gates.
        gate: &'a [f32],
        /// The ups.
        up: &'a [f32],
    },
    /// The same, each row of `width` elements being the gates, then as many ups.
    Halves {
        /// The rows.
        rows: &'a [f32],
        /// Elements of a row.
        width: usize,
    },
    /// The same, gates and ups alternating.
    Alternating(&'a [f32]),
}

impl Hidden<'_> {
    /// The number of activations.
    pub fn elements(&self) -> usize {
        match self {
            Hidden::Plain(x) => x.len(),
            Hidden::Pair { gate, .. } => gate.len(),
            Hidden::Halves { rows, .. } | Hidden::Alternating(rows) => rows.len() / 2,
        }
    }
}

/// A causal depthwise convolution of sequences, a row per token.
#[derive(Clone, Copy, Debug)]
pub struct Convolution<'a> {
    /// The rows, one element for each channel.
    pub data: &'a [f32],
    /// The weight, `[channels, kernel]`; the last element is that of the token itself.
    pub weight: &'a [f32],
    /// The bias of each channel; empty if there is none.
    pub bias: &'a [f32],
    /// Tokens that it sees.
    pub kernel: usize,
    /// Rows of each sequence.
    pub lengths: &'a [usize],
}

/// The gated delta rule on sequences. For each value head, with the state `S`, `q` and `k` divided by their lengths, `a` of
/// [`DeltaRule::decays`] and `beta` of [`DeltaRule::strengths`]: `d = beta (v - a S^T k)`, `S := a S + k d^T`, `o = S^T q / sqrt(width of k)`.
/// Where each channel of keys has a separate decay, `a S` is the state with each row scaled by the decay of its channel.
#[derive(Clone, Copy, Debug)]
pub struct DeltaRule<'a> {
    /// Queries.
    pub queries: Heads<'a>,
    /// Keys, as many heads as queries.
    pub keys: Heads<'a>,
    /// Values; each key head serves equally many of their heads.
    pub values: Heads<'a>,
    /// The factor on the state, one for each row and value head, and channel of keys where these have their own.
    pub decays: &'a [f32],
    /// Whether each channel of keys has its own.
    pub by_channel: bool,
    /// Whether queries and keys are divided by their lengths in the precision of activations; in `f32` otherwise.
    pub rounds_lengths: bool,
    /// How strongly rows are written, likewise.
    pub strengths: &'a [f32],
    /// Rows of each sequence.
    pub lengths: &'a [usize],
}

/// State-space layers of sequences. For each head, with the state `S` of its width by that of `b` and `c`, a step `d` and a decay `a`:
/// `S := a S + d x b^T`, `y = S c + D x`.
#[derive(Clone, Copy, Debug)]
pub struct StateSpace<'a> {
    /// `x`.
    pub inputs: Heads<'a>,
    /// `b`; each serves equally many heads.
    pub writes: Heads<'a>,
    /// `c`, as many as there are of `b`.
    pub reads: Heads<'a>,
    /// `d`, one for each row and head.
    pub steps: &'a [f32],
    /// `a`, likewise.
    pub decays: &'a [f32],
    /// `D`, one for each head.
    pub skips: &'a [f32],
    /// Rows of each sequence.
    pub lengths: &'a [usize],
}

/// Selective state-space layers of sequences. For each channel, with a state `s` of as many elements as `b` and `c`, a step `d` and rates
/// `a`: `s := exp(-a d) s + d x b`, `y = c s + D x`.
#[derive(Clone, Copy, Debug)]
pub struct SelectiveScan<'a> {
    /// `x`, one head as wide as there are channels.
    pub inputs: Heads<'a>,
    /// `b`, one head, which serves all channels.
    pub writes: Heads<'a>,
    /// `c`, likewise.
    pub reads: Heads<'a>,
    /// `d`, one for each row and channel.
    pub steps: &'a [f32],
    /// `a`, `[channels, size of the state]`.
    pub rates: &'a [f32],
    /// `D`, one for each channel.
    pub skips: &'a [f32],
    /// Rows of each sequence.
    pub lengths: &'a [usize],
}

/// The norm of rows at a gate: `h = x f(g)`, and for each of equal parts `h / sqrt(mean(h^2) + eps) * w`. Where the gate comes last, it
/// multiplies what the norm of `x` gives; without a weight there is no norm.
#[derive(Clone, Copy, Debug)]
pub struct GatedNorm<'a> {
    /// The gates, one head as wide as the row.
    pub gates: Heads<'a>,
    /// `f`.
    pub function: Gate,
    /// The weight, as long as a row; empty if there is no norm.
    pub weight: &'a [f32],
    /// The small number under the root.
    pub eps: f32,
    /// Parts of a row.
    pub parts: usize,
    /// Whether the gate comes last.
    pub gate_last: bool,
}

/// The function of a gate that multiplies rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// `sigmoid(g)`, rounded before the product.
    Sigmoid,
    /// `ln(1 + exp(g))`, rounded before the product.
    Softplus,
    /// `g sigmoid(g)`, not rounded before it.
    Silu,
    /// `g`.
    Plain,
}

/// The compute backend of a decoder.
pub trait Ops: Sync {
    /// The precision of activations, to which every operation rounds its result.
    fn precision(&self) -> Precision;

    /// The same as the arithmetic that values are quantized in.
    fn arithmetic(&self) -> ComputeDType {
        self.precision().arithmetic()
    }

    /// `out = x W^T + b`, rows of `W.columns` to rows of `W.rows`; `out` is resized.
    fn linear(&self, x: &[f32], weight: &WeightMatrix<'_>, bias: Option<&[f32]>, out: &mut Vec<f32>);

    /// Normalises each head of each row of `row_width` elements, in place.
    fn normalise(&self, norm: &NormWeights, data: &mut [f32], row_width: usize, layout: HeadLayout);

    /// Turns the first components of each head by the angles of the row's position, in place.
    fn rotate(&self, angles: &Angles, pairing: Pairing, data: &mut [f32], row_width: usize, layout: HeadLayout);

    /// Attention; `out` has a row for each query row, heads side by side, and is resized.
    fn attend(&self, attention: &Attention<'_>, out: &mut Vec<f32>);

    /// The convolution of sequences that continue `states`, one for each; `out` is resized.
    fn convolve(&self, convolution: &Convolution<'_>, states: &mut [RecurrentState], out: &mut Vec<f32>);

    /// The gated delta rule on sequences that continue `states`, one for each; `out` has a row for each row, value heads side by side,
    /// and is resized.
    fn delta_rule(&self, rule: &DeltaRule<'_>, states: &mut [RecurrentState], out: &mut Vec<f32>);

    /// State-space layers of sequences that continue `states`, one for each; `out` has a row for each row, heads side by side, is resized,
    /// and is in `f32` whatever the precision, as [`Ops::gated_norm`] takes it.
    fn state_space(&self, task: &StateSpace<'_>, states: &mut [RecurrentState], out: &mut Vec<f32>);

    /// Selective state-space layers of sequences, likewise, with the channels side by side.
    fn selective_scan(&self, scan: &SelectiveScan<'_>, states: &mut [RecurrentState], out: &mut Vec<f32>);

    /// Gates and normalises rows, in place. Only the result is rounded.
    fn gated_norm(&self, norm: &GatedNorm<'_>, data: &mut [f32]);

    /// Multiplies rows of heads side by side by their gates, in place.
    fn gate(&self, gate: Gate, gates: &Heads<'_>, data: &mut [f32]);

    /// [`Activation::Xielu`] of `x` with its learned parameters; `out` is resized.
    fn xielu(&self, parameters: Xielu, x: &[f32], out: &mut Vec<f32>);

    /// The hidden activation; `out` is resized.
    fn activate(&self, activation: Activation, hidden: Hidden<'_>, out: &mut Vec<f32>);

    /// `x += scale * branch`.
    fn join(&self, x: &mut [f32], branch: &[f32], scale: f32);
}
