//! What a checkpoint says of its quantization, as far as it can be held against what is there: the method, which modules
//! it leaves alone, what it promises. How single tensors are stored is read by [`crate::import`].

use crate::format::stored::ModuleReader;
use crate::format::tensors::TENSORS_METHOD;
use crate::format::{ExcludedNames, FormatHandle, Pattern};
use crate::import::stated;
use kvant_container::Checkpoint;
use serde_json::Value;
use std::collections::HashSet;

/// A `quantization_config`, or what stands for it.
#[derive(Debug)]
pub(crate) struct QuantConfig {
    /// `quant_method`.
    pub method: String,
    pub config: Value,
    /// Modules that stay as they are.
    pub listed: Vec<Listed>,
    rule: Rule,
    /// Where GPTQModel's `dynamic` states of modules whether their codes are symmetric, in its order.
    symmetries: Vec<(Pattern, bool)>,
}

/// An entry in a list of modules that are not quantized.
#[derive(Debug)]
pub(crate) struct Listed {
    /// As it stands there.
    pub text: String,
    names: Names,
}

#[derive(Debug)]
enum Names {
    Pattern(Pattern),
    /// Whatever holds this.
    Part(String),
}

/// How it is told whether a module is quantized.
#[derive(Debug)]
enum Rule {
    /// Those of which the reader of the configuration says it, and of others those that are not listed.
    Reader(Box<dyn ModuleReader>),
    /// Those that the metadata of files describes are.
    Tensors(HashSet<String>),
    /// Those that are not listed are.
    Others,
}

impl QuantConfig {
    /// That of a checkpoint; `None` where nothing is said.
    pub fn find(checkpoint: &Checkpoint, config: Option<&Value>) -> Option<QuantConfig> {
        let (method, config) = stated(checkpoint, config)?;
        // ModelOpt's own file has the fields one level down.
        let config = config.get("quantization").cloned().unwrap_or(config);
        let rule = if method == TENSORS_METHOD {
            let layers = config.get("layers").and_then(Value::as_object).into_iter().flatten();
            Some(Rule::Tensors(layers.map(|(name, _)| name.clone()).collect()))
        } else {
            FormatHandle::reading(&method).and_then(|format| format.reader(&method, &config).ok()).map(Rule::Reader)
        };
        let (listed, symmetries) = (listed(&method, &config), symmetries(&config));
        Some(QuantConfig { method, config, listed, rule: rule.unwrap_or(Rule::Others), symmetries })
    }

    /// Returns whether it says that the weight of a linear layer is quantized.
    pub fn quantizes(&self, module: &str) -> bool {
        match &self.rule {
            Rule::Reader(reader) => reader.quantizes(module).unwrap_or_else(|| !self.lists(module)),
            Rule::Tensors(described) => described.contains(module),
            Rule::Others => !self.lists(module),
        }
    }

    /// The modules that the metadata of files describes one by one.
    pub fn described(&self) -> impl Iterator<Item = &str> {
        let described = match &self.rule {
            Rule::Tensors(described) => Some(described),
            _ => None,
        };
        described.into_iter().flatten().map(String::as_str)
    }

    /// Returns whether a module is among those that stay as they are.
    pub fn lists(&self, module: &str) -> bool {
        self.listed.iter().any(|listed| listed.matches(module))
    }

    /// Returns whether loaders take its word for what is quantized, instead of looking at the tensors.
    pub fn decides_alone(&self) -> bool {
        !FormatHandle::reading(&self.method).is_some_and(|format| format.capabilities().found_by_tensors)
    }

    /// Returns whether it says that the codes of a module are symmetric, so that kernels ignore zero points.
    pub fn is_symmetric(&self, module: &str) -> bool {
        if let Some((_, symmetric)) = self.symmetries.iter().find(|(pattern, _)| pattern.matches(module)) {
            return *symmetric;
        }
        let flag = |key: &str| self.config.get(key).and_then(Value::as_bool);
        flag("sym") == Some(true) || flag("zero_point") == Some(false)
    }

    /// Returns whether other numbers hold for some modules. Rules with `-:` leave modules in floats.
    fn has_exceptions(&self) -> bool {
        let rules = self.config.get("dynamic").and_then(Value::as_object);
        rules.is_some_and(|rules| rules.keys().any(|pattern| !pattern.starts_with("-:")))
    }

    /// Input channels of a group, where one size is stated for all layers.
    pub fn group_size(&self) -> Option<usize> {
        let keys = ["group_size", "q_group_size"];
        let size = keys.iter().find_map(|key| self.config.get(*key)?.as_u64());
        size.filter(|_| !self.has_exceptions()).and_then(|size| usize::try_from(size).ok())
    }

    /// Bits of a code, where one number is stated for all layers.
    pub fn bits(&self) -> Option<u64> {
        let keys = ["bits", "w_bit"];
        keys.iter().find_map(|key| self.config.get(*key)?.as_u64()).filter(|_| !self.has_exceptions())
    }

    /// Returns whether it promises static scales of keys and values.
    pub fn promises_cache(&self) -> bool {
        let is_static = |spec: &Value| spec.get("dynamic").or(spec.get("is_dynamic")) != Some(&Value::Bool(true));
        let stated = self.config.get("kv_cache_scheme").filter(|spec| spec.is_object());
        let algorithm = self.config.get("kv_cache_quant_algo").and_then(Value::as_str);
        let outputs = self.config.get("kv_cache_quant_config").and_then(Value::as_object);
        let mut outputs =
            outputs.into_iter().flat_map(|specs| specs.values()).filter_map(|spec| spec.get("output_tensors"));
        stated.is_some_and(is_static)
            || algorithm == Some("FP8")
            || outputs.any(|spec| spec.is_object() && is_static(spec))
    }
}

impl Listed {
    pub fn matches(&self, module: &str) -> bool {
        match &self.names {
            Names::Pattern(pattern) => pattern.matches(module),
            Names::Part(part) => module.contains(part.as_str()),
        }
    }
}

fn listed(method: &str, config: &Value) -> Vec<Listed> {
    let capabilities = FormatHandle::reading(method).map(FormatHandle::capabilities);
    let parts = capabilities.is_some_and(|format| format.excluded_names == ExcludedNames::Parts);
    let fields = capabilities.map_or(&[][..], |format| format.excluded_fields);
    let lists = fields.iter().filter_map(|field| config.get(*field)?.as_array()).flatten();
    let entries = lists.filter_map(Value::as_str).filter_map(|text| entry(text, parts));
    entries.chain(negative_rules(config)).collect()
}

fn entry(text: &str, parts: bool) -> Option<Listed> {
    let names = match parts {
        true => Names::Part(text.to_owned()),
        false => Names::Pattern(Pattern::new("ignore", text).ok()?),
    };
    Some(Listed { text: text.to_owned(), names })
}

/// GPTQModel's `dynamic`: what is stated for modules behind an expression, which may begin with `+:`, holds for them before what is
/// stated for all.
fn symmetries(config: &Value) -> Vec<(Pattern, bool)> {
    let rules = config.get("dynamic").and_then(Value::as_object).into_iter().flatten();
    let stated = rules.filter_map(|(rule, values)| {
        let expression = rule.strip_prefix("+:").unwrap_or(rule);
        let pattern = Pattern::new("dynamic", &format!("re:{expression}")).ok()?;
        Some((pattern, values.get("sym")?.as_bool()?))
    });
    stated.collect()
}

/// GPTQModel's `dynamic`: expressions behind `-:` name modules that stay as they are.
fn negative_rules(config: &Value) -> impl Iterator<Item = Listed> {
    let rules = config.get("dynamic").and_then(Value::as_object).into_iter().flat_map(|rules| rules.keys());
    rules.filter_map(|rule| {
        let expression = rule.strip_prefix("-:")?;
        let pattern = Pattern::new("dynamic", &format!("re:{expression}")).ok()?;
        Some(Listed { text: rule.clone(), names: Names::Pattern(pattern) })
    })
}
