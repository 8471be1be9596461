//! Options most likely to improve a quantized model: those that its recipe could use but does not, the cheapest first.

use std::borrow::Cow;

use kvant_container::onnx::{ModelProto, Spill};
use serde::Serialize;

use crate::algorithm::{self, Equalization, equalize};
use crate::element::Element;
use crate::recipe::{Layout, Recipe};

/// Options that are named at most: the dearer ones come after these were tried.
const MOST: usize = 3;

/// An option that may help.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Remedy {
    /// As it is typed.
    pub option: Cow<'static, str>,
    /// Its effect.
    pub about: &'static str,
}

/// Losses other than rounding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss<'a> {
    /// Nothing.
    None,
    /// Sums of products with int8 weights saturate on this processor.
    Saturation,
    /// The error of ONNX Runtime, which does not run the model.
    Run(&'a str),
}

const fn remedy(option: &'static str, about: &'static str) -> Remedy {
    Remedy { option: Cow::Borrowed(option), about }
}

/// Remedies for saturating sums, in measured order: others do not help.
const OF_SATURATION: &[(Remedy, Applies)] = &[
    (remedy("‹reduce-range›", "half of the codes for weights: sums do not saturate"), |recipe, _, _| {
        recipe.weight.element == Element::Int8 && !recipe.weight.reduce_range
    }),
    (remedy("‹weight› uint8", "weights of a type whose sums do not saturate"), |recipe, _, _| {
        recipe.weight.element == Element::Int8 && !recipe.npu && recipe.products.is_none()
    }),
];

/// Whether a recipe can still use a remedy.
type Applies = fn(&Recipe, &ModelProto, Option<&Spill>) -> bool;

/// In order of cost.
const REMEDIES: &[(Remedy, Applies)] = &[
    (
        remedy("‹cle›", "scales channels of consecutive layers so that both use their range"),
        |recipe, float, spill| takes(recipe, "cle") && has_pairs(float, spill),
    ),
    (remedy("‹per-channel›", "a scale for each output channel of a weight"), |recipe, _, _| {
        let layout = !matches!(recipe.layout, Layout::MatMulNBits { .. } | Layout::Float(_));
        layout && !recipe.npu && !recipe.weight.per_channel && recipe.weight.element.is_integer()
    }),
    (remedy("‹calibration-method› auto", "the method that loses least, for each tensor"), |recipe, _, _| {
        let observed = recipe.activation.filter(|_| recipe.needs_data());
        observed.is_some_and(|activation| activation.method.name() != "auto")
    }),
    (remedy("‹algorithm› bias-correction", "biases that make up for the mean error of a layer"), |recipe, _, _| {
        takes(recipe, "bias-correction")
    }),
    (
        remedy("‹algorithm› adaround", "trains whether each weight is rounded up or down; minutes"),
        |recipe, _, _| takes(recipe, "adaround"),
    ),
    (
        remedy(
            "kvant sensitivity ‹target-sqnr› DB ‹output› mixed.toml",
            "finds the layers that need more bits, and writes a recipe of mixed types",
        ),
        |recipe, _, _| matches!(recipe.layout, Layout::Qdq | Layout::QOperator) && recipe.needs_data(),
    ),
];

/// The cheapest options that a recipe does not use yet and that the model, simplified and in float, has something for. What is lost
/// otherwise comes first.
pub fn remedies(recipe: &Recipe, float: &ModelProto, spill: Option<&Spill>, loss: Loss<'_>) -> Vec<Remedy> {
    let applies = |(_, applies): &&(Remedy, Applies)| applies(recipe, float, spill);
    let first = match loss {
        // Nothing else makes it run.
        Loss::Run(problem) => return kept(float, problem).into_iter().collect(),
        Loss::Saturation => OF_SATURATION,
        Loss::None => &[],
    };
    first.iter().chain(REMEDIES).filter(applies).take(MOST).map(|(remedy, _)| remedy.clone()).collect()
}

/// Keeps in float what a node makes that ONNX Runtime does not run, if it names one of the model's.
fn kept(float: &ModelProto, problem: &str) -> Option<Remedy> {
    let named = |name: &str| !name.is_empty() && problem.contains(&format!("Name:'{name}'"));
    let node = float.graph.node.iter().find(|node| named(node.name()))?;
    let tensor = node.output.first()?;
    let option = Cow::Owned(format!("‹override› '{tensor}=keep'"));
    Some(Remedy { option, about: "keeps in float what the kernel refuses to make" })
}

/// Returns whether an algorithm can be added to a recipe.
fn takes(recipe: &Recipe, name: &str) -> bool {
    let Some(algorithm) = algorithm::named(name) else { return false };
    let mut more = recipe.clone();
    let quantized = recipe.activation.is_some_and(|activation| activation.element.is_integer());
    quantized && more.algorithms.add_new(algorithm.default.clone()).is_ok() && algorithm::check(&more).is_ok()
}

/// Returns whether there are layers to equalize.
fn has_pairs(float: &ModelProto, spill: Option<&Spill>) -> bool {
    equalize(&mut float.clone(), Equalization::DEFAULTS, spill).is_ok_and(|pairs| !pairs.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::node;
    use crate::preset::Preset;
    use crate::test_models::{floats, model};

    fn options(preset: &str, nodes: &[&str]) -> Vec<String> {
        options_of(preset, nodes, Loss::None)
    }

    fn options_of(preset: &str, nodes: &[&str], loss: Loss<'_>) -> Vec<String> {
        let mut input = "x".to_owned();
        let nodes = nodes.iter().enumerate().map(|(at, op)| {
            let output = format!("t{at}");
            let weight = if *op == "Conv" { vec![input.as_str(), "w"] } else { vec![input.as_str()] };
            let made = node(op, &output, &weight, &[&output]);
            input = output;
            made
        });
        let nodes: Vec<_> = nodes.collect();
        let weights = vec![floats("w", &[2, 2, 1, 1], &[1.0, 8.0, 0.1, 2.0])];
        let mut model = model(17, nodes, weights, &["x"], &[&input]);
        // Layers that share a weight are none that could be scaled apart.
        let graph = model.graph.as_mut().unwrap();
        for (at, node) in graph.node.iter_mut().enumerate().filter(|(_, node)| node.op_type() == "Conv") {
            let own = format!("w{at}");
            graph.initializer.push(floats(&own, &[2, 2, 1, 1], &[1.0, 8.0, 0.1, 2.0]));
            node.input[1] = own;
        }
        let recipe = Preset::resolve(preset).unwrap().unwrap();
        remedies(&recipe, &model, None, loss).into_iter().map(|remedy| remedy.option.into_owned()).collect()
    }

    #[test]
    fn remedies_for_the_actual_loss_come_first() {
        let saturated = |preset: &str| options_of(preset, &["Conv"], Loss::Saturation);
        assert_eq!(saturated("A8W8"), ["‹reduce-range›", "‹weight› uint8", "‹per-channel›"]);
        assert_eq!(saturated("U8U8_AAWA")[0], "‹per-channel›");
        let failed = |problem: &str| options_of("A8W8", &["Conv", "Relu"], Loss::Run(problem));
        assert_eq!(failed("node. Name:'t1' Status Message: out of range!"), ["‹override› 't1=keep'"]);
        assert_eq!(failed("who knows"), [""; 0]);
    }

    #[test]
    fn cheapest_unused_remedies_are_named() {
        const PAIR: &[&str] = &["Conv", "Relu", "Conv"];
        assert_eq!(options("A8W8", PAIR), ["‹cle›", "‹per-channel›", "‹calibration-method› auto"]);
        assert_eq!(
            options("A8W8_CLE", PAIR),
            ["‹per-channel›", "‹calibration-method› auto", "‹algorithm› bias-correction"]
        );
        assert_eq!(options("A8W8", &["Conv"])[0], "‹per-channel›");
        assert_eq!(options("WEIGHTS_INT8", PAIR), [""; 0]);
        assert_eq!(options("INT8_DYNAMIC_QUANT", PAIR), ["‹cle›"]);
        assert!(options("A8W4_CLE_ADAROUND", PAIR).contains(&"‹algorithm› bias-correction".to_owned()));
    }
}
