//! Codes of tensors that belong to no model, as the metadata of their files describes them.

use super::activations::{StoredActivations, StoredAttention};
use super::catalog::Module;
use super::layout::Layout;
use super::quark::{INPUT, OUTPUT};
use super::{Method, Weight};
use crate::config_json::tensors::METADATA_KEY;
use crate::export::{Export, LayerSpec};
use crate::import_error::ImportError;
use kvant_numeric::pack::NibbleOrder;
use kvant_quant::scheme::LayerScheme;
use serde_json::Value;
use std::collections::HashMap;

/// The most elements of a matrix: sizes of packed rows stay numbers.
const MAX_ELEMENTS: usize = 1 << 44;

pub(super) fn reader(config: &Value) -> Result<Box<dyn Method>, ImportError> {
    let layers = config.get("layers").and_then(Value::as_object);
    let layers = layers.ok_or_else(|| ImportError::invalid(METADATA_KEY, "does not describe any layers"))?;
    let layers = layers.iter().map(|(name, stated)| Ok((name.clone(), Described::read(name, stated)?)));
    Ok(Box::new(Tensors { layers: layers.collect::<Result<_, ImportError>>()? }))
}

struct Tensors {
    layers: HashMap<String, Described>,
}

/// What is said of a layer.
struct Described {
    scheme: LayerScheme,
    shape: (usize, usize),
}

impl Described {
    fn read(name: &str, stated: &Value) -> Result<Described, ImportError> {
        let wrong = |field: &str| ImportError::invalid(METADATA_KEY, format!("`{name}` has no valid {field}"));
        let scheme = stated.get("scheme").and_then(Value::as_str).and_then(|text| text.parse().ok());
        let size = |at: usize| usize::try_from(stated.get("shape")?.get(at)?.as_u64()?).ok();
        let shape = size(0).zip(size(1));
        let fits = |(rows, columns): &(usize, usize)| rows.checked_mul(*columns).is_some_and(|all| all <= MAX_ELEMENTS);
        Ok(Described {
            scheme: scheme.ok_or_else(|| wrong("scheme"))?,
            shape: shape.filter(fits).ok_or_else(|| wrong("shape"))?,
        })
    }
}

impl Method for Tensors {
    fn weights(&self, module: &Module<'_, '_>) -> Result<Vec<Weight>, ImportError> {
        let Some(layer) = self.layers.get(module.name) else { return Ok(Vec::new()) };
        let scheme = layer.scheme.weight;
        let spec = LayerSpec::weight_only(module.name, layer.shape, scheme, NibbleOrder::default());
        let parts = Export::Tensors.parts(&spec).map_err(|error| ImportError::cannot_hold(module.name, &error))?;
        let layout = Layout::of_scheme(module.name, scheme, layer.shape, parts)?;
        Ok(vec![Weight::of(module, layout)])
    }

    fn activations(&self, module: &Module<'_, '_>) -> Result<StoredActivations, ImportError> {
        let Some(layer) = self.layers.get(module.name) else { return Ok(StoredActivations::default()) };
        let LayerScheme { input, output, .. } = layer.scheme;
        Ok(StoredActivations {
            input: input.map(|scheme| INPUT.read(module, scheme)).transpose()?,
            output: output.map(|scheme| OUTPUT.read(module, scheme)).transpose()?,
        })
    }

    fn attention(&self, _module: &Module<'_, '_>) -> Result<StoredAttention, ImportError> {
        Ok(StoredAttention::default())
    }
}
