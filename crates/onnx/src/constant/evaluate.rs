//! The table of operators that are computed on constants.

use kvant_container::onnx::{DataType, EnumOrUnknown, NodeProto};

use super::arithmetic::{Binary, Comparison, binary, choose, compare, reduce, unary};
use super::attributes::{integer, optional_integers};
use super::movement::axis;
use super::parts::{slice, split, tile, transpose, trilu};
use super::shapes::{flatten, reshape, shape_of, squeeze, unsqueeze};
use super::{Numbers, Value};
use crate::graph::{attribute, is_standard};

/// A node with what is known of its inputs.
#[derive(Debug)]
pub struct Call<'a> {
    /// The node.
    pub node: &'a NodeProto,
    /// Version of the standard operators.
    pub opset: i64,
    /// Contents of the inputs, by position.
    pub inputs: Vec<Option<Value>>,
    /// Most bytes that a result may grow to.
    pub limit: usize,
}

impl Call<'_> {
    /// The contents of an input.
    pub(super) fn input(&self, position: usize) -> Option<&Value> {
        self.inputs.get(position)?.as_ref()
    }
}

type Operator = fn(&Call<'_>) -> Option<Value>;

/// The outputs of the node; `None` if the operator is not in the table, or a needed input is unknown, or the result
/// would be too large or is not defined.
pub fn evaluate(call: &Call<'_>) -> Option<Vec<Value>> {
    if !is_standard(call.node) {
        return None;
    }
    match call.node.op_type() {
        "Split" => split(call),
        name => find(name)?(call).map(|value| vec![value]),
    }
}

/// Returns whether the operator is in the table.
pub fn is_known(node: &NodeProto) -> bool {
    is_standard(node) && (node.op_type() == "Split" || find(node.op_type()).is_some())
}

fn find(name: &str) -> Option<Operator> {
    OPERATORS.iter().find(|(known, _)| *known == name).map(|(_, operator)| *operator)
}

const OPERATORS: &[(&str, Operator)] = &[
    ("Abs", |c| unary(c.input(0)?, f64::abs, Some(i64::wrapping_abs))),
    ("Add", |c| arithmetic(c, &ADD)),
    ("And", |c| arithmetic(c, &AND)),
    ("Cast", cast),
    ("Ceil", |c| unary(c.input(0)?, f64::ceil, None)),
    ("Concat", concat),
    ("Constant", constant),
    ("ConstantOfShape", constant_of_shape),
    ("Cos", |c| unary(c.input(0)?, f64::cos, None)),
    ("Div", |c| arithmetic(c, &DIV)),
    ("Equal", |c| comparison(c, &Comparison { floats: |a, b| a == b, integers: |a, b| a == b })),
    ("Exp", |c| unary(c.input(0)?, f64::exp, None)),
    ("Expand", expand),
    ("Flatten", flatten),
    ("Floor", |c| unary(c.input(0)?, f64::floor, None)),
    ("Gather", gather),
    ("GatherElements", gather_elements),
    ("Greater", |c| comparison(c, &Comparison { floats: |a, b| a > b, integers: |a, b| a > b })),
    ("GreaterOrEqual", |c| comparison(c, &Comparison { floats: |a, b| a >= b, integers: |a, b| a >= b })),
    ("Identity", |c| c.input(0).cloned()),
    ("Less", |c| comparison(c, &Comparison { floats: |a, b| a < b, integers: |a, b| a < b })),
    ("LessOrEqual", |c| comparison(c, &Comparison { floats: |a, b| a <= b, integers: |a, b| a <= b })),
    ("Log", |c| unary(c.input(0)?, f64::ln, None)),
    ("Max", |c| variadic(c, &MAX)),
    ("Min", |c| variadic(c, &MIN)),
    ("Mod", modulo),
    ("Mul", |c| arithmetic(c, &MUL)),
    ("Neg", |c| unary(c.input(0)?, |v| -v, Some(i64::wrapping_neg))),
    ("Not", |c| unary(c.input(0)?, |v| v, Some(|v| (v == 0).into()))),
    ("Or", |c| arithmetic(c, &OR)),
    ("Pow", pow),
    ("Range", range),
    ("Reciprocal", |c| unary(c.input(0)?, |v| 1.0 / v, None)),
    ("ReduceMax", |c| reduction(c, &MAX)),
    ("ReduceMin", |c| reduction(c, &MIN)),
    ("ReduceProd", |c| reduction(c, &MUL)),
    ("ReduceSum", |c| reduction(c, &ADD)),
    ("Reshape", reshape),
    ("Shape", |c| shape_of(c, c.input(0)?)),
    ("Sigmoid", |c| unary(c.input(0)?, |v| 1.0 / (1.0 + (-v).exp()), None)),
    ("Sin", |c| unary(c.input(0)?, f64::sin, None)),
    ("Size", |c| Value::integers(&[], &[i64::try_from(c.input(0)?.elements()).ok()?])),
    ("Slice", slice),
    ("Sqrt", |c| unary(c.input(0)?, f64::sqrt, None)),
    ("Squeeze", squeeze),
    ("Sub", |c| arithmetic(c, &SUB)),
    ("Tanh", |c| unary(c.input(0)?, f64::tanh, None)),
    ("Tile", tile),
    ("Transpose", transpose),
    ("Trilu", trilu),
    ("Unsqueeze", unsqueeze),
    ("Where", |c| choose(c.input(0)?, c.input(1)?, c.input(2)?, c.limit)),
];

const ADD: Binary = Binary { floats: |a, b| a + b, integers: |a, b| Some(a.wrapping_add(b)) };
const SUB: Binary = Binary { floats: |a, b| a - b, integers: |a, b| Some(a.wrapping_sub(b)) };
const MUL: Binary = Binary { floats: |a, b| a * b, integers: |a, b| Some(a.wrapping_mul(b)) };
const DIV: Binary = Binary { floats: |a, b| a / b, integers: |a, b| a.checked_div(b) };
const AND: Binary = Binary { floats: |_, _| f64::NAN, integers: |a, b| Some(a & b) };
const OR: Binary = Binary { floats: |_, _| f64::NAN, integers: |a, b| Some(a | b) };
const MAX: Binary = Binary { floats: |a, b| if a.is_nan() || a > b { a } else { b }, integers: |a, b| Some(a.max(b)) };
const MIN: Binary = Binary { floats: |a, b| if a.is_nan() || a < b { a } else { b }, integers: |a, b| Some(a.min(b)) };

/// The legacy `broadcast` and `axis` of opsets before 7 mean something else: they are not computed.
fn arithmetic(call: &Call<'_>, operator: &Binary) -> Option<Value> {
    let modern = attribute(call.node, "broadcast").is_none();
    modern.then(|| binary(call.input(0)?, call.input(1)?, operator, call.limit))?
}

fn comparison(call: &Call<'_>, operator: &Comparison) -> Option<Value> {
    compare(call.input(0)?, call.input(1)?, operator, call.limit)
}

fn variadic(call: &Call<'_>, operator: &Binary) -> Option<Value> {
    let mut result = call.input(0)?.clone();
    for position in 1..call.inputs.len() {
        result = binary(&result, call.input(position)?, operator, call.limit)?;
    }
    Some(result)
}

fn modulo(call: &Call<'_>) -> Option<Value> {
    let floored = |a: i64, b: i64| a.checked_rem(b).map(|r| if r != 0 && (r < 0) != (b < 0) { r + b } else { r });
    match integer(call.node, "fmod", 0) {
        0 => {
            arithmetic(call, &Binary { floats: |_, _| f64::NAN, integers: floored }).filter(|v| v.as_floats().is_none())
        }
        _ => arithmetic(call, &Binary { floats: |a, b| a % b, integers: |a, b| a.checked_rem(b) }),
    }
}

/// Base and exponent may be of different types; the result has the base's.
fn pow(call: &Call<'_>) -> Option<Value> {
    let (base, exponent) = (call.input(0)?, call.input(1)?);
    let exponent = Numbers::of(exponent)?.cast(base.data_type())?.into_value(base.data_type(), exponent.shape())?;
    let integers = |a: i64, b: i64| a.checked_pow(u32::try_from(b).ok()?);
    binary(base, &exponent, &Binary { floats: f64::powf, integers }, call.limit)
}

fn cast(call: &Call<'_>) -> Option<Value> {
    let value = call.input(0)?;
    let number = i32::try_from(crate::graph::int_attribute(call.node, "to")?).ok()?;
    let to = EnumOrUnknown::<DataType>::from_i32(number).enum_value().ok()?;
    if to == value.data_type() {
        return Some(value.clone());
    }
    Numbers::of(value)?.cast(to)?.into_value(to, value.shape())
}

fn concat(call: &Call<'_>) -> Option<Value> {
    let parts: Vec<&Value> = (0..call.inputs.len()).map(|i| call.input(i)).collect::<Option<_>>()?;
    let axis = axis(crate::graph::int_attribute(call.node, "axis")?, parts.first()?.shape().len())?;
    Value::concatenated(&parts, axis)
}

fn constant(call: &Call<'_>) -> Option<Value> {
    let [value] = &call.node.attribute[..] else { return None };
    match value.name() {
        "value" => Value::of_tensor(value.t.as_ref()?),
        "value_int" => Value::integers(&[], &[value.i?]),
        "value_ints" => Value::integers(&[value.ints.len()], &value.ints),
        "value_float" => floats(&[], &[value.f?]),
        "value_floats" => floats(&[value.floats.len()], &value.floats),
        _ => None,
    }
}

fn floats(shape: &[usize], values: &[f32]) -> Option<Value> {
    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    Value::new(DataType::FLOAT, shape.to_vec(), bytes)
}

pub(super) fn sizes(values: &[i64]) -> Option<Vec<usize>> {
    values.iter().map(|&v| usize::try_from(v).ok()).collect()
}

fn constant_of_shape(call: &Call<'_>) -> Option<Value> {
    let shape = sizes(&call.input(0)?.as_integers()?)?;
    let one = match attribute(call.node, "value") {
        Some(value) => Value::of_tensor(value.t.as_ref()?)?.reshaped(vec![])?,
        None => floats(&[], &[0.0])?,
    };
    one.expanded(&shape, call.limit)
}

fn expand(call: &Call<'_>) -> Option<Value> {
    let wanted = sizes(&call.input(1)?.as_integers()?)?;
    let shape = super::movement::broadcast(call.input(0)?.shape(), &wanted)?;
    call.input(0)?.expanded(&shape, call.limit)
}

fn gather(call: &Call<'_>) -> Option<Value> {
    let (data, indices) = (call.input(0)?, call.input(1)?);
    let axis = axis(integer(call.node, "axis", 0), data.shape().len())?;
    data.gathered(axis, &indices.as_integers()?, indices.shape(), call.limit)
}

fn gather_elements(call: &Call<'_>) -> Option<Value> {
    let (data, indices) = (call.input(0)?, call.input(1)?);
    let axis = axis(integer(call.node, "axis", 0), data.shape().len())?;
    data.gathered_elements(axis, &indices.as_integers()?, indices.shape(), call.limit)
}

fn range(call: &Call<'_>) -> Option<Value> {
    let [start, limit, delta] = [call.input(0)?, call.input(1)?, call.input(2)?];
    let count = |n: f64| (n * start.element_size() as f64 <= call.limit as f64).then_some(n.ceil().max(0.0) as usize);
    let numbers = match (Numbers::of(start)?, Numbers::of(limit)?, Numbers::of(delta)?) {
        (Numbers::Floats(s), Numbers::Floats(l), Numbers::Floats(d)) => {
            let (s, d) = (*s.first()?, *d.first()?);
            let n = count((l.first()? - s) / d)?;
            Numbers::Floats((0..n).map(|i| s + i as f64 * d).collect())
        }
        (Numbers::Integers(s), Numbers::Integers(l), Numbers::Integers(d)) => {
            let (s, d) = (*s.first()?, *d.first().filter(|&&d| d != 0)?);
            let n = count(l.first()?.checked_sub(s)? as f64 / d as f64)?;
            Numbers::Integers((0..n as i64).map(|i| s.checked_add(i.checked_mul(d)?)).collect::<Option<_>>()?)
        }
        _ => return None,
    };
    let length = match &numbers {
        Numbers::Floats(v) => v.len(),
        Numbers::Integers(v) => v.len(),
    };
    numbers.into_value(start.data_type(), &[length])
}

fn reduction(call: &Call<'_>, operator: &Binary) -> Option<Value> {
    let axes = optional_integers(call, "axes", 1)?.unwrap_or_default();
    if axes.is_empty() && integer(call.node, "noop_with_empty_axes", 0) != 0 {
        return call.input(0).cloned();
    }
    reduce(call.input(0)?, &axes, integer(call.node, "keepdims", 1) != 0, operator)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{node, set_attribute};

    fn ints(values: &[i64]) -> Option<Value> {
        Value::integers(&[values.len()], values)
    }

    fn run(node: &NodeProto, inputs: Vec<Option<Value>>) -> Option<Vec<Value>> {
        evaluate(&Call { node, opset: 17, inputs, limit: 1 << 20 })
    }

    fn one(op: &str, inputs: Vec<Option<Value>>) -> Option<Vec<i64>> {
        run(&node(op, "", &[], &["y"]), inputs)?.first()?.as_integers()
    }

    #[test]
    fn integer_arithmetic_is_evaluated() {
        assert_eq!(one("Add", vec![ints(&[1, 2]), ints(&[10])]), Some(vec![11, 12]));
        assert_eq!(one("Div", vec![ints(&[-7, 7]), ints(&[2])]), Some(vec![-3, 3]));
        assert_eq!(one("Div", vec![ints(&[1]), ints(&[0])]), None);
        assert_eq!(one("Mod", vec![ints(&[-7, 7]), ints(&[3])]), Some(vec![2, 1]));
        assert_eq!(one("Equal", vec![ints(&[-1, 2]), ints(&[-1])]), Some(vec![1, 0]));
        let where_ = one("Where", vec![one_bool(&[1, 0]), ints(&[5, 6]), ints(&[8])]);
        assert_eq!(where_, Some(vec![5, 8]));
        let scalars = |values: [i64; 3]| values.iter().map(|&v| Value::integers(&[], &[v])).collect();
        assert_eq!(one("Range", scalars([2, 9, 3])), Some(vec![2, 5, 8]));
        assert_eq!(one("Range", scalars([0, i64::MAX, 1])), None);
        assert_eq!(one("Range", scalars([0, 3, 0])), None);
    }

    fn one_bool(values: &[i64]) -> Option<Value> {
        Numbers::Integers(values.to_vec()).into_value(DataType::BOOL, &[values.len()])
    }

    #[test]
    fn shape_operators_are_evaluated_from_attributes_and_inputs() {
        let grid = || Value::integers(&[2, 3], &[0, 1, 2, 3, 4, 5]);
        let shape = |op, inputs| run(&node(op, "", &["x", "a"], &["y"]), inputs).map(|v| v[0].shape().to_vec());
        assert_eq!(shape("Reshape", vec![grid(), ints(&[0, -1, 1])]), Some(vec![2, 3, 1]));
        assert_eq!(shape("Reshape", vec![grid(), ints(&[4, -1])]), None);
        assert_eq!(shape("Unsqueeze", vec![grid(), ints(&[0, -1])]), Some(vec![1, 2, 3, 1]));
        assert_eq!(shape("Flatten", vec![grid()]), Some(vec![2, 3]));
        assert_eq!(shape("Tile", vec![grid(), ints(&[2, 1])]), Some(vec![4, 3]));
        assert_eq!(shape("Tile", vec![grid(), ints(&[1 << 40, 1])]), None);
        let mut old = node("Unsqueeze", "", &["x"], &["y"]);
        set_attribute(&mut old, "axes", &[1i64][..]);
        assert_eq!(run(&old, vec![grid()]).unwrap()[0].shape(), [2, 1, 3]);
    }

    #[test]
    fn slices_work_in_both_directions_and_clamp() {
        let x = || ints(&[0, 1, 2, 3, 4]);
        let run = |start: i64, end: i64, step: i64| {
            let inputs = vec![x(), ints(&[start]), ints(&[end]), ints(&[0]), ints(&[step])];
            run(&slice_node(), inputs)?.first()?.as_integers()
        };
        assert_eq!(run(1, 3, 1), Some(vec![1, 2]));
        assert_eq!(run(1, i64::MAX, 2), Some(vec![1, 3]));
        assert_eq!(run(-1, i64::MIN, -1), Some(vec![4, 3, 2, 1, 0]));
        assert_eq!(run(3, 1, 1), Some(vec![]));
        assert_eq!(run(0, 5, 0), None);
    }

    fn slice_node() -> NodeProto {
        node("Slice", "", &["x", "s", "e", "a", "t"], &["y"])
    }

    #[test]
    fn split_without_lengths_gives_the_rest_to_the_last() {
        let made = run(&node("Split", "", &["x"], &["a", "b"]), vec![ints(&[1, 2, 3])]).unwrap();
        assert_eq!((made[0].as_integers().unwrap(), made[1].as_integers().unwrap()), (vec![1, 2], vec![3]));
    }
}
