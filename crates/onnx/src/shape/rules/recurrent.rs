//! LSTM, GRU and RNN.

use kvant_container::onnx::DataType;

use super::Row;
use crate::graph::string_attribute;
use crate::shape::node::Known;
use crate::shape::{Dim, ValueType};

pub(super) const ROWS: &[Row] = &[("GRU", recurrent), ("LSTM", recurrent), ("RNN", recurrent)];

/// All states, the last one, and for an LSTM the last cell.
pub(super) fn recurrent(node: &Known<'_>) -> Option<Vec<ValueType>> {
    let [first, second, _] = node.shape(0)? else { return None };
    let batch_first = node.int("layout", 0) != 0;
    let (steps, batch) = if batch_first { (second, first) } else { (first, second) };
    let directions = match string_attribute(node.node, "direction") {
        Some("bidirectional") => 2,
        _ => 1,
    };
    let hidden = usize::try_from(node.int("hidden_size", -1)).map_or(Dim::Unknown, Dim::Known);
    let (steps, batch, directions) = (steps.clone(), batch.clone(), Dim::Known(directions));
    let (all, last) = match batch_first {
        true => (vec![batch.clone(), steps, directions.clone(), hidden.clone()], vec![batch, directions, hidden]),
        false => (vec![steps, directions.clone(), batch.clone(), hidden.clone()], vec![directions, batch, hidden]),
    };
    let of = |shape: Vec<Dim>| ValueType::new(data_type(node), shape);
    Some(vec![of(all), of(last.clone()), of(last)])
}

fn data_type(node: &Known<'_>) -> DataType {
    node.data_type(0)
}
