//! Fake-quantized checkpoints of Kvant: the weights are plain floats, and a key in config.json says how activations are quantized.

use super::config::{FAKE_QUANTIZATION, FakeLayers, FakeQuantization, VERSION};
use crate::format::stored::{StoredActivation, StoredActivations, StoredAttention, quantization_config};
use kvant_model::network::TensorMeta;
use kvant_model::network::expert_module;
use kvant_quant::glob::Glob;
use kvant_quant::scheme::{ActivationScheme, TensorScheme, Timing};
use kvant_weights::activation_point::ActivationPoint;
use kvant_weights::import_error::ImportError;
use kvant_weights::recipe_error::quoted;
use serde::Deserialize;
use serde_json::Value;
use std::collections::{HashMap, HashSet};

/// The quantized activations of a fake-quantized checkpoint.
#[derive(Debug, Default)]
pub(crate) struct FakeActivations {
    /// The grids of weights by module.
    pub weights: HashMap<String, TensorScheme>,
    pub activations: HashMap<String, StoredActivations>,
    pub attention: HashMap<usize, StoredAttention>,
    /// Whether anything of attention is quantized, be it as the output of a layer.
    pub quantizes_cache: bool,
}

/// Whether a config.json says that the weights are floats on the grid of codes. Where there is a `quantization_config` too, another
/// tool has quantized the floats since, and the key is no longer valid.
pub fn is_fake_quantized(config: Option<&Value>) -> bool {
    let described = |config: &Value| config.get(FAKE_QUANTIZATION).is_some() && quantization_config(config).is_none();
    config.is_some_and(described)
}

/// Reads the key, for the modules that these tensors belong to.
pub(crate) fn activations<'t>(
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
    PlainFloatsReader { described: &described, modules: Modules::of(tensors), found: FakeActivations::default() }.read()
}

const PLACE: &str = "config.json: kvant_fake_quantization";

fn wrong(reason: impl Into<String>) -> ImportError {
    ImportError::invalid(PLACE, reason)
}

/// The most experts of a block. What counts more is no tensor of experts, or counts what is not there.
const MOST_EXPERTS: usize = 1 << 16;

/// The modules with a weight. Experts that are one tensor have a name each, which is made when it is asked for: their number is what a
/// header says.
struct Modules {
    single: HashSet<String>,
    /// Those whose weight has three axes: convolutions, or experts after all. No pattern selects them.
    stacked: HashSet<String>,
    /// The modules of tensors with experts, and how many.
    experts: HashMap<String, usize>,
}

impl Modules {
    fn of<'t>(tensors: impl Iterator<Item = &'t TensorMeta>) -> Modules {
        let mut modules = Modules { single: HashSet::new(), stacked: HashSet::new(), experts: HashMap::new() };
        for tensor in tensors {
            let module = tensor.name.strip_suffix(".weight");
            modules.stacked.extend(module.filter(|_| tensor.shape.len() == 3).map(str::to_owned));
            match (tensor.shape.as_slice(), module) {
                (&[experts, rows, columns], _) if rows > 0 && columns > 0 && experts <= MOST_EXPERTS => {
                    modules.experts.insert(module.unwrap_or(&tensor.name).to_owned(), experts);
                }
                ([_, _, _], _) => {}
                (_, Some(module)) => drop(modules.single.insert(module.to_owned())),
                _ => {}
            }
        }
        modules
    }

    /// The modules selected by a name or a pattern.
    fn matching(&self, pattern: &str) -> Result<Vec<String>, ImportError> {
        let glob = Glob::new(pattern);
        let found: Vec<String> = match glob.has_wildcard() {
            true => {
                let experts = self.experts.iter().flat_map(|(module, count)| names_of_experts(module, *count));
                let experts = experts.filter(|name| glob.matches(name));
                self.single.iter().filter(|module| glob.matches(module)).cloned().chain(experts).collect()
            }
            false if self.is_named(pattern) => vec![pattern.to_owned()],
            false => Vec::new(),
        };
        match found.is_empty() {
            true => Err(wrong(format!("names `{pattern}`, and no layer has that name"))),
            false => Ok(found),
        }
    }

    fn is_named(&self, name: &str) -> bool {
        self.single.contains(name) || self.stacked.contains(name) || self.has_expert(name)
    }

    fn has_expert(&self, name: &str) -> bool {
        let of_module = |(module, expert): (String, usize)| {
            let count = self.experts.get(&module).copied().unwrap_or(0);
            expert < count && expert_module(&module, expert) == name
        };
        expert_of(name).is_some_and(of_module)
    }
}

fn names_of_experts(module: &str, count: usize) -> impl Iterator<Item = String> {
    (0..count).map(move |expert| expert_module(module, expert))
}

/// The module and the number in the name of one expert, if it is one: the inverse of [`expert_module`].
fn expert_of(name: &str) -> Option<(String, usize)> {
    let (above, leaf) = name.rsplit_once('.')?;
    match above.rsplit_once('.') {
        Some((parent, expert)) => Some((format!("{parent}.{leaf}"), expert.parse().ok()?)),
        None => Some((leaf.to_owned(), above.parse().ok()?)),
    }
}

impl FakeLayers {
    /// The scheme of the weights, if it is stated.
    fn grid(&self) -> Result<Option<TensorScheme>, ImportError> {
        let read = |text: &String| {
            text.parse().map_err(|_| wrong(format!("states {} as the scheme of weights", quoted(text))))
        };
        self.weight.as_ref().map(read).transpose()
    }
}

struct PlainFloatsReader<'r> {
    described: &'r FakeQuantization,
    modules: Modules,
    found: FakeActivations,
}

impl PlainFloatsReader<'_> {
    fn read(mut self) -> Result<FakeActivations, ImportError> {
        for layers in &self.described.layers {
            for pattern in &layers.modules {
                for module in self.modules.matching(pattern)? {
                    if let Some(weight) = layers.grid()? {
                        self.found.weights.insert(module.clone(), weight);
                    }
                    let stored = self.activations(layers, &module)?;
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

    /// The activations of one of these layers.
    fn activations(&self, layers: &FakeLayers, module: &str) -> Result<StoredActivations, ImportError> {
        let read = |scheme: Option<ActivationScheme>, site: fn(String) -> ActivationPoint| {
            scheme.map(|scheme| self.stored(&site(module.to_owned()), scheme)).transpose()
        };
        Ok(StoredActivations {
            input: read(layers.input, ActivationPoint::Input)?,
            output: read(layers.output, ActivationPoint::Output)?,
        })
    }

    fn stored(&self, site: &ActivationPoint, scheme: ActivationScheme) -> Result<StoredActivation, ImportError> {
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

    fn place(&mut self, site: &ActivationPoint, stored: StoredActivation) {
        let stored = Some(stored);
        match site {
            ActivationPoint::Input(module) => self.found.activations.entry(module.clone()).or_default().input = stored,
            ActivationPoint::Output(module) => {
                self.found.activations.entry(module.clone()).or_default().output = stored
            }
            ActivationPoint::Key(block) => self.found.attention.entry(*block).or_default().key = stored,
            ActivationPoint::Value(block) => self.found.attention.entry(*block).or_default().value = stored,
            ActivationPoint::Query(block) => self.found.attention.entry(*block).or_default().query = stored,
            ActivationPoint::Probabilities(block) => {
                self.found.attention.entry(*block).or_default().probabilities = stored
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn found(pattern: &str, tensors: &[(&str, &[usize])]) -> Result<Vec<String>, String> {
        let layers = json!([{"modules": [pattern], "input": "int8:tensor!dynamic"}]);
        let config = json!({"kvant_fake_quantization": {"version": 1, "layers": layers}});
        let metas: Vec<TensorMeta> =
            tensors.iter().map(|(name, shape)| TensorMeta::new(*name, *shape, "F32")).collect();
        let found = activations(Some(&config), metas.iter()).map_err(|error| error.to_string())?;
        let mut modules: Vec<String> = found.activations.into_keys().collect();
        modules.sort();
        Ok(modules)
    }

    #[test]
    fn experts_are_named_individually() {
        let tensors: &[(&str, &[usize])] =
            &[("m.experts.up", &[3, 4, 8]), ("m.q.weight", &[4, 8]), ("up.weight", &[2, 1, 1])];
        assert_eq!(
            found("*", tensors).unwrap(),
            ["0.up", "1.up", "m.experts.0.up", "m.experts.1.up", "m.experts.2.up", "m.q"]
        );
        assert_eq!(found("m.experts.2.up", tensors).unwrap(), ["m.experts.2.up"]);
        assert_eq!(found("1.up", tensors).unwrap(), ["1.up"]);
        assert_eq!(found("up", tensors).unwrap(), ["up"], "the weight of a convolution has three axes too");
        for none in ["m.experts.3.up", "m.experts.02.up", "m.experts.up", "2.up", "m.0.q"] {
            assert!(found(none, tensors).unwrap_err().contains(none), "{none}");
        }
    }

    #[test]
    fn schemes_of_weights_are_read() {
        let tensors = [TensorMeta::new("m.up.weight", [4, 8], "F32")];
        let read = |weight: &str| {
            let layers = json!([{"modules": ["*.up"], "weight": weight}]);
            let config = json!({"kvant_fake_quantization": {"version": 1, "layers": layers}});
            activations(Some(&config), tensors.iter()).map_err(|error| error.to_string())
        };
        let found = read("int4:g4").unwrap();
        assert_eq!(found.weights["m.up"].to_string(), "int4:g4");
        assert!(found.activations.is_empty());
        assert!(read("int9").unwrap_err().contains("`int9`"));
    }

    #[test]
    fn empty_experts_have_no_names() {
        let tensors: &[(&str, &[usize])] =
            &[("e", &[4_000_000_000, 0, 1]), ("f", &[4_000_000_000, 1, 1]), ("q.weight", &[1, 1])];
        assert_eq!(found("*", tensors).unwrap(), ["q"]);
        assert!(found("3.e", tensors).is_err());
    }
}
