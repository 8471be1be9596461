//! Kvant's own key in the config.json of a fake-quantized checkpoint: how its layers and attention quantize activations, with the
//! static scales. The weights beside it are plain floats; loaders ignore the key, and evaluation applies it.

use crate::format::ModuleScheme;
use crate::format::selector::{Selector, select};
use kvant_quant::activation::StaticParameters;
use kvant_quant::scheme::ActivationScheme;
use kvant_weights::activation_point::ActivationPoint;
use kvant_weights::activation_point::Parameters;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// The key in config.json.
pub const FAKE_QUANTIZATION: &str = "kvant_fake_quantization";

/// The version of the form that is written and read.
pub(crate) const VERSION: u64 = 1;

/// The value of the key.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FakeQuantization {
    pub(crate) version: u64,
    /// The linear layers, those of a scheme together.
    pub(crate) layers: Vec<FakeLayers>,
    /// Queries, keys, values and probabilities, those of a scheme together.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) attention: Vec<FakeSites>,
    /// Calibrated parameters, by point.
    #[serde(default, rename = "static", skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) parameters: BTreeMap<ActivationPoint, FakeParameters>,
}

/// Layers that are quantized alike.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct FakeLayers {
    /// Names of modules, or patterns such as `*.q_proj`.
    pub modules: Vec<String>,
    /// The scheme of the weights' grid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<ActivationScheme>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<ActivationScheme>,
}

/// Places of attention that are quantized alike.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct FakeSites {
    pub scheme: ActivationScheme,
    pub sites: Vec<ActivationPoint>,
}

/// Static scales and zero points of a place. In `f64`, whose decimals give back every `f32`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct FakeParameters {
    pub scales: Vec<f64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub zero_points: Vec<f64>,
}

impl FakeParameters {
    fn of(parameters: &StaticParameters) -> FakeParameters {
        let wide = |values: &[f32]| values.iter().map(|value| f64::from(*value)).collect();
        FakeParameters { scales: wide(&parameters.scales), zero_points: wide(&parameters.zero_points) }
    }

    /// The parameters as calibration found them.
    pub fn to_static(&self) -> StaticParameters {
        let narrow = |values: &[f64]| values.iter().map(|value| *value as f32).collect();
        StaticParameters { scales: narrow(&self.scales), zero_points: narrow(&self.zero_points) }
    }
}

impl FakeQuantization {
    /// The description of these modules and attention points; `None` if no activations are quantized. `others` are the modules
    /// that no pattern may match.
    pub fn new(
        layers: &[(&str, ModuleScheme)],
        others: &[&str],
        attention: &[(ActivationPoint, ActivationScheme)],
    ) -> Option<FakeQuantization> {
        let quantizes = |(_, scheme): &(&str, ModuleScheme)| scheme.input.is_some() || scheme.output.is_some();
        if attention.is_empty() && !layers.iter().any(quantizes) {
            return None;
        }
        let of_scheme = |(scheme, selectors): (ModuleScheme, Vec<Selector>)| FakeLayers {
            modules: selectors.iter().map(Selector::glob).collect(),
            weight: scheme.weight.map(|weight| weight.to_string()),
            input: scheme.input,
            output: scheme.output,
        };
        let mut sites: Vec<FakeSites> = Vec::new();
        for (site, scheme) in attention {
            match sites.iter_mut().find(|known| known.scheme == *scheme) {
                Some(known) if known.sites.contains(site) => {}
                Some(known) => known.sites.push(site.clone()),
                None => sites.push(FakeSites { scheme: *scheme, sites: vec![site.clone()] }),
            }
        }
        let layers = select(layers, others).into_iter().map(of_scheme).collect();
        Some(FakeQuantization { version: VERSION, layers, attention: sites, parameters: BTreeMap::new() })
    }

    /// The same with what calibration found.
    pub fn with_parameters<'a>(
        self,
        found: impl IntoIterator<Item = (&'a ActivationPoint, &'a StaticParameters)>,
    ) -> FakeQuantization {
        let parameters = found.into_iter().map(|(site, found)| (site.clone(), FakeParameters::of(found))).collect();
        FakeQuantization { parameters, ..self }
    }

    /// Puts it into a config.json.
    pub fn insert_into(&self, config: &mut Value) {
        if let (Some(fields), Ok(value)) = (config.as_object_mut(), serde_json::to_value(self)) {
            fields.insert(FAKE_QUANTIZATION.to_owned(), value);
        }
    }
}

/// A config.json with the static scales that calibration found, where it describes fake quantization.
pub fn with_parameters(mut config: Value, parameters: &Parameters) -> Value {
    let described = config.get(FAKE_QUANTIZATION).and_then(|value| FakeQuantization::deserialize(value).ok());
    if let Some(described) = described {
        described.with_parameters(parameters.iter()).insert_into(&mut config);
    }
    config
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn scheme(text: &str) -> ModuleScheme {
        let scheme: kvant_quant::scheme::LayerScheme = text.parse().unwrap();
        ModuleScheme { weight: Some(scheme.weight), bias: None, input: scheme.input, output: scheme.output }
    }

    #[test]
    fn layer_schemes_are_abbreviated_and_scales_exact() {
        let (mx, int8) = (scheme("mx6+mx6!dynamic"), scheme("int8:tensor+int8:tensor!static"));
        let layers = [("m.0.up", mx), ("m.0.down", int8), ("m.1.up", mx), ("m.1.down", mx)];
        let cache = [(ActivationPoint::Key(0), "e4m3:tensor!static".parse().unwrap())];
        let found = StaticParameters { scales: vec![0.1], zero_points: vec![] };
        let site = ActivationPoint::Input("m.0.down".to_owned());
        let described = FakeQuantization::new(&layers, &["m.head"], &cache).unwrap().with_parameters([(&site, &found)]);
        let mut config = json!({});
        described.insert_into(&mut config);
        let expected = json!({
            "version": 1,
            "layers": [
                {"modules": ["*.up", "m.1.down"], "weight": "mx6", "input": "mx6!dynamic"},
                {"modules": ["m.0.down"], "weight": "int8:tensor", "input": "int8:tensor!static"},
            ],
            "attention": [{"scheme": "e4m3:tensor!static", "sites": ["key:0"]}],
            "static": {"input:m.0.down": {"scales": [f64::from(0.1f32)]}},
        });
        assert_eq!(config[FAKE_QUANTIZATION], expected);
        let read = FakeQuantization::deserialize(&config[FAKE_QUANTIZATION]).unwrap();
        assert_eq!((read.parameters[&site].to_static(), read), (found, described));
    }

    #[test]
    fn weight_only_fake_quantization_needs_no_record() {
        assert!(FakeQuantization::new(&[("m.0.up", scheme("int4:g128"))], &[], &[]).is_none());
    }
}
