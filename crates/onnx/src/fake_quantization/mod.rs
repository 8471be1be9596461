//! Runs quantized models for their values, also on engines that lack their operators: quantizing nodes are computed here, the
//! rest by an engine.

mod folding;
mod nbits;
mod quantizer;
mod segments;
mod session;

pub(crate) use quantizer::Quantizer;
pub(crate) use session::declared;

use nbits::expanded;

use std::collections::HashMap;

use kvant_container::onnx::ModelProto;

use crate::graph::domain;
use crate::runtime::{self, Grouped, PLUG_INS, RuntimeChoice, RuntimeError, RuntimeOptions, Session, constants, found};
use session::FakeQuantized;

/// Loads a quantized model, to run it for the wanted tensors. ONNX Runtime runs standard and `com.microsoft` operators itself,
/// without changing the graph; where there are others, or with the embedded engine, quantizing nodes are computed here.
pub fn open(model: &ModelProto, wanted: &[String], options: &RuntimeOptions) -> Result<Box<dyn Session>, RuntimeError> {
    if is_native(model, options)? {
        return runtime::open(model, wanted, &RuntimeOptions { optimize: false, ..options.clone() });
    }
    let model = &*expanded(model, options)?;
    let graph = &model.graph;
    if !graph.node.iter().any(Quantizer::is) {
        return runtime::open(model, wanted, options);
    }
    let (constants, made) = constants(graph, wanted)?;
    let session = FakeQuantized::open(model, &made, options)?;
    Ok(Box::new(Grouped::new(Box::new(session), constants, HashMap::new(), options.budget)))
}

/// Returns whether ONNX Runtime is the engine, and has all operators of a model itself.
pub(crate) fn is_native(model: &ModelProto, options: &RuntimeOptions) -> Result<bool, RuntimeError> {
    let plugged = || model.graph.node.iter().any(|node| PLUG_INS.contains(&domain(node)));
    Ok(found(options)?.0 == RuntimeChoice::Ort && !plugged())
}
