//! The nodes of `0.5 x (1 + erf(x / sqrt(2)))`, in any order of the factors, become Gelu, which opset 20 brought.

use std::f64::consts::{FRAC_1_SQRT_2, SQRT_2};

use kvant_container::onnx::{ModelProto, NodeProto};

use super::pattern::{Pattern, other};
use super::{Context, PassError};
use crate::graph::{self, Edit, STANDARD_DOMAIN, is, node};

/// The opset that brought Gelu.
const OPSET: i64 = 20;

pub(super) fn run(model: &mut ModelProto, _: &Context<'_>) -> Result<usize, PassError> {
    if graph::opset(model, STANDARD_DOMAIN).unwrap_or_default() < OPSET {
        return Ok(0);
    }
    let Some(graph) = model.graph.as_mut() else { return Ok(0) };
    let pattern = Pattern::new(graph);
    let mut edit = Edit::default();
    for erf in graph.node.iter().filter(|node| is(node, "Erf")) {
        let Some((input, last)) = gelu(erf, &pattern) else { continue };
        let output = &graph.node[last];
        edit.replace(last, vec![node("Gelu", output.name(), &[input], &[&output.output[0]])]);
    }
    Ok(edit.apply(graph))
}

/// The input, and the position of the last product, of the function around an Erf.
fn gelu<'g>(erf: &'g NodeProto, pattern: &Pattern<'g>) -> Option<(&'g str, usize)> {
    let input = argument(erf.input.first()?, pattern)?;
    let (_, sum) = pattern.reader(&erf.output[0], "Add")?;
    other(sum, &erf.output[0]).filter(|one| pattern.is_number(one, 1.0))?;
    let (first, product) = pattern.reader(&sum.output[0], "Mul")?;
    let factor = other(product, &sum.output[0])?;
    if is_half_of(factor, input, pattern) {
        return Some((input, first));
    }
    let (last, product_again) = pattern.reader(&product.output[0], "Mul")?;
    let second = other(product_again, &product.output[0])?;
    let half_and_input = |a: &str, b: &str| a == input && pattern.is_number(b, 0.5);
    (half_and_input(factor, second) || half_and_input(second, factor)).then_some((input, last))
}

/// What is divided by the square root of two.
fn argument<'g>(tensor: &str, pattern: &Pattern<'g>) -> Option<&'g str> {
    if let Some(div) = pattern.maker(tensor, "Div") {
        return pattern.is_number(&div.input[1], SQRT_2).then_some(&div.input[0]);
    }
    factor(tensor, FRAC_1_SQRT_2, pattern)
}

/// What is multiplied with a number.
fn factor<'g>(tensor: &str, number: f64, pattern: &Pattern<'g>) -> Option<&'g str> {
    let [a, b] = &pattern.maker(tensor, "Mul")?.input[..] else { return None };
    match (pattern.is_number(a, number), pattern.is_number(b, number)) {
        (false, true) => Some(a),
        (true, false) => Some(b),
        _ => None,
    }
}

fn is_half_of(tensor: &str, input: &str, pattern: &Pattern<'_>) -> bool {
    factor(tensor, 0.5, pattern) == Some(input)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_models::{floats, model};

    fn fused(opset: i64, last: Vec<NodeProto>) -> bool {
        let start = [
            node("Div", "", &["x", "root"], &["q"]),
            node("Erf", "", &["q"], &["e"]),
            node("Add", "", &["e", "one"], &["s"]),
        ];
        let nodes = start.into_iter().chain(last).collect();
        let constants = vec![
            floats("root", &[], &[std::f32::consts::SQRT_2]),
            floats("one", &[], &[1.0]),
            floats("half", &[1], &[0.5]),
        ];
        let mut model = model(opset, nodes, constants, &["x"], &["y"]);
        run(&mut model, &Context::default()).unwrap() == 1 && model.graph.node.last().unwrap().op_type() == "Gelu"
    }

    #[test]
    fn gelu_is_fused_for_any_factor_order() {
        let mul = |a: &str, b: &str, c: &str| node("Mul", "", &[a, b], &[c]);
        assert!(fused(20, vec![mul("x", "s", "m"), mul("m", "half", "y")]));
        assert!(fused(20, vec![mul("s", "half", "m"), mul("x", "m", "y")]));
        assert!(fused(20, vec![mul("half", "x", "h"), mul("h", "s", "y")]));
        assert!(!fused(20, vec![mul("x", "s", "m"), mul("m", "one", "y")]));
        assert!(!fused(17, vec![mul("x", "s", "m"), mul("m", "half", "y")]));
    }
}
