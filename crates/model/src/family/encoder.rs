//! What encoders have and decoders do not: tokens that see both ways, and what is read out of the last hidden states. Data only.

use super::decoder_stack::DecoderStack;
use super::description::Text;
use super::leaked::leaked;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

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
    /// The tables in blocks with such biases (T5).
    #[serde(default)]
    pub block_distances: Option<BlockDistances>,
    /// Whether the family is that of its classes only, since its values of `model_type` are those of encoder-decoders.
    #[serde(default)]
    pub is_of_its_classes: bool,
    /// Further names of the embedding of tokens in the trunk, under which checkpoints may have it again.
    #[serde(deserialize_with = "leaked", default)]
    pub embedding_copies: &'static [Text],
    /// The table in the trunk with an embedding of each bucket of distances, to which queries and keys attend as to keys and queries
    /// (DeBERTa, arXiv 2006.03654).
    #[serde(deserialize_with = "leaked", default)]
    pub distance_embeddings: Option<Text>,
    /// Whether embeddings of the token `mask_token_id` are 0 and the others are scaled, where `token_dropout` of config.json is true
    /// (ESM).
    #[serde(default)]
    pub drops_tokens: bool,
    /// What is read out of the last hidden states.
    #[serde(deserialize_with = "leaked", default)]
    pub readouts: &'static [Readout],
    /// What models of images read in place of tokens.
    #[serde(default)]
    pub images: Option<ImageTokens>,
    /// What models of sounds read in place of tokens; of an encoder-decoder its encoder.
    #[serde(default)]
    pub sounds: Option<SoundTokens>,
    /// Whether attention is causal although the model is an encoder (CLIP's text model).
    #[serde(default)]
    pub is_causal: bool,
    /// The decoder that attends to the last hidden states, of an encoder-decoder.
    #[serde(default)]
    pub decoder: Option<DecoderStack>,
    /// Linear layers in the trunk or beside it that no readout has: they read something else than hidden states, and are not run.
    #[serde(deserialize_with = "leaked", default)]
    pub unread: &'static [Text],
}

/// Tables of blocks with biases on scores that depend on the distance between two tokens: a row for each of
/// `relative_attention_num_buckets` buckets, of which the last is for distances from `relative_attention_max_distance` on, a column for each
/// head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BlockDistances {
    /// The table in a block.
    #[serde(deserialize_with = "leaked")]
    pub path: Text,
    /// Whether every block has one; otherwise all blocks add the biases of the first.
    pub is_in_every_block: bool,
}

/// What models of images read in place of tokens: an image of `image_size` is cut into patches of `patch_size`, row by row. The layer that
/// the trunk has as its embedding, a convolution whose steps are as long as its kernel, makes one row of the stream of each; learned rows
/// stand before them. With a [`PatchGrid`], images have any size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImageTokens {
    /// The rows before those of the patches, in their order. The table of positions, where there is one, has first the positions of
    /// those that have one, then those of the patches.
    #[serde(deserialize_with = "leaked", default)]
    pub learned: &'static [LearnedToken],
    /// Whether images must be square, as positions of others are interpolated.
    #[serde(default)]
    pub must_be_square: bool,
    /// Tensors of the trunk that only training reads, such as what stands for hidden patches.
    #[serde(deserialize_with = "leaked", default)]
    pub unread: &'static [Text],
    /// How patches of images of any size stand, where the model takes such.
    #[serde(default)]
    pub grid: Option<PatchGrid>,
}

/// Patches of images of any size, in squares of `spatial_merge_size` patches along a side, square after square. A still image counts as
/// `temporal_patch_size` equal frames, of which a patch has all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PatchGrid {
    /// The table in the trunk with learned rows of a square grid, which is stretched over each image, corner on corner: the row of a patch is
    /// that between the four nearest (bilinear).
    #[serde(deserialize_with = "leaked", default)]
    pub positions: Option<Text>,
    /// Whether patches see those of their own window of `window_size` pixels only, but for blocks in `fullatt_block_indexes`. Squares then stand
    /// window after window.
    #[serde(default)]
    pub windows: bool,
}

/// Learned rows of the stream: one for all images, as that of a class, or several, as registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LearnedToken {
    /// The tensor in the trunk.
    #[serde(deserialize_with = "leaked")]
    pub path: Text,
    /// Whether the table of positions has rows for them.
    pub has_positions: bool,
}

/// What models of sounds read in place of tokens: convolutions along time make rows of the stream. Those of `convolutions` come first. Where
/// the trunk has a norm [`NormSite::SoundFeatures`](super::NormSite::SoundFeatures) and a layer
/// [`Role::ProjectIn`](super::Role::ProjectIn), their rows pass these.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SoundTokens {
    /// The convolutions that read a sound.
    pub convolutions: SoundConvolutions,
    /// The module of a convolution whose output is added to each row as its position.
    #[serde(deserialize_with = "leaked", default)]
    pub positions: Option<Text>,
    /// Tensors of the trunk that only training reads, such as what stands for hidden rows.
    #[serde(deserialize_with = "leaked", default)]
    pub unread: &'static [Text],
}

/// The convolutions that read a sound, one behind the other.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SoundConvolutions {
    /// Two on a logarithmic mel spectrogram of `num_mel_bins` rows and `2 max_source_positions` columns, with kernels of three, zeros on both
    /// sides, steps of 1 and of 2, and GELU behind each (Whisper, arXiv 2212.04356): their modules in the trunk.
    Spectrogram(#[serde(deserialize_with = "leaked")] Text, #[serde(deserialize_with = "leaked")] Text),
    /// Those on samples that `conv_dim`, `conv_kernel` and `conv_stride` of config.json list, without zeros around, with
    /// `feat_extract_activation` behind each (wav2vec 2.0, arXiv 2006.11477): the module of each in the trunk, its number as `{}`. Norms
    /// [`NormSite::SoundConvolution`](super::NormSite::SoundConvolution) stand before activations: where `feat_extract_norm` is `layer`, one
    /// behind each, over the channels of a row; where it is `group`, one behind the first, over all rows of a channel.
    Waveform(#[serde(deserialize_with = "leaked")] Text),
}

/// The parameters of [`SoundTokens::positions`] beside its bias: magnitudes and directions of its weight, by their older and by their newer
/// names.
pub const WEIGHT_NORM: [[&str; 2]; 2] =
    [["weight_g", "weight_v"], ["parametrizations.weight.original0", "parametrizations.weight.original1"]];

impl SoundTokens {
    /// The modules of convolutions in the trunk, numbers as `{}`.
    pub fn modules(&self) -> Vec<Text> {
        match self.convolutions {
            SoundConvolutions::Spectrogram(first, second) => vec![first, second],
            SoundConvolutions::Waveform(each) => vec![each],
        }
    }

    /// The small tensors of the trunk.
    pub fn parameters(&self) -> Vec<String> {
        let names = WEIGHT_NORM.iter().flatten().chain(&["bias"]);
        let of_positions =
            self.positions.iter().flat_map(|path| names.clone().map(move |name| format!("{path}.{name}")));
        of_positions.chain(self.unread.iter().map(|path| (*path).to_owned())).collect()
    }
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
    /// That of the first token, then the mean of those of the patches of an image, side by side (DINOv2).
    FirstAndMeanOfPatches,
    /// What a learned query gives that attends to all of them: the attention of torch's `MultiheadAttention` in the module of this path, whose
    /// parameters are `probe`, `attention.in_proj_weight`, `attention.in_proj_bias` and the layer `attention.out_proj` (SigLIP).
    Attended(#[serde(deserialize_with = "leaked")] Text),
    /// That of the last token (SigLIP's text model).
    Last,
    /// That of the first token that is `eos_token_id`; where this is 2, as in configurations that state it wrongly, of the first of those with
    /// the largest number (CLIP's text model).
    EndOfText,
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
    /// The same, or the activation that this key of config.json names.
    TanhUnlessNamed(#[serde(deserialize_with = "leaked")] Text),
    /// The output head, whose weight may be the embedding.
    Head,
    /// What these steps make of it is added to it.
    Added(#[serde(deserialize_with = "leaked")] &'static [ReadoutStep]),
}

impl ImageTokens {
    /// Returns whether a tensor of the trunk is one of learned rows, or read in training only.
    pub fn has(&self, path: &str) -> bool {
        self.learned.iter().any(|token| token.path == path) || self.unread.contains(&path)
    }
}

/// The parameters of [`ReadoutRows::Attended`] beside its layer.
pub const ATTENDED: [&str; 3] = ["probe", "attention.in_proj_weight", "attention.in_proj_bias"];

/// The layer of [`ReadoutRows::Attended`].
pub const ATTENDED_OUTPUT: &str = "attention.out_proj";

impl Encoder {
    /// The layers of all readouts and those that are not run.
    pub fn linears(&self) -> impl Iterator<Item = Cow<'static, str>> {
        let attended = self.attended().map(|path| Cow::from(format!("{path}.{ATTENDED_OUTPUT}")));
        let of_steps = self.steps().into_iter().filter_map(|step| match step {
            ReadoutStep::Linear(path) => Some(Cow::from(path)),
            _ => None,
        });
        of_steps.chain(self.unread.iter().map(|path| Cow::from(*path))).chain(attended)
    }

    /// The norms of all readouts.
    pub fn norms(&self) -> impl Iterator<Item = Text> {
        self.steps().into_iter().filter_map(|step| match step {
            ReadoutStep::Norm(path) => Some(path),
            _ => None,
        })
    }

    /// The parameters of all readouts that belong to no layer and no norm.
    pub fn readout_parameters(&self) -> impl Iterator<Item = String> {
        self.attended().flat_map(|path| ATTENDED.map(|name| format!("{path}.{name}")))
    }

    fn attended(&self) -> impl Iterator<Item = Text> {
        self.readouts.iter().filter_map(|readout| match readout.rows {
            ReadoutRows::Attended(path) => Some(path),
            _ => None,
        })
    }

    /// The steps of all readouts, those inside of others too.
    fn steps(&self) -> Vec<ReadoutStep> {
        fn collect(steps: &[ReadoutStep], all: &mut Vec<ReadoutStep>) {
            for step in steps {
                all.push(*step);
                if let ReadoutStep::Added(inner) = step {
                    collect(inner, all);
                }
            }
        }
        let mut all = Vec::new();
        self.readouts.iter().for_each(|readout| collect(readout.steps, &mut all));
        all
    }
}
