//! `x / max(norm(x), epsilon)` with the Euclidean norm over one axis, and an epsilon that only keeps zero from being divided
//! by, becomes LpNormalization. The norm may be spelled as the root of a sum of squares.

use kvant_container::onnx::{ModelProto, NodeProto};

use super::normalized::{quotient, square};
use super::pattern::Pattern;
use super::{Context, PassError};
use crate::graph::{Edit, float_attribute, int_attribute, node, positional_input, set_attribute};

/// Largest epsilon that changes nothing of vectors that are not all but zero.
const LARGEST_EPSILON: f64 = 1e-6;

pub(super) fn run(model: &mut ModelProto, _: &Context<'_>) -> Result<usize, PassError> {
    let Some(graph) = model.graph.as_mut() else { return Ok(0) };
    let pattern = Pattern::new(graph);
    let mut edit = Edit::default();
    for (position, last) in graph.node.iter().enumerate() {
        let Some((input, divisor)) = quotient(last, &pattern) else { continue };
        let norm = limited_norm(divisor, &pattern).or_else(|| limited_squares(divisor, &pattern));
        let Some(axis) = norm.filter(|norm| norm.input == input).map(|norm| norm.axis) else { continue };
        let mut fused = node("LpNormalization", last.name(), &[input], &[&last.output[0]]);
        set_attribute(&mut fused, "axis", axis);
        set_attribute(&mut fused, "p", 2i64);
        edit.replace(position, vec![fused]);
    }
    Ok(edit.apply(graph))
}

/// The input of the norm, and its axis.
struct Norm<'g> {
    input: &'g str,
    axis: i64,
}

/// `Clip(ReduceL2(x), epsilon)`, perhaps expanded to the shape of `x`.
fn limited_norm<'g>(divisor: &str, pattern: &Pattern<'g>) -> Option<Norm<'g>> {
    let limited = pattern.maker(divisor, "Expand").map_or(divisor, |expand| &expand.input[0]);
    let (norm, epsilon) = at_least(limited, pattern)?;
    let axis = reduced(pattern.maker(norm, "ReduceL2")?, pattern)?;
    let input = &pattern.maker(norm, "ReduceL2")?.input[0];
    (0.0..=LARGEST_EPSILON).contains(&epsilon).then_some(Norm { input, axis })
}

/// `Sqrt(Max(ReduceSum(x x), epsilon))`.
fn limited_squares<'g>(divisor: &str, pattern: &Pattern<'g>) -> Option<Norm<'g>> {
    let (sum, epsilon) = at_least(&pattern.maker(divisor, "Sqrt")?.input[0], pattern)?;
    let sum = pattern.maker(sum, "ReduceSum")?;
    let input = square(&sum.input[0], pattern)?;
    let axis = reduced(sum, pattern)?;
    (0.0..=LARGEST_EPSILON * LARGEST_EPSILON).contains(&epsilon).then_some(Norm { input, axis })
}

/// A tensor and the number it is kept from falling below, by Clip without an upper limit or by Max.
fn at_least<'g>(tensor: &str, pattern: &Pattern<'g>) -> Option<(&'g str, f64)> {
    if let Some(max) = pattern.maker(tensor, "Max") {
        let [a, b] = &max.input[..] else { return None };
        return match (pattern.number(a), pattern.number(b)) {
            (None, Some(least)) => Some((a, least)),
            (Some(least), None) => Some((b, least)),
            _ => None,
        };
    }
    let clip = pattern.maker(tensor, "Clip")?;
    let least = match positional_input(clip, 1) {
        Some(name) => pattern.number(name)?,
        None => f64::from(float_attribute(clip, "min")?),
    };
    let open = positional_input(clip, 2).is_none() && float_attribute(clip, "max").is_none_or(|max| max >= f32::MAX);
    open.then_some((&clip.input[0], least))
}

/// The one axis of a reduction that keeps it.
fn reduced(node: &NodeProto, pattern: &Pattern<'_>) -> Option<i64> {
    let keeps = int_attribute(node, "keepdims").unwrap_or(1) != 0;
    match pattern.axes(node)?[..] {
        [axis] if keeps => Some(axis),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_models::{floats, model};

    fn count(axes: &[i64], epsilon: f32) -> usize {
        let mut norm = node("ReduceL2", "", &["x"], &["n"]);
        set_attribute(&mut norm, "axes", axes);
        let nodes = vec![norm, node("Clip", "", &["n", "eps"], &["c"]), node("Div", "", &["x", "c"], &["y"])];
        let mut model = model(13, nodes, vec![floats("eps", &[], &[epsilon])], &["x"], &["y"]);
        run(&mut model, &Context::default()).unwrap()
    }

    #[test]
    fn root_of_sum_of_squares_becomes_an_l2_norm() {
        let mut sum = node("ReduceSum", "", &["s"], &["n"]);
        set_attribute(&mut sum, "axes", &[-1i64][..]);
        let nodes = vec![
            node("Mul", "", &["x", "x"], &["s"]),
            sum,
            node("Max", "", &["n", "eps"], &["m"]),
            node("Sqrt", "", &["m"], &["r"]),
            node("Reciprocal", "", &["r"], &["i"]),
            node("Mul", "", &["x", "i"], &["y"]),
        ];
        let mut model = model(12, nodes, vec![floats("eps", &[], &[1e-12])], &["x"], &["y"]);
        assert_eq!(run(&mut model, &Context::default()).unwrap(), 1);
        assert_eq!(int_attribute(model.graph.node.last().unwrap(), "axis"), Some(-1));
    }

    #[test]
    fn l2_norm_needs_one_axis_and_a_small_epsilon() {
        assert_eq!(count(&[1], 1e-12), 1);
        assert_eq!(count(&[1, 2], 1e-12), 0);
        assert_eq!(count(&[1], 1e-3), 0);
    }
}
