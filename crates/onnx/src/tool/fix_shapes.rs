//! Sizes for dimensions that a graph leaves open.

use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;

use kvant_container::onnx::{
    Dimension, DimensionValue, GraphProto, MessageField, ModelProto, NodeProto, TensorShapeProto, TypeProto, TypeValue,
    ValueInfoProto,
};

use super::ToolError;
use crate::graph::{GraphError, Index, bodies_mut};
use crate::pass::{Context, Pass};
use crate::shape::{Dim, ValueType, contradiction, infer};

/// The shape of an input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FixedShape {
    /// The input.
    pub input: String,
    /// Its sizes, outermost first; none for a scalar.
    pub sizes: Vec<usize>,
}

/// The size of every dimension of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FixedDim {
    /// The name, as inputs declare it.
    pub name: String,
    /// The size.
    pub size: usize,
}

impl FromStr for FixedShape {
    type Err = &'static str;

    /// `x=1,3,224,224`; nothing behind the last `=` is a scalar.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const NEEDED: &str = "an input and its sizes are needed, e.g. x=1,3,224,224";
        let (input, sizes) = text.rsplit_once('=').filter(|(input, _)| !input.is_empty()).ok_or(NEEDED)?;
        let sizes = sizes.split(',').filter(|_| !sizes.is_empty()).map(size).collect::<Option<_>>().ok_or(NEEDED)?;
        Ok(Self { input: input.to_owned(), sizes })
    }
}

impl FromStr for FixedDim {
    type Err = &'static str;

    /// `batch=1`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const NEEDED: &str = "the name of a dimension and its size are needed, e.g. batch=1";
        let (name, number) = text.rsplit_once('=').filter(|(name, _)| !name.is_empty()).ok_or(NEEDED)?;
        Ok(Self { name: name.to_owned(), size: size(number).ok_or(NEEDED)? })
    }
}

/// A size that a file can state.
fn size(text: &str) -> Option<usize> {
    text.trim().parse().ok().filter(|&size: &usize| i64::try_from(size).is_ok())
}

/// The results of [`fix_shapes`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FixedShapes {
    /// Names of dimensions that have a size now.
    pub dims: BTreeMap<String, usize>,
    /// Inputs that still have a dimension without a size.
    pub open: Vec<String>,
}

/// Gives inputs the shapes, and dimensions of the names the sizes. A shape also gives the names of its dimensions sizes, everywhere in the model.
/// Then the types and shapes that follow are written to the model.
///
/// # Errors
/// Inputs and names that the model does not have; sizes that contradict each other, what the model declares of its inputs and outputs, or what its
/// nodes compute with.
pub fn fix_shapes(model: &mut ModelProto, shapes: &[FixedShape], dims: &[FixedDim]) -> Result<FixedShapes, ToolError> {
    let mut made = model.clone();
    let Some(graph) = made.graph.as_mut() else { return Ok(FixedShapes::default()) };
    let mut sizes = Sizes::default();
    for shape in shapes {
        set_shape(graph, shape, &mut sizes)?;
    }
    let known = symbols(graph);
    for dim in dims {
        let is_known = known.contains(&dim.name) || sizes.0.contains_key(&dim.name);
        if !is_known {
            return Err(ToolError::NoDim { name: dim.name.clone(), known: known.into_iter().collect() });
        }
        sizes.bind(&dim.name, dim.size)?;
    }
    sizes.apply(graph);
    if let Some((node, mismatch)) = contradiction(&made) {
        return Err(GraphError::Shapes { node, mismatch: mismatch.to_string() }.into());
    }
    refuse_other_outputs(&made)?;
    Pass::named("shape-inference")?.run(&mut made, &Context::default())?;
    let is_open =
        |value: &&ValueInfoProto| ValueType::declared(value).is_some_and(|declared| declared.known_shape().is_none());
    let open = made.graph.input.iter().filter(is_open).map(|value| value.name().to_owned()).collect();
    *model = made;
    Ok(FixedShapes { dims: sizes.0, open })
}

/// The sizes of dimensions that have names.
#[derive(Default)]
struct Sizes(BTreeMap<String, usize>);

impl Sizes {
    fn bind(&mut self, name: &str, size: usize) -> Result<(), ToolError> {
        match self.0.insert(name.to_owned(), size) {
            Some(first) if first != size => Err(ToolError::TwoSizes { name: name.to_owned(), first, second: size }),
            _ => Ok(()),
        }
    }

    fn apply(&self, graph: &mut GraphProto) {
        let values = graph.input.iter_mut().chain(&mut graph.output).chain(&mut graph.value_info);
        values.filter_map(|value| value.type_.as_mut()).for_each(|declared| self.in_type(declared));
        graph.node.iter_mut().flat_map(|node: &mut NodeProto| bodies_mut(node)).for_each(|body| self.apply(body));
    }

    fn in_type(&self, declared: &mut TypeProto) {
        match declared.value.as_mut() {
            Some(TypeValue::TensorType(tensor)) => {
                tensor.shape.as_mut().into_iter().flat_map(|shape| &mut shape.dim).for_each(|dim| self.in_dim(dim));
            }
            Some(TypeValue::SequenceType(sequence)) => {
                sequence.elem_type.as_mut().into_iter().for_each(|inner| self.in_type(inner));
            }
            Some(TypeValue::OptionalType(optional)) => {
                optional.elem_type.as_mut().into_iter().for_each(|inner| self.in_type(inner));
            }
            _ => {}
        }
    }

    fn in_dim(&self, dim: &mut Dimension) {
        let size = match &dim.value {
            Some(DimensionValue::DimParam(name)) => self.0.get(name),
            _ => None,
        };
        if let Some(&size) = size {
            dim.value = Some(number(size));
        }
    }
}

fn number(size: usize) -> DimensionValue {
    DimensionValue::DimValue(i64::try_from(size).unwrap_or(i64::MAX))
}

/// Gives an input its shape; names of its dimensions get their sizes.
fn set_shape(graph: &mut GraphProto, shape: &FixedShape, sizes: &mut Sizes) -> Result<(), ToolError> {
    let FixedShape { input: name, sizes: wanted } = shape;
    let default = Index::new(graph).initializer(name).map(|at| graph.initializer[at].dims.clone());
    let inputs: Vec<String> = graph.input.iter().map(|value| value.name().to_owned()).collect();
    let missing = || ToolError::NoInput { name: name.clone(), inputs };
    let Some(value) = graph.input.iter_mut().find(|value| value.name() == name) else { return Err(missing()) };
    let Some(declared) = ValueType::declared(value) else { return Err(missing()) };
    let refused = |declared: String| ToolError::Shape { name: name.clone(), asked: joined(wanted), declared };
    if let Some(dims) = declared.shape {
        if dims.len() != wanted.len() {
            return Err(refused(format!("the model declares {}", dims_of(dims.len()))));
        }
        for (at, (dim, &size)) in dims.iter().zip(wanted).enumerate() {
            match dim {
                Dim::Known(known) if *known != size => {
                    return Err(refused(format!("the model declares {known} for dimension {at}")));
                }
                Dim::Symbol(symbol) => sizes.bind(symbol, size)?,
                Dim::Known(_) | Dim::Unknown => {}
            }
        }
    }
    if let Some(dims) = default.filter(|dims| !dims.iter().zip(wanted).all(|(&dim, &size)| dim == size as i64)) {
        return Err(refused(format!("its default has the shape {dims:?}")));
    }
    if let Some(TypeValue::TensorType(tensor)) = value.type_.as_mut().and_then(|declared| declared.value.as_mut()) {
        let old = tensor.shape.as_ref().map(|shape| shape.dim.clone()).unwrap_or_default();
        let dim = |(at, &size): (usize, &usize)| Dimension {
            value: Some(number(size)),
            ..old.get(at).cloned().unwrap_or_default()
        };
        let dim = wanted.iter().enumerate().map(dim).collect();
        tensor.shape = MessageField::some(TensorShapeProto { dim, ..TensorShapeProto::default() });
    }
    Ok(())
}

fn dims_of(count: usize) -> String {
    match count {
        1 => "one dimension".to_owned(),
        count => format!("{count} dimensions"),
    }
}

fn joined(sizes: &[usize]) -> String {
    sizes.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")
}

/// The names of the dimensions of inputs, outputs and other tensors of a graph.
fn symbols(graph: &GraphProto) -> BTreeSet<String> {
    let values = graph.input.iter().chain(&graph.output).chain(&graph.value_info);
    let dims = values.filter_map(|value| ValueType::declared(value)?.shape).flatten();
    let name = |dim| match dim {
        Dim::Symbol(name) => Some(name),
        Dim::Known(_) | Dim::Unknown => None,
    };
    dims.filter_map(name).collect()
}

/// Refuses shapes by which an output has another shape than the model declares of it.
fn refuse_other_outputs(model: &ModelProto) -> Result<(), ToolError> {
    let types = infer(model);
    for output in &model.graph.output {
        let declared = ValueType::declared(output).and_then(|declared| declared.shape);
        let found = types.get(output.name()).and_then(|found| found.shape.clone());
        let (Some(declared), Some(found)) = (declared, found) else { continue };
        let differs = |(a, b): (&Dim, &Dim)| matches!((a, b), (Dim::Known(a), Dim::Known(b)) if a != b);
        if declared.len() != found.len() || declared.iter().zip(&found).any(differs) {
            let text = |dims: &[Dim]| dims.iter().map(display).collect::<Vec<_>>().join(", ");
            return Err(ToolError::Shape {
                name: output.name().to_owned(),
                asked: text(&found),
                declared: format!("it follows from the inputs, and the model declares [{}]", text(&declared)),
            });
        }
    }
    Ok(())
}

fn display(dim: &Dim) -> String {
    match dim {
        Dim::Known(size) => size.to_string(),
        Dim::Symbol(name) => name.escape_debug().to_string(),
        Dim::Unknown => "?".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use kvant_container::onnx::DataType;

    use super::*;
    use crate::graph::{bodies, check, node};
    use crate::test_models::{branches, floats, model, typed, value};

    fn symbolic(name: &str, dims: &[&str]) -> ValueInfoProto {
        let dim = |dim: &&str| match (dim.parse(), *dim) {
            (Ok(size), _) => Dim::Known(size),
            (_, "?") => Dim::Unknown,
            (_, name) => Dim::Symbol(name.to_owned()),
        };
        ValueType::new(DataType::FLOAT, dims.iter().map(dim).collect()).to_proto(name).unwrap()
    }

    /// y = relu(x w) with x of [batch, 4], z = x + k with k of [batch, ?].
    fn made() -> ModelProto {
        let nodes = vec![
            node("MatMul", "m", &["x", "w"], &["h"]),
            node("Relu", "r", &["h"], &["y"]),
            node("Add", "a", &["x", "k"], &["z"]),
        ];
        let mut made = model(17, nodes, vec![floats("w", &[4, 2], &[0.5; 8])], &[], &[]);
        let graph = made.graph.as_mut().unwrap();
        graph.input = vec![symbolic("x", &["batch", "4"]), symbolic("k", &["batch", "?"])];
        graph.output = vec![symbolic("y", &["batch", "2"]), value("z")];
        made
    }

    fn fixed(shapes: &[&str], dims: &[&str]) -> Result<(ModelProto, FixedShapes), ToolError> {
        let mut model = made();
        let shapes: Vec<FixedShape> = shapes.iter().map(|text| text.parse().unwrap()).collect();
        let dims: Vec<FixedDim> = dims.iter().map(|text| text.parse().unwrap()).collect();
        let found = fix_shapes(&mut model, &shapes, &dims)?;
        assert_eq!(check(&model), Ok(()));
        Ok((model, found))
    }

    #[test]
    fn shape_of_an_input_gives_names_their_sizes_everywhere() {
        let (model, found) = fixed(&["x=3,4"], &[]).unwrap();
        assert_eq!((found.dims, found.open), ([("batch".to_owned(), 3)].into(), vec!["k".to_owned()]));
        assert_eq!(model.graph.input, [typed("x", &[3, 4]), symbolic("k", &["3", "?"])]);
        assert_eq!(model.graph.output[0], typed("y", &[3, 2]));
        assert_eq!(model.graph.value_info, [typed("h", &[3, 2])]);
    }

    #[test]
    fn dimension_is_fixed_by_its_name() {
        let (model, found) = fixed(&["k=1,4"], &["batch=1"]).unwrap();
        assert!(found.open.is_empty());
        assert_eq!(model.graph.output, [typed("y", &[1, 2]), typed("z", &[1, 4])]);
    }

    #[test]
    fn contradictions_are_refused() {
        let refused = |shapes: &[&str], dims: &[&str]| fixed(shapes, dims).unwrap_err();
        assert!(matches!(refused(&["x=3,5"], &[]), ToolError::Shape { name, .. } if name == "x"));
        assert!(matches!(refused(&["x=3"], &[]), ToolError::Shape { .. }));
        assert!(matches!(refused(&["x="], &[]), ToolError::Shape { .. }));
        assert!(matches!(refused(&["x=3,4", "k=2,4"], &[]), ToolError::TwoSizes { first: 3, second: 2, .. }));
        assert!(matches!(refused(&["x=3,4"], &["batch=2"]), ToolError::TwoSizes { .. }));
        assert!(matches!(refused(&["none=3,4"], &[]), ToolError::NoInput { .. }));
        assert!(matches!(refused(&[], &["length=2"]), ToolError::NoDim { known, .. } if known == ["batch"]));
        // The sum of x and k.
        assert!(matches!(refused(&["k=3,5"], &[]), ToolError::Graph(GraphError::Shapes { .. })));
    }

    #[test]
    fn shape_that_an_output_does_not_declare_is_refused() {
        let mut model = made();
        model.graph.as_mut().unwrap().output[0] = typed("y", &[1, 2]);
        let before = model.clone();
        let error = fix_shapes(&mut model, &["x=3,4".parse().unwrap()], &[]).unwrap_err();
        assert!(matches!(&error, ToolError::Shape { name, .. } if name == "y"), "{error}");
        assert_eq!(model, before);
    }

    #[test]
    fn names_in_bodies_are_fixed_and_defaults_keep_their_shape() {
        let body = |name: &str| GraphProto {
            node: vec![node("Relu", name, &["x"], &[name])],
            output: vec![symbolic(name, &["n", "2"])],
            ..GraphProto::default()
        };
        let mut made = model(17, vec![branches("c", "y", body("t"), body("e"))], vec![], &["c"], &["y"]);
        let graph = made.graph.as_mut().unwrap();
        graph.input.push(symbolic("x", &["n", "2"]));
        graph.input.push(symbolic("w", &["?"]));
        graph.initializer.push(floats("w", &[2], &[1.0; 2]));
        fix_shapes(&mut made, &[], &["n=5".parse().unwrap()]).unwrap();
        assert_eq!(bodies(&made.graph.node[0]).next().unwrap().output, [typed("t", &[5, 2])]);
        assert!(matches!(fix_shapes(&mut made, &["w=3".parse().unwrap()], &[]), Err(ToolError::Shape { .. })));
    }

    #[test]
    fn misspelt_shapes_are_refused() {
        for text in ["x", "=1", "x=1,,2", "x=-1", "x=1x3", "x=99999999999999999999"] {
            assert!(text.parse::<FixedShape>().is_err(), "{text}");
        }
        assert_eq!("a=b=".parse(), Ok(FixedShape { input: "a=b".to_owned(), sizes: vec![] }));
        for text in ["n", "n=", "=1", "n=a"] {
            assert!(text.parse::<FixedDim>().is_err(), "{text}");
        }
    }
}
