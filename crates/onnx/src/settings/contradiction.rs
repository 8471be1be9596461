//! What cannot be had together: options that would leave each other without effect are refused. Not what a type or an operator
//! has no place in a given graph for: that is found when the graph is known.

use super::{PairLayout, Settings, SettingsError};
use crate::recipe::{Boundary, Form, Layout, Recipe};
use kvant_quant::observer::ObserverRef;

/// Refuses settings that contradict each other or the preset.
///
/// # Errors
/// Names both sides.
pub(super) fn refuse(settings: &Settings, recipe: &Recipe) -> Result<(), SettingsError> {
    let activation = recipe.activation.map(|scheme| scheme.element);
    let spelled = activation.map_or_else(|| "float".to_owned(), |element| element.to_string());
    let bytes = |bits: Option<u32>| bits == Some(8);
    let operators = settings.layout == Some(PairLayout::Qoperator);
    let integer_ends = settings.boundary == Some(Boundary::Integer);
    let (layout, boundary) = ("‹graph-format› qoperator", "‹io-dtype› integer");
    let rules = [
        (
            operators && settings.form == Some(Form::Quark),
            layout,
            "‹op-domain› quark".to_owned(),
            "integer operators are the standard and the Microsoft ones",
        ),
        (
            operators && !bytes(activation.and_then(|element| element.integer_bits())),
            layout,
            format!("{spelled} activations"),
            "integer operators compute on 8-bit activations",
        ),
        (
            operators && !bytes(recipe.weight.element.integer_bits()),
            layout,
            format!("{} weights", recipe.weight.element),
            "integer operators take 8-bit weights",
        ),
        (
            integer_ends && !activation.is_some_and(|element| element.is_integer()),
            boundary,
            format!("{spelled} activations"),
            "inputs and outputs have the type of activations",
        ),
    ];
    idle_percentile(settings, recipe)?;
    idle_types(settings, recipe)?;
    match rules.into_iter().find(|(holds, ..)| *holds) {
        Some((_, one, other, because)) => Err(SettingsError::Contradiction { one, other, because }),
        None => Ok(()),
    }
}

/// Refuses what is said of codes that no tensor has.
fn idle_types(settings: &Settings, recipe: &Recipe) -> Result<(), SettingsError> {
    let preset = || format!("‹preset› {}", settings.preset.as_deref().unwrap_or_default());
    let of_weights = [
        (settings.weight.is_some(), "‹weight›"),
        (settings.per_channel == Some(true), "‹per-channel›"),
        (settings.reduce_range == Some(true), "‹reduce-range›"),
        (settings.weight_method.is_some(), "‹weight-method›"),
        (settings.bias.is_some(), "‹bias›"),
    ];
    let of_activations = [
        (settings.activation.is_some(), "‹activation›"),
        (settings.symmetric.is_some(), "‹symmetric›"),
        (settings.per_channel_activations == Some(true), "‹per-channel-activations›"),
        (settings.calibration_method.is_some(), "‹calibration-method›"),
        (settings.ranges.is_some(), "‹ranges›"),
    ];
    let refused = |one, other, because| Err(SettingsError::Contradiction { one, other, because });
    let first = |given: &[(bool, &'static str)]| given.iter().find(|(is_given, _)| *is_given).map(|(_, one)| *one);
    if let (Layout::Float(_), Some(one)) = (recipe.layout, first(&of_activations).or_else(|| first(&of_weights))) {
        return refused(one, preset(), "all floats of the model become 16-bit ones, and nothing has codes");
    }
    let of_tensors = recipe.overrides.iter().any(|said| !said.of_layers);
    if matches!(recipe.layout, Layout::Float(_)) && of_tensors {
        return refused(
            "‹override› of a tensor",
            preset(),
            "nodes are converted or left out, ‹exclude› NODE, not single tensors",
        );
    }
    if let (None, Some(one)) = (recipe.activation, first(&of_activations)) {
        let other = if settings.weights_only == Some(true) { "‹weights-only›".to_owned() } else { preset() };
        return refused(one, other, "activations stay in float");
    }
    let of_static =
        [(settings.calibration_method.is_some(), "‹calibration-method›"), (settings.ranges.is_some(), "‹ranges›")];
    if let (Layout::Dynamic, Some(one)) = (recipe.layout, first(&of_static)) {
        return refused(one, preset(), "activations are quantized as they come, by what they are then");
    }
    let activation = recipe.activation.map(|scheme| scheme.element).filter(|element| !element.has_range());
    if let Some(element) = activation.filter(|_| settings.ranges.is_some()) {
        return refused("‹ranges›", format!("{element} activations"), "their codes do not depend on a range");
    }
    Ok(())
}

/// Refuses a percentile that no tensor's range is found by.
fn idle_percentile(settings: &Settings, recipe: &Recipe) -> Result<(), SettingsError> {
    let reads = ObserverRef::reads_percentile;
    let activation = recipe.activation.map(|scheme| scheme.method);
    let products = recipe.products.iter().flat_map(|products| [products.activation.method, products.weight.method]);
    let overridden = recipe.overrides.iter().filter_map(|said| said.method);
    let mut methods = activation.into_iter().chain([recipe.weight.method]).chain(products).chain(overridden);
    if settings.percentile.is_none() || methods.any(reads) {
        return Ok(());
    }
    let other = match activation {
        Some(method) => format!("‹calibration-method› {method}"),
        None => "float activations".to_owned(),
    };
    let because = "only the methods percentile and auto read it";
    Err(SettingsError::Contradiction { one: "‹percentile›", other, because })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::element::Element;

    fn refused(preset: &str, settings: Settings) -> Option<String> {
        let settings = Settings { preset: Some(preset.to_owned()), ..settings };
        settings.resolve().err().map(|error| error.to_string())
    }

    #[test]
    fn ineffective_option_combinations_are_refused() {
        let operators = || Settings { layout: Some(PairLayout::Qoperator), ..Settings::default() };
        let ends = || Settings { boundary: Some(Boundary::Integer), ..Settings::default() };
        assert_eq!(refused("A8W8", operators()), None);
        assert_eq!(refused("A8W8", ends()), None);
        assert_eq!(refused("A16W8", ends()), None);
        assert_eq!(refused("A8W8", Settings { percentile: Some(99.0), ..Settings::default() }), None);
        let int8 = || Settings { activation: Some(Element::Int8), ..Settings::default() };
        let mse = || Settings { calibration_method: Some(ObserverRef::MSE), ..Settings::default() };
        let wide = || Settings { weight: Some(Element::Int8), ..Settings::default() };
        assert_eq!(refused("MATMUL_NBITS", wide()), None);
        assert_eq!(refused("A8W8", Settings { weights_only: Some(true), ..wide() }), None);
        let cases = [
            (refused("MATMUL_NBITS", int8()), "‹activation› and ‹preset› MATMUL_NBITS"),
            (refused("A8W8", Settings { weights_only: Some(true), ..int8() }), "‹activation› and ‹weights-only›"),
            (refused("FP16_MODEL", wide()), "‹weight› and ‹preset› FP16_MODEL"),
            (refused("FP16_MODEL", mse()), "‹calibration-method› and ‹preset› FP16_MODEL"),
            (refused("WEIGHTS_INT8", mse()), "‹calibration-method› and ‹preset› WEIGHTS_INT8"),
            (refused("UINT8_DYNAMIC_QUANT", mse()), "‹calibration-method› and ‹preset› UINT8_DYNAMIC_QUANT"),
            (refused("A8W8", Settings { form: Some(Form::Quark), ..operators() }), "‹op-domain› quark"),
            (refused("A8W8", Settings { activation: Some(Element::UInt16), ..operators() }), "uint16 activations"),
            (refused("A8W8", Settings { weight: Some(Element::Int4), ..operators() }), "int4 weights"),
            (refused("A8W8", Settings { weights_only: Some(true), ..operators() }), "float activations"),
            (refused("A8W8", Settings { activation: Some(Element::BFloat16), ..ends() }), "bfloat16 activations"),
            (
                refused("XINT8", Settings { percentile: Some(99.0), ..Settings::default() }),
                "‹percentile› and ‹calibration-method› mse",
            ),
        ];
        for (problem, other) in cases {
            assert!(problem.as_ref().is_some_and(|problem| problem.contains(other)), "{other}: {problem:?}");
        }
    }
}
