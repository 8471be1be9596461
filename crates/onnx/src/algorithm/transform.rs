//! The algorithms that change the float model before anything is observed, and whether a recipe's algorithms can be run at all.

use kvant_container::onnx::{DataType, ModelProto, Spill, TensorProto, shape, tensor};
use kvant_quant::transform::AnyTransform;

use super::cross_layer_equalization::{EqualizedPair, equalize};
use super::data::Data;
use super::rotate::{Rotations, rotate};
use super::scaling::{self, Subject, TransformedByData, reckons_with_codes};
use super::target::{channels, weight_of};
use super::{Algorithm, ClipRule, Equalization, Stage};
use crate::error::AlgorithmError;
use crate::error::QuantizeError;
use crate::graph::{Index, Names, is, positional_input};
use crate::placement::Placement;
use crate::recipe::{Layout, Recipe};
use crate::shape::Types;

/// Refuses algorithms whose results the recipe's layout cannot express, and those without codes to choose.
pub(crate) fn check(recipe: &Recipe) -> Result<(), AlgorithmError> {
    let is_codes = recipe.weight.element.is_integer();
    let refused = |algorithm: &Algorithm, reason| {
        Err(AlgorithmError::NotInLayout { algorithm: algorithm.name().to_owned(), reason })
    };
    let chooses = |algorithm: &&Algorithm| algorithm.stage() >= Stage::Rounding || searches(algorithm);
    if let Some(first) = recipe.algorithms.iter().find(chooses).filter(|_| !is_codes) {
        return refused(first, "it is for weights of integers, and these are none");
    }
    let beside = |algorithm: &&Algorithm| matches!(algorithm, Algorithm::BiasCorrection(_)) || searches(algorithm);
    let searches_zeros = recipe.algorithms.iter().any(|algorithm| algorithm.hqq().is_some());
    if let Some(first) = recipe.algorithms.iter().find(beside).filter(|_| searches_zeros) {
        return refused(first, "it would reckon with other codes than those that hqq finds at the end");
    }
    let reason = match recipe.layout {
        Layout::MatMulNBits { .. } => return Ok(()),
        Layout::Qdq | Layout::QOperator => "only MatMulNBits has zero points between codes",
        Layout::Dynamic => "activations are quantized as they come, not by stored scales",
        Layout::Float(_) => "there are no codes",
    };
    let lost = |algorithm: &&Algorithm| match recipe.layout {
        Layout::MatMulNBits { .. } => false,
        Layout::Qdq | Layout::QOperator => algorithm.hqq().is_some(),
        Layout::Dynamic => algorithm.stage() >= Stage::Rounding,
        Layout::Float(_) => true,
    };
    recipe.algorithms.iter().find(lost).map_or(Ok(()), |late| refused(late, reason))
}

/// Returns whether it is a transform that reckons with rounded weights.
fn searches(algorithm: &Algorithm) -> bool {
    matches!(algorithm, Algorithm::Transform(transform) if reckons_with_codes(&**transform))
}

/// The changes of the float model without data.
#[derive(Debug, Clone, Default)]
pub(crate) struct Transformed {
    /// Pairs of layers that were equalized.
    pub equalized: Vec<EqualizedPair>,
    /// Streams that were rotated, and those that were not.
    pub rotations: Rotations,
}

/// Changes the float model.
pub(crate) fn transform(
    model: &mut ModelProto,
    recipe: &Recipe,
    spill: Option<&Spill>,
) -> Result<Transformed, QuantizeError> {
    let mut done = Transformed::default();
    for algorithm in recipe.algorithms.iter() {
        match algorithm {
            Algorithm::Equalization(settings) => {
                // An NPU has no Min for a bound of each channel.
                let clip = if recipe.npu { ClipRule::Keep } else { settings.clip };
                done.equalized.extend(equalize(model, Equalization { clip, ..*settings }, spill)?);
            }
            Algorithm::Rotate(settings) => done.rotations = rotate(model, *settings, spill)?,
            _ => {}
        }
    }
    if recipe.algorithms.iter().any(Algorithm::needs_biases) {
        add_biases(model);
    }
    Ok(done)
}

/// Changes the float model based on data, for the tensors that a placement quantizes. As on checkpoints, one transform follows the
/// other, and weights are limited once all scales are found, as the first that asks for it says.
pub(crate) fn transform_with_data(
    model: &mut ModelProto,
    (recipe, placement): (&Recipe, &Placement),
    types: &Types,
    data: &mut Data<'_>,
    spill: Option<&Spill>,
) -> Result<TransformedByData, QuantizeError> {
    let mut done = TransformedByData::default();
    let transforms: Vec<&AnyTransform> = recipe.algorithms.transforms().collect();
    let clip = transforms.iter().find_map(|transform| transform.clip());
    for (index, transform) in transforms.iter().enumerate() {
        let clip = clip.filter(|_| index + 1 == transforms.len());
        let made = scaling::run(&***transform, clip, model, &Subject { recipe, types, placement }, data, spill)?;
        done.scaled_inputs.extend(made.scaled_inputs);
        done.not_scaled.extend(made.not_scaled);
        (done.limited_weights, done.unlimited) = (made.limited_weights, made.unlimited);
    }
    Ok(done)
}

/// Adds a bias of zeros to layers that could have one.
fn add_biases(model: &mut ModelProto) {
    let Some(graph) = model.graph.as_mut() else { return };
    let (index, mut names) = (Index::new(graph), Names::of(graph));
    let missing = |node: &&kvant_container::onnx::NodeProto| !is(node, "MatMul") && positional_input(node, 2).is_none();
    let zeros: Vec<Option<TensorProto>> = graph
        .node
        .iter()
        .map(|node| {
            let weight = index.constant(graph, weight_of(node).filter(|_| missing(&node))?)?;
            let count = channels(node, &shape(weight).ok()?)?;
            let float = kvant_container::onnx::data_type(weight) == DataType::FLOAT;
            let output = node.output.first().filter(|_| float)?;
            let name = names.fresh(&format!("{output}_bias"));
            Some(tensor(&name, DataType::FLOAT, &[count], vec![0u8; count * 4]))
        })
        .collect();
    for (node, zeros) in graph.node.iter_mut().zip(zeros) {
        let Some(zeros) = zeros else { continue };
        node.input.truncate(2);
        node.input.push(zeros.name().to_owned());
        graph.initializer.push(zeros);
    }
}
