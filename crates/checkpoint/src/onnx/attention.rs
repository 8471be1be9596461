//! Attention of one block as nodes: project, normalise, turn, append to the cache, attend, project back.

use super::builder::{Attribute, ShardShape, Value};
use super::decoder::Writer;
use super::error::OnnxExportError;
use super::heads::HeadsOf;
use kvant_container::onnx::DataType;
use kvant_forward::forward::blueprint::{AttentionLayer, Projections};
use kvant_model::family::QueryKeyNorm;

impl Writer<'_, '_> {
    /// The attention branch on normed rows `x`.
    pub(super) fn attention(
        &mut self,
        block: usize,
        layer: &AttentionLayer,
        x: &Value,
    ) -> Result<Value, OnnxExportError> {
        let [queries, keys, values] = self.projected(layer, x)?;
        let group = queries.count / keys.count.max(1);
        let split = [0, 0, keys.count as i64, group as i64, queries.width as i64];
        let grouped = self.builder.reshape(&queries.value, &split);
        // [batch, key heads, group, sequence, width]
        let q = self.builder.transpose(&grouped, &[0, 2, 3, 1, 4]);
        let k = self.cached(block, "key", &keys);
        let v = self.cached(block, "value", &values);
        let k = self.builder.transpose(&k, &[0, 1, 3, 2]);
        let (k, v) = (self.builder.unsqueeze(&k, &[2]), self.builder.unsqueeze(&v, &[2]));
        let scores = self.builder.binary("MatMul", &q, &k);
        let scores = self.builder.scaled(&scores, layer.scale);
        let scores = self.builder.capped(&scores, layer.cap);
        let mask = self.mask(layer.window);
        let scores = self.builder.binary("Add", &scores, &mask);
        let weights = self.probabilities(layer, &scores, (keys.count, group));
        let heads = self.builder.binary("MatMul", &weights, &v);
        let heads = self.builder.transpose(&heads, &[0, 3, 1, 2, 4]);
        let row = self.builder.reshape(&heads, &[0, 0, (queries.count * values.width) as i64]);
        self.linear(&layer.output, &row)
    }

    fn projected(&mut self, layer: &AttentionLayer, x: &Value) -> Result<[HeadsOf; 3], OnnxExportError> {
        let [mut queries, mut keys, values] = match &layer.projections {
            Projections::Separate { layers, heads } => {
                let [q, k, v] = &**layers;
                let rows = [self.linear(q, x)?, self.linear(k, x)?, self.linear(v, x)?];
                let widths = [q.rows, k.rows, v.rows];
                std::array::from_fn(|i| self.heads(&rows[i], widths[i], heads[i]))
            }
            Projections::Fused { layer, heads, .. } => {
                let rows = self.linear(layer, x)?;
                heads.map(|heads| self.heads(&rows, layer.rows, heads))
            }
            Projections::Queries { .. } => {
                return Err(OnnxExportError::unsupported("keys and values that blocks share"));
            }
            Projections::OfEncoder { .. } => return Err(OnnxExportError::unsupported("attention to an encoder")),
            Projections::KeysAsValues { .. } | Projections::Shared(_) => {
                return Err(OnnxExportError::unsupported("keys that are values"));
            }
            Projections::Latent(latent) => return self.latent(layer, latent, x),
        };
        let norms = layer.head_norms.as_ref();
        let after = norms.filter(|norms| norms.rule == QueryKeyNorm::PerHeadAfterRotary);
        let before = norms.filter(|norms| norms.rule != QueryKeyNorm::PerHeadAfterRotary);
        self.norm_heads(before, &mut queries, &mut keys);
        if let Some(rotary) = layer.rotary {
            queries.value = self.rotated(rotary, &queries);
            keys.value = self.rotated(rotary, &keys);
        }
        self.norm_heads(after, &mut queries, &mut keys);
        Ok([queries, keys, values])
    }

    /// Keys or values with those of the cache before them: `[batch, heads, total, width]`, an output of the graph.
    fn cached(&mut self, block: usize, what: &str, heads: &HeadsOf) -> Value {
        let shape = |length| {
            [
                ShardShape::Named("batch"),
                ShardShape::Fixed(heads.count),
                ShardShape::Named(length),
                ShardShape::Fixed(heads.width),
            ]
        };
        let past =
            self.builder.input(&format!("past_key_values.{block}.{what}"), DataType::FLOAT, &shape("past_sequence"));
        let new = self.builder.transpose(&heads.value, &[0, 2, 1, 3]);
        let all = self.builder.concat(&[&past, &new], 2);
        self.builder.output(&format!("present.{block}.{what}"), &all, DataType::FLOAT, &shape("total_sequence"));
        all
    }

    /// The softmax of scores; a further score per head takes part of it where there are sinks.
    fn probabilities(&mut self, layer: &AttentionLayer, scores: &Value, (key_heads, group): (usize, usize)) -> Value {
        let softmax = [("axis", Attribute::Int(-1))];
        let Some(sinks) = &layer.sinks else { return self.builder.node("Softmax", &[scores], &softmax) };
        let values = self.decoder.tensors().values(sinks);
        let sinks = self.builder.numbers(&values, &[1, key_heads, group, 1, 1]);
        let first = self.builder.slice(scores, -1, 0, 1, 1);
        let zero = self.builder.number(0.0);
        // Zeros of the scores' shape; a product would keep infinities as NaN.
        let column = self.builder.binary("Min", &first, &zero);
        let column = self.builder.binary("Max", &column, &zero);
        let column = self.builder.binary("Add", &column, &sinks);
        let with = self.builder.concat(&[&column, scores], -1);
        let weights = self.builder.node("Softmax", &[&with], &softmax);
        let last = i64::MAX as usize;
        self.builder.slice(&weights, -1, 1, last, 1)
    }
}
