//! `kvant sensitivity`: which layers quantization hurts, and a mix of types that is good enough.

use crate::args::SensitivityArgs;
use crate::failure::{Failure, Kind};
use crate::onnx;
use crate::printer::Printer;

/// Measures a graph.
///
/// # Errors
/// A model that is no ONNX graph; whatever is wrong with the graph, the recipe or the data.
pub fn run(args: &SensitivityArgs, printer: &Printer) -> Result<(), Failure> {
    if !onnx::is_graph(&args.recipe.model) {
        let failure = Failure::new(Kind::Usage, "layers are measured of ONNX graphs only");
        return Err(failure.with_hint(Some("`kvant eval --reference` tells the damage block by block".to_owned())));
    }
    onnx::sensitivity::run(args, printer)
}
