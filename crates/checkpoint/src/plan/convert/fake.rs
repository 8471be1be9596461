//! What a conversion to plain floats keeps of the source's quantized activations, where evaluation shall apply it.

use super::StoredDefaults;
use crate::plan::recognised::Recognised;
use kvant_formats::format::ModuleScheme;
use kvant_formats::format::plain_floats::FakeQuantization;
use kvant_formats::import::{Import, StoredActivation};
use kvant_model::network::Linear;
use kvant_quant::activation::StaticParameters;
use kvant_quant::scheme::TensorScheme;
use kvant_weights::activation_point::ActivationPoint;
use std::collections::BTreeSet;

impl Recognised<'_> {
    /// How the source quantizes activations, by the names that the output has; `None` where it does not.
    pub(super) fn stored_fake_quantization(
        &self,
        import: &Import<'_>,
        defaults: StoredDefaults,
    ) -> Option<FakeQuantization> {
        let mut parameters: Vec<(ActivationPoint, StaticParameters)> = Vec::new();
        let mut scheme_at = |site: ActivationPoint, stored: &Option<StoredActivation>| {
            let stored = stored.as_ref()?;
            parameters.extend(stored.parameters.clone().map(|found| (site, found)));
            Some(stored.scheme)
        };
        let mut layers: Vec<(String, ModuleScheme)> = Vec::new();
        for linear in self.network.linears() {
            let Some(stored) = import.activations(&linear.module) else { continue };
            let name = self.output_name(&linear.module);
            let input = scheme_at(ActivationPoint::Input(name.clone()), &stored.input);
            let output = scheme_at(ActivationPoint::Output(name.clone()), &stored.output);
            layers
                .push((name, ModuleScheme { weight: self.stored_scheme(linear, defaults), bias: None, input, output }));
        }
        let mut attention = Vec::new();
        for block in self.network.blocks() {
            let Some(stored) = import.attention(*block) else { continue };
            let sites = [
                (ActivationPoint::Key(*block), &stored.key),
                (ActivationPoint::Value(*block), &stored.value),
                (ActivationPoint::Query(*block), &stored.query),
                (ActivationPoint::Probabilities(*block), &stored.probabilities),
            ];
            for (site, stored) in sites {
                attention.extend(scheme_at(site.clone(), stored).map(|scheme| (site, scheme)));
            }
        }
        let layers: Vec<(&str, ModuleScheme)> = layers.iter().map(|(name, scheme)| (name.as_str(), *scheme)).collect();
        let others: Vec<String> =
            self.modules_besides(&[]).into_iter().map(|module| self.output_name(module)).collect();
        let quantized: BTreeSet<&str> = layers.iter().map(|(name, _)| *name).collect();
        let others: Vec<&str> = others.iter().map(String::as_str).filter(|name| !quantized.contains(name)).collect();
        let described = FakeQuantization::new(&layers, &others, &attention)?;
        Some(described.with_parameters(parameters.iter().map(|(site, found)| (site, found))))
    }

    fn stored_scheme(&self, linear: &Linear, defaults: StoredDefaults) -> Option<TensorScheme> {
        match self.tensors[linear.weight].packed()? {
            [matrix] => defaults.scheme_of(matrix),
            _ => None,
        }
    }
}
