//! Convolutions and pooling.

use kvant_container::onnx::DataType;

use super::{Row, shaped};
use crate::graph::string_attribute;
use crate::shape::node::Known;
use crate::shape::{Dim, ValueType};

pub(super) const ROWS: &[Row] = &[
    ("AveragePool", |n| shaped(n, pool(n))),
    ("Conv", |n| shaped(n, convolution(n, 1))),
    ("ConvInteger", |n| typed(DataType::INT32, convolution(n, 1))),
    ("ConvTranspose", |n| shaped(n, transposed(n))),
    ("GlobalAveragePool", |n| shaped(n, global(n))),
    ("GlobalLpPool", |n| shaped(n, global(n))),
    ("GlobalMaxPool", |n| shaped(n, global(n))),
    ("LpPool", |n| shaped(n, pool(n))),
    ("MaxPool", max_pool),
    ("QLinearConv", |n| typed(n.data_type(7), convolution(n, 3))),
];

pub(super) fn typed(data_type: DataType, shape: Option<Vec<Dim>>) -> Option<Vec<ValueType>> {
    Some(vec![ValueType { data_type, shape }])
}

/// A window along one axis.
struct Window {
    kernel: usize,
    stride: usize,
    dilation: usize,
    pads: Option<(i64, i64)>,
}

/// The attributes of a window of these kernel sizes, one for each spatial axis. Without pads they are chosen automatically.
fn windows(node: &Known<'_>, kernel: &[usize]) -> Option<Vec<Window>> {
    let at = |name: &str, i: usize, default: i64| node.list(name).map_or(Some(default), |v| v.get(i).copied());
    let positive = |n: i64| usize::try_from(n).ok().filter(|&n| n > 0);
    let automatic = string_attribute(node.node, "auto_pad").unwrap_or("NOTSET");
    let pads = |i: usize| match automatic {
        "SAME_UPPER" | "SAME_LOWER" => Some(None),
        "VALID" => Some(Some((0, 0))),
        _ => Some(Some((at("pads", i, 0)?, at("pads", i + kernel.len(), 0)?))),
    };
    let window = |(i, &kernel): (usize, &usize)| {
        let (stride, dilation) = (positive(at("strides", i, 1)?)?, positive(at("dilations", i, 1)?)?);
        Some(Window { kernel: Some(kernel).filter(|&k| k > 0)?, stride, dilation, pads: pads(i)? })
    };
    kernel.iter().enumerate().map(window).collect()
}

impl Window {
    /// The number of positions of the window along an axis of a length.
    fn slide(&self, length: usize, round_up: bool) -> Option<usize> {
        let Some((before, after)) = self.pads else { return Some(length.div_ceil(self.stride)) };
        let extent = i64::try_from(self.dilation.checked_mul(self.kernel - 1)?.checked_add(1)?).ok()?;
        let length = i64::try_from(length).ok()?;
        let span = usize::try_from(length.checked_add(before)?.checked_add(after)?.checked_sub(extent)?).ok()?;
        let count = if round_up { span.div_ceil(self.stride) } else { span / self.stride } + 1;
        // A last window that would start in the padding behind the data does not count.
        let beyond =
            round_up && i64::try_from((count - 1).checked_mul(self.stride)?).ok()? >= length.checked_add(before)?;
        Some(count - usize::from(beyond))
    }

    /// The length that a transposed convolution gives.
    fn spread(&self, length: usize, extra: i64) -> Option<usize> {
        let Some((before, after)) = self.pads else { return length.checked_mul(self.stride) };
        let extent = self.dilation.checked_mul(self.kernel - 1)?.checked_add(1)?;
        let full = length.checked_sub(1)?.checked_mul(self.stride)?.checked_add(extent)?;
        let length = i64::try_from(full).ok()?.checked_add(extra)?.checked_sub(before.checked_add(after)?)?;
        usize::try_from(length).ok()
    }
}

/// The kernel's sizes: the attribute, or the weight's dimensions behind the first two.
fn kernel(node: &Known<'_>, weight: usize) -> Option<Vec<usize>> {
    match node.list("kernel_shape") {
        Some(sizes) => sizes.iter().map(|&n| usize::try_from(n).ok()).collect(),
        None => node.shape(weight)?.get(2..)?.iter().map(Dim::known).collect(),
    }
}

fn convolution(node: &Known<'_>, weight: usize) -> Option<Vec<Dim>> {
    let [batch, _, space @ ..] = node.shape(0)? else { return None };
    let channels = node.dim(weight, 0).unwrap_or_default();
    Some([&[batch.clone(), channels], &slid(node, kernel(node, weight), space, false)[..]].concat())
}

fn slid(node: &Known<'_>, kernel: Option<Vec<usize>>, space: &[Dim], round_up: bool) -> Vec<Dim> {
    let windows = kernel.filter(|k| k.len() == space.len()).and_then(|kernel| windows(node, &kernel));
    match windows {
        Some(windows) => space.iter().zip(&windows).map(|(dim, w)| dim.map(|n| w.slide(n, round_up))).collect(),
        None => vec![Dim::Unknown; space.len()],
    }
}

fn transposed(node: &Known<'_>) -> Option<Vec<Dim>> {
    let [batch, _, space @ ..] = node.shape(0)? else { return None };
    let group = usize::try_from(node.int("group", 1)).ok()?;
    let channels = node.dim(1, 1).unwrap_or_default().map(|n| n.checked_mul(group));
    let spread = match node.list("output_shape") {
        Some(shape) if shape.len() == space.len() => {
            shape.iter().map(|&n| usize::try_from(n).map_or(Dim::Unknown, Dim::Known)).collect()
        }
        _ => spread(node, space),
    };
    Some([&[batch.clone(), channels], &spread[..]].concat())
}

fn spread(node: &Known<'_>, space: &[Dim]) -> Vec<Dim> {
    let extra = |i: usize| node.list("output_padding").and_then(|v| v.get(i).copied()).unwrap_or(0);
    let windows = kernel(node, 1).filter(|k| k.len() == space.len()).and_then(|kernel| windows(node, &kernel));
    match windows {
        Some(windows) => {
            let pairs = space.iter().zip(&windows).enumerate();
            pairs.map(|(i, (dim, window))| dim.map(|n| window.spread(n, extra(i)))).collect()
        }
        None => vec![Dim::Unknown; space.len()],
    }
}

fn pool(node: &Known<'_>) -> Option<Vec<Dim>> {
    let [batch, channels, space @ ..] = node.shape(0)? else { return None };
    let space = slid(node, kernel(node, usize::MAX), space, node.int("ceil_mode", 0) != 0);
    Some([&[batch.clone(), channels.clone()], &space[..]].concat())
}

fn max_pool(node: &Known<'_>) -> Option<Vec<ValueType>> {
    let shape = pool(node);
    let positions = ValueType { data_type: DataType::INT64, shape: shape.clone() };
    Some(vec![ValueType { data_type: node.data_type(0), shape }, positions])
}

pub(super) fn global(node: &Known<'_>) -> Option<Vec<Dim>> {
    let [batch, channels, space @ ..] = node.shape(0)? else { return None };
    Some([&[batch.clone(), channels.clone()], &vec![Dim::Known(1); space.len()][..]].concat())
}

/// The shape of a convolution whose weight is the second input.
pub(super) fn conv_shape(node: &Known<'_>) -> Option<Vec<Dim>> {
    convolution(node, 1)
}

/// The shape of a pooling by windows.
pub(super) fn pool_shape(node: &Known<'_>) -> Option<Vec<Dim>> {
    pool(node)
}
