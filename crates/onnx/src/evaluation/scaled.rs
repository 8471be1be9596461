//! Tensors whose channels algorithms have scaled or rotated: the function of the model is the same, these tensors are not. They are
//! found by running the float model before and after, and their names go with the quantized model, so that they are not taken
//! for damaged.

use std::collections::HashSet;

use kvant_container::onnx::{ModelProto, StringStringEntryProto};

use super::{Compared, Comparison, EvaluationError, run};
use crate::data::Samples;
use crate::runtime::RuntimeOptions;

/// The entry of a model's metadata with the names, one in a line.
const KEY: &str = "kvant.scaled_tensors";

/// Sums in another order differ by far less than this, in dB; scales of channels by more.
const SAME_DB: f64 = 40.0;

/// How much worse than the worst output a tensor must be where an algorithm has changed the function a little, in dB.
const APART_DB: f64 = 10.0;

/// The tensors inside that are not the same in two float models of one function.
///
/// Errors: those of [`super::evaluate`].
pub fn scaled_tensors(
    before: &ModelProto,
    after: &ModelProto,
    samples: &mut Samples,
    options: &RuntimeOptions,
) -> Result<Vec<String>, EvaluationError> {
    let compared = Compared { inside: true, ..Compared::default() };
    let comparison = Comparison::new(before, after, compared, options)?;
    let report = run(comparison, samples, None, &mut |_| std::ops::ControlFlow::Continue(()))?;
    let worst = report.outputs.iter().map(|output| output.sqnr_db).fold(f64::INFINITY, f64::min);
    let limit = SAME_DB.min(worst - APART_DB);
    let outputs: HashSet<&str> = report.outputs.iter().map(|output| output.name.as_str()).collect();
    let scaled =
        report.tensors.iter().filter(|tensor| tensor.sqnr_db < limit && !outputs.contains(tensor.name.as_str()));
    Ok(scaled.map(|tensor| tensor.name.clone()).collect())
}

/// Writes the names to a model.
pub fn note_scaled(model: &mut ModelProto, names: &[String]) {
    model.metadata_props.retain(|entry| entry.key() != KEY);
    if !names.is_empty() {
        let (key, value) = (Some(KEY.to_owned()), Some(names.join("\n")));
        model.metadata_props.push(StringStringEntryProto { key, value, ..StringStringEntryProto::default() });
    }
}

/// The names that a model carries.
pub(super) fn noted(model: &ModelProto) -> HashSet<&str> {
    let entry = model.metadata_props.iter().find(|entry| entry.key() == KEY);
    entry.map(|entry| entry.value().split('\n').collect()).unwrap_or_default()
}
