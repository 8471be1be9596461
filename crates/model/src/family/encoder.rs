//! What encoders have and decoders do not: tokens that see both ways, and what is read out of the last hidden states. Data only.

use super::description::Text;
use super::leaked::leaked;
use serde::{Deserialize, Serialize};

/// The parts and rules of encoders. Where a family has them, tokens see later ones too.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Encoder {
    /// The table of token types in the trunk. All tokens of a text are of the first type.
    #[serde(deserialize_with = "leaked", default)]
    pub token_types: Option<Text>,
    /// The table in the trunk with biases on scores that depend on the distance between two tokens (MPNet): a row for each bucket of
    /// distances, a column for each head.
    #[serde(deserialize_with = "leaked", default)]
    pub relative_positions: Option<Text>,
    /// Whether embeddings of the token `mask_token_id` are 0 and the others are scaled, where `token_dropout` of config.json is true
    /// (ESM).
    #[serde(default)]
    pub drops_tokens: bool,
    /// What is read out of the last hidden states.
    #[serde(deserialize_with = "leaked", default)]
    pub readouts: &'static [Readout],
    /// Linear layers in the trunk or beside it that no readout has: they read something else than hidden states, and are not run.
    #[serde(deserialize_with = "leaked", default)]
    pub unread: &'static [Text],
}

/// An output computed from the last hidden states. It exists where a checkpoint has its layers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Readout {
    /// Its name in reports.
    #[serde(deserialize_with = "leaked")]
    pub name: Text,
    /// The end of the class in `architectures` that has it; without one every class whose checkpoint has the layers.
    #[serde(deserialize_with = "leaked", default)]
    pub class: Option<Text>,
    /// The hidden states that it reads.
    pub rows: ReadoutRows,
    /// What becomes of them.
    #[serde(deserialize_with = "leaked")]
    pub steps: &'static [ReadoutStep],
}

/// Hidden states that are read out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReadoutRows {
    /// Those of all tokens.
    All,
    /// That of the first token.
    First,
    /// That of the first token, or the mean of all if this key of config.json is `mean` (ModernBERT).
    FirstUnlessMean(#[serde(deserialize_with = "leaked")] Text),
}

/// A step of a readout. Paths are those of modules in the trunk, or beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReadoutStep {
    /// A linear layer.
    Linear(#[serde(deserialize_with = "leaked")] Text),
    /// A norm.
    Norm(#[serde(deserialize_with = "leaked")] Text),
    /// The activation of the feed-forward networks.
    Activation,
    /// That which this key of config.json names, else GELU.
    NamedActivation(#[serde(deserialize_with = "leaked")] Text),
    /// GELU with the error function.
    Gelu,
    /// ReLU.
    Relu,
    /// The hyperbolic tangent.
    Tanh,
    /// The output head, whose weight may be the embedding.
    Head,
}

impl Readout {
    /// The hidden state of the first token behind a layer and a tangent.
    pub(super) const POOLED: Readout = Readout {
        name: "pooled",
        class: None,
        rows: ReadoutRows::First,
        steps: &[ReadoutStep::Linear("pooler.dense"), ReadoutStep::Tanh],
    };

    /// RoBERTa's logits of masked tokens.
    pub(super) const MASKED_TOKENS: Readout = Readout {
        name: "masked-token logits",
        class: None,
        rows: ReadoutRows::All,
        steps: &[
            ReadoutStep::Linear("lm_head.dense"),
            ReadoutStep::Gelu,
            ReadoutStep::Norm("lm_head.layer_norm"),
            ReadoutStep::Head,
        ],
    };

    /// RoBERTa's logits of classes of a text.
    pub(super) const CLASSES: Readout = Readout {
        name: "logits",
        class: None,
        rows: ReadoutRows::First,
        steps: &[
            ReadoutStep::Linear("classifier.dense"),
            ReadoutStep::Tanh,
            ReadoutStep::Linear("classifier.out_proj"),
        ],
    };

    /// Logits of classes of each token.
    pub(super) const CLASSES_OF_TOKENS: Readout = Readout {
        name: "logits",
        class: Some("ForTokenClassification"),
        rows: ReadoutRows::All,
        steps: &[ReadoutStep::Linear("classifier")],
    };

    /// Logits of the beginning and the end of an answer.
    pub(super) const ANSWERS: Readout =
        Readout { name: "logits", class: None, rows: ReadoutRows::All, steps: &[ReadoutStep::Linear("qa_outputs")] };
}

impl Encoder {
    /// The layers of all readouts and those that are not run.
    pub fn linears(&self) -> impl Iterator<Item = Text> {
        let of_step = |step: &ReadoutStep| match step {
            ReadoutStep::Linear(path) => Some(*path),
            _ => None,
        };
        self.steps().filter_map(of_step).chain(self.unread.iter().copied())
    }

    /// The norms of all readouts.
    pub fn norms(&self) -> impl Iterator<Item = Text> {
        self.steps().filter_map(|step| match step {
            ReadoutStep::Norm(path) => Some(*path),
            _ => None,
        })
    }

    fn steps(&self) -> impl Iterator<Item = &'static ReadoutStep> {
        self.readouts.iter().flat_map(|readout| readout.steps)
    }
}
