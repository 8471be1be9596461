//! A decoder's forward pass specified for one checkpoint: the tensors, sizes and rules of each step. Built from the
//! family's description, config.json and the tensors' headers; unsupported models are refused here.
//! Computes nothing.

mod attention;
mod compressed;
mod distances;
mod encoder;
mod feed_forward;
mod gated_delta;
mod grids;
mod hyper;
mod images;
mod indexer;
mod lanes;
mod layer_input;
mod lightning;
mod mamba1;
mod mamba2;
mod mixer;
mod parts;
mod positions;
mod recurrent;
mod rules;
mod short_convolution;
mod sounds;
mod stacks;
mod stream;

use super::error::ForwardError;
use super::options::StopAt;
use super::rope::Rotary;
use super::tensors::{Projection, Tensors, Vector};
use kvant_model::family::{EmbeddingScale, Family, LogitScale, NormKind, NormSite, Positions, Residual, Role};
use kvant_model::model_config::ModelConfig;
use kvant_model::network::{Network, Notice};
use serde_json::Value;

pub use attention::{AttentionLayer, HeadGates, HeadNorms, LatentProjections, Projections, QueryLatent};
pub use compressed::{CompressorLayer, EntryIndex, EntryLayers, SharedProjections};
pub use distances::DistanceEmbeddings;
pub(super) use encoder::is_at;
pub use encoder::{AttentionPool, EncoderParts, HiddenRows, PositionTable, ReadoutLayer, ReadoutLayers};
pub use feed_forward::{FeedForward, FirstLayers, Mixture, Mlp, RoutedBranch, XieluLayer};
pub use gated_delta::{ChannelDeltaInputs, DeltaInputs, GatedDeltaLayer, LatentOrNot};
pub use grids::GridLayers;
pub use hyper::{HyperMixture, HyperStreams};
pub use images::{ImageLayers, LearnedRows};
pub use indexer::{IndexChoice, IndexerLayer};
pub use lanes::{LaneMixer, Lanes, LowRank};
pub use layer_input::{LayerInput, LayerInputs};
pub use lightning::{DecayRates, LightningLayer};
pub use mamba1::Mamba1Layer;
pub use mamba2::Mamba2Layer;
pub use mixer::{ParallelMixers, TokenMixer};
use parts::Parts;
pub use positions::{DistanceBiases, DistanceBuckets, HeadBiases, QueryGrowth, ScoreBiases, Sinusoids, SlopeBiases};
pub use recurrent::ConvolutionLayer;
pub use short_convolution::ShortConvolutionLayer;
pub use sounds::{ConvolutionNorm, PositionConvolution, SoundConvolution, SoundLayers};
pub use stacks::Stacks;
pub use stream::{SharedKeys, StreamLayout};

/// Everything that a forward pass uses.
#[derive(Clone, Debug)]
pub struct Blueprint {
    /// The token embedding; of models of images the layer that makes a row of each patch, of those of sounds alone the first convolution.
    pub embedding: Projection,
    /// What models of images have in place of a table of tokens.
    pub images: Option<ImageLayers>,
    /// The same of models of images of any size.
    pub grids: Option<GridLayers>,
    /// What models of sounds have there; of an encoder-decoder its encoder.
    pub sounds: Option<SoundLayers>,
    /// The factor on it.
    pub embedding_scale: f32,
    /// The table of learned positions.
    pub positions: Option<PositionTable>,
    /// Positions that are computed.
    pub sinusoids: Option<Sinusoids>,
    /// The stacks of an encoder-decoder.
    pub stacks: Option<Stacks>,
    /// What an encoder has.
    pub encoder: Option<EncoderParts>,
    /// The norm of the embeddings.
    pub embedding_norm: Option<NormLayer>,
    /// Embedding width to hidden size; of encoders behind positions and norm.
    pub project_in: Option<Projection>,
    /// The residual streams, where there are several.
    pub lanes: Option<Lanes>,
    /// The same, where blocks mix all of them.
    pub hyper: Option<HyperStreams>,
    /// The inputs that blocks have of their own.
    pub layer_inputs: Option<LayerInputs>,
    /// What a row of the stream between blocks holds.
    pub stream: StreamLayout,
    /// The blocks.
    pub blocks: Vec<Block>,
    /// The norm after the last block.
    pub final_norm: Option<NormLayer>,
    /// Hidden size to embedding width.
    pub project_out: Option<Projection>,
    /// The output head. An encoder that predicts no tokens has its embedding here.
    pub head: Projection,
    /// The factor on what the head reads.
    pub head_scale: f32,
    /// The factor on the logits.
    pub logit_scale: f32,
    /// `c` of the soft-cap `c tanh(z / c)` on logits.
    pub logit_cap: Option<f32>,
    /// The rotary embeddings that blocks refer to.
    pub rotaries: Vec<Rotary>,
    /// The longest context that config.json states.
    pub longest: Option<usize>,
}

/// A norm.
#[derive(Clone, Debug, PartialEq)]
pub struct NormLayer {
    /// The formula.
    pub kind: NormKind,
    /// The weight, where the formula has one; of norms of single heads one after the other.
    pub weight: Vec<Vector>,
    /// The bias, likewise.
    pub bias: Vec<Vector>,
    /// The small number under the root.
    pub eps: f32,
}

/// A decoder block.
#[derive(Clone, Debug)]
pub struct Block {
    /// How the branches join: [`Residual::Sequential`], [`Residual::Parallel`], [`Residual::PostNorm`], [`Residual::OfNorm`] or
    /// [`Residual::Single`].
    pub residual: Residual,
    /// The factor on each branch.
    pub branch_scale: f32,
    /// Of [`Residual::OfNorm`], the factors on the residual and on the branch of the token mixer, then of the feed-forward network.
    pub shares: [[f32; 2]; 2],
    /// The norm before the token mixer; behind it where the block is post-norm.
    pub attention_input: Option<NormLayer>,
    /// Attention, or what the block has in its place.
    pub mixer: TokenMixer,
    /// Narrow layers beside attention.
    pub low_rank: Option<LowRank>,
    /// The norm of the mixer's output.
    pub attention_output: Option<NormLayer>,
    /// What multiplies that, channel by channel.
    pub attention_scales: Option<Vector>,
    /// The norm before the feed-forward network; behind it where the block is post-norm.
    pub feed_forward_input: Option<NormLayer>,
    /// The feed-forward network.
    pub feed_forward: FeedForward,
    /// Experts beside it.
    pub routed: Option<Box<RoutedBranch>>,
    /// Experts that read what it reads, and whose output joins the stream behind the next block.
    pub shortcut: Option<Box<Mixture>>,
    /// Whether the output of the experts of the block before joins the stream behind this one.
    pub joins_shortcut: bool,
    /// The norm of the feed-forward network's output.
    pub feed_forward_output: Option<NormLayer>,
    /// What multiplies that, channel by channel.
    pub feed_forward_scales: Option<Vector>,
    /// What the block does with several residual streams.
    pub lane_mixer: Option<LaneMixer>,
    /// How attention and feed-forward network read and write several residual streams.
    pub hyper: Option<[HyperMixture; 2]>,
    /// What the block does with an input of its own.
    pub layer_input: Option<LayerInput>,
    /// The factor on the stream behind the block.
    pub scalar: Option<Vector>,
}

/// What a branch passes before it joins the stream: a norm, and factors of its channels.
pub type BehindBranch<'b> = (Option<&'b NormLayer>, Option<&'b Vector>);

impl Block {
    /// What the token mixer's branch passes before it joins the stream.
    pub fn after_attention(&self) -> BehindBranch<'_> {
        (self.attention_output.as_ref(), self.attention_scales.as_ref())
    }

    /// What the feed-forward network's branch passes before it joins the stream.
    pub fn after_feed_forward(&self) -> BehindBranch<'_> {
        (self.feed_forward_output.as_ref(), self.feed_forward_scales.as_ref())
    }

    /// All its linear layers.
    pub fn layers(&self) -> Vec<&Projection> {
        let routed = self.routed.iter().flat_map(|routed| routed.mixture.layers());
        let input = self.layer_input.iter().flat_map(|layer| [&layer.gate, &layer.output]);
        let lanes = self.lane_mixer.iter().flat_map(LaneMixer::layers);
        let narrow = self.low_rank.iter().flat_map(|layer| [&layer.down, &layer.up]);
        let beyond = self.shortcut.iter().flat_map(|mixture| mixture.layers());
        let beside = routed.chain(input).chain(lanes).chain(narrow).chain(beyond);
        [self.mixer.layers(), self.feed_forward.layers()].concat().into_iter().chain(beside).collect()
    }

    /// The norms of the stream, of branches, and of attention and a dense network within.
    pub fn norms(&self) -> Vec<&NormLayer> {
        let on_stream =
            [&self.attention_input, &self.attention_output, &self.feed_forward_input, &self.feed_forward_output];
        let attention = match &self.mixer {
            TokenMixer::Attention(layer) => Some(layer),
            _ => None,
        };
        let heads = attention.iter().flat_map(|layer| layer.head_norms.iter());
        let heads = heads.flat_map(|norms| std::iter::once(&norms.query).chain(&norms.key));
        let within = attention.iter().flat_map(|layer| layer.value_norm.iter().chain(&layer.heads_norm));
        let hidden = match &self.feed_forward {
            FeedForward::Dense(mlp) => mlp.hidden_norm.as_ref(),
            FeedForward::Mixture(_) | FeedForward::Absent => None,
        };
        on_stream.into_iter().flatten().chain(heads).chain(within).chain(hidden).collect()
    }

    /// The mixture of experts, alone or beside a dense network.
    pub fn mixture(&self) -> Option<&Mixture> {
        match &self.feed_forward {
            FeedForward::Mixture(mixture) => Some(mixture),
            FeedForward::Dense(_) | FeedForward::Absent => {
                self.routed.as_ref().map(|routed| &routed.mixture).or(self.shortcut.as_deref())
            }
        }
    }

    /// Returns whether a run can continue one that ended at this depth: see [`StartFrom`](super::StartFrom).
    pub fn resumes_at(&self, depth: StopAt) -> bool {
        let feeds = !matches!(self.feed_forward, FeedForward::Absent);
        let reached = depth == StopAt::FeedForward && feeds || self.resumed_layer(depth).is_some();
        // What attention was joined to is none of several streams.
        self.residual != Residual::Parallel && self.lane_mixer.is_none() && self.hyper.is_none() && reached
    }

    /// The layer whose inputs are needed by a run that continues from this depth.
    pub fn resumed_layer(&self, depth: StopAt) -> Option<&Projection> {
        match (depth, &self.feed_forward) {
            (StopAt::Heads, _) => self.mixer.output(),
            (StopAt::Hidden, FeedForward::Dense(mlp)) if self.routed.is_none() && self.shortcut.is_none() => {
                Some(&mlp.down)
            }
            _ => None,
        }
    }
}

/// The inputs of a blueprint.
struct Sources<'s, 'a> {
    config: &'s ModelConfig,
    json: &'s Value,
    tensors: &'s Tensors<'a>,
    network: &'s Network,
    family: &'static Family,
}

impl Blueprint {
    /// The forward pass of a checkpoint.
    ///
    /// # Errors
    ///
    /// Rules that are not computed here, tensors that are missing or do not fit.
    pub fn new(json: &Value, tensors: &Tensors<'_>) -> Result<Blueprint, ForwardError> {
        let config = ModelConfig::from_json(json)?;
        let network = Network::recognise(&config, tensors.meta());
        Blueprint::of_network(json, tensors, &network)
    }

    /// The same for a network that is recognised already.
    pub(super) fn of_network(
        json: &Value,
        tensors: &Tensors<'_>,
        network: &Network,
    ) -> Result<Blueprint, ForwardError> {
        let config = ModelConfig::from_json(json)?;
        let family = network.family().ok_or_else(|| rules::unknown_architecture(&config, network))?;
        let sources = Sources { config: &config, json, tensors, network, family };
        rules::check(&sources)?;
        sources.blueprint()
    }
}

impl<'a> Sources<'_, 'a> {
    fn blueprint(&self) -> Result<Blueprint, ForwardError> {
        let trunk = Parts::trunk(self);
        let sounds = self.sounds(&trunk)?;
        let embedding = self.embedding(sounds.as_ref())?;
        let (images, grids) = (self.images()?, self.grids()?);
        // Those of images are a part of theirs.
        let positions = if images.is_some() { None } else { self.position_table()? };
        let rotaries = self.rotaries(images.as_ref(), grids.as_ref())?;
        let head = self.head(&embedding)?;
        let (lanes, layer_inputs) = (self.lanes(&trunk)?, self.layer_inputs(&trunk)?);
        let hyper = self.hyper_streams()?;
        let blocks =
            (0..self.network.blocks().len()).map(|block| self.block(block, layer_inputs.as_ref(), lanes.as_ref()));
        let blocks = blocks.collect::<Result<Vec<Block>, ForwardError>>()?;
        let residual = self.family.math.residual.resolve(self.config);
        let no_final_norm = residual == Residual::PostNorm || self.config.flag_or("_remove_final_layer_norm", false);
        Ok(Blueprint {
            embedding_scale: self.embedding_scale()?,
            longest: match &images {
                Some(images) => Some(images.tokens()),
                None => self.longest(positions.as_ref()),
            },
            images,
            grids,
            sounds,
            stacks: self.stacks(&trunk, &embedding)?,
            positions,
            sinusoids: self.sinusoids()?,
            encoder: self.encoder(&trunk, &head)?,
            embedding_norm: trunk.norm(NormSite::Embedding)?,
            project_in: trunk.linear(Role::ProjectIn)?,
            stream: StreamLayout::new(
                self.hidden()?,
                lanes.as_ref().map(|lanes| lanes.count).or(hyper.as_ref().map(|streams| streams.count)),
                layer_inputs.as_ref(),
                &blocks,
            ),
            lanes,
            hyper,
            layer_inputs,
            blocks,
            final_norm: match no_final_norm {
                true => trunk.norm(NormSite::Final)?,
                false => trunk.listed_norm(NormSite::Final)?,
            },
            project_out: trunk.linear(Role::ProjectOut)?,
            head,
            embedding,
            head_scale: self.head_scale()?,
            logit_scale: self.logit_scale()?,
            logit_cap: self.config.logit_softcap.map(|cap| cap as f32),
            rotaries,
        })
    }

    fn block(&self, index: usize, inputs: Option<&LayerInputs>, lanes: Option<&Lanes>) -> Result<Block, ForwardError> {
        let parts = Parts::block(self, index);
        let multiplier = self.family.math.residual_multiplier;
        Ok(Block {
            residual: self.family.math.residual.resolve(self.config),
            branch_scale: multiplier.map_or(Ok(1.0), |key| self.number(key))?,
            shares: self.shares(index)?,
            attention_input: self.norm_at(&parts, NormSite::AttentionInput, index)?,
            mixer: self.mixer(&parts, index)?,
            low_rank: self.low_rank(&parts)?,
            attention_output: self.norm_at(&parts, NormSite::AttentionOutput, index)?,
            attention_scales: self.layer_scale(index, |(attention, _)| attention)?,
            feed_forward_input: self.feed_forward_norm(&parts, index)?,
            feed_forward: self.feed_forward(&parts, index)?,
            routed: self.routed(&parts, index)?.map(Box::new),
            shortcut: self.shortcut(&parts, index)?.map(Box::new),
            joins_shortcut: self.family.math.shortcut_experts && !index.is_multiple_of(2),
            feed_forward_output: self.norm_at(&parts, NormSite::FeedForwardOutput, index)?,
            feed_forward_scales: self.layer_scale(index, |(_, feed_forward)| feed_forward)?,
            lane_mixer: lanes.map(|lanes| self.lane_mixer(&parts, index, lanes)).transpose()?,
            hyper: self.hyper_mixtures(index)?,
            layer_input: inputs.map(|inputs| self.layer_input(&parts, inputs.width)).transpose()?,
            scalar: self.parameter(index, "layer_scalar", 1)?,
        })
    }

    /// See [`Block::shares`].
    fn shares(&self, index: usize) -> Result<[[f32; 2]; 2], ForwardError> {
        if self.family.math.residual != Residual::OfNorm {
            return Ok([[1.0; 2]; 2]);
        }
        let factor = |key: &str| Ok::<f32, ForwardError>(self.config.number(key)?.unwrap_or(1.0) as f32);
        let mixer = match self.family.branches(self.config, index).recurrent {
            true => [factor("linear_attn_alpha_factor")?, factor("linear_attn_beta_factor")?],
            false => [factor("full_attn_alpha_factor")?, factor("full_attn_beta_factor")?],
        };
        Ok([mixer, [factor("mlp_alpha_factor")?, factor("mlp_beta_factor")?]])
    }

    /// What multiplies one of a block's branches, channel by channel, where the family has that.
    fn layer_scale(
        &self,
        index: usize,
        which: fn((&'static str, &'static str)) -> &'static str,
    ) -> Result<Option<Vector>, ForwardError> {
        let Some(end) = self.family.math.layer_scales.map(which) else { return Ok(None) };
        let scale = self.parameter(index, end, self.hidden()?)?;
        scale.map(Some).ok_or_else(|| ForwardError::missing(format!("block {index}"), format!("scale `{end}`")))
    }

    /// The norm of a block at a site, if blocks with its mixer have one there.
    fn norm_at(
        &self,
        parts: &Parts<'_, '_, 'a>,
        site: NormSite,
        index: usize,
    ) -> Result<Option<NormLayer>, ForwardError> {
        match self.family.has_norm_at(self.config, site, index) {
            true => parts.listed_norm(site),
            false => Ok(None),
        }
    }

    /// Families that are parallel only by choice have no second norm then (StableLM).
    fn feed_forward_norm(&self, parts: &Parts<'_, '_, 'a>, index: usize) -> Result<Option<NormLayer>, ForwardError> {
        let parallel = self.family.math.residual.resolve(self.config) == Residual::Parallel;
        match self.family.math.residual {
            // The norm before the only branch.
            Residual::Single => parts.listed_norm(NormSite::AttentionInput),
            rule if rule.may_share_norm() && parallel => parts.norm(NormSite::FeedForwardInput),
            _ => self.norm_at(parts, NormSite::FeedForwardInput, index),
        }
    }

    fn embedding(&self, sounds: Option<&SoundLayers>) -> Result<Projection, ForwardError> {
        let first = sounds.and_then(|sounds| sounds.convolutions.first());
        if let Some(first) = first.filter(|_| self.family.is_encoder()) {
            return Ok(first.layer.clone());
        }
        if self.family.encoder.is_some_and(|encoder| encoder.images.is_some()) {
            return self.patch_projection();
        }
        let at = self.network.places().iter().position(|place| *place == kvant_model::network::Place::Embedding);
        self.tensors.table(at.ok_or_else(|| ForwardError::missing("the model", "token embedding"))?)
    }

    fn head(&self, embedding: &Projection) -> Result<Projection, ForwardError> {
        match self.network.head().filter(|_| !self.network.is_tied()) {
            Some(head) => self.tensors.projection(self.network.linear(head)),
            None if !self.family.is_encoder() && self.network.notices().contains(&Notice::NoHead) => Err(
                ForwardError::missing("the model", "output head, which config.json says is not tied to the embedding"),
            ),
            None => {
                let bias = self.network.tied_head_bias();
                let bias = bias.map(|bias| self.tensors.vector(bias, Some(embedding.rows))).transpose()?;
                Ok(embedding.clone().with_bias(bias))
            }
        }
    }

    /// The longest context that config.json states, or that learned positions allow.
    fn longest(&self, positions: Option<&PositionTable>) -> Option<usize> {
        // A decoder reads one token more than the text: that which it begins with.
        let further = usize::from(self.family.decoder_stack().is_some());
        let learned = positions.filter(|_| self.family.encoder.is_some());
        let learned = learned.map(|positions| positions.longest().saturating_sub(further));
        self.config.max_positions.into_iter().chain(learned).min()
    }

    fn embedding_scale(&self) -> Result<f32, ForwardError> {
        match self.family.math.embedding_scale {
            EmbeddingScale::One => Ok(1.0),
            EmbeddingScale::RootHidden => Ok((self.hidden()? as f32).sqrt()),
            EmbeddingScale::RootHiddenIf(key) => match self.config.flag_or(key, false) {
                true => Ok((self.hidden()? as f32).sqrt()),
                false => Ok(1.0),
            },
            EmbeddingScale::Multiplier(key) => self.number(key),
        }
    }

    fn logit_scale(&self) -> Result<f32, ForwardError> {
        match self.family.math.logit_scale {
            LogitScale::One | LogitScale::InverseRootHidden | LogitScale::InverseRootHiddenIf(..) => Ok(1.0),
            LogitScale::Multiplier(key) => self.number(key),
            LogitScale::Divisor(key) => Ok(1.0 / self.number(key)?),
        }
    }

    fn head_scale(&self) -> Result<f32, ForwardError> {
        let is_scaled = match self.family.math.logit_scale {
            LogitScale::InverseRootHidden => true,
            LogitScale::InverseRootHiddenIf(key, other) => self.config.flag_or(key, self.config.flag_or(other, true)),
            LogitScale::One | LogitScale::Multiplier(_) | LogitScale::Divisor(_) => false,
        };
        Ok(if is_scaled { 1.0 / (self.hidden()? as f32).sqrt() } else { 1.0 })
    }

    fn hidden(&self) -> Result<usize, ForwardError> {
        self.need(self.config.hidden_size, "hidden_size")
    }

    /// A number that the family's rules need.
    fn number(&self, key: &'static str) -> Result<f32, ForwardError> {
        let number = self.config.number(key)?;
        Ok(self.need(number, key)? as f32)
    }

    /// A factor on what passes a branch.
    fn branch_multiplier(&self, key: &'static str) -> Result<f32, ForwardError> {
        match self.family.math.branch_multipliers {
            true => Ok(self.config.number(key)?.unwrap_or(1.0) as f32),
            false => Ok(1.0),
        }
    }

    /// The same, one of a list.
    fn listed_multiplier(&self, key: &'static str, index: usize) -> Result<f32, ForwardError> {
        match self.config.item(key, index).filter(|_| self.family.math.branch_multipliers) {
            None => Ok(1.0),
            Some(factor) => {
                let factor = factor.as_f64().map(|factor| factor as f32);
                factor.ok_or_else(|| ForwardError::unsupported(format!("`{key}` of config.json")))
            }
        }
    }

    fn need<T>(&self, value: Option<T>, key: &str) -> Result<T, ForwardError> {
        Ok(self.config.need(value, key, "the forward pass needs it")?)
    }

    /// The small number under the root of norms; where config.json is silent, that of the framework's classes.
    fn eps(&self) -> f32 {
        let default = if self.family.norm_kind_of(self.config).subtracts_mean() { 1e-5 } else { 1e-6 };
        self.config.norm_eps.unwrap_or(default) as f32
    }
}
