//! The feed-forward network of one block as nodes, dense or a mixture of experts.

use super::activation::{gated, plain};
use super::builder::{Attribute, Value};
use super::decoder::Writer;
use super::error::OnnxExportError;
use kvant_forward::forward::blueprint::{FeedForward, FirstLayers, Mixture, Mlp};
use kvant_model::family::RowOrder;

impl Writer<'_, '_> {
    /// The feed-forward branch on normed rows `x` of `[batch, sequence, width]`.
    pub(super) fn feed_forward(&mut self, network: &FeedForward, x: &Value) -> Result<Value, OnnxExportError> {
        match network {
            FeedForward::Dense(mlp) => self.mlp(mlp, x),
            FeedForward::Mixture(mixture) => self.mixture(mixture, x),
            FeedForward::Absent => Err(OnnxExportError::unsupported("blocks without a feed-forward network")),
        }
    }

    fn mlp(&mut self, mlp: &Mlp, x: &Value) -> Result<Value, OnnxExportError> {
        let hidden = match &mlp.first {
            FirstLayers::Plain(up) => {
                let up = self.linear(up, x)?;
                plain(&mut self.builder, mlp.activation, &up)?
            }
            FirstLayers::Gated(gate, up) => {
                let (gate, up) = (self.linear(gate, x)?, self.linear(up, x)?);
                gated(&mut self.builder, mlp.activation, &gate, &up)?
            }
            FirstLayers::Fused(both, order) => {
                let (rows, all) = (self.linear(both, x)?, both.rows);
                let builder = &mut self.builder;
                let (gate, up) = match order {
                    RowOrder::Interleaved => (builder.slice(&rows, -1, 0, all, 2), builder.slice(&rows, -1, 1, all, 2)),
                    RowOrder::Stacked | RowOrder::PerHead | RowOrder::PerGroup => {
                        (builder.slice(&rows, -1, 0, all / 2, 1), builder.slice(&rows, -1, all / 2, all, 1))
                    }
                };
                gated(builder, mlp.activation, &gate, &up)?
            }
        };
        self.linear(&mlp.down, &hidden)
    }

    /// Every expert works on the rows that its router gives it.
    fn mixture(&mut self, mixture: &Mixture, x: &Value) -> Result<Value, OnnxExportError> {
        let width = mixture.router.columns;
        let rows = self.builder.reshape(x, &[-1, width as i64]);
        let logits = self.linear(&mixture.router, &rows)?;
        let shares = self.shares(mixture, &logits)?;
        let mut out = match &mixture.shared {
            Some(shared) => self.shared(mixture, shared, &rows)?,
            None => {
                let zero = self.builder.number(0.0);
                let least = self.builder.binary("Min", &rows, &zero);
                self.builder.binary("Max", &least, &zero)
            }
        };
        for (index, expert) in mixture.experts.iter().enumerate() {
            out = self.routed(expert, index, (&rows, &shares), &out)?;
        }
        let shape = self.builder.unary("Shape", x);
        Ok(self.builder.binary("Reshape", &out, &shape))
    }

    /// `out` with what one expert adds to the rows that have a share of it.
    fn routed(
        &mut self,
        expert: &Mlp,
        index: usize,
        (rows, shares): (&Value, &Value),
        out: &Value,
    ) -> Result<Value, OnnxExportError> {
        let which = self.builder.integer(index as i64);
        let share = self.builder.node("Gather", &[shares, &which], &[("axis", Attribute::Int(1))]);
        let places = self.builder.unary("NonZero", &share);
        let places = self.builder.transpose(&places, &[1, 0]);
        let taken = self.builder.binary("GatherND", rows, &places);
        let made = self.mlp(expert, &taken)?;
        let weights = self.builder.binary("GatherND", &share, &places);
        let weights = self.builder.unsqueeze(&weights, &[1]);
        let made = self.builder.binary("Mul", &made, &weights);
        Ok(self.builder.node("ScatterND", &[out, &places, &made], &[("reduction", Attribute::Text("add"))]))
    }

    fn shared(&mut self, mixture: &Mixture, shared: &Mlp, rows: &Value) -> Result<Value, OnnxExportError> {
        let out = self.mlp(shared, rows)?;
        let Some(gate) = &mixture.shared_gate else { return Ok(out) };
        let gate = self.linear(gate, rows)?;
        let gate = self.builder.unary("Sigmoid", &gate);
        Ok(self.builder.binary("Mul", &out, &gate))
    }
}
