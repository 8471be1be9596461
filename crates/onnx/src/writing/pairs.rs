//! QuantizeLinear and DequantizeLinear around float operators: the Q/DQ layout.
//!
//! Names, as loaders and tools of the field know them: `<t>_QuantizeLinear`, `<t>_DequantizeLinear`, their outputs with
//! `_Output` behind, `<t>_scale`, `<t>_zero_point`, `<w>_quantized`; the DequantizeLinear of a bias makes the bias's own name, and
//! what made a quantized graph output `y` makes `y_QuantizeLinear_Input` instead. A name that the graph has already gets a number.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use kvant_container::onnx::{DataType, GraphProto, ModelProto, NodeProto, Spill, TensorProto, keep, shape, tensor};

use super::boundary;
use super::operators::{Dialect, MICROSOFT, Operators, QUARK, linear_node};
use super::tables;
use super::tensor_names::TensorNames;
use crate::calibration_method::weight_codes;
use crate::element::Element;
use crate::error::QuantizeError;
use crate::graph::{Index, add_opset, bodies_mut, cast_node, set_attribute};
use crate::placement::{Activation, Bias, Placement, Weight};
use crate::quantization::{Affine, pack};
use crate::recipe::Recipe;
use crate::solution::bias_scales::{magnitudes, wide_enough};
use crate::solution::{Solution, unit, values};

/// Rewrites the graph. New contents that are large go to `spill`.
pub fn write_pairs(
    model: &mut ModelProto,
    recipe: &Recipe,
    placement: &Placement,
    solution: &Solution,
    spill: Option<&Spill>,
) -> Result<(), QuantizeError> {
    let Some(graph) = model.graph.as_mut() else { return Ok(()) };
    // Positions are those of the placement: read before nodes are dropped.
    let unit_of = |bias: &Bias| graph.node.get(bias.node).map_or(1.0, unit);
    let units = placement.biases.iter().map(|(name, bias)| (name.clone(), unit_of(bias))).collect();
    drop_nodes(graph, &placement.dropped);
    let dialect = Dialect::of(recipe);
    let index = Index::new(graph);
    let names = TensorNames::of(graph);
    let made = WrittenPair::default();
    let mut writer = PairWriter { placement, solution, spill, dialect, index, units, names, made };
    writer.constants(graph)?;
    writer.activations()?;
    let PairWriter { made, .. } = writer;
    made.apply(graph, placement);
    tables::dequantize_rows(graph);
    boundary::apply(graph, recipe.boundary);
    for domain in [MICROSOFT, QUARK] {
        if model.graph.node.iter().any(|node| node.domain() == domain) {
            add_opset(model, domain, 1);
        }
    }
    Ok(())
}

/// Takes out nodes with one input and one output that their range makes superfluous.
fn drop_nodes(graph: &mut GraphProto, positions: &[usize]) {
    let dropped: BTreeSet<usize> = positions.iter().copied().collect();
    let renamed: HashMap<String, String> =
        dropped.iter().map(|&i| (graph.node[i].input[0].clone(), graph.node[i].output[0].clone())).collect();
    let mut position = 0;
    graph.node.retain(|_| {
        position += 1;
        !dropped.contains(&(position - 1))
    });
    for output in graph.node.iter_mut().flat_map(|node| &mut node.output) {
        // One dropped node may follow another.
        while let Some(name) = renamed.get(output) {
            output.clone_from(name);
        }
    }
}

/// The additions to the graph.
#[derive(Default)]
struct WrittenPair {
    initializers: Vec<TensorProto>,
    /// Nodes that read constants only: they come first.
    constants: Vec<NodeProto>,
    /// The nodes behind each computed tensor.
    behind: BTreeMap<String, Vec<NodeProto>>,
    /// The replacement that the operators read instead of a tensor.
    reads: HashMap<String, String>,
    /// The replacement that the operators produce instead of a tensor.
    makes: HashMap<String, String>,
    /// Initializers that have been replaced.
    replaced: BTreeSet<String>,
}

struct PairWriter<'a> {
    placement: &'a Placement,
    solution: &'a Solution,
    spill: Option<&'a Spill>,
    dialect: Dialect,
    index: Index,
    /// The factor of each bias's product.
    units: HashMap<String, f32>,
    names: TensorNames,
    made: WrittenPair,
}

impl PairWriter<'_> {
    fn constants(&mut self, graph: &GraphProto) -> Result<(), QuantizeError> {
        for (name, weight) in &self.placement.weights {
            let Some(tensor) = self.index.constant(graph, name) else { continue };
            match weight.scheme.element {
                Element::Block(block) => self.block_constant(name, block, weight),
                _ => self.weight(name, tensor, weight)?,
            }
        }
        for (name, bias) in &self.placement.biases {
            let Some(tensor) = self.index.constant(graph, name) else { continue };
            self.bias(name, tensor, bias)?;
        }
        Ok(())
    }

    fn block_constant(&mut self, name: &str, block: crate::element::Block, weight: &Weight) {
        let output = self.names.of_tensor(name, "_DequantizeLinear_Output");
        let node_name = format!("{name}_DequantizeLinear");
        self.made.constants.push(self.dialect.block_node(block, &node_name, name, &output, weight.block_axis));
        self.made.reads.insert(name.to_owned(), output);
    }

    fn weight(&mut self, name: &str, source: &TensorProto, weight: &Weight) -> Result<(), QuantizeError> {
        let Some(parameters) = self.solution.weights.get(name) else { return Ok(()) };
        let operators = self.dialect.operators(weight.scheme.element, true)?;
        let output = self.names.of_tensor(name, "_DequantizeLinear_Output");
        if operators != Operators::Cast {
            self.parameters(name, parameters, weight.scheme.element, weight.axis, source.dims.len());
        }
        let axis = weight.axis.filter(|_| parameters.len() > 1 || source.dims.len() > 1);
        if operators == Operators::Extended {
            self.weight_pair(name, operators, axis, &output);
        } else {
            self.stored_weight(name, source, weight, parameters, operators, axis, &output)?;
        }
        self.made.reads.insert(name.to_owned(), output);
        Ok(())
    }

    /// The float constant, quantized and dequantized by operators.
    fn weight_pair(&mut self, name: &str, operators: Operators, axis: Option<usize>, output: &str) {
        let between = self.names.of_tensor(name, "_QuantizeLinear_Output");
        let parameters = self.names(name);
        let pair = self.pair(name, name, operators, &between, output, &parameters, axis);
        self.made.constants.extend(pair);
    }

    #[expect(clippy::too_many_arguments, reason = "one call")]
    fn stored_weight(
        &mut self,
        name: &str,
        source: &TensorProto,
        weight: &Weight,
        parameters: &[Affine],
        operators: Operators,
        axis: Option<usize>,
        output: &str,
    ) -> Result<(), QuantizeError> {
        let shape = shape(source)?;
        let element = weight.scheme.element;
        let codes = match self.solution.codes.get(name) {
            Some(chosen) => pack(&chosen.iter().map(|&code| i64::from(code)).collect::<Vec<_>>(), element),
            None => weight_codes(&values(source)?, &shape, weight.axis, parameters, weight.method()),
        };
        let stored = self.names.of_tensor(name, "_quantized");
        let data_type = element.data_type().unwrap_or(DataType::FLOAT);
        self.made.initializers.push(tensor(&stored, data_type, &shape, keep(self.spill, codes)?));
        self.made.replaced.insert(name.to_owned());
        let node_name = format!("{name}_DequantizeLinear");
        let made = match operators {
            Operators::Cast => cast_node(&node_name, &stored, output, DataType::FLOAT),
            _ => {
                let (scale, zero_point) = self.names(name);
                self.with_axis(linear_node(operators, false, &node_name, &[&stored, &scale, &zero_point], output), axis)
            }
        };
        self.made.constants.push(made);
        Ok(())
    }

    /// `q = round(b / (s_input * s_weight))`, one scale for each channel of the weight; the scales of int16 codes are larger if the
    /// bias asks for it.
    fn bias(&mut self, name: &str, source: &TensorProto, bias: &Bias) -> Result<(), QuantizeError> {
        let Some(weights) = self.solution.weights.get(&bias.weight) else { return Ok(()) };
        let Some(input) = self.input_affine(&bias.input) else { return Ok(()) };
        let element = bias.element;
        let unit = self.units.get(name).copied().unwrap_or(1.0);
        let scales: Vec<f32> = weights.iter().map(|w| input.scale * w.scale * unit).collect();
        let (source_values, source_shape) = (values(source)?, shape(source)?);
        // A bias that is broadcast has not one element for each scale.
        if scales.len() > 1 && source_values.len() != scales.len() {
            return Ok(());
        }
        let axis = (scales.len() > 1).then(|| source_shape.iter().position(|&d| d == scales.len()).unwrap_or(0));
        let scales = match element {
            Element::Int16 => wide_enough(&scales, &magnitudes(&source_values, scales.len()), element),
            _ => scales,
        };
        let codes = bias_codes(&source_values, &scales, element);
        let stored = self.names.of_tensor(name, "_quantized");
        let (scale, zero_point) = self.names(&stored);
        let data_type = element.data_type().unwrap_or(DataType::INT32);
        let contents = keep(self.spill, pack(&codes, element))?;
        self.made.initializers.push(tensor(&stored, data_type, &source_shape, contents));
        self.scale_tensor(&scale, &scales, scales.len() > 1);
        let zeros = vec![0; scales.len()];
        self.zero_point_tensor(&zero_point, &zeros, element, scales.len() > 1);
        let operators = self.dialect.operators(element, true)?;
        let inputs = [stored.as_str(), &scale, &zero_point];
        let made = linear_node(operators, false, &format!("{name}_DequantizeLinear"), &inputs, name);
        let made = self.with_axis(made, axis);
        self.made.constants.push(made);
        self.made.replaced.insert(name.to_owned());
        Ok(())
    }

    /// Scale of what a product reads: an activation, or a constant.
    fn input_affine(&self, name: &str) -> Option<Affine> {
        let activation = self.solution.activations.get(name).copied();
        activation.or_else(|| self.solution.weights.get(name).and_then(|w| w.first()).copied())
    }

    fn activations(&mut self) -> Result<(), QuantizeError> {
        for (name, activation) in &self.placement.activations {
            let made_by_graph = self.index.producer(name).is_some() || self.index.is_input(name);
            if !made_by_graph {
                continue;
            }
            let is_output = self.index.is_output(name) && !self.index.is_input(name);
            let source = if is_output { self.names.of_tensor(name, "_QuantizeLinear_Input") } else { name.clone() };
            let output = if is_output { name.clone() } else { self.names.of_tensor(name, "_DequantizeLinear_Output") };
            let nodes = match activation.scheme.element {
                Element::Block(block) => {
                    let node_name = format!("{name}_DequantizeLinear");
                    vec![self.dialect.block_node(block, &node_name, &source, &output, activation.block_axis)]
                }
                _ if activation.channels.is_some() => self.channel_pair(name, activation, &source, &output)?,
                element => self.activation_pair(name, element, activation.provider.as_deref(), &source, &output)?,
            };
            self.made.behind.insert(name.clone(), nodes);
            match is_output {
                true => self.made.makes.insert(name.clone(), source),
                false => self.made.reads.insert(name.clone(), output),
            };
        }
        Ok(())
    }

    fn activation_pair(
        &mut self,
        name: &str,
        element: Element,
        provider: Option<&str>,
        source: &str,
        output: &str,
    ) -> Result<Vec<NodeProto>, QuantizeError> {
        let operators = self.dialect.operators(element, false)?;
        let Some(&affine) = self.solution.activations.get(name) else { return Ok(Vec::new()) };
        if provider.is_none() && operators != Operators::Cast {
            self.parameters(name, &[affine], element, None, 0);
        }
        let between = self.names.of_tensor(name, "_QuantizeLinear_Output");
        if operators == Operators::Cast {
            let narrow = element.data_type().unwrap_or(DataType::FLOAT);
            let there = cast_node(&format!("{name}_QuantizeLinear"), source, &between, narrow);
            let back = cast_node(&format!("{name}_DequantizeLinear"), &between, output, DataType::FLOAT);
            return Ok(vec![there, back]);
        }
        let names = self.names(provider.unwrap_or(name));
        Ok(self.pair(name, source, operators, &between, output, &names, None))
    }

    /// The pair of a tensor with a scale for each channel.
    fn channel_pair(
        &mut self,
        name: &str,
        activation: &Activation,
        source: &str,
        output: &str,
    ) -> Result<Vec<NodeProto>, QuantizeError> {
        let element = activation.scheme.element;
        let operators = self.dialect.operators(element, false)?;
        let Some(parameters) = self.solution.channels.get(name) else { return Ok(Vec::new()) };
        let axis = activation.channels.map(|channels| channels.axis);
        self.parameters(name, parameters, element, axis, 1);
        let between = self.names.of_tensor(name, "_QuantizeLinear_Output");
        let parameters = self.names(name);
        Ok(self.pair(name, source, operators, &between, output, &parameters, axis))
    }

    /// The two nodes of a tensor.
    #[expect(clippy::too_many_arguments, reason = "the names of one pair")]
    fn pair(
        &self,
        name: &str,
        source: &str,
        operators: Operators,
        between: &str,
        output: &str,
        parameters: &(String, String),
        axis: Option<usize>,
    ) -> Vec<NodeProto> {
        let (q, dq) = (format!("{name}_QuantizeLinear"), format!("{name}_DequantizeLinear"));
        let (scale, zero_point) = parameters;
        let quantize = linear_node(operators, true, &q, &[source, scale, zero_point], between);
        let dequantize = linear_node(operators, false, &dq, &[between, scale, zero_point], output);
        vec![self.with_axis(quantize, axis), self.with_axis(dequantize, axis)]
    }

    fn with_axis(&self, mut made: NodeProto, axis: Option<usize>) -> NodeProto {
        if let Some(axis) = axis {
            set_attribute(&mut made, "axis", axis as i64);
        }
        made
    }

    /// The names of scale and zero point.
    fn names(&mut self, tensor: &str) -> (String, String) {
        (self.names.of_tensor(tensor, "_scale"), self.names.of_tensor(tensor, "_zero_point"))
    }

    /// The initializers of scale and zero point.
    fn parameters(&mut self, name: &str, parameters: &[Affine], element: Element, axis: Option<usize>, rank: usize) {
        let (scale, zero_point) = self.names(name);
        let vector = axis.is_some() && rank > 0;
        let scales: Vec<f32> = parameters.iter().map(|p| p.scale).collect();
        let zero_points: Vec<i64> = parameters.iter().map(|p| p.zero_point).collect();
        self.scale_tensor(&scale, &scales, vector);
        self.zero_point_tensor(&zero_point, &zero_points, element, vector);
    }

    fn scale_tensor(&mut self, name: &str, scales: &[f32], vector: bool) {
        let bytes: Vec<u8> = scales.iter().flat_map(|s| s.to_le_bytes()).collect();
        let shape = if vector { vec![scales.len()] } else { vec![] };
        self.made.initializers.push(tensor(name, DataType::FLOAT, &shape, bytes));
    }

    fn zero_point_tensor(&mut self, name: &str, zero_points: &[i64], element: Element, vector: bool) {
        let shape = if vector { vec![zero_points.len()] } else { vec![] };
        let data_type = element.data_type().unwrap_or(DataType::FLOAT);
        self.made.initializers.push(tensor(name, data_type, &shape, pack(zero_points, element)));
    }
}

/// Codes of a bias in f64: the scales are so small that f32 would round twice.
fn bias_codes(values: &[f32], scales: &[f32], element: Element) -> Vec<i64> {
    let limits = element
        .full_range()
        .unwrap_or(crate::quantization::CodeRange { min: i64::from(i32::MIN), max: i64::from(i32::MAX) });
    let scale = |i: usize| f64::from(scales[i % scales.len()]);
    let code =
        |(i, &v): (usize, &f32)| ((f64::from(v) / scale(i)).round_ties_even() as i64).clamp(limits.min, limits.max);
    values.iter().enumerate().map(code).collect()
}

impl WrittenPair {
    fn apply(mut self, graph: &mut GraphProto, placement: &Placement) {
        let old = std::mem::take(&mut graph.node);
        let mut nodes = std::mem::take(&mut self.constants);
        let inputs: Vec<String> = graph.input.iter().map(|v| v.name().to_owned()).collect();
        nodes.extend(inputs.iter().filter_map(|name| self.behind.remove(name)).flatten());
        for mut node in old {
            let outputs = node.output.clone();
            self.rename(&mut node);
            bodies_mut(&mut node).for_each(|body| self.rename_weights(body, placement));
            nodes.push(node);
            nodes.extend(outputs.iter().filter_map(|name| self.behind.remove(name)).flatten());
        }
        graph.node = nodes;
        let index = Index::new(graph);
        graph.initializer.retain(|t| {
            !self.replaced.contains(t.name()) || index.is_read(t.name()) && !placement.biases.contains_key(t.name())
        });
        graph.initializer.append(&mut self.initializers);
        graph.value_info.retain(|v| !self.makes.contains_key(v.name()));
    }

    fn rename(&self, node: &mut NodeProto) {
        for input in &mut node.input {
            if let Some(name) = self.reads.get(input) {
                input.clone_from(name);
            }
        }
        for output in &mut node.output {
            if let Some(name) = self.makes.get(output) {
                output.clone_from(name);
            }
        }
    }

    /// Lets what is inside of a node read the weights that were quantized; what the main graph computes it reads in float.
    fn rename_weights(&self, body: &mut GraphProto, placement: &Placement) {
        for node in &mut body.node {
            for input in node.input.iter_mut().filter(|name| placement.weights.contains_key(*name)) {
                if let Some(name) = self.reads.get(input) {
                    input.clone_from(name);
                }
            }
            bodies_mut(node).for_each(|inner| self.rename_weights(inner, placement));
        }
    }
}
