//! Groups of layers that get one option together.

use kvant_container::gguf::TensorType;
use kvant_forward::evaluation::ModelStage;
use kvant_forward::forward::Decoder;
use kvant_forward::forward::Projection;
use std::collections::HashMap;

/// Layers that get one option together.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerGroup {
    /// Its name: that of its only layer, or what the names of its layers share.
    pub name: String,
    /// The first stage of the model in which its weights are in use.
    pub stage: ModelStage,
    /// Whether it is the embedding and the head.
    pub is_tied: bool,
    /// The modules of the source.
    pub modules: Vec<String>,
    /// Patterns for overrides of a recipe, which match these layers and no others.
    pub patterns: Vec<String>,
    /// Weights.
    pub weights: u64,
    /// Their bytes in the source.
    pub source_bytes: u64,
    /// What it may become, in the order of the options.
    pub choices: Vec<GroupChoice>,
}

/// What a group may become.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupChoice {
    /// The index of the option.
    pub option: usize,
    /// Further options that are the same for this group, because their blocks do not fit it.
    pub also: Vec<usize>,
    /// The type of GGUF that it takes, which is another one where the option's blocks do not divide rows.
    pub kind: Option<TensorType>,
    /// Bytes of its weights in the output.
    pub bytes: u64,
}

impl LayerGroup {
    /// The index of its choice for an option: that of the option, or where it does not fit, the first that is float.
    pub fn choice_of(&self, option: usize, float: usize) -> usize {
        let is_of = |choice: &GroupChoice, option: usize| choice.option == option || choice.also.contains(&option);
        let of = |option: usize| self.choices.iter().position(|choice| is_of(choice, option));
        of(option).or_else(|| of(float)).unwrap_or(0)
    }
}

/// The linear layers of a decoder, the embedding and the head, by module.
pub(super) fn projections<'d>(decoder: &'d Decoder<'_>) -> HashMap<&'d str, &'d Projection> {
    let blueprint = decoder.blueprint();
    let outside = [&blueprint.embedding, &blueprint.head];
    let layers = blueprint.blocks.iter().flat_map(|block| block.layers()).chain(outside);
    layers.map(|layer| (layer.module.as_str(), layer)).collect()
}

/// What names share, with what differs in braces or as a star: `model.layers.0.self_attn.{q_proj,k_proj}`.
pub(super) fn shared_name(names: &[String]) -> String {
    let [first, rest @ ..] = names else { return String::new() };
    let parts: Vec<&str> = first.split('.').collect();
    let others: Vec<Vec<&str>> = rest.iter().map(|name| name.split('.').collect()).collect();
    let same = |at: usize| others.iter().all(|other| other.get(at) == parts.get(at));
    let shared = (0..parts.len()).take_while(|at| same(*at)).count();
    if rest.is_empty() || shared == parts.len() {
        return first.clone();
    }
    let head = parts[..shared].join(".");
    let tails: Vec<String> =
        names.iter().map(|name| name.split('.').skip(shared).collect::<Vec<_>>().join(".")).collect();
    let tail = match tails.len() <= 4 && tails.iter().all(|tail| !tail.contains('.')) {
        true => format!("{{{}}}", tails.join(",")),
        false => "*".to_owned(),
    };
    if head.is_empty() { tail } else { format!("{head}.{tail}") }
}

/// Patterns for these modules: numbers of experts become stars.
pub(super) fn patterns(modules: &[String], experts: bool) -> Vec<String> {
    let pattern = |module: &String| match experts {
        false => module.clone(),
        true => {
            let mut after_experts = false;
            let part = |part: &str| {
                let is_number = after_experts && part.chars().all(|c| c.is_ascii_digit());
                after_experts = part.contains("expert");
                if is_number { "*".to_owned() } else { part.to_owned() }
            };
            module.split('.').map(part).collect::<Vec<_>>().join(".")
        }
    };
    let mut all: Vec<String> = Vec::new();
    for pattern in modules.iter().map(pattern) {
        if !all.contains(&pattern) {
            all.push(pattern);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owned(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn names_of_groups_show_what_differs() {
        let name = |names: &[&str]| shared_name(&owned(names));
        assert_eq!(name(&["a.0.q", "a.0.k", "a.0.v"]), "a.0.{q,k,v}");
        assert_eq!(name(&["a.0.down_proj"]), "a.0.down_proj");
        assert_eq!(name(&["a.0.experts.0.w1", "a.0.experts.1.w1"]), "a.0.experts.*");
    }

    #[test]
    fn numbers_of_experts_become_stars() {
        let modules = owned(&["l.0.experts.0.w1", "l.0.experts.1.w1", "l.0.experts.0.w2"]);
        assert_eq!(patterns(&modules, true), ["l.0.experts.*.w1", "l.0.experts.*.w2"]);
        assert_eq!(patterns(&modules, false), modules);
    }
}
