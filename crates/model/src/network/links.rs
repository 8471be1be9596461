//! Facts derived from roles: which linear layers share an input, in which order they are rounded, through which pairs
//! a scale per channel may be moved, and which layers own the KV cache. Derived, so that no algorithm lists layers
//! per family. Applies nothing.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::Range;

use super::{ExpertsId, Linear, LinearId, Network, NormId};
use crate::family::{Activation, Family, NormSite, Part, RecurrentMixer, Residual, Role, RowOrder, owns_kv};
use crate::model_config::{DeltaConfig, ModelConfig};

/// The activation that a layer of a block reads, in the order of the forward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Input {
    /// The residual stream after the norm before attention.
    Attention,
    /// The residual stream after the norm before a recurrent mixer.
    Recurrent,
    /// MLA's query latent after its norm.
    QueryLatent,
    /// MLA's key/value latent after its norm.
    KeyValueLatent,
    /// What an encoder gives, which keys and values of a decoder are made of.
    EncoderStates,
    /// Mamba: what the convolution gives.
    Convolved,
    /// Mamba: the latent of the steps after its norm.
    StepLatent,
    /// Delta nets with a decay for each channel: the latent of the steps of decays.
    DecayLatent,
    /// The same: the latent of the gates on the output.
    GateLatent,
    /// What the first of two narrow layers beside attention gives.
    LowRankLatent,
    /// The heads' outputs, side by side.
    Heads,
    /// What the output projection of a recurrent mixer reads.
    RecurrentHeads,
    /// The residual stream after the norm before the feed-forward network.
    FeedForward,
    /// What the router reads, where experts stand beside a dense network: the residual stream after a norm of its own.
    Router,
    /// The hidden activation of the dense feed-forward network.
    Hidden,
    /// The hidden activation of the shared experts.
    SharedHidden,
    /// Those rows of [`Input::FeedForward`], or of what experts beside a dense network read, that are routed to an expert; `None` means
    /// each expert of a fused tensor.
    Routed(Option<usize>),
    /// The hidden activation of an expert.
    RoutedHidden(Option<usize>),
    /// The residual stream behind the feed-forward network, which the gate on the block's own input reads.
    LayerInput,
    /// The block's own input, gated.
    LayerInputHidden,
}

/// Layers that read the same activation: they share a Hessian, and are rounded before those that depend on them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subset {
    /// Their input.
    pub input: Input,
    /// Linear layers, routers included.
    pub linears: Vec<LinearId>,
    /// Tensors with all experts.
    pub experts: Vec<ExpertsId>,
}

/// Whose output channels a link divides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScaleSource {
    /// The weight and bias of a norm; with a unit offset `w := (1 + w) / s - 1`.
    Norm(NormId),
    /// Rows of a linear layer's output (and of its bias), in the order of the consumers' input columns.
    Linear {
        /// The layer.
        linear: LinearId,
        /// Ranges of output features.
        rows: Vec<Range<usize>>,
    },
    /// Rows of the output of every expert.
    Experts {
        /// The tensor with all experts.
        experts: ExpertsId,
        /// Ranges of output features.
        rows: Vec<Range<usize>>,
    },
}

/// A layer whose input columns a pair multiplies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consumer {
    /// A linear layer.
    Linear(LinearId),
    /// Every expert of a tensor.
    Experts(ExpertsId),
}

/// The operation between source and consumers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PairPath {
    /// Nothing: consumers read the norm's output.
    Norm,
    /// Attention. Input column `h * head_dim + j` of the consumer reads row `(h / repeat) * head_dim + j` of the
    /// source, so `s` must be equal for the `repeat` query heads of one key/value head. Behind the norm of a recurrent mixer's heads, `j` is
    /// a channel of the norm, which all `repeat` heads share.
    Heads {
        /// Width of a value head.
        head_dim: usize,
        /// Query heads per key/value head.
        repeat: usize,
    },
    /// The product with the activated gate, or with what a short convolution gives, which is linear in the source.
    Product,
    /// ReLU, which lets positive scales through.
    Relu,
}

/// A pair through which a positive scale `s` per channel can be moved without changing the block's function: the
/// source's output channel `j` is divided by `s_j`, and input column `j` of every consumer multiplied by it. `into`
/// holds *all* that read the source, routers included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SmoothingPair {
    /// The module divided by `s`.
    pub from: ScaleSource,
    /// The layers multiplied by `s`.
    pub into: Vec<Consumer>,
    /// The operation between them.
    pub through: PairPath,
}

/// Facts besides roles that the smoothing pairs depend on. Empty for unknown architectures.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    activation: Option<Activation>,
    pub(super) residual: Option<Residual>,
    heads: Option<Heads>,
    /// Query heads of each block, where blocks differ.
    heads_by_layer: Vec<usize>,
    recurrent: Option<RecurrentMixer>,
    delta: Option<DeltaConfig>,
    /// Whether some experts give what they read.
    has_identities: bool,
    /// The blocks whose experts tokens choose by themselves, so that rows of their inputs alone do not tell what they give.
    hashed: Vec<bool>,
}

/// Sizes of attention.
#[derive(Clone, Copy, Debug)]
struct Heads {
    query: usize,
    key_value: usize,
    head_dim: usize,
    value_dim: usize,
    nope_dim: usize,
}

impl Facts {
    pub(super) fn of(family: &Family, config: &ModelConfig) -> Facts {
        Facts {
            activation: Some(family.math.activation.resolve(config)),
            residual: Some(family.math.residual.resolve(config)),
            // Where values are clipped (OLMo) or normalised (Gemma 4), they do not scale.
            heads: Heads::of(config).filter(|_| config.clip_qkv.is_none() && !family.math.value_norm),
            heads_by_layer: config.heads_by_layer.clone(),
            recurrent: family.recurrent.map(|recurrent| recurrent.mixer),
            delta: config.delta,
            hashed: config.compressed.as_ref().map_or_else(Vec::new, |sizes| sizes.hashed.clone()),
            has_identities: config.experts.as_ref().is_some_and(|experts| experts.identities > 0),
        }
    }
}

impl Facts {
    /// Returns whether tokens choose the experts of a block by themselves.
    fn hashes(&self, block: usize) -> bool {
        self.hashed.get(block).copied().unwrap_or(false)
    }
}

impl Heads {
    fn of(config: &ModelConfig) -> Option<Heads> {
        let query = config.num_heads?;
        Some(match &config.latent {
            Some(latent) => Heads {
                query,
                key_value: query,
                head_dim: latent.nope_dim + latent.rope_dim,
                value_dim: latent.value_dim,
                nope_dim: latent.nope_dim,
            },
            None => Heads {
                query,
                key_value: config.num_kv_heads()?,
                head_dim: config.head_dim()?,
                value_dim: config.value_dim()?,
                nope_dim: 0,
            },
        })
    }

    /// The rows of `linear` that are values, head by head; `None` if its width is not what config.json implies.
    fn value_rows(&self, linear: &Linear) -> Option<Vec<Range<usize>>> {
        let (width, first, step, count) = match (linear.role, linear.rows) {
            // Layers may have different numbers of heads.
            (Role::Value, _) => (self.value_dim, 0, self.value_dim, linear.out_features / self.value_dim.max(1)),
            (Role::KeyValueUp, _) => {
                let step = self.nope_dim + self.value_dim;
                (self.value_dim, self.nope_dim, step, self.query)
            }
            (Role::QueryKeyValue, RowOrder::PerHead) if self.key_value == self.query => {
                (self.head_dim, 2 * self.head_dim, 3 * self.head_dim, self.query)
            }
            (Role::QueryKeyValue, RowOrder::PerGroup) => {
                let shared = self.repeat(self.key_value)?;
                (
                    self.head_dim,
                    (shared + 1).checked_mul(self.head_dim)?,
                    (shared + 2).checked_mul(self.head_dim)?,
                    self.key_value,
                )
            }
            (Role::QueryKeyValue, RowOrder::Stacked) => {
                let before = (self.query + self.key_value).checked_mul(self.head_dim)?;
                (self.head_dim, before, self.head_dim, self.key_value)
            }
            _ => return None,
        };
        let end = count.checked_sub(1)?.checked_mul(step)?.checked_add(first)?.checked_add(width)?;
        let heads = (0..count).map(|head| first + head * step);
        (end == linear.out_features).then(|| heads.map(|start| start..start + width).collect())
    }

    /// Query heads per key/value head, of which there are `count`.
    fn repeat(&self, count: usize) -> Option<usize> {
        let repeat = self.query / count.max(1);
        (repeat > 0 && repeat * count == self.query).then_some(repeat)
    }
}

impl Network {
    /// The input of a linear layer; `None` outside the blocks and for layers of unknown role.
    pub fn input(&self, id: LinearId) -> Option<Input> {
        let linear = self.linear(id);
        let input = input_of(linear.part, linear.role, linear.expert)?;
        let holds = |test: fn(&Network, usize) -> bool| linear.block.is_some_and(|block| test(self, block));
        Some(match input {
            Input::FeedForward if holds(Network::shares_norm) => Input::Attention,
            Input::QueryLatent if linear.role == Role::IndexQuery && !holds(Network::has_query_latent) => {
                Input::Attention
            }
            Input::FeedForward if linear.role == Role::Router && holds(Network::has_experts_beside) => Input::Router,
            input => input,
        })
    }

    /// The layers of a block grouped by input, in the order of the forward pass: the order of GPTQ, and the
    /// layers that share a Hessian. None in blocks that text alone passes over.
    pub fn stages(&self, block: usize) -> Vec<Subset> {
        if self.passed_over.contains(&block) {
            return Vec::new();
        }
        let mut stages: BTreeMap<Input, Subset> = BTreeMap::new();
        for (id, _) in self.linears_of(block) {
            if let Some(input) = self.input(id) {
                stages.entry(input).or_insert_with(|| Subset::new(input)).linears.push(id);
            }
        }
        for id in self.experts_of(block) {
            if let Some(input) = input_of(Part::Experts, self.experts[id.0].role, None) {
                stages.entry(input).or_insert_with(|| Subset::new(input)).experts.push(id);
            }
        }
        stages.into_values().collect()
    }

    /// The links of a block, in the order of the forward pass. Kept layers appear too: a caller that moves a scale
    /// must scale them as well. None for unknown architectures, and for blocks with tensors that are not understood
    /// (adapters, packed weights), which might read the same activations, or that text alone passes over.
    pub fn links(&self, block: usize) -> Vec<SmoothingPair> {
        let is_left = self.unclear.contains(&block) || self.passed_over.contains(&block);
        let Some(residual) = self.facts.residual.filter(|_| !is_left) else {
            return Vec::new();
        };
        // Behind a post-norm, or where residuals are what norms give, the residual stream itself reads the norm's output, so the norm cannot be scaled alone.
        let mut links = match residual {
            Residual::PostNorm | Residual::OfNorm => Vec::new(),
            _ => self.norm_links(block),
        };
        links.extend(self.heads_link(block));
        links.extend(self.recurrent_link(block));
        links.extend(self.hidden_links(block));
        links.extend(self.fused_hidden_link(block));
        links.sort_by_key(|link| self.input_of_consumer(&link.into));
        links
    }

    /// The layers of a block whose outputs the KV cache stores: keys and values, the fused q/k/v, or the up
    /// projection of MLA's latent. None where a block attends to the keys and values of another one.
    pub fn kv_owners(&self, block: usize) -> Vec<LinearId> {
        if self.shares_keys(block) {
            return Vec::new();
        }
        let owners = self.linears_of(block).filter(|(_, linear)| owns_kv(linear.role));
        owners.map(|(id, _)| id).collect()
    }

    /// The blocks that choose experts.
    pub fn routed_blocks(&self) -> BTreeSet<usize> {
        self.linears().iter().filter(|linear| linear.role == Role::Router).filter_map(|linear| linear.block).collect()
    }

    /// Returns whether this is a mixture of experts and some blocks have none.
    pub fn has_dense_blocks(&self) -> bool {
        let routed = self.routed_blocks();
        !routed.is_empty() && self.blocks().iter().any(|block| !routed.contains(block))
    }

    /// Returns whether a block attends to the keys and values of another one.
    pub fn shares_keys(&self, block: usize) -> bool {
        self.sharing.contains(&block)
    }

    /// Returns whether a block attends to what an encoder gives.
    pub fn attends_to_encoder(&self, block: usize) -> bool {
        self.linears_of(block).any(|(_, linear)| linear.part == Part::CrossAttention)
    }

    fn linears_of(&self, block: usize) -> impl Iterator<Item = (LinearId, &Linear)> {
        let all = self.linears.iter().enumerate().map(|(at, linear)| (LinearId(at), linear));
        all.filter(move |(_, linear)| linear.block == Some(block))
    }

    fn experts_of(&self, block: usize) -> impl Iterator<Item = ExpertsId> {
        let all = self.experts.iter().enumerate();
        all.filter(move |(_, experts)| experts.block == block).map(|(at, _)| ExpertsId(at))
    }

    /// Returns whether one norm feeds attention and the feed-forward network.
    fn shares_norm(&self, block: usize) -> bool {
        self.facts.residual == Some(Residual::Parallel) && !self.has_norm(block, NormSite::FeedForwardInput)
    }

    /// Returns whether the queries of a block come from a latent.
    fn has_query_latent(&self, block: usize) -> bool {
        self.linears_of(block).any(|(_, linear)| linear.role == Role::QueryUp)
    }

    /// Returns whether routed experts of a block stand beside a dense network, with a norm of their own.
    fn has_experts_beside(&self, block: usize) -> bool {
        self.has_norm(block, NormSite::RoutedInput)
    }

    fn norm_links(&self, block: usize) -> Vec<SmoothingPair> {
        let norms = self.norms.iter().enumerate().filter(|(_, norm)| norm.block == Some(block));
        let links = norms.filter_map(|(at, norm)| {
            let into = self.readers(block, norm.site);
            // Two mixers read the norm, each with a different factor, and no trial runs both.
            let stages = self.stages(block);
            let has = |input| stages.iter().any(|stage| stage.input == input);
            let both = norm.site == NormSite::AttentionInput && has(Input::Attention) && has(Input::Recurrent);
            let into = if both { Vec::new() } else { into };
            let link = SmoothingPair { from: ScaleSource::Norm(NormId(at)), into, through: PairPath::Norm };
            (!link.into.is_empty()).then_some(link)
        });
        links.collect()
    }

    /// All that reads the norm at `site`.
    pub(super) fn readers(&self, block: usize, site: NormSite) -> Vec<Consumer> {
        let shared = self.shares_norm(block);
        let single = self.facts.residual == Some(Residual::Single);
        let mixes = |input: Input| matches!(input, Input::Attention | Input::Recurrent);
        let beside = self.has_experts_beside(block);
        let feeds = |input: Input| input == Input::FeedForward || !beside && matches!(input, Input::Routed(_));
        let reads = |input: Input| match site {
            // The norm's output joins the stream itself.
            NormSite::AttentionInput if self.has_norm(block, NormSite::LowRankOutput) => false,
            NormSite::FeedForwardInput if self.has_identities(block) || self.facts.hashes(block) => false,
            NormSite::AttentionInput if single => mixes(input) || feeds(input),
            NormSite::AttentionInput => mixes(input) || shared && matches!(input, Input::Routed(_)),
            NormSite::QueryLatent => input == Input::QueryLatent,
            NormSite::KeyValueLatent => input == Input::KeyValueLatent,
            NormSite::RecurrentStep => input == Input::StepLatent,
            NormSite::Heads => input == Input::Heads,
            NormSite::FeedForwardInput => feeds(input),
            NormSite::RoutedInput => matches!(input, Input::Routed(_)),
            NormSite::Hidden => input == Input::Hidden,
            _ => false,
        };
        let stages = self.stages(block).into_iter().filter(|stage| reads(stage.input));
        stages.flat_map(Subset::into_consumers).collect()
    }

    /// Returns whether some experts of a block give what they read.
    pub(super) fn has_identities(&self, block: usize) -> bool {
        self.facts.has_identities && self.linears_of(block).any(|(_, linear)| linear.role == Role::Router)
    }

    /// Returns whether a block has a norm at a site.
    fn has_norm(&self, block: usize, site: NormSite) -> bool {
        self.norms.iter().any(|norm| norm.block == Some(block) && norm.site == site)
    }

    /// Values to the output projection, through attention; a gate on the heads' outputs passes scales, a norm of them does not.
    fn heads_link(&self, block: usize) -> Option<SmoothingPair> {
        let heads = self.facts.heads.filter(|_| !self.has_norm(block, NormSite::Heads))?;
        let heads = Heads { query: self.facts.heads_by_layer.get(block).copied().unwrap_or(heads.query), ..heads };
        let find = |wanted: fn(Role) -> bool| self.linears_of(block).find(|(_, linear)| wanted(linear.role));
        let (linear, values) = find(|role| matches!(role, Role::Value | Role::QueryKeyValue | Role::KeyValueUp))?;
        let is_attention = |linear: &Linear| matches!(linear.part, Part::Attention | Part::CrossAttention);
        let mut outputs = self.linears_of(block).filter(|(_, linear)| is_attention(linear));
        let (output, layer) = outputs.find(|(_, linear)| linear.role == Role::Output)?;
        let rows = heads.value_rows(values)?;
        let (head_dim, repeat) = (heads.value_dim, heads.repeat(rows.len())?);
        let widths_agree = heads.query.checked_mul(head_dim) == Some(layer.in_features);
        widths_agree.then(|| SmoothingPair {
            from: ScaleSource::Linear { linear, rows },
            into: vec![Consumer::Linear(output)],
            through: PairPath::Heads { head_dim, repeat },
        })
    }

    /// What stands right before the output projection of a recurrent mixer, to that projection.
    fn recurrent_link(&self, block: usize) -> Option<SmoothingPair> {
        let recurrent = |role: Role| {
            self.linears_of(block).find(move |(_, linear)| linear.part == Part::Recurrent && linear.role == role)
        };
        let (output, layer) = recurrent(Role::Output)?;
        let into = vec![Consumer::Linear(output)];
        let norm = || {
            let mut norms = self.norms.iter().enumerate().filter(|(_, norm)| norm.block == Some(block));
            let (norm, _) = norms.find(|(_, norm)| norm.site == NormSite::RecurrentOutput)?;
            Some(ScaleSource::Norm(NormId(norm)))
        };
        match self.facts.recurrent? {
            // The gate between them multiplies channel by channel; all heads share the norm.
            RecurrentMixer::GatedDelta { .. } | RecurrentMixer::ChannelDelta { .. } => {
                let DeltaConfig { value_heads, value_dim, .. } = self.facts.delta?;
                let through = PairPath::Heads { head_dim: value_dim, repeat: value_heads };
                let agrees = value_heads.checked_mul(value_dim) == Some(layer.in_features);
                agrees.then_some(SmoothingPair { from: norm()?, into, through })
            }
            // What the convolution gives also chooses what is written.
            RecurrentMixer::Mamba1 { .. } => None,
            RecurrentMixer::Mamba2 { .. } | RecurrentMixer::Lightning { .. } => {
                Some(SmoothingPair { from: norm()?, into, through: PairPath::Norm })
            }
            // The second of three parts multiplies what the convolution gives.
            RecurrentMixer::ShortConvolution => {
                let (linear, inputs) = recurrent(Role::RecurrentInput)?;
                let width = layer.in_features;
                let agrees = width.checked_mul(3) == Some(inputs.out_features);
                let from = ScaleSource::Linear { linear, rows: std::iter::once(width..2 * width).collect() };
                agrees.then_some(SmoothingPair { from, into, through: PairPath::Product })
            }
        }
    }

    /// Up to down projections, in the dense network, the shared experts and each expert.
    fn hidden_links(&self, block: usize) -> Vec<SmoothingPair> {
        if self.has_norm(block, NormSite::Hidden) {
            return Vec::new();
        }
        let place = |linear: &Linear| (linear.part, linear.expert);
        let of_role = |role: Role| self.linears_of(block).filter(move |(_, linear)| linear.role == role);
        let down: HashMap<_, _> = of_role(Role::Down).map(|(id, linear)| (place(linear), id)).collect();
        let gates: HashSet<_> = of_role(Role::Gate).map(|(_, linear)| place(linear)).collect();
        let links = self.linears_of(block).filter_map(|(id, up)| {
            let target = *down.get(&place(up))?;
            let gated = up.role == Role::GateUp || gates.contains(&place(up));
            self.hidden_link(id, target, gated)
        });
        links.collect()
    }

    /// One such link, if `up` has an up projection as wide as the input of `down`.
    fn hidden_link(&self, up: LinearId, down: LinearId, gated: bool) -> Option<SmoothingPair> {
        let linear = self.linear(up);
        let rows = up_rows(linear.role, linear.rows, linear.out_features)?;
        let width: usize = rows.iter().map(ExactSizeIterator::len).sum();
        let through = self.through_activation(gated)?;
        (width == self.linear(down).in_features).then(|| SmoothingPair {
            from: ScaleSource::Linear { linear: up, rows },
            into: vec![Consumer::Linear(down)],
            through,
        })
    }

    /// Up to down projection of all experts in one tensor each.
    fn fused_hidden_link(&self, block: usize) -> Option<SmoothingPair> {
        let find = |wanted: fn(Role) -> bool| self.experts_of(block).find(|id| wanted(self.experts[id.0].role));
        let up = find(|role| matches!(role, Role::GateUp | Role::Up))?;
        let down = find(|role| role == Role::Down)?;
        let tensor = &self.experts[up.0];
        let gated = tensor.role == Role::GateUp || find(|role| role == Role::Gate).is_some();
        Some(SmoothingPair {
            from: ScaleSource::Experts { experts: up, rows: up_rows(tensor.role, tensor.rows, tensor.out_features)? },
            into: vec![Consumer::Experts(down)],
            through: self.through_activation(gated)?,
        })
    }

    /// How a scale passes from the up projection to the down projection, if it does.
    fn through_activation(&self, gated: bool) -> Option<PairPath> {
        let activation = self.facts.activation?;
        match gated {
            true => activation.is_linear_in_up().then_some(PairPath::Product),
            false => activation.is_positively_homogeneous().then_some(PairPath::Relu),
        }
    }

    fn input_of_consumer(&self, consumers: &[Consumer]) -> Option<Input> {
        match consumers.first()? {
            Consumer::Linear(id) => self.input(*id),
            Consumer::Experts(id) => input_of(Part::Experts, self.experts[id.0].role, None),
        }
    }
}

impl Subset {
    fn new(input: Input) -> Subset {
        Subset { input, linears: Vec::new(), experts: Vec::new() }
    }

    pub(super) fn into_consumers(self) -> impl Iterator<Item = Consumer> {
        let linears = self.linears.into_iter().map(Consumer::Linear);
        linears.chain(self.experts.into_iter().map(Consumer::Experts))
    }
}

/// The input of a layer of this role inside a block.
fn input_of(part: Part, role: Role, expert: Option<usize>) -> Option<Input> {
    match role {
        Role::Key | Role::Value if part == Part::CrossAttention => Some(Input::EncoderStates),
        Role::Query | Role::Key | Role::Value | Role::QueryKeyValue | Role::HeadGate => Some(Input::Attention),
        Role::QueryDown | Role::KeyValueDown => Some(Input::Attention),
        Role::KeyValue | Role::CompressedKey | Role::CompressedGate | Role::IndexGate => Some(Input::Attention),
        // Each of its parts reads other heads.
        Role::OutputDown => None,
        Role::RecurrentInput | Role::RecurrentGate | Role::RecurrentInputGate => Some(Input::Recurrent),
        Role::RecurrentQuery | Role::RecurrentKey | Role::RecurrentValue => Some(Input::Recurrent),
        Role::RecurrentDecay | Role::RecurrentStrength | Role::RecurrentRates => Some(Input::Recurrent),
        Role::RecurrentSteps | Role::RecurrentDecayDown | Role::RecurrentGateDown => Some(Input::Recurrent),
        Role::RecurrentDecayUp => Some(Input::DecayLatent),
        Role::RecurrentGateUp => Some(Input::GateLatent),
        Role::RecurrentChoice => Some(Input::Convolved),
        Role::RecurrentStep => Some(Input::StepLatent),
        Role::Output if part == Part::Recurrent => Some(Input::RecurrentHeads),
        Role::IndexKey | Role::IndexWeights => Some(Input::Attention),
        Role::QueryUp | Role::IndexQuery => Some(Input::QueryLatent),
        Role::KeyValueUp => Some(Input::KeyValueLatent),
        Role::Output => Some(Input::Heads),
        Role::Router | Role::SharedGate => Some(Input::FeedForward),
        Role::Gate | Role::Up | Role::GateUp if part == Part::Experts => Some(Input::Routed(expert)),
        Role::Gate | Role::Up | Role::GateUp => Some(Input::FeedForward),
        Role::Down if part == Part::Experts => Some(Input::RoutedHidden(expert)),
        Role::Down if part == Part::SharedExperts => Some(Input::SharedHidden),
        Role::Down => Some(Input::Hidden),
        Role::LowRankDown => Some(Input::Attention),
        Role::LowRankUp => Some(Input::LowRankLatent),
        Role::LayerInputGate => Some(Input::LayerInput),
        Role::LayerInputOutput => Some(Input::LayerInputHidden),
        Role::LaneInput | Role::LaneOutput | Role::LaneRouter | Role::LanePrediction | Role::LaneCorrection => None,
        Role::Head | Role::Readout | Role::LayerInputs | Role::ProjectIn | Role::ProjectOut | Role::Unknown => None,
    }
}

/// The output rows that hold the up projection.
fn up_rows(role: Role, rows: RowOrder, out_features: usize) -> Option<Vec<Range<usize>>> {
    match (role, rows) {
        (Role::Up, _) => Some(std::iter::once(0..out_features).collect()),
        (Role::GateUp, RowOrder::Stacked) => Some(std::iter::once(out_features / 2..out_features).collect()),
        (Role::GateUp, RowOrder::Interleaved) => Some((0..out_features / 2).map(|at| 2 * at + 1..2 * at + 2).collect()),
        _ => None,
    }
}
