//! ReduceMean over height and width of four dimensions, which keeps them, becomes GlobalAveragePool.

use kvant_container::onnx::{DataType, ModelProto};

use super::{Context, PassError};
use crate::constant::Value;
use crate::graph::{Edit, Index, int_attribute, ints_attribute, is, node, positional_input};
use crate::shape::infer;

pub(super) fn run(model: &mut ModelProto, _: &Context<'_>) -> Result<usize, PassError> {
    let types = infer(model);
    let Some(graph) = model.graph.as_mut() else { return Ok(0) };
    let index = Index::new(graph);
    let mut edit = Edit::default();
    for (position, mean) in graph.node.iter().enumerate().filter(|(_, node)| is(node, "ReduceMean")) {
        let by_input = || Value::of_tensor(index.constant(graph, positional_input(mean, 1)?)?)?.as_integers();
        let axes = ints_attribute(mean, "axes").map(<[i64]>::to_vec).or_else(by_input).unwrap_or_default();
        let mut axes: Vec<i64> = axes.iter().map(|a| a.rem_euclid(4)).collect();
        axes.sort_unstable();
        // Pools have no integers.
        let is_float =
            matches!(types.data_type(&mean.input[0]), Some(DataType::FLOAT | DataType::FLOAT16 | DataType::DOUBLE));
        let keeps = int_attribute(mean, "keepdims").unwrap_or(1) != 0;
        if axes == [2, 3] && keeps && is_float && types.rank(&mean.input[0]) == Some(4) {
            let pool = node("GlobalAveragePool", mean.name(), &[&mean.input[0]], &[&mean.output[0]]);
            edit.replace(position, vec![pool]);
        }
    }
    Ok(edit.apply(graph))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::set_attribute;
    use crate::test_models::{integers, model, typed};

    fn pooled(axes: &[i64], shape: &[usize], keep: i64, as_input: bool) -> bool {
        let mut mean = node("ReduceMean", "m", if as_input { &["x", "axes"] } else { &["x"] }, &["y"]);
        set_attribute(&mut mean, "keepdims", keep);
        if !as_input {
            set_attribute(&mut mean, "axes", axes);
        }
        let mut model = model(18, vec![mean], vec![integers("axes", axes)], &[], &["y"]);
        model.graph.as_mut().unwrap().input = vec![typed("x", shape)];
        run(&mut model, &Context::default()).unwrap() == 1
    }

    #[test]
    fn only_spatial_means_become_pools() {
        assert!(pooled(&[2, 3], &[1, 3, 4, 4], 1, false));
        assert!(pooled(&[-1, -2], &[1, 3, 4, 4], 1, true));
        assert!(!pooled(&[2, 3], &[1, 3, 4, 4], 0, false));
        assert!(!pooled(&[2, 3], &[1, 3, 4, 4, 5], 1, false));
        assert!(!pooled(&[1, 2], &[1, 3, 4, 4], 1, false));
    }
}
