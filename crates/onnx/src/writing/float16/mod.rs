//! The whole model in a 16-bit float type, its inputs and outputs as they were.
//!
//! Every float tensor keeps its name and becomes 16-bit. Inputs of the graph are cast behind their name, outputs before it. Nodes
//! that stay in f32 (see `operators`) read casts and their outputs are cast back; f32 passes directly from one to the next.
//! Graphs inside of If, Loop and Scan are converted too. float64 and what is 16-bit already stay. Attributes stay f32 by their type.
//!
//! ONNX Runtime's CPU kernels know float16, and next to nothing of bfloat16: such a model is for other devices. Below opset
//! 22 convolutions and pools do not take bfloat16: they then stay in f32, their weights are stored in 16 bits.

mod angles;
mod contents;
mod operators;

use contents::Narrowed;

use std::collections::{BTreeMap, HashMap, HashSet};

use kvant_container::onnx::{
    AttributeProto, DataType, GraphProto, ModelProto, NodeProto, Spill, TensorProto, TypeProto, TypeValue, data_type,
    data_type_bits, element_count, tensor,
};

use crate::count::{constants, size};
use crate::error::QuantizeError;
use crate::graph::{
    Edit, Index, Names, STANDARD_DOMAIN, attribute, called, cast_node, for_each_node, for_each_read, int_attribute, is,
    is_standard, opset, set_attribute, take_attribute,
};
use crate::masks::is_product;
use crate::pass::{Context, Pass};
use crate::placement::{Placement, Skipped, in_subgraphs, is_selected};
use crate::recipe::{FloatType, Selection};
use crate::shape::{self, Types};

/// The results of a conversion.
#[derive(Debug, Default)]
pub struct Converted {
    /// Nodes that compute in 16 bits.
    pub nodes: usize,
    /// Nodes that compute in f32 still.
    pub left: Vec<Skipped>,
    /// Constants with values beyond the type's range, and how many.
    pub limited: BTreeMap<String, usize>,
    /// Constants most of whose values are too small for the type, and how many are.
    pub raised: BTreeMap<String, usize>,
}

/// The reason of nodes that a newer opset would convert.
pub const OF_NEWER_OPSET: &str = "it computes in f32, between casts: ONNX has it in 16 bits in newer opsets only";

/// Constants up to this size are given to nodes in f32 as they were; larger ones are stored in 16 bits and cast, but for those of nodes
/// that the selection leaves out.
const SMALL: usize = 1024;

/// Converts a model.
///
/// Errors: a node that must stay in f32 and whose tensors' types are not known.
pub fn write(
    model: &mut ModelProto,
    to: FloatType,
    selection: &Selection,
    spill: Option<&Spill>,
) -> Result<Converted, QuantizeError> {
    let done = convert(model, to, selection, spill, Contents::Narrow)?;
    // Casts that nobody reads, and constants that all read in f32.
    Pass::named("dead-nodes")?.run(model, &Context::default())?;
    Ok(done)
}

/// The nodes that a conversion reaches, and those that it leaves in f32. No value is converted for it.
///
/// Errors: those of [`write()`].
pub fn place(model: &ModelProto, to: FloatType, selection: &Selection) -> Result<Placement, QuantizeError> {
    let done = convert(&mut model.clone(), to, selection, None, Contents::Drop)?;
    Ok(Placement { nodes: done.nodes, skipped: done.left, ..Placement::default() })
}

/// Bytes of the constants that a conversion writes. No value is converted for it.
///
/// Errors: those of [`write()`].
pub fn constant_bytes(model: &ModelProto, to: FloatType, selection: &Selection) -> Result<u64, QuantizeError> {
    let mut made = model.clone();
    convert(&mut made, to, selection, None, Contents::Drop)?;
    Pass::named("dead-nodes")?.run(&mut made, &Context::default())?;
    let bytes = |tensor: &TensorProto| {
        let bits = data_type_bits(data_type(tensor)).zip(element_count(tensor).ok());
        bits.map_or_else(|| size(tensor), |(bits, count)| (bits * count as u64).div_ceil(8))
    };
    Ok(constants(&made.graph, bytes))
}

/// The opset in which all nodes are converted that a newer opset converts; `None` where it would convert no more.
pub fn better_opset(model: &ModelProto, to: FloatType) -> Option<i64> {
    let version = opset(model, STANDARD_DOMAIN).unwrap_or(1);
    let mut best = None;
    for_each_node(model.graph.as_ref()?, &mut |node| best = best.max(operators::first_opset(node, to)));
    best.filter(|&best| best > version)
}

/// The treatment of the contents of constants.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Contents {
    /// They are converted.
    Narrow,
    /// They go, since nobody reads them of the model that is made.
    Drop,
}

fn convert(
    model: &mut ModelProto,
    to: FloatType,
    selection: &Selection,
    spill: Option<&Spill>,
    contents: Contents,
) -> Result<Converted, QuantizeError> {
    let types = shape::infer(model);
    let version = opset(model, STANDARD_DOMAIN).unwrap_or(1);
    let Some(graph) = model.graph.as_mut() else { return Ok(Converted::default()) };
    let mut converter = Converter {
        to,
        left_out: LeftOut::of(graph, selection),
        opset: version,
        spill,
        contents,
        types,
        names: Names::of(graph),
        angles: HashSet::new(),
        origin: HashMap::new(),
        constants: HashMap::new(),
        finals: HashMap::new(),
        done: Converted::default(),
    };
    converter.angles = angles::angles(graph, &|name| converter.types.data_type(name));
    converter.main(graph)?;
    Ok(converter.done)
}

/// What a selection leaves in f32.
#[derive(Default)]
struct LeftOut {
    /// First outputs of the nodes.
    nodes: HashSet<String>,
    /// The tensors that they read, of which constants are given to them as they were.
    reads: HashSet<String>,
}

impl LeftOut {
    fn of(graph: &GraphProto, selection: &Selection) -> LeftOut {
        let mut left_out = LeftOut::default();
        let mut add = |node: &NodeProto| {
            left_out.nodes.extend(node.output.first().cloned());
            for_each_read(node, &mut |name| _ = left_out.reads.insert(name.to_owned()));
        };
        let excluded = in_subgraphs(graph, &Index::new(graph), &selection.excluded_subgraphs);
        excluded.into_iter().for_each(|position| add(&graph.node[position]));
        for_each_node(graph, &mut |node| {
            if !is_selected(node, selection) {
                add(node);
            }
        });
        left_out
    }
}

struct Converter<'a> {
    to: FloatType,
    left_out: LeftOut,
    opset: i64,
    spill: Option<&'a Spill>,
    contents: Contents,
    types: Types,
    names: Names,
    /// First outputs of the nodes that compute angles.
    angles: HashSet<String>,
    /// The names that tensors at the graph's ends had.
    origin: HashMap<String, String>,
    /// Float constants as they were, of all graphs; `None` for large ones.
    constants: HashMap<String, Option<TensorProto>>,
    /// The graph's f32 outputs by the 16-bit tensors they are cast from.
    finals: HashMap<String, String>,
    done: Converted,
}

/// What is added to a graph as its nodes are walked.
#[derive(Default)]
struct Scope {
    nodes: Vec<NodeProto>,
    initializers: Vec<TensorProto>,
    /// The f32 tensors that there are by the names of their 16-bit ones.
    wide: HashMap<String, String>,
}

impl Converter<'_> {
    fn main(&mut self, graph: &mut GraphProto) -> Result<(), QuantizeError> {
        let declared: HashSet<String> = graph.input.iter().map(|v| v.name().to_owned()).collect();
        let scope = self.ends(graph, &declared);
        self.graph(graph, &declared, scope)?;
        let made: HashSet<String> = graph.node.iter().flat_map(|n| &n.output).cloned().collect();
        let mut finals: Vec<_> = self.finals.iter().filter(|(_, output)| !made.contains(*output)).collect();
        finals.sort();
        graph.node.extend(finals.into_iter().map(|(half, output)| cast(half, output, DataType::FLOAT)));
        Ok(())
    }

    /// Renames what is computed from inputs and for outputs, so that the names of the ends stay f32.
    fn ends(&mut self, graph: &mut GraphProto, inputs: &HashSet<String>) -> Scope {
        let mut scope = Scope::default();
        let mut edit = Edit::default();
        let ends = graph.input.iter().chain(&graph.output).map(|v| v.name().to_owned());
        let ends: Vec<String> = ends.filter(|name| self.is_float(name)).collect();
        for name in &ends {
            if self.origin.values().any(|known| known == name) {
                continue;
            }
            let half = self.names.fresh(&format!("{name}_{}", self.suffix()));
            edit.rename(name, &half);
            self.origin.insert(half.clone(), name.clone());
            match inputs.contains(name) {
                true => {
                    scope.nodes.push(cast(name, &half, contents::data_type(self.to)));
                    scope.wide.insert(half, name.clone());
                }
                false => {
                    let constants = graph.initializer.iter_mut().filter(|t| t.name() == name);
                    constants.for_each(|t| t.name = Some(half.clone()));
                    self.finals.insert(half, name.clone());
                }
            }
        }
        edit.apply(graph);
        scope
    }

    fn suffix(&self) -> &'static str {
        if self.to == FloatType::Float16 { "float16" } else { "bfloat16" }
    }

    /// Converts the nodes and constants of a graph; `declared` names inputs whose constants are defaults that a caller replaces.
    fn graph(
        &mut self,
        graph: &mut GraphProto,
        declared: &HashSet<String>,
        mut scope: Scope,
    ) -> Result<(), QuantizeError> {
        let floats = |t: &&mut TensorProto| data_type(t) == DataType::FLOAT && !declared.contains(t.name());
        let products = graph.node.iter().filter(|node| is_product(node));
        let weights: HashSet<String> = products.flat_map(|node| node.input.iter().cloned()).collect();
        for constant in graph.initializer.iter_mut().filter(floats) {
            let small =
                element_count(constant).is_ok_and(|n| n <= SMALL) || self.left_out.reads.contains(constant.name());
            self.constants.insert(constant.name().to_owned(), small.then(|| constant.clone()));
            *constant = self.narrow(constant, weights.contains(constant.name()))?;
        }
        let sparse = graph.sparse_initializer.iter_mut().filter_map(|t| t.values.as_mut());
        for values in sparse.filter(|values| data_type(values) == DataType::FLOAT) {
            self.constants.insert(values.name().to_owned(), None);
            *values = self.narrow(values, false)?;
        }
        for node in std::mem::take(&mut graph.node) {
            self.node(node, &mut scope)?;
        }
        graph.node = scope.nodes;
        graph.initializer.append(&mut scope.initializers);
        for info in &mut graph.value_info {
            info.type_.as_mut().into_iter().for_each(|t| self.retype(t));
        }
        Ok(())
    }

    /// Converts a constant; huge values of a weight are not taken for masks.
    fn narrow(&mut self, source: &TensorProto, is_weight: bool) -> Result<TensorProto, QuantizeError> {
        if self.contents == Contents::Drop {
            let data_type = Some(contents::data_type(self.to) as i32);
            let (name, dims) = (source.name.clone(), source.dims.clone());
            return Ok(TensorProto { name, dims, data_type, ..TensorProto::default() });
        }
        let Narrowed { tensor, limited, raised } = contents::narrow(source, self.to, self.spill, is_weight)?;
        if limited > 0 {
            self.done.limited.insert(source.name().to_owned(), limited);
        }
        if raised > 0 {
            self.done.raised.insert(source.name().to_owned(), raised);
        }
        Ok(tensor)
    }

    fn retype(&self, declared: &mut TypeProto) {
        let Some(TypeValue::TensorType(tensor)) = declared.value.as_mut() else { return };
        if tensor.elem_type == Some(DataType::FLOAT as i32) {
            tensor.elem_type = Some(contents::data_type(self.to) as i32);
        }
    }

    fn node(&mut self, node: NodeProto, scope: &mut Scope) -> Result<(), QuantizeError> {
        match self.obstacle(&node, scope) {
            Some(reason) => self.wide_node(node, reason, scope),
            None => self.narrow_node(node, scope),
        }
    }

    /// The reason that a node stays in f32.
    fn obstacle(&self, node: &NodeProto, scope: &Scope) -> Option<&'static str> {
        let first = node.output.first().map_or("", String::as_str);
        let original = self.origin.get(first).map_or(first, String::as_str);
        let angle = self.angles.contains(original);
        // A model that is 16-bit already is cast for its f32 output: so it stays.
        let end = is(node, "Cast") && self.finals.contains_key(first) && !self.is_float(&node.input[0]);
        if self.left_out.nodes.contains(original) {
            return Some("the selection leaves it out");
        }
        let first_opset = operators::first_opset(node, self.to);
        if !angle && !end && first_opset.is_some_and(|first| first > self.opset) {
            return Some(OF_NEWER_OPSET);
        }
        let stays = angle || end || first_opset.is_none() || operators::goes_on(node) && self.reads_wide(node, scope);
        stays.then_some("it computes in f32, between casts")
    }

    /// Returns whether all floats that a node reads are f32 already or constants, and one is no constant.
    fn reads_wide(&self, node: &NodeProto, scope: &Scope) -> bool {
        let constant = |name: &String| self.constants.contains_key(name);
        let mut computed = node.input.iter().filter(|name| !name.is_empty() && !constant(name)).peekable();
        let given = |name: &String| self.origin.get(name).is_some_and(|o| scope.wide.get(name) == Some(o));
        computed.peek().is_some() && computed.all(|name| scope.wide.contains_key(name) && !given(name))
    }

    fn is_float(&self, name: &str) -> bool {
        let original = self.origin.get(name).map_or(name, String::as_str);
        self.constants.contains_key(name) || self.types.data_type(original) == Some(DataType::FLOAT)
    }

    /// A node as it was, between casts.
    fn wide_node(&mut self, node: NodeProto, reason: &'static str, scope: &mut Scope) -> Result<(), QuantizeError> {
        let mut edit = Edit::default();
        let mut reads = Vec::new();
        for_each_read(&node, &mut |name| reads.push(name.to_owned()));
        for name in self.known_floats(&node, reads)? {
            edit.rename(&name, &self.wide(&name, scope));
        }
        let outputs = self.known_floats(&node, node.output.iter().filter(|n| !n.is_empty()).cloned().collect())?;
        for name in &outputs {
            let wide = match self.finals.get(name) {
                Some(output) => output.clone(),
                None => self.names.fresh(&format!("{name}_float32")),
            };
            edit.rename(name, &wide);
            scope.wide.insert(name.clone(), wide);
        }
        if !outputs.is_empty() && !is(&node, "Cast") {
            self.done.left.push(Skipped::new(&node, reason));
        }
        let mut alone = GraphProto { node: vec![node], ..GraphProto::default() };
        edit.apply(&mut alone);
        scope.nodes.append(&mut alone.node);
        let narrow = contents::data_type(self.to);
        scope.nodes.extend(outputs.iter().map(|name| cast(&scope.wide[name], name, narrow)));
        Ok(())
    }

    /// The names of float tensors. Fails on a sequence, and on a tensor of unknown type.
    fn known_floats(&self, node: &NodeProto, names: Vec<String>) -> Result<Vec<String>, QuantizeError> {
        let known = |name: &String| {
            let original = self.origin.get(name).unwrap_or(name);
            self.constants.contains_key(name) || self.types.data_type(original).is_some()
        };
        match names.iter().find(|name| !known(name)) {
            Some(tensor) if operators::is_of_sequences(node) => {
                Err(QuantizeError::Sequence { node: called(node).to_owned(), tensor: tensor.clone() })
            }
            Some(tensor) => Err(QuantizeError::UnknownType {
                node: called(node).to_owned(),
                tensor: tensor.clone(),
                is_standard: is_standard(node),
            }),
            None => Ok(names.into_iter().filter(|name| self.is_float(name)).collect()),
        }
    }

    /// The f32 form of a tensor: one there is, or the constant as it was, or a cast.
    fn wide(&mut self, name: &str, scope: &mut Scope) -> String {
        if let Some(wide) = scope.wide.get(name) {
            return wide.clone();
        }
        let wide = self.names.fresh(&format!("{name}_float32"));
        match self.constants.get(name).and_then(Option::as_ref) {
            Some(constant) => {
                scope.initializers.push(TensorProto { name: Some(wide.clone()), ..constant.clone() });
            }
            None => scope.nodes.push(cast(name, &wide, DataType::FLOAT)),
        }
        scope.wide.insert(name.to_owned(), wide.clone());
        wide
    }

    /// A node that computes in 16 bits.
    fn narrow_node(&mut self, mut node: NodeProto, scope: &mut Scope) -> Result<(), QuantizeError> {
        for &position in operators::always_wide(&node, self.opset) {
            let name = node.input.get(position).filter(|name| !name.is_empty() && self.is_float(name)).cloned();
            if let Some(name) = name {
                node.input[position] = self.wide(&name, scope);
            }
        }
        if let Some(wide) = node.input.first().filter(|_| is(&node, "Cast")).and_then(|name| scope.wide.get(name)) {
            node.input[0] = wide.clone();
        }
        self.attributes(&mut node)?;
        for graph in node.attribute.iter_mut().flat_map(|a| a.g.as_mut().into_iter().chain(&mut a.graphs)) {
            self.subgraph(graph, scope)?;
        }
        self.done.nodes += usize::from(node.output.iter().any(|name| self.is_float(name)));
        scope.nodes.push(node);
        Ok(())
    }

    fn subgraph(&mut self, graph: &mut GraphProto, outer: &Scope) -> Result<(), QuantizeError> {
        let scope = Scope { wide: outer.wide.clone(), ..Scope::default() };
        self.graph(graph, &HashSet::new(), scope)?;
        for value in graph.input.iter_mut().chain(&mut graph.output) {
            value.type_.as_mut().into_iter().for_each(|t| self.retype(t));
        }
        Ok(())
    }

    /// Attributes that name the element type of an output, or hold it.
    fn attributes(&mut self, node: &mut NodeProto) -> Result<(), QuantizeError> {
        let narrow = contents::data_type(self.to);
        if is(node, "Cast") && int_attribute(node, "to") == Some(DataType::FLOAT as i64) {
            set_attribute(node, "to", narrow as i64);
        }
        if is(node, "ConstantOfShape") && attribute(node, "value").is_none() {
            node.attribute.push(tensor_attribute(tensor("", DataType::FLOAT, &[1], vec![0; 4])));
        }
        if is(node, "Constant") {
            spell_constant(node);
        }
        if is(node, "Constant") || is(node, "ConstantOfShape") {
            let value = node.attribute.iter_mut().find(|a| a.name() == "value").and_then(|a| a.t.as_mut());
            if let Some(value) = value.filter(|value| data_type(value) == DataType::FLOAT) {
                *value = self.narrow(value, false)?;
            }
        }
        Ok(())
    }
}

/// `value_float` and `value_floats` of a Constant as a tensor.
fn spell_constant(node: &mut NodeProto) {
    let scalar = take_attribute(node, "value_float").and_then(|a| a.f).map(|f| (vec![], f.to_le_bytes().to_vec()));
    let list = take_attribute(node, "value_floats")
        .map(|a| (vec![a.floats.len()], a.floats.iter().flat_map(|f| f.to_le_bytes()).collect::<Vec<u8>>()));
    if let Some((shape, bytes)) = scalar.or(list) {
        node.attribute.push(tensor_attribute(tensor("", DataType::FLOAT, &shape, bytes)));
    }
}

fn tensor_attribute(value: TensorProto) -> AttributeProto {
    use kvant_container::onnx::{AttributeType, MessageField};
    AttributeProto {
        name: Some("value".to_owned()),
        type_: Some(AttributeType::TENSOR.into()),
        t: MessageField::some(value),
        ..AttributeProto::default()
    }
}

fn cast(input: &str, output: &str, to: DataType) -> NodeProto {
    cast_node(&format!("{output}_Cast"), input, output, to)
}

#[cfg(test)]
mod tests;
