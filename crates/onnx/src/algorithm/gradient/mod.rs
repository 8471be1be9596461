//! Gradients of the weights of some layers of a graph by what a group of nodes gives: the nodes run on a tape, which is then followed
//! backwards. Activations that the graph quantizes are quantized on the tape too.
//!
//! Only nodes that depend on the layers are on the tape; what else they read is recorded from the engine beforehand. Memory: the outputs
//! of the group's nodes for one sample, and as much again for gradients.

mod elementwise;
mod moves;
mod normalize;
mod pools;
mod products;
mod quantizers;
mod tensor;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use kvant_container::onnx::{GraphProto, NodeProto};

use crate::data::Array;
use crate::graph::{STANDARD_DOMAIN, bodies, called, domain, is_qdq, is_standard};
use crate::kernel::linear::constant;
use elementwise::{Binary, Clip, Unary, Where};
pub(super) use moves::Engine;
use moves::Moved;
use normalize::{Normalization, Reduce, Softmax};
use pools::Pool;
use products::{LayerProduct, MatMul};
use quantizers::Quantizer;
use tensor::Input;
pub(super) use tensor::Tensor;

/// An operator on a tape. It keeps nothing between its passes.
trait Operator: Send + Sync {
    /// What it gives; `None` where shapes do not fit, or mean something that is not computed here.
    fn forward(&self, inputs: &[Input<'_>]) -> Option<Tensor>;

    /// The gradients of its inputs, in order, where they are `wanted`; from those of its output.
    fn backward(&self, inputs: &[Input<'_>], output: &Tensor, slopes: &[f32], wanted: &[bool])
    -> Option<Vec<Vec<f32>>>;
}

/// What a step reads.
enum Operand {
    /// What an earlier step gives.
    Step(usize),
    /// A weight under training.
    Weight(usize),
    /// A tensor of the sample.
    Recorded(String),
    /// A constant of floats.
    Floats(Tensor),
    /// Another constant.
    Other(Array<'static>),
    /// Nothing.
    Absent,
}

struct Step {
    operator: Box<dyn Operator>,
    operands: Vec<Operand>,
    /// The node, for messages.
    node: String,
}

/// A node that has no gradient here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NoGradient {
    /// The node.
    pub node: String,
    /// Its operator.
    pub operator: String,
}

impl NoGradient {
    fn of(node: &NodeProto) -> NoGradient {
        let operator = node.op_type();
        let operator = if is_standard(node) { operator.to_owned() } else { format!("{}.{operator}", domain(node)) };
        NoGradient { node: called(node).to_owned(), operator }
    }
}

/// A layer whose weight is trained.
pub(super) struct TrainedLayer {
    /// The name of the weight, which the layer alone reads.
    pub weight: String,
    /// The shape of the weight as it is stored.
    pub shape: Vec<usize>,
}

/// The nodes of a group that depend on its layers, in the order in which they run.
pub(super) struct Program {
    steps: Vec<Step>,
    /// The steps that give the outputs.
    outputs: Vec<usize>,
    /// The outputs that depend on the layers.
    names: Vec<String>,
    weights: usize,
}

/// The tensors of a sample by name.
pub(super) type Recorded = HashMap<String, Arc<Array<'static>>>;

impl Program {
    /// The program of some nodes of a graph, in an order in which they can run, that give `outputs`.
    ///
    /// # Errors
    /// A node between layers and outputs that has no gradient.
    pub fn new(
        graph: &GraphProto,
        nodes: Range<usize>,
        outputs: &[String],
        layers: &[TrainedLayer],
        engine: &Engine,
    ) -> Result<Program, NoGradient> {
        let constants: HashMap<&str, _> = graph.initializer.iter().map(|tensor| (tensor.name(), tensor)).collect();
        let trained: HashMap<&str, usize> = layers.iter().enumerate().map(|(at, l)| (l.weight.as_str(), at)).collect();
        let standard = engine.opsets.iter().find(|set| matches!(set.domain(), STANDARD_DOMAIN | "ai.onnx"));
        let opset = standard.map_or(1, |set| set.version());
        let wanted = wanted(&graph.node[nodes.clone()], outputs);
        let (mut steps, mut made): (Vec<Step>, HashMap<&str, usize>) = Default::default();
        for node in graph.node[nodes].iter().filter(|node| node.output.iter().any(|name| wanted.contains(name))) {
            let depends =
                node.input.iter().any(|name| made.contains_key(name.as_str()) || trained.contains_key(&**name));
            // A shape is the same whatever the values are.
            if !depends || is_standard(node) && matches!(node.op_type(), "Shape" | "Size") {
                continue;
            }
            for (output, name) in node.output.iter().enumerate().filter(|(_, name)| wanted.contains(*name)) {
                let layer = node.input.get(1).and_then(|weight| trained.get(weight.as_str()));
                let layer = layer.map(|&layer| (layer, &layers[layer]));
                let stored = layer.map(|(_, layer)| layer.shape.clone()).or_else(|| {
                    let weight = constants.get(node.input.get(1)?.as_str())?;
                    kvant_container::onnx::shape(weight).ok()
                });
                let computed = computed(node, output, stored.as_deref(), opset, engine);
                let computed =
                    computed.filter(|_| bodies(node).next().is_none()).ok_or_else(|| NoGradient::of(node))?;
                // Weights that are trained are those of layers.
                if layer.is_some() && !matches!(computed, Computed::Layer(_)) {
                    return Err(NoGradient::of(node));
                }
                let operands = node.input.iter().enumerate().map(|(at, name)| {
                    if let (1, Some((layer, _))) = (at, layer) {
                        return Some(Operand::Weight(layer));
                    }
                    if let Some(&step) = made.get(name.as_str()) {
                        return Some(Operand::Step(step));
                    }
                    let Some(tensor) = constants.get(name.as_str()) else {
                        return Some(if name.is_empty() { Operand::Absent } else { Operand::Recorded(name.clone()) });
                    };
                    let array = constant(tensor)?;
                    Some(match (array.f32s(), at, &computed) {
                        (Some(values), 1, Computed::Layer(layer)) => Operand::Floats(layer.rows(values)),
                        (Some(values), ..) => {
                            Operand::Floats(Tensor { shape: array.shape().to_vec(), values: values.to_vec() })
                        }
                        (None, ..) => Operand::Other(array),
                    })
                });
                let operands = operands.collect::<Option<Vec<_>>>().ok_or_else(|| NoGradient::of(node))?;
                let operator = match computed {
                    Computed::Layer(layer) => layer,
                    Computed::Other(operator) => operator,
                };
                made.insert(name, steps.len());
                steps.push(Step { operator, operands, node: called(node).to_owned() });
            }
        }
        let given = outputs.iter().filter_map(|name| Some((name.clone(), *made.get(name.as_str())?)));
        let (names, outputs) = given.unzip();
        Ok(Program { steps, outputs, names, weights: layers.len() })
    }

    /// The outputs that depend on the layers.
    pub fn outputs(&self) -> &[String] {
        &self.names
    }

    /// The tensors of a sample that it reads.
    pub fn reads(&self) -> HashSet<String> {
        let operands = self.steps.iter().flat_map(|step| &step.operands);
        let recorded = operands.filter_map(|operand| match operand {
            Operand::Recorded(name) => Some(name.clone()),
            _ => None,
        });
        recorded.collect()
    }

    /// Runs the nodes with weights as `[outputs, features]` on a sample that has all that is [read](Self::reads).
    ///
    /// # Errors
    /// A node whose tensors are not computed here.
    pub fn forward<'a>(&'a self, weights: &'a [Tensor], recorded: &'a Recorded) -> Result<Tape<'a>, NoGradient> {
        let mut tape = Tape { program: self, weights, recorded, made: Vec::with_capacity(self.steps.len()) };
        for step in &self.steps {
            let made = tape.inputs(step).and_then(|inputs| step.operator.forward(&inputs));
            tape.made.push(made.ok_or_else(|| step.no_gradient())?);
        }
        Ok(tape)
    }
}

impl Step {
    fn no_gradient(&self) -> NoGradient {
        NoGradient { node: self.node.clone(), operator: String::new() }
    }
}

/// The tensors that the outputs of some nodes depend on, and the outputs.
fn wanted(nodes: &[NodeProto], outputs: &[String]) -> HashSet<String> {
    let mut wanted: HashSet<String> = outputs.iter().cloned().collect();
    for node in nodes.iter().rev() {
        if node.output.iter().any(|name| wanted.contains(name)) {
            wanted.extend(node.input.iter().filter(|name| !name.is_empty()).cloned());
        }
    }
    wanted
}

/// What computes an output of a node.
enum Computed {
    /// The product of a layer, whose weight it takes in an order of its own.
    Layer(Box<LayerProduct>),
    Other(Box<dyn Operator>),
}

/// What computes an output of a node, whose second input is a constant of the shape of `weight`; `None` without gradients.
fn computed(
    node: &NodeProto,
    output: usize,
    weight: Option<&[usize]>,
    opset: i64,
    engine: &Engine,
) -> Option<Computed> {
    fn boxed<O: Operator + 'static>(operator: O) -> Box<dyn Operator> {
        Box::new(operator)
    }
    if !is_standard(node) && !is_qdq(node) {
        return None;
    }
    if let Some(moved) = Moved::of(node, output, engine) {
        return Some(Computed::Other(boxed(moved)));
    }
    if output > 0 {
        return None;
    }
    let layer = || LayerProduct::of(node, weight?).map(Box::new).map(Computed::Layer);
    let other = match node.op_type() {
        "Conv" | "ConvTranspose" | "Gemm" => return layer(),
        "MatMul" => return layer().or_else(|| Some(Computed::Other(boxed(MatMul)))),
        "Clip" => Clip::of(node).map(boxed),
        "Where" => Some(boxed(Where)),
        "Softmax" => Some(boxed(Softmax::of(node, opset))),
        _ => Unary::of(node)
            .map(boxed)
            .or_else(|| Binary::of(node).map(boxed))
            .or_else(|| Normalization::of(node).map(boxed))
            .or_else(|| Reduce::of(node).map(boxed))
            .or_else(|| Pool::of(node).map(boxed))
            .or_else(|| Quantizer::of(node).map(boxed)),
    };
    other.map(Computed::Other)
}

/// A program that has run on a sample.
pub(super) struct Tape<'a> {
    program: &'a Program,
    weights: &'a [Tensor],
    recorded: &'a Recorded,
    made: Vec<Tensor>,
}

impl Tape<'_> {
    fn inputs<'t>(&'t self, step: &'t Step) -> Option<Vec<Input<'t>>> {
        let input = |operand: &'t Operand| {
            Some(match operand {
                Operand::Step(step) => self.made[*step].input(),
                Operand::Weight(weight) => self.weights.get(*weight)?.input(),
                Operand::Recorded(name) => Input::of(self.recorded.get(name)?),
                Operand::Floats(tensor) => tensor.input(),
                Operand::Other(array) => Input::Other(array),
                Operand::Absent => Input::Absent,
            })
        };
        step.operands.iter().map(input).collect()
    }

    /// What an output of the group is.
    pub fn output(&self, index: usize) -> &Tensor {
        &self.made[self.program.outputs[index]]
    }

    /// Bytes of what the tape keeps.
    pub fn bytes(&self) -> u64 {
        self.made.iter().map(|tensor| 4 * tensor.values.len() as u64).sum()
    }

    /// The gradients of the weights from those of the outputs.
    ///
    /// # Errors
    /// A node whose gradient is not computed here.
    pub fn backward(&self, slopes: Vec<Vec<f32>>) -> Result<Vec<Vec<f32>>, NoGradient> {
        let steps = &self.program.steps;
        let mut of_steps: Vec<Vec<f32>> = vec![Vec::new(); steps.len()];
        let mut of_weights: Vec<Vec<f32>> = vec![Vec::new(); self.program.weights];
        for (&step, slopes) in self.program.outputs.iter().zip(slopes) {
            add(&mut of_steps[step], slopes);
        }
        for (at, step) in steps.iter().enumerate().rev() {
            let slopes = std::mem::take(&mut of_steps[at]);
            if slopes.is_empty() {
                continue;
            }
            let wanted = |operand: &Operand| matches!(operand, Operand::Step(_) | Operand::Weight(_));
            let wanted: Vec<bool> = step.operands.iter().map(wanted).collect();
            let inputs = self.inputs(step).ok_or_else(|| step.no_gradient())?;
            let found = step.operator.backward(&inputs, &self.made[at], &slopes, &wanted);
            for (operand, gradient) in step.operands.iter().zip(found.ok_or_else(|| step.no_gradient())?) {
                match operand {
                    Operand::Step(step) => add(&mut of_steps[*step], gradient),
                    Operand::Weight(weight) => add(&mut of_weights[*weight], gradient),
                    _ => {}
                }
            }
        }
        Ok(of_weights)
    }
}

/// Adds a gradient to what is there.
fn add(sum: &mut Vec<f32>, gradient: Vec<f32>) {
    match sum.is_empty() {
        true => *sum = gradient,
        false => sum.iter_mut().zip(gradient).for_each(|(sum, more)| *sum += more),
    }
}
