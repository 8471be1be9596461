//! Attention of one block to keys of tokens in a window and to entries that were compressed from all tokens before (DeepSeek V4).

use super::parts::Parts;
use super::{AttentionLayer, NormLayer, Projections, Sources, rules};
use crate::forward::error::ForwardError;
use crate::forward::tensors::{Projection, Vector};
use kvant_model::family::{NormSite, Part, Role};
use kvant_model::model_config::{CompressedConfig, SPARSE_ENTRIES};

/// Projections of attention whose only key head is its values.
#[derive(Clone, Debug)]
pub struct SharedProjections {
    /// The query latent, and queries from it.
    pub query: [Projection; 2],
    /// The norm of the latent.
    pub latent_norm: NormLayer,
    /// That of each query.
    pub query_norm: NormLayer,
    /// Keys, which are values.
    pub key: Projection,
    /// Their norm.
    pub key_norm: NormLayer,
    /// Heads of queries.
    pub heads: usize,
    /// Width of a head.
    pub width: usize,
    /// How many of its last components turn.
    pub turning: usize,
    /// What makes entries of the tokens before.
    pub compressor: Option<Box<CompressorLayer>>,
    /// The layer that makes a latent of the outputs of each group of heads.
    pub output: Projection,
    /// Groups.
    pub groups: usize,
}

/// What makes entries of tokens. Of `n` tokens `j` of a window, with values `c_j`, scores `z_j` and a bias `b_j` for each place in the window,
/// the entry is `norm(sum_j softmax_j(z_j + b_j) c_j)`, channel by channel; its last components turn by the position of the window's first
/// token. Windows may overlap: values, scores and biases are then twice as wide, and an entry is that of the first halves of the window before
/// and of the second halves of its own window together.
#[derive(Clone, Debug)]
pub struct CompressorLayer {
    /// Entries that are keys and values.
    pub entries: EntryLayers,
    /// Tokens of a window.
    pub rate: usize,
    /// Whether windows overlap.
    pub overlaps: bool,
    /// What chooses the entries that a token attends to.
    pub index: Option<EntryIndex>,
}

/// The layers of one kind of entries.
#[derive(Clone, Debug)]
pub struct EntryLayers {
    /// The values.
    pub value: Projection,
    /// The scores.
    pub gate: Projection,
    /// The biases of places.
    pub bias: Vector,
    /// The norm.
    pub norm: NormLayer,
    /// Width of an entry.
    pub width: usize,
}

/// What chooses entries: those with the largest `sum_h w_h relu(q_h k)`, with keys `k` that are entries of their own.
#[derive(Clone, Debug)]
pub struct EntryIndex {
    /// The keys.
    pub entries: EntryLayers,
    /// Queries, from the query latent.
    pub query: Projection,
    /// The weight of each head.
    pub weights: Projection,
    /// Heads.
    pub heads: usize,
    /// Entries of a token at most.
    pub most: usize,
}

impl EntryLayers {
    fn layers(&self) -> [&Projection; 2] {
        [&self.value, &self.gate]
    }
}

impl CompressorLayer {
    /// Its linear layers that read the hidden state.
    pub fn first(&self) -> Vec<&Projection> {
        let index = self.index.iter();
        let of_index = index.flat_map(|index| index.entries.layers().into_iter().chain([&index.weights]));
        self.entries.layers().into_iter().chain(of_index).collect()
    }

    /// Its small tensors.
    pub fn vectors(&self) -> impl Iterator<Item = &Vector> {
        std::iter::once(&self.entries.bias).chain(self.index.iter().map(|index| &index.entries.bias))
    }

    /// Its norms.
    pub fn norms(&self) -> impl Iterator<Item = &NormLayer> {
        std::iter::once(&self.entries.norm).chain(self.index.iter().map(|index| &index.entries.norm))
    }

    /// Elements of what it reads of a token: values and scores of all kinds of entries.
    pub fn row(&self) -> usize {
        let index = self.index.iter().map(|index| 2 * index.entries.value.rows);
        2 * self.entries.value.rows + index.sum::<usize>()
    }

    /// Elements of an entry, its key for the choice included.
    pub fn entry(&self) -> usize {
        self.entries.width + self.index.as_ref().map_or(0, |index| index.entries.width)
    }
}

impl SharedProjections {
    /// All its linear layers but the last, which the block has.
    pub fn layers(&self) -> Vec<&Projection> {
        let compressor = self.compressor.iter();
        let compressor =
            compressor.flat_map(|layer| layer.first().into_iter().chain(layer.index.iter().map(|i| &i.query)));
        self.query.iter().chain([&self.key]).chain(compressor).chain([&self.output]).collect()
    }

    /// The layers that read the hidden state.
    pub fn first(&self) -> Vec<&Projection> {
        let compressor = self.compressor.iter().flat_map(|layer| layer.first());
        [&self.query[0], &self.key].into_iter().chain(compressor).collect()
    }

    /// Elements that are kept of so many tokens: keys, entries, and the tokens of two windows.
    pub fn cache_elements(&self, tokens: usize) -> usize {
        let entries = self.compressor.as_ref().map_or(0, |layer| {
            (tokens / layer.rate.max(1)).saturating_mul(layer.entry()).saturating_add(2 * layer.rate * layer.row())
        });
        (2 * self.width).saturating_mul(tokens).saturating_add(entries)
    }
}

impl<'a> Sources<'_, 'a> {
    /// The attention of a block of a model with compressed keys.
    pub(super) fn compressed_attention(
        &self,
        parts: &Parts<'_, '_, 'a>,
        index: usize,
    ) -> Result<AttentionLayer, ForwardError> {
        let sizes = self.need(self.config.compressed.as_ref(), "o_lora_rank")?;
        let heads = self.need(self.config.num_heads, "num_attention_heads")?;
        let width = self.need(self.config.head_dim(), "head_dim")?;
        let (hidden, sliding) = (self.hidden()?, rules::is_sliding(self, index)?);
        let too_large = || ForwardError::unsupported("heads of attention beyond all sizes");
        let rows = heads.checked_mul(width).ok_or_else(too_large)?;
        let CompressedConfig { query_rank: rank, output_groups: groups, output_rank, .. } = *sizes;
        if groups == 0 || !heads.is_multiple_of(groups) {
            return Err(ForwardError::unsupported(format!("{heads} heads in {groups} groups")));
        }
        let latents = groups.checked_mul(output_rank).ok_or_else(too_large)?;
        let rotary = self.rotary(index, sliding)?;
        let rotary = rotary.ok_or_else(|| ForwardError::unsupported("compressed keys without rotary embedding"))?;
        let rope = self.config.rope.sliding.as_ref().filter(|_| sliding).unwrap_or(&self.config.rope.main);
        let turning = self.rotary_dim(rope, 1.0, sliding)?;
        let norm = |site: NormSite, what: &str| {
            let missing = || ForwardError::missing(parts.place(), format!("norm of its {what}"));
            parts.norm(site)?.ok_or_else(missing)
        };
        let projections = SharedProjections {
            query: [parts.sized(Role::QueryDown, rank, hidden)?, parts.sized(Role::QueryUp, rows, rank)?],
            latent_norm: norm(NormSite::QueryLatent, "query latent")?,
            query_norm: self.plain_rms(),
            key: parts.sized(Role::KeyValue, width, hidden)?,
            key_norm: norm(NormSite::KeyValueLatent, "keys")?,
            heads,
            width,
            turning,
            compressor: self.compressor(parts, index, (sizes, turning))?.map(Box::new),
            output: parts.sized(Role::OutputDown, latents, rows / groups)?,
            groups,
        };
        let sinks = self.parameter(index, "attn_sink", heads)?;
        let sinks = sinks.ok_or_else(|| ForwardError::missing(parts.place(), "sinks of its attention"))?;
        let window = self.need(self.config.sliding_window, "sliding_window")?;
        Ok(AttentionLayer {
            projections: Projections::Shared(Box::new(projections)),
            head_norms: None,
            rotary: Some(rotary),
            scale: (1.0 / (width as f64).sqrt()) as f32,
            cap: None,
            window: Some(window),
            ahead: 0,
            chunk: None,
            in_windows: false,
            sinks: Some(sinks),
            biases: None,
            distances: None,
            clip: None,
            indexer: None,
            key_block: index,
            value_norm: None,
            value_scale: 1.0,
            key_scale: 1.0,
            growth: None,
            gates: None,
            heads_norm: None,
            output: parts.output(Part::Attention, hidden, latents)?,
        })
    }

    /// What makes entries in a block; none where it attends to its window only.
    fn compressor(
        &self,
        parts: &Parts<'_, '_, 'a>,
        index: usize,
        (sizes, turning): (&CompressedConfig, usize),
    ) -> Result<Option<CompressorLayer>, ForwardError> {
        let kind = self.config.layer_types.get(index).map(String::as_str);
        let overlaps = kind == Some(SPARSE_ENTRIES);
        let Some(rate) = kind.and_then(|kind| sizes.rate(kind)) else { return Ok(None) };
        let width = self.need(self.config.head_dim(), "head_dim")?;
        let entries = self.entry_layers(
            parts,
            (index, "attn.compressor.ape"),
            [Role::CompressedKey, Role::CompressedGate],
            (NormSite::CompressedKey, width, rate, overlaps),
        )?;
        let chooser = || -> Result<EntryIndex, ForwardError> {
            let CompressedConfig { index_heads: heads, index_width: width, index_most: most, query_rank, .. } = *sizes;
            if turning > width {
                return Err(ForwardError::unsupported(format!(
                    "{turning} turning components in an indexer of {width}"
                )));
            }
            let too_large = || ForwardError::unsupported("indexers beyond all sizes");
            Ok(EntryIndex {
                entries: self.entry_layers(
                    parts,
                    (index, "attn.indexer.compressor.ape"),
                    [Role::IndexKey, Role::IndexGate],
                    (NormSite::IndexKey, width, rate, overlaps),
                )?,
                query: parts.sized(Role::IndexQuery, heads.checked_mul(width).ok_or_else(too_large)?, query_rank)?,
                weights: parts.sized(Role::IndexWeights, heads, self.hidden()?)?,
                heads,
                most,
            })
        };
        let index = if overlaps { Some(chooser()?) } else { None };
        Ok(Some(CompressorLayer { entries, rate, overlaps, index }))
    }

    fn entry_layers(
        &self,
        parts: &Parts<'_, '_, 'a>,
        (index, path): (usize, &str),
        [value, gate]: [Role; 2],
        (site, width, rate, overlaps): (NormSite, usize, usize, bool),
    ) -> Result<EntryLayers, ForwardError> {
        let too_large = || ForwardError::unsupported("entries of keys beyond all sizes");
        let rows = if overlaps { width.checked_mul(2).ok_or_else(too_large)? } else { width };
        let places = rows.checked_mul(rate).ok_or_else(too_large)?;
        let bias = self.parameter(index, path, places)?;
        let norm = parts.norm(site)?;
        Ok(EntryLayers {
            value: parts.sized(value, rows, self.hidden()?)?,
            gate: parts.sized(gate, rows, self.hidden()?)?,
            bias: bias.ok_or_else(|| ForwardError::missing(parts.place(), format!("tensor `{path}`")))?,
            norm: norm.ok_or_else(|| ForwardError::missing(parts.place(), "norm of its compressed keys"))?,
            width,
        })
    }
}
