//! The nodes of a normalization over the last axes become LayerNormalization, which opset 17 brought.

use kvant_container::onnx::ModelProto;

use super::normalized::{Normalized, trailing};
use super::pattern::Pattern;
use super::{Context, PassError};
use crate::graph::{self, Edit, STANDARD_DOMAIN, is, node, set_attribute};
use crate::shape::{Types, infer};

/// The opset that brought LayerNormalization.
pub(super) const OPSET: i64 = 17;

pub(super) fn run(model: &mut ModelProto, _: &Context<'_>) -> Result<usize, PassError> {
    if graph::opset(model, STANDARD_DOMAIN).unwrap_or_default() < OPSET {
        return Ok(0);
    }
    let types = infer(model);
    let Some(graph) = model.graph.as_mut() else { return Ok(0) };
    let pattern = Pattern::new(graph);
    let mut edit = Edit::default();
    for (found, axis) in normalizations(&pattern, &types) {
        let last = &graph.node[found.last];
        let inputs: Vec<&str> = [found.input, found.scale].into_iter().chain(found.bias).collect();
        let mut fused = node("LayerNormalization", last.name(), &inputs, &[&last.output[0]]);
        set_attribute(&mut fused, "axis", axis);
        set_attribute(&mut fused, "epsilon", found.epsilon);
        edit.replace(found.last, vec![fused]);
    }
    Ok(edit.apply(graph))
}

/// Whether there is something to fuse, if the opset were high enough.
pub(super) fn is_needed(model: &ModelProto) -> bool {
    let Some(graph) = model.graph.as_ref() else { return false };
    graph.node.iter().any(|node| is(node, "Sqrt"))
        && normalizations(&Pattern::new(graph), &infer(model)).next().is_some()
}

/// The normalizations over last axes, each with the first of them.
fn normalizations<'p, 'g>(
    pattern: &'p Pattern<'g>,
    types: &'p Types,
) -> impl Iterator<Item = (Normalized<'g>, i64)> + use<'p, 'g> {
    let found = pattern.graph.node.iter().filter_map(|node| Normalized::around(node, pattern));
    found.filter_map(|found| axis(&found, pattern, types).map(|axis| (found, axis)))
}

/// The first normalized axis, counted from the end, if scale and bias have exactly the shape behind it.
fn axis(found: &Normalized<'_>, pattern: &Pattern<'_>, types: &Types) -> Option<i64> {
    let dims = types.get(found.input)?.shape.as_ref()?;
    let first = trailing(&found.axes, dims.len())?;
    let normalized: Option<Vec<usize>> = dims[first..].iter().map(|dim| dim.known()).collect();
    let fits = |name: &str| pattern.value(name).is_some_and(|value| Some(value.shape()) == normalized.as_deref());
    let all = fits(found.scale) && found.bias.is_none_or(fits);
    all.then_some(first as i64 - dims.len() as i64)
}

#[cfg(test)]
pub(super) mod tests {
    use kvant_container::onnx::{NodeProto, TensorProto};

    use super::*;
    use crate::test_models::{floats, model, typed};

    /// The nodes of a normalization over axes, and its constants for so many numbers.
    pub(crate) fn decomposed(axes: &[i64], shape: &[usize]) -> (Vec<NodeProto>, Vec<TensorProto>) {
        let mean = |name: &str, input: &str| {
            let mut mean = node("ReduceMean", name, &[input], &[name]);
            set_attribute(&mut mean, "axes", axes);
            mean
        };
        let nodes = vec![
            mean("mean", "x"),
            node("Sub", "d", &["x", "mean"], &["d"]),
            node("Pow", "sq", &["d", "two"], &["sq"]),
            mean("var", "sq"),
            node("Add", "ve", &["var", "eps"], &["ve"]),
            node("Sqrt", "std", &["ve"], &["std"]),
            node("Div", "n", &["d", "std"], &["n"]),
            node("Mul", "m", &["n", "scale"], &["m"]),
            node("Add", "y", &["m", "bias"], &["y"]),
        ];
        let ones = vec![1.0; shape.iter().product()];
        let constants = vec![
            floats("two", &[], &[2.0]),
            floats("eps", &[], &[1e-5]),
            floats("scale", shape, &ones),
            floats("bias", shape, &ones),
        ];
        (nodes, constants)
    }

    fn fused(opset: i64, axes: &[i64], shape: &[usize]) -> Option<NodeProto> {
        let (nodes, constants) = decomposed(axes, shape);
        let mut model = model(opset, nodes, constants, &[], &["y"]);
        model.graph.as_mut().unwrap().input = vec![typed("x", &[2, 3, 4])];
        let count = run(&mut model, &Context::default()).unwrap();
        (count == 1).then(|| model.graph.node.last().cloned()).flatten()
    }

    #[test]
    fn means_over_the_last_axes_become_a_layer_norm() {
        let made = fused(17, &[-1], &[4]).unwrap();
        assert_eq!(
            (made.op_type(), &made.input[..]),
            ("LayerNormalization", &["x", "scale", "bias"].map(str::to_owned)[..])
        );
        assert_eq!(graph::int_attribute(&made, "axis"), Some(-1));
        assert_eq!(fused(17, &[2, 1], &[3, 4]).and_then(|n| graph::int_attribute(&n, "axis")), Some(-2));
    }

    #[test]
    fn other_axes_shapes_and_opsets_are_not_fused() {
        assert!(fused(16, &[-1], &[4]).is_none());
        assert!(fused(17, &[1], &[3]).is_none());
        assert!(fused(17, &[-1], &[1]).is_none());
    }
}
