//! How much the errors of a layer's weights count where scales are searched: by the mean square of what each is multiplied by.

use std::collections::BTreeMap;

use kvant_container::onnx::{GraphProto, NodeProto};
use kvant_quant::observer::ObserverRef;

use super::channels::ChannelMap;
use super::target::weight_of;
use crate::graph::{Index, positional_input};
use crate::placement::Placement;

/// The tensors whose mean squares weigh the errors of searched weights, each with the axis of its channels.
pub(crate) fn weighed_inputs(graph: &GraphProto, placement: &Placement) -> BTreeMap<String, i64> {
    let index = Index::new(graph);
    let is_searched = |name: &str| {
        let weight = placement.weights.get(name);
        weight.is_some_and(|w| {
            w.scheme.method == ObserverRef::SEARCH && w.scheme.element.is_integer() && w.range.is_none()
        })
    };
    let input = |node: &NodeProto| {
        let weight = weight_of(node).filter(|name| is_searched(name))?;
        ChannelMap::inputs(node, &index.constant_shape(graph, weight)?)?;
        // What is constant or given to the graph as anything but floats has no values to observe.
        let input = positional_input(node, 0).filter(|name| index.constant(graph, name).is_none())?;
        Some((input.to_owned(), if node.op_type().starts_with("Conv") { 1 } else { -1 }))
    };
    graph.node.iter().filter_map(input).collect()
}

/// The importance of weights by the observed mean squares of their inputs.
pub(crate) struct Importance<'a> {
    index: Index,
    mean_squares: &'a BTreeMap<String, Vec<f32>>,
}

impl<'a> Importance<'a> {
    /// Of the weights of a graph.
    pub fn new(graph: &GraphProto, mean_squares: &'a BTreeMap<String, Vec<f32>>) -> Importance<'a> {
        Importance { index: Index::new(graph), mean_squares }
    }

    /// The importance of each element of a weight; `None` where it is not known, or several nodes read it.
    pub fn of(&self, graph: &GraphProto, weight: &str) -> Option<Vec<f32>> {
        let node = &graph.node[self.index.only_consumer(weight)?];
        let squares = self.mean_squares.get(positional_input(node, 0)?)?;
        let shape = self.index.constant_shape(graph, weight_of(node).filter(|name| *name == weight)?)?;
        let map = ChannelMap::inputs(node, &shape).filter(|map| map.channels == squares.len())?;
        // Channels that were always zero are not searched for as if they did not matter at all.
        let least = squares.iter().fold(0f32, |most, square| most.max(*square)) * LEAST;
        let of = |element: usize| squares[map.channel(element)].max(least);
        (least > 0.0).then(|| (0..shape.iter().product()).map(of).collect())
    }
}

/// The least importance of a channel, as a share of that of the largest.
const LEAST: f32 = 1e-6;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::node;
    use crate::preset::Preset;
    use crate::quantize::prepare;
    use crate::recipe::Recipe;
    use crate::test_models::{floats, model, typed};

    #[test]
    fn elements_count_as_the_squares_of_their_input_channels() {
        let weight = floats("w", &[2, 3], &[1.0, -0.5, 0.25, 0.1, 0.2, 0.3]);
        let mut float = model(17, vec![node("MatMul", "product", &["x", "w"], &["y"])], vec![weight], &[], &["y"]);
        float.graph.as_mut().unwrap().input = vec![typed("x", &[4, 2])];
        let preset = Preset::find("WEIGHTS_INT8").unwrap().recipe();
        let with = |method| {
            let recipe = Recipe { weight: crate::recipe::TensorScheme { method, ..preset.weight }, ..preset.clone() };
            let passes = recipe.passes();
            prepare(float.clone(), recipe, &passes, None).unwrap()
        };
        let (searched, plain) = (with(ObserverRef::SEARCH), with(ObserverRef::MIN_MAX));
        assert_eq!((searched.needs_data(), searched.has_use_for_data()), (false, true));
        assert_eq!((plain.needs_data(), plain.has_use_for_data()), (false, false));
        let mut observation = searched.observation();
        observation.see("x", &[2, 2], &[1.0, 2.0, -1.0, 0.0]);
        let squares = observation.observed().mean_squares;
        let graph = &searched.model.graph;
        assert_eq!(Importance::new(graph, &squares).of(graph, "w").unwrap(), [1.0, 1.0, 1.0, 2.0, 2.0, 2.0]);
        assert_eq!(Importance::new(graph, &BTreeMap::new()).of(graph, "w"), None);
    }
}
