//! The attention of one block: how queries, keys and values are projected, where their heads stand, what turns.

use super::parts::Parts;
use super::{NormLayer, Sources, rules};
use crate::forward::error::ForwardError;
use crate::forward::heads::HeadLayout;
use crate::forward::rope::{Rotary, attention_scale_of_yarn};
use crate::forward::tensors::{Projection, Vector};
use kvant_model::family::{AttentionScale, NormSite, Pairing, Positions, QueryKeyNorm, Role, RowOrder};
use kvant_model::model_config::LatentConfig;
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
    /// Positions that a token sees.
    pub window: Option<usize>,
    /// A further score per head.
    pub sinks: Option<Vector>,
    /// The output projection.
    pub output: Projection,
}

/// Norms of queries and keys.
#[derive(Clone, Debug)]
pub struct HeadNorms {
    /// That of queries.
    pub query: NormLayer,
    /// That of keys.
    pub key: NormLayer,
    /// Over what, and when.
    pub rule: QueryKeyNorm,
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
        /// The heads of queries, keys and values in its rows.
        heads: [HeadLayout; 3],
    },
    /// Through latents (arXiv 2405.04434).
    Latent(Box<LatentProjections>),
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
            Projections::Separate { heads, .. } | Projections::Fused { heads, .. } => heads.map(|h| h.width * h.count),
            Projections::Latent(latent) => {
                let turned = latent.sizes.nope_dim + latent.sizes.rope_dim;
                [turned, turned, latent.sizes.value_dim].map(|width| width * latent.heads)
            }
        }
    }

    /// All its linear layers.
    pub fn layers(&self) -> Vec<&Projection> {
        let mut layers = match &self.projections {
            Projections::Separate { layers, .. } => layers.iter().collect(),
            Projections::Fused { layer, .. } => vec![layer],
            Projections::Latent(latent) => {
                let queries = match &latent.query {
                    QueryLatent::None(layer) => vec![layer],
                    QueryLatent::Latent(down, _, up) => vec![down, up],
                };
                queries.into_iter().chain([&latent.down, &latent.up]).collect()
            }
        };
        layers.push(&self.output);
        layers
    }
}

impl<'a> Sources<'_, 'a> {
    pub(super) fn attention(&self, parts: &Parts<'_, '_, 'a>, index: usize) -> Result<AttentionLayer, ForwardError> {
        let heads = self.need(self.config.num_heads, "num_attention_heads")?;
        let sliding = rules::is_sliding(self, index)?;
        let (projections, value_dim) = match &self.config.latent {
            Some(latent) => (self.latent(parts, latent, heads)?, latent.value_dim),
            None => (self.projections(parts, heads)?, self.head_dim()?),
        };
        let window = self.config.sliding_window.filter(|_| sliding);
        Ok(AttentionLayer {
            projections,
            head_norms: self.head_norms(parts, heads)?,
            rotary: self.rotary(index, sliding)?,
            scale: self.attention_scale()?,
            cap: self.config.attention_softcap.map(|cap| cap as f32),
            window: if sliding { Some(self.need(window, "sliding_window")?) } else { None },
            sinks: self.parameter(index, "sinks", heads)?,
            output: parts.sized(Role::Output, self.hidden()?, heads * value_dim)?,
        })
    }

    fn head_dim(&self) -> Result<usize, ForwardError> {
        self.need(self.config.head_dim(), "head_dim")
    }

    fn projections(&self, parts: &Parts<'_, '_, 'a>, heads: usize) -> Result<Projections, ForwardError> {
        let (hidden, width) = (self.hidden()?, self.head_dim()?);
        let key_heads = self.need(self.config.num_kv_heads(), "num_key_value_heads")?;
        if !heads.is_multiple_of(key_heads) {
            return Err(ForwardError::unsupported(format!("{heads} query heads on {key_heads} key heads")));
        }
        let counts = [heads, key_heads, key_heads];
        if let Some(fused) = parts.find(|linear| linear.role == Role::QueryKeyValue) {
            let layer = parts.sized(Role::QueryKeyValue, (heads + 2 * key_heads) * width, hidden)?;
            return Ok(Projections::Fused { layer, heads: fused_heads(fused.rows, counts, width)? });
        }
        let layer = |role: Role, count: usize| parts.sized(role, count * width, hidden);
        let layers = [layer(Role::Query, heads)?, layer(Role::Key, key_heads)?, layer(Role::Value, key_heads)?];
        let heads = counts.map(|count| HeadLayout::packed(count, width));
        Ok(Projections::Separate { layers: Box::new(layers), heads })
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
            sizes: latent.clone(),
        })))
    }

    fn head_norms(&self, parts: &Parts<'_, '_, 'a>, heads: usize) -> Result<Option<HeadNorms>, ForwardError> {
        let rule = self.family.math.query_key_norm;
        let Some(width) = self.config.head_dim().filter(|_| self.config.latent.is_none()) else { return Ok(None) };
        let key_heads = self.need(self.config.num_kv_heads(), "num_key_value_heads")?;
        let norm = |site, count| parts.head_norm(site, (count, width));
        match (norm(NormSite::Query, heads)?, norm(NormSite::Key, key_heads)?) {
            (Some(query), Some(key)) => Ok(Some(HeadNorms { query, key, rule })),
            (None, None) if self.may_lack_head_norms() => Ok(None),
            _ => Err(ForwardError::missing(parts.place(), "norm of queries or keys")),
        }
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
            AttentionScale::InverseRootOf(key) => 1.0 / self.number(key)?.sqrt(),
            AttentionScale::Multiplier(key) => self.number(key)?,
            AttentionScale::One => 1.0,
        })
    }

    /// The rotary embeddings: that of ordinary layers, then that of sliding ones if it differs.
    pub(super) fn rotaries(&self) -> Result<Vec<Rotary>, ForwardError> {
        let Positions::Rotary { partial, .. } = self.family.math.positions else { return Ok(Vec::new()) };
        let both = std::iter::once(&self.config.rope.main).chain(self.config.rope.sliding.as_ref());
        let rule =
            |parameters| Rotary::new(parameters, self.rotary_dim(parameters, partial)?, self.config.max_positions);
        both.map(rule).collect()
    }

    fn rotary_dim(
        &self,
        rope: &kvant_model::model_config::RopeParameters,
        partial: f32,
    ) -> Result<usize, ForwardError> {
        if let Some(latent) = &self.config.latent {
            return Ok(latent.rope_dim);
        }
        let width = self.head_dim()?;
        let dim = rope.turning_components(width, partial);
        match dim <= width {
            true => Ok(dim),
            false => {
                Err(ForwardError::unsupported(format!("rotary embeddings of {dim} components in heads of {width}")))
            }
        }
    }

    fn rotary(&self, index: usize, sliding: bool) -> Result<Option<(usize, Pairing)>, ForwardError> {
        let Positions::Rotary { pairing, layers, .. } = self.family.math.positions else { return Ok(None) };
        let at = usize::from(sliding && self.config.rope.sliding.is_some());
        Ok(rules::is_rotary(self, layers, index)?.then_some((at, pairing)))
    }

    /// A small tensor of a block that the family names, by the end of its name.
    pub(super) fn parameter(&self, block: usize, end: &str, length: usize) -> Result<Option<Vector>, ForwardError> {
        let place = [self.network.trunk(), self.family.trunk.blocks, &block.to_string(), ""];
        let prefix = place.join(".").trim_start_matches('.').to_owned();
        let mut both = self.tensors.meta().iter().zip(self.network.places());
        let found = both.position(|(tensor, place)| {
            *place == Place::Parameter && tensor.name.starts_with(&prefix) && tensor.name.ends_with(end)
        });
        found.map(|tensor| self.tensors.vector(tensor, Some(length))).transpose()
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
