//! Multi-head latent attention (arXiv 2405.04434) as nodes. The cache holds whole keys and values, not latents.

use super::builder::Value;
use super::decoder::Writer;
use super::error::OnnxExportError;
use super::heads::HeadsOf;
use kvant_forward::forward::HeadLayout;
use kvant_forward::forward::blueprint::{AttentionLayer, LatentProjections, QueryLatent};

impl Writer<'_, '_> {
    /// Queries, keys and values.
    pub(super) fn latent(
        &mut self,
        layer: &AttentionLayer,
        latent: &LatentProjections,
        x: &Value,
    ) -> Result<[HeadsOf; 3], OnnxExportError> {
        let sizes = &latent.sizes;
        let (nope, rope, wide, rank) = (sizes.nope_dim, sizes.rope_dim, sizes.value_dim, sizes.key_value_rank);
        let queries = self.latent_queries(&latent.query, x)?;
        let down = self.linear(&latent.down, x)?;
        let compressed = self.builder.slice(&down, -1, 0, rank, 1);
        let compressed = self.norm(&latent.norm, &compressed, rank, &[rank]);
        let up = self.linear(&latent.up, &compressed)?;
        let row = latent.heads * (nope + wide);
        let packed = HeadLayout::packed(latent.heads, nope + wide);
        let values = self.heads(&up, row, packed.part(nope, wide));
        let still = self.heads(&up, row, packed.part(0, nope));
        let turning = self.heads(&down, rank + rope, HeadLayout { start: rank, step: rope, width: rope, count: 1 });
        let turning = self.maybe_turned(layer, &turning);
        let shape = self.builder.integers(&[1, 1, latent.heads as i64, rope as i64]);
        let turning = self.builder.binary("Expand", &turning, &shape);
        let keys = self.builder.concat(&[&still.value, &turning], -1);
        let width = nope + rope;
        let all = self.heads(&queries, latent.heads * width, HeadLayout::packed(latent.heads, width));
        let queries = self.partly_turned(layer, &all, nope);
        Ok([HeadsOf { value: queries, ..all }, HeadsOf { value: keys, count: latent.heads, width }, values])
    }

    fn latent_queries(&mut self, query: &QueryLatent, x: &Value) -> Result<Value, OnnxExportError> {
        let first = self.linear(query.first(), x)?;
        let QueryLatent::Latent(down, norm, up) = query else { return Ok(first) };
        let normed = self.norm(norm, &first, down.rows, &[down.rows]);
        self.linear(up, &normed)
    }

    fn maybe_turned(&mut self, layer: &AttentionLayer, heads: &HeadsOf) -> Value {
        match layer.rotary {
            Some(rotary) => self.rotated(rotary, heads),
            None => heads.value.clone(),
        }
    }

    /// Heads whose components from `start` on are turned.
    fn partly_turned(&mut self, layer: &AttentionLayer, heads: &HeadsOf, start: usize) -> Value {
        let still = self.builder.slice(&heads.value, -1, 0, start, 1);
        let turning = self.builder.slice(&heads.value, -1, start, heads.width, 1);
        let turning = HeadsOf { value: turning, count: heads.count, width: heads.width - start };
        let turned = self.maybe_turned(layer, &turning);
        self.builder.concat(&[&still, &turned], -1)
    }
}
