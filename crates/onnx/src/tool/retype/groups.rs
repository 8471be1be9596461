//! Tensors of codes that must have one type: what moves codes, and integer operators, join them.

use std::collections::{BTreeMap, HashMap, HashSet};

use kvant_container::onnx::{
    DataType, EnumOrUnknown, GraphProto, ModelProto, NodeProto, Spill, TensorProto, TypeValue, data_type,
    element_count, shape,
};

use super::{CodeTypes, element_of, of_other_sign, other_sign};
use crate::element::Element;
use crate::graph::{
    Index, Names, called, for_each_node, int_attribute, is, is_dequantize_linear, is_quantize_linear, positional_input,
    set_attribute,
};
use crate::shape::{Types, infer};
use crate::tool::ToolError;
use crate::tool::to_qoperator::zero_tensor;
use crate::writing::integer_operators::{OperatorForm, of_integer};

/// A place in a node where codes, or constants of the type of codes, are read.
type InputPlace = (usize, usize);

/// What a node states about a tensor of codes.
#[derive(Debug, Clone)]
struct CodesUse {
    /// The codes.
    tensor: String,
    /// The position of the input that they are; `None` for outputs.
    input: Option<usize>,
    /// The positions of the scale and the zero point, where there are such inputs.
    parameters: Option<(usize, usize)>,
    /// The positions of limits.
    limits: Vec<usize>,
    /// Whether a product multiplies with them, if they are constant.
    is_factor: bool,
}

impl CodesUse {
    fn input(node: &NodeProto, at: usize) -> Option<Self> {
        let tensor = positional_input(node, at)?.to_owned();
        Some(Self { tensor, input: Some(at), parameters: None, limits: Vec::new(), is_factor: false })
    }

    fn output(node: &NodeProto, at: usize) -> Option<Self> {
        let tensor = node.output.get(at).filter(|name| !name.is_empty())?.clone();
        Some(Self { tensor, input: None, parameters: None, limits: Vec::new(), is_factor: false })
    }

    fn with(self, scale: usize, zero_point: usize) -> Self {
        Self { parameters: Some((scale, zero_point)), ..self }
    }
}

/// What a node does with codes.
enum CodesNode {
    /// It quantizes or dequantizes one tensor.
    Pair(CodesUse),
    /// It computes with codes that have one type, but for a constant factor.
    Joined(Vec<CodesUse>),
    /// It reads sizes only.
    Sizes,
    /// Nothing that is known.
    Other,
}

/// The codes of a node.
fn codes_of(node: &NodeProto) -> CodesNode {
    match node.op_type() {
        _ if is_quantize_linear(node) => {
            CodesUse::output(node, 0).map_or(CodesNode::Other, |made| CodesNode::Pair(made.with(1, 2)))
        }
        _ if is_dequantize_linear(node) => {
            CodesUse::input(node, 0).map_or(CodesNode::Other, |read| CodesNode::Pair(read.with(1, 2)))
        }
        "Shape" | "Size" if is(node, node.op_type()) => CodesNode::Sizes,
        "Clip" if is(node, "Clip") => {
            let limits = (1..node.input.len()).filter(|&at| positional_input(node, at).is_some()).collect();
            let read = CodesUse::input(node, 0).map(|read| CodesUse { limits, ..read });
            CodesNode::Joined(read.into_iter().chain(CodesUse::output(node, 0)).collect())
        }
        _ => joined(node),
    }
}

fn joined(node: &NodeProto) -> CodesNode {
    let Some(row) = of_integer(node) else { return CodesNode::Other };
    let Some(inputs) = row.inputs(node.input.len()) else {
        let outputs = if is(node, "MaxPool") { 1 } else { node.output.len() };
        let made = (0..outputs).filter_map(|at| CodesUse::output(node, at));
        return CodesNode::Joined(CodesUse::input(node, 0).into_iter().chain(made).collect());
    };
    let has_factor = matches!(row.form, OperatorForm::Conv | OperatorForm::MatMul | OperatorForm::Gemm);
    let operands = inputs.operands.iter().enumerate().filter_map(|(at, operand)| {
        let read = CodesUse::input(node, operand.codes)?.with(operand.scale, operand.zero_point);
        Some(CodesUse { is_factor: has_factor && at == 1, ..read })
    });
    let made = CodesUse::output(node, 0).map(|made| made.with(inputs.scale, inputs.zero_point));
    CodesNode::Joined(operands.chain(made).collect())
}

/// Tensors that have one type.
#[derive(Debug, Default)]
struct CodeGroup {
    tensors: Vec<String>,
    uses: Vec<(usize, CodesUse)>,
    /// Whether it keeps its type, because something beyond the known operators has a part in it.
    is_fixed: bool,
}

/// The tensors of codes of a graph by the type that they share.
pub(super) struct CodeGroups<'m> {
    graph: &'m GraphProto,
    index: Index,
    types: Types,
    groups: Vec<CodeGroup>,
    /// The group of each tensor.
    group_of: HashMap<String, usize>,
}

impl<'m> CodeGroups<'m> {
    pub fn of(model: &'m ModelProto) -> Self {
        let graph = &model.graph;
        let mut found =
            Self { graph, index: Index::new(graph), types: infer(model), groups: Vec::new(), group_of: HashMap::new() };
        let nodes: Vec<CodesNode> = graph.node.iter().map(codes_of).collect();
        for (position, node) in nodes.iter().enumerate() {
            match node {
                CodesNode::Pair(one) => found.join(position, std::slice::from_ref(one)),
                CodesNode::Joined(all) => {
                    let (factors, others): (Vec<CodesUse>, Vec<CodesUse>) =
                        all.iter().cloned().partition(|one| one.is_factor && found.is_constant(&one.tensor));
                    found.join(position, &others);
                    found.join(position, &factors);
                }
                CodesNode::Sizes | CodesNode::Other => {}
            }
        }
        found.fix(&nodes);
        found
    }

    fn is_constant(&self, tensor: &str) -> bool {
        self.index.constant(self.graph, tensor).is_some()
    }

    /// Puts tensors that a node relates into one group.
    fn join(&mut self, position: usize, uses: &[CodesUse]) {
        let Some(first) = uses.first() else { return };
        let target = self.group(&first.tensor);
        for one in uses {
            let other = self.group(&one.tensor);
            if other != target {
                let merged = std::mem::take(&mut self.groups[other]);
                self.group_of.extend(merged.tensors.iter().map(|tensor| (tensor.clone(), target)));
                self.groups[target].tensors.extend(merged.tensors);
                self.groups[target].uses.extend(merged.uses);
            }
            self.groups[target].uses.push((position, one.clone()));
        }
    }

    fn group(&mut self, tensor: &str) -> usize {
        if let Some(&group) = self.group_of.get(tensor) {
            return group;
        }
        self.groups.push(CodeGroup { tensors: vec![tensor.to_owned()], ..CodeGroup::default() });
        self.group_of.insert(tensor.to_owned(), self.groups.len() - 1);
        self.groups.len() - 1
    }

    /// Marks groups whose type is stated elsewhere too.
    fn fix(&mut self, nodes: &[CodesNode]) {
        let mut groups = std::mem::take(&mut self.groups);
        for group in &mut groups {
            let known: HashSet<usize> = group.uses.iter().map(|(position, _)| *position).collect();
            let is_known = |at: &usize| known.contains(at) || matches!(nodes[*at], CodesNode::Sizes);
            let is_open = |tensor: &String| {
                self.index.is_input(tensor)
                    || self.index.is_output(tensor)
                    || self.index.producer(tensor).is_some_and(|at| !known.contains(&at))
                    || !self.index.consumers(tensor).iter().all(is_known)
            };
            let states = |(position, one): &(usize, CodesUse)| self.states(&self.graph.node[*position], one);
            group.is_fixed = group.tensors.iter().any(is_open) || !group.uses.iter().all(states);
        }
        self.groups = groups;
    }

    /// Returns whether the zero point and limits of a use are constant, or a zero point can be added.
    fn states(&self, node: &NodeProto, one: &CodesUse) -> bool {
        let is_constant = |at: usize| positional_input(node, at).is_some_and(|name| self.is_constant(name));
        let parameters = one.parameters.is_none_or(|(scale, zero_point)| match positional_input(node, zero_point) {
            Some(_) => is_constant(zero_point),
            None => is_constant(scale),
        });
        parameters && one.limits.iter().all(|&at| is_constant(at))
    }

    /// The type of a group.
    fn element(&self, group: &CodeGroup) -> Option<Element> {
        let stated = group.uses.iter().find_map(|(position, one)| {
            let zero_point = positional_input(&self.graph.node[*position], one.parameters?.1)?;
            self.index.constant(self.graph, zero_point).map(data_type)
        });
        let known = || group.tensors.iter().find_map(|tensor| self.types.data_type(tensor));
        element_of(stated.or_else(known)?)
    }

    /// Whether some of a group quantizes, dequantizes or computes: otherwise it is data that moves.
    fn is_codes(group: &CodeGroup) -> bool {
        group.uses.iter().any(|(_, one)| one.parameters.is_some())
    }

    /// Returns whether a group holds constants that products multiply with.
    fn is_weight(&self, group: &CodeGroup) -> bool {
        const PRODUCTS: &[&str] = &["Conv", "ConvTranspose", "Gemm", "MatMul"];
        let factor = |(position, one): &(usize, CodesUse)| {
            let node = &self.graph.node[*position];
            let floats = node.output.first().filter(|_| node.op_type() == "DequantizeLinear");
            let mut readers = floats
                .into_iter()
                .flat_map(|floats| self.index.consumers(floats).iter().map(move |&at| (&self.graph.node[at], floats)));
            one.is_factor
                || readers
                    .any(|(reader, floats)| PRODUCTS.contains(&reader.op_type()) && reader.input.get(1) == Some(floats))
        };
        self.is_stored(group) && group.uses.iter().any(factor)
    }

    fn is_stored(&self, group: &CodeGroup) -> bool {
        group.tensors.iter().any(|tensor| self.is_constant(tensor))
    }

    /// The type that is asked of a group.
    fn asked(&self, group: &CodeGroup, to: CodeTypes) -> Element {
        if self.is_weight(group) { to.weight } else { to.activation }
    }

    /// What gives all codes the types.
    ///
    /// # Errors
    /// An integer operator without a kernel of the types.
    pub fn changes(&self, to: CodeTypes) -> Result<SignChanges, ToolError> {
        let mut changes = SignChanges::default();
        let mut made: HashMap<&str, Element> = HashMap::new();
        for group in self.groups.iter().filter(|group| Self::is_codes(group)) {
            let Some(element) = self.element(group) else { continue };
            let asked = self.asked(group, to);
            let name = || group.tensors.first().cloned().unwrap_or_default();
            let is_alike = asked.integer_bits() == element.integer_bits();
            if !is_alike {
                changes.of_other_widths.push(name());
            }
            let target = if is_alike { asked } else { element };
            let is_left = group.is_fixed && target != element;
            let given = if is_left { element } else { target };
            made.extend(group.tensors.iter().map(|tensor| (tensor.as_str(), given)));
            match (is_left, target == element) {
                (true, _) => changes.left.push(name()),
                (false, true) => {}
                (false, false) => self.change(group, element, &mut changes),
            }
        }
        self.refuse_missing_kernels(&made)?;
        Ok(changes)
    }

    fn change(&self, group: &CodeGroup, element: Element, changes: &mut SignChanges) {
        let (stored, computed): (Vec<&String>, Vec<&String>) =
            group.tensors.iter().partition(|tensor| self.is_constant(tensor));
        if stored.is_empty() {
            changes.activations += computed.len();
        }
        changes.constants += stored.len();
        changes.computed.extend(computed.into_iter().cloned());
        for (position, one) in &group.uses {
            let node = &self.graph.node[*position];
            let codes = one.input.filter(|_| self.is_constant(&one.tensor));
            changes.places.extend(codes.iter().chain(&one.limits).map(|&at| (*position, at)));
            let Some((scale, zero_point)) = one.parameters else { continue };
            match positional_input(node, zero_point) {
                Some(_) => changes.places.push((*position, zero_point)),
                None => changes.added.push(AddedZeroPoint { node: *position, scale, zero_point, element }),
            }
            if int_attribute(node, "output_dtype").is_some_and(|stated| stated != 0) && is(node, "QuantizeLinear") {
                changes.stated.push((*position, other_sign(element)));
            }
        }
    }

    /// ONNX Runtime has no products of int8 data with uint8 weights.
    fn refuse_missing_kernels(&self, made: &HashMap<&str, Element>) -> Result<(), ToolError> {
        let products = self.graph.node.iter().filter(|node| of_integer(node).is_some());
        for node in products {
            let CodesNode::Joined(uses) = codes_of(node) else { continue };
            let type_of = |one: Option<&CodesUse>| one.and_then(|one| made.get(one.tensor.as_str()).copied());
            let weight = type_of(uses.iter().find(|one| one.is_factor));
            if (type_of(uses.first()), weight) == (Some(Element::Int8), Some(Element::UInt8)) {
                let reason = format!("{} has no kernel of int8 data with uint8 weights", node.op_type());
                return Err(ToolError::NotRetyped { name: called(node).to_owned(), reason });
            }
        }
        Ok(())
    }
}

/// A zero point that is left out, which is zero.
struct AddedZeroPoint {
    node: usize,
    scale: usize,
    zero_point: usize,
    /// The type of the codes before.
    element: Element,
}

/// Codes that get the other sign.
#[derive(Default)]
pub(super) struct SignChanges {
    /// Places that read constants of such codes.
    places: Vec<InputPlace>,
    added: Vec<AddedZeroPoint>,
    /// Nodes that state a type in an attribute.
    stated: Vec<(usize, Element)>,
    /// Tensors whose declared type changes.
    computed: HashSet<String>,
    /// Number of computed tensors.
    pub activations: usize,
    /// Number of constants.
    pub constants: usize,
    /// Tensors that keep their type.
    pub left: Vec<String>,
    /// Tensors that keep their type as they have another number of bits.
    pub of_other_widths: Vec<String>,
}

impl SignChanges {
    /// Makes the changes.
    ///
    /// # Errors
    /// Constants that cannot be read or kept.
    pub fn apply(self, graph: &mut GraphProto, spill: Option<&Spill>) -> Result<(), ToolError> {
        let mut names = Names::of(graph);
        self.constants(graph, &mut names, spill)?;
        self.zero_points(graph, &mut names, spill)?;
        for (position, element) in &self.stated {
            let stated = element.data_type().unwrap_or(DataType::UINT8);
            set_attribute(&mut graph.node[*position], "output_dtype", stated as i64);
        }
        for value in graph.value_info.iter_mut().filter(|value| self.computed.contains(value.name())) {
            let Some(TypeValue::TensorType(known)) = value.type_.as_mut().and_then(|t| t.value.as_mut()) else {
                continue;
            };
            let declared = EnumOrUnknown::from_i32(known.elem_type.unwrap_or(0)).enum_value_or(DataType::UNDEFINED);
            known.elem_type = element_of(declared)
                .and_then(|element| other_sign(element).data_type())
                .map(|t| t as i32)
                .or(known.elem_type);
        }
        Ok(())
    }

    /// Constants change in place where all that reads them is changed; others get a copy beside them.
    fn constants(&self, graph: &mut GraphProto, names: &mut Names, spill: Option<&Spill>) -> Result<(), ToolError> {
        let mut places: BTreeMap<String, Vec<InputPlace>> = BTreeMap::new();
        for &(node, at) in &self.places {
            places.entry(graph.node[node].input[at].clone()).or_default().push((node, at));
        }
        let index = Index::new(graph);
        let mut reads: HashMap<String, usize> = HashMap::new();
        for_each_node(graph, &mut |node| {
            node.input.iter().for_each(|name| *reads.entry(name.clone()).or_default() += 1)
        });
        for (name, mut places) in places {
            places.sort_unstable();
            places.dedup();
            let Some(at) = index.initializer(&name) else { continue };
            let is_whole = reads.get(&name) == Some(&places.len()) && !index.is_output(&name);
            let wanted = if is_whole { name.clone() } else { names.fresh(&name) };
            let changed: TensorProto = of_other_sign(&graph.initializer[at], &wanted, spill)?;
            if is_whole {
                graph.initializer[at] = changed;
            } else {
                graph.initializer.push(changed);
                places.iter().for_each(|&(node, at)| graph.node[node].input[at].clone_from(&wanted));
            }
        }
        Ok(())
    }

    fn zero_points(&self, graph: &mut GraphProto, names: &mut Names, spill: Option<&Spill>) -> Result<(), ToolError> {
        let mut made: HashMap<(DataType, Vec<usize>), String> = HashMap::new();
        for added in &self.added {
            let index = Index::new(graph);
            let scale = graph.node[added.node].input.get(added.scale).and_then(|name| index.constant(graph, name));
            let Some(sizes) = scale.filter(|t| element_count(t).is_ok()).and_then(|t| shape(t).ok()) else { continue };
            let element = added.element.data_type().unwrap_or(DataType::INT8);
            let name = match made.get(&(element, sizes.clone())) {
                Some(name) => name.clone(),
                None => {
                    let name = names.fresh("zero_point");
                    graph.initializer.push(of_other_sign(&zero_tensor(&name, element, &sizes), &name, spill)?);
                    made.insert((element, sizes), name.clone());
                    name
                }
            };
            let inputs = &mut graph.node[added.node].input;
            inputs.resize(inputs.len().max(added.zero_point + 1), String::new());
            inputs[added.zero_point] = name;
        }
        Ok(())
    }
}
