//! The table of operators and what each makes of its inputs' types. One file for each kind of operator.

mod broadcasting;
mod contrib;
mod convolution;
mod creation;
mod elementwise;
mod movement;
mod product;
mod recurrent;
mod reduction;
mod selection;

use kvant_container::onnx::{DataType, NodeProto};

use super::node::Known;
use super::{Dim, ValueType};
use crate::graph::domain;

/// The types of a node's outputs, in order, the last ones left out where nothing is known of them. `None` where nothing
/// is known at all.
pub(super) type Rule = fn(&Known<'_>) -> Option<Vec<ValueType>>;

/// A row of a table: the operator's name and its rule.
type Row = (&'static str, Rule);

/// The rule of a node.
pub(super) fn rule(node: &NodeProto) -> Option<Rule> {
    let standard: &[&[Row]] = &[
        elementwise::ROWS,
        broadcasting::ROWS,
        movement::ROWS,
        convolution::ROWS,
        product::ROWS,
        reduction::ROWS,
        selection::ROWS,
        creation::ROWS,
        recurrent::ROWS,
    ];
    let tables: &[&[Row]] = match domain(node) {
        "" => standard,
        "com.microsoft" | "com.amd.quark" => &[contrib::ROWS],
        _ => return None,
    };
    let mut rows = tables.iter().flat_map(|rows| rows.iter());
    rows.find(|(name, _)| *name == node.op_type()).map(|(_, rule)| *rule)
}

/// Returns whether the inputs of a standard operator broadcast to the shape of its output.
pub(super) fn broadcasts(node: &NodeProto) -> bool {
    broadcasting::ROWS.iter().any(|(name, _)| *name == node.op_type())
}

/// One output of a type and shape.
fn one(data_type: DataType, shape: Vec<Dim>) -> Option<Vec<ValueType>> {
    Some(vec![ValueType::new(data_type, shape)])
}

/// One output of the type of the first input and of a shape that may not be known.
fn shaped(node: &Known<'_>, shape: Option<Vec<Dim>>) -> Option<Vec<ValueType>> {
    Some(vec![ValueType { data_type: node.data_type(0), shape }])
}

/// The type and shape of an input.
fn like(node: &Known<'_>, position: usize) -> ValueType {
    ValueType { data_type: node.data_type(position), shape: node.shape(position).map(<[Dim]>::to_vec) }
}

/// The element type that an attribute names, or a default.
fn named_type(node: &Known<'_>, attribute: &str, default: DataType) -> DataType {
    match i32::try_from(node.int(attribute, 0)) {
        Ok(0) | Err(_) => default,
        Ok(number) => kvant_container::onnx::EnumOrUnknown::from_i32(number).enum_value_or(DataType::UNDEFINED),
    }
}
