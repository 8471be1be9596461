//! The recipe of a scheme as checkpoints spell it, `int8:channel` or `W4A16`, where a graph can express it.

use kvant_quant::observer::ObserverRef;
use kvant_quant::scheme::{self, ActivationScheme, LayerScheme, Timing};

use super::SettingsError;
use crate::element::Element;
use crate::preset::Preset;
use crate::recipe::{Layout, Recipe, TensorScheme};

/// The recipe of a spelling or of a checkpoint scheme's name; `None` for text that is neither.
///
/// # Errors
/// A scheme that no graph expresses.
pub(super) fn recipe(text: &str) -> Result<Option<Recipe>, SettingsError> {
    let spelled = scheme::Preset::find(text).map_or(text, |preset| preset.spelling);
    let Ok(layer) = spelled.parse::<LayerScheme>() else { return Ok(None) };
    let refuse = |reason| SettingsError::Scheme { scheme: text.to_owned(), reason };
    let weight = Spelled::of(&layer.weight.to_string()).map_err(refuse)?;
    let input = layer.input.map(activation).transpose().map_err(refuse)?;
    if layer.output.is_some() {
        return Err(refuse("outputs of a layer are inputs of the next ones"));
    }
    match (weight.group, input) {
        (Some(block), None) => weight_in_blocks(weight, block).map(Some).map_err(refuse),
        (Some(_), Some(_)) => Err(refuse("weights in groups go with float activations only")),
        (None, None) => Ok(base("WEIGHTS_INT8").map(|recipe| Recipe { weight: weight.over(recipe.weight), ..recipe })),
        (None, Some(input)) => Ok(static_activations(weight, input)),
    }
}

fn base(preset: &str) -> Option<Recipe> {
    Preset::find(preset).map(Preset::recipe)
}

fn activation(input: ActivationScheme) -> Result<Spelled, &'static str> {
    let spelled = Spelled::of(&input.scheme.to_string())?;
    match input.timing {
        Timing::Static if spelled.group.is_none() && !spelled.per_channel => Ok(spelled),
        Timing::Static => Err("static activations have one scale for each tensor"),
        _ => {
            Err("scales of activations are found by calibration; the preset INT8_DYNAMIC_QUANT finds them in each run")
        }
    }
}

fn weight_in_blocks(weight: Spelled, block: usize) -> Result<Recipe, &'static str> {
    let bits = match weight.element.integer_bits() {
        Some(bits @ (4 | 8)) => bits as u8,
        _ => return Err("MatMulNBits has weights of 4 or 8 bits"),
    };
    if !block.is_power_of_two() || block < 16 {
        return Err("MatMulNBits has groups of 16, 32, 64 and further powers of two");
    }
    let recipe = base("MATMUL_NBITS").ok_or("there is no such preset")?;
    let accuracy = match recipe.layout {
        Layout::MatMulNBits { accuracy, .. } => accuracy,
        _ => 0,
    };
    let weight = TensorScheme { per_channel: recipe.weight.per_channel, ..weight.over(recipe.weight) };
    Ok(Recipe { weight, layout: Layout::MatMulNBits { bits, block, accuracy }, ..recipe })
}

fn static_activations(weight: Spelled, input: Spelled) -> Option<Recipe> {
    let recipe = base(match (input.element.is_float8(), input.symmetric) {
        (true, _) => "FP8",
        (false, true) => "A8W8",
        (false, false) => "U8S8_AAWS",
    })?;
    let percentile = input.percentile.unwrap_or(recipe.percentile);
    let activation = recipe.activation.map(|activation| input.over(activation));
    Some(Recipe { activation, weight: weight.over(recipe.weight), percentile, ..recipe })
}

/// A tensor's scheme in the words of graphs.
#[derive(Clone, Copy)]
struct Spelled {
    element: Element,
    symmetric: bool,
    per_channel: bool,
    /// Elements that share a scale, where they are groups of a channel.
    group: Option<usize>,
    method: ObserverRef,
    percentile: Option<f64>,
}

impl Spelled {
    /// Reads the canonical spelling of a scheme.
    fn of(text: &str) -> Result<Spelled, &'static str> {
        let mut parts = text.split(':');
        let element = match parts.next().unwrap_or_default() {
            "int4" => Element::Int4,
            "uint4" => Element::UInt4,
            "int8" => Element::Int8,
            "uint8" => Element::UInt8,
            "int16" => Element::Int16,
            "uint16" => Element::UInt16,
            "e4m3" => Element::Float8E4M3,
            "e5m2" => Element::Float8E5M2,
            _ => return Err("graphs have codes of int4, uint4, int8, uint8, int16, uint16, e4m3 and e5m2"),
        };
        let mut spelled = Spelled {
            element,
            symmetric: true,
            per_channel: false,
            group: None,
            method: ObserverRef::MIN_MAX,
            percentile: None,
        };
        for part in parts {
            let percentile = part.strip_prefix("percentile").and_then(|percent| percent.parse().ok());
            let group = part.strip_prefix('g').and_then(|size| size.parse().ok());
            match part {
                "tensor" | "minmax" => {}
                "channel" => spelled.per_channel = true,
                "zp" => spelled.symmetric = false,
                "mse" => spelled.method = ObserverRef::MSE,
                _ if group.is_some() => spelled.group = group,
                _ if percentile.is_some() => {
                    (spelled.method, spelled.percentile) = (ObserverRef::PERCENTILE, percentile)
                }
                _ => return Err("graphs have scales in float for tensors, channels and groups of inputs"),
            }
        }
        // Asymmetric codes of graphs are unsigned.
        spelled.element = match (spelled.symmetric, spelled.element) {
            (false, Element::Int4) => Element::UInt4,
            (false, Element::Int8) => Element::UInt8,
            (false, Element::Int16) => Element::UInt16,
            (_, element) => element,
        };
        Ok(spelled)
    }

    fn over(self, base: TensorScheme) -> TensorScheme {
        let Spelled { element, symmetric, per_channel, method, .. } = self;
        TensorScheme { element, symmetric, per_channel, method, ..base }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(text: &str) -> Recipe {
        recipe(text).unwrap().unwrap()
    }

    #[test]
    fn scheme_spellings_equal_presets_of_the_same_types() {
        let same = |text: &str, preset: &str| {
            let (made, preset) = (made(text), Preset::find(preset).unwrap().recipe());
            assert_eq!((made.weight, made.layout, made.bias), (preset.weight, preset.layout, preset.bias), "{text}");
            assert_eq!(
                made.activation.map(|a| (a.element, a.symmetric)),
                preset.activation.map(|a| (a.element, a.symmetric))
            );
        };
        same("int8:channel", "WEIGHTS_INT8");
        same("int4:g128", "MATMUL_NBITS");
        same("W4A16", "MATMUL_NBITS");
        same("int8:tensor+int8:tensor!static", "A8W8");
        same("int8:tensor+uint8:tensor:zp!static", "U8S8_AAWS");
        let asymmetric = made("uint4_wo_32");
        assert_eq!((asymmetric.weight.element, asymmetric.weight.symmetric), (Element::UInt4, false));
        assert_eq!(asymmetric.layout, Layout::MatMulNBits { bits: 4, block: 32, accuracy: 1 });
        let percentile = made("int8:channel:mse+int8:tensor:percentile99.9!static");
        assert_eq!((percentile.weight.method, percentile.percentile), (ObserverRef::MSE, 99.9));
        assert!(recipe("A8W9").unwrap().is_none());
    }

    #[test]
    fn schemes_not_expressible_in_graphs_are_refused() {
        for (text, reason) in [
            ("W8A8", "found by calibration"),
            ("nvfp4", "codes of int4"),
            ("int4:g128+int8:tensor!static", "float activations only"),
            ("int3:g128", "codes of int4"),
            ("int4:g96", "powers of two"),
            ("e4m3:b128x128", "scales in float"),
            ("int8:tensor+int8:channel!static", "one scale for each tensor"),
            ("int8:tensor+-+int8:tensor!static", "outputs"),
        ] {
            let error = recipe(text).unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("no graph expresses the scheme `{text}`: ")) && error.contains(reason),
                "{error}"
            );
        }
    }
}
