//! A node with what is known of its inputs, as a rule reads it.

use std::collections::HashMap;

use kvant_container::onnx::{DataType, NodeProto};

use super::contents::Element;
use super::{Dim, Types};
use crate::constant::Value;
use crate::graph::{int_attribute, ints_attribute, positional_input};

/// A node and what is known of the tensors it reads.
pub(super) struct Known<'a> {
    pub(super) node: &'a NodeProto,
    pub(super) opset: i64,
    pub(super) types: &'a Types,
    pub(super) partial: &'a HashMap<String, Vec<Element>>,
}

impl Known<'_> {
    /// Returns whether an input is given.
    pub(super) fn has(&self, position: usize) -> bool {
        positional_input(self.node, position).is_some()
    }

    /// The shape of an input.
    pub(super) fn shape(&self, position: usize) -> Option<&[Dim]> {
        self.types.get(positional_input(self.node, position)?)?.shape.as_deref()
    }

    /// The number of dimensions of an input.
    pub(super) fn rank(&self, position: usize) -> Option<usize> {
        self.shape(position).map(<[Dim]>::len)
    }

    /// The dimension of an input at an axis, counted from the end where negative.
    pub(super) fn dim(&self, position: usize, axis: i64) -> Option<Dim> {
        let shape = self.shape(position)?;
        shape.get(self::axis(axis, shape.len())?).cloned()
    }

    /// The element type of an input; undefined if it is not known.
    pub(super) fn data_type(&self, position: usize) -> DataType {
        let name = positional_input(self.node, position);
        name.and_then(|name| self.types.data_type(name)).unwrap_or(DataType::UNDEFINED)
    }

    /// The contents of a constant input.
    pub(super) fn value(&self, position: usize) -> Option<&Value> {
        self.types.constant(positional_input(self.node, position)?)
    }

    /// The contents of a constant input of integers.
    pub(super) fn integers(&self, position: usize) -> Option<Vec<i64>> {
        self.value(position)?.as_integers()
    }

    /// The contents of an input that carries a shape, as far as they are known.
    pub(super) fn elements(&self, position: usize) -> Option<Vec<Element>> {
        let name = positional_input(self.node, position)?;
        match self.types.constant(name) {
            Some(value) => Some(value.as_integers()?.into_iter().map(Element::Number).collect()),
            None => self.partial.get(name).cloned(),
        }
    }

    /// The shape an input carries; `None` where a number in it is negative.
    pub(super) fn dims(&self, position: usize) -> Option<Vec<Dim>> {
        self.elements(position)?.iter().map(Element::dim).collect()
    }

    /// An integer attribute with its default.
    pub(super) fn int(&self, name: &str, default: i64) -> i64 {
        int_attribute(self.node, name).unwrap_or(default)
    }

    /// Integers of an attribute, or of the constant input that took its place.
    pub(super) fn ints(&self, name: &str, input: usize) -> Option<Vec<i64>> {
        ints_attribute(self.node, name).map(<[i64]>::to_vec).or_else(|| self.integers(input))
    }

    /// The integers of an attribute.
    pub(super) fn list(&self, name: &str) -> Option<&[i64]> {
        ints_attribute(self.node, name).filter(|values| !values.is_empty())
    }
}

/// An axis counted from the end where it is negative.
pub(super) fn axis(axis: i64, rank: usize) -> Option<usize> {
    let rank = i64::try_from(rank).ok()?;
    let counted = if axis < 0 { axis.checked_add(rank)? } else { axis };
    (0..rank).contains(&counted).then_some(counted as usize)
}
