//! Fake-quantized checkpoints of Kvant: the weights are plain floats, and a key in config.json says how activations are quantized.

use super::activations::{StoredActivation, StoredActivations, StoredAttention};
use super::error::ImportError;
use super::quantization_config;
use crate::config_json::fake::{FAKE_QUANTIZATION, FakeQuantization, VERSION};
use crate::glob::Glob;
use crate::network::TensorMeta;
use crate::plan::{Site, expert_module};
use kvant_quant::scheme::{ActivationScheme, TensorScheme, Timing};
use serde::Deserialize;
use serde_json::Value;
use std::collections::{BTreeSet, HashMap};

/// What a fake-quantized checkpoint says of its activations.
#[derive(Debug, Default)]
pub(super) struct FakeActivations {
    pub activations: HashMap<String, StoredActivations>,
    pub attention: HashMap<usize, StoredAttention>,
    /// Whether anything of attention is quantized, be it as the output of a layer.
    pub quantizes_cache: bool,
}

/// Whether a config.json says that the weights are floats on the grid of codes. Where there is a `quantization_config` too, another
/// tool has quantized the floats since, and what the key says no longer holds.
pub(crate) fn is_fake_quantized(config: Option<&Value>) -> bool {
    let described = |config: &Value| config.get(FAKE_QUANTIZATION).is_some() && quantization_config(config).is_none();
    config.is_some_and(described)
}

/// Reads the key, for the modules that these tensors belong to.
pub(super) fn activations<'t>(
    config: Option<&Value>,
    tensors: impl Iterator<Item = &'t TensorMeta>,
) -> Result<FakeActivations, ImportError> {
    let Some(value) = config.filter(|_| is_fake_quantized(config)).and_then(|config| config.get(FAKE_QUANTIZATION))
    else {
        return Ok(FakeActivations::default());
    };
    let described = FakeQuantization::deserialize(value).map_err(|error| wrong(error.to_string()))?;
    if described.version != VERSION {
        let reason = format!("has version {}; this version of Kvant reads {VERSION}", described.version);
        return Err(ImportError::unsupported(PLACE, reason, "use the version of Kvant that wrote the checkpoint"));
    }
    Reader { described: &described, modules: modules(tensors), found: FakeActivations::default() }.read()
}

const PLACE: &str = "config.json: kvant_fake_quantization";

fn wrong(reason: impl Into<String>) -> ImportError {
    ImportError::invalid(PLACE, reason)
}

/// The modules with a weight; experts that are one tensor are named one by one.
fn modules<'t>(tensors: impl Iterator<Item = &'t TensorMeta>) -> BTreeSet<String> {
    let of_tensor = |tensor: &TensorMeta| -> Vec<String> {
        let module = tensor.name.strip_suffix(".weight");
        match (tensor.shape.as_slice(), module) {
            ([experts, _, _], _) => {
                (0..*experts).map(|expert| expert_module(module.unwrap_or(&tensor.name), expert)).collect()
            }
            (_, Some(module)) => vec![module.to_owned()],
            _ => vec![],
        }
    };
    tensors.flat_map(of_tensor).collect()
}

struct Reader<'r> {
    described: &'r FakeQuantization,
    modules: BTreeSet<String>,
    found: FakeActivations,
}

impl Reader<'_> {
    fn read(mut self) -> Result<FakeActivations, ImportError> {
        for layers in &self.described.layers {
            for module in layers.modules.iter().map(|pattern| self.matching(pattern)).collect::<Result<Vec<_>, _>>()? {
                for module in module {
                    let read = |scheme: Option<ActivationScheme>, site: fn(String) -> Site| {
                        scheme.map(|scheme| self.stored(&site(module.clone()), scheme)).transpose()
                    };
                    let (input, output) = (read(layers.input, Site::Input)?, read(layers.output, Site::Output)?);
                    let stored = StoredActivations { input, output };
                    if !stored.is_empty() {
                        self.found.activations.insert(module, stored);
                    }
                }
            }
        }
        for places in &self.described.attention {
            for site in &places.sites {
                let stored = self.stored(site, places.scheme)?;
                self.place(site, stored);
                self.found.quantizes_cache = true;
            }
        }
        Ok(self.found)
    }

    /// The modules that a name or a pattern stands for.
    fn matching(&self, pattern: &str) -> Result<Vec<String>, ImportError> {
        let glob = Glob::new(pattern);
        let found: Vec<String> = match glob.has_wildcard() {
            true => self.modules.iter().filter(|module| glob.matches(module)).cloned().collect(),
            false => self.modules.get(pattern).cloned().into_iter().collect(),
        };
        match found.is_empty() {
            true => Err(wrong(format!("names `{pattern}`, and no layer has that name"))),
            false => Ok(found),
        }
    }

    fn stored(&self, site: &Site, scheme: ActivationScheme) -> Result<StoredActivation, ImportError> {
        let is_self_scaled = matches!(scheme.scheme, TensorScheme::Block(_) | TensorScheme::Cast(_));
        if scheme.timing == Timing::Dynamic || is_self_scaled {
            return Ok(StoredActivation { scheme, parameters: None });
        }
        let parameters = self.described.parameters.get(site).map(|parameters| parameters.to_static());
        match parameters {
            Some(parameters) => Ok(StoredActivation { scheme, parameters: Some(parameters) }),
            None => Err(wrong(format!("has no static scale for {site}, which is `{scheme}`"))),
        }
    }

    fn place(&mut self, site: &Site, stored: StoredActivation) {
        let stored = Some(stored);
        match site {
            Site::Input(module) => self.found.activations.entry(module.clone()).or_default().input = stored,
            Site::Output(module) => self.found.activations.entry(module.clone()).or_default().output = stored,
            Site::Key(block) => self.found.attention.entry(*block).or_default().key = stored,
            Site::Value(block) => self.found.attention.entry(*block).or_default().value = stored,
            Site::Query(block) => self.found.attention.entry(*block).or_default().query = stored,
            Site::Probabilities(block) => self.found.attention.entry(*block).or_default().probabilities = stored,
        }
    }
}
