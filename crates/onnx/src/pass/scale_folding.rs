//! Products with constants go into the weights beside them. With a factor `c`:
//!
//! * behind Conv, ConvTranspose or Gemm `W x + b`, a factor for each channel or for all: weight `c W`, bias `c b`;
//! * before them, a factor for all: weight `c W`. Padding with zeros stays what it is;
//! * before a sum with a constant that they read, `W (c x + k)`: the sum is `x + k / c`, and the weight `c W`;
//! * behind another product with a constant, where one of both is a factor for all: one product.
//!
//! Div by a constant is a product with its reciprocal, and becomes one behind the product of a HardSwish: runtimes have integer kernels
//! for Mul and none for Div. Elsewhere they fuse Div with its neighbours, as they do the products of a GELU and of attention: these stay, and
//! no product goes into a MatMul. A weight that other nodes read as well stays, since it would be stored twice.

use kvant_container::onnx::{GraphProto, ModelProto, NodeProto};

use super::batch_norm_folding::{output_axis, scaled_outputs};
use super::bias_fusion::for_channels;
use super::pattern::other;
use super::weights::Floats;
use super::{Context, PassError};
use crate::graph::{Edit, Index, float_attribute, is, node, positional_input};

pub(super) fn run(model: &mut ModelProto, context: &Context<'_>) -> Result<usize, PassError> {
    let Some(graph) = model.graph.as_mut() else { return Ok(0) };
    let index = Index::new(graph);
    let mut edit = Edit::default();
    for position in 0..graph.node.len() {
        let place = Place { graph, index: &index };
        let Some(scale) = Scale::of(position, place) else { continue };
        let rewrite = place
            .behind(&scale)
            .or_else(|| place.before(&scale))
            .or_else(|| place.merged(&scale))
            .or_else(|| place.multiplied(&scale));
        let Some(rewrite) = rewrite.filter(|rewrite| edit.leaves(&rewrite.positions())) else { continue };
        rewrite.make(graph, &mut edit, context)?;
    }
    Ok(edit.apply(graph))
}

/// A product with a constant.
struct Scale<'g> {
    position: usize,
    /// What is multiplied.
    input: &'g str,
    output: &'g str,
    factor: Floats,
}

impl<'g> Scale<'g> {
    fn of(position: usize, Place { graph, index }: Place<'g>) -> Option<Self> {
        let node = &graph.node[position];
        let [left, right] = &node.input[..] else { return None };
        let constant = |name: &str| Floats::of(index, graph, name);
        let (input, factor) = match (is(node, "Mul"), is(node, "Div")) {
            (true, _) => match constant(right) {
                Some(factor) => (left, factor),
                None => (right, constant(left)?),
            },
            (_, true) => (left, constant(right)?.map(|divisor| 1.0 / divisor)),
            _ => return None,
        };
        // Constants alone are another pass's, and a mask is no factor.
        let is_variable = index.constant(graph, input).is_none();
        let is_factor = factor.values.iter().all(|factor| factor.is_normal() && factor.abs() < 1e6);
        (is_variable && is_factor).then_some(Self { position, input, output: node.output.first()?, factor })
    }

    /// The factor, if it is one for all and broadcasts nothing.
    fn number(&self) -> Option<f64> {
        let number = *self.factor.values.first()?;
        (self.factor.values.len() == 1 && self.factor.shape.len() <= 1).then_some(number)
    }
}

/// A change of a graph.
struct Rewrite {
    /// Nodes by position; without a node, the one there goes.
    replaced: Vec<(usize, Option<NodeProto>)>,
    constants: Vec<NewConstant>,
}

/// A constant for a node that is replaced.
struct NewConstant {
    /// The position of the node.
    node: usize,
    /// The input that it becomes.
    input: usize,
    /// The end of its name, which begins with that of the node's output.
    suffix: &'static str,
    values: Floats,
}

impl Rewrite {
    fn positions(&self) -> Vec<usize> {
        self.replaced.iter().map(|(position, _)| *position).collect()
    }

    /// Itself, unless a new constant would not be finite in its type.
    fn finite(self) -> Option<Self> {
        let all = self.constants.iter().flat_map(|constant| &constant.values.values);
        all.copied().all(f64::is_finite).then_some(self)
    }

    fn make(self, graph: &GraphProto, edit: &mut Edit, context: &Context<'_>) -> Result<(), PassError> {
        let mut constants = self.constants;
        for (position, replacement) in self.replaced {
            let Some(mut replacement) = replacement else {
                edit.remove(position);
                continue;
            };
            for constant in constants.extract_if(.., |constant| constant.node == position) {
                let name = edit.fresh(graph, &format!("{}_{}", replacement.output[0], constant.suffix));
                constant.values.into_tensor(&name, context)?.into_iter().for_each(|tensor| edit.add(tensor));
                replacement.input[constant.input] = name;
            }
            edit.replace(position, vec![replacement]);
        }
        Ok(())
    }
}

/// A graph while it is searched.
#[derive(Clone, Copy)]
struct Place<'g> {
    graph: &'g GraphProto,
    index: &'g Index,
}

impl<'g> Place<'g> {
    fn behind(self, scale: &Scale<'g>) -> Option<Rewrite> {
        let producer = self.index.producer(scale.input)?;
        self.index.only_consumer(scale.input)?;
        let layer = &self.graph.node[producer];
        let weight = self.own_weight(layer)?;
        let place @ (axis, group) = output_axis(layer)?;
        let channels = weight.shape.get(axis)?.checked_mul(group)?;
        // Channels are the second of a convolution's axes. A constant for a Gemm is a vector.
        let (rank, channel_axis) = if is(layer, "Gemm") { (1, 0) } else { (weight.shape.len(), 1) };
        let factor = for_channels(scale.factor.clone(), channels, rank, channel_axis)?;
        let bias = match positional_input(layer, 2) {
            Some(name) => Some(Floats::of(self.index, self.graph, name).filter(|bias| bias.shape == [channels])?),
            None => None,
        };
        let weight = scaled_outputs(&weight, place, &factor.values)?;
        let mut node = layer.clone();
        node.output = vec![scale.output.to_owned()];
        let constant = |input, suffix, values| NewConstant { node: scale.position, input, suffix, values };
        let bias = bias.map(|bias| constant(2, "bias", bias.scaled(0, |channel| factor.values[channel])));
        let constants = std::iter::once(constant(1, "weight", weight)).chain(bias).collect();
        Rewrite { replaced: vec![(producer, None), (scale.position, Some(node))], constants }.finite()
    }

    fn before(self, scale: &Scale<'g>) -> Option<Rewrite> {
        let number = scale.number().filter(|_| !self.is_gelu(scale.input))?;
        let next = self.index.only_consumer(scale.output)?;
        let sum = &self.graph.node[next];
        if !is(sum, "Add") {
            let mut layer = self.graph.node[next].clone();
            let weight = self.weight_for(&layer, scale.output)?.map(|weight| weight * number);
            layer.input[0] = scale.input.to_owned();
            let replaced = vec![(scale.position, None), (next, Some(layer))];
            let weight = NewConstant { node: next, input: 1, suffix: "weight", values: weight };
            return Rewrite { replaced, constants: vec![weight] }.finite();
        }
        let added = Floats::of(self.index, self.graph, other(sum, scale.output)?)?.map(|added| added / number);
        let sum_output = sum.output.first()?;
        let last = self.index.only_consumer(sum_output)?;
        let layer = self.graph.node[last].clone();
        let weight = self.weight_for(&layer, sum_output)?.map(|weight| weight * number);
        let sum = node("Add", sum.name(), &[scale.input, ""], &[sum_output]);
        let replaced = vec![(scale.position, None), (next, Some(sum)), (last, Some(layer))];
        let constants = vec![
            NewConstant { node: next, input: 1, suffix: "added", values: added },
            NewConstant { node: last, input: 1, suffix: "weight", values: weight },
        ];
        Rewrite { replaced, constants }.finite()
    }

    /// Whether a tensor is `x (1 + erf(...))`, or the same with tanh.
    fn is_gelu(self, tensor: &str) -> bool {
        let made_by = |tensor: &str, operators: &[&str]| {
            let maker = &self.graph.node[self.index.producer(tensor)?];
            operators.iter().any(|operator| is(maker, operator)).then_some(maker)
        };
        let is_curve = |sum: &NodeProto| sum.input.iter().any(|input| made_by(input, &["Erf", "Tanh"]).is_some());
        let product = made_by(tensor, &["Mul"]);
        product.is_some_and(|product| product.input.iter().any(|input| made_by(input, &["Add"]).is_some_and(is_curve)))
    }

    fn merged(self, scale: &Scale<'g>) -> Option<Rewrite> {
        self.index.only_consumer(scale.input)?;
        let first = Scale::of(self.index.producer(scale.input)?, self).filter(|first| !self.is_gelu(first.input))?;
        let factor = match (first.number(), scale.number()) {
            (Some(number), _) => scale.factor.map(|factor| factor * number),
            (_, Some(number)) => first.factor.map(|factor| factor * number),
            _ => return None,
        };
        self.product(scale, first.input, factor, vec![(first.position, None)])
    }

    /// The Div of `x * Clip(x + 3, 0, 6) / 6` as a product.
    fn multiplied(self, scale: &Scale<'g>) -> Option<Rewrite> {
        let own = &self.graph.node[scale.position];
        let product = &self.graph.node[self.index.producer(scale.input).filter(|_| is(own, "Div"))?];
        let is_clip = |name: &String| self.index.producer(name).is_some_and(|at| is(&self.graph.node[at], "Clip"));
        if !is(product, "Mul") || !product.input.iter().any(is_clip) {
            return None;
        }
        self.product(scale, scale.input, scale.factor.clone(), Vec::new())
    }

    /// A Mul of a tensor and a factor in place of a scale, and what else is replaced.
    fn product(
        self,
        scale: &Scale<'g>,
        input: &str,
        factor: Floats,
        mut replaced: Vec<(usize, Option<NodeProto>)>,
    ) -> Option<Rewrite> {
        let name = self.graph.node[scale.position].name();
        replaced.push((scale.position, Some(node("Mul", name, &[input, ""], &[scale.output]))));
        let factor = NewConstant { node: scale.position, input: 1, suffix: "factor", values: factor };
        Rewrite { replaced, constants: vec![factor] }.finite()
    }

    /// The constant weight that only this node reads.
    fn own_weight(self, layer: &NodeProto) -> Option<Floats> {
        let is_layer = ["Conv", "ConvTranspose", "Gemm"].iter().any(|operator| is(layer, operator));
        let name = positional_input(layer, 1).filter(|_| is_layer)?;
        self.index.only_consumer(name)?;
        Floats::of(self.index, self.graph, name)
    }

    /// The weight of a layer that reads a tensor, and nothing else of it, as its data.
    fn weight_for(self, layer: &NodeProto, data: &str) -> Option<Floats> {
        let reads_once = layer.input.iter().filter(|name| *name == data).count() == 1;
        // `alpha A B + beta C`: a factor of the product alone.
        let is_plain = !is(layer, "Gemm") || float_attribute(layer, "alpha").is_none_or(f32::is_normal);
        (reads_once && is_plain && layer.input.first().is_some_and(|first| first == data)).then_some(())?;
        self.own_weight(layer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::set_attribute;
    use crate::test_models::{floats, model};
    use kvant_container::onnx::TensorProto;

    fn folded(nodes: Vec<NodeProto>, constants: Vec<TensorProto>) -> (ModelProto, usize) {
        let mut model = model(12, nodes, constants, &["x"], &["y"]);
        let mut count = 0;
        while let found @ 1.. = run(&mut model, &Context::default()).unwrap() {
            count += found;
        }
        assert_eq!(crate::graph::check(&model), Ok(()));
        (model, count)
    }

    fn values(model: &ModelProto, name: &str) -> Vec<f64> {
        Floats::of(&Index::new(&model.graph), &model.graph, name).unwrap().values
    }

    #[test]
    fn factors_behind_a_convolution_scale_its_weight_and_bias() {
        let conv = || node("Conv", "c", &["x", "w", "b"], &["h"]);
        let constants =
            |k: TensorProto| vec![floats("w", &[2, 1, 1, 1], &[1.0, 10.0]), floats("b", &[2], &[3.0, 4.0]), k];
        let (one, count) =
            folded(vec![conv(), node("Mul", "m", &["k", "h"], &["y"])], constants(floats("k", &[1], &[2.0])));
        assert_eq!((count, values(&one, "y_weight"), values(&one, "y_bias")), (1, vec![2.0, 20.0], vec![6.0, 8.0]));
        assert_eq!(one.graph.node, [node("Conv", "c", &["x", "y_weight", "y_bias"], &["y"])]);
        let each = constants(floats("k", &[2, 1, 1], &[2.0, 4.0]));
        let (each, _) = folded(vec![conv(), node("Div", "m", &["h", "k"], &["y"])], each);
        assert_eq!((values(&each, "y_weight"), values(&each, "y_bias")), (vec![0.5, 2.5], vec![1.5, 1.0]));
        for shape in [&[2][..], &[2, 1, 1, 1], &[1, 1, 1, 2, 1]] {
            let nodes = vec![conv(), node("Mul", "m", &["h", "k"], &["y"])];
            assert_eq!(folded(nodes, constants(floats("k", shape, &[2.0, 4.0]))).1, 0, "{shape:?}");
        }
        let quotient = vec![conv(), node("Div", "m", &["k", "h"], &["y"])];
        assert_eq!(folded(quotient, constants(floats("k", &[1], &[2.0]))).1, 0);
    }

    #[test]
    fn factors_go_into_the_layer_that_reads_them_also_through_a_sum() {
        let mut conv = node("Conv", "c", &["h", "w"], &["y"]);
        set_attribute(&mut conv, "pads", &[1i64, 1, 1, 1][..]);
        let constants =
            || vec![floats("w", &[1, 1, 1, 1], &[3.0]), floats("k", &[1], &[2.0]), floats("a", &[1], &[5.0])];
        let (model, _) = folded(vec![node("Mul", "m", &["x", "k"], &["h"]), conv.clone()], constants());
        assert_eq!((model.graph.node.len(), values(&model, "y_weight")), (1, vec![6.0]));
        let sum = vec![node("Mul", "m", &["x", "k"], &["t"]), node("Add", "s", &["t", "a"], &["h"]), conv];
        let (model, _) = folded(sum, constants());
        assert_eq!(model.graph.node[0], node("Add", "s", &["x", "h_added"], &["h"]));
        assert_eq!((values(&model, "h_added"), values(&model, "y_weight")), (vec![2.5], vec![6.0]));
    }

    #[test]
    fn products_with_constants_become_one() {
        let nodes = vec![node("Div", "d", &["x", "six"], &["h"]), node("Mul", "m", &["w", "h"], &["y"])];
        let (model, count) = folded(nodes, vec![floats("six", &[], &[8.0]), floats("w", &[2], &[1.0, 2.0])]);
        assert_eq!((count, values(&model, "y_factor")), (1, vec![0.125, 0.25]));
        assert_eq!(model.graph.node, [node("Mul", "m", &["x", "y_factor"], &["y"])]);
    }

    #[test]
    fn division_of_a_hard_swish_becomes_a_product() {
        let hard_swish = |clip: &str| {
            let sum = node("Add", "a", &["x", "three"], &["s"]);
            let clip = node(clip, "c", &["s", "zero", "six"], &["r"]);
            vec![sum, clip, node("Mul", "m", &["x", "r"], &["h"]), node("Div", "d", &["h", "six"], &["y"])]
        };
        let constants =
            || [("zero", 0.0), ("three", 3.0), ("six", 8.0)].map(|(name, value)| floats(name, &[], &[value]));
        let (model, count) = folded(hard_swish("Clip"), constants().into());
        assert_eq!((count, values(&model, "y_factor")), (1, vec![0.125]));
        assert_eq!(model.graph.node[3], node("Mul", "d", &["h", "y_factor"], &["y"]));
        assert_eq!(folded(hard_swish("Where"), constants().into()).1, 0);
    }

    #[test]
    fn products_stay_that_others_read_too_or_whose_weight_they_do() {
        let product = || node("Mul", "m", &["x", "k"], &["h"]);
        let constants = || vec![floats("w", &[1, 1], &[3.0]), floats("k", &[1], &[2.0])];
        let read_twice = vec![product(), node("Gemm", "c", &["h", "w"], &["y"]), node("Relu", "r", &["h"], &["z"])];
        assert_eq!(folded(read_twice, constants()).1, 0);
        let shared =
            vec![product(), node("MatMul", "c", &["h", "w"], &["t"]), node("MatMul", "d", &["t", "w"], &["y"])];
        assert_eq!(folded(shared, constants()).1, 0);
        let squared = vec![product(), node("Gemm", "c", &["h", "h"], &["y"])];
        assert_eq!(folded(squared, constants()).1, 0);
        let zero = vec![floats("w", &[1, 1], &[3.0]), floats("k", &[1], &[0.0])];
        assert_eq!(folded(vec![product(), node("Gemm", "c", &["h", "w"], &["y"])], zero).1, 0);
        let kept = vec![product(), node("MatMul", "c", &["h", "w"], &["y"])];
        assert_eq!(folded(kept, constants()).1, 0);
    }

    #[test]
    fn factor_of_a_gelu_stays_for_runtimes_that_fuse_it() {
        let nodes = |curve: &str| {
            let curve = node(curve, "e", &["x"], &["e"]);
            let product = node("Mul", "p", &["x", "s"], &["p"]);
            let rest = [node("Mul", "m", &["p", "k"], &["h"]), node("Gemm", "c", &["h", "w"], &["y"])];
            [curve, node("Add", "s", &["e", "k"], &["s"]), product].into_iter().chain(rest).collect::<Vec<_>>()
        };
        let constants = || vec![floats("w", &[1, 1], &[3.0]), floats("k", &[1], &[0.5])];
        assert_eq!(["Erf", "Tanh", "Sigmoid"].map(|curve| folded(nodes(curve), constants()).1), [0, 0, 1]);
    }
}
