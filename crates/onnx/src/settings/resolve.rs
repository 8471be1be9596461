//! From settings to the recipe that a preset and they make together.

use super::{PairLayout, Settings, SettingsError, contradiction, override_text, scheme};
use crate::algorithm_settings::Algorithms;
use crate::pass;
use crate::preset::Preset;
use crate::quantization::ScaleKind;
use crate::recipe::{Layout, NodeRule, Override, Recipe, Selection, TensorScheme};
use kvant_quant::glob::Glob;
use kvant_quant::observer::ObserverRef;

/// The meaning of settings.
#[derive(Debug, Clone)]
pub struct Resolved {
    /// The request for a run.
    pub recipe: Recipe,
    /// The passes that suit it, with what the settings switch.
    pub passes: pass::Selection,
}

impl Settings {
    /// The recipe, and the passes that run before it.
    ///
    /// Errors: no preset or an unknown one, an override or subgraph that is not understood, an unknown pass.
    pub fn resolve(&self) -> Result<Resolved, SettingsError> {
        let name = self.preset.as_deref().ok_or(SettingsError::NoPreset)?;
        let unknown = || SettingsError::UnknownPreset { name: name.to_owned() };
        let mut recipe = match Preset::resolve(name)? {
            Some(recipe) => recipe,
            None => scheme::recipe(name)?.ok_or_else(unknown)?,
        };
        let is = |flag: Option<bool>| flag.unwrap_or(false);
        // What is said later wins over what was said before.
        for list in &self.algorithm {
            recipe.algorithms.extend(&Algorithms::of_list(&[list])?)?;
        }
        recipe.percentile = self.percentile.unwrap_or(recipe.percentile);
        recipe.activation = recipe.activation.filter(|_| !is(self.weights_only)).map(|scheme| self.activation(scheme));
        recipe.weight = self.weight(recipe.weight);
        recipe.bias = self.bias.unwrap_or(recipe.bias);
        recipe.form = self.form.unwrap_or(recipe.form);
        recipe.boundary = self.boundary.unwrap_or(recipe.boundary);
        recipe.layout = match self.layout {
            Some(PairLayout::Qdq) => Layout::Qdq,
            Some(PairLayout::Qoperator) => Layout::QOperator,
            None => recipe.layout,
        };
        let rules: Vec<Override> = self.overrides.iter().map(override_text::resolve).collect::<Result<_, _>>()?;
        recipe.selection = self.selection(recipe.selection, &rules)?;
        // Layers that are kept are nodes that are excluded.
        recipe.overrides = rules.into_iter().filter(|rule| !(rule.of_layers && rule.float)).collect();
        recipe.ranges.clone_from(&self.ranges);
        recipe.notes.clone_from(&self.notes);
        recipe.drop_activations &= recipe.activation.is_some_and(|a| !a.symmetric);
        contradiction::refuse(self, &recipe)?;
        let passes = self.passes(&recipe)?;
        Ok(Resolved { recipe, passes })
    }

    fn activation(&self, scheme: TensorScheme) -> TensorScheme {
        let element = self.activation.unwrap_or(scheme.element);
        let changed = element.is_signed() != scheme.element.is_signed();
        // Unsigned codes are for values on one side of zero: without a word on it they are asymmetric.
        let symmetric = if changed { element.is_signed() } else { scheme.symmetric };
        TensorScheme {
            element,
            symmetric: self.symmetric.unwrap_or(symmetric),
            method: self.calibration_method.unwrap_or(scheme.method),
            scale: self.scale_of(scheme),
            per_channel: scheme.per_channel || self.per_channel_activations.unwrap_or(false),
            ..scheme
        }
    }

    fn weight(&self, scheme: TensorScheme) -> TensorScheme {
        let element = self.weight.unwrap_or(scheme.element);
        TensorScheme {
            element,
            symmetric: if element.is_signed() { scheme.symmetric } else { false },
            method: self.weight_method.unwrap_or(scheme.method),
            per_channel: scheme.per_channel || self.per_channel.unwrap_or(false),
            reduce_range: scheme.reduce_range || self.reduce_range.unwrap_or(false),
            ..scheme
        }
    }

    /// NonOverflow is a way to power-of-two scales.
    fn scale_of(&self, scheme: TensorScheme) -> ScaleKind {
        if self.calibration_method == Some(ObserverRef::NON_OVERFLOW) { ScaleKind::PowerOfTwo } else { scheme.scale }
    }

    /// The nodes. Overrides of layers exclude nodes, or quantize again what earlier rules exclude; exclusions come last.
    fn selection(&self, selection: Selection, rules: &[Override]) -> Result<Selection, SettingsError> {
        let globs = |names: &[String]| names.iter().map(|name| Glob::new(name)).collect();
        let of_layers = rules.iter().filter(|rule| rule.of_layers);
        let of_layers = of_layers.map(|rule| NodeRule { nodes: rule.tensors.clone(), excluded: rule.float });
        let excluded = self.exclude.iter().map(|nodes| NodeRule { nodes: Glob::new(nodes), excluded: true });
        let subgraph = |text: &String| text.parse().map_err(|_| SettingsError::Subgraph(text.clone()));
        Ok(Selection {
            op_types: self.op_types.clone(),
            more_op_types: self.more_op_types.clone(),
            nodes: globs(&self.nodes),
            excluded_op_types: self.exclude_op_types.clone(),
            node_rules: of_layers.chain(excluded).collect(),
            excluded_subgraphs: self.exclude_subgraph.iter().map(subgraph).collect::<Result<_, _>>()?,
            ..selection
        })
    }

    fn passes(&self, recipe: &Recipe) -> Result<pass::Selection, SettingsError> {
        let mut selection = recipe.passes();
        selection.change(&self.enable_pass, &self.disable_pass)?;
        Ok(selection)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::element::Element;

    #[test]
    fn settings_change_only_their_part_of_the_preset() {
        let settings = Settings {
            preset: Some("a8w8".to_owned()),
            activation: Some(Element::UInt16),
            per_channel: Some(true),
            exclude_subgraph: vec!["a,b..c".to_owned()],
            ..Settings::default()
        };
        let Resolved { recipe, .. } = settings.resolve().unwrap();
        let activation = recipe.activation.unwrap();
        assert_eq!((activation.element, activation.symmetric), (Element::UInt16, false));
        assert!(recipe.weight.per_channel && !activation.per_channel && !recipe.drop_activations);
        assert_eq!(recipe.selection.excluded_subgraphs[0].from, ["a", "b"]);
        let weights_only = Settings { weights_only: Some(true), activation: None, ..settings.clone() };
        assert!(weights_only.resolve().unwrap().recipe.activation.is_none());
        let unknown = Settings { preset: Some("A8W9".to_owned()), ..settings };
        assert!(unknown.resolve().unwrap_err().to_string().contains("nearest name is A8W"));
        let misspelled = Settings { preset: Some("A8W8_ROTATEE".to_owned()), ..Settings::default() };
        assert!(misspelled.resolve().unwrap_err().to_string().ends_with("A8W8_ROTATE"));
        let twice = Settings { preset: Some("A8W8_CLE_CLE".to_owned()), ..Settings::default() };
        assert!(twice.resolve().unwrap_err().to_string().contains("`cle` is given twice"));
        assert!(matches!(Settings::default().resolve(), Err(SettingsError::NoPreset)));
    }
}
