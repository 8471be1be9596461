//! Float models in bfloat16, which no engine on a CPU computes in: as float32 for the run.

use kvant_container::onnx::{DataType, ModelProto, data_type};

use crate::data::type_of;
use crate::pass::{Context, PassError, Selection, simplify};

/// The same model in float32, ends included, where it has bfloat16 tensors; else itself. Every number of bfloat16 is one of
/// float32, so that only the rounding of what is computed is lost.
///
/// Errors: those of the passes.
pub fn widened(model: ModelProto) -> Result<ModelProto, PassError> {
    let graph = &model.graph;
    let ends = graph.input.iter().chain(&graph.output).map(|value| type_of(value).0);
    let brain = graph.initializer.iter().map(data_type).chain(ends).any(|found| found == DataType::BFLOAT16);
    if !brain {
        return Ok(model);
    }
    let mut wide = model;
    let selection = Selection::none().with("float-sources")?.with("float-ends")?;
    simplify(&mut wide, &selection, &Context::default())?;
    Ok(wide)
}
