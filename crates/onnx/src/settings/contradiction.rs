//! What cannot be had together: options that would leave each other without effect are refused. Not what a type or an operator
//! has no place in a given graph for: that is found when the graph is known.

use super::{PairLayout, Settings, SettingsError};
use crate::recipe::{Boundary, Form, Recipe};

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
    let (layout, boundary) = ("layout qoperator", "boundary integer");
    let rules = [
        (
            operators && settings.form == Some(Form::Quark),
            layout,
            "form quark".to_owned(),
            "integer operators are those of the standard and of Microsoft",
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
    match rules.into_iter().find(|(holds, ..)| *holds) {
        Some((_, one, other, because)) => Err(SettingsError::Contradiction { one, other, because }),
        None => Ok(()),
    }
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
    fn options_without_effect_on_each_other_are_refused() {
        let operators = || Settings { layout: Some(PairLayout::Qoperator), ..Settings::default() };
        let ends = || Settings { boundary: Some(Boundary::Integer), ..Settings::default() };
        assert_eq!(refused("A8W8", operators()), None);
        assert_eq!(refused("A8W8", ends()), None);
        assert_eq!(refused("A16W8", ends()), None);
        let cases = [
            (refused("A8W8", Settings { form: Some(Form::Quark), ..operators() }), "form quark"),
            (refused("A8W8", Settings { activation: Some(Element::UInt16), ..operators() }), "uint16 activations"),
            (refused("A8W8", Settings { weight: Some(Element::Int4), ..operators() }), "int4 weights"),
            (refused("A8W8", Settings { weights_only: Some(true), ..operators() }), "float activations"),
            (refused("A8W8", Settings { activation: Some(Element::BFloat16), ..ends() }), "bfloat16 activations"),
        ];
        for (problem, other) in cases {
            assert!(problem.as_ref().is_some_and(|problem| problem.contains(other)), "{other}: {problem:?}");
        }
    }
}
