//! Float operators between Q/DQ pairs in place of integer ones.

use std::collections::{HashMap, HashSet};

use kvant_container::onnx::{
    DataType, GraphProto, ModelProto, NodeProto, TensorProto, data_type, element_count, shape, tensor,
};

use super::to_qoperator::zero_tensor;
use super::{ToolError, forget_idle_domains, inlined};
use crate::graph::{
    Index, Names, NodeNames, STANDARD_DOMAIN, called, float_attribute, for_each_node, int_attribute, is, node, opset,
    order, positional_input, set_attribute, sort, take_attribute,
};
use crate::kernel::linear::constant;
use crate::pass::{Context, Pass, upgrade_opset};
use crate::shape::{Types, infer};
use crate::writing::integer_operators::{
    CodesAt, IntegerInputs, OperatorForm, OperatorRow, computes_with_codes, of_integer,
};
use crate::writing::lift_constants;

/// The results of [`to_qdq`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Separated {
    /// Nodes that compute with floats now, or move them.
    pub operators: usize,
    /// Nodes that compute with codes still: they have no float operator here, or their scales are computed.
    pub left: Vec<String>,
}

/// The opset from which on QuantizeLinear and DequantizeLinear take a scale for each channel.
const PER_CHANNEL: i64 = 13;

/// Replaces integer operators by float operators between DequantizeLinear and QuantizeLinear with the same scales, zero points and codes. A
/// bias becomes a DequantizeLinear of its int32 codes with the scale of the product. What moves codes moves floats. A Clip of codes becomes a
/// Relu or Clip before the QuantizeLinear, which gives the same codes.
///
/// # Errors
/// [`ToolError::NothingToSeparate`] for a graph in which nothing is replaced, and an operator that a newer opset cannot express, where scales
/// of channels need one.
pub fn to_qdq(model: &mut ModelProto) -> Result<Separated, ToolError> {
    let node_names = NodeNames::of(&model.graph);
    let mut made = inlined(model)?;
    lift_constants(&mut made);
    if opset(&made, STANDARD_DOMAIN).is_some_and(|version| version < PER_CHANNEL) && has_channels(&made.graph) {
        upgrade_opset(&mut made, PER_CHANNEL)?;
        lift_constants(&mut made);
    }
    let types = infer(&made);
    let version = opset(&made, STANDARD_DOMAIN).unwrap_or(1);
    let graph = separated(&made.graph, &types, version)?;
    let operators = graph.operators;
    let mut left = Vec::new();
    made.graph = kvant_container::onnx::MessageField::some(graph.graph);
    for_each_node(&made.graph, &mut |node| {
        if computes_with_codes(node) {
            left.push(called(node).to_owned());
        }
    });
    if operators == 0 {
        return Err(ToolError::NothingToSeparate { left: left.len() });
    }
    if let Some(graph) = made.graph.as_mut() {
        sort(graph)?;
        node_names.tell_apart(graph);
    }
    Pass::named("dead-nodes")?.run(&mut made, &Context::default())?;
    forget_idle_domains(&mut made, &["com.microsoft"]);
    *model = made;
    Ok(Separated { operators, left })
}

/// Returns whether an integer operator has a weight with several scales.
fn has_channels(graph: &GraphProto) -> bool {
    let index = Index::new(graph);
    let several = |name: &String| {
        index
            .constant(graph, name)
            .is_some_and(|t| data_type(t) == DataType::FLOAT && element_count(t).is_ok_and(|n| n > 1))
    };
    graph.node.iter().filter(|node| computes_with_codes(node)).any(|node| node.input.iter().any(several))
}

/// A graph whose integer operators are float ones.
struct SeparatedGraph {
    graph: GraphProto,
    operators: usize,
}

fn separated(graph: &GraphProto, types: &Types, opset: i64) -> Result<SeparatedGraph, ToolError> {
    let mut separator = Separator {
        graph,
        index: Index::new(graph),
        types,
        opset,
        names: Names::of(graph),
        known: HashMap::new(),
        dequantized: HashMap::new(),
        nodes: Vec::new(),
        constants: Vec::new(),
        done: HashSet::new(),
        operators: 0,
    };
    graph.node.iter().for_each(|node| separator.remember(node));
    for position in order(graph)? {
        separator.node(position);
    }
    let Separator { nodes, constants, operators, .. } = separator;
    let mut made = graph.clone();
    made.node = nodes;
    made.initializer.extend(constants);
    Ok(SeparatedGraph { graph: made, operators })
}

/// The scale and zero point of a tensor of codes, and their axis where there are several.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Parameters {
    scale: String,
    /// Empty where it is left out, which is zero.
    zero_point: String,
    axis: Option<i64>,
}

struct Separator<'g> {
    graph: &'g GraphProto,
    index: Index,
    types: &'g Types,
    opset: i64,
    names: Names,
    /// How computed codes were made.
    known: HashMap<String, Parameters>,
    /// The floats of codes.
    dequantized: HashMap<(String, Parameters), String>,
    nodes: Vec<NodeProto>,
    constants: Vec<TensorProto>,
    /// Nodes that went with the one before them.
    done: HashSet<usize>,
    operators: usize,
}

impl<'g> Separator<'g> {
    /// Keeps in mind what there is for a node that quantizes or dequantizes with one scale.
    fn remember(&mut self, pair: &NodeProto) {
        let (Some(first), Some(output)) = (pair.input.first(), pair.output.first()) else { return };
        let Some(scale) = positional_input(pair, 1).filter(|scale| self.count(scale) == Some(1)) else { return };
        let zero_point = positional_input(pair, 2).unwrap_or_default().to_owned();
        let parameters = Parameters { scale: scale.to_owned(), zero_point, axis: None };
        match pair.op_type() {
            "QuantizeLinear" => drop(self.known.insert(output.clone(), parameters)),
            "DequantizeLinear" if is(pair, "DequantizeLinear") && !self.index.is_output(output) => {
                self.dequantized.entry((first.clone(), parameters)).or_insert_with(|| output.clone());
            }
            _ => {}
        }
    }

    /// Elements of a constant.
    fn count(&self, name: &str) -> Option<usize> {
        element_count(self.index.constant(self.graph, name)?).ok()
    }

    /// The numbers of a constant.
    fn numbers(&self, name: &str) -> Option<Vec<f32>> {
        Some(constant(self.index.constant(self.graph, name)?)?.to_f32s().to_vec())
    }

    fn node(&mut self, position: usize) {
        let graph = self.graph;
        let old = &graph.node[position];
        if self.done.contains(&position) {
            return;
        }
        let made = match of_integer(old) {
            Some(row) if row.is_move() => self.moved(old),
            Some(row) => self.computed(old, row),
            None if is(old, "Clip") => self.clipped(old),
            None => None,
        };
        match made {
            Some(()) => self.operators += 1,
            None => self.nodes.push(old.clone()),
        }
    }

    /// An integer operator as a float one.
    fn computed(&mut self, old: &NodeProto, row: &OperatorRow) -> Option<()> {
        let inputs = row.inputs(old.input.len())?;
        let mut made = self.float_operator(old, row)?;
        let output = old.output.first()?;
        let operands = self.operands(old, row, &inputs)?;
        let element = self.types.data_type(output).or_else(|| self.element(&operands.first()?.0, &operands.first()?.1));
        let target = self.parameters(old, inputs.scale, inputs.zero_point, None)?;
        let bias = match inputs.bias.and_then(|at| positional_input(old, at)) {
            Some(bias) => Some(self.bias(old, bias, &operands)?),
            None => None,
        };
        let target = self.with_zero_point(target, element?)?;
        made.input = operands.iter().map(|(codes, parameters)| self.floats(codes, parameters)).collect();
        made.input.extend(bias.map(|(codes, parameters)| self.floats(&codes, &parameters)));
        let floats = self.names.fresh(&format!("{output}_QuantizeLinear_Input"));
        made.output = vec![floats.clone()];
        self.nodes.push(made);
        self.quantized(floats, output, target);
        Some(())
    }

    /// The float operator with its attributes. `None` where it has another meaning.
    fn float_operator(&self, old: &NodeProto, row: &OperatorRow) -> Option<NodeProto> {
        let mut made = NodeProto { domain: None, op_type: Some(row.op_type.to_owned()), ..old.clone() };
        if take_attribute(&mut made, "channels_last").is_some_and(|attribute| attribute.i != Some(0)) {
            return None;
        }
        if row.op_type == "Softmax" {
            let stated = take_attribute(&mut made, "opset").and_then(|attribute| attribute.i)?;
            let axis = int_attribute(old, "axis").unwrap_or(-1);
            let rank = self.types.rank(old.input.first()?).map(|rank| rank as i64);
            let is_last = axis == -1 || rank.is_some_and(|rank| axis == rank - 1);
            // Older ones take all axes from this one on together.
            if (stated < 13) != (self.opset < 13) && !is_last {
                return None;
            }
            set_attribute(&mut made, "axis", axis);
        }
        Some(made)
    }

    /// The codes of each operand with their parameters.
    fn operands(
        &self,
        old: &NodeProto,
        row: &OperatorRow,
        inputs: &IntegerInputs,
    ) -> Option<Vec<(String, Parameters)>> {
        let is_weight =
            |at: usize| at == 1 && matches!(row.form, OperatorForm::Conv | OperatorForm::MatMul | OperatorForm::Gemm);
        let operand = |(at, position): (usize, &CodesAt)| {
            let codes = positional_input(old, position.codes)?;
            let axis = if is_weight(at) { self.weight_axis(old, row.form, codes) } else { None };
            let parameters = self.parameters(old, position.scale, position.zero_point, axis)?;
            Some((codes.to_owned(), parameters))
        };
        inputs.operands.iter().enumerate().map(operand).collect()
    }

    /// The axis of a weight whose entries each have a scale.
    fn weight_axis(&self, product: &NodeProto, form: OperatorForm, codes: &str) -> Option<i64> {
        let is_transposed = int_attribute(product, "transB").unwrap_or(0) != 0;
        match form {
            OperatorForm::Conv => Some(0),
            OperatorForm::Gemm if is_transposed => Some(0),
            _ => Some(self.types.rank(codes)? as i64 - 1),
        }
    }

    /// The constant scale and zero point at two positions: one, or one for each entry of an axis.
    fn parameters(&self, old: &NodeProto, scale: usize, zero_point: usize, axis: Option<i64>) -> Option<Parameters> {
        let scale = positional_input(old, scale)?;
        let count = self.count(scale)?;
        let axis = if count == 1 { None } else { Some(axis?) };
        let zero_point = positional_input(old, zero_point).unwrap_or_default();
        let fits = zero_point.is_empty() || self.count(zero_point) == Some(count);
        fits.then(|| Parameters { scale: scale.to_owned(), zero_point: zero_point.to_owned(), axis })
    }

    /// The type of codes.
    fn element(&self, codes: &str, parameters: &Parameters) -> Option<DataType> {
        self.types.data_type(codes).or_else(|| self.types.data_type(&parameters.zero_point))
    }

    /// Parameters for QuantizeLinear, whose codes have the type of the zero point.
    fn with_zero_point(&mut self, parameters: Parameters, element: DataType) -> Option<Parameters> {
        if !parameters.zero_point.is_empty() {
            return Some(parameters);
        }
        let sizes = shape(self.index.constant(self.graph, &parameters.scale)?).ok()?;
        let zero_point = self.names.fresh("zero_point");
        self.constants.push(zero_tensor(&zero_point, element, &sizes));
        Some(Parameters { zero_point, ..parameters })
    }

    /// The codes of a bias and their scale, which is that of the product: `s_data * s_weight`, times the alpha of a Gemm.
    fn bias(&mut self, old: &NodeProto, bias: &str, operands: &[(String, Parameters)]) -> Option<(String, Parameters)> {
        let [(_, data), (_, weight)] = operands else { return None };
        let alpha = if old.op_type() == "QGemm" { float_attribute(old, "alpha").unwrap_or(1.0) } else { 1.0 };
        let data = self.numbers(&data.scale)?.first()? * alpha;
        let made: Vec<f32> = self.numbers(&weight.scale)?.iter().map(|&scale| data * scale).collect();
        let axis = match made.len() {
            1 => None,
            _ => Some(self.types.rank(bias)? as i64 - 1),
        };
        let scale = self.names.fresh(&format!("{bias}_scale"));
        let sizes: &[usize] = if axis.is_some() { &[made.len()] } else { &[] };
        let bytes: Vec<u8> = made.iter().flat_map(|scale| scale.to_le_bytes()).collect();
        self.constants.push(tensor(&scale, DataType::FLOAT, sizes, bytes));
        Some((bias.to_owned(), Parameters { scale, zero_point: String::new(), axis }))
    }

    /// The floats of codes: what there is, or a new DequantizeLinear.
    fn floats(&mut self, codes: &str, parameters: &Parameters) -> String {
        let key = (codes.to_owned(), parameters.clone());
        if let Some(floats) = self.dequantized.get(&key) {
            return floats.clone();
        }
        let floats = self.names.fresh(&format!("{codes}_DequantizeLinear_Output"));
        let inputs = [codes, &parameters.scale, &parameters.zero_point];
        let stated = if parameters.zero_point.is_empty() { &inputs[..2] } else { &inputs[..] };
        let name = format!("{codes}_DequantizeLinear");
        let mut made = node("DequantizeLinear", &name, stated, &[&floats]);
        if let Some(axis) = parameters.axis {
            set_attribute(&mut made, "axis", axis);
        }
        self.nodes.push(made);
        self.dequantized.insert(key, floats.clone());
        floats
    }

    /// QuantizeLinear of floats to codes, behind the limits of a Clip that alone reads the codes.
    fn quantized(&mut self, floats: String, codes: &str, parameters: Parameters) {
        let graph = self.graph;
        let clip = self.index.only_consumer(codes).filter(|&at| is(&graph.node[at], "Clip"));
        let limited = clip.and_then(|at| Some((at, self.limited(&graph.node[at], &floats, &parameters)?)));
        let Some((at, limited)) = limited else { return self.quantize(&floats, codes, parameters) };
        self.done.insert(at);
        let codes = graph.node[at].output.first().map_or(codes, String::as_str);
        self.quantize(&limited, codes, parameters);
    }

    fn quantize(&mut self, floats: &str, codes: &str, parameters: Parameters) {
        let inputs = [floats, &parameters.scale, &parameters.zero_point];
        self.nodes.push(node("QuantizeLinear", &format!("{codes}_QuantizeLinear"), &inputs, &[codes]));
        self.known.insert(codes.to_owned(), parameters);
    }

    /// Floats behind a Relu or Clip that limits them to what the limits of codes stand for. `None` where these are not constant.
    fn limited(&mut self, clip: &NodeProto, floats: &str, parameters: &Parameters) -> Option<String> {
        let number = |name: &str| self.numbers(name)?.first().copied();
        let zero_point = number(&parameters.zero_point)?;
        let scale = number(&parameters.scale)?;
        let element = data_type(self.index.constant(self.graph, &parameters.zero_point)?);
        let (lowest, highest) = if element == DataType::INT8 { (-128.0, 127.0) } else { (0.0, 255.0) };
        let bound = |at: usize| positional_input(clip, at).map_or(Some(None), |name| number(name).map(Some));
        let low = bound(1)?.filter(|&low| low > lowest);
        let high = bound(2)?.filter(|&high| high < highest);
        let is_relu = low.map_or(zero_point == lowest, |low| low == zero_point) && high.is_none();
        let output = self.names.fresh(&format!("{}_limited", clip.output.first()?));
        if is_relu {
            self.nodes.push(node("Relu", clip.name(), &[floats], &[&output]));
            return Some(output);
        }
        let mut inputs = vec![floats.to_owned()];
        for (what, code) in [("min", low), ("max", high)] {
            let name = code.map(|code| {
                let name = self.names.fresh(&format!("{output}_{what}"));
                let value = (code - zero_point) * scale;
                self.constants.push(tensor(&name, DataType::FLOAT, &[], value.to_le_bytes().to_vec()));
                name
            });
            inputs.push(name.unwrap_or_default());
        }
        while inputs.last().is_some_and(String::is_empty) {
            inputs.pop();
        }
        let mut made = node("Clip", clip.name(), &[], &[&output]);
        made.input = inputs;
        self.nodes.push(made);
        Some(output)
    }

    /// What moves codes with a known scale, between pairs.
    fn moved(&mut self, old: &NodeProto) -> Option<()> {
        let codes = old.input.first()?;
        let parameters = self.known.get(codes)?.clone();
        let mut made = old.clone();
        made.input[0] = self.floats(codes, &parameters);
        let outputs = made.output.iter_mut().take(if is(old, "MaxPool") { 1 } else { usize::MAX });
        let named: Vec<&mut String> = outputs.filter(|name| !name.is_empty()).collect();
        let mut pairs = Vec::new();
        for output in named {
            let floats = self.names.fresh(&format!("{output}_QuantizeLinear_Input"));
            pairs.push((floats.clone(), std::mem::replace(output, floats)));
        }
        self.nodes.push(made);
        pairs.into_iter().for_each(|(floats, codes)| self.quantized(floats, &codes, parameters.clone()));
        Some(())
    }

    /// A Clip of codes with a known scale, between pairs.
    fn clipped(&mut self, old: &NodeProto) -> Option<()> {
        let (codes, output) = (old.input.first()?, old.output.first()?);
        let parameters = self.known.get(codes)?.clone();
        let floats = self.floats(codes, &parameters);
        let limited = self.limited(old, &floats, &parameters)?;
        self.quantize(&limited, output, parameters);
        Some(())
    }
}

#[cfg(test)]
mod tests;
