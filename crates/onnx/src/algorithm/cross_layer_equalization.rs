//! Cross-layer equalization: channels of consecutive layers scaled so that both weights use their range, the function unchanged.
//!
//! Between a layer (weight `W0`, bias `b0`) and the next (`W1`) lies only what is positively homogeneous in each channel, so
//! `W0[c] * s[c], b0[c] * s[c]` and `W1[:, c] / s[c]` compute the same for any `s > 0`. With `r0[c]` and `r1[c]` the largest
//! magnitudes of the channel in both, `s[c] = sqrt(r1[c] / r0[c])` makes them equal. The bias counts in `r0` as much as the largest
//! bias is to the largest weight, so that no activation grows beyond the others. Layers in a chain affect each other: the rule is
//! repeated until nothing moves.
//! Source: Nagel et al., Data-Free Quantization Through Weight Equalization and Bias Correction, arXiv 1906.04721.

use kvant_container::onnx::{DataType, GraphProto, ModelProto, Spill, data_type, keep, shape};

use super::option::{AlgorithmOption, COUNT, SWITCH, count, option, switch};
use crate::error::QuantizeError;
use crate::graph::{Index, int_attribute, is, positional_input};
use crate::solution::values;

/// The settings.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Equalization {
    /// Rounds over all pairs, at most.
    pub steps: u32,
    /// Whether biases count among the weights of their channel.
    pub bias: bool,
}

impl Equalization {
    /// Until nothing moves, biases counted.
    pub const USUAL: Self = Self { steps: 20, bias: true };
}

/// What can be set.
pub(super) const OPTIONS: &[AlgorithmOption] = &[
    option!(Equalization.steps, "steps", COUNT, "rounds over all pairs of layers, at most", count),
    option!(Equalization.bias, "bias", SWITCH, "whether biases count among the weights of their channel", switch),
];

/// Scales closer to 1 than this are no movement.
const SETTLED: f32 = 1e-3;
/// Scales beyond this, or below its inverse, would move all of a channel's precision into one layer.
const LARGEST: f32 = 1e4;

/// Two layers with only homogeneous operators between them.
#[derive(Debug, Clone)]
struct Pair {
    head: Side,
    /// The head's bias, if it has one.
    bias: Option<String>,
    tail: Side,
    channels: usize,
}

/// A weight, and where its channels of the pair lie: `outer x channels x inner` elements.
#[derive(Debug, Clone)]
struct Side {
    weight: String,
    inner: usize,
}

impl Side {
    fn channel(&self, element: usize, channels: usize) -> usize {
        element / self.inner % channels
    }
}

/// Equalizes every pair of layers of a model. Returns the number of pairs.
///
/// Errors: weights whose bytes do not fit their shape.
pub fn equalize(model: &mut ModelProto, settings: Equalization, spill: Option<&Spill>) -> Result<usize, QuantizeError> {
    let Some(graph) = model.graph.as_mut() else { return Ok(0) };
    let pairs = pairs(graph);
    let mut weights = Weights::read(graph, &pairs)?;
    for _ in 0..settings.steps {
        let moved: Vec<bool> = pairs.iter().map(|pair| weights.equalize(pair, settings)).collect();
        if !moved.contains(&true) {
            break;
        }
    }
    weights.write(graph, spill)?;
    Ok(pairs.len())
}

fn pairs(graph: &GraphProto) -> Vec<Pair> {
    let index = Index::new(graph);
    (0..graph.node.len()).filter_map(|head| pair(graph, &index, head)).collect()
}

fn pair(graph: &GraphProto, index: &Index, head: usize) -> Option<Pair> {
    let node = &graph.node[head];
    let own = |name: &str| only_float(graph, index, name);
    let (axis, weight) = (head_axis(graph, head)?, own(node.input.get(1)?)?);
    let dims = dims(graph, index, &weight)?;
    let channels = dims[axis];
    let bias = match positional_input(node, 2) {
        Some(name) => Some(own(name)?),
        None => None,
    };
    let tail = tail(graph, index, node.output.first()?)?;
    let (tail_weight, tail_axis) = (own(graph.node[tail].input.get(1)?)?, tail_axis(graph, tail)?);
    let tail_dims = self::dims(graph, index, &tail_weight)?;
    let depthwise = int_attribute(&graph.node[tail], "group").unwrap_or(1) > 1;
    // A depthwise tail may make several outputs of each channel: they lie beside each other.
    let copies =
        if depthwise { tail_dims[0].checked_div(channels).filter(|n| n * channels == tail_dims[0])? } else { 1 };
    let inner = |dims: &[usize], axis: usize| dims[axis + 1..].iter().product::<usize>();
    let matches = if depthwise {
        int_attribute(&graph.node[tail], "group") == Some(channels as i64)
    } else {
        tail_dims[tail_axis] == channels
    };
    let head = Side { weight, inner: inner(&dims, axis).max(1) };
    let tail = Side { weight: tail_weight, inner: (inner(&tail_dims, tail_axis) * copies).max(1) };
    (matches && head.weight != tail.weight).then_some(Pair { head, bias, tail, channels })
}

/// A float constant that this reader has for itself.
fn only_float(graph: &GraphProto, index: &Index, name: &str) -> Option<String> {
    let tensor = index.constant(graph, name).filter(|t| data_type(t) == DataType::FLOAT)?;
    let alone = index.initializer(name).is_some() && index.only_consumer(name).is_some();
    alone.then(|| tensor.name().to_owned())
}

fn dims(graph: &GraphProto, index: &Index, name: &str) -> Option<Vec<usize>> {
    shape(index.constant(graph, name)?).ok()
}

/// The axis of a layer's weight that its output channels lie on.
fn head_axis(graph: &GraphProto, position: usize) -> Option<usize> {
    let node = &graph.node[position];
    let group = int_attribute(node, "group").unwrap_or(1);
    if is(node, "Conv") {
        return Some(0);
    }
    if is(node, "ConvTranspose") {
        return (group == 1).then_some(1);
    }
    is(node, "Gemm").then(|| usize::from(int_attribute(node, "transB").unwrap_or(0) == 0))
}

/// The axis of a layer's weight that its input channels lie on; of a depthwise one that of its outputs, which are the same.
fn tail_axis(graph: &GraphProto, position: usize) -> Option<usize> {
    let node = &graph.node[position];
    let group = int_attribute(node, "group").unwrap_or(1);
    match node.op_type() {
        "Conv" => Some(usize::from(group == 1)),
        "ConvTranspose" => (group == 1).then_some(0),
        "Gemm" if int_attribute(node, "transA").unwrap_or(0) == 0 => {
            Some(usize::from(int_attribute(node, "transB") == Some(1)))
        }
        _ => None,
    }
}

/// The layer that a tensor goes into through nothing but operators that scale with each channel.
fn tail(graph: &GraphProto, index: &Index, tensor: &str) -> Option<usize> {
    let mut tensor = tensor.to_owned();
    for _ in 0..graph.node.len() {
        let position = index.only_consumer(&tensor)?;
        let node = &graph.node[position];
        if node.input.first() != Some(&tensor) {
            return None;
        }
        match node.op_type() {
            "Conv" | "ConvTranspose" | "Gemm" => return Some(position),
            "Relu" | "LeakyRelu" | "MaxPool" | "AveragePool" | "GlobalAveragePool" | "Identity" => {}
            // Behind a global pool an image has one element: flattening it keeps the channels.
            "Flatten" if int_attribute(node, "axis").unwrap_or(1) == 1 && pooled(graph, index, &tensor) => {}
            _ => return None,
        }
        tensor.clone_from(node.output.first()?);
    }
    None
}

fn pooled(graph: &GraphProto, index: &Index, tensor: &str) -> bool {
    index.producer(tensor).is_some_and(|maker| is(&graph.node[maker], "GlobalAveragePool"))
}

/// The weights and biases of all pairs, in memory while they are scaled.
struct Weights(std::collections::BTreeMap<String, Vec<f32>>);

impl Weights {
    fn read(graph: &GraphProto, pairs: &[Pair]) -> Result<Self, QuantizeError> {
        let names = pairs.iter().flat_map(|p| [Some(&p.head.weight), Some(&p.tail.weight), p.bias.as_ref()]);
        let mut found = std::collections::BTreeMap::new();
        let index = Index::new(graph);
        for name in names.flatten() {
            if let Some(tensor) = index.constant(graph, name).filter(|_| !found.contains_key(name)) {
                found.insert(name.clone(), values(tensor)?);
            }
        }
        Ok(Self(found))
    }

    fn write(self, graph: &mut GraphProto, spill: Option<&Spill>) -> Result<(), QuantizeError> {
        for (name, values) in self.0 {
            let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
            let contents = keep(spill, bytes)?;
            if let Some(tensor) = graph.initializer.iter_mut().find(|t| t.name() == name) {
                tensor.float_data.clear();
                tensor.raw_data = Some(contents);
            }
        }
        Ok(())
    }

    /// Scales one pair. Whether anything moved.
    fn equalize(&mut self, pair: &Pair, settings: Equalization) -> bool {
        let head = self.ranges(&pair.head, pair.channels);
        let tail = self.ranges(&pair.tail, pair.channels);
        let head = if settings.bias { self.with_bias(head, pair) } else { head };
        let scale = |(r0, r1): (&f32, &f32)| {
            let usable = *r0 > 0.0 && *r1 > 0.0 && r0.is_finite() && r1.is_finite();
            if usable { (r1 / r0).sqrt().clamp(1.0 / LARGEST, LARGEST) } else { 1.0 }
        };
        let scales: Vec<f32> = head.iter().zip(&tail).map(scale).collect();
        self.scale(&pair.head, &scales, |value, s| value * s);
        self.scale(&pair.tail, &scales, |value, s| value / s);
        if let Some(bias) = pair.bias.as_ref().and_then(|name| self.0.get_mut(name)) {
            bias.iter_mut().zip(&scales).for_each(|(b, s)| *b *= s);
        }
        scales.iter().any(|s| (s - 1.0).abs() > SETTLED)
    }

    /// Largest magnitude of each channel.
    fn ranges(&self, side: &Side, channels: usize) -> Vec<f32> {
        let mut ranges = vec![0f32; channels];
        for (element, value) in self.0.get(&side.weight).into_iter().flatten().enumerate() {
            let channel = side.channel(element, channels);
            ranges[channel] = ranges[channel].max(value.abs());
        }
        ranges
    }

    /// Lets biases count, in the measure in which the largest of them is to the largest weight.
    fn with_bias(&self, ranges: Vec<f32>, pair: &Pair) -> Vec<f32> {
        let largest = |values: &[f32]| values.iter().fold(0f32, |m, v| m.max(v.abs()));
        let Some(bias) = pair.bias.as_ref().and_then(|name| self.0.get(name)) else { return ranges };
        let measure = largest(&ranges) / largest(bias).max(f32::MIN_POSITIVE);
        if bias.len() != ranges.len() || !measure.is_finite() {
            return ranges;
        }
        ranges.iter().zip(bias).map(|(range, b)| range.max(b.abs() * measure)).collect()
    }

    fn scale(&mut self, side: &Side, scales: &[f32], by: impl Fn(f32, f32) -> f32) {
        for (element, value) in self.0.get_mut(&side.weight).into_iter().flatten().enumerate() {
            *value = by(*value, scales[side.channel(element, scales.len())]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{node, set_attribute};
    use crate::test_models::{floats, model};

    fn chain() -> ModelProto {
        let mut depthwise = node("Conv", "dw", &["r", "w1", "b1"], &["d"]);
        set_attribute(&mut depthwise, "group", 2i64);
        let nodes = vec![
            node("Conv", "c", &["x", "w0", "b0"], &["a"]),
            node("Relu", "relu", &["a"], &["r"]),
            depthwise,
            node("GlobalAveragePool", "gap", &["d"], &["p"]),
            node("Flatten", "flatten", &["p"], &["f"]),
            node("Gemm", "fc", &["f", "w2"], &["y"]),
        ];
        let weights = vec![
            floats("w0", &[2, 1, 1, 1], &[100.0, 0.01]),
            floats("b0", &[2], &[1.0, 0.001]),
            floats("w1", &[2, 1, 1, 1], &[0.5, 20.0]),
            floats("b1", &[2], &[0.0, 0.0]),
            floats("w2", &[2, 1], &[3.0, 0.2]),
        ];
        model(17, nodes, weights, &["x"], &["y"])
    }

    fn weight(model: &ModelProto, name: &str) -> Vec<f32> {
        values(model.graph.initializer.iter().find(|t| t.name() == name).unwrap()).unwrap()
    }

    #[test]
    fn channels_become_alike_and_products_stay() {
        let (before, mut after) = (chain(), chain());
        assert_eq!(equalize(&mut after, Equalization::USUAL, None).unwrap(), 2);
        for channel in 0..2 {
            let product =
                |m: &ModelProto| ["w0", "w1", "w2"].map(|w| f64::from(weight(m, w)[channel])).iter().product::<f64>();
            assert!((product(&after) / product(&before) - 1.0).abs() < 1e-5);
        }
        let spread =
            |m: &ModelProto, w: &str| weight(m, w)[0].max(weight(m, w)[1]) / weight(m, w)[0].min(weight(m, w)[1]);
        assert!(spread(&before, "w0") > 9000.0 && spread(&after, "w0") < 200.0, "{}", spread(&after, "w0"));
    }

    #[test]
    fn a_clip_between_two_layers_keeps_them_apart() {
        let mut clipped = chain();
        clipped.graph.as_mut().unwrap().node[1].op_type = Some("Clip".to_owned());
        assert_eq!(equalize(&mut clipped, Equalization::USUAL, None).unwrap(), 1);
    }
}
