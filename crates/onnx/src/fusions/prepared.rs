//! A graph as ONNX Runtime has it before it chooses kernels for codes: every reader has its own DequantizeLinear, clamps that codes imply are gone,
//! pairs stand around what moves values, and int8 activations are uint8.

use std::collections::{HashMap, HashSet};

use kvant_container::onnx::{DataType, GraphProto, ModelProto, NodeProto, data_type, element_count, tensor_bytes};

use super::reshape_targets::idle_nodes;
use crate::graph::{
    Index, Names, STANDARD_DOMAIN, is, is_dequantize_linear, is_qdq, is_quantize_linear, is_standard, opset,
    positional_input,
};
use crate::kernel::linear::constant;
use crate::placement::clip_bounds;
use crate::shape::{Types, infer};

/// Operators over which pairs move.
const MOVED_OVER: &[&str] = &["MaxPool", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"];

/// The opset from which on MaxPool takes codes.
const MAX_POOL_OF_CODES: i64 = 12;

/// The graph.
pub(super) struct PreparedGraph {
    pub graph: GraphProto,
    /// The graph as it was.
    source: GraphProto,
    /// The node of the source that each is, or is a copy of.
    origins: Vec<usize>,
    /// Types of the source's tensors.
    types: Types,
    /// The version of the standard operators.
    opset: i64,
    /// Types of codes where they differ, or are new.
    codes: HashMap<String, DataType>,
    /// Codes that were int8 and are uint8.
    unsigned: HashSet<String>,
    /// Nodes that are gone.
    gone: HashSet<usize>,
    names: Names,
}

/// Where a tensor is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Edge {
    node: usize,
    input: usize,
}

/// The readers of tensors: one edge for each input, and what bodies read.
struct Edges {
    inputs: HashMap<String, Vec<Edge>>,
    index: Index,
}

impl Edges {
    fn of(prepared: &PreparedGraph) -> Self {
        let mut inputs: HashMap<String, Vec<Edge>> = HashMap::new();
        for (node, reader) in prepared.nodes() {
            for (input, name) in reader.input.iter().enumerate().filter(|(_, name)| !name.is_empty()) {
                inputs.entry(name.clone()).or_default().push(Edge { node, input });
            }
        }
        Self { inputs, index: Index::new(&prepared.graph) }
    }

    fn of_tensor(&self, tensor: &str) -> &[Edge] {
        self.inputs.get(tensor).map_or(&[], Vec::as_slice)
    }

    /// The one edge of a tensor that is no output of the graph.
    fn only(&self, tensor: &str) -> Option<Edge> {
        match self.of_tensor(tensor) {
            [one] if !self.index.is_output(tensor) => Some(*one),
            _ => None,
        }
    }
}

impl PreparedGraph {
    pub fn of(model: &ModelProto) -> Self {
        let graph = model.graph.as_ref().cloned().unwrap_or_default();
        let mut made = Self {
            origins: (0..graph.node.len()).collect(),
            names: Names::of(&graph),
            source: graph.clone(),
            graph,
            types: infer(model),
            opset: opset(model, STANDARD_DOMAIN).unwrap_or(1),
            codes: HashMap::new(),
            unsigned: HashSet::new(),
            gone: HashSet::new(),
        };
        made.drop_idle();
        made.gone.extend(idle_nodes(&made.graph, &made.types, made.opset));
        made.join_double_pairs();
        made.drop_clamps();
        made.give_each_its_own();
        made.move_backward();
        made.move_forward();
        made.make_unsigned();
        made
    }

    /// The node of the source that a node is, or is a copy of; None for one that is gone.
    pub fn original(&self, position: usize) -> Option<&NodeProto> {
        if self.gone.contains(&position) || !is_qdq(&self.graph.node[position]) {
            return None;
        }
        self.source.node.get(self.origins[position])
    }

    /// The nodes that are there.
    pub fn nodes(&self) -> impl Iterator<Item = (usize, &NodeProto)> {
        self.graph.node.iter().enumerate().filter(|(position, _)| !self.gone.contains(position))
    }

    /// The type of codes.
    pub fn code_type(&self, tensor: &str) -> Option<DataType> {
        self.codes.get(tensor).copied().or_else(|| self.types.data_type(tensor))
    }

    /// Returns whether codes are int8 in the source and uint8 now.
    pub fn became_unsigned(&self, tensor: &str) -> bool {
        self.unsigned.contains(tensor)
    }

    /// The number of dimensions of a tensor of the source.
    pub fn rank(&self, tensor: &str) -> Option<usize> {
        self.types.rank(tensor)
    }

    /// The scale and zero point of a pair: bytes of constants with one element each, in a pair with a zero point.
    pub fn parameters(&self, index: &Index, pair: &NodeProto) -> Option<[Vec<u8>; 2]> {
        let one = |at: usize| {
            let tensor = index.constant(&self.graph, positional_input(pair, at)?)?;
            let is_one = element_count(tensor).ok()? == 1;
            is_one.then(|| tensor_bytes(tensor).ok().map(|bytes| bytes.into_owned()))?
        };
        Some([one(1)?, one(2)?])
    }

    /// Whether the scale of a pair is one constant number, and its zero point is, or is left out.
    fn has_one_constant(&self, index: &Index, pair: &NodeProto) -> bool {
        let one = |at: usize| {
            positional_input(pair, at)
                .and_then(|name| index.constant(&self.graph, name))
                .map(element_count)
                .and_then(Result::ok)
        };
        one(1) == Some(1) && (positional_input(pair, 2).is_none() || one(2) == Some(1))
    }

    /// Takes out Identity, sums with zero, products with one, and what reads nothing but a known shape.
    fn drop_idle(&mut self) {
        let edges = Edges::of(self);
        let mut renamed: HashMap<String, String> = HashMap::new();
        let mut gone = Vec::new();
        for (position, node) in self.nodes() {
            let (Some(source), Some(output)) = (node.input.first(), node.output.first()) else { continue };
            let is_shape = is(node, "Shape") && self.types.known_shape(source).is_some();
            let is_plain = is(node, "Identity") || self.is_neutral(&edges.index, node);
            if is_shape {
                gone.push(position);
            } else if is_plain && !edges.index.is_output(output) && edges.index.producer(source).is_some() {
                renamed.insert(output.clone(), source.clone());
                gone.push(position);
            }
        }
        self.gone.extend(gone);
        for input in self.graph.node.iter_mut().flat_map(|node| &mut node.input) {
            while let Some(source) = renamed.get(input) {
                input.clone_from(source);
            }
        }
    }

    /// Returns whether a node adds zero or multiplies with one.
    fn is_neutral(&self, index: &Index, node: &NodeProto) -> bool {
        let neutral = match node.op_type() {
            "Add" | "Sub" => 0.0,
            "Mul" | "Div" => 1.0,
            _ => return false,
        };
        let other = positional_input(node, 1).and_then(|name| index.constant(&self.graph, name));
        let is_one =
            other.filter(|tensor| data_type(tensor) == DataType::FLOAT && tensor.dims.iter().product::<i64>() == 1);
        is_standard(node) && is_one.and_then(constant).is_some_and(|array| array.to_f32s().first() == Some(&neutral))
    }

    /// Q, DQ, Q, DQ in a row become Q, DQ.
    fn join_double_pairs(&mut self) {
        let edges = Edges::of(self);
        let mut renamed = Vec::new();
        for (position, first) in self.graph.node.iter().enumerate().filter(|(_, node)| is_dequantize_linear(node)) {
            let Some((quantize, parent, last)) = self.double_pair(&edges, first) else { continue };
            renamed.push((position, quantize, parent, last));
        }
        for (position, quantize, parent, last) in renamed {
            if self.gone.contains(&parent) || self.gone.contains(&position) {
                continue;
            }
            let codes = self.graph.node[parent].output[0].clone();
            self.graph.node[last].input[0] = codes;
            self.gone.extend([position, quantize]);
            // Both get the parameters of one of them: ONNX Runtime takes those of the values that both hold.
            let is_last = self.number(&edges.index, last, 1) < self.number(&edges.index, parent, 1);
            let (from, to) = if is_last { (last, parent) } else { (parent, last) };
            let parameters = self.graph.node[from].input[1..].to_vec();
            self.graph.node[to].input.truncate(1);
            self.graph.node[to].input.extend(parameters);
        }
    }

    /// The first number of the constant that an input of a node is.
    fn number(&self, index: &Index, node: usize, input: usize) -> Option<f32> {
        let tensor = index.constant(&self.graph, positional_input(&self.graph.node[node], input)?)?;
        constant(tensor)?.to_f32s().first().copied()
    }

    /// The Q behind a DQ, and the Q before and the DQ behind both.
    fn double_pair(&self, edges: &Edges, first: &NodeProto) -> Option<(usize, usize, usize)> {
        let behind = edges.only(first.output.first()?)?;
        let quantize = &self.graph.node[behind.node];
        let parent = edges.index.producer(first.input.first()?)?;
        edges.only(first.input.first()?)?;
        let last = edges.only(quantize.output.first()?)?.node;
        let is_chain = is_quantize_linear(quantize)
            && is_quantize_linear(&self.graph.node[parent])
            && is_dequantize_linear(&self.graph.node[last]);
        let parameters = |at: usize| self.parameters(&edges.index, &self.graph.node[at]);
        let inner = self.parameters(&edges.index, first)?;
        let is_same = parameters(parent)? == inner && parameters(behind.node)? == parameters(last)?;
        let is_known = |data_type| {
            matches!(data_type, Some(DataType::INT8 | DataType::UINT8 | DataType::INT16 | DataType::UINT16))
        };
        let types = [self.code_type(first.input.first()?), self.code_type(quantize.output.first()?)];
        (is_chain && is_same && is_known(types[0]) && types[0] == types[1]).then_some((behind.node, parent, last))
    }

    /// Takes out Relu and Clip before QuantizeLinear where codes cannot hold more.
    fn drop_clamps(&mut self) {
        let edges = Edges::of(self);
        let mut dropped = Vec::new();
        for (position, node) in self.nodes().filter(|(_, node)| is(node, "Relu") || is(node, "Clip")) {
            let Some(output) = node.output.first() else { continue };
            let Some(edge) = edges.only(output).filter(|edge| is_quantize_linear(&self.graph.node[edge.node])) else {
                continue;
            };
            if self.is_implied(&edges.index, node, &self.graph.node[edge.node]) {
                dropped.push((position, edge));
            }
        }
        for (position, edge) in dropped {
            let source = self.graph.node[position].input[0].clone();
            self.graph.node[edge.node].input[edge.input] = source;
            self.gone.insert(position);
        }
    }

    /// Returns whether a clamp keeps all values that codes can hold.
    pub fn is_implied(&self, index: &Index, clamp: &NodeProto, quantize: &NodeProto) -> bool {
        let number = |at: usize| {
            let tensor = index.constant(&self.graph, positional_input(quantize, at)?)?;
            constant(tensor)?.to_f32s().first().copied()
        };
        let zero_point = number(2).unwrap_or(0.0);
        // The zero point is that of the source, whatever the codes become.
        let stored = positional_input(quantize, 2).and_then(|name| index.constant(&self.graph, name)).map(data_type);
        let range = match stored.or_else(|| self.code_type(quantize.output.first()?)) {
            Some(DataType::UINT8) => (0.0, 255.0),
            Some(DataType::INT8) => (-128.0, 127.0),
            Some(DataType::UINT16) => (0.0, 65535.0),
            Some(DataType::INT16) => (-32768.0, 32767.0),
            _ => return false,
        };
        let Some(scale) = number(1) else { return false };
        match clamp.op_type() {
            "Relu" => zero_point == range.0,
            _ => clip_bounds(&self.graph, index, clamp).is_some_and(|(low, high)| {
                low <= (range.0 - zero_point) * scale && high >= (range.1 - zero_point) * scale
            }),
        }
    }

    /// Copies DequantizeLinear nodes so that each has one reader.
    fn give_each_its_own(&mut self) {
        let edges = Edges::of(self);
        let pairs: Vec<usize> = self.nodes().filter(|(_, node)| is_dequantize_linear(node)).map(|(at, _)| at).collect();
        for position in pairs {
            let Some(floats) = self.graph.node[position].output.first().cloned() else { continue };
            let kept = usize::from(!edges.index.is_output(&floats));
            for edge in edges.of_tensor(&floats).iter().skip(kept) {
                let copy = self.names.fresh(&floats);
                let mut pair = self.graph.node[position].clone();
                pair.output[0].clone_from(&copy);
                self.push(pair, self.origins[position]);
                self.graph.node[edge.node].input[edge.input] = copy;
            }
        }
    }

    fn push(&mut self, node: NodeProto, origin: usize) {
        self.graph.node.push(node);
        self.origins.push(origin);
    }

    /// Puts pairs before what moves values into a QuantizeLinear.
    fn move_backward(&mut self) {
        let quantizes: Vec<usize> =
            self.nodes().filter(|(_, node)| is_quantize_linear(node)).map(|(at, _)| at).collect();
        let mut edges = Edges::of(self);
        for quantize in quantizes {
            if !self.has_one_constant(&edges.index, &self.graph.node[quantize]) {
                continue;
            }
            let mut behind = Edge { node: quantize, input: 0 };
            while let Some(mover) = self.mover_before(&edges, behind) {
                let edge = Edge { node: mover, input: 0 };
                let source = self.graph.node[mover].input[0].clone();
                let maker = edges.index.producer(&source);
                let is_alone = maker.is_none() || edges.only(&source) == Some(edge);
                let is_fixed = edges.index.constant(&self.graph, &source).is_some();
                if !is_alone || is_fixed || maker.is_some_and(|maker| is_dequantize_linear(&self.graph.node[maker])) {
                    break;
                }
                self.insert(&source, &[edge], quantize);
                edges = Edges::of(self);
                // The inserted QuantizeLinear is now before the mover: continue from it.
                let Some(inserted) =
                    edges.of_tensor(&source).iter().find(|edge| is_quantize_linear(&self.graph.node[edge.node]))
                else {
                    break;
                };
                behind = *inserted;
            }
        }
    }

    /// Returns whether a node of this version of the operators has a kernel for codes, if it has one in any version.
    pub fn takes_codes(&self, node: &NodeProto) -> bool {
        !is(node, "MaxPool") || self.opset >= MAX_POOL_OF_CODES
    }

    fn is_mover(&self, node: &NodeProto) -> bool {
        is_standard(node) && MOVED_OVER.contains(&node.op_type()) && self.takes_codes(node)
    }

    /// The node that moves values into an edge, which alone reads them.
    fn mover_before(&self, edges: &Edges, edge: Edge) -> Option<usize> {
        let floats = self.graph.node[edge.node].input.get(edge.input)?;
        edges.only(floats)?;
        edges.index.producer(floats).filter(|&at| self.is_mover(&self.graph.node[at]))
    }

    /// Puts pairs behind what moves values of a DequantizeLinear.
    fn move_forward(&mut self) {
        let pairs: Vec<usize> = self.nodes().filter(|(_, node)| is_dequantize_linear(node)).map(|(at, _)| at).collect();
        let mut edges = Edges::of(self);
        for pair in pairs {
            let Some(first) = self.graph.node[pair].output.first().and_then(|floats| edges.only(floats)) else {
                continue;
            };
            if !self.has_one_constant(&edges.index, &self.graph.node[pair]) {
                continue;
            }
            let mut open = vec![first];
            while let Some(edge) = open.pop() {
                let mover = &self.graph.node[edge.node];
                let Some(output) = mover.output.first().cloned().filter(|_| self.is_mover(mover) && edge.input == 0)
                else {
                    continue;
                };
                let is_output = edges.index.is_output(&output);
                let readers = edges.of_tensor(&output).to_vec();
                let floats: Vec<Edge> =
                    readers.iter().copied().filter(|edge| !is_quantize_linear(&self.graph.node[edge.node])).collect();
                if is_output != readers.is_empty() || floats.is_empty() && !is_output {
                    continue;
                }
                if edge == first
                    && self.is_constant_pair(&edges.index, pair)
                    && readers.len() == floats.len()
                    && !is_output
                {
                    self.move_codes(pair, edge.node, &floats);
                    edges = Edges::of(self);
                    break;
                }
                self.insert(&output, &floats, pair);
                edges = Edges::of(self);
                open.extend(floats);
            }
        }
    }

    fn is_constant_pair(&self, index: &Index, pair: usize) -> bool {
        self.graph.node[pair].input.first().is_some_and(|codes| index.constant(&self.graph, codes).is_some())
    }

    /// Moves constant codes in place of floats, and dequantizes them for each reader: ONNX Runtime computes what moves constants.
    fn move_codes(&mut self, pair: usize, mover: usize, readers: &[Edge]) {
        let dequantize = self.graph.node[pair].clone();
        let data_type = self.code_type(&dequantize.input[0]);
        let moved = self.names.fresh(&format!("{}_moved", dequantize.input[0]));
        self.graph.node[mover].input[0].clone_from(&dequantize.input[0]);
        self.graph.node[mover].output[0].clone_from(&moved);
        self.codes.extend(data_type.map(|data_type| (moved.clone(), data_type)));
        self.gone.insert(pair);
        for edge in readers {
            let floats = self.names.fresh(&dequantize.output[0]);
            let mut own = dequantize.clone();
            own.input[0].clone_from(&moved);
            own.output[0].clone_from(&floats);
            self.graph.node[edge.node].input[edge.input] = floats;
            self.push(own, self.origins[pair]);
        }
    }

    /// Puts a pair like another between a tensor and some of its readers. The output of a graph is read by nothing.
    fn insert(&mut self, tensor: &str, readers: &[Edge], like: usize) {
        let parameters: Vec<String> = self.graph.node[like].input.iter().skip(1).cloned().collect();
        let of_like = match is_quantize_linear(&self.graph.node[like]) {
            true => self.graph.node[like].output.first(),
            false => self.graph.node[like].input.first(),
        };
        let data_type = of_like.and_then(|codes| self.code_type(codes));
        let domain = self.graph.node[like].domain.clone();
        let pair = |op: &str, input: String, output: String| NodeProto {
            op_type: Some(op.to_owned()),
            domain: domain.clone(),
            input: std::iter::once(input).chain(parameters.iter().cloned()).collect(),
            output: vec![output],
            ..NodeProto::default()
        };
        let codes = self.names.fresh(&format!("{tensor}_codes"));
        let mut made = Vec::new();
        let before = match readers.is_empty() {
            false => tensor.to_owned(),
            true => {
                // What made the output makes floats before it.
                let floats = self.names.fresh(&format!("{tensor}_floats"));
                let outputs = self.graph.node.iter_mut().flat_map(|node| &mut node.output);
                outputs.filter(|name| *name == tensor).for_each(|name| name.clone_from(&floats));
                made.push(pair("DequantizeLinear", codes.clone(), tensor.to_owned()));
                floats
            }
        };
        for edge in readers {
            let floats = self.names.fresh(&format!("{tensor}_floats"));
            made.push(pair("DequantizeLinear", codes.clone(), floats.clone()));
            self.graph.node[edge.node].input[edge.input] = floats;
        }
        self.push(pair("QuantizeLinear", before, codes.clone()), self.origins[like]);
        made.into_iter().for_each(|pair| self.push(pair, self.origins[like]));
        if let Some(data_type) = data_type {
            self.codes.insert(codes, data_type);
        }
    }

    /// int8 codes of activations are uint8 on x86, where one node alone dequantizes them.
    fn make_unsigned(&mut self) {
        let edges = Edges::of(self);
        let unsigned: Vec<String> = self
            .nodes()
            .filter(|(_, node)| is_quantize_linear(node))
            .filter_map(|(_, quantize)| {
                let codes = quantize.output.first()?;
                let dequantize = &self.graph.node[edges.only(codes)?.node];
                let same = || same_zero(self, &edges.index, quantize, dequantize);
                (self.code_type(codes) == Some(DataType::INT8) && is_dequantize_linear(dequantize) && same())
                    .then(|| codes.clone())
            })
            .collect();
        self.codes.extend(unsigned.iter().map(|codes| (codes.clone(), DataType::UINT8)));
        self.unsigned.extend(unsigned);
    }
}

fn same_zero(prepared: &PreparedGraph, index: &Index, a: &NodeProto, b: &NodeProto) -> bool {
    let zero = |pair| prepared.parameters(index, pair).map(|[_, zero]| zero);
    zero(a).is_some() && zero(a) == zero(b)
}
