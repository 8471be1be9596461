//! The nodes of `(x - mean(x)) / sqrt(variance(x) + epsilon) * scale + bias`, the means taken over some axes: what exporters
//! make of layer and instance normalization where the opset has no operator for it.

use kvant_container::onnx::NodeProto;

use super::pattern::{Pattern, other};
use crate::graph::{int_attribute, is};

/// A normalization with its scale and, where it has one, its bias.
pub(crate) struct Normalized<'g> {
    pub(crate) input: &'g str,
    /// The axes of the means, as they are written.
    pub(crate) axes: Vec<i64>,
    pub(crate) epsilon: f32,
    pub(crate) scale: &'g str,
    pub(crate) bias: Option<&'g str>,
    /// The last node, whose result is the whole's.
    pub(crate) last: usize,
}

impl<'g> Normalized<'g> {
    /// The normalization whose quotient a node is.
    pub(crate) fn around(node: &'g NodeProto, pattern: &Pattern<'g>) -> Option<Self> {
        let (difference, deviation) = quotient(node, pattern)?;
        let centred = pattern.maker(difference, "Sub")?;
        let [input, mean] = &centred.input[..] else { return None };
        let (variance, epsilon) = sum(pattern.maker(deviation, "Sqrt")?.input.first()?, pattern)?;
        let mean = pattern.maker(mean, "ReduceMean").filter(|mean| mean.input[0] == *input)?;
        let variance = pattern.maker(variance, "ReduceMean")?;
        let axes = pattern.axes(mean)?;
        let keeps = |node: &NodeProto| int_attribute(node, "keepdims").unwrap_or(1) != 0;
        let alike = pattern.axes(variance)? == axes && keeps(mean) && keeps(variance);
        if !alike || !is_square(&variance.input[0], difference, pattern) {
            return None;
        }
        let (mul, scaled) = pattern.reader(node.output.first()?, "Mul")?;
        let scale = other(scaled, &node.output[0]).filter(|scale| pattern.value(scale).is_some())?;
        let shifted = pattern.reader(&scaled.output[0], "Add");
        let bias = shifted.and_then(|(at, add)| Some((at, other(add, &scaled.output[0])?)));
        let (last, bias) = match bias.filter(|(_, bias)| pattern.value(bias).is_some()) {
            Some((at, bias)) => (at, Some(bias)),
            None => (mul, None),
        };
        Some(Self { input, axes, epsilon: epsilon as f32, scale, bias, last })
    }
}

/// Dividend and divisor of a Div, or of a Mul with a Reciprocal, which may be spelled as 1 divided.
pub(crate) fn quotient<'g>(node: &'g NodeProto, pattern: &Pattern<'g>) -> Option<(&'g str, &'g str)> {
    let [a, b] = &node.input[..] else { return None };
    if is(node, "Div") {
        return Some((a, b));
    }
    let reciprocal = |tensor: &str| pattern.maker(tensor, "Reciprocal").map(|node| node.input[0].as_str());
    let divided = |tensor: &str| match &pattern.maker(tensor, "Div")?.input[..] {
        [one, divisor] if pattern.is_number(one, 1.0) => Some(divisor.as_str()),
        _ => None,
    };
    let inverse = |tensor: &str| reciprocal(tensor).or_else(|| divided(tensor));
    if !is(node, "Mul") {
        return None;
    }
    inverse(b).map(|divisor| (a.as_str(), divisor)).or_else(|| inverse(a).map(|divisor| (b.as_str(), divisor)))
}

/// A tensor and the number added to it.
pub(crate) fn sum<'g>(tensor: &str, pattern: &Pattern<'g>) -> Option<(&'g str, f64)> {
    let [a, b] = &pattern.maker(tensor, "Add")?.input[..] else { return None };
    match (pattern.number(a), pattern.number(b)) {
        (None, Some(number)) => Some((a, number)),
        (Some(number), None) => Some((b, number)),
        _ => None,
    }
}

/// Returns whether a tensor is another times itself, which may have been computed twice.
fn is_square(tensor: &str, root: &str, pattern: &Pattern<'_>) -> bool {
    square(tensor, pattern).is_some_and(|base| base == root || is_same_difference(base, root, pattern))
}

/// What a tensor is the square of.
pub(crate) fn square<'g>(tensor: &str, pattern: &Pattern<'g>) -> Option<&'g str> {
    if let Some(pow) = pattern.maker(tensor, "Pow") {
        return pattern.is_number(&pow.input[1], 2.0).then_some(&pow.input[0]);
    }
    let [a, b] = &pattern.maker(tensor, "Mul")?.input[..] else { return None };
    (a == b).then_some(a)
}

fn is_same_difference(a: &str, b: &str, pattern: &Pattern<'_>) -> bool {
    let inputs = |tensor: &str| pattern.maker(tensor, "Sub").map(|node| &node.input);
    inputs(a).is_some() && inputs(a) == inputs(b)
}

/// The first axis, if the axes are the last of a rank.
pub(crate) fn trailing(axes: &[i64], rank: usize) -> Option<usize> {
    let rank = i64::try_from(rank).ok()?;
    let mut axes: Vec<i64> = axes.iter().map(|&a| if a < 0 { a + rank } else { a }).collect();
    axes.sort_unstable();
    let first = *axes.first()?;
    axes.iter().copied().eq(first..rank).then_some(usize::try_from(first).ok()?)
}
