//! Operators that move elements: their results' shapes follow from shapes, axes and small constants.

use kvant_container::onnx::DataType;

use super::{Row, one, shaped};
use crate::constant::{equal_parts, slice_range};
use crate::shape::contents::Element;
use crate::shape::dim::{broadcast, product};
use crate::shape::node::{Known, axis};
use crate::shape::{Dim, ValueType};

pub(super) const ROWS: &[Row] = &[
    ("Concat", |n| shaped(n, concat(n))),
    ("DepthToSpace", |n| shaped(n, depth_to_space(n))),
    ("Expand", |n| shaped(n, expand(n))),
    ("Flatten", |n| shaped(n, flatten(n))),
    ("Pad", |n| shaped(n, pad(n))),
    ("Reshape", |n| shaped(n, reshape(n))),
    ("Resize", |n| shaped(n, resize(n, n.opset >= 11))),
    ("Shape", shape),
    ("Size", |_| one(DataType::INT64, vec![])),
    ("Slice", |n| shaped(n, slice(n))),
    ("SpaceToDepth", |n| shaped(n, space_to_depth(n))),
    ("Split", split),
    ("Squeeze", |n| shaped(n, squeeze(n))),
    ("Tile", |n| shaped(n, tile(n))),
    ("Transpose", |n| shaped(n, transpose(n))),
    ("Unsqueeze", |n| shaped(n, unsqueeze(n))),
    ("Upsample", |n| shaped(n, resize(n, false))),
];

fn concat(node: &Known<'_>) -> Option<Vec<Dim>> {
    let mut shape = node.shape(0)?.to_vec();
    let along = axis(node.int("axis", 1), shape.len())?;
    for i in 1..node.node.input.len() {
        let part = node.shape(i).filter(|part| part.len() == shape.len())?;
        for (at, (dim, other)) in shape.iter_mut().zip(part).enumerate() {
            *dim = if at == along { sum(dim, other) } else { dim.refined(other) };
        }
    }
    Some(shape)
}

fn sum(a: &Dim, b: &Dim) -> Dim {
    match (a, b) {
        (Dim::Known(a), Dim::Known(b)) => a.checked_add(*b).map_or(Dim::Unknown, Dim::Known),
        (Dim::Known(0), dim) | (dim, Dim::Known(0)) => dim.clone(),
        _ => Dim::Unknown,
    }
}

fn block(node: &Known<'_>) -> Option<(usize, [Dim; 4])> {
    let size = usize::try_from(node.int("blocksize", 0)).ok().filter(|&size| size > 0)?;
    let [n, c, h, w] = node.shape(0)? else { return None };
    Some((size, [n.clone(), c.clone(), h.clone(), w.clone()]))
}

fn depth_to_space(node: &Known<'_>) -> Option<Vec<Dim>> {
    let (size, [n, c, h, w]) = block(node)?;
    Some(vec![
        n,
        c.map(|c| c.checked_div(size.checked_mul(size)?)),
        h.map(|h| h.checked_mul(size)),
        w.map(|w| w.checked_mul(size)),
    ])
}

fn space_to_depth(node: &Known<'_>) -> Option<Vec<Dim>> {
    let (size, [n, c, h, w]) = block(node)?;
    Some(vec![
        n,
        c.map(|c| c.checked_mul(size.checked_mul(size)?)),
        h.map(|h| h.checked_div(size)),
        w.map(|w| w.checked_div(size)),
    ])
}

fn expand(node: &Known<'_>) -> Option<Vec<Dim>> {
    let wanted = node.dims(1).or_else(|| unknown_of_rank(node))?;
    Some(broadcast(node.shape(0)?, &wanted))
}

fn flatten(node: &Known<'_>) -> Option<Vec<Dim>> {
    let shape = node.shape(0)?;
    let at = node.int("axis", 1);
    let at = if at == shape.len() as i64 { shape.len() } else { axis(at, shape.len())? };
    Some(vec![product(&shape[..at]), product(&shape[at..])])
}

fn pad(node: &Known<'_>) -> Option<Vec<Dim>> {
    let mut shape = node.shape(0)?.to_vec();
    let rank = shape.len();
    let Some(pads) = node.ints("pads", 1) else { return Some(vec![Dim::Unknown; rank]) };
    let axes = match node.has(3) {
        true => node.integers(3)?,
        false => (0..rank as i64).collect(),
    };
    if pads.len() != 2 * axes.len() {
        return None;
    }
    for (i, &along) in axes.iter().enumerate() {
        let grown = pads[i].checked_add(pads[i + axes.len()])?;
        let at = axis(along, rank)?;
        shape[at] = match grown {
            0 => shape[at].clone(),
            _ => shape[at].map(|n| usize::try_from(i64::try_from(n).ok()?.checked_add(grown)?).ok()),
        };
    }
    Some(shape)
}

fn reshape(node: &Known<'_>) -> Option<Vec<Dim>> {
    let wanted = match node.list("shape") {
        Some(shape) => shape.iter().map(|&n| Element::Number(n)).collect(),
        None => match node.elements(1) {
            Some(elements) => elements,
            None => return unknown_of_rank(node),
        },
    };
    let zero_copies = node.int("allowzero", 0) == 0;
    let copied = |i: usize| node.shape(0).and_then(|s| s.get(i).cloned()).unwrap_or_default();
    let dim = |(i, element): (usize, &Element)| match element {
        Element::Number(0) if zero_copies => copied(i),
        element => element.dim().unwrap_or_default(),
    };
    let mut shape: Vec<Dim> = wanted.iter().enumerate().map(dim).collect();
    if let Some(open) = wanted.iter().position(|e| *e == Element::Number(-1)) {
        shape[open] = node.shape(0).map_or(Dim::Unknown, |source| rest(source, &shape, open));
    }
    Some(shape)
}

/// A shape of as many dimensions as the tensor that carries it has elements.
fn unknown_of_rank(node: &Known<'_>) -> Option<Vec<Dim>> {
    match node.shape(1)? {
        [Dim::Known(rank)] if *rank <= 64 => Some(vec![Dim::Unknown; *rank]),
        _ => None,
    }
}

/// The dimension that takes what the others leave. Dimensions that stand on both sides cancel.
fn rest(source: &[Dim], shape: &[Dim], open: usize) -> Dim {
    let mut left = source.to_vec();
    let mut others: Vec<Dim> = shape.iter().enumerate().filter(|(i, _)| *i != open).map(|(_, d)| d.clone()).collect();
    others.retain(|dim| match left.iter().position(|d| d == dim && matches!(d, Dim::Symbol(_))) {
        Some(at) => {
            left.remove(at);
            false
        }
        None => true,
    });
    match (product(&left), product(&others)) {
        (Dim::Known(all), Dim::Known(taken)) if taken > 0 && all % taken == 0 => Dim::Known(all / taken),
        (dim, Dim::Known(1)) => dim,
        _ => Dim::Unknown,
    }
}

fn resize(node: &Known<'_>, with_roi: bool) -> Option<Vec<Dim>> {
    let shape = node.shape(0)?;
    let (scales, sizes) = if with_roi { (2, 3) } else { (1, usize::MAX) };
    let unknown = || Some(vec![Dim::Unknown; shape.len()]);
    let uniform = node.list("axes").is_none() && node.int("keep_aspect_ratio_policy", 0) == 0;
    let policy = crate::graph::string_attribute(node.node, "keep_aspect_ratio_policy").unwrap_or("stretch");
    if !uniform || policy != "stretch" {
        return unknown();
    }
    if let Some(dims) = node.dims(sizes).filter(|dims| dims.len() == shape.len()) {
        return Some(dims);
    }
    let by_input = node.value(scales).and_then(|v| v.as_floats());
    let by_attribute =
        || crate::graph::attribute(node.node, "scales").map(|a| a.floats.iter().map(|&f| f.into()).collect());
    let Some(factors): Option<Vec<f64>> = by_input.or_else(by_attribute) else { return unknown() };
    if factors.len() != shape.len() {
        return unknown();
    }
    let scaled = |n: usize, factor: f64| {
        let size = (n as f64 * factor).floor();
        (0.0..1e15).contains(&size).then_some(size as usize)
    };
    let dim = |(dim, &factor): (&Dim, &f64)| if factor == 1.0 { dim.clone() } else { dim.map(|n| scaled(n, factor)) };
    Some(shape.iter().zip(&factors).map(dim).collect())
}

fn shape(node: &Known<'_>) -> Option<Vec<ValueType>> {
    let length = node.rank(0).map_or(Dim::Unknown, |rank| {
        let (start, end) = crate::constant::shape_range(node.node, rank);
        Dim::Known(end.saturating_sub(start))
    });
    one(DataType::INT64, vec![length])
}

fn slice(node: &Known<'_>) -> Option<Vec<Dim>> {
    let mut shape = node.shape(0)?.to_vec();
    let rank = shape.len();
    let (starts, ends) = (node.ints("starts", 1), node.ints("ends", 2));
    let axes = match node.list("axes") {
        Some(axes) => Some(axes.to_vec()),
        None if node.has(3) => node.integers(3),
        None => Some((0..starts.as_ref().or(ends.as_ref())?.len() as i64).collect()),
    };
    let Some(axes) = axes else { return Some(vec![Dim::Unknown; rank]) };
    let steps = if node.has(4) { node.integers(4) } else { Some(vec![1; axes.len()]) };
    for (i, &along) in axes.iter().enumerate() {
        let at = axis(along, rank)?;
        let part = |values: &Option<Vec<i64>>| values.as_ref().and_then(|v| v.get(i).copied());
        shape[at] = match (part(&starts), part(&ends), part(&steps)) {
            (Some(start), Some(end), Some(step)) => sliced(&shape[at], start, end, step),
            _ => Dim::Unknown,
        };
    }
    Some(shape)
}

fn sliced(dim: &Dim, start: i64, end: i64, step: i64) -> Dim {
    match (start, end, step) {
        (0, end, 1) if end >= i64::from(i32::MAX) => dim.clone(),
        _ => dim.map(|n| slice_range(start, end, step, n).map(|(_, count)| count)),
    }
}

fn split(node: &Known<'_>) -> Option<Vec<ValueType>> {
    let shape = node.shape(0)?;
    let parts = node.node.output.len();
    let at = axis(node.int("axis", 0), shape.len())?;
    let given = node.list("split").is_some() || node.has(1);
    let lengths: Vec<Dim> = match (node.ints("split", 1), given, &shape[at]) {
        (Some(lengths), _, _) => lengths.iter().map(|&n| usize::try_from(n).map_or(Dim::Unknown, Dim::Known)).collect(),
        (None, false, Dim::Known(n)) => equal_parts(*n, parts)?.into_iter().map(Dim::Known).collect(),
        _ => vec![Dim::Unknown; parts],
    };
    let part = |length: Dim| {
        let mut shape = shape.to_vec();
        shape[at] = length;
        ValueType::new(node.data_type(0), shape)
    };
    Some(lengths.into_iter().map(part).collect())
}

fn squeeze(node: &Known<'_>) -> Option<Vec<Dim>> {
    let shape = node.shape(0)?;
    let given = node.list("axes").is_some() || node.has(1);
    let over: Vec<usize> = match given {
        true => node.ints("axes", 1)?.iter().map(|&a| axis(a, shape.len())).collect::<Option<_>>()?,
        false if shape.iter().all(|d| d.known().is_some()) => {
            (0..shape.len()).filter(|&i| shape[i] == Dim::Known(1)).collect()
        }
        false => return None,
    };
    Some((0..shape.len()).filter(|i| !over.contains(i)).map(|i| shape[i].clone()).collect())
}

fn unsqueeze(node: &Known<'_>) -> Option<Vec<Dim>> {
    let mut old = node.shape(0)?.iter().cloned();
    let axes = node.ints("axes", 1)?;
    let rank = old.len().checked_add(axes.len())?;
    let new: Vec<usize> = axes.iter().map(|&a| axis(a, rank)).collect::<Option<_>>()?;
    (0..rank).map(|i| if new.contains(&i) { Some(Dim::Known(1)) } else { old.next() }).collect()
}

fn tile(node: &Known<'_>) -> Option<Vec<Dim>> {
    let shape = node.shape(0)?;
    let Some(repeats) = node.integers(1).filter(|r| r.len() == shape.len()) else {
        return Some(vec![Dim::Unknown; shape.len()]);
    };
    let times = |(dim, &n): (&Dim, &i64)| match n {
        1 => dim.clone(),
        _ => dim.map(|d| d.checked_mul(usize::try_from(n).ok()?)),
    };
    Some(shape.iter().zip(&repeats).map(times).collect())
}

fn transpose(node: &Known<'_>) -> Option<Vec<Dim>> {
    let shape = node.shape(0)?;
    match node.list("perm") {
        Some(order) => order.iter().map(|&i| shape.get(usize::try_from(i).ok()?).cloned()).collect(),
        None => Some(shape.iter().rev().cloned().collect()),
    }
}
