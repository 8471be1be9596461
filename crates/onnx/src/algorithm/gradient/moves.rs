//! Operators that move elements or leave them out: Reshape, Transpose, Slice, Concat and others. Which element goes where is found by
//! running the operator, in whatever version, on elements that are their own numbers.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, PoisonError};

use kvant_container::onnx::{GraphProto, ModelProto, NodeProto, OperatorSetIdProto};

use super::Operator;
use super::tensor::{Input, Tensor};
use crate::data::Array;
use crate::fake_quantization::{declared, open};
use crate::graph::{int_attribute, is, string_attribute};
use crate::runtime::RuntimeOptions;

/// The engine that runs operators.
#[derive(Clone)]
pub(in crate::algorithm) struct Engine {
    /// Its options, with one thread.
    pub options: RuntimeOptions,
    /// The versions of the operators.
    pub opsets: Vec<OperatorSetIdProto>,
}

/// One output of an operator that moves elements.
pub(super) struct Moved {
    node: NodeProto,
    wanted: String,
    engine: Engine,
    places: Mutex<HashMap<Case, Arc<Places>>>,
}

/// What places depend on: the shapes of all inputs, and the bits of the values of those that are not moved.
type Case = Vec<(Vec<usize>, Vec<u32>)>;

/// The elements of an output.
struct Places {
    shape: Vec<usize>,
    /// For each element the number, from 1 on, of one of the moved inputs' elements, those of the first input first; or 0 for a zero.
    numbers: Vec<u32>,
}

/// An input whose elements are moved, with the number of those of the inputs before it.
struct MovedInput<'a> {
    before: usize,
    shape: &'a [usize],
    values: &'a [f32],
}

/// Up to here, whole numbers are floats.
const WHOLE: usize = 1 << 24;

const MOVING: &[&str] = &[
    "Reshape",
    "Flatten",
    "Squeeze",
    "Unsqueeze",
    "Transpose",
    "Concat",
    "Slice",
    "Split",
    "Gather",
    "GatherElements",
    "GatherND",
    "Expand",
    "Tile",
    "Pad",
    "DepthToSpace",
    "SpaceToDepth",
    "Identity",
    "Dropout",
    "Resize",
    "Upsample",
    "Cast",
];

impl Moved {
    /// The output of a number of a node; `None` for nodes that compute.
    pub fn of(node: &NodeProto, output: usize, engine: &Engine) -> Option<Moved> {
        let computes = match node.op_type() {
            "Resize" | "Upsample" => string_attribute(node, "mode").unwrap_or("nearest") != "nearest",
            "Cast" => int_attribute(node, "to") != Some(1),
            "Split" => false,
            _ => output > 0,
        };
        if computes || !MOVING.contains(&node.op_type()) {
            return None;
        }
        // Tensors may be read twice, and inputs be left out.
        let mut node = node.clone();
        for (prefix, names) in [("i", &mut node.input), ("o", &mut node.output)] {
            let given = names.iter_mut().enumerate().filter(|(_, name)| !name.is_empty());
            given.for_each(|(at, name)| *name = format!("{prefix}{at}"));
        }
        let wanted = node.output.get(output)?.clone();
        Some(Moved { node, wanted, engine: engine.clone(), places: Mutex::default() })
    }

    /// Returns whether the elements of an input are moved. The others say where to.
    fn moves(&self, input: usize) -> bool {
        input == 0 || is(&self.node, "Concat") || input == 2 && is(&self.node, "Pad")
    }

    /// The moved inputs.
    fn moved<'a>(&self, inputs: &[Input<'a>]) -> Option<Vec<MovedInput<'a>>> {
        let given = (0..inputs.len()).filter(|&input| self.moves(input) && !inputs[input].is_absent());
        let mut before = 0;
        let moved = given.map(|input| {
            let (shape, values) = inputs[input].floats()?;
            before += values.len();
            Some(MovedInput { before: before - values.len(), shape, values })
        });
        moved.collect()
    }

    fn places(&self, inputs: &[Input<'_>]) -> Option<Arc<Places>> {
        let case = inputs.iter().enumerate().map(|(at, input)| match input {
            Input::Floats { shape, .. } if self.moves(at) => (shape.to_vec(), Vec::new()),
            Input::Floats { shape, values } => (shape.to_vec(), values.iter().map(|value| value.to_bits()).collect()),
            Input::Other(array) => {
                (array.shape().to_vec(), array.to_f32s().iter().map(|value| value.to_bits()).collect())
            }
            Input::Absent => Default::default(),
        });
        let case: Case = case.collect();
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = places.get(&case) {
            return Some(known.clone());
        }
        let made = Arc::new(self.find(inputs)?);
        places.insert(case, made.clone());
        Some(made)
    }

    /// Runs the node on numbers.
    fn find(&self, inputs: &[Input<'_>]) -> Option<Places> {
        let mut moved = self.moved(inputs)?.into_iter();
        let mut arrays: Vec<(&str, Array<'_>)> = Vec::new();
        for (at, input) in inputs.iter().enumerate() {
            let array = match input {
                Input::Absent => continue,
                _ if self.moves(at) => {
                    let MovedInput { before, shape, values } = moved.next()?;
                    let numbers: Vec<f32> = (before + 1..=before + values.len()).map(|number| number as f32).collect();
                    (before + values.len() < WHOLE).then_some(())?;
                    Array::of(shape.to_vec(), numbers)?
                }
                Input::Floats { shape, values } => Array::of(shape.to_vec(), *values)?,
                Input::Other(array) => array.view(),
            };
            arrays.push((self.node.input.get(at)?, array));
        }
        let graph = GraphProto {
            name: Some("moved".to_owned()),
            node: vec![self.node.clone()],
            input: arrays.iter().map(|(name, array)| declared(name, Some(array))).collect(),
            output: vec![declared(&self.wanted, None)],
            ..GraphProto::default()
        };
        let model = ModelProto {
            ir_version: Some(8),
            opset_import: self.engine.opsets.clone(),
            graph: Some(graph).into(),
            ..ModelProto::default()
        };
        let wanted = vec![self.wanted.clone()];
        let mut session = open(&model, &wanted, &self.engine.options).ok()?;
        let mut found = None;
        let mut show = |_: &str, array: &Array<'_>| {
            let numbers = array.f32s().map(|numbers| numbers.iter().map(|&number| number as u32).collect());
            found = numbers.map(|numbers| Places { shape: array.shape().to_vec(), numbers });
            ControlFlow::Break(())
        };
        session.run(&arrays, &wanted, &mut show).ok()?;
        found
    }
}

impl Operator for Moved {
    fn forward(&self, inputs: &[Input<'_>]) -> Option<Tensor> {
        let (places, moved) = (self.places(inputs)?, self.moved(inputs)?);
        let value = |&number: &u32| {
            let number = number as usize;
            let from = moved.iter().rev().find(|input| input.before < number);
            from.map_or(0.0, |input| input.values[number - 1 - input.before])
        };
        Some(Tensor { shape: places.shape.clone(), values: places.numbers.iter().map(value).collect() })
    }

    fn backward(&self, inputs: &[Input<'_>], _: &Tensor, slopes: &[f32], _: &[bool]) -> Option<Vec<Vec<f32>>> {
        let (places, moved) = (self.places(inputs)?, self.moved(inputs)?);
        let count = moved.iter().map(|input| input.values.len()).sum();
        let mut all = vec![0.0; count];
        for (&number, slope) in places.numbers.iter().zip(slopes) {
            if number > 0 {
                all[number as usize - 1] += slope;
            }
        }
        let mut gradients = vec![Vec::new(); inputs.len()];
        let given = (0..inputs.len()).filter(|&input| self.moves(input) && !inputs[input].is_absent());
        for (input, MovedInput { before, values, .. }) in given.zip(moved) {
            gradients[input] = all[before..before + values.len()].to_vec();
        }
        Some(gradients)
    }
}
