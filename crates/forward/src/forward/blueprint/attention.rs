//! The attention of one block: how queries, keys and values are projected, where their heads stand, what turns.

use super::compressed::{CompressorLayer, SharedProjections};
use super::distances::DistanceEmbeddings;
use super::grids::GridLayers;
use super::images::ImageLayers;
use super::indexer::IndexerLayer;
use super::parts::Parts;
use super::positions::{QueryGrowth, ScoreBiases};
use super::{NormLayer, Sources, rules};
use crate::forward::error::ForwardError;
use crate::forward::heads::HeadLayout;
use crate::forward::ops::Gate;
use crate::forward::rope::{Rotary, attention_scale_of_yarn};
use crate::forward::tensors::{Projection, Vector};
use kvant_model::family::{
    AttentionScale, HeadGate, NormKind, NormSite, Pairing, Part, Positions, QueryKeyNorm, Role, RowOrder, StackBlock,
};
use kvant_model::model_config::{LatentConfig, RopeParameters};
use kvant_model::network::Place;

/// Attention.
#[derive(Clone, Debug)]
pub struct AttentionLayer {
    /// The projections of queries, keys and values.
    pub projections: Projections,
    /// Norms of queries and keys.
    pub head_norms: Option<HeadNorms>,
    /// The rotary embedding, by its position in the blueprint, and what turns together.
    pub rotary: Option<(usize, Pairing)>,
    /// The factor on scores.
    pub scale: f32,
    /// The soft-cap on scores.
    pub cap: Option<f32>,
    /// Positions that a token sees, itself included and later ones aside.
    pub window: Option<usize>,
    /// Later positions that it sees.
    pub ahead: usize,
    /// Positions of a chunk, where a token sees its own chunk only.
    pub chunk: Option<usize>,
    /// Whether patches of an image of any size see those of their window only.
    pub in_windows: bool,
    /// A further score per head.
    pub sinks: Option<Vector>,
    /// Biases on scores.
    pub biases: Option<ScoreBiases>,
    /// What queries and keys attend to beside each other.
    pub distances: Option<DistanceEmbeddings>,
    /// The largest magnitude of queries, keys and values, where they are clipped.
    pub clip: Option<f32>,
    /// What chooses the keys that a token attends to.
    pub indexer: Option<IndexerLayer>,
    /// The block whose keys and values it attends to, mostly its own.
    pub key_block: usize,
    /// The norm of values.
    pub value_norm: Option<NormLayer>,
    /// The factor on values.
    pub value_scale: f32,
    /// The factor on keys, before the rotary embedding.
    pub key_scale: f32,
    /// The factor on queries that depends on their position.
    pub growth: Option<QueryGrowth>,
    /// The gates on the heads' outputs.
    pub gates: Option<HeadGates>,
    /// The norm of the heads' outputs.
    pub heads_norm: Option<NormLayer>,
    /// The output projection.
    pub output: Projection,
}

/// Norms of queries and keys.
#[derive(Clone, Debug)]
pub struct HeadNorms {
    /// That of queries.
    pub query: NormLayer,
    /// That of keys, where the block makes some.
    pub key: Option<NormLayer>,
    /// Over what, and when.
    pub rule: QueryKeyNorm,
}

/// The gates on the heads' outputs: each component is multiplied by a function of its gate.
#[derive(Clone, Debug)]
pub enum HeadGates {
    /// Those of a layer of their own.
    Layer {
        /// The layer.
        layer: Projection,
        /// The function.
        function: Gate,
        /// Components that share a gate: one, or those of a head.
        shared: usize,
    },
    /// Those in the rows of queries, where they stand.
    WithQueries(HeadLayout),
}

impl HeadGates {
    /// What multiplies a component, as a function of its gate.
    pub fn function(&self) -> Gate {
        match self {
            HeadGates::Layer { function, .. } => *function,
            HeadGates::WithQueries(_) => Gate::Sigmoid,
        }
    }
}

/// The projections of queries, keys and values.
#[derive(Clone, Debug)]
pub enum Projections {
    /// Three layers.
    Separate {
        /// Queries, keys and values.
        layers: Box<[Projection; 3]>,
        /// Their heads.
        heads: [HeadLayout; 3],
    },
    /// One layer.
    Fused {
        /// The layer.
        layer: Projection,
        /// The heads of queries, keys and values in its rows; where these are grouped, in rows with all queries, then keys, then
        /// values.
        heads: [HeadLayout; 3],
        /// Whether its rows have the queries of a key head before that, and its value behind it.
        grouped: bool,
    },
    /// Two layers: keys, before norm and rotary embedding, are values.
    KeysAsValues {
        /// Queries and keys.
        layers: Box<[Projection; 2]>,
        /// The heads of queries, keys and values.
        heads: [HeadLayout; 3],
    },
    /// One layer: keys and values are those of another block.
    Queries {
        /// Queries.
        layer: Projection,
        /// The heads of queries, and of keys and values where those of one token are a row.
        heads: [HeadLayout; 3],
        /// Layers of keys and values that the checkpoint has and nothing reads; engines fuse them with the queries.
        unread: Vec<Projection>,
    },
    /// Three layers, of which keys and values read what an encoder gives.
    OfEncoder {
        /// Queries, keys and values.
        layers: Box<[Projection; 3]>,
        /// Their heads.
        heads: [HeadLayout; 3],
    },
    /// Through latents (arXiv 2405.04434).
    Latent(Box<LatentProjections>),
    /// Queries from a latent, and keys that are values, beside entries of tokens.
    Shared(Box<SharedProjections>),
}

/// The projections of multi-head latent attention.
#[derive(Clone, Debug)]
pub struct LatentProjections {
    /// Queries.
    pub query: QueryLatent,
    /// The key/value latent and the rotary key.
    pub down: Projection,
    /// The latent's norm.
    pub norm: NormLayer,
    /// Keys and values from the latent.
    pub up: Projection,
    /// Number of heads.
    pub heads: usize,
    /// The factors on queries, and on the latent of keys and values behind its norm.
    pub factors: [f32; 2],
    /// The sizes.
    pub sizes: LatentConfig,
}

/// The projection of queries.
#[derive(Clone, Debug)]
pub enum QueryLatent {
    /// Straight from the hidden state.
    None(Projection),
    /// Down, norm, up.
    Latent(Projection, NormLayer, Projection),
}

impl QueryLatent {
    /// The layer that reads the hidden state.
    pub fn first(&self) -> &Projection {
        match self {
            QueryLatent::None(layer) | QueryLatent::Latent(layer, ..) => layer,
        }
    }
}

impl AttentionLayer {
    /// Elements of a token's queries, keys and values, all heads together.
    pub fn head_widths(&self) -> [usize; 3] {
        match &self.projections {
            Projections::Separate { heads, .. }
            | Projections::OfEncoder { heads, .. }
            | Projections::Fused { heads, .. }
            | Projections::Queries { heads, .. }
            | Projections::KeysAsValues { heads, .. } => heads.map(|h| h.width * h.count),
            Projections::Latent(latent) => {
                let turned = latent.sizes.nope_dim + latent.sizes.rope_dim;
                [turned, turned, latent.sizes.value_dim].map(|width| width * latent.heads)
            }
            Projections::Shared(shared) => [shared.heads * shared.width, shared.width, shared.width],
        }
    }

    /// Returns whether keys and values are those of what an encoder gives.
    pub fn attends_to_encoder(&self) -> bool {
        matches!(self.projections, Projections::OfEncoder { .. })
    }

    /// Elements of the keys and values of a token.
    pub(super) fn key_value_elements(&self) -> usize {
        let [_, keys, values] = self.head_widths();
        keys + values
    }

    /// Elements that are kept of so many tokens; none where another block keeps the keys and values.
    pub fn cache_elements(&self, tokens: usize) -> usize {
        match &self.projections {
            Projections::Queries { .. } => 0,
            Projections::Shared(shared) => shared.cache_elements(tokens),
            _ => (self.key_value_elements() + self.indexer.as_ref().map_or(0, |indexer| indexer.width))
                .saturating_mul(tokens),
        }
    }

    /// What makes entries of tokens, where it attends to some.
    pub fn compressor(&self) -> Option<&CompressorLayer> {
        match &self.projections {
            Projections::Shared(shared) => shared.compressor.as_deref(),
            _ => None,
        }
    }

    /// The layer that gives the gates on the heads' outputs, where they have one of their own.
    pub fn gate_layer(&self) -> Option<&Projection> {
        match &self.gates {
            Some(HeadGates::Layer { layer, .. }) => Some(layer),
            Some(HeadGates::WithQueries(_)) | None => None,
        }
    }

    /// All its linear layers.
    pub fn layers(&self) -> Vec<&Projection> {
        let mut layers = match &self.projections {
            Projections::Separate { layers, .. } | Projections::OfEncoder { layers, .. } => layers.iter().collect(),
            Projections::KeysAsValues { layers, .. } => layers.iter().collect(),
            Projections::Fused { layer, .. } => vec![layer],
            Projections::Queries { layer, unread, .. } => std::iter::once(layer).chain(unread).collect(),
            Projections::Latent(latent) => {
                let queries = match &latent.query {
                    QueryLatent::None(layer) => vec![layer],
                    QueryLatent::Latent(down, _, up) => vec![down, up],
                };
                queries.into_iter().chain([&latent.down, &latent.up]).collect()
            }
            Projections::Shared(shared) => shared.layers(),
        };
        layers.extend(self.indexer.iter().flat_map(IndexerLayer::layers));
        layers.extend(self.gate_layer());
        layers.push(&self.output);
        layers
    }
}

impl<'a> Sources<'_, 'a> {
    pub(super) fn attention(&self, parts: &Parts<'_, '_, 'a>, index: usize) -> Result<AttentionLayer, ForwardError> {
        if self.family.math.compressed_keys {
            return self.compressed_attention(parts, index);
        }
        let heads = self.need(self.config.heads_of_layer(index), "num_attention_heads")?;
        let sliding = rules::is_sliding(self, index)?;
        let part = self.family.stack_block(self.config, index);
        let is_cross = part == Some(StackBlock::CrossAttention);
        let key_block = self.family.key_block(self.config, index);
        let key_heads = self.key_heads(index, sliding)?;
        let width = self.head_width(index, sliding)?;
        let (projections, value_dim) = match &self.config.latent {
            Some(latent) => (self.latent(parts, latent, heads)?, latent.value_dim),
            None => {
                let value_width = self.config.stated_value_dim.or(width);
                let widths = [width, value_width].map(|width| self.need(width, "head_dim"));
                let [width, value_width] = widths;
                let (width, value_width) = (width?, value_width?);
                let (counts, widths) = ([heads, key_heads], [width, value_width]);
                match key_block == index {
                    true if is_cross => (self.of_encoder(parts, counts, widths)?, value_width),
                    true => (self.projections(parts, counts, widths)?, value_width),
                    false => (self.queries(parts, counts, widths)?, value_width),
                }
            }
        };
        let window = self.config.sliding_window.filter(|_| sliding);
        let (scale, distances) = (self.attention_scale()?, self.distance_embeddings()?);
        // Each kind of scores counts as one more product.
        let scale = distances.as_ref().map_or(scale, |distances| scale / (distances.kinds() as f32).sqrt());
        let gates = self.gates(parts, &projections, [heads, value_dim])?;
        Ok(AttentionLayer {
            projections,
            head_norms: self.head_norms(parts, index, [heads, key_heads], width)?,
            rotary: self.rotary(index, sliding)?,
            scale,
            cap: self.config.attention_softcap.map(|cap| cap as f32),
            window: if sliding { Some(self.need(window, "sliding_window")?) } else { None },
            ahead: self.ahead(window, part),
            chunk: rules::chunk(self, index)?,
            in_windows: self.is_windowed(index),
            sinks: self.sinks(index, sliding, heads)?,
            biases: if is_cross { None } else { self.score_biases(index, heads, scale)? },
            distances,
            clip: self.config.clip_qkv.map(|clip| clip as f32),
            indexer: self.indexer(parts, index)?,
            key_block,
            value_norm: self.family.math.value_norm.then(|| self.plain_rms()),
            value_scale: self.value_scale()?,
            key_scale: self.branch_multiplier("key_multiplier")?,
            growth: self.query_growth(index)?,
            gates,
            heads_norm: parts.listed_norm(NormSite::Heads)?,
            output: parts.output(
                if is_cross { Part::CrossAttention } else { Part::Attention },
                self.hidden()?,
                heads * value_dim,
            )?,
        })
    }

    /// The gates on the heads' outputs of `width` elements; those in the rows of queries stand behind each query.
    fn gates(
        &self,
        parts: &Parts<'_, '_, 'a>,
        projections: &Projections,
        [heads, width]: [usize; 2],
    ) -> Result<Option<HeadGates>, ForwardError> {
        match (self.family.math.head_gate, projections) {
            (HeadGate::WithQueries, Projections::Separate { heads: [queries, ..], .. }) if queries.width == width => {
                Ok(Some(HeadGates::WithQueries(queries.part(width, width))))
            }
            (HeadGate::WithQueries, _) => Err(ForwardError::unsupported(
                "gates behind queries where these are not as wide as values, or not alone",
            )),
            (HeadGate::OwnLayer, _) if parts.find(|linear| linear.role == Role::HeadGate).is_some() => {
                let layer = parts.sized(Role::HeadGate, heads * width, self.hidden()?)?;
                Ok(Some(HeadGates::Layer { layer, function: Gate::Sigmoid, shared: 1 }))
            }
            (HeadGate::OwnLayer, _) => Ok(None),
            (HeadGate::OfHeads, _)
                if self.family.math.head_gate_if.is_some_and(|key| !self.config.flag_or(key, true)) =>
            {
                Ok(None)
            }
            (HeadGate::OfHeads, _) => {
                let layer = parts.sized(Role::HeadGate, heads, self.hidden()?)?;
                Ok(Some(HeadGates::Layer { layer, function: Gate::Sigmoid, shared: width }))
            }
            (HeadGate::Softplus, _) => {
                let shared = if self.gates_are_of_heads()? { width } else { 1 };
                let layer = parts.sized(Role::HeadGate, heads * width / shared, self.hidden()?)?;
                Ok(Some(HeadGates::Layer { layer, function: Gate::Softplus, shared }))
            }
        }
    }

    /// Returns whether all components of a head share a gate.
    fn gates_are_of_heads(&self) -> Result<bool, ForwardError> {
        const KEY: &str = "gating";
        match (self.config.text(KEY), self.config.flag_or(KEY, true)) {
            (None, of_heads) => Ok(of_heads),
            (Some("per-head"), _) => Ok(true),
            (Some("per-element"), _) => Ok(false),
            (Some(other), _) => Err(ForwardError::unsupported(format!("`{KEY}` {other} in config.json"))),
        }
    }

    fn head_dim(&self) -> Result<usize, ForwardError> {
        self.need(self.config.head_dim(), "head_dim")
    }

    /// The width of the heads of a layer.
    fn head_width(&self, index: usize, sliding: bool) -> Result<Option<usize>, ForwardError> {
        let config = self.config;
        if !self.family.math.full_heads || sliding {
            return Ok(config
                .of_layer(index, "head_dim")
                .filter(|_| self.family.math.full_heads)
                .or(config.head_dim()));
        }
        match config.states("per_layer_config") {
            true => Ok(config.of_layer(index, "head_dim").or(config.head_dim())),
            false => Ok(Some(config.number("global_head_dim")?.map_or(512, |width| width as usize))),
        }
    }

    /// Key heads of a layer.
    fn key_heads(&self, index: usize, sliding: bool) -> Result<usize, ForwardError> {
        let stated = self.need(self.config.num_kv_heads(), "num_key_value_heads")?;
        if self.family.math.full_heads {
            let own = self.config.of_layer(index, "num_key_value_heads");
            let shares = !sliding && self.config.flag_or("attention_k_eq_v", false);
            let global = self.config.number("num_global_key_value_heads")?.map(|count| count as usize);
            let global = global.filter(|count| shares && *count > 0 && !self.config.states("per_layer_config"));
            return Ok(own.or(global).unwrap_or(stated));
        }
        Ok(if sliding && self.family.math.sliding_has_more { 2 * stated } else { stated })
    }

    /// The sinks of a layer.
    fn sinks(&self, index: usize, sliding: bool, heads: usize) -> Result<Option<Vector>, ForwardError> {
        let found = match self.parameter(index, "sinks", heads)? {
            None => self.parameter(index, "attention_sink_bias", heads)?,
            found => found,
        };
        match found {
            None if sliding && self.family.math.sliding_has_more => {
                Err(ForwardError::missing(format!("block {index}"), "attention sinks"))
            }
            found => Ok(found),
        }
    }

    /// The factor on values.
    fn value_scale(&self) -> Result<f32, ForwardError> {
        let Some((key, default)) = self.family.math.value_scale else { return Ok(1.0) };
        let stated = self.config.number(key)?;
        Ok(stated.unwrap_or(if self.config.states(key) { 1.0 } else { default }) as f32)
    }

    fn projections(
        &self,
        parts: &Parts<'_, '_, 'a>,
        [heads, key_heads]: [usize; 2],
        [width, value_width]: [usize; 2],
    ) -> Result<Projections, ForwardError> {
        let hidden = self.hidden()?;
        if !heads.is_multiple_of(key_heads) {
            return Err(ForwardError::unsupported(format!("{heads} query heads on {key_heads} key heads")));
        }
        let counts = [heads, key_heads, key_heads];
        if let Some(fused) = parts.find(|linear| linear.role == Role::QueryKeyValue) {
            let layer = parts.sized(Role::QueryKeyValue, (heads + 2 * key_heads) * width, hidden)?;
            let grouped = fused.rows == RowOrder::PerGroup;
            let rows = if grouped { RowOrder::Stacked } else { fused.rows };
            return Ok(Projections::Fused { layer, heads: fused_heads(rows, counts, width)?, grouped });
        }
        let layer = |role: Role, width: usize| parts.sized(role, width, hidden);
        let lacks_values = parts.find(|linear| linear.role == Role::Value).is_none();
        if lacks_values && self.family.math.full_heads && self.config.flag_or("attention_k_eq_v", false) {
            let layers = [layer(Role::Query, heads * width)?, layer(Role::Key, key_heads * width)?];
            let heads = counts.map(|count| HeadLayout::packed(count, width));
            return Ok(Projections::KeysAsValues { layers: Box::new(layers), heads });
        }
        let query_step = self.family.math.head_gate.query_parts() * width;
        let layers = [
            layer(Role::Query, heads * query_step)?,
            layer(Role::Key, key_heads * width)?,
            layer(Role::Value, key_heads * value_width)?,
        ];
        let packed = |which: usize, width| HeadLayout::packed(counts[which], width);
        let heads = [HeadLayout { step: query_step, ..packed(0, width) }, packed(1, width), packed(2, value_width)];
        Ok(Projections::Separate { layers: Box::new(layers), heads })
    }

    /// Those of a block that attends to what an encoder gives.
    fn of_encoder(
        &self,
        parts: &Parts<'_, '_, 'a>,
        [heads, key_heads]: [usize; 2],
        [width, value_width]: [usize; 2],
    ) -> Result<Projections, ForwardError> {
        let hidden = self.hidden()?;
        let layers = [
            parts.sized(Role::Query, heads * width, hidden)?,
            parts.sized(Role::Key, key_heads * width, hidden)?,
            parts.sized(Role::Value, key_heads * value_width, hidden)?,
        ];
        let packed = HeadLayout::packed;
        let heads = [packed(heads, width), packed(key_heads, width), packed(key_heads, value_width)];
        Ok(Projections::OfEncoder { layers: Box::new(layers), heads })
    }

    /// The projection of queries of a block that attends to another one's keys.
    fn queries(
        &self,
        parts: &Parts<'_, '_, 'a>,
        [heads, key_heads]: [usize; 2],
        [width, value_width]: [usize; 2],
    ) -> Result<Projections, ForwardError> {
        let mut unread = Vec::new();
        for role in [Role::Key, Role::Value] {
            unread.extend(parts.linear(role)?);
        }
        let (keys, values) = (HeadLayout::packed(key_heads, width), HeadLayout::packed(key_heads, value_width));
        let values = HeadLayout { start: key_heads * width, ..values };
        Ok(Projections::Queries {
            layer: parts.sized(Role::Query, heads * width, self.hidden()?)?,
            heads: [HeadLayout::packed(heads, width), keys, values],
            unread,
        })
    }

    fn latent(
        &self,
        parts: &Parts<'_, '_, 'a>,
        latent: &LatentConfig,
        heads: usize,
    ) -> Result<Projections, ForwardError> {
        let (hidden, rank) = (self.hidden()?, latent.key_value_rank);
        let width = latent.nope_dim + latent.rope_dim;
        let norm = |site: NormSite, what: &str| {
            parts.norm(site)?.ok_or_else(|| ForwardError::missing(parts.place(), format!("norm of the {what} latent")))
        };
        let query = match latent.query_rank {
            None => QueryLatent::None(parts.sized(Role::Query, heads * width, hidden)?),
            Some(rank) => QueryLatent::Latent(
                parts.sized(Role::QueryDown, rank, hidden)?,
                norm(NormSite::QueryLatent, "query")?,
                parts.sized(Role::QueryUp, heads * width, rank)?,
            ),
        };
        Ok(Projections::Latent(Box::new(LatentProjections {
            query,
            down: parts.sized(Role::KeyValueDown, rank + latent.rope_dim, hidden)?,
            norm: norm(NormSite::KeyValueLatent, "key/value")?,
            up: parts.sized(Role::KeyValueUp, heads * (latent.nope_dim + latent.value_dim), rank)?,
            heads,
            factors: match self.family.math.scales_latents {
                true => {
                    [latent.query_rank.unwrap_or(hidden), rank].map(|rank| (hidden as f64 / rank as f64).sqrt() as f32)
                }
                false => [1.0; 2],
            },
            sizes: latent.clone(),
        })))
    }

    fn head_norms(
        &self,
        parts: &Parts<'_, '_, 'a>,
        index: usize,
        [heads, key_heads]: [usize; 2],
        width: Option<usize>,
    ) -> Result<Option<HeadNorms>, ForwardError> {
        let rule = self.family.math.query_key_norm;
        if rule == QueryKeyNorm::PlainAfterRotary {
            let norm = self.plain_rms();
            let has_norms = self.config.flag_or("use_qk_norm", true) && rules::is_turned(self, index)?;
            return Ok(has_norms.then(|| HeadNorms { query: norm.clone(), key: Some(norm), rule }));
        }
        let Some(width) = width.filter(|_| self.config.latent.is_none()) else { return Ok(None) };
        let norm = |site, count| parts.head_norm(site, (count, width));
        let makes_keys = self.family.key_block(self.config, index) == index;
        let key = norm(NormSite::Key, key_heads)?.filter(|_| makes_keys);
        match (norm(NormSite::Query, heads)?, key) {
            (Some(query), key) if key.is_some() || !makes_keys => Ok(Some(HeadNorms { query, key, rule })),
            (None, None) if self.may_lack_head_norms() => Ok(None),
            _ => Err(ForwardError::missing(parts.place(), "norm of queries or keys")),
        }
    }

    /// An RMS norm without weights.
    pub(super) fn plain_rms(&self) -> NormLayer {
        NormLayer { kind: NormKind::Rms, weight: Vec::new(), bias: Vec::new(), eps: self.eps() }
    }

    /// Some families have these norms only where config.json says so.
    fn may_lack_head_norms(&self) -> bool {
        let listed = self.family.norms.iter().any(|(site, _)| *site == NormSite::Query);
        !listed || !self.family.math.has_query_key_norms(self.config)
    }

    fn attention_scale(&self) -> Result<f32, ForwardError> {
        let rope = &self.config.rope.main;
        let (width, factor) = match &self.config.latent {
            Some(latent) => (latent.nope_dim + latent.rope_dim, attention_scale_of_yarn(rope)),
            None => (self.head_dim()?, 1.0),
        };
        Ok(match self.family.math.attention_scale {
            AttentionScale::HeadDim => (factor / (width as f64).sqrt()) as f32,
            AttentionScale::StatedForAttention(key) => match self.config.attention_number(key)? {
                Some(scale) => scale as f32,
                None => (1.0 / (width as f64).sqrt()) as f32,
            },
            AttentionScale::InverseRootOf(key) => 1.0 / self.number(key)?.sqrt(),
            AttentionScale::Multiplier(key) => self.number(key)?,
            AttentionScale::One => 1.0,
        })
    }

    /// The rotary embeddings: that of ordinary layers, then that of sliding ones if it differs.
    pub(super) fn rotaries(
        &self,
        images: Option<&ImageLayers>,
        grids: Option<&GridLayers>,
    ) -> Result<Vec<Rotary>, ForwardError> {
        if let Some(grids) = grids.filter(|_| self.turns_by_grid()) {
            let theta = self.config.rope.main.theta.unwrap_or(10_000.0);
            return Ok(vec![Rotary::of_grid(theta, self.head_dim()?, grids.order)?]);
        }
        if let (Positions::RotaryOfPatches, Some(images)) = (self.positions_rule(), images) {
            let rope = &self.config.rope.main;
            let theta = self.need(rope.theta, "rope_theta")?;
            return Ok(vec![Rotary::of_patches(theta, self.head_dim()?, images.learned_rows(), images.grid())?]);
        }
        let Positions::Rotary { partial, .. } = self.positions_rule() else { return Ok(Vec::new()) };
        let both = std::iter::once(&self.config.rope.main).chain(self.config.rope.sliding.as_ref());
        let rule = |(at, parameters): (usize, &RopeParameters)| {
            let alpha = parameters.alpha.filter(|_| self.family.math.rotary_alpha);
            let dim = self.rotary_dim(parameters, partial, at > 0)?;
            Rotary::new(&RopeParameters { alpha, ..parameters.clone() }, dim, self.config.max_positions)
        };
        both.enumerate().map(rule).collect()
    }

    pub(super) fn rotary_dim(&self, rope: &RopeParameters, partial: f32, sliding: bool) -> Result<usize, ForwardError> {
        if let Some(latent) = &self.config.latent {
            return Ok(latent.rope_dim);
        }
        let layers = 0..self.network.blocks().len();
        let mut alike = layers.filter(|index| rules::is_sliding(self, *index).is_ok_and(|is| is == sliding));
        let width = match alike.next().filter(|_| self.family.math.full_heads) {
            Some(index) => self.need(self.head_width(index, sliding)?, "head_dim")?,
            None => self.head_dim()?,
        };
        if rope.kind.as_deref() == Some("proportional") {
            return Ok(width);
        }
        let dim = rope.turning_components(width, partial);
        match dim <= width {
            true => Ok(dim),
            false => {
                Err(ForwardError::unsupported(format!("rotary embeddings of {dim} components in heads of {width}")))
            }
        }
    }

    pub(super) fn rotary(&self, index: usize, sliding: bool) -> Result<Option<(usize, Pairing)>, ForwardError> {
        if self.positions_rule() == Positions::RotaryOfPatches || self.turns_by_grid() {
            return Ok(Some((0, Pairing::Halves)));
        }
        let Positions::Rotary { pairing, layers, .. } = self.positions_rule() else { return Ok(None) };
        let at = usize::from(sliding && self.config.rope.sliding.is_some());
        Ok(rules::is_rotary(self, layers, index)?.then_some((at, pairing)))
    }

    /// A small tensor of a block that the family names, by the end of its name.
    pub(super) fn parameter(&self, block: usize, end: &str, length: usize) -> Result<Option<Vector>, ForwardError> {
        self.sized_parameter(block, end, Some(length))
    }

    /// A small tensor outside the blocks that the family names, by the end of its name.
    pub(super) fn trunk_parameter(&self, end: &str) -> Option<usize> {
        let mut both = self.tensors.meta().iter().zip(self.network.places());
        both.position(|(tensor, place)| *place == Place::Parameter && tensor.name.ends_with(end))
    }

    /// What the names of all tensors of a block begin with.
    pub(super) fn prefix_of_block(&self, block: usize) -> String {
        let path = self.family.path_in_trunk(self.config, block, "");
        format!("{}.{path}", self.network.trunk()).trim_start_matches('.').to_owned()
    }

    /// The same, of any length where none is given.
    pub(super) fn sized_parameter(
        &self,
        block: usize,
        end: &str,
        length: Option<usize>,
    ) -> Result<Option<Vector>, ForwardError> {
        let found = self.parameter_at(block, end);
        found.map(|tensor| self.tensors.vector(tensor, length)).transpose()
    }

    /// The position of a small tensor of a block.
    pub(super) fn parameter_at(&self, block: usize, end: &str) -> Option<usize> {
        let prefix = self.prefix_of_block(block);
        let mut both = self.tensors.meta().iter().zip(self.network.places());
        both.position(|(tensor, place)| {
            *place == Place::Parameter && tensor.name.starts_with(&prefix) && tensor.name.ends_with(end)
        })
    }
}

/// The positions of heads in the rows of one matrix for queries, keys and values.
fn fused_heads(rows: RowOrder, counts: [usize; 3], width: usize) -> Result<[HeadLayout; 3], ForwardError> {
    let [q, k, v] = counts;
    match rows {
        RowOrder::Stacked => {
            let starts = [0, q * width, (q + k) * width];
            let at = |i: usize| HeadLayout { start: starts[i], step: width, width, count: counts[i] };
            Ok([at(0), at(1), at(2)])
        }
        RowOrder::PerHead if q == k && k == v => {
            let at = |i: usize| HeadLayout { start: i * width, step: 3 * width, width, count: q };
            Ok([at(0), at(1), at(2)])
        }
        order => Err(ForwardError::unsupported(format!("queries, keys and values in the order {order:?}"))),
    }
}
