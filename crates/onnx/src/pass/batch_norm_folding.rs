//! BatchNormalization goes into the weights of its neighbour. With `m = scale / sqrt(variance + epsilon)` and a result
//! `m * (x - mean) + bias` for each channel:
//!
//! * behind Conv, ConvTranspose or Gemm `W x + b`: weight `m W`, bias `m (b - mean) + bias`;
//! * before Conv without padding, or Gemm: weight `W m`, bias `b + W (bias - m mean)`. With padding the border would differ.
//!
//! Names of the new constants are the output's with `_weight` and `_bias`, as onnxslim (and so AMD Quark) makes them.

use kvant_container::onnx::{GraphProto, ModelProto, NodeProto};

use super::weights::Floats;
use super::{Context, PassError};
use crate::graph::{
    Edit, Index, float_attribute, int_attribute, ints_attribute, is, positional_input, string_attribute,
};

pub(super) fn run(model: &mut ModelProto, context: &Context<'_>) -> Result<usize, PassError> {
    let Some(graph) = model.graph.as_mut() else { return Ok(0) };
    let index = Index::new(graph);
    let mut edit = Edit::default();
    for (position, node) in graph.node.iter().enumerate().filter(|(_, node)| is(node, "BatchNormalization")) {
        let Some(norm) = Norm::of(node, &index, graph) else { continue };
        if let Some((neighbour, fused)) = behind(&norm, node, &index, graph) {
            if edit.leaves(&[position, neighbour]) {
                edit.remove(neighbour);
                fused.put(position, &node.output[0], context, (graph, &mut edit))?;
            }
        } else if let Some((neighbour, fused)) = before(&norm, node, &index, graph)
            && edit.leaves(&[position, neighbour])
        {
            edit.remove(position);
            let output = fused.node.output[0].clone();
            fused.put(neighbour, &output, context, (graph, &mut edit))?;
        }
    }
    Ok(edit.apply(graph))
}

/// The scale and offset of BatchNormalization for each channel.
pub(super) struct Norm {
    /// `scale / sqrt(variance + epsilon)`.
    pub(super) factor: Floats,
    pub(super) mean: Floats,
    pub(super) bias: Floats,
}

impl Norm {
    /// Reads a node in inference mode whose parameters are all constant.
    pub(super) fn of(node: &NodeProto, index: &Index, graph: &GraphProto) -> Option<Self> {
        let training = int_attribute(node, "training_mode").unwrap_or(0) != 0;
        let spatial = int_attribute(node, "spatial").unwrap_or(1) != 0;
        let one_output = node.output.iter().skip(1).all(String::is_empty);
        if training || !spatial || !one_output {
            return None;
        }
        let floats = |i: usize| Floats::of(index, graph, positional_input(node, i)?);
        let [scale, bias, mean, variance] = [floats(1)?, floats(2)?, floats(3)?, floats(4)?];
        let alike = |f: &Floats| f.shape == scale.shape && f.data_type == scale.data_type && f.shape.len() == 1;
        if ![&scale, &bias, &mean, &variance].into_iter().all(alike) {
            return None;
        }
        let epsilon = f64::from(float_attribute(node, "epsilon").unwrap_or(1e-5));
        let deviation = variance.map(|v| v + epsilon).map(f64::sqrt);
        Some(Self { factor: scale.with(&deviation, |a, b| a / b), mean, bias })
    }

    fn channels(&self) -> usize {
        self.factor.values.len()
    }

    /// `m (b - mean) + bias`.
    fn of_bias(&self, bias: &Floats) -> Floats {
        bias.with(&self.mean, |b, m| b - m).with(&self.factor, |v, f| v * f).with(&self.bias, |v, b| v + b)
    }

    /// `bias - m mean`: what the norm adds.
    fn shift(&self) -> Vec<f64> {
        let terms = self.bias.values.iter().zip(&self.factor.values).zip(&self.mean.values);
        terms.map(|((b, f), m)| b - f * m).collect()
    }
}

/// A node with new weights.
struct Fused {
    node: NodeProto,
    weight: Floats,
    bias: Floats,
}

impl Fused {
    fn put(
        mut self,
        position: usize,
        output: &str,
        context: &Context<'_>,
        (graph, edit): (&GraphProto, &mut Edit),
    ) -> Result<(), PassError> {
        let [weight, bias] = ["weight", "bias"].map(|suffix| edit.fresh(graph, &format!("{output}_{suffix}")));
        self.node.input.truncate(1);
        self.node.input.extend([weight.clone(), bias.clone()]);
        self.node.output = vec![output.to_owned()];
        let tensors = [self.weight.into_tensor(&weight, context)?, self.bias.into_tensor(&bias, context)?];
        tensors.into_iter().flatten().for_each(|tensor| edit.add(tensor));
        edit.replace(position, vec![self.node]);
        Ok(())
    }
}

/// The constant weight and bias of a node with one output, and its channels counted along the weight's axis; without a bias
/// it is zero.
fn weights(node: &NodeProto, channels: usize, index: &Index, graph: &GraphProto) -> Option<(Floats, Floats)> {
    let weight = Floats::of(index, graph, positional_input(node, 1)?)?;
    let bias = match positional_input(node, 2) {
        Some(name) => Floats::of(index, graph, name)?,
        None => Floats::filled(weight.data_type, channels, 0.0),
    };
    // A Gemm may add a column, one number for each row.
    let is_row = bias.shape.last() == Some(&channels);
    let flat = Floats { shape: vec![channels], ..bias };
    (is_row && flat.values.len() == channels && flat.data_type == weight.data_type).then_some((weight, flat))
}

/// The weight's axis of the outputs of a node that computes `W x + b`, and its groups; only for what is folded into.
pub(super) fn output_axis(node: &NodeProto) -> Option<(usize, usize)> {
    let group = usize::try_from(int_attribute(node, "group").unwrap_or(1)).ok()?;
    match node.op_type() {
        "Conv" if is(node, "Conv") => Some((0, 1)),
        "ConvTranspose" if is(node, "ConvTranspose") => Some((1, group)),
        "Gemm" if is(node, "Gemm") && is_plain_gemm(node) => {
            Some((usize::from(int_attribute(node, "transB").unwrap_or(0) == 0), 1))
        }
        _ => None,
    }
}

/// `A B + C` without factors and with `A` as it comes.
fn is_plain_gemm(node: &NodeProto) -> bool {
    let one = |name| float_attribute(node, name).unwrap_or(1.0) == 1.0;
    one("alpha") && one("beta") && int_attribute(node, "transA").unwrap_or(0) == 0
}

fn behind(norm: &Norm, node: &NodeProto, index: &Index, graph: &GraphProto) -> Option<(usize, Fused)> {
    let input = positional_input(node, 0)?;
    let position = index.producer(input).filter(|_| index.only_consumer(input).is_some())?;
    let producer = &graph.node[position];
    let (axis, group) = output_axis(producer)?;
    let channels = norm.channels();
    let (weight, bias) = weights(producer, channels, index, graph)?;
    if weight.data_type != norm.factor.data_type || weight.shape.get(axis)?.checked_mul(group)? != channels {
        return None;
    }
    let weight = scaled_outputs(&weight, (axis, group), &norm.factor.values)?;
    Some((position, Fused { node: producer.clone(), weight, bias: norm.of_bias(&bias) }))
}

/// A weight times a factor for each output channel. These are along an axis, once for each group: what [`output_axis`] gives.
pub(super) fn scaled_outputs(weight: &Floats, (axis, group): (usize, usize), factor: &[f64]) -> Option<Floats> {
    match group {
        1 => Some(weight.scaled(axis, |channel| factor[channel])),
        _ => grouped(weight, group, factor),
    }
}

/// The weight of a grouped ConvTranspose is `[inputs, outputs of a group, ...]`: inputs of a group follow each other.
fn grouped(weight: &Floats, group: usize, factor: &[f64]) -> Option<Floats> {
    let (inputs, outputs) = (weight.shape[0], weight.shape[1]);
    let inner: usize = weight.shape[2..].iter().product();
    let each = inputs.checked_div(group).filter(|each| each * group == inputs)?;
    let flat = Floats { shape: vec![inputs * outputs, inner], ..weight.clone() };
    let scaled = flat.scaled(0, |i| factor[i / outputs / each * outputs + i % outputs]);
    Some(Floats { shape: weight.shape.clone(), ..scaled })
}

fn before(norm: &Norm, node: &NodeProto, index: &Index, graph: &GraphProto) -> Option<(usize, Fused)> {
    let position = index.only_consumer(node.output.first()?)?;
    let reader = &graph.node[position];
    let reads_once = reader.input.iter().filter(|name| **name == node.output[0]).count() == 1;
    if reader.input.first() != node.output.first() || !reads_once {
        return None;
    }
    let (axis, group) = match reader.op_type() {
        "Conv" if is(reader, "Conv") && has_no_padding(reader) => {
            (1, usize::try_from(int_attribute(reader, "group").unwrap_or(1)).ok()?)
        }
        "Gemm" if is(reader, "Gemm") && is_plain_gemm(reader) => {
            (usize::from(int_attribute(reader, "transB").unwrap_or(0) != 0), 1)
        }
        _ => return None,
    };
    let outputs = *Floats::of(index, graph, positional_input(reader, 1)?)?.shape.get(1 - axis)?;
    let (weight, bias) = weights(reader, outputs, index, graph)?;
    if weight.data_type != norm.factor.data_type || weight.shape.get(axis)?.checked_mul(group)? != norm.channels() {
        return None;
    }
    let inputs = NormInputs { axis, outputs, group };
    let shifted = inputs.added(&weight, &norm.shift());
    let bias = bias.with(&Floats { values: shifted, ..bias.clone() }, |a, b| a + b);
    let weight = inputs.scaled(&weight, &norm.factor.values);
    let mut node = reader.clone();
    node.input[0].clone_from(&graph.node[index.producer(&reader.input[0])?].input[0]);
    Some((position, Fused { node, weight, bias }))
}

fn has_no_padding(node: &NodeProto) -> bool {
    let zero = ints_attribute(node, "pads").unwrap_or_default().iter().all(|&pad| pad == 0);
    zero && matches!(string_attribute(node, "auto_pad"), None | Some("NOTSET" | "VALID"))
}

/// Where the input channels of a weight lie: along an axis of 0 or 1, and shifted by groups of outputs.
struct NormInputs {
    axis: usize,
    outputs: usize,
    group: usize,
}

impl NormInputs {
    /// The output and the input channel of an element.
    fn of(&self, weight: &Floats, element: usize) -> (usize, usize) {
        let inner: usize = weight.shape[2..].iter().product();
        let (first, second) = (element / inner / weight.shape[1], element / inner % weight.shape[1]);
        let (output, input) = if self.axis == 1 { (first, second) } else { (second, first) };
        let group = output * self.group / self.outputs;
        (output, group * weight.shape[self.axis] + input)
    }

    fn scaled(&self, weight: &Floats, factor: &[f64]) -> Floats {
        let factors = (0..weight.values.len()).map(|i| factor[self.of(weight, i).1]).collect();
        weight.with(&Floats { values: factors, ..weight.clone() }, |w, f| w * f)
    }

    /// `W shift`, summed in 64 bits.
    fn added(&self, weight: &Floats, shift: &[f64]) -> Vec<f64> {
        let mut sums = vec![0.0; self.outputs];
        for (i, w) in weight.values.iter().enumerate() {
            let (output, input) = self.of(weight, i);
            sums[output] += w * shift[input];
        }
        sums
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{node, set_attribute};
    use crate::test_models::{floats, model};

    const NORM: [&str; 4] = ["s", "b", "m", "v"];

    /// Factor 2 and 4 of channels 0 and 1.
    fn norm() -> Vec<kvant_container::onnx::TensorProto> {
        let vector = |name: &str, values: [f32; 2]| floats(name, &[2], &values);
        vec![vector("s", [4.0, 4.0]), vector("b", [1.0, 2.0]), vector("m", [3.0, 5.0]), vector("v", [4.0, 1.0])]
    }

    fn bn(input: &str, output: &str) -> NodeProto {
        let mut bn = node("BatchNormalization", "bn", &[&[input], &NORM[..]].concat(), &[output]);
        set_attribute(&mut bn, "epsilon", 0.0f32);
        bn
    }

    fn folded(nodes: Vec<NodeProto>, more: Vec<kvant_container::onnx::TensorProto>) -> (ModelProto, usize) {
        let mut model = model(17, nodes, [norm(), more].concat(), &["x"], &["y"]);
        let count = run(&mut model, &Context::default()).unwrap();
        (model, count)
    }

    fn values(model: &ModelProto, name: &str) -> Vec<f64> {
        Floats::of(&Index::new(&model.graph), &model.graph, name).unwrap().values
    }

    #[test]
    fn batch_norm_after_a_convolution_scales_its_outputs() {
        let conv = node("Conv", "c", &["x", "w"], &["h"]);
        let (model, count) = folded(vec![conv, bn("h", "y")], vec![floats("w", &[2, 1, 1, 1], &[1.0, 10.0])]);
        assert_eq!(count, 1);
        assert_eq!(model.graph.node, [node("Conv", "c", &["x", "y_weight", "y_bias"], &["y"])]);
        assert_eq!(values(&model, "y_weight"), [2.0, 40.0]);
        assert_eq!(values(&model, "y_bias"), [1.0 - 6.0, 2.0 - 20.0]);
    }

    #[test]
    fn grouped_transposed_convolution_is_folded_per_group() {
        let mut conv = node("ConvTranspose", "c", &["x", "w"], &["h"]);
        set_attribute(&mut conv, "group", 2i64);
        let w = floats("w", &[4, 1, 1, 1], &[1.0, 2.0, 3.0, 4.0]);
        let (model, count) = folded(vec![conv, bn("h", "y")], vec![w]);
        assert_eq!((count, values(&model, "y_weight")), (1, vec![2.0, 4.0, 12.0, 16.0]));
    }

    #[test]
    fn batch_norm_before_a_convolution_scales_its_inputs() {
        let conv = node("Conv", "c", &["h", "w", "cb"], &["y"]);
        let more = vec![floats("w", &[1, 2, 1, 1], &[1.0, 10.0]), floats("cb", &[1], &[100.0])];
        let (model, count) = folded(vec![bn("x", "h"), conv.clone()], more.clone());
        assert_eq!((count, values(&model, "y_weight")), (1, vec![2.0, 40.0]));
        assert_eq!(values(&model, "y_bias"), [100.0 + (1.0 - 6.0) + 10.0 * (2.0 - 20.0)]);
        assert_eq!(model.graph.node[0].input[0], "x");
        let mut padded = conv;
        set_attribute(&mut padded, "pads", &[1i64, 1, 1, 1][..]);
        assert_eq!(folded(vec![bn("x", "h"), padded], more).1, 0);
    }

    #[test]
    fn gemm_is_folded_for_both_weight_orientations() {
        for (transposed, shape) in [(0i64, [1, 2]), (1, [2, 1])] {
            let mut gemm = node("Gemm", "g", &["x", "w"], &["h"]);
            set_attribute(&mut gemm, "transB", transposed);
            let (model, count) = folded(vec![gemm, bn("h", "y")], vec![floats("w", &shape, &[1.0, 10.0])]);
            assert_eq!((count, values(&model, "y_weight")), (1, vec![2.0, 40.0]));
        }
    }

    #[test]
    fn result_with_other_consumers_is_not_folded() {
        let conv = node("Conv", "c", &["x", "w"], &["h"]);
        let more = vec![floats("w", &[2, 1, 1, 1], &[1.0, 10.0])];
        let other = node("Relu", "r", &["h"], &["z"]);
        assert_eq!(folded(vec![conv, bn("h", "y"), other], more).1, 0);
    }
}
