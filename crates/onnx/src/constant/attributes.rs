//! What an operator takes as an attribute in some opsets and as an input in others, read from either.

use kvant_container::onnx::NodeProto;

use super::evaluate::Call;
use crate::graph::{int_attribute, ints_attribute};

/// Integers of an attribute, or of the input that took its place.
pub(super) fn integers(call: &Call<'_>, name: &str, input: usize) -> Option<Vec<i64>> {
    match ints_attribute(call.node, name) {
        Some(values) => Some(values.to_vec()),
        None => call.input(input)?.as_integers(),
    }
}

/// The same where leaving it out has a meaning: `None` only where the input is there and is not known.
pub(super) fn optional_integers(call: &Call<'_>, name: &str, input: usize) -> Option<Option<Vec<i64>>> {
    let given = ints_attribute(call.node, name).is_some() || crate::graph::positional_input(call.node, input).is_some();
    if given { integers(call, name, input).map(Some) } else { Some(None) }
}

/// An integer attribute with its default.
pub(super) fn integer(node: &NodeProto, name: &str, default: i64) -> i64 {
    int_attribute(node, name).unwrap_or(default)
}
