//! Operators that compute: element by element with broadcasting, and sums over axes.

use kvant_container::onnx::DataType;

use super::movement::{axis, broadcast};
use super::{Numbers, Value};

/// An operator of one float.
pub(super) type Unary = fn(f64) -> f64;

/// An operator of two floats and of two integers; `None` where it is not defined.
pub(super) struct Binary {
    pub(super) floats: fn(f64, f64) -> f64,
    pub(super) integers: fn(i64, i64) -> Option<i64>,
}

/// A comparison of two floats and of two integers.
pub(super) struct Comparison {
    pub(super) floats: fn(&f64, &f64) -> bool,
    pub(super) integers: fn(&i64, &i64) -> bool,
}

/// Each float through a function; integers only where one is given for them.
pub(super) fn unary(value: &Value, floats: Unary, integers: Option<fn(i64) -> i64>) -> Option<Value> {
    let numbers = match (Numbers::of(value)?, integers) {
        (Numbers::Floats(v), _) => Numbers::Floats(v.into_iter().map(floats).collect()),
        (Numbers::Integers(v), Some(integers)) => Numbers::Integers(v.into_iter().map(integers).collect()),
        (Numbers::Integers(_), None) => return None,
    };
    numbers.into_value(value.data_type(), value.shape())
}

/// Both values repeated to the shape they broadcast to, as numbers.
fn pair(a: &Value, b: &Value, limit: usize) -> Option<(Numbers, Numbers, Vec<usize>)> {
    let shape = broadcast(a.shape(), b.shape())?;
    let numbers = |v: &Value| Numbers::of(&v.expanded(&shape, limit)?);
    (a.data_type() == b.data_type()).then_some((numbers(a)?, numbers(b)?, shape))
}

/// Two values, element by element.
pub(super) fn binary(a: &Value, b: &Value, operator: &Binary, limit: usize) -> Option<Value> {
    let (left, right, shape) = pair(a, b, limit)?;
    let numbers = match (left, right) {
        (Numbers::Floats(l), Numbers::Floats(r)) => {
            Numbers::Floats(l.into_iter().zip(r).map(|(l, r)| (operator.floats)(l, r)).collect())
        }
        (Numbers::Integers(l), Numbers::Integers(r)) => {
            Numbers::Integers(l.into_iter().zip(r).map(|(l, r)| (operator.integers)(l, r)).collect::<Option<_>>()?)
        }
        _ => return None,
    };
    numbers.into_value(a.data_type(), &shape)
}

/// Two values compared, element by element.
pub(super) fn compare(a: &Value, b: &Value, operator: &Comparison, limit: usize) -> Option<Value> {
    let (left, right, shape) = pair(a, b, limit)?;
    let truths: Vec<i64> = match (left, right) {
        (Numbers::Floats(l), Numbers::Floats(r)) => {
            l.iter().zip(&r).map(|(l, r)| (operator.floats)(l, r).into()).collect()
        }
        (Numbers::Integers(l), Numbers::Integers(r)) => {
            l.iter().zip(&r).map(|(l, r)| (operator.integers)(l, r).into()).collect()
        }
        _ => return None,
    };
    Numbers::Integers(truths).into_value(DataType::BOOL, &shape)
}

/// `a` where the condition holds, else `b`: any types of whole bytes.
pub(super) fn choose(condition: &Value, a: &Value, b: &Value, limit: usize) -> Option<Value> {
    let shape = broadcast(&broadcast(condition.shape(), a.shape())?, b.shape())?;
    let truths = condition.expanded(&shape, limit)?.as_integers()?;
    let (a, b) = (a.expanded(&shape, limit)?, b.expanded(&shape, limit)?);
    if a.data_type() != b.data_type() {
        return None;
    }
    let size = a.element_size();
    let chosen = truths.iter().enumerate().flat_map(|(i, &truth)| {
        let from = if truth != 0 { &a } else { &b };
        from.bytes()[i * size..(i + 1) * size].iter().copied()
    });
    Value::new(a.data_type(), shape, chosen.collect::<Vec<u8>>())
}

/// What a reduction does with two integers and two floats.
pub(super) fn reduce(value: &Value, axes: &[i64], keep: bool, operator: &Binary) -> Option<Value> {
    let rank = value.shape().len();
    let over = match axes {
        [] => (0..rank).collect::<Vec<_>>(),
        _ => axes.iter().map(|&a| axis(a, rank)).collect::<Option<Vec<_>>>()?,
    };
    let mut result = value.clone();
    for &axis in &over {
        result = reduce_one(&result, axis, operator)?;
    }
    let kept = (0..rank).filter(|i| keep || !over.contains(i)).map(|i| result.shape()[i]).collect();
    result.reshaped(kept)
}

fn reduce_one(value: &Value, axis: usize, operator: &Binary) -> Option<Value> {
    let mut sum = value.sliced(axis, 0, 1, 1.min(value.shape()[axis]))?;
    for i in 1..value.shape()[axis] {
        sum = binary(&sum, &value.sliced(axis, i, 1, 1)?, operator, usize::MAX)?;
    }
    (sum.shape()[axis] == 1).then_some(sum)
}
