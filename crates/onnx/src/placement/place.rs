//! From a graph and a recipe to the list of quantized tensors.

use std::collections::{HashMap, HashSet};

use kvant_container::onnx::{DataType, GraphProto, NodeProto};
use kvant_quant::glob::Glob;

use super::placed::{Activation, Bias, Placement, Skipped, Weight};
use super::rules::Rule;
use super::select::{in_subgraphs, is_excluded, is_selected, rule};
use crate::element::Element;
use crate::graph::{Index, bodies, called, int_attribute, is, positional_input};
use crate::masks::masked;
use crate::recipe::{BiasKind, Boundary, Layout, Override, Recipe, TensorScheme};

/// Decides. `data_type` tells the element type of a tensor, where it is known.
pub fn place(graph: &GraphProto, recipe: &Recipe, data_type: &dyn Fn(&str) -> Option<DataType>) -> Placement {
    let index = Index::new(graph);
    let masked = masked(graph, &index);
    let mut placer = Placer {
        graph,
        recipe,
        data_type,
        index,
        masked,
        made: Placement::default(),
        moved: HashMap::new(),
        computed: HashSet::new(),
        chosen: Vec::new(),
    };
    placer.run();
    placer.made
}

pub(super) struct Placer<'a> {
    pub(super) graph: &'a GraphProto,
    pub(super) recipe: &'a Recipe,
    data_type: &'a dyn Fn(&str) -> Option<DataType>,
    pub(super) index: Index,
    masked: HashSet<String>,
    pub(super) made: Placement,
    /// Tensors whose values are those of another: output by input of operators that only move values.
    pub(super) moved: HashMap<String, String>,
    /// Tensors that a quantized operator computes with or makes.
    pub(super) computed: HashSet<String>,
    /// The nodes that rules choose. Overrides may leave all their tensors in float.
    chosen: Vec<(&'a NodeProto, Rule)>,
}

impl<'a> Placer<'a> {
    fn run(&mut self) {
        let excluded = in_subgraphs(self.graph, &self.index, &self.recipe.selection.excluded_subgraphs);
        for position in 0..self.graph.node.len() {
            let node = &self.graph.node[position];
            if excluded.contains(&position) {
                continue;
            }
            self.bodies(node);
            let Some(rule) = rule(node, self.recipe.rules, &self.recipe.selection) else {
                self.made.skipped.extend(self.recurrent(node));
                continue;
            };
            match self.obstacle(node, rule) {
                Some(reason) => self.made.skipped.push(Skipped::new(node, reason)),
                None => self.place_node(position, node, rule),
            }
        }
        self.turn_blocks();
        self.remove_idle_moves();
        self.remove_fused();
        self.share();
        self.drop_clamps();
        self.check_biases();
        self.made.nodes += self.chosen.iter().filter(|(node, rule)| self.is_quantized(node, *rule)).count();
    }

    /// Whether something of a node has codes: of a product with a constant, the constant.
    fn is_quantized(&self, node: &NodeProto, rule: Rule) -> bool {
        let Placement { activations, weights, .. } = &self.made;
        let mut operands = node.input.iter().take(2);
        match operands.find(|name| rule == Rule::Product && self.is_constant(name)) {
            Some(constant) => weights.contains_key(constant),
            None => {
                let has_codes = |name: &String| activations.contains_key(name) || weights.contains_key(name);
                node.output.iter().chain(&node.input).any(has_codes)
            }
        }
    }

    /// Leaves biases in float whose product has no integers on both sides: there is no scale of the product then.
    fn check_biases(&mut self) {
        let Placement { activations, weights, biases, float_biases, .. } = &mut self.made;
        let integer = |name: &str| {
            let activation = activations.get(name).map(|a| a.scheme.element);
            activation.or_else(|| weights.get(name).map(|w| w.scheme.element)).is_some_and(Element::is_integer)
        };
        let has_scale = |bias: &Bias| integer(&bias.input) && integer(&bias.weight);
        biases.retain(|_, bias| has_scale(bias));
        float_biases.retain(|name, bias| has_scale(bias) && !biases.contains_key(name) && !weights.contains_key(name));
    }

    /// A recurrent layer, whose weights nobody would expect in float.
    fn recurrent(&self, node: &NodeProto) -> Option<Skipped> {
        const RECURRENT: &[(&str, &str)] = &[
            ("LSTM", "LSTM layers are quantized only where ‹op-types› names them"),
            ("GRU", "GRU layers are quantized only where ‹op-types› names them"),
            ("RNN", "RNN layers are quantized only where ‹op-types› names them"),
        ];
        let (_, reason) = RECURRENT.iter().find(|(op, _)| is(node, op))?;
        let has_form = !matches!(self.recipe.layout, Layout::Dynamic | Layout::MatMulNBits { .. });
        let reason = if has_form { reason } else { "recurrent layers have no form in this layout" };
        is_selected(node, &self.recipe.selection).then(|| Skipped::new(node, reason))
    }

    /// The reason that a node must stay in float.
    fn obstacle(&self, node: &NodeProto, rule: Rule) -> Option<&'static str> {
        let masked = |names: &[String]| names.iter().any(|name| self.masked.contains(name));
        // What stays in float may hold anything; a dynamic layout makes codes of it.
        let in_float = self.recipe.activation.is_none() && self.recipe.layout != Layout::Dynamic;
        let data_alone = rule == Rule::Product && in_float;
        if rule != Rule::Clamp && !data_alone && (masked(&node.input) || masked(&node.output)) {
            return Some("it carries an attention mask or other values beyond 1e30");
        }
        let variable = rule == Rule::Product && self.variable_product(node);
        (variable && self.recipe.activation.is_none()).then_some("no operand is constant")
    }

    /// Returns whether both operands of a product are computed.
    fn variable_product(&self, node: &NodeProto) -> bool {
        let constant = |position| positional_input(node, position).is_some_and(|name| self.is_constant(name));
        !constant(0) && !constant(1)
    }

    fn is_constant(&self, name: &str) -> bool {
        self.index.constant(self.graph, name).is_some()
    }

    fn is_float(&self, name: &str) -> bool {
        let constant = self.index.constant(self.graph, name).map(kvant_container::onnx::data_type);
        let data_type = constant.or_else(|| (self.data_type)(name));
        data_type == Some(DataType::FLOAT) && !self.masked.contains(name)
    }

    fn place_node(&mut self, position: usize, node: &'a NodeProto, rule: Rule) {
        self.chosen.push((node, rule));
        if rule != Rule::SameScale {
            self.computed.extend(node.input.iter().chain(&node.output).cloned());
        }
        let inputs = |from: usize, to: usize| node.input.get(from..to.min(node.input.len())).unwrap_or(&[]);
        match rule {
            Rule::All => self.tensors(node, inputs(0, usize::MAX)),
            Rule::Data | Rule::Clamp | Rule::SameScale => self.tensors(node, inputs(0, 1)),
            Rule::Choice => self.tensors(node, inputs(1, 3)),
            Rule::Normalization => {
                self.tensors(node, inputs(0, 1));
                inputs(1, 2).iter().for_each(|name| self.weight(name, None));
                inputs(2, 3).iter().for_each(|name| self.normalization_bias(position, node, name));
            }
            Rule::Product => self.product(position, node),
        }
        let outputs = if rule == Rule::Normalization { 1 } else { node.output.len() };
        for output in &node.output[..outputs.min(node.output.len())] {
            self.activation(output);
            if rule == Rule::SameScale {
                self.moved.insert(output.clone(), node.input[0].clone());
            }
        }
    }

    /// Weights of products inside of If, Loop and Scan. What is computed there stays in float: no engine shows it.
    fn bodies(&mut self, node: &'a NodeProto) {
        if is_excluded(node, &self.recipe.selection) {
            return;
        }
        for inner in bodies(node).flat_map(|body| &body.node) {
            let product = rule(inner, self.recipe.rules, &self.recipe.selection) == Some(Rule::Product);
            if let Some(name) = positional_input(inner, 1).filter(|name| product && self.is_constant(name)) {
                self.made.nodes += 1;
                self.product_weight(name, self.channel_axis(inner, 1));
            }
            self.bodies(inner);
        }
    }

    fn tensors(&mut self, node: &NodeProto, names: &[String]) {
        let arithmetic = matches!(node.op_type(), "Mul" | "Add" | "Sub" | "Div" | "Min" | "Max");
        let aligned = self.recipe.align.elementwise && arithmetic || self.recipe.has_two_byte_types();
        for name in names.iter().filter(|name| !name.is_empty()) {
            match self.is_constant(name) {
                true if aligned => self.constant_like_activation(name),
                true => self.weight(name, None),
                false => self.activation(name),
            }
        }
    }

    fn product(&mut self, position: usize, node: &'a NodeProto) {
        for (operand, name) in node.input.iter().take(2).enumerate() {
            match self.is_constant(name) {
                true => self.product_weight(name, self.channel_axis(node, operand)),
                false => self.product_activation(name),
            }
        }
        if let Some(bias) = positional_input(node, 2).filter(|name| self.is_constant(name)) {
            self.bias(position, node, bias);
        }
    }

    /// The bias of a normalization, which has codes like its weight's where the recipe does not ask for others. Codes with
    /// the scale of a node are of use for that node only.
    fn normalization_bias(&mut self, position: usize, node: &NodeProto, bias: &str) {
        match self.recipe.bias {
            BiasKind::Int32OfAll if self.index.consumers(bias).len() == 1 => self.bias(position, node, bias),
            _ => self.weight(bias, None),
        }
    }

    fn bias(&mut self, position: usize, node: &NodeProto, bias: &str) {
        let scheme = self.recipe.weight;
        let integers = scheme.element.is_integer() && self.recipe.activation.is_some_and(|a| a.element.is_integer());
        let (input, weight) = (node.input[0].clone(), node.input[1].clone());
        let is_bias = self.is_float(bias) && self.is_constant(&weight);
        let element = if self.recipe.bias == BiasKind::Int16 { Element::Int16 } else { Element::Int32 };
        let made = Bias { input, weight, node: position, element };
        match self.recipe.bias {
            BiasKind::Float => {}
            BiasKind::Int32 | BiasKind::Int32OfAll | BiasKind::Int16 if integers => {
                let kept = self.overridden(bias).is_some_and(|o| o.float);
                if !kept && is_bias && !self.made.weights.contains_key(bias) {
                    self.made.biases.insert(bias.to_owned(), made.clone());
                }
            }
            // An 8-bit float has too few digits for a sum of many products.
            _ if self.recipe.activation.is_some() && !scheme.element.is_float8() => self.weight(bias, None),
            _ => {}
        }
        // Whether it stays in float is known once all nodes were seen.
        if is_bias {
            self.made.float_biases.insert(bias.to_owned(), made);
        }
    }

    fn activation(&mut self, name: &str) {
        if let Some(scheme) = self.recipe.activation {
            self.activation_of(name, scheme);
        }
    }

    /// What a product reads, in the products' own type where they have one: it is then of that type for all that read it.
    fn product_activation(&mut self, name: &str) {
        match self.recipe.products.filter(|_| self.recipe.activation.is_some()) {
            Some(products) => {
                self.made.activations.remove(name);
                self.activation_of(name, products.activation);
            }
            None => self.activation(name),
        }
    }

    fn activation_of(&mut self, name: &str, scheme: TensorScheme) {
        if name.is_empty() || !self.is_float(name) || self.is_constant(name) || self.boundary_is_float(name) {
            return;
        }
        let overridden = self.overridden(name);
        if overridden.is_some_and(|o| o.float) {
            return;
        }
        let scheme = apply(scheme, overridden);
        let range = overridden.and_then(|o| o.range);
        let made = Activation { scheme, provider: None, channels: None, range, given: Vec::new(), block_axis: 1 };
        self.made.activations.entry(name.to_owned()).or_insert(made);
    }

    fn boundary_is_float(&self, name: &str) -> bool {
        self.recipe.boundary == Boundary::Float && (self.index.is_input(name) || self.index.is_output(name))
    }

    fn overridden(&self, name: &str) -> Option<&'a Override> {
        let means = |o: &&Override| match o.of_layers {
            true => self.is_constant(name) && self.is_read_by(name, &o.tensors),
            false => o.tensors.matches(name),
        };
        self.recipe.overrides.iter().rev().find(means)
    }

    /// Returns whether a node of such a name reads a tensor.
    fn is_read_by(&self, tensor: &str, nodes: &Glob) -> bool {
        self.index.consumers(tensor).iter().any(|&position| nodes.matches(called(&self.graph.node[position])))
    }

    fn weight(&mut self, name: &str, axis: Option<usize>) {
        self.constant(name, self.recipe.weight, axis);
    }

    fn product_weight(&mut self, name: &str, axis: Option<usize>) {
        let scheme = self.recipe.products.map_or(self.recipe.weight, |products| products.weight);
        self.constant(name, scheme, axis);
    }

    /// A constant operand of arithmetic on activations, with their type and the weights' way to a range.
    fn constant_like_activation(&mut self, name: &str) {
        let weight = self.recipe.weight;
        let scheme = self.recipe.activation.map_or(weight, |a| TensorScheme { method: weight.method, ..a });
        self.constant(name, scheme, None);
    }

    fn constant(&mut self, name: &str, scheme: TensorScheme, axis: Option<usize>) {
        let overridden = self.overridden(name);
        let taken = self.made.biases.contains_key(name);
        if name.is_empty()
            || taken
            || !self.is_constant(name)
            || !self.is_float(name)
            || overridden.is_some_and(|o| o.float)
        {
            return;
        }
        let range = overridden.and_then(|o| o.range);
        let rank = self.index.constant(self.graph, name).map_or(0, |t| t.dims.len());
        let scheme = apply(scheme, overridden);
        let axis = axis.filter(|_| scheme.per_channel);
        let made = Weight { scheme, axis, range, given: Vec::new(), block_axis: i64::from(rank > 1) };
        self.made.weights.entry(name.to_owned()).or_insert(made);
    }

    /// The axis of a product's weight that its output channels lie on.
    fn channel_axis(&self, node: &NodeProto, operand: usize) -> Option<usize> {
        let rank = node.input.get(operand).and_then(|name| self.index.constant(self.graph, name)).map(|t| t.dims.len());
        match (node.op_type(), operand) {
            ("Conv", 1) => Some(0),
            ("ConvTranspose", 1) => (int_attribute(node, "group").unwrap_or(1) == 1).then_some(1),
            ("Gemm", 1) => Some(if int_attribute(node, "transB") == Some(1) { 0 } else { 1 }),
            ("MatMul", 1) => rank.filter(|&rank| rank == 2).map(|_| 1),
            _ => None,
        }
    }
}

fn apply(scheme: TensorScheme, overridden: Option<&Override>) -> TensorScheme {
    let Some(o) = overridden else { return scheme };
    let element = o.element.unwrap_or(scheme.element);
    TensorScheme {
        element,
        symmetric: o.symmetric.unwrap_or(scheme.symmetric),
        method: o.method.unwrap_or(scheme.method),
        per_channel: o.per_channel.unwrap_or(scheme.per_channel),
        full_range: o.full_range || scheme.full_range,
        ..scheme
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::node;
    use crate::preset::Preset;
    use crate::quantize::prepare;
    use crate::shape::ValueType;
    use crate::test_models::{floats, model, typed};

    #[test]
    fn constants_beside_wide_activations_use_the_activation_dtype() {
        let nodes = vec![
            node("Gather", "rows", &["table", "ids"], &["e"]),
            node("Mul", "scaled", &["e", "c"], &["h"]),
            node("MatMul", "product", &["h", "w"], &["y"]),
        ];
        let constants = vec![
            floats("table", &[4, 2], &[0.5; 8]),
            floats("c", &[2], &[1.0, 2.0]),
            floats("w", &[2, 2], &[1.0, 0.0, 0.5, 2.0]),
        ];
        let mut model = model(17, nodes, constants, &[], &["y"]);
        let graph = model.graph.as_mut().unwrap();
        graph.input = vec![ValueType::any(DataType::INT64).to_proto("ids").unwrap()];
        graph.output = vec![typed("y", &[3, 2])];
        let placed = |preset: &str| {
            let recipe = Preset::find(preset).unwrap().recipe();
            prepare(model.clone(), recipe.clone(), &recipe.passes(), None).unwrap().placement
        };
        let elements = |placed: &Placement| ["table", "c", "w"].map(|name| placed.weights[name].scheme.element);
        let mixed = placed("U8S8_AAWS");
        assert_eq!(elements(&mixed), [Element::UInt8, Element::UInt8, Element::Int8]);
        assert_eq!(mixed.activations["e"].provider.as_deref(), Some("table"), "rows keep the table's codes");
        assert_eq!(elements(&placed("A8W8")), [Element::Int8; 3]);
        // As the incumbents have it.
        assert_eq!(elements(&placed("A16W8")), [Element::Int8, Element::Int16, Element::Int8]);
    }

    #[test]
    fn recurrent_layers_stay_float_with_a_reason() {
        let nodes = vec![
            node("GRU", "gru", &["x", "w", "r"], &["h"]),
            node("Squeeze", "flat", &["h", "axes"], &["s"]),
            node("MatMul", "product", &["s", "v"], &["y"]),
        ];
        let constants = vec![
            floats("w", &[1, 6, 2], &[0.5; 12]),
            floats("r", &[1, 6, 2], &[0.5; 12]),
            floats("v", &[2, 2], &[1.0; 4]),
            crate::test_models::integers("axes", &[1]),
        ];
        let mut model = model(17, nodes, constants, &[], &[]);
        let graph = model.graph.as_mut().unwrap();
        (graph.input, graph.output) = (vec![typed("x", &[3, 1, 2])], vec![typed("y", &[3, 1, 2])]);
        let skipped = |preset: &str, excluded: &[&str]| {
            let mut recipe = Preset::find(preset).unwrap().recipe();
            recipe.selection.excluded_op_types = excluded.iter().map(|&op| op.to_owned()).collect();
            prepare(model.clone(), recipe.clone(), &recipe.passes(), None).unwrap().placement.skipped
        };
        for preset in ["A8W8", "INT8_TRANSFORMER", "WEIGHTS_INT8", "DYNAMIC"] {
            let [one] = &skipped(preset, &[])[..] else { panic!("{preset}: {:?}", skipped(preset, &[])) };
            let reason = if preset == "DYNAMIC" { "no form in this layout" } else { "GRU" };
            assert!(one.node == "gru" && one.reason.contains(reason), "{one:?}");
        }
        assert!(skipped("A8W8", &["GRU"]).is_empty(), "nobody wants it");
    }
}
