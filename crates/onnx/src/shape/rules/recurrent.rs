//! LSTM, GRU and RNN.

use kvant_container::onnx::DataType;

use super::Row;
use crate::graph::string_attribute;
use crate::shape::node::Known;
use crate::shape::{Dim, ValueType};

pub(super) const ROWS: &[Row] = &[("GRU", recurrent), ("LSTM", recurrent), ("RNN", recurrent)];

/// All states, the last one, and for an LSTM the last cell.
pub(super) fn recurrent(node: &Known<'_>) -> Option<Vec<ValueType>> {
    let batch_first = node.int("layout", 0) != 0;
    // Without a shape of the data the ranks and the type are known all the same.
    let (first, second) = match node.shape(0) {
        Some([first, second, _]) => (first.clone(), second.clone()),
        Some(_) => return None,
        None => (Dim::Unknown, Dim::Unknown),
    };
    let (steps, batch) = if batch_first { (second, first) } else { (first, second) };
    let directions = match string_attribute(node.node, "direction") {
        Some("bidirectional") => 2,
        _ => 1,
    };
    let hidden = usize::try_from(node.int("hidden_size", -1)).map_or(Dim::Unknown, Dim::Known);
    let directions = Dim::Known(directions);
    let (all, last) = match batch_first {
        true => (vec![batch.clone(), steps, directions.clone(), hidden.clone()], vec![batch, directions, hidden]),
        false => (vec![steps, directions.clone(), batch.clone(), hidden.clone()], vec![directions, batch, hidden]),
    };
    let of = |shape: Vec<Dim>| ValueType::new(data_type(node), shape);
    Some(vec![of(all), of(last.clone()), of(last)])
}

/// That of the data, else of the weights and biases where these are no codes: all floats are of one type.
fn data_type(node: &Known<'_>) -> DataType {
    use DataType::{BFLOAT16, DOUBLE, FLOAT, FLOAT16};
    let float = |found: &DataType| [FLOAT, FLOAT16, BFLOAT16, DOUBLE].contains(found);
    [0, 1, 2, 3].map(|at| node.data_type(at)).into_iter().find(float).unwrap_or(DataType::UNDEFINED)
}
