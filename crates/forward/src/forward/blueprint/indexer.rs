//! What chooses the keys that a token attends to (DeepSeek V3.2).

use super::parts::Parts;
use super::{NormLayer, Sources};
use crate::forward::error::ForwardError;
use crate::forward::tensors::Projection;
use kvant_model::family::{NormSite, Pairing, Role};

/// The indexer of a block: see [`kvant_model::family::Math::indexer`].
#[derive(Clone, Debug)]
pub struct IndexerLayer {
    /// Queries, from the query latent.
    pub query: Projection,
    /// Keys, one head.
    pub key: Projection,
    /// Their norm.
    pub norm: NormLayer,
    /// The weight of each head.
    pub weights: Projection,
    /// What turns together in the first components of each head.
    pub pairing: Pairing,
    /// How many these are.
    pub turning: usize,
    /// Heads of queries.
    pub heads: usize,
    /// Width of a head.
    pub width: usize,
    /// The most keys that a token attends to.
    pub most: usize,
}

impl IndexerLayer {
    /// All its linear layers.
    pub fn layers(&self) -> [&Projection; 3] {
        [&self.query, &self.key, &self.weights]
    }
}

impl<'a> Sources<'_, 'a> {
    pub(super) fn indexer(
        &self,
        parts: &Parts<'_, '_, 'a>,
        index: usize,
    ) -> Result<Option<IndexerLayer>, ForwardError> {
        let Some(pairing) = self.family.math.indexer else { return Ok(None) };
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
            key: parts.sized(Role::IndexKey, width, self.hidden()?)?,
            norm,
            weights: parts.sized(Role::IndexWeights, heads, self.hidden()?)?,
            pairing,
            turning: latent.rope_dim,
            heads,
            width,
            most,
        }))
    }
}
