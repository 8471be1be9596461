//! A float graph in 16 bits.

use kvant_container::onnx::{ModelProto, Spill};

use super::{ToolError, inlined};
use crate::graph::NodeNames;
use crate::recipe::{FloatType, Selection};
use crate::writing::float16::{self, Converted};
use crate::writing::lift_constants;

/// Converts the constants and the arithmetic of a graph to 16-bit floats; its inputs and outputs keep their types. Nodes whose operators do
/// not have the type stay in float32 between casts. Large new constants go to `spill`.
///
/// # Errors
/// A node that must stay in float32 and whose tensors' types are not known.
pub fn to_float(model: &mut ModelProto, to: FloatType, spill: Option<&Spill>) -> Result<Converted, ToolError> {
    let names = NodeNames::of(&model.graph);
    let mut made = inlined(model)?;
    lift_constants(&mut made);
    let converted = float16::write(&mut made, to, &Selection::default(), spill)?;
    if let Some(graph) = made.graph.as_mut() {
        names.tell_apart(graph);
    }
    *model = made;
    Ok(converted)
}

#[cfg(test)]
mod tests {
    use kvant_container::onnx::{DataType, data_type};

    use super::*;
    use crate::graph::{check, node};
    use crate::test_models::{floats, model, typed};

    #[test]
    fn weights_become_16_bits_between_casts() {
        let nodes = vec![node("MatMul", "m", &["x", "w"], &["y"])];
        let mut made = model(17, nodes, vec![floats("w", &[2, 2], &[1.0, 0.5, -2.0, 3.0])], &[], &[]);
        let graph = made.graph.as_mut().unwrap();
        (graph.input, graph.output) = (vec![typed("x", &[1, 2])], vec![typed("y", &[1, 2])]);
        assert_eq!(to_float(&mut made, FloatType::BFloat16, None).unwrap().nodes, 1);
        assert_eq!(check(&made), Ok(()));
        let operators: Vec<&str> = made.graph.node.iter().map(|n| n.op_type()).collect();
        assert_eq!(operators, ["Cast", "MatMul", "Cast"]);
        assert_eq!(data_type(&made.graph.initializer[0]), DataType::BFLOAT16);
    }
}
