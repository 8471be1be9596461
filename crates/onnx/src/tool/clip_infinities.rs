//! Infinite constants as finite ones.

use kvant_container::onnx::{
    AttributeProto, DataType, GraphProto, ModelProto, NodeProto, Spill, TensorProto, data_type, keep, tensor_bytes,
};

use super::ToolError;
use crate::graph::is;
use half::{bf16, f16};

/// The results of [`clip_infinities`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Clipped {
    /// Constants that had infinite values.
    pub constants: usize,
    /// Their infinite values.
    pub values: usize,
}

/// Replaces infinite values of constants of float, float16, bfloat16 and double by the largest finite number of their type with the same sign,
/// or by `limit` where that is smaller. Initializers, tensors in attributes and values of Constant nodes count, in bodies and functions too. NaN
/// stays. Large new constants go to `spill`.
///
/// # Errors
/// [`ToolError::Limit`] for a limit that is not positive and finite.
pub fn clip_infinities(
    model: &mut ModelProto,
    limit: Option<f64>,
    spill: Option<&Spill>,
) -> Result<Clipped, ToolError> {
    if let Some(limit) = limit.filter(|limit| !(limit.is_finite() && *limit > 0.0)) {
        return Err(ToolError::Limit(limit));
    }
    let mut clipper = Clipper { limit: limit.unwrap_or(f64::MAX), spill, clipped: Clipped::default() };
    if let Some(graph) = model.graph.as_mut() {
        clipper.graph(graph)?;
    }
    model.functions.iter_mut().flat_map(|function| &mut function.node).try_for_each(|node| clipper.node(node))?;
    Ok(clipper.clipped)
}

struct Clipper<'a> {
    limit: f64,
    spill: Option<&'a Spill>,
    clipped: Clipped,
}

impl Clipper<'_> {
    fn graph(&mut self, graph: &mut GraphProto) -> Result<(), ToolError> {
        let sparse = graph.sparse_initializer.iter_mut().filter_map(|sparse| sparse.values.as_mut());
        graph.initializer.iter_mut().chain(sparse).try_for_each(|tensor| self.tensor(tensor))?;
        graph.node.iter_mut().try_for_each(|node| self.node(node))
    }

    fn node(&mut self, node: &mut NodeProto) -> Result<(), ToolError> {
        let is_constant = is(node, "Constant");
        node.attribute.iter_mut().try_for_each(|attribute| self.attribute(attribute, is_constant))
    }

    fn attribute(&mut self, attribute: &mut AttributeProto, is_constant: bool) -> Result<(), ToolError> {
        let sparse = attribute.sparse_tensor.as_mut().and_then(|sparse| sparse.values.as_mut());
        let tensors = attribute.t.as_mut().into_iter().chain(&mut attribute.tensors).chain(sparse);
        tensors.into_iter().try_for_each(|tensor| self.tensor(tensor))?;
        if is_constant {
            let limit = self.limit.min(f32::MAX.into()) as f32;
            let infinite = attribute.f.iter_mut().chain(&mut attribute.floats).filter(|value| value.is_infinite());
            let count = infinite.map(|value| *value = limit.copysign(*value)).count();
            self.count(count);
        }
        let bodies = attribute.g.as_mut().into_iter().chain(&mut attribute.graphs);
        bodies.into_iter().try_for_each(|body| self.graph(body))
    }

    fn count(&mut self, values: usize) {
        self.clipped.values += values;
        self.clipped.constants += usize::from(values > 0);
    }

    fn tensor(&mut self, tensor: &mut TensorProto) -> Result<(), ToolError> {
        // The graph was checked: what has no bytes is of strings.
        let Ok(bytes) = tensor_bytes(tensor) else { return Ok(()) };
        let limit = self.limit;
        let found = match data_type(tensor) {
            DataType::FLOAT => {
                let limit = limit.min(f32::MAX.into()) as f32;
                clipped(&bytes, f32::from_le_bytes, |v| v.is_infinite().then(|| limit.copysign(v).to_le_bytes()))
            }
            DataType::DOUBLE => {
                clipped(&bytes, f64::from_le_bytes, |v| v.is_infinite().then(|| limit.copysign(v).to_le_bytes()))
            }
            DataType::FLOAT16 => {
                let limit = f16::from_f64(limit.min(f16::MAX.to_f64()));
                clipped(&bytes, f16::from_le_bytes, |v| v.is_infinite().then(|| limit.copysign(v).to_le_bytes()))
            }
            DataType::BFLOAT16 => {
                let limit = bf16::from_f64(limit.min(bf16::MAX.to_f64()));
                clipped(&bytes, bf16::from_le_bytes, |v| v.is_infinite().then(|| limit.copysign(v).to_le_bytes()))
            }
            _ => None,
        };
        let Some((contents, count)) = found else { return Ok(()) };
        tensor.raw_data = Some(keep(self.spill, contents)?);
        tensor.float_data.clear();
        tensor.double_data.clear();
        tensor.int32_data.clear();
        self.count(count);
        Ok(())
    }
}

/// The bytes with the values that `replace` gives others, and how many these are; `None` where there is none.
fn clipped<const N: usize, T>(
    bytes: &[u8],
    read: impl Fn([u8; N]) -> T,
    replace: impl Fn(T) -> Option<[u8; N]>,
) -> Option<(Vec<u8>, usize)> {
    let values = || bytes.as_chunks::<N>().0.iter().map(|&value| (value, replace(read(value))));
    let count = values().filter(|(_, new)| new.is_some()).count();
    (count > 0).then(|| (values().flat_map(|(old, new)| new.unwrap_or(old)).collect(), count))
}

#[cfg(test)]
mod tests {
    use kvant_container::onnx::tensor;

    use super::*;
    use crate::constant::Value;
    use crate::graph::{bodies, node, set_attribute};
    use crate::test_models::{branches, floats, model, value};

    fn values(tensor: &TensorProto) -> Vec<f64> {
        Value::of_tensor(tensor).unwrap().as_floats().unwrap()
    }

    #[test]
    fn infinities_of_every_type_become_its_largest_number() {
        let half = [f16::INFINITY, f16::NEG_INFINITY, f16::ONE].map(f16::to_le_bytes).concat();
        let brain = bf16::NEG_INFINITY.to_le_bytes().to_vec();
        let typed = TensorProto {
            raw_data: None,
            double_data: vec![f64::NEG_INFINITY, 2.0],
            ..tensor("d", DataType::DOUBLE, &[2], vec![0; 16])
        };
        let constants = vec![
            floats("a", &[3], &[f32::INFINITY, f32::NAN, -1.0]),
            tensor("h", DataType::FLOAT16, &[3], half),
            tensor("b", DataType::BFLOAT16, &[1], brain),
            typed,
            tensor("i", DataType::INT8, &[1], vec![0x7f]),
        ];
        let mut made = model(17, vec![], constants.clone(), &["x"], &["x"]);
        assert_eq!(clip_infinities(&mut made, None, None).unwrap(), Clipped { constants: 4, values: 5 });
        let [a, h, b, d, i] = &made.graph.initializer[..] else { panic!() };
        assert_eq!((values(a)[0], values(a)[2]), (f32::MAX.into(), -1.0));
        assert!(values(a)[1].is_nan());
        assert_eq!((values(h), values(b)[0]), (vec![65504.0, -65504.0, 1.0], bf16::MIN.to_f64()));
        assert_eq!((values(d), i), (vec![f64::MIN, 2.0], &constants[4]));
        assert_eq!(clip_infinities(&mut made, None, None).unwrap(), Clipped::default());
    }

    #[test]
    fn limit_is_used_as_far_as_the_type_has_it() {
        let half = f16::INFINITY.to_le_bytes().to_vec();
        let constants = vec![floats("a", &[1], &[f32::NEG_INFINITY]), tensor("h", DataType::FLOAT16, &[1], half)];
        let mut made = model(17, vec![], constants, &["x"], &["x"]);
        clip_infinities(&mut made, Some(1e6), None).unwrap();
        let found: Vec<f64> = made.graph.initializer.iter().flat_map(values).collect();
        assert_eq!(found, [-1e6, 65504.0]);
        for limit in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(matches!(clip_infinities(&mut made, Some(limit), None), Err(ToolError::Limit(_))), "{limit}");
        }
    }

    #[test]
    fn constants_in_bodies_and_attributes_are_clipped() {
        let mut constant = node("Constant", "k", &[], &["k"]);
        set_attribute(&mut constant, "value_float", f32::NEG_INFINITY);
        let body = GraphProto {
            node: vec![constant, node("Add", "s", &["k", "w"], &["t"])],
            initializer: vec![floats("w", &[1], &[f32::INFINITY])],
            output: vec![value("t")],
            ..GraphProto::default()
        };
        let other = GraphProto { output: vec![value("x")], ..GraphProto::default() };
        let mut leaky = node("LeakyRelu", "l", &["y"], &["z"]);
        set_attribute(&mut leaky, "alpha", f32::INFINITY);
        let mut made = model(17, vec![branches("c", "y", body, other), leaky], vec![], &["c", "x"], &["z"]);
        assert_eq!(clip_infinities(&mut made, None, None).unwrap(), Clipped { constants: 2, values: 2 });
        let inner = bodies(&made.graph.node[0]).next().unwrap();
        assert_eq!(crate::graph::float_attribute(&inner.node[0], "value_float"), Some(f32::MIN));
        // It is no constant but a parameter of its operator.
        assert_eq!(crate::graph::float_attribute(&made.graph.node[1], "alpha"), Some(f32::INFINITY));
    }
}
