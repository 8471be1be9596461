//! One dimension of a shape: a number, a name for a number, or neither.

use kvant_container::onnx::{Dimension, DimensionValue};

/// A dimension.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub enum Dim {
    /// So many.
    Known(usize),
    /// As many as every other dimension of this name.
    Symbol(String),
    /// Any number.
    #[default]
    Unknown,
}

impl Dim {
    /// The number, if it is known.
    pub fn known(&self) -> Option<usize> {
        match self {
            Self::Known(n) => Some(*n),
            _ => None,
        }
    }

    /// The dimension of a file; negative numbers and empty names say nothing.
    pub(super) fn of(dimension: &Dimension) -> Self {
        match &dimension.value {
            Some(DimensionValue::DimValue(n)) => usize::try_from(*n).map_or(Self::Unknown, Self::Known),
            Some(DimensionValue::DimParam(name)) if !name.is_empty() => Self::Symbol(name.clone()),
            _ => Self::Unknown,
        }
    }

    /// The dimension as it is written to a file.
    pub(super) fn to_proto(&self) -> Dimension {
        let value = match self {
            Self::Known(n) => Some(DimensionValue::DimValue(i64::try_from(*n).unwrap_or(i64::MAX))),
            Self::Symbol(name) => Some(DimensionValue::DimParam(name.clone())),
            Self::Unknown => None,
        };
        Dimension { value, ..Dimension::default() }
    }

    /// What both say of the same dimension; a number beats a name beats nothing. Where they contradict, `self` holds.
    pub(super) fn refined(&self, other: &Self) -> Self {
        match (self, other) {
            (Self::Unknown, other) => other.clone(),
            (Self::Symbol(_), Self::Known(_)) => other.clone(),
            _ => self.clone(),
        }
    }

    /// What is true of a dimension that is one or the other.
    pub(super) fn either(&self, other: &Self) -> Self {
        if self == other { self.clone() } else { Self::Unknown }
    }

    /// The dimension two broadcast to.
    pub(super) fn broadcast(&self, other: &Self) -> Self {
        match (self, other) {
            (Self::Known(1), other) | (other, Self::Known(1)) => other.clone(),
            (Self::Known(n), _) | (_, Self::Known(n)) => Self::Known(*n),
            _ => self.either(other),
        }
    }

    /// The number that a function makes of a known one.
    pub(super) fn map(&self, function: impl FnOnce(usize) -> Option<usize>) -> Self {
        self.known().and_then(function).map_or(Self::Unknown, Self::Known)
    }
}

/// The product of dimensions, if all are known.
pub(super) fn product(dims: &[Dim]) -> Dim {
    let number = dims.iter().try_fold(1usize, |n, dim| n.checked_mul(dim.known()?));
    match (number, dims) {
        (Some(n), _) => Dim::Known(n),
        (None, _) => single(dims),
    }
}

/// The one dimension that is not 1.
fn single(dims: &[Dim]) -> Dim {
    let mut others = dims.iter().filter(|d| **d != Dim::Known(1));
    match (others.next(), others.next()) {
        (Some(one), None) => one.clone(),
        _ => Dim::Unknown,
    }
}

/// The shape two shapes broadcast to.
pub(super) fn broadcast(a: &[Dim], b: &[Dim]) -> Vec<Dim> {
    let rank = a.len().max(b.len());
    let one = Dim::Known(1);
    let dim = |shape: &[Dim], i: usize| (i + shape.len()).checked_sub(rank).map_or(one.clone(), |at| shape[at].clone());
    (0..rank).map(|i| dim(a, i).broadcast(&dim(b, i))).collect()
}
