//! Positions within the shifts of an NPU. The position of a tensor is `-log2` of its power-of-two scale.
//!
//! With i, w, b, o the positions of input, weight, bias and output: a product needs `0 <= w + i - o <= 16` and
//! `min(0, -(24 - (8 + w + i - o))) <= w + i - b <= 15`; a sum inputs within 7 of each other and `-7 <= min(i) - o <= 25`; a
//! multiplication `0 <= i0 + i1 - o <= 32` (15 for x times the sigmoid of x); concatenation, pooling, padding and slicing one
//! position for all. Here a changed scale changes the codes too: they are computed from the weights afterwards.

use std::collections::BTreeMap;

use kvant_container::onnx::{GraphProto, NodeProto};

use crate::graph::{Index, float_attribute, is};
use crate::placement::Placement;
use crate::quantization::{position, power_of_two};
use crate::recipe::Align;
use crate::solution::Solution;

/// Rounds of adjustment at most: one rule may break another.
const ROUNDS: usize = 5;

/// Moves scales until every rule holds, or `ROUNDS` times. Returns the tensors whose scale was changed.
pub fn refine(graph: &GraphProto, placement: &Placement, align: Align, solution: &mut Solution) -> Vec<String> {
    let mut positions = Positions::new(graph, placement, solution);
    for _ in 0..ROUNDS {
        positions.changed = false;
        positions.align(align);
        positions.each(&["Add", "Sub"], Positions::shift_read);
        positions.each(&["Add", "Mul"], Positions::shift_write);
        positions.each(&["Conv", "Gemm"], Positions::shift_cut);
        positions.each(&["Conv", "Gemm"], Positions::shift_bias);
        positions.each(&["HardSigmoid"], Positions::hard_sigmoid);
        positions.each(&["Mul"], Positions::swish);
        if !positions.changed {
            break;
        }
    }
    positions.write(placement, solution)
}

struct Positions<'a> {
    graph: &'a GraphProto,
    placement: &'a Placement,
    index: Index,
    /// By the tensor that owns the scale.
    of: BTreeMap<String, i32>,
    before: BTreeMap<String, i32>,
    changed: bool,
}

/// The position nearest to `value` for which `low <= value <= high`.
fn limited(value: i32, low: i32, high: i32) -> Option<i32> {
    let inside = value.max(low).min(high);
    (inside != value).then_some(inside)
}

impl<'a> Positions<'a> {
    fn new(graph: &'a GraphProto, placement: &'a Placement, solution: &Solution) -> Self {
        let own = |name: &String| placement.activations.get(name).is_some_and(|a| a.provider.is_none());
        let activations = solution.activations.iter().filter(|(name, _)| own(name));
        let weights =
            solution.weights.iter().filter_map(|(name, w)| <[_; 1]>::try_from(&w[..]).ok().map(|[a]| (name, a)));
        let scales = activations.map(|(name, a)| (name, *a)).chain(weights);
        let of: BTreeMap<String, i32> = scales.map(|(name, a)| (name.clone(), position(f64::from(a.scale)))).collect();
        Self { graph, placement, index: Index::new(graph), before: of.clone(), of, changed: false }
    }

    /// The tensor whose scale a tensor has.
    fn owner(&self, tensor: &str) -> Option<String> {
        let provider = self.placement.activations.get(tensor).and_then(|a| a.provider.clone());
        let owner = provider.unwrap_or_else(|| tensor.to_owned());
        self.of.contains_key(&owner).then_some(owner)
    }

    fn get(&self, tensor: Option<&str>) -> Option<i32> {
        self.owner(tensor?).map(|owner| self.of[&owner])
    }

    fn set(&mut self, tensor: &str, position: i32) {
        let Some(owner) = self.owner(tensor) else { return };
        if self.of.insert(owner, position) != Some(position) {
            self.changed = true;
        }
    }

    fn each(&mut self, op_types: &[&str], rule: fn(&mut Self, &NodeProto)) {
        let graph = self.graph;
        graph.node.iter().filter(|node| op_types.iter().any(|op| is(node, op))).for_each(|node| rule(self, node));
    }

    /// The tensor that a node reads and that has a scale: pooling may read through the Pad it is fused with.
    fn input(&self, node: &NodeProto) -> Option<String> {
        let name = node.input.first()?;
        if self.owner(name).is_some() {
            return Some(name.clone());
        }
        let through = matches!(node.op_type(), "AveragePool" | "GlobalAveragePool");
        let maker = self.index.producer(name).filter(|_| through)?;
        self.graph.node[maker].input.first().filter(|name| self.owner(name).is_some()).cloned()
    }

    /// The tensor with a scale that a node makes, itself or by the activation function it is fused with.
    fn output(&self, node: &NodeProto) -> Option<String> {
        let name = node.output.first()?;
        if self.owner(name).is_some() {
            return Some(name.clone());
        }
        let reader = &self.graph.node[self.index.only_consumer(name)?];
        let fused = ["Relu", "LeakyRelu", "PRelu", "Clip"].iter().any(|op| is(reader, op));
        reader.output.first().filter(|name| fused && self.owner(name).is_some()).cloned()
    }

    fn align(&mut self, align: Align) {
        if align.concat {
            self.each(&["Concat"], Self::align_all);
        }
        if align.pool {
            self.each(&["MaxPool", "AveragePool", "GlobalAveragePool"], Self::align_first);
        }
        if align.pad {
            self.each(&["Pad"], Self::align_first);
        }
        if align.slice {
            self.each(&["Slice"], Self::align_first);
        }
    }

    /// All inputs and the output at the smallest position.
    fn align_all(&mut self, node: &NodeProto) {
        let Some(output) = self.output(node) else { return };
        let tensors: Vec<String> = node.input.iter().chain([&output]).cloned().collect();
        let Some(least) = tensors.iter().filter_map(|name| self.get(Some(name))).min() else { return };
        tensors.iter().for_each(|name| self.set(name, least));
    }

    fn align_first(&mut self, node: &NodeProto) {
        let (Some(input), Some(output)) = (self.input(node), self.output(node)) else { return };
        let Some(least) = [&input, &output].iter().filter_map(|name| self.get(Some(name))).min() else { return };
        self.set(&input, least);
        self.set(&output, least);
    }

    /// The positions of all inputs, if each has one.
    fn inputs(&self, node: &NodeProto) -> Option<Vec<i32>> {
        node.input.iter().map(|name| self.get(Some(name))).collect()
    }

    fn shift_read(&mut self, node: &NodeProto) {
        let Some(inputs) = self.inputs(node) else { return };
        let (Some(&least), Some(&most)) = (inputs.iter().min(), inputs.iter().max()) else { return };
        if most - least > 7
            && let Some(first) = inputs.iter().position(|&p| p == most)
        {
            self.set(&node.input[first], least + 7);
        }
    }

    fn shift_write(&mut self, node: &NodeProto) {
        let (Some(inputs), Some(output)) = (self.inputs(node), self.output(node)) else { return };
        let Some(o) = self.get(Some(&output)) else { return };
        let sum = node.op_type() == "Mul";
        let (base, low, high) = match sum {
            true => (inputs.iter().sum::<i32>(), 0, 32),
            false => (inputs.iter().copied().min().unwrap_or(o), -7, 25),
        };
        if let Some(shift) = limited(base - o, low, high) {
            self.set(&output, base - shift);
        }
    }

    /// Positions of the input, weight and output of a product.
    fn product(&self, node: &NodeProto) -> Option<(i32, i32, i32)> {
        let input = self.get(self.input(node).as_deref())?;
        let weight = self.get(node.input.get(1).map(String::as_str))?;
        Some((input, weight, self.get(self.output(node).as_deref())?))
    }

    fn shift_cut(&mut self, node: &NodeProto) {
        let Some((i, w, o)) = self.product(node) else { return };
        if let Some(cut) = limited(w + i - o, 0, 16) {
            self.set(&node.input[1], cut + o - i);
        }
    }

    fn shift_bias(&mut self, node: &NodeProto) {
        let Some((i, w, o)) = self.product(node) else { return };
        let Some(b) = self.get(node.input.get(2).map(String::as_str)) else { return };
        let leaky = self.index.consumers(&node.output[0]).iter().any(|&n| is(&self.graph.node[n], "LeakyRelu"));
        let low = if leaky { 0 } else { (w + i - o - 16).min(0) };
        if let Some(shift) = limited(w + i - b, low, 15) {
            self.set(&node.input[2], w + i - shift);
        }
    }

    fn hard_sigmoid(&mut self, node: &NodeProto) {
        let (Some(input), Some(output)) = (self.input(node), self.output(node)) else { return };
        let (Some(i), Some(o)) = (self.get(Some(&input)), self.get(Some(&output))) else { return };
        if !is_dpu_sigmoid(node) {
            return;
        }
        let i = i.clamp(0, 15);
        self.set(&input, i);
        self.set(&output, o.max(7).min(14 + i));
    }

    fn swish(&mut self, node: &NodeProto) {
        let [a, b] = &node.input[..] else { return };
        let sigmoid_of = |x: &str, y: &str| {
            let maker = self.index.producer(y).map(|i| &self.graph.node[i]);
            maker.is_some_and(|m| (is(m, "Sigmoid") || is(m, "HardSigmoid")) && m.input.first().is_some_and(|i| i == x))
        };
        if !sigmoid_of(a, b) && !sigmoid_of(b, a) {
            return;
        }
        let (Some(inputs), Some(output)) = (self.inputs(node), self.output(node)) else { return };
        let (sum, Some(o)) = (inputs.iter().sum::<i32>(), self.get(Some(&output))) else { return };
        if let Some(shift) = limited(sum - o, 0, 15) {
            self.set(&output, sum - shift);
        }
    }

    fn write(self, placement: &Placement, solution: &mut Solution) -> Vec<String> {
        let moved = self.of.into_iter().filter(|(name, position)| self.before.get(name) != Some(position));
        let mut names = Vec::new();
        for (name, position) in moved {
            let scale = power_of_two(position);
            if let Some(affine) = solution.activations.get_mut(&name) {
                affine.scale = scale;
            }
            if let Some([affine]) = solution.weights.get_mut(&name).map(Vec::as_mut_slice) {
                affine.scale = scale;
            }
            names.push(name);
        }
        solution.follow_providers(placement);
        names
    }
}

/// Returns whether a HardSigmoid is the one an NPU has: `clamp(x / 6 + 1/2)`.
pub(super) fn is_dpu_sigmoid(node: &NodeProto) -> bool {
    let near = |value: f32, wanted: f32| (value - wanted).abs() <= 1e-6;
    let alpha = float_attribute(node, "alpha").is_some_and(|alpha| near(alpha, 1.0 / 6.0));
    alpha && float_attribute(node, "beta").is_none_or(|beta| near(beta, 0.5))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limiting_moves_only_positions_outside_the_range() {
        assert_eq!([limited(-1, 0, 16), limited(17, 0, 16), limited(3, 0, 16)], [Some(0), Some(16), None]);
        assert_eq!([position(0.25), position(2.0)], [2, -1]);
    }
}
