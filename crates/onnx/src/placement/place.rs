//! From a graph and a recipe to the list of quantized tensors.

use std::collections::{BTreeMap, HashMap, HashSet};

use kvant_container::onnx::{DataType, GraphProto, NodeProto};

use super::fusion::{clip_bounds, is_fused};
use super::masks::masked;
use super::rules::Rule;
use super::select::{in_subgraphs, is_excluded, rule};
use crate::element::Element;
use crate::graph::{Index, bodies, int_attribute, is, positional_input};
use crate::quantization::{Range, ScaleKind};
use crate::recipe::{BiasKind, Boundary, Override, Recipe, TensorScheme};

/// The entries of an axis that each have a scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Channels {
    /// The axis.
    pub axis: usize,
    /// Its length.
    pub number: usize,
}

/// A tensor that is computed and quantized.
#[derive(Debug, Clone, PartialEq)]
pub struct Activation {
    /// How.
    pub scheme: TensorScheme,
    /// The tensor whose scale and zero point it has; its own if none.
    pub provider: Option<String>,
    /// The channels that each have a scale; one scale for all if none.
    pub channels: Option<Channels>,
    /// A range that is given.
    pub range: Option<Range>,
    /// The axis along which a block format makes its blocks.
    pub block_axis: i64,
}

/// A constant that is quantized.
#[derive(Debug, Clone, PartialEq)]
pub struct Weight {
    /// How.
    pub scheme: TensorScheme,
    /// The axis whose entries each have a scale.
    pub axis: Option<usize>,
    /// A range that is given.
    pub range: Option<Range>,
    /// The axis along which a block format makes its blocks.
    pub block_axis: i64,
}

/// A bias that gets the scale of its product.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bias {
    /// The data that the product reads.
    pub input: String,
    /// The weight.
    pub weight: String,
    /// Position of the node.
    pub node: usize,
}

/// A node that is left in float although its operator would be quantized, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skipped {
    /// The node.
    pub node: String,
    /// The reason, for the report.
    pub reason: &'static str,
}

/// What becomes of a graph.
#[derive(Debug, Clone, Default)]
pub struct Placement {
    /// Quantized activations by tensor.
    pub activations: BTreeMap<String, Activation>,
    /// Quantized constants by tensor.
    pub weights: BTreeMap<String, Weight>,
    /// Biases with the scale of their product, by tensor.
    pub biases: BTreeMap<String, Bias>,
    /// Positions of Relu and Clip nodes that the codes' range makes superfluous.
    pub dropped: Vec<usize>,
    /// Nodes that are not quantized though they could be.
    pub skipped: Vec<Skipped>,
    /// Number of nodes whose tensors are quantized.
    pub nodes: usize,
}

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
    };
    placer.run();
    placer.made
}

struct Placer<'a> {
    graph: &'a GraphProto,
    recipe: &'a Recipe,
    data_type: &'a dyn Fn(&str) -> Option<DataType>,
    index: Index,
    masked: HashSet<String>,
    made: Placement,
    /// Tensors whose values are those of another: output by input of operators that only move values.
    moved: HashMap<String, String>,
    /// Tensors that a quantized operator computes with or makes.
    computed: HashSet<String>,
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
            let Some(rule) = rule(node, self.recipe.rules, &self.recipe.selection) else { continue };
            match self.obstacle(node, rule) {
                Some(reason) => self.made.skipped.push(Skipped { node: node.name().to_owned(), reason }),
                None => self.place_node(position, node, rule),
            }
        }
        self.turn_blocks();
        self.remove_idle_moves();
        self.remove_fused();
        self.share();
        self.drop_clamps();
        self.check_biases();
    }

    /// Leaves biases in float whose product has no integers on both sides: there is no scale of the product then.
    fn check_biases(&mut self) {
        let Placement { activations, weights, biases, .. } = &mut self.made;
        let integer = |name: &str| {
            let activation = activations.get(name).map(|a| a.scheme.element);
            activation.or_else(|| weights.get(name).map(|w| w.scheme.element)).is_some_and(Element::is_integer)
        };
        biases.retain(|_, bias| integer(&bias.input) && integer(&bias.weight));
    }

    /// Why a node must stay in float.
    fn obstacle(&self, node: &NodeProto, rule: Rule) -> Option<&'static str> {
        let masked = |names: &[String]| names.iter().any(|name| self.masked.contains(name));
        if rule != Rule::Clamp && (masked(&node.input) || masked(&node.output)) {
            return Some("it carries an attention mask");
        }
        let variable = rule == Rule::Product && self.variable_product(node);
        (variable && self.recipe.activation.is_none()).then_some("no operand is constant")
    }

    /// Whether both operands of a product are computed.
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
        self.made.nodes += 1;
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
                inputs(1, 3).iter().for_each(|name| self.weight(name, None));
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
        let aligned =
            self.recipe.align.elementwise && matches!(node.op_type(), "Mul" | "Add" | "Sub" | "Div" | "Min" | "Max");
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

    fn bias(&mut self, position: usize, node: &NodeProto, bias: &str) {
        let scheme = self.recipe.weight;
        let integers = scheme.element.is_integer() && self.recipe.activation.is_some_and(|a| a.element.is_integer());
        match self.recipe.bias {
            BiasKind::Float => {}
            BiasKind::Int32 | BiasKind::Int16 if integers => {
                let (input, weight) = (node.input[0].clone(), node.input[1].clone());
                let kept = self.overridden(bias).is_some_and(|o| o.float);
                if !kept && self.is_float(bias) && !self.made.weights.contains_key(bias) && self.is_constant(&weight) {
                    self.made.biases.insert(bias.to_owned(), Bias { input, weight, node: position });
                }
            }
            // An 8-bit float has too few digits for a sum of many products.
            _ if self.recipe.activation.is_some() && !scheme.element.is_float8() => self.weight(bias, None),
            _ => {}
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
        let made = Activation { scheme, provider: None, channels: None, range, block_axis: 1 };
        self.made.activations.entry(name.to_owned()).or_insert(made);
    }

    fn boundary_is_float(&self, name: &str) -> bool {
        self.recipe.boundary == Boundary::Float && (self.index.is_input(name) || self.index.is_output(name))
    }

    fn overridden(&self, name: &str) -> Option<&'a Override> {
        self.recipe.overrides.iter().rev().find(|o| o.tensors.matches(name))
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
        let made = Weight { scheme, axis, range, block_axis: i64::from(rank > 1) };
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

    /// Takes back the tensors that values only move between while nothing on either side computes with codes: rounding them
    /// would cost accuracy and gain nothing.
    fn remove_idle_moves(&mut self) {
        let busy: HashSet<String> = self.computed.iter().map(|name| self.origin(name)).collect();
        let tensors = self.moved.keys().chain(self.moved.values());
        let idle: Vec<String> = tensors.filter(|name| !busy.contains(&self.origin(name))).cloned().collect();
        idle.iter().for_each(|name| {
            self.made.activations.remove(name);
        });
    }

    /// Where the values of a tensor come from, through operators that only move them.
    fn origin(&self, tensor: &str) -> String {
        let mut origin = tensor;
        for _ in 0..self.moved.len() {
            match self.moved.get(origin) {
                Some(further) => origin = further,
                None => break,
            }
        }
        origin.to_owned()
    }

    /// Turns the blocks of shared exponents along the axis that a product sums over, or a Softmax. Where readers differ the
    /// last one decides.
    fn turn_blocks(&mut self) {
        let graph = self.graph;
        for node in &graph.node {
            let transposed = |name: &str| int_attribute(node, name).unwrap_or(0) != 0;
            match node.op_type() {
                "MatMul" => {
                    self.turn(node.input.first(), -1);
                    self.turn(node.input.get(1), -2);
                    self.turn(node.output.first(), -1);
                }
                "Gemm" => {
                    self.turn(node.input.first(), i64::from(!transposed("transA")));
                    self.turn(node.input.get(1), i64::from(transposed("transB")));
                }
                "Softmax" => self.turn(node.input.first(), int_attribute(node, "axis").unwrap_or(-1)),
                _ => {}
            }
        }
    }

    fn turn(&mut self, tensor: Option<&String>, axis: i64) {
        let Some(name) = tensor else { return };
        if let Some(activation) = self.made.activations.get_mut(name) {
            activation.block_axis = axis;
        }
        let rank = self.index.constant(self.graph, name).map_or(0, |t| t.dims.len() as i64);
        if let Some(weight) = self.made.weights.get_mut(name).filter(|_| rank > 1) {
            weight.block_axis = if axis < 0 { rank + axis } else { axis };
        }
    }

    /// Takes back the tensors between operators that run as one.
    fn remove_fused(&mut self) {
        let blocks = self.recipe.activation.is_some_and(|a| matches!(a.element, Element::Block(_)));
        if blocks {
            return;
        }
        for node in &self.graph.node {
            for output in &node.output {
                let fused = is_fused(self.graph, &self.index, node, output) && !self.index.is_output(output);
                if fused {
                    self.made.activations.remove(output);
                }
            }
        }
    }

    /// Gives moved values the scale of where they come from.
    fn share(&mut self) {
        let moved = std::mem::take(&mut self.moved);
        for (output, input) in &moved {
            let mut origin = input;
            // A chain of moves ends at the first tensor that was computed.
            for _ in 0..moved.len() {
                match moved.get(origin).filter(|_| self.made.activations.contains_key(origin)) {
                    Some(further) => origin = further,
                    None => break,
                }
            }
            if let Some(provider) = self.provider(output, origin) {
                let Some(activation) = self.made.activations.get_mut(output) else { continue };
                activation.provider = Some(provider);
            }
        }
    }

    /// The origin, if its codes can be those of the output.
    fn provider(&self, output: &str, origin: &str) -> Option<String> {
        let wanted = self.made.activations.get(output)?.scheme;
        let from_activation = self.made.activations.get(origin).map(|a| a.scheme);
        let from_weight = self.made.weights.get(origin).filter(|w| w.axis.is_none()).map(|w| w.scheme);
        let found = from_activation.or(from_weight)?;
        (found.element == wanted.element && found.symmetric == wanted.symmetric).then(|| origin.to_owned())
    }

    /// Drops Relu and Clip where the lowest code is zero anyway.
    fn drop_clamps(&mut self) {
        let asymmetric = self.recipe.activation.is_some_and(|a| !a.symmetric && a.element.is_integer());
        if !self.recipe.drop_activations || !asymmetric {
            return;
        }
        for (position, node) in self.graph.node.iter().enumerate() {
            if self.can_drop(node) {
                self.made.activations.remove(&node.input[0]);
                self.made.dropped.push(position);
            }
        }
    }

    fn can_drop(&self, node: &NodeProto) -> bool {
        let clamps = is(node, "Relu")
            || is(node, "Clip")
                && clip_bounds(self.graph, &self.index, node).is_some_and(|(min, max)| min <= 0.0 && max >= 0.0);
        let (Some(input), Some(output)) = (node.input.first(), node.output.first()) else { return false };
        let alone = self.index.only_consumer(input).is_some() && self.index.producer(input).is_some();
        let codes_clamp = |a: &Activation| {
            let s = a.scheme;
            a.provider.is_none()
                && a.range.is_none()
                && s.element.is_integer()
                && !s.symmetric
                // A channel that is never positive has a scale whose lowest code is not zero.
                && !s.per_channel
                && s.scale == ScaleKind::Float
        };
        clamps && alone && self.made.activations.get(output).is_some_and(codes_clamp)
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
        ..scheme
    }
}
