//! A quantized graph computed in floats: weights dequantized ahead, quantizing nodes by the kernels, all others by an engine
//! that need not know any of them.
//!
//! It computes what the operators are specified to, so that every type of every domain can be evaluated on any engine, with
//! the same result. Casts to 16-bit floats round; arithmetic between them is in single precision.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::PathBuf;

use kvant_container::onnx::{GraphProto, ModelProto, NodeProto, OperatorSetIdProto, ValueInfoProto};

use super::folding::{Constants, fold, kernel_error, quantizer};
use super::quantizer::Quantizer;
use super::segments::{QuantizationStage, Segment, stages};
use crate::data::Array;
use crate::graph::sort;
use crate::runtime::{RuntimeError, RuntimeOptions, Session, Visit, engine, found};
use crate::shape::{Dim, ValueType};

/// A quantized model ready to run.
pub(super) struct FakeQuantized {
    stages: Vec<Running>,
    constants: Constants,
    opsets: Vec<OperatorSetIdProto>,
    ir_version: Option<i64>,
    options: RuntimeOptions,
    engine: String,
}

struct Running {
    quantizers: Vec<(NodeProto, Quantizer)>,
    segment: Segment,
    last: Vec<String>,
    /// Loaded when the types of what goes in are seen.
    session: Option<Box<dyn Session>>,
}

impl FakeQuantized {
    /// Folds the constants and cuts the graph. The engine loads its parts at the first run.
    pub fn open(model: &ModelProto, wanted: &[String], options: &RuntimeOptions) -> Result<Self, RuntimeError> {
        let (choice, engine) = found(options)?;
        let mut graph = GraphProto::clone(&model.graph);
        sort(&mut graph).map_err(|e| RuntimeError::Load { engine: engine.clone(), problem: e.to_string() })?;
        let scratch = options.scratch.clone().unwrap_or_else(std::env::temp_dir);
        let constants = fold(&mut graph, &scratch)?;
        let cut = stages(&graph, wanted, &|name| constants.get(name).is_some());
        let stages = cut.into_iter().map(Running::new).collect::<Result<_, _>>()?;
        let options = RuntimeOptions { choice, scratch: Some(PathBuf::from(&scratch)), ..options.clone() };
        let (opsets, ir_version) = (model.opset_import.clone(), model.ir_version);
        Ok(Self { stages, constants, opsets, ir_version, options, engine })
    }

    /// The model of a stretch of nodes, with inputs of the types they have now.
    fn part(&self, segment: &Segment, values: &HashMap<String, Array<'_>>) -> ModelProto {
        let input = |name: &String| declared(name, values.get(name));
        let graph = GraphProto {
            name: Some("part".to_owned()),
            node: segment.nodes.clone(),
            initializer: segment.constants.iter().filter_map(|name| self.constants.get(name).cloned()).collect(),
            input: segment.reads.iter().map(input).collect(),
            output: segment.gives.iter().map(|name| declared(name, None)).collect(),
            ..GraphProto::default()
        };
        let opset_import = self.opsets.clone();
        ModelProto { ir_version: self.ir_version, opset_import, graph: Some(graph).into(), ..ModelProto::default() }
    }
}

impl Running {
    fn new(stage: QuantizationStage) -> Result<Self, RuntimeError> {
        let mut quantizers = Vec::with_capacity(stage.quantizers.len());
        for node in stage.quantizers {
            if let Some(quantizer) = quantizer(&node)? {
                quantizers.push((node, quantizer));
            }
        }
        Ok(Self { quantizers, segment: stage.segment, last: stage.last, session: None })
    }
}

/// A value of an array's type and rank, and of any size: some operators mean other things at other ranks.
pub(crate) fn declared(name: &str, array: Option<&Array<'_>>) -> ValueInfoProto {
    let of_array =
        |array: &Array<'_>| ValueType::new(array.data_type(), vec![Dim::Unknown; array.shape().len()]).to_proto(name);
    let untyped = || ValueInfoProto { name: Some(name.to_owned()), ..ValueInfoProto::default() };
    array.and_then(of_array).unwrap_or_else(untyped)
}

impl Session for FakeQuantized {
    fn name(&self) -> String {
        format!("{}, quantized operators by kvant", self.engine)
    }

    fn run(
        &mut self,
        inputs: &[(&str, Array<'_>)],
        wanted: &[String],
        visit: &mut Visit<'_>,
    ) -> Result<(), RuntimeError> {
        let mut values: HashMap<String, Array<'_>> =
            inputs.iter().map(|(name, array)| ((*name).to_owned(), array.view())).collect();
        for number in 0..self.stages.len() {
            for (node, quantizer) in &self.stages[number].quantizers {
                let result = quantized(node, *quantizer, &values, &self.constants)?;
                let Some(name) = node.output.first() else { continue };
                if wanted.contains(name) && visit(name, &result).is_break() {
                    return Ok(());
                }
                values.insert(name.clone(), result);
            }
            if self.segment(number, &mut values, wanted, visit)?.is_break() {
                return Ok(());
            }
            for name in &self.stages[number].last {
                values.remove(name);
            }
        }
        Ok(())
    }
}

impl FakeQuantized {
    /// Runs the stretch of nodes of a stage.
    fn segment(
        &mut self,
        number: usize,
        values: &mut HashMap<String, Array<'_>>,
        wanted: &[String],
        visit: &mut Visit<'_>,
    ) -> Result<ControlFlow<()>, RuntimeError> {
        if self.stages[number].segment.nodes.is_empty() {
            return Ok(ControlFlow::Continue(()));
        }
        if self.stages[number].session.is_none() {
            let segment = &self.stages[number].segment;
            let session = engine(&self.part(segment, values), &segment.gives, &self.options)?;
            self.stages[number].session = Some(session);
        }
        let Running { segment, session, .. } = &mut self.stages[number];
        let inputs: Vec<(&str, Array<'_>)> =
            segment.reads.iter().filter_map(|name| Some((name.as_str(), values.get(name)?.view()))).collect();
        let mut made = Vec::with_capacity(segment.gives.len());
        let mut flow = ControlFlow::Continue(());
        if let Some(session) = session {
            session.run(&inputs, &segment.gives, &mut |name, array| {
                if wanted.iter().any(|w| w == name) {
                    flow = visit(name, array);
                }
                made.push((name.to_owned(), array.clone().into_owned()));
                flow
            })?;
        }
        values.extend(made);
        Ok(flow)
    }
}

fn quantized(
    node: &NodeProto,
    quantizer: Quantizer,
    values: &HashMap<String, Array<'_>>,
    constants: &Constants,
) -> Result<Array<'static>, RuntimeError> {
    let mut inputs = Vec::with_capacity(3);
    for name in node.input.iter().filter(|name| !name.is_empty()) {
        let array = values.get(name).map(Array::view).or_else(|| constants.array(name));
        inputs.push(array.ok_or_else(|| RuntimeError::UnknownTensor(name.clone()))?);
    }
    let declared = node.input.get(2).and_then(|zero| constants.declared(zero));
    quantizer.compute(&inputs, declared).map_err(|e| kernel_error(node, e))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Values;
    use crate::fake_quantization::open;
    use crate::graph::{node, set_attribute};
    use crate::runtime::RuntimeChoice;
    use crate::test_models::{floats, integers, model, typed};
    use kvant_container::onnx::{DataType, tensor};

    #[test]
    fn part_of_a_graph_knows_the_rank_of_its_inputs() {
        let mut softmax = node("Softmax", "s", &["d"], &["y_QuantizeLinear_Input"]);
        set_attribute(&mut softmax, "axis", 2i64);
        let pair = |from: &str, between: &str, to: &str| {
            let linear = |op: &str, from: &str, to: &str| node(op, to, &[from, "scale", "zero"], &[to]);
            [linear("QuantizeLinear", from, between), linear("DequantizeLinear", between, to)]
        };
        let reshape = node("Reshape", "r", &["x", "shape"], &["h"]);
        let ends = pair("y_QuantizeLinear_Input", "yq", "y");
        let nodes = [vec![reshape], pair("h", "hq", "d").into(), vec![softmax], ends.into()].concat();
        let zero = tensor("zero", DataType::UINT8, &[], vec![0u8]);
        let constants = vec![integers("shape", &[-1, 2, 2]), floats("scale", &[], &[0.125]), zero];
        let mut old = model(11, nodes, constants, &[], &["y"]);
        old.graph.as_mut().unwrap().input = vec![typed("x", &[1, 4])];
        let options = RuntimeOptions { choice: RuntimeChoice::Rten, ..RuntimeOptions::default() };
        let wanted = ["y".to_owned()];
        let mut session = open(&old, &wanted, &options).unwrap();
        let x = Array::of(vec![1, 4], vec![1.0f32; 4]).unwrap();
        let mut seen = Vec::new();
        let mut keep = |_: &str, array: &Array<'_>| {
            seen.push(array.clone().into_owned());
            ControlFlow::Continue(())
        };
        session.run(&[("x", x.view())], &wanted, &mut keep).unwrap();
        assert!(
            matches!(seen[0].values(), Values::F32(values) if **values == [0.5; 4]) && seen[0].shape() == [1, 2, 2]
        );
    }
}
