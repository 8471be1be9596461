//! The float graph of a quantized one.

mod limits;

use std::collections::{HashMap, HashSet};

use half::{bf16, f16};
use kvant_container::onnx::{
    DataType, EnumOrUnknown, GraphProto, MessageField, ModelProto, NodeProto, Spill, TensorProto, data_type,
    data_type_name, keep, tensor, tensor_bytes,
};

use super::{ToolError, forget_idle_domains, inlined};
use crate::data::{Array, Values, each_type};
use crate::fake_quantization::Quantizer;
use crate::graph::{
    Edit, Index, Names, STANDARD_DOMAIN, bodies_mut, called, domain, for_each_node, int_attribute, is, node, opset,
    order, positional_input, set_attribute,
};
use crate::kernel::linear::constant;
use crate::kernel::{KernelError, NBits};
use crate::writing::integer_operators::computes_with_codes;
use limits::Limits;

/// The results of [`dequantize`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Dequantized {
    /// Constants that are floats now.
    pub constants: usize,
    /// Quantizations of activations that went.
    pub activations: usize,
    /// Nodes that quantize still: an input or output of the graph has codes, or a scale is computed.
    pub left: Vec<String>,
}

/// The opset from which on the limits of Clip are inputs.
const CLIP_OF_INPUTS: i64 = 11;

/// Domains that only quantization uses.
const QUANTIZING_DOMAINS: &[&str] = &["com.amd.quark", "com.microsoft", "com.vai.quantize"];

/// Makes floats of the constants of a graph of Q/DQ pairs, with the values that DequantizeLinear gives them, and takes out the quantization of
/// activations, in bodies of nodes too. Weights of MatMulNBits become those of MatMul. Floats have the type of the scales. Where the codes of an
/// activation begin at zero and its values may be negative, a Clip to the range of the codes stays: such codes stand for a Relu or Clip that the
/// quantized graph leaves out. Large new constants go to `spill`.
///
/// # Errors
/// [`ToolError::NotDequantized`] for a node that computes with codes, such as QLinearConv, and for codes of a type that has no kernel here.
pub fn dequantize(model: &mut ModelProto, spill: Option<&Spill>) -> Result<Dequantized, ToolError> {
    let mut made = inlined(model)?;
    refuse_integer_operators(&made.graph)?;
    let names = Names::of(&made.graph);
    let opset = opset(&made, STANDARD_DOMAIN).unwrap_or(1);
    let mut work = Dequantizer { spill, opset, names, read: HashSet::new(), done: Dequantized::default() };
    let graph = work.graph(&made.graph, None)?;
    made.graph = MessageField::some(graph);
    forget_idle_domains(&mut made, QUANTIZING_DOMAINS);
    let mut done = work.done;
    for_each_node(&made.graph, &mut |node| {
        if quantizer(node).is_ok_and(|found| found.is_some()) {
            done.left.push(called(node).to_owned());
        }
    });
    *model = made;
    Ok(done)
}

fn refuse_integer_operators(graph: &GraphProto) -> Result<(), ToolError> {
    let mut found = None;
    for_each_node(graph, &mut |node| {
        found = found.or_else(|| computes_with_codes(node).then_some(node));
    });
    found.map_or(Ok(()), |node| Err(refused(node, "it computes with codes")))
}

fn refused(node: &NodeProto, reason: impl Into<String>) -> ToolError {
    let (node, operator) = (called(node).to_owned(), node.op_type().to_owned());
    ToolError::NotDequantized { node, operator, reason: reason.into() }
}

fn refused_by(node: &NodeProto, error: &KernelError) -> ToolError {
    refused(node, error.to_string())
}

/// How a node quantizes. A Cast does not: it is arithmetic in another float type.
fn quantizer(node: &NodeProto) -> Result<Option<Quantizer>, ToolError> {
    let found = Quantizer::of(node).map_err(|error| refused_by(node, &error))?;
    Ok(found.filter(|quantizer| !matches!(quantizer, Quantizer::Round(_))))
}

/// A graph, and the one around it, whose constants its nodes read too.
struct Scope<'a> {
    graph: &'a GraphProto,
    index: Index,
    /// What follows from constants by quantizing nodes: floats, and codes whose types may be wider than their own.
    folded: HashMap<String, TensorProto>,
    outer: Option<&'a Scope<'a>>,
}

impl Scope<'_> {
    fn tensor(&self, name: &str) -> Option<&TensorProto> {
        let own = self.folded.get(name).or_else(|| self.index.constant(self.graph, name));
        own.or_else(|| self.outer?.tensor(name))
    }

    /// The inputs of a node, if all are constant. One that is left out ends them.
    fn arrays(&self, node: &NodeProto) -> Result<Option<Vec<Array<'static>>>, ToolError> {
        let names = || node.input.iter().take_while(|name| !name.is_empty());
        let tensors: Option<Vec<&TensorProto>> = names().map(|name| self.tensor(name)).collect();
        let Some(tensors) = tensors else { return Ok(None) };
        let read = |tensor: &&TensorProto| {
            let of_type = || format!("{} is not handled", data_type_name(data_type(tensor)));
            constant(tensor).ok_or_else(|| refused(node, of_type()))
        };
        tensors.iter().map(read).collect::<Result<Vec<_>, _>>().map(Some)
    }

    /// The node that quantized what a node dequantizes, with the same parameters.
    fn quantized_by(&self, dequantize: &NodeProto, how: Quantizer) -> Result<Option<&NodeProto>, ToolError> {
        let Quantizer::Dequantize { axis, block } = how else { return Ok(None) };
        let Some(maker) = dequantize.input.first().and_then(|codes| self.index.producer(codes)) else {
            return Ok(None);
        };
        let maker = &self.graph.node[maker];
        let same_place = match quantizer(maker)? {
            Some(Quantizer::Quantize { axis: other, block: blocks, .. }) => axis == other && block == blocks,
            _ => false,
        };
        let same = same_place && self.same(maker, dequantize, 1) && self.same(maker, dequantize, 2);
        Ok((same && self.keeps_type(dequantize)).then_some(maker))
    }

    /// Returns whether both read the same at a position. No zero points are zeros.
    fn same(&self, a: &NodeProto, b: &NodeProto, position: usize) -> bool {
        let (a, b) = (positional_input(a, position), positional_input(b, position));
        let contents = |name: &str| self.tensor(name).and_then(|t| Some((t.dims.clone(), tensor_bytes(t).ok()?)));
        let is_zero = |name: &str| contents(name).is_some_and(|(_, bytes)| bytes.iter().all(|&byte| byte == 0));
        match (a, b) {
            (Some(a), Some(b)) => a == b || contents(a).is_some_and(|a| contents(b) == Some(a)),
            (Some(one), None) | (None, Some(one)) => is_zero(one),
            (None, None) => true,
        }
    }

    /// Returns whether a node makes floats of the type of its scale, which is that of what was quantized.
    fn keeps_type(&self, dequantize: &NodeProto) -> bool {
        let scale = || dequantize.input.get(1).and_then(|scale| self.tensor(scale)).map(data_type);
        stated_type(dequantize).is_none_or(|stated| scale() == Some(stated))
    }
}

/// The type that DequantizeLinear states, from opset 23 on.
fn stated_type(node: &NodeProto) -> Option<DataType> {
    let number = int_attribute(node, "output_dtype").filter(|&number| number != 0)?;
    i32::try_from(number).ok().map(|number| EnumOrUnknown::from_i32(number).enum_value_or(DataType::UNDEFINED))
}

struct Dequantizer<'a> {
    spill: Option<&'a Spill>,
    /// Version of the standard operators.
    opset: i64,
    names: Names,
    /// Tensors that nodes read which are gone.
    read: HashSet<String>,
    done: Dequantized,
}

impl Dequantizer<'_> {
    /// The float graph of a graph.
    fn graph(&mut self, graph: &GraphProto, outer: Option<&Scope<'_>>) -> Result<GraphProto, ToolError> {
        let mut scope = Scope { graph, index: Index::new(graph), folded: HashMap::new(), outer };
        let mut rewiring = Rewiring::default();
        for position in order(graph)? {
            self.node(position, &mut scope, &mut rewiring)?;
        }
        let mut made = graph.clone();
        for node in &mut made.node {
            for body in bodies_mut(node) {
                *body = self.graph(body, Some(&scope))?;
            }
        }
        rewiring.edit.apply(&mut made);
        self.forget_unread(&mut made);
        Ok(made)
    }

    fn node(&mut self, position: usize, scope: &mut Scope<'_>, rewiring: &mut Rewiring) -> Result<(), ToolError> {
        let graph = scope.graph;
        let node = &graph.node[position];
        if node.op_type() == "MatMulNBits" && domain(node) == "com.microsoft" {
            return self.product(position, scope, rewiring);
        }
        let (Some(how), Some(output)) = (quantizer(node)?, node.output.first()) else { return Ok(()) };
        if let Some(inputs) = scope.arrays(node)? {
            let declared = node.input.get(2).and_then(|zero| scope.tensor(zero)).map(data_type);
            let array = how.compute(&inputs, declared).map_err(|error| refused_by(node, &error))?;
            let folded = self.folded(node, how, output, &array, scope)?;
            if !matches!(how, Quantizer::Quantize { .. }) {
                rewiring.edit.add(folded.clone());
                rewiring.edit.replace(position, Vec::new());
                self.read.extend(node.input.iter().cloned());
                self.done.constants += 1;
            }
            scope.folded.insert(output.clone(), folded);
            return Ok(());
        }
        match how {
            Quantizer::Bfp(_) | Quantizer::Microscaling(_) => {
                let Some(source) = node.input.first() else { return Ok(()) };
                rewiring.bypass(position, source, output, scope);
            }
            _ => {
                let Some(maker) = scope.quantized_by(node, how)? else { return Ok(()) };
                let Some(source) = maker.input.first() else { return Ok(()) };
                match scope.limits(maker) {
                    Some(limits) => self.limit(position, source, limits, scope, rewiring)?,
                    None => rewiring.bypass(position, source, output, scope),
                }
                self.read.extend(maker.input.iter().skip(1).cloned());
            }
        }
        self.read.extend(node.input.iter().cloned());
        self.done.activations += 1;
        Ok(())
    }

    /// A Clip in place of a pair, or a Relu where the upper limit is that of channels.
    fn limit(
        &mut self,
        position: usize,
        source: &str,
        limits: Limits,
        scope: &Scope<'_>,
        rewiring: &mut Rewiring,
    ) -> Result<(), ToolError> {
        let dequantize = &scope.graph.node[position];
        let (name, output) = (called(dequantize), dequantize.output.first().map_or("", String::as_str));
        let root = rewiring.root(source);
        let Some(most) = limits.most else {
            rewiring.edit.replace(position, vec![node("Relu", name, &[&root], &[output])]);
            return Ok(());
        };
        if self.opset < CLIP_OF_INPUTS {
            let mut clip = node("Clip", name, &[&root], &[output]);
            set_attribute(&mut clip, "min", 0f32);
            set_attribute(&mut clip, "max", most);
            rewiring.edit.replace(position, vec![clip]);
            return Ok(());
        }
        let of_scale = positional_input(dequantize, 1).and_then(|scale| scope.tensor(scale));
        let of_scale = of_scale.map_or(DataType::FLOAT, data_type);
        let mut bound = |what: &str, value: f32| {
            let name = self.names.fresh(&format!("{output}_{what}"));
            let array = Array::of(Vec::new(), vec![value]);
            let array = array.ok_or_else(|| refused(dequantize, "its limit is no scalar"))?;
            rewiring.edit.add(self.tensor(&name, of_scale, &array)?);
            Ok::<_, ToolError>(name)
        };
        let (least, most) = (bound("min", 0.0)?, bound("max", most)?);
        rewiring.edit.replace(position, vec![node("Clip", name, &[&root, &least, &most], &[output])]);
        Ok(())
    }

    /// What a quantizing node makes of constants, as a constant: floats of the type of the scales, or codes.
    fn folded(
        &self,
        node: &NodeProto,
        how: Quantizer,
        output: &str,
        array: &Array<'_>,
        scope: &Scope<'_>,
    ) -> Result<TensorProto, ToolError> {
        let like = match how {
            Quantizer::Dequantize { .. } => positional_input(node, 1),
            _ => positional_input(node, 0),
        };
        let like = || like.and_then(|name| scope.tensor(name)).map_or(DataType::FLOAT, data_type);
        match how {
            Quantizer::Quantize { .. } => self.tensor(output, array.data_type(), array),
            _ => self.tensor(output, stated_type(node).unwrap_or_else(like), array),
        }
    }

    fn tensor(&self, name: &str, to: DataType, array: &Array<'_>) -> Result<TensorProto, ToolError> {
        let narrow = |round: fn(f32) -> [u8; 2]| array.to_f32s().iter().flat_map(|&v| round(v)).collect();
        let contents: Vec<u8> = match (to, array.values()) {
            (DataType::FLOAT16, _) => narrow(|v| f16::from_f32(v).to_le_bytes()),
            (DataType::BFLOAT16, _) => narrow(|v| bf16::from_f32(v).to_le_bytes()),
            (_, Values::Bool(values)) => values.iter().map(|&v| v.into()).collect(),
            (_, values) => each_type!(values, v => v.iter().flat_map(|x| bytemuck::bytes_of(x).to_vec()).collect()),
        };
        let to = if matches!(to, DataType::FLOAT16 | DataType::BFLOAT16) { to } else { array.data_type() };
        Ok(tensor(name, to, array.shape(), keep(self.spill, contents)?))
    }

    /// A product with a weight of few bits as a MatMul, and an Add where it has a bias.
    fn product(&mut self, position: usize, scope: &Scope<'_>, rewiring: &mut Rewiring) -> Result<(), ToolError> {
        let product = &scope.graph.node[position];
        let input = |position| positional_input(product, position);
        let array = |position| input(position).and_then(|name| scope.tensor(name)).and_then(constant);
        let (Some(codes), Some(scales), zero_points) = (array(1), array(2), array(3)) else {
            return Err(refused(product, "its weight is not constant"));
        };
        if input(3).is_some() && zero_points.is_none() {
            return Err(refused(product, "its zero points are not constant"));
        }
        let weight = NBits::of(product).and_then(|bits| bits.weight(&codes, &scales, zero_points.as_ref()));
        let weight = weight.map_err(|error| refused_by(product, &error))?;
        let of_scales = input(2).and_then(|name| scope.tensor(name)).map_or(DataType::FLOAT, data_type);
        let output = product.output.first().map_or("", String::as_str);
        let name = self.names.fresh(&format!("{}_dequantized", input(1).unwrap_or(output)));
        rewiring.edit.add(self.tensor(&name, of_scales, &weight)?);
        let left = product.input.first().map_or("", String::as_str);
        let nodes = match input(5) {
            None => vec![node("MatMul", product.name(), &[left, &name], &[output])],
            Some(bias) => {
                let sum = self.names.fresh(&format!("{output}_product"));
                let added = self.names.fresh(&format!("{}_bias", called(product)));
                vec![
                    node("MatMul", product.name(), &[left, &name], &[&sum]),
                    node("Add", &added, &[&sum, bias], &[output]),
                ]
            }
        };
        rewiring.edit.replace(position, nodes);
        self.read.extend(product.input.iter().skip(1).cloned());
        self.done.constants += 1;
        Ok(())
    }

    /// Takes out quantizing nodes, constants and declarations that only nodes had read which are gone.
    fn forget_unread(&mut self, graph: &mut GraphProto) {
        // Constants behind a node that goes are unread only then.
        loop {
            let index = Index::new(graph);
            let is_idle = |node: &NodeProto| {
                let is_taken = is(node, "Constant") || matches!(quantizer(node), Ok(Some(Quantizer::Quantize { .. })));
                is_taken && node.output.iter().all(|output| self.is_forgotten(&index, output))
            };
            let idle: Vec<usize> = (0..graph.node.len()).filter(|&at| is_idle(&graph.node[at])).collect();
            if idle.is_empty() {
                break;
            }
            let mut edit = Edit::default();
            for at in idle {
                edit.remove(at);
                self.read.extend(graph.node[at].input.iter().cloned());
            }
            edit.apply(graph);
        }
        let index = Index::new(graph);
        graph.initializer.retain(|tensor| !self.is_forgotten(&index, tensor.name()));
        let made: HashSet<&str> = graph.node.iter().flat_map(|node| &node.output).map(String::as_str).collect();
        let constants: HashSet<&str> = graph.initializer.iter().map(|tensor| tensor.name()).collect();
        graph.value_info.retain(|value| made.contains(value.name()) || constants.contains(value.name()));
        // They say which scales tensors have.
        graph.quantization_annotation.clear();
    }

    /// Returns whether only nodes had read a tensor of a graph which are gone.
    fn is_forgotten(&self, index: &Index, tensor: &str) -> bool {
        self.read.contains(tensor) && !index.is_read(tensor) && !index.is_input(tensor)
    }
}

/// What becomes of the nodes of one graph.
#[derive(Default)]
struct Rewiring {
    edit: Edit,
    /// The tensors that are read instead of others.
    instead: HashMap<String, String>,
}

impl Rewiring {
    /// The tensor that is read instead of one.
    fn root(&self, tensor: &str) -> String {
        let mut root = tensor.to_owned();
        while let Some(next) = self.instead.get(&root) {
            root.clone_from(next);
        }
        root
    }

    /// Takes out the node at a position: whoever reads `output` reads `source`. An output of the graph keeps its name.
    fn bypass(&mut self, position: usize, source: &str, output: &str, scope: &Scope<'_>) {
        let root = self.root(source);
        let (from, to) = match scope.index.is_output(output) {
            false => (output.to_owned(), root),
            true if scope.index.producer(&root).is_some() && !scope.index.is_output(&root) => (root, output.to_owned()),
            true => {
                let name = called(&scope.graph.node[position]);
                return self.edit.replace(position, vec![node("Identity", name, &[&root], &[output])]);
            }
        };
        self.edit.rename(&from, &to);
        self.instead.insert(from, to);
        self.edit.replace(position, Vec::new());
    }
}

#[cfg(test)]
mod tests;
