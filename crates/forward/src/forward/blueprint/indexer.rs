//! What chooses the keys that a token attends to (DeepSeek V3.2, MiniMax M3).

use super::parts::Parts;
use super::{NormLayer, Sources};
use crate::forward::error::ForwardError;
use crate::forward::tensors::Projection;
use kvant_model::family::{Indexer, NormSite, Pairing, Role};
use kvant_model::model_config::BlockIndexConfig;

/// The type of layers whose indexer chooses blocks of keys.
pub(super) const BLOCK_SPARSE: &str = "minimax_m3_sparse";

/// The indexer of a block: see [`kvant_model::family::Math::indexer`].
#[derive(Clone, Debug)]
pub struct IndexerLayer {
    /// Queries, from the query latent where there is one.
    pub query: Projection,
    /// Their norm.
    pub query_norm: Option<NormLayer>,
    /// Keys, one head.
    pub key: Projection,
    /// Their norm.
    pub norm: NormLayer,
    /// The choice.
    pub choice: IndexChoice,
    /// What turns together in the first components of each head.
    pub pairing: Pairing,
    /// How many these are.
    pub turning: usize,
    /// Heads of queries.
    pub heads: usize,
    /// Width of a head.
    pub width: usize,
}

/// What an indexer chooses.
#[derive(Clone, Debug)]
pub enum IndexChoice {
    /// Single keys, for all heads.
    Keys {
        /// The weight of each head.
        weights: Projection,
        /// The most keys that a token attends to.
        most: usize,
    },
    /// Blocks of keys, by each head for as many heads of attention.
    Blocks(BlockIndexConfig),
}

impl IndexerLayer {
    /// Its linear layers that read the hidden state, those of latent attention.
    pub fn beside_latents(&self) -> Vec<&Projection> {
        match &self.choice {
            IndexChoice::Keys { weights, .. } => vec![&self.key, weights],
            IndexChoice::Blocks(_) => vec![&self.key],
        }
    }

    /// All its linear layers.
    pub fn layers(&self) -> Vec<&Projection> {
        std::iter::once(&self.query).chain(self.beside_latents()).collect()
    }
}

impl<'a> Sources<'_, 'a> {
    pub(super) fn indexer(
        &self,
        parts: &Parts<'_, '_, 'a>,
        index: usize,
    ) -> Result<Option<IndexerLayer>, ForwardError> {
        let pairing = match self.family.math.indexer {
            None => return Ok(None),
            Some(Indexer::Blocks(pairing)) => return self.block_indexer(parts, index, pairing),
            Some(Indexer::Keys(pairing)) => pairing,
        };
        if self.config.item("indexer_types", index).and_then(serde_json::Value::as_str) == Some("shared") {
            return Err(ForwardError::unsupported("blocks that attend to keys which another one has chosen"));
        }
        let number = |key: &'static str| {
            let number = self.config.number(key)?.map(|number| number as usize).filter(|number| *number > 0);
            self.need(number, key)
        };
        let (heads, width, most) = (number("index_n_heads")?, number("index_head_dim")?, number("index_topk")?);
        let latent = self.need(self.config.latent.as_ref(), "kv_lora_rank")?;
        let rank = self.need(latent.query_rank, "q_lora_rank")?;
        if latent.rope_dim > width {
            let turning = latent.rope_dim;
            return Err(ForwardError::unsupported(format!("{turning} turning components in an indexer of {width}")));
        }
        let too_large = || ForwardError::unsupported("indexers beyond all sizes");
        let norm = parts.listed_norm(NormSite::IndexKey)?;
        let norm = norm.ok_or_else(|| ForwardError::missing(parts.place(), "norm of the keys of its indexer"))?;
        Ok(Some(IndexerLayer {
            query: parts.sized(Role::IndexQuery, heads.checked_mul(width).ok_or_else(too_large)?, rank)?,
            query_norm: None,
            key: parts.sized(Role::IndexKey, width, self.hidden()?)?,
            norm,
            choice: IndexChoice::Keys { weights: parts.sized(Role::IndexWeights, heads, self.hidden()?)?, most },
            pairing,
            turning: latent.rope_dim,
            heads,
            width,
        }))
    }

    /// The indexer of a block that chooses blocks of keys, if its type is that of such blocks.
    fn block_indexer(
        &self,
        parts: &Parts<'_, '_, 'a>,
        index: usize,
        pairing: Pairing,
    ) -> Result<Option<IndexerLayer>, ForwardError> {
        if self.config.layer_types.get(index).is_none_or(|kind| kind != BLOCK_SPARSE) {
            return Ok(None);
        }
        let sizes = self.need(self.config.block_index, "index_block_size")?;
        let BlockIndexConfig { heads, width, size, most, local } = sizes;
        let attends = self.need(self.config.heads_of_layer(index), "num_attention_heads")?;
        let turning = self.rotary_dim(&self.config.rope.main, 1.0, false)?;
        if heads == 0 || !attends.is_multiple_of(heads) {
            return Err(ForwardError::unsupported(format!("{attends} heads of attention on {heads} of an indexer")));
        }
        if turning > width {
            return Err(ForwardError::unsupported(format!("{turning} turning components in an indexer of {width}")));
        }
        if size == 0 || most == 0 || local > most {
            let blocks = format!("an indexer that chooses {most} blocks of {size} keys, {local} of them always");
            return Err(ForwardError::unsupported(blocks));
        }
        let norm = |site: NormSite, what: &str| {
            let missing = || ForwardError::missing(parts.place(), format!("norm of the {what} of its indexer"));
            parts.norm(site)?.ok_or_else(missing)
        };
        let too_large = || ForwardError::unsupported("indexers beyond all sizes");
        let rows = heads.checked_mul(width).ok_or_else(too_large)?;
        Ok(Some(IndexerLayer {
            query: parts.sized(Role::IndexQuery, rows, self.hidden()?)?,
            query_norm: Some(norm(NormSite::IndexQuery, "queries")?),
            key: parts.sized(Role::IndexKey, width, self.hidden()?)?,
            norm: norm(NormSite::IndexKey, "keys")?,
            choice: IndexChoice::Blocks(sizes),
            pairing,
            turning,
            heads,
            width,
        }))
    }
}
