//! Operators that pick elements by indices or conditions.

use kvant_container::onnx::DataType;

use super::{Row, one, shaped};
use crate::shape::node::{Known, axis};
use crate::shape::{Dim, ValueType};

pub(super) const ROWS: &[Row] = &[
    ("Compress", |n| shaped(n, compress(n))),
    ("Gather", |n| shaped(n, gather(n))),
    ("GatherElements", |n| shaped(n, n.shape(1).map(<[Dim]>::to_vec))),
    ("GatherND", |n| shaped(n, gather_nd(n))),
    ("NonMaxSuppression", |_| one(DataType::INT64, vec![Dim::Unknown, Dim::Known(3)])),
    ("NonZero", |n| one(DataType::INT64, vec![n.rank(0).map_or(Dim::Unknown, Dim::Known), Dim::Unknown])),
    ("OneHot", one_hot),
    ("RoiAlign", roi_align),
    ("Unique", unique),
];

fn compress(node: &Known<'_>) -> Option<Vec<Dim>> {
    let Some(along) = crate::graph::int_attribute(node.node, "axis") else { return Some(vec![Dim::Unknown]) };
    let mut shape = node.shape(0)?.to_vec();
    let at = axis(along, shape.len())?;
    shape[at] = Dim::Unknown;
    Some(shape)
}

pub(super) fn gather(node: &Known<'_>) -> Option<Vec<Dim>> {
    let (data, indices) = (node.shape(0)?, node.shape(1)?);
    let at = axis(node.int("axis", 0), data.len())?;
    Some([&data[..at], indices, &data[at + 1..]].concat())
}

fn gather_nd(node: &Known<'_>) -> Option<Vec<Dim>> {
    let data = node.shape(0)?;
    let [outer @ .., depth] = node.shape(1)? else { return None };
    let batch = usize::try_from(node.int("batch_dims", 0)).ok()?;
    let taken = batch.checked_add(depth.known()?)?;
    Some([outer, data.get(taken..)?].concat())
}

fn one_hot(node: &Known<'_>) -> Option<Vec<ValueType>> {
    let mut shape = node.shape(0)?.to_vec();
    let at = axis(node.int("axis", -1), shape.len().checked_add(1)?)?;
    let depth = node.integers(1).and_then(|v| usize::try_from(*v.first()?).ok());
    shape.insert(at, depth.map_or(Dim::Unknown, Dim::Known));
    one(node.data_type(2), shape)
}

fn roi_align(node: &Known<'_>) -> Option<Vec<ValueType>> {
    let size = |name: &str| usize::try_from(node.int(name, 1)).map_or(Dim::Unknown, Dim::Known);
    let (count, channels) = (node.dim(1, 0).unwrap_or_default(), node.dim(0, 1).unwrap_or_default());
    one(node.data_type(0), vec![count, channels, size("output_height"), size("output_width")])
}

fn unique(node: &Known<'_>) -> Option<Vec<ValueType>> {
    let mut shape = vec![Dim::Unknown];
    if let Some(along) = crate::graph::int_attribute(node.node, "axis") {
        shape = node.shape(0)?.to_vec();
        let at = axis(along, shape.len())?;
        shape[at] = Dim::Unknown;
    }
    let positions = ValueType::new(DataType::INT64, vec![Dim::Unknown]);
    let values = ValueType::new(node.data_type(0), shape);
    Some(vec![values, positions.clone(), positions.clone(), positions])
}
