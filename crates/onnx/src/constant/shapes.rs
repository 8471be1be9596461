//! Operators that change or tell the shape of a constant and leave its elements as they are.

use kvant_container::onnx::NodeProto;

use super::Value;
use super::attributes::{integer, integers, optional_integers};
use super::evaluate::Call;
use super::movement::{axis, product};

pub(super) fn flatten(call: &Call<'_>) -> Option<Value> {
    let value = call.input(0)?;
    let at = integer(call.node, "axis", 1);
    let rank = i64::try_from(value.shape().len()).ok()?;
    let at = usize::try_from(if at < 0 { at + rank } else { at }).ok()?;
    let (rows, columns) = (value.shape().get(..at)?, value.shape().get(at..)?);
    value.reshaped(vec![product(rows)?, product(columns)?])
}

pub(super) fn reshape(call: &Call<'_>) -> Option<Value> {
    let value = call.input(0)?;
    let wanted = integers(call, "shape", 1)?;
    let zero_copies = integer(call.node, "allowzero", 0) == 0;
    let mut shape = Vec::with_capacity(wanted.len());
    for (i, &dim) in wanted.iter().enumerate() {
        shape.push(match dim {
            0 if zero_copies => *value.shape().get(i)?,
            -1 => 1,
            _ => usize::try_from(dim).ok()?,
        });
    }
    if let Some(open) = wanted.iter().position(|&d| d == -1) {
        shape[open] = value.elements().checked_div(product(&shape)?)?;
    }
    value.reshaped(shape)
}

/// The dimensions as a tensor, cut by the attributes `start` and `end`.
pub(super) fn shape_of(call: &Call<'_>, value: &Value) -> Option<Value> {
    let dims: Vec<i64> = value.shape().iter().map(|&d| d as i64).collect();
    let (start, end) = shape_range(call.node, dims.len());
    let part = dims.get(start..end.max(start))?;
    Value::integers(&[part.len()], part)
}

/// Which dimensions a Shape node gives of a tensor of this rank.
pub(crate) fn shape_range(node: &NodeProto, rank: usize) -> (usize, usize) {
    let bound = |name: &str, default: i64| {
        let at = integer(node, name, default);
        (if at < 0 { at.saturating_add(rank as i64) } else { at }).clamp(0, rank as i64) as usize
    };
    (bound("start", 0), bound("end", rank as i64))
}

pub(super) fn squeeze(call: &Call<'_>) -> Option<Value> {
    let value = call.input(0)?;
    let rank = value.shape().len();
    let over: Vec<usize> = match optional_integers(call, "axes", 1)? {
        Some(axes) => axes.iter().map(|&a| axis(a, rank)).collect::<Option<_>>()?,
        None => (0..rank).filter(|&i| value.shape()[i] == 1).collect(),
    };
    value.reshaped((0..rank).filter(|i| !over.contains(i)).map(|i| value.shape()[i]).collect())
}

pub(super) fn unsqueeze(call: &Call<'_>) -> Option<Value> {
    let value = call.input(0)?;
    let axes = integers(call, "axes", 1)?;
    let rank = value.shape().len().checked_add(axes.len())?;
    let new: Vec<usize> = axes.iter().map(|&a| axis(a, rank)).collect::<Option<_>>()?;
    let mut old = value.shape().iter().copied();
    value.reshaped((0..rank).filter_map(|i| if new.contains(&i) { Some(1) } else { old.next() }).collect())
}
