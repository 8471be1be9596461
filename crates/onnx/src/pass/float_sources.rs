//! Tensors of float16, bfloat16 and float64 become float32, which is what is calibrated and quantized. Inputs and outputs of the
//! model keep their types: a Cast stands behind the ones and before the others.
//!
//! Every number of 16 bits is one of 32, and arithmetic becomes more exact, not less. float64 loses digits: it is converted
//! where weights of products are of it, and left alone where it is a side calculation of a float32 model.

use std::collections::HashSet;

use kvant_container::onnx::{
    AttributeProto, DataType, EnumOrUnknown, GraphProto, ModelProto, NodeProto, TensorProto, TypeProto, TypeValue,
    data_type, tensor, tensor_bytes,
};

use super::{Context, PassError};
use crate::data::{Array, Values, from_bytes, type_of};
use crate::graph::{Edit, Index, Names, cast_node, int_attribute, is, is_standard};
use crate::shape::{Types, infer};

/// Operators with an attribute that names the type of what they make.
const TYPED: &[(&str, &str)] = &[
    ("Cast", "to"),
    ("Bernoulli", "dtype"),
    ("EyeLike", "dtype"),
    ("RandomNormal", "dtype"),
    ("RandomNormalLike", "dtype"),
    ("RandomUniform", "dtype"),
    ("RandomUniformLike", "dtype"),
    ("SequenceEmpty", "dtype"),
    ("HannWindow", "output_datatype"),
    ("HammingWindow", "output_datatype"),
    ("BlackmanWindow", "output_datatype"),
    ("LayerNormalization", "stash_type"),
];

pub(super) fn run(model: &mut ModelProto, context: &Context<'_>) -> Result<usize, PassError> {
    let sources = Sources { double: has_double_weights(&model.graph), kept: context.kept };
    let types = infer(model);
    let mut converter = Converter { sources, context, rewrites: 0 };
    for node in model.functions.iter_mut().flat_map(|function| &mut function.node) {
        converter.node(node)?;
    }
    let Some(graph) = model.graph.as_mut() else { return Ok(0) };
    let casts = converter.ends(graph, &types);
    let kept: HashSet<String> = graph.input.iter().chain(&graph.output).map(|v| v.name().to_owned()).collect();
    converter.graph(graph, &kept)?;
    graph.node.splice(0..0, casts.inputs);
    graph.node.extend(casts.outputs);
    Ok(converter.rewrites)
}

/// The types that become float32.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sources {
    /// float64, too.
    pub(super) double: bool,
    /// But not this one.
    pub(super) kept: Option<DataType>,
}

impl Sources {
    pub(super) fn has(self, data_type: DataType) -> bool {
        let converted = match data_type {
            DataType::FLOAT16 | DataType::BFLOAT16 => true,
            DataType::DOUBLE => self.double,
            _ => false,
        };
        converted && self.kept != Some(data_type)
    }

    fn has_number(self, number: i64) -> bool {
        let known = i32::try_from(number).map(EnumOrUnknown::<DataType>::from_i32);
        known.is_ok_and(|known| self.has(known.enum_value_or(DataType::UNDEFINED)))
    }
}

/// Returns whether a product has a constant of float64.
fn has_double_weights(graph: &GraphProto) -> bool {
    let index = Index::new(graph);
    let double = |name: &String| index.constant(graph, name).is_some_and(|t| data_type(t) == DataType::DOUBLE);
    let product = |node: &&NodeProto| ["Conv", "ConvTranspose", "Gemm", "MatMul"].iter().any(|op| is(node, op));
    graph.node.iter().filter(product).flat_map(|node| &node.input).any(double)
}

/// The casts at the ends of a graph.
#[derive(Default)]
struct Casts {
    inputs: Vec<NodeProto>,
    outputs: Vec<NodeProto>,
}

struct Converter<'a> {
    sources: Sources,
    context: &'a Context<'a>,
    rewrites: usize,
}

impl Converter<'_> {
    /// Renames what is read of inputs and made for outputs, so that their names stay those of the types they had.
    fn ends(&mut self, graph: &mut GraphProto, types: &Types) -> Casts {
        let (index, mut names) = (Index::new(graph), Names::of(graph));
        let (mut edit, mut casts) = (Edit::default(), Casts::default());
        for name in graph.input.iter().filter(|v| self.sources.has(type_of(v).0)).map(|v| v.name()) {
            if !only_cast(graph, &index, name) {
                let wide = names.fresh(&format!("{name}_float32"));
                edit.rename(name, &wide);
                casts.inputs.push(cast_node(&format!("{wide}_Cast"), name, &wide, DataType::FLOAT));
            }
        }
        for value in &graph.output {
            let (name, declared) = (value.name(), type_of(value).0);
            let known = Some(declared).filter(|&t| t != DataType::UNDEFINED).or_else(|| types.data_type(name));
            let Some(narrow) = known.filter(|&t| self.sources.has(t)) else { continue };
            if !index.is_input(name) && !made_by_cast(graph, &index, name) {
                let wide = names.fresh(&format!("{name}_float32"));
                edit.rename(name, &wide);
                casts.outputs.push(cast_node(&format!("{name}_Cast"), &wide, name, narrow));
                graph.initializer.iter_mut().filter(|t| t.name() == name).for_each(|t| t.name = Some(wide.clone()));
            }
        }
        self.rewrites += casts.inputs.len() + casts.outputs.len();
        edit.apply(graph);
        casts
    }

    /// Converts constants, attributes and declared types, but for the tensors at the model's ends: defaults of inputs, casts
    /// that make outputs.
    fn graph(&mut self, graph: &mut GraphProto, kept: &HashSet<String>) -> Result<(), PassError> {
        let sparse = graph.sparse_initializer.iter_mut().filter_map(|t| t.values.as_mut());
        for constant in graph.initializer.iter_mut().chain(sparse).filter(|t| !kept.contains(t.name())) {
            self.constant(constant)?;
        }
        let end = |node: &NodeProto| is(node, "Cast") && node.output.first().is_some_and(|name| kept.contains(name));
        for node in graph.node.iter_mut().filter(|node| !end(node)) {
            self.node(node)?;
        }
        graph.value_info.iter_mut().filter_map(|v| v.type_.as_mut()).for_each(|t| self.declared(t));
        Ok(())
    }

    fn node(&mut self, node: &mut NodeProto) -> Result<(), PassError> {
        let named = TYPED.iter().find(|(op_type, _)| is(node, op_type)).map(|(_, attribute)| *attribute);
        let constant = is_standard(node) && matches!(node.op_type(), "Constant" | "ConstantOfShape");
        for attribute in &mut node.attribute {
            if Some(attribute.name()) == named && attribute.i.is_some_and(|number| self.sources.has_number(number)) {
                attribute.i = Some(DataType::FLOAT as i64);
                self.rewrites += 1;
            }
            if let Some(value) = attribute.t.as_mut().filter(|_| constant) {
                self.constant(value)?;
            }
            attribute.tp.as_mut().into_iter().for_each(|t| self.declared(t));
            self.bodies(attribute)?;
        }
        Ok(())
    }

    fn bodies(&mut self, attribute: &mut AttributeProto) -> Result<(), PassError> {
        for body in attribute.g.as_mut().into_iter().chain(&mut attribute.graphs) {
            self.graph(body, &HashSet::new())?;
            let ends = body.input.iter_mut().chain(&mut body.output);
            ends.filter_map(|v| v.type_.as_mut()).for_each(|t| self.declared(t));
        }
        Ok(())
    }

    fn declared(&mut self, declared: &mut TypeProto) {
        match declared.value.as_mut() {
            Some(TypeValue::TensorType(tensor)) if self.sources.has_number(i64::from(tensor.elem_type())) => {
                tensor.elem_type = Some(DataType::FLOAT as i32);
                self.rewrites += 1;
            }
            Some(TypeValue::SequenceType(sequence)) => {
                sequence.elem_type.as_mut().into_iter().for_each(|t| self.declared(t));
            }
            Some(TypeValue::OptionalType(optional)) => {
                optional.elem_type.as_mut().into_iter().for_each(|t| self.declared(t));
            }
            _ => {}
        }
    }

    fn constant(&mut self, constant: &mut TensorProto) -> Result<(), PassError> {
        if !self.sources.has(data_type(constant)) {
            return Ok(());
        }
        let Some((shape, contents)) = widened(constant) else { return Ok(()) };
        let contents = kvant_container::onnx::keep(self.context.spill, contents)?;
        let made = tensor(constant.name(), DataType::FLOAT, &shape, contents);
        *constant = TensorProto { doc_string: constant.doc_string.take(), ..made };
        self.rewrites += 1;
        Ok(())
    }
}

/// Shape and contents of a constant in float32; numbers beyond its range become the largest it has. `None` for what is damaged.
fn widened(constant: &TensorProto) -> Option<(Vec<usize>, Vec<u8>)> {
    let shape = kvant_container::onnx::shape(constant).ok()?;
    let bytes = tensor_bytes(constant).ok()?;
    let array = Array::new(shape, from_bytes(data_type(constant), &bytes)?)?;
    let contents = match array.values() {
        Values::F64(values) => {
            let limited = |v: f64| if v.is_finite() { v.clamp(f32::MIN.into(), f32::MAX.into()) } else { v };
            values.iter().flat_map(|&v| (limited(v) as f32).to_le_bytes()).collect()
        }
        _ => array.to_f32s().iter().flat_map(|v| v.to_le_bytes()).collect(),
    };
    Some((array.shape().to_vec(), contents))
}

/// Returns whether an input is read by casts to float32 alone.
fn only_cast(graph: &GraphProto, index: &Index, name: &str) -> bool {
    let casts = |&at: &usize| {
        let node = &graph.node[at];
        is(node, "Cast") && int_attribute(node, "to") == Some(DataType::FLOAT as i64)
    };
    index.consumers(name).iter().all(casts)
}

/// Returns whether an output is made by a Cast, and read by nobody inside.
fn made_by_cast(graph: &GraphProto, index: &Index, name: &str) -> bool {
    let maker = index.producer(name).map(|at| &graph.node[at]);
    maker.is_some_and(|node| is(node, "Cast")) && index.consumers(name).is_empty()
}

#[cfg(test)]
mod tests {
    use half::f16;

    use super::*;
    use crate::graph::{bodies, check, node, set_attribute};
    use crate::pass::{Selection, simplify};
    use crate::shape::{Dim, ValueType};
    use crate::test_models::{branches, model};

    fn value(name: &str, data_type: DataType) -> kvant_container::onnx::ValueInfoProto {
        ValueType::new(data_type, vec![Dim::Known(1), Dim::Known(2)]).to_proto(name).unwrap()
    }

    fn halves(name: &str, shape: &[usize], values: &[f32]) -> TensorProto {
        let bytes: Vec<u8> = values.iter().flat_map(|&v| f16::from_f32(v).to_le_bytes()).collect();
        tensor(name, DataType::FLOAT16, shape, bytes)
    }

    /// A product and a sum in a type, with a cast between.
    fn source(data_type: DataType, weight: TensorProto) -> ModelProto {
        let mut cast = node("Cast", "there", &["p"], &["c"]);
        set_attribute(&mut cast, "to", data_type as i64);
        let nodes = vec![node("MatMul", "m", &["x", "w"], &["p"]), cast, node("Add", "a", &["c", "x"], &["y"])];
        let mut model = model(17, nodes, vec![weight], &[], &[]);
        let graph = model.graph.as_mut().unwrap();
        (graph.input, graph.output) = (vec![value("x", data_type)], vec![value("y", data_type)]);
        graph.value_info = vec![value("p", data_type)];
        model
    }

    #[test]
    fn float16_becomes_float32_with_unchanged_graph_types() {
        let mut model = source(DataType::FLOAT16, halves("w", &[2, 2], &[1.0, 0.5, -2.0, 6e-8]));
        let selection = Selection::default().with("float-sources").unwrap();
        simplify(&mut model, &selection, &Context::default()).unwrap();
        assert_eq!(check(&model), Ok(()));
        let operators: Vec<&str> = model.graph.node.iter().map(|n| n.op_type()).collect();
        assert_eq!(operators, ["Cast", "MatMul", "Add", "Cast"]);
        let ends = model.graph.input.iter().chain(&model.graph.output).map(|v| type_of(v).0);
        assert_eq!(ends.collect::<Vec<_>>(), [DataType::FLOAT16; 2]);
        let weight = &model.graph.initializer[0];
        assert_eq!((data_type(weight), crate::solution::values(weight).unwrap()[3]), (DataType::FLOAT, 5.960_464_5e-8));
        assert_eq!(run(&mut model, &Context::default()).unwrap(), 0);
    }

    #[test]
    fn float64_weights_are_converted() {
        let bytes = |values: [f64; 4]| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
        let weight = tensor("w", DataType::DOUBLE, &[2, 2], bytes([1e300, 0.1, -1e-60, 2.0]));
        let mut double = source(DataType::DOUBLE, weight);
        assert!(run(&mut double, &Context::default()).unwrap() > 0);
        assert_eq!(crate::solution::values(&double.graph.initializer[0]).unwrap(), [f32::MAX, 0.1, 0.0, 2.0]);
        let mut side = source(DataType::DOUBLE, halves("w", &[2, 2], &[1.0; 4]));
        side.graph.as_mut().unwrap().initializer[0].data_type = Some(DataType::FLOAT as i32);
        assert_eq!(run(&mut side, &Context::default()).unwrap(), 0);
    }

    #[test]
    fn subgraph_is_converted_and_reads_the_input_cast() {
        let body = |constant: f32| {
            let inner = halves("k", &[1, 2], &[constant; 2]);
            GraphProto {
                name: Some("body".to_owned()),
                node: vec![node("Add", "", &["x", "k"], &["z"])],
                initializer: vec![inner],
                output: vec![value("z", DataType::FLOAT16)],
                ..GraphProto::default()
            }
        };
        let branch = branches("condition", "y", body(1.0), body(2.0));
        let mut model = model(17, vec![branch], vec![], &[], &[]);
        let graph = model.graph.as_mut().unwrap();
        graph.input = vec![value("x", DataType::FLOAT16), value("condition", DataType::BOOL)];
        graph.output = vec![value("y", DataType::FLOAT16)];
        assert!(run(&mut model, &Context::default()).unwrap() > 0);
        assert_eq!(check(&model), Ok(()));
        let branch = model.graph.node.iter().find(|n| n.op_type() == "If").unwrap();
        let inner = bodies(branch).next().unwrap();
        assert_eq!((inner.node[0].input[0].as_str(), type_of(&inner.output[0]).0), ("x_float32", DataType::FLOAT));
        assert_eq!(data_type(&inner.initializer[0]), DataType::FLOAT);
    }
}
