//! What becomes of placed tensors once all nodes were seen: tensors between moves and fused operators are taken back, moved values
//! share a scale, superfluous clamps go. Not which tensors a node wants: see [`super::place`].

use std::collections::HashSet;

use kvant_container::onnx::NodeProto;

use super::fusion::{clip_bounds, is_fused};
use super::place::Placer;
use super::placed::Activation;
use crate::element::Element;
use crate::graph::{int_attribute, is};
use crate::quantization::ScaleKind;

impl Placer<'_> {
    /// Takes back the tensors that values only move between while nothing on either side computes with codes: rounding them
    /// would cost accuracy and gain nothing.
    pub(super) fn remove_idle_moves(&mut self) {
        let busy: HashSet<String> = self.computed.iter().map(|name| self.origin(name)).collect();
        let tensors = self.moved.keys().chain(self.moved.values());
        let idle: Vec<String> = tensors.filter(|name| !busy.contains(&self.origin(name))).cloned().collect();
        idle.iter().for_each(|name| {
            self.made.activations.remove(name);
        });
    }

    /// The origin of a tensor's values, through operators that only move them.
    fn origin(&self, tensor: &str) -> String {
        let mut origin = tensor;
        for _ in 0..self.moved.len() {
            match self.moved.get(origin) {
                Some(further) => origin = further,
                None => break,
            }
        }
        origin.to_owned()
    }

    /// Turns the blocks of shared exponents along the axis that a product sums over, or a Softmax. Where readers differ the
    /// last one decides.
    pub(super) fn turn_blocks(&mut self) {
        let graph = self.graph;
        for node in &graph.node {
            let transposed = |name: &str| int_attribute(node, name).unwrap_or(0) != 0;
            match node.op_type() {
                "MatMul" => {
                    self.turn(node.input.first(), -1);
                    self.turn(node.input.get(1), -2);
                    self.turn(node.output.first(), -1);
                }
                "Gemm" => {
                    self.turn(node.input.first(), i64::from(!transposed("transA")));
                    self.turn(node.input.get(1), i64::from(transposed("transB")));
                }
                "Softmax" => self.turn(node.input.first(), int_attribute(node, "axis").unwrap_or(-1)),
                _ => {}
            }
        }
    }

    fn turn(&mut self, tensor: Option<&String>, axis: i64) {
        let Some(name) = tensor else { return };
        if let Some(activation) = self.made.activations.get_mut(name) {
            activation.block_axis = axis;
        }
        let rank = self.index.constant(self.graph, name).map_or(0, |t| t.dims.len() as i64);
        if let Some(weight) = self.made.weights.get_mut(name).filter(|_| rank > 1) {
            weight.block_axis = if axis < 0 { rank + axis } else { axis };
        }
    }

    /// Takes back the tensors between operators that run as one.
    pub(super) fn remove_fused(&mut self) {
        let blocks = self.recipe.activation.is_some_and(|a| matches!(a.element, Element::Block(_)));
        if blocks {
            return;
        }
        for node in &self.graph.node {
            for output in &node.output {
                let fused = is_fused(self.graph, &self.index, node, output) && !self.index.is_output(output);
                if fused {
                    self.made.activations.remove(output);
                }
            }
        }
    }

    /// Gives moved values the scale of where they come from.
    pub(super) fn share(&mut self) {
        let moved = std::mem::take(&mut self.moved);
        for (output, input) in &moved {
            let mut origin = input;
            // A chain of moves ends at the first tensor that was computed.
            for _ in 0..moved.len() {
                match moved.get(origin).filter(|_| self.made.activations.contains_key(origin)) {
                    Some(further) => origin = further,
                    None => break,
                }
            }
            if let Some(provider) = self.provider(output, origin) {
                let Some(activation) = self.made.activations.get_mut(output) else { continue };
                activation.provider = Some(provider);
            }
        }
    }

    /// The origin, if its codes can be those of the output.
    fn provider(&self, output: &str, origin: &str) -> Option<String> {
        let wanted = self.made.activations.get(output)?.scheme;
        let from_activation = self.made.activations.get(origin).map(|a| a.scheme);
        let from_weight = self.made.weights.get(origin).filter(|w| w.axis.is_none()).map(|w| w.scheme);
        let found = from_activation.or(from_weight)?;
        (found.element == wanted.element && found.symmetric == wanted.symmetric).then(|| origin.to_owned())
    }

    /// Drops Relu and Clip where the lowest code is zero anyway.
    pub(super) fn drop_clamps(&mut self) {
        let asymmetric = self.recipe.activation.is_some_and(|a| !a.symmetric && a.element.is_integer());
        if !self.recipe.drop_activations || !asymmetric {
            return;
        }
        for (position, node) in self.graph.node.iter().enumerate() {
            if self.can_drop(node) {
                self.made.activations.remove(&node.input[0]);
                self.made.dropped.push(position);
            }
        }
    }

    fn can_drop(&self, node: &NodeProto) -> bool {
        let clamps = is(node, "Relu")
            || is(node, "Clip")
                && clip_bounds(self.graph, &self.index, node).is_some_and(|(min, max)| min <= 0.0 && max >= 0.0);
        let (Some(input), Some(output)) = (node.input.first(), node.output.first()) else { return false };
        let alone = self.index.only_consumer(input).is_some() && self.index.producer(input).is_some();
        let codes_clamp = |a: &Activation| {
            let s = a.scheme;
            a.provider.is_none()
                && a.range.is_none()
                && s.element.is_integer()
                && !s.symmetric
                // A channel that is never positive has a scale whose lowest code is not zero.
                && !s.per_channel
                && s.scale == ScaleKind::Float
        };
        clamps && alone && self.made.activations.get(output).is_some_and(codes_clamp)
    }
}
