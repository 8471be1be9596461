//! A checkpoint seen as a model: for every tensor its place, and the linear layers, norms and expert tensors with
//! their roles. Made from names, shapes and dtypes alone; no weight is read. What follows from the roles (pairs for
//! smoothing, order of rounding, owners of the KV cache) is derived in [`Network::links`] and its neighbours.

mod by_name;
mod by_shape;
mod draft;
mod dropped;
mod links;
mod module_names;
mod names;
mod notice;
mod residual_stream;
mod shaped;
mod siblings;
mod stacked_experts;
mod surroundings;
mod tables;

use std::collections::BTreeSet;

use crate::family::{Family, NormKind, NormSite, Orientation, Part, Role, RowOrder, is_registered};
use crate::model_config::ModelConfig;

pub use draft::FamilyDraft;
pub use dropped::DroppedTensor;
pub use links::{Consumer, Input, PairPath, ScaleSource, SmoothingPair, Subset};
pub use module_names::{expert_module, in_memory_module, on_disk_module};
pub use names::modality_part;
pub use notice::Notice;
pub use residual_stream::{ResidualStream, StreamObstacle};
pub use shaped::{LayerKind, ShapedLayer, UnknownLayerKind};
pub use siblings::Siblings;
pub use tables::is_embedding_name;

/// A tensor of the source, as the file's header describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorMeta {
    /// Full name.
    pub name: String,
    /// Dimensions, slowest first.
    pub shape: Vec<usize>,
    /// The dtype in safetensors' spelling: `BF16`, `F32`, `F8_E4M3`, `U8`, ...
    pub dtype: String,
}

impl TensorMeta {
    /// A tensor's description.
    pub fn new(name: impl Into<String>, shape: impl Into<Vec<usize>>, dtype: impl Into<String>) -> TensorMeta {
        TensorMeta { name: name.into(), shape: shape.into(), dtype: dtype.into() }
    }

    /// Returns whether each element is a floating-point number. Packed formats (`U8`, `I32`, ...) are not.
    pub fn is_float(&self) -> bool {
        matches!(self.dtype.as_str(), "F64" | "F32" | "F16" | "BF16") || self.dtype.starts_with("F8_")
    }
}

macro_rules! index_type {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(usize);

        impl $name {
            /// The position in the network's list.
            pub fn index(self) -> usize {
                self.0
            }
        }
    };
}

index_type!(
    /// A linear layer of a [`Network`].
    LinearId
);
index_type!(
    /// A tensor with all experts of a block, of a [`Network`].
    ExpertsId
);
index_type!(
    /// A norm of a [`Network`].
    NormId
);
index_type!(
    /// A group of fused siblings of a [`Network`].
    SiblingsId
);

/// A linear layer with a floating-point weight. Tensors are positions in the list that the network was recognised
/// from.
#[derive(Clone, Debug, PartialEq)]
pub struct Linear {
    /// Full module name: the weight's name without `.weight`.
    pub module: String,
    /// The role of the layer.
    pub role: Role,
    /// Its position.
    pub part: Part,
    /// The decoder block, if it is in one.
    pub block: Option<usize>,
    /// The expert, if it belongs to a routed one.
    pub expert: Option<usize>,
    /// How the weight is stored.
    pub orientation: Orientation,
    /// How the output rows are laid out if several projections share them ([`Role::QueryKeyValue`],
    /// [`Role::GateUp`]).
    pub rows: RowOrder,
    /// Width of the input.
    pub in_features: usize,
    /// Width of the output.
    pub out_features: usize,
    /// The layers that loaders fuse with this one, if any.
    pub siblings: Option<SiblingsId>,
    /// The weight tensor.
    pub weight: usize,
    /// The bias tensor.
    pub bias: Option<usize>,
    /// The tensor with the weight's scales, in checkpoints whose weights are fp8 already.
    pub scale: Option<usize>,
    /// Whether the layer stays in the source's precision unless the user asks otherwise.
    pub kept: bool,
}

impl Linear {
    /// Returns whether it belongs to an expert that sees every token.
    pub fn is_shared_expert(&self) -> bool {
        self.part == Part::SharedExperts
    }
}

/// One 3-D tensor with a matrix per expert.
#[derive(Clone, Debug, PartialEq)]
pub struct FusedExperts {
    /// Full module name, e.g. `model.layers.0.mlp.experts.gate_up_proj`.
    pub module: String,
    /// [`Role::GateUp`], [`Role::Gate`], [`Role::Up`] or [`Role::Down`].
    pub role: Role,
    /// The decoder block.
    pub block: usize,
    /// Number of experts.
    pub experts: usize,
    /// How each matrix is stored: `[experts, out, in]` or `[experts, in, out]`.
    pub orientation: Orientation,
    /// How the output rows of [`Role::GateUp`] are laid out.
    pub rows: RowOrder,
    /// Width of the input.
    pub in_features: usize,
    /// Width of the output.
    pub out_features: usize,
    /// How the weights are stored, and in which tensors.
    pub storage: ExpertsStorage,
    /// The bias tensor, `[experts, out]`.
    pub bias: Option<usize>,
    /// Whether the layer stays in the source's precision unless the user asks otherwise.
    pub kept: bool,
}

impl FusedExperts {
    /// The tensor with the weights, floats or codes.
    pub fn weight(&self) -> usize {
        match self.storage {
            ExpertsStorage::Float { weight } => weight,
            ExpertsStorage::Mxfp4 { blocks, .. } => blocks,
        }
    }

    /// The tensor with the weights, where they are floats.
    pub fn float_weight(&self) -> Option<usize> {
        match self.storage {
            ExpertsStorage::Float { weight } => Some(weight),
            ExpertsStorage::Mxfp4 { .. } => None,
        }
    }
}

/// The tensors of [`FusedExperts`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpertsStorage {
    /// Floating-point weights in one tensor.
    Float {
        /// The weight tensor.
        weight: usize,
    },
    /// MXFP4 as gpt-oss is published: `*_blocks` `U8 [experts, out, in/32, 16]` with two e2m1 codes per byte, the
    /// even one low, and `*_scales` `U8 [experts, out, in/32]` in e8m0.
    Mxfp4 {
        /// The codes.
        blocks: usize,
        /// The scales; `None` if the checkpoint lacks them.
        scales: Option<usize>,
    },
}

/// A norm.
#[derive(Clone, Debug, PartialEq)]
pub struct Norm {
    /// Full module name.
    pub module: String,
    /// Its position.
    pub site: NormSite,
    /// Its formula.
    pub kind: NormKind,
    /// The decoder block, if it is in one.
    pub block: Option<usize>,
    /// The head, where each head has a separate norm (StableLM).
    pub head: Option<usize>,
    /// The weight tensor.
    pub weight: usize,
    /// The bias tensor.
    pub bias: Option<usize>,
}

/// Which of a module's tensors one is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Slot {
    /// The weight (for MXFP4 experts the codes).
    Weight,
    /// The bias.
    Bias,
    /// The scales of a weight that is quantized already.
    Scale,
}

/// The place of a tensor in the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Part of a linear layer; routers and the head are linear layers with their own roles.
    Linear(LinearId, Slot),
    /// Part of a tensor with all experts.
    Experts(ExpertsId, Slot),
    /// Part of a norm.
    Norm(NormId, Slot),
    /// The token embedding.
    Embedding,
    /// The bias of an output head whose weight is the embedding (Phi, GPT-J).
    HeadBias,
    /// Learned positions.
    Positions,
    /// Learned positions of the decoder of an encoder-decoder.
    DecoderPositions,
    /// The table of token types.
    TokenTypes,
    /// The table of biases for distances between tokens.
    RelativePositions,
    /// The table with an input of every block for each token.
    LayerInputs,
    /// Part of the layer that makes rows of the patches of images.
    Patches(Slot),
    /// Part of a convolution that makes rows of a sound.
    SoundConvolution(Slot),
    /// A small tensor that the family names: attention sinks, the correction bias of a router, the row of a class.
    Parameter,
    /// Copied through untouched.
    Other(Reason),
}

/// The reason that a tensor is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// A buffer that loaders recompute: rotary frequencies, causal masks, position ids.
    Buffer,
    /// Part of a vision or audio tower, or of what projects it into the language model.
    Modality,
    /// Part of a layer past the decoder's last block: multi-token prediction.
    ExtraLayer,
    /// A parameter of a format that is not decoded here, so that its module stays as it is.
    Quantized,
    /// In an architecture without a description: not the weight of a linear layer.
    NotLinear,
    /// A name or shape that the family's description does not account for.
    Unrecognised,
}

/// A checkpoint seen as a model.
#[derive(Clone, Debug)]
pub struct Network {
    family: Option<&'static Family>,
    can_be_described: bool,
    trunk: String,
    blocks: Vec<usize>,
    linears: Vec<Linear>,
    experts: Vec<FusedExperts>,
    norms: Vec<Norm>,
    siblings: Vec<Siblings>,
    places: Vec<Place>,
    unplaced_modules: Vec<String>,
    tied: bool,
    /// The bias of a head without a weight.
    head_bias: Option<usize>,
    /// Blocks with tensors that are not understood, so that it is not known who reads what.
    unclear: BTreeSet<usize>,
    /// Blocks that attend to the keys and values of another one.
    sharing: BTreeSet<usize>,
    /// The blocks that text alone passes over.
    passed_over: BTreeSet<usize>,
    facts: links::Facts,
    notices: Vec<Notice>,
}

impl Network {
    /// Finds the place of every tensor. Never fails: unknown tensors are copied, and a [`Notice`] says
    /// so.
    ///
    /// With a known family names decide; otherwise, or if the family's names do not occur, 2-D weights whose names
    /// do not indicate an embedding, norm, head or router are treated as linear layers.
    pub fn recognise(config: &ModelConfig, tensors: &[TensorMeta]) -> Network {
        let family = crate::family::of_config(config);
        let named = family.and_then(|family| by_name::recognise(family, config, tensors));
        let mut network = named.unwrap_or_else(|| by_shape::recognise(family, config, tensors));
        let conflict = crate::family::conflict(config);
        network.notices.extend(conflict.map(|(model_type, class)| Notice::Conflict {
            model_type: model_type.to_owned(),
            architecture: class.to_owned(),
        }));
        let described = crate::family::described_by_users();
        if !described.is_empty() && network.family.is_some_and(|family| !is_registered(family.name)) {
            network.notices.push(Notice::IdleDescription { described });
        }
        network
    }

    /// The same for a tower that is described beside the families; `None` where the names of its description do not occur.
    pub fn of_tower(family: &'static Family, config: &ModelConfig, tensors: &[TensorMeta]) -> Option<Network> {
        by_name::recognise(family, config, tensors)
    }

    /// The family, or `None` if linear layers were recognised by shape and name.
    pub fn family(&self) -> Option<&'static Family> {
        self.family
    }

    /// Returns whether a description of the architecture can be drafted where no family describes it: see [`FamilyDraft`].
    pub fn can_be_described(&self) -> bool {
        self.can_be_described
    }

    /// Returns whether the tensors have other names than those of the architecture that config.json names.
    pub fn has_foreign_names(&self) -> bool {
        self.notices.iter().any(|notice| matches!(notice, Notice::ForeignNames { .. }))
    }

    /// The path of the module that holds embeddings and blocks in this checkpoint, e.g. `model`,
    /// `model.language_model` or nothing. Empty for unknown architectures.
    pub fn trunk(&self) -> &str {
        &self.trunk
    }

    /// The indices of the decoder blocks found, ascending.
    pub fn blocks(&self) -> &[usize] {
        &self.blocks
    }

    /// All linear layers, in the order of their weights in the source.
    pub fn linears(&self) -> &[Linear] {
        &self.linears
    }

    /// One linear layer.
    pub fn linear(&self, id: LinearId) -> &Linear {
        &self.linears[id.0]
    }

    /// Returns whether a linear layer predicts further tokens, so that the decoder does not run it.
    pub fn predicts_further(&self, linear: &Linear) -> bool {
        let extra = self.family.and_then(|family| family.extra);
        extra.is_some_and(|extra| linear.module.split('.').next() == Some(extra.path))
    }

    /// All tensors that hold the experts of a block.
    pub fn experts(&self) -> &[FusedExperts] {
        &self.experts
    }

    /// All norms of a known family.
    pub fn norms(&self) -> &[Norm] {
        &self.norms
    }

    /// One norm.
    pub fn norm(&self, id: NormId) -> &Norm {
        &self.norms[id.0]
    }

    /// All groups of linear layers that loaders fuse. Members of a group must have one scheme.
    pub fn siblings(&self) -> &[Siblings] {
        &self.siblings
    }

    /// The place of each source tensor, in their order.
    pub fn places(&self) -> &[Place] {
        &self.places
    }

    /// The output head, if the checkpoint has a tensor for it.
    pub fn head(&self) -> Option<LinearId> {
        let head = self.linears.iter().position(|linear| linear.role == Role::Head);
        head.map(LinearId)
    }

    /// Returns whether the head shares the embedding's weight: config.json says so, or there is no tensor for it.
    pub fn is_tied(&self) -> bool {
        self.tied
    }

    /// The bias of a head that shares the embedding's weight, if there is one.
    pub fn tied_head_bias(&self) -> Option<usize> {
        let of_layer = || self.linears.iter().find(|linear| linear.role == Role::Head).and_then(|head| head.bias);
        if self.tied { self.head_bias.or_else(of_layer) } else { None }
    }

    /// Notices for the user.
    pub fn notices(&self) -> &[Notice] {
        &self.notices
    }

    /// Full names of the modules with a 2-D weight that stay in the source's precision by default: what an exported
    /// configuration has to list as excluded, since loaders would otherwise expect them quantized.
    pub fn kept_modules(&self) -> Vec<&str> {
        let kept = self.linears.iter().filter(|linear| linear.kept);
        let modules = kept.map(|linear| linear.module.as_str());
        modules.chain(self.unplaced_modules.iter().map(String::as_str)).collect()
    }
}

/// Modules with a 2-D weight that became no layer.
fn unplaced_modules(tensors: &[TensorMeta], places: &[Place]) -> Vec<String> {
    let both = tensors.iter().zip(places);
    let unplaced = both.filter(|(tensor, place)| matches!(place, Place::Other(_)) && tensor.shape.len() == 2);
    let modules = unplaced.filter_map(|(tensor, _)| tensor.name.strip_suffix(".weight"));
    modules.map(str::to_owned).collect()
}

/// Notices about tensors that are copied through.
fn common_notices(tensors: &[TensorMeta], places: &[Place]) -> Vec<Notice> {
    let find = |reason: Reason| {
        let both = tensors.iter().zip(places);
        let mut of_reason = both.filter(move |(_, place)| **place == Place::Other(reason));
        let first = of_reason.next()?.0.name.clone();
        Some((1 + of_reason.count(), first))
    };
    let extra = find(Reason::ExtraLayer).map(|(tensors, _)| Notice::ExtraLayers { tensors });
    let quantized = find(Reason::Quantized).map(|(tensors, first)| Notice::AlreadyQuantized { tensors, first });
    let unrecognised = find(Reason::Unrecognised).map(|(tensors, first)| Notice::Unrecognised { tensors, first });
    [extra, quantized, unrecognised].into_iter().flatten().collect()
}
