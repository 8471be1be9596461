//! Operators that cut, repeat, turn or mask the elements of a constant.

use super::Value;
use super::attributes::{integer, integers, optional_integers};
use super::evaluate::{Call, sizes};
use super::movement::axis;

pub(super) fn slice(call: &Call<'_>) -> Option<Value> {
    let mut value = call.input(0)?.clone();
    let (starts, ends) = (integers(call, "starts", 1)?, integers(call, "ends", 2)?);
    let axes = optional_integers(call, "axes", 3)?.unwrap_or_else(|| (0..starts.len() as i64).collect());
    let steps = optional_integers(call, "steps", 4)?.unwrap_or_else(|| vec![1; starts.len()]);
    if [ends.len(), axes.len(), steps.len()] != [starts.len(); 3] {
        return None;
    }
    for i in 0..starts.len() {
        let axis = axis(axes[i], value.shape().len())?;
        let (start, count) = slice_range(starts[i], ends[i], steps[i], value.shape()[axis])?;
        value = value.sliced(axis, start, isize::try_from(steps[i]).ok()?, count)?;
    }
    Some(value)
}

/// First position and number of the elements that a slice takes of an axis of a length.
pub(crate) fn slice_range(start: i64, end: i64, step: i64, length: usize) -> Option<(usize, usize)> {
    let length = i64::try_from(length).ok()?;
    let from_end = |v: i64| if v < 0 { v.saturating_add(length) } else { v };
    let (least, most) = if step < 0 { (-1, length - 1) } else { (0, length) };
    let (start, end) = (from_end(start).clamp(least.max(0), most.max(0)), from_end(end).clamp(least, most));
    let span = if step < 0 { start - end } else { end - start };
    let count = (span.max(0) as u64).div_ceil(step.unsigned_abs().max(1));
    (step != 0).then_some((start as usize, if length == 0 { 0 } else { count as usize }))
}

pub(super) fn split(call: &Call<'_>) -> Option<Vec<Value>> {
    let value = call.input(0)?;
    let axis = axis(integer(call.node, "axis", 0), value.shape().len())?;
    let lengths = match optional_integers(call, "split", 1)? {
        Some(lengths) => sizes(&lengths)?,
        None => equal_parts(value.shape()[axis], call.node.output.len())?,
    };
    let total = lengths.iter().try_fold(0usize, |n, &l| n.checked_add(l))?;
    if total != value.shape()[axis] || lengths.len() != call.node.output.len() {
        return None;
    }
    let mut start = 0;
    let mut part = |length: usize| {
        let made = value.sliced(axis, start, 1, length);
        start += length;
        made
    };
    lengths.iter().map(|&length| part(length)).collect()
}

/// The lengths of `parts` parts of an axis, the last one shorter where it does not divide.
pub(crate) fn equal_parts(length: usize, parts: usize) -> Option<Vec<usize>> {
    let each = length.checked_add(parts.checked_sub(1)?)? / parts;
    let mut lengths = vec![each; parts];
    lengths[parts - 1] = length.checked_sub(each.checked_mul(parts - 1)?)?;
    Some(lengths)
}

pub(super) fn tile(call: &Call<'_>) -> Option<Value> {
    let mut value = call.input(0)?.clone();
    let repeats = sizes(&call.input(1)?.as_integers()?)?;
    if repeats.len() != value.shape().len() {
        return None;
    }
    for (axis, &times) in repeats.iter().enumerate() {
        let grown = value.bytes().len().checked_mul(times).filter(|&n| n <= call.limit);
        grown.filter(|_| times <= call.limit)?;
        value = Value::concatenated(&vec![&value; times], axis)?;
    }
    Some(value)
}

pub(super) fn transpose(call: &Call<'_>) -> Option<Value> {
    let value = call.input(0)?;
    let reversed = || (0..value.shape().len()).rev().collect();
    let order = crate::graph::ints_attribute(call.node, "perm").map_or_else(|| Some(reversed()), sizes)?;
    value.transposed(&order)
}

pub(super) fn trilu(call: &Call<'_>) -> Option<Value> {
    let value = call.input(0)?;
    let [.., rows, columns] = *value.shape() else { return None };
    let diagonal = match call.inputs.len() {
        0 | 1 => 0,
        _ => *call.input(1)?.as_integers()?.first()?,
    };
    let upper = integer(call.node, "upper", 1) != 0;
    let mut bytes = value.bytes().to_vec();
    for (i, element) in bytes.chunks_exact_mut(value.element_size()).enumerate() {
        let offset = (i % columns) as i64 - (i / columns % rows) as i64;
        if (upper && offset < diagonal) || (!upper && offset > diagonal) {
            element.fill(0);
        }
    }
    Value::new(value.data_type(), value.shape().to_vec(), bytes)
}
