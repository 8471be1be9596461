//! Norms as nodes.

use super::builder::{Attribute, Value};
use super::decoder::Writer;
use kvant_forward::forward::Vector;
use kvant_forward::forward::blueprint::NormLayer;

impl Writer<'_, '_> {
    /// The norm over the last axis of `x`. `shape` is that of the weight, which is broadcast over the axes before.
    pub(super) fn norm(&mut self, norm: &NormLayer, x: &Value, width: usize, shape: &[usize]) -> Value {
        let offset = norm.kind.offset();
        let tensors = self.decoder.tensors();
        let joined = |vectors: &[Vector]| {
            let values: Vec<f32> = vectors.iter().flat_map(|vector| tensors.values(vector)).collect();
            (!vectors.is_empty()).then_some(values)
        };
        let weight = joined(&norm.weight);
        let weight = weight.map(|values| values.into_iter().map(|value| value + offset).collect::<Vec<f32>>());
        let bias = joined(&norm.bias);
        let shape_of = |values: &[f32]| if values.len() > width { shape.to_vec() } else { vec![values.len()] };
        let centred = if norm.kind.subtracts_mean() { self.centred(x) } else { x.clone() };
        let mut out = self.over_root_mean_square(&centred, norm.eps);
        for (operator, values) in [("Mul", weight), ("Add", bias)] {
            if let Some(values) = values {
                let values = self.builder.numbers(&values, &shape_of(&values));
                out = self.builder.binary(operator, &out, &values);
            }
        }
        out
    }

    fn centred(&mut self, x: &Value) -> Value {
        let mean = self.mean(x);
        self.builder.binary("Sub", x, &mean)
    }

    fn over_root_mean_square(&mut self, x: &Value, eps: f32) -> Value {
        let squares = self.builder.binary("Mul", x, x);
        let mean = self.mean(&squares);
        let eps = self.builder.number(eps);
        let sum = self.builder.binary("Add", &mean, &eps);
        let root = self.builder.unary("Sqrt", &sum);
        self.builder.binary("Div", x, &root)
    }

    fn mean(&mut self, x: &Value) -> Value {
        let axes = self.builder.integers(&[-1]);
        self.builder.node("ReduceMean", &[x, &axes], &[("keepdims", Attribute::Int(1))])
    }
}
