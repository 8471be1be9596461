//! Pairs of layers with only operators between them that scale with each channel.

use kvant_container::onnx::{GraphProto, NodeProto};

use super::clip::Clip;
use crate::algorithm::channels::ChannelMap;
use crate::algorithm_settings::ClipRule;
use crate::graph::{Index, int_attribute, ints_attribute, is, is_standard, positional_input, string_attribute};
use crate::placement::scalar;

/// Two layers with only homogeneous operators between them.
#[derive(Debug, Clone)]
pub(super) struct Pair {
    pub head: Side,
    /// What is added to the head's channels: its bias, and constants behind it.
    pub biases: Vec<String>,
    pub tail: Side,
    pub channels: usize,
    /// The Clips between them.
    pub clips: Vec<Clip>,
}

/// A weight, and where its channels of the pair lie.
#[derive(Debug, Clone)]
pub(super) struct Side {
    pub weight: String,
    pub map: ChannelMap,
}

/// All pairs, by the position of their head.
pub(super) fn pairs(graph: &GraphProto, clip: ClipRule) -> Vec<Pair> {
    let index = Index::new(graph);
    let finder = Finder { graph, index, clip };
    (0..graph.node.len()).filter_map(|head| finder.pair(head)).collect()
}

struct Finder<'g> {
    graph: &'g GraphProto,
    index: Index,
    clip: ClipRule,
}

/// A tensor on the way from the head, and the axis of its channels.
struct Way {
    tensor: String,
    /// From the front: of convolutions 1. From the back: of products -1.
    axis: i64,
    rank: Option<usize>,
    channels: usize,
    biases: Vec<String>,
    clips: Vec<Clip>,
}

impl Finder<'_> {
    fn pair(&self, head: usize) -> Option<Pair> {
        let node = &self.graph.node[head];
        let weight = self.own(node.input.get(1)?)?;
        let dims = self.dims(&weight)?;
        let map = ChannelMap::outputs(node, &dims)?;
        let mut biases = Vec::new();
        if let Some(name) = positional_input(node, 2) {
            let bias = self.own(name)?;
            let elements: usize = self.dims(&bias)?.iter().product();
            biases.push((elements == map.channels).then_some(bias)?);
        }
        let convolution = is(node, "Conv") || is(node, "ConvTranspose");
        let (axis, rank) = if convolution { (1, Some(dims.len())) } else { (-1, None) };
        let tensor = node.output.first()?.clone();
        let way = Way { tensor, axis, rank, channels: map.channels, biases, clips: Vec::new() };
        let (way, tail) = self.follow(way)?;
        let node = &self.graph.node[tail];
        let tail_weight = self.own(node.input.get(1)?)?;
        let tail_map = ChannelMap::inputs(node, &self.dims(&tail_weight)?)?;
        let matches = tail_map.channels == map.channels && weight != tail_weight;
        matches.then_some(Pair {
            head: Side { weight, map },
            biases: way.biases,
            tail: Side { weight: tail_weight, map: tail_map },
            channels: map.channels,
            clips: way.clips,
        })
    }

    fn own(&self, name: &str) -> Option<String> {
        self.index.own_floats(self.graph, name).map(|tensor| tensor.name().to_owned())
    }

    fn dims(&self, name: &str) -> Option<Vec<usize>> {
        self.index.constant_shape(self.graph, name)
    }

    /// Follows a tensor through nothing but operators that scale with each channel, to a layer.
    fn follow(&self, mut way: Way) -> Option<(Way, usize)> {
        for _ in 0..self.graph.node.len() {
            let position = self.index.only_consumer(&way.tensor)?;
            let node = &self.graph.node[position];
            if !is_standard(node) {
                return None;
            }
            let first = node.input.first() == Some(&way.tensor);
            match node.op_type() {
                "Conv" | "ConvTranspose" => return (first && way.axis == 1).then_some((way, position)),
                "Gemm" | "MatMul" => return (first && way.axis == -1).then_some((way, position)),
                _ => way = self.pass(way, position, node, first)?,
            }
            way.tensor.clone_from(node.output.first()?);
        }
        None
    }

    /// What is left of the way behind a node; `None` where it does not scale with each channel.
    fn pass(&self, mut way: Way, position: usize, node: &NodeProto, first: bool) -> Option<Way> {
        match node.op_type() {
            "Add" if way.axis == -1 => {
                let other = node.input.iter().find(|name| **name != way.tensor)?;
                let bias = self.own(other)?;
                // Of one axis, so that it lies along the last one whatever the other's rank.
                (self.dims(&bias)? == [way.channels]).then(|| way.biases.push(bias))?;
            }
            _ if !first => return None,
            "Relu" | "LeakyRelu" | "Identity" | "Dropout" => {}
            "PRelu" => drop(self.index.constant(self.graph, node.input.get(1)?)?),
            // Over the axes behind the second: along the last one they mix channels.
            "MaxPool" | "AveragePool" | "GlobalAveragePool" | "GlobalMaxPool"
                if way.axis == 1 && node.output.len() == 1 => {}
            "Pad" if way.axis == 1 => (self.pads_zeros(node) && self.keeps_channels(node)).then_some(())?,
            "ReduceMean" if way.axis == 1 => way = self.reduced(way, node)?,
            "Clip" if self.clip != ClipRule::Keep => {
                let clip = Clip::of(self.graph, &self.index, position, way.axis, way.rank)?;
                way.clips.push(clip);
            }
            // Behind a global pool an image has one element: flattening it keeps the channels.
            "Flatten" if way.axis == 1 && int_attribute(node, "axis").unwrap_or(1) == 1 && self.pooled(&way.tensor) => {
                (way.axis, way.rank) = (-1, Some(2));
            }
            _ => return None,
        }
        Some(way)
    }

    /// Returns whether a Pad neither adds nor cuts channels, nor whole samples.
    fn keeps_channels(&self, node: &NodeProto) -> bool {
        let pads: Option<Vec<i64>> = match positional_input(node, 1) {
            Some(name) => self.index.integers(self.graph, name),
            None => ints_attribute(node, "pads").map(<[i64]>::to_vec),
        };
        // With axes of its own the numbers are not those of all axes.
        let all_axes = positional_input(node, 3).is_none();
        let still = |pads: &Vec<i64>| {
            let rank = pads.len() / 2;
            rank > 2 && [0, 1, rank, rank + 1].iter().all(|&at| pads[at] == 0)
        };
        all_axes && pads.as_ref().is_some_and(still)
    }

    fn pads_zeros(&self, node: &NodeProto) -> bool {
        let constant = string_attribute(node, "mode").is_none_or(|mode| mode == "constant");
        let value = match positional_input(node, 2) {
            Some(name) => scalar(self.graph, &self.index, name),
            None => Some(crate::graph::float_attribute(node, "value").unwrap_or(0.0)),
        };
        // Of a border that repeats values each channel has its own; zeros are zeros at any scale.
        !constant || value == Some(0.0)
    }

    /// A mean over all places of an image. Below opset 18 axes are an attribute, above an input.
    fn reduced(&self, mut way: Way, node: &NodeProto) -> Option<Way> {
        let rank = way.rank? as i64;
        let given = match positional_input(node, 1) {
            Some(name) => self.index.integers(self.graph, name)?,
            None => ints_attribute(node, "axes")?.to_vec(),
        };
        let mut axes: Vec<i64> = given.into_iter().map(|axis| if axis < 0 { axis + rank } else { axis }).collect();
        axes.sort_unstable();
        (axes == (2..rank).collect::<Vec<_>>()).then_some(())?;
        if int_attribute(node, "keepdims").unwrap_or(1) == 0 {
            (way.axis, way.rank) = (-1, Some(2));
        }
        Some(way)
    }

    fn pooled(&self, tensor: &str) -> bool {
        let maker = self.index.producer(tensor).map(|maker| &self.graph.node[maker]);
        maker.is_some_and(|node| is(node, "GlobalAveragePool") || is(node, "GlobalMaxPool") || is(node, "ReduceMean"))
    }
}
