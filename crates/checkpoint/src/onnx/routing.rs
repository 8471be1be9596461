//! The choice of experts as nodes: a matrix `[rows, experts]` of shares, 0 where an expert is not chosen. The rules are those of
//! [`Routing`].

use super::builder::{Attribute, Value};
use super::decoder::Writer;
use super::error::OnnxExportError;
use kvant_forward::forward::blueprint::Mixture;
use kvant_model::family::Routing;

/// The experts of every row, best first: `[rows, k]` each.
struct Chosen {
    weights: Value,
    experts: Value,
}

impl Writer<'_, '_> {
    /// The shares of all experts.
    pub(super) fn shares(&mut self, mixture: &Mixture, logits: &Value) -> Result<Value, OnnxExportError> {
        if mixture.score_cap.is_some() {
            return Err(OnnxExportError::unsupported("soft-caps on the scores of experts"));
        }
        let grouped = mixture.groups.1 < mixture.groups.0;
        let chosen = match mixture.rule {
            Routing::SoftmaxThenTop => {
                let scores = self.softmax(logits);
                let chosen = self.top(mixture, &scores);
                self.divided(chosen)
            }
            Routing::SoftmaxThenTopIfNormalised => {
                let scores = self.softmax(logits);
                let chosen = self.top(mixture, &scores);
                if mixture.normalise { self.divided(chosen) } else { chosen }
            }
            Routing::TopThenSoftmax => {
                let chosen = self.top(mixture, logits);
                Chosen { weights: self.softmax(&chosen.weights), ..chosen }
            }
            Routing::SoftmaxGroups if !grouped => {
                let scores = self.softmax(logits);
                let chosen = self.top(mixture, &scores);
                self.scaled(mixture, chosen)
            }
            Routing::SigmoidTop => {
                let chosen = self.corrected(mixture, logits);
                self.divided(chosen)
            }
            Routing::SigmoidGroups if !grouped => {
                let chosen = self.corrected(mixture, logits);
                let chosen = if mixture.normalise { self.divided(chosen) } else { chosen };
                self.scaled(mixture, chosen)
            }
            rule if grouped => {
                return Err(OnnxExportError::unsupported(format!("routing by {rule}, with groups of experts")));
            }
            rule => return Err(OnnxExportError::unsupported(format!("routing by {rule}"))),
        };
        let zero = self.builder.number(0.0);
        let none = self.builder.binary("Min", logits, &zero);
        let none = self.builder.binary("Max", &none, &zero);
        let axis = [("axis", Attribute::Int(1))];
        Ok(self.builder.node("ScatterElements", &[&none, &chosen.experts, &chosen.weights], &axis))
    }

    fn softmax(&mut self, x: &Value) -> Value {
        self.builder.node("Softmax", &[x], &[("axis", Attribute::Int(-1))])
    }

    fn top(&mut self, mixture: &Mixture, scores: &Value) -> Chosen {
        let count = self.builder.integers(&[mixture.per_token as i64]);
        let [weights, experts] = self.builder.nodes("TopK", &[scores, &count], &[("axis", Attribute::Int(-1))]);
        Chosen { weights, experts }
    }

    /// The best by sigmoid and correction, weighed by the sigmoid alone.
    fn corrected(&mut self, mixture: &Mixture, logits: &Value) -> Chosen {
        let scores = self.builder.unary("Sigmoid", logits);
        let ranks = match &mixture.correction {
            Some(correction) => {
                let values = self.decoder.tensors().values(correction);
                let correction = self.builder.numbers(&values, &[values.len()]);
                self.builder.binary("Add", &scores, &correction)
            }
            None => scores.clone(),
        };
        let chosen = self.top(mixture, &ranks);
        let axis = [("axis", Attribute::Int(1))];
        let weights = self.builder.node("GatherElements", &[&scores, &chosen.experts], &axis);
        Chosen { weights, ..chosen }
    }

    fn divided(&mut self, chosen: Chosen) -> Chosen {
        let axes = self.builder.integers(&[-1]);
        let sum = self.builder.node("ReduceSum", &[&chosen.weights, &axes], &[("keepdims", Attribute::Int(1))]);
        let small = self.builder.number(1e-20);
        let sum = self.builder.binary("Add", &sum, &small);
        Chosen { weights: self.builder.binary("Div", &chosen.weights, &sum), ..chosen }
    }

    fn scaled(&mut self, mixture: &Mixture, chosen: Chosen) -> Chosen {
        Chosen { weights: self.builder.scaled(&chosen.weights, mixture.scale), ..chosen }
    }
}
