//! The quantized model as algorithms see it: weights as dequantized floats, so that one can be replaced while
//! the rest stays; activations behind QuantizeLinear and DequantizeLinear. It is never written to a file.

use std::collections::BTreeMap;

use kvant_container::onnx::{Bytes, ModelProto, set_contents};

use super::Unlimited;
use super::layer::Grid;
use crate::error::QuantizeError;
use crate::graph::{Index, sort};
use crate::npu::simulate_hardware;
use crate::placement::{Placement, Weight};
use crate::recipe::{Boundary, Recipe};
use crate::shape::Types;
use crate::solution::{Solution, values};
use crate::writing::write_pairs;

/// A prepared model as algorithms that see activations work on it.
pub(crate) struct Tunable<'a> {
    /// The float model; biases are written to it.
    pub model: &'a mut ModelProto,
    pub recipe: &'a Recipe,
    pub placement: &'a Placement,
    pub types: &'a Types,
    /// The weights before clipping.
    pub unlimited: &'a Unlimited,
}

/// The grid of a weight of a shape; `None` where it has no integer codes.
pub(super) fn grid(name: &str, weight: &Weight, shape: &[usize], solution: &Solution) -> Option<Grid> {
    let parameters = solution.weights.get(name)?.clone();
    if let Some(map) = solution.blocks.get(name) {
        let element = map.1;
        return Some(Grid::in_blocks(element, element.full_range()?, map.0, parameters));
    }
    let codes = weight.method().used_codes()?;
    Some(Grid::new(weight.scheme.element, codes, shape, weight.axis, parameters))
}

/// The model, every integer weight at its nearest codes.
pub(super) fn simulation(prepared: &Tunable<'_>, solution: &Solution) -> Result<ModelProto, QuantizeError> {
    let mut model = prepared.model.clone();
    let rounded = rounded(&model, prepared.placement, solution)?;
    if let Some(graph) = model.graph.as_mut() {
        for tensor in &mut graph.initializer {
            if let Some(values) = rounded.get(tensor.name()) {
                set_contents(tensor, Bytes::copy_from_slice(bytemuck::cast_slice(values)));
            }
        }
    }
    let placement = without_integers(prepared.placement);
    if prepared.recipe.npu {
        simulate_hardware(&mut model, prepared.types, &placement);
    }
    let recipe = Recipe { boundary: Boundary::Pairs, ..prepared.recipe.clone() };
    write_pairs(&mut model, &recipe, &placement, solution, None)?;
    sorted(model)
}

/// The model with its nodes in an order in which they can run.
pub(super) fn sorted(mut model: ModelProto) -> Result<ModelProto, QuantizeError> {
    if let Some(graph) = model.graph.as_mut() {
        sort(graph)?;
    }
    Ok(model)
}

fn rounded(
    model: &ModelProto,
    placement: &Placement,
    solution: &Solution,
) -> Result<BTreeMap<String, Vec<f32>>, QuantizeError> {
    let graph = &model.graph;
    let index = Index::new(graph);
    let mut made = BTreeMap::new();
    for (name, weight) in placement.weights.iter().filter(|(_, w)| w.scheme.element.is_integer()) {
        let Some(tensor) = index.constant(graph, name) else { continue };
        let shape = kvant_container::onnx::shape(tensor)?;
        let Some(grid) = grid(name, weight, &shape, solution) else { continue };
        made.insert(name.clone(), grid.values(&grid.nearest(&values(tensor)?)));
    }
    Ok(made)
}

/// The rest to write: activations, each with its own parameters, and weights without codes.
fn without_integers(placement: &Placement) -> Placement {
    let mut left = placement.clone();
    left.weights.retain(|_, weight| !weight.scheme.element.is_integer());
    left.activations.values_mut().for_each(|activation| activation.provider = None);
    left.biases.clear();
    left.float_biases.clear();
    // They are superfluous before codes only.
    left.dropped.clear();
    left
}
