//! What modules and tensors are called in the output, and words for the plan.

use super::{PlanError, PlannedLayer};
use crate::export::{CannotHold, Export};
use crate::family::Family;
use crate::gguf::restore::unread_tokenizer;
use crate::network::{Network, Notice, Place, Reason, Slot};
use crate::recipe::Recipe;
use kvant_container::Checkpoint;
use kvant_quant::scheme::TensorScheme;
use std::collections::BTreeSet;

/// Names that transformers gives modules in memory where they differ from those on disk, by family. AMD Quark writes and
/// reads the former.
const IN_MEMORY: &[(&str, &[(&str, &str)])] = &[
    ("gpt_neox", &[("embed_out", "lm_head")]),
    ("mixtral", &[("block_sparse_moe", "mlp"), ("w1", "gate_proj"), ("w2", "down_proj"), ("w3", "up_proj")]),
];

/// What heads are called in architectures without a description, whose tied heads have no tensor to tell.
pub(super) const USUAL_HEADS: [&str; 4] = ["embed_out", "lm_head", "output_projection", "proj_out"];

/// A module's name as transformers has it in memory.
pub(super) fn in_memory(family: &Family, module: &str) -> String {
    let Some((_, names)) = IN_MEMORY.iter().find(|(name, _)| *name == family.name) else {
        return module.to_owned();
    };
    let rename = |part| names.iter().find(|(disk, _)| *disk == part).map_or(part, |(_, memory)| *memory);
    module.split('.').map(rename).collect::<Vec<_>>().join(".")
}

/// A module's name as it is on disk, whichever it has.
pub(super) fn on_disk(family: &Family, module: &str) -> String {
    let Some((_, names)) = IN_MEMORY.iter().find(|(name, _)| *name == family.name) else {
        return module.to_owned();
    };
    let rename = |part| names.iter().find(|(_, memory)| *memory == part).map_or(part, |(disk, _)| *disk);
    module.split('.').map(rename).collect::<Vec<_>>().join(".")
}

/// A tensor's name with its module renamed.
pub(super) fn of_tensor(tensor: &str, rename: impl Fn(&str) -> String) -> String {
    match tensor.rsplit_once('.') {
        Some((module, leaf)) => format!("{}.{leaf}", rename(module)),
        None => tensor.to_owned(),
    }
}

/// The module of one expert: `experts.gate_up_proj` becomes `experts.3.gate_up_proj`.
pub(crate) fn of_expert(module: &str, expert: usize) -> String {
    match module.rsplit_once('.') {
        Some((parent, leaf)) => format!("{parent}.{expert}.{leaf}"),
        None => format!("{expert}.{module}"),
    }
}

/// The module of a head that the checkpoint has no tensor for.
pub(super) fn head(network: &Network) -> &'static str {
    let head = network.family().and_then(|family| family.trunk.heads.first());
    head.map_or("lm_head", |head| *head)
}

/// Loaders put quantized tensors into linear modules; GPT-2's layers are of another kind.
pub(super) fn no_linear_module() -> CannotHold {
    CannotHold {
        reason: "its weight is stored as [in, out] (a Conv1D), whose codes no loader reads".to_owned(),
        hint: "write a GGUF file with a scheme of its own, e.g. --scheme Q8_0, or floats with --format fake".to_owned(),
    }
}

/// Why a tensor is carried over, in the words of the plan.
pub(super) fn reason(place: Place) -> &'static str {
    match place {
        Place::Linear(_, Slot::Bias) | Place::Experts(_, Slot::Bias) => "bias",
        Place::Linear(_, Slot::Scale) | Place::Experts(_, Slot::Scale) => "scale",
        Place::Linear(_, Slot::Weight) | Place::Experts(_, Slot::Weight) => "weight",
        Place::Norm(..) => "norm",
        Place::Embedding => "embedding",
        Place::Positions => "positions",
        Place::Parameter => "parameter",
        Place::Other(Reason::Buffer) => "buffer",
        Place::Other(Reason::Modality) => "vision or audio",
        Place::Other(Reason::ExtraLayer) => "extra layer",
        Place::Other(Reason::Quantized) => "quantized already",
        Place::Other(Reason::NotLinear | Reason::Unrecognised) => "not a linear layer",
    }
}

/// The names of all linear layers, those of fused experts one by one and together.
fn modules(network: &Network) -> Vec<String> {
    let linears = network.linears().iter().map(|linear| linear.module.clone());
    let fused = || network.experts().iter();
    let each = fused().flat_map(|fused| (0..fused.experts).map(|e| of_expert(&fused.module, e)));
    linears.chain(each).chain(fused().map(|fused| fused.module.clone())).collect()
}

/// Refuses a scheme for layers that there are none of: whoever spells such a pattern means others. Layers to keep may be missing, as
/// recipes name those of several models.
///
/// # Errors
/// The first such pattern.
pub(super) fn refuse_idle_overrides(network: &Network, recipe: &Recipe) -> Result<(), PlanError> {
    let modules = modules(network);
    let idle = recipe.idle_rules(modules.iter().map(String::as_str));
    let Some(rule) = idle.into_iter().find(|rule| rule.choice.scheme().is_some()) else { return Ok(()) };
    let ends: BTreeSet<&str> = modules.iter().filter_map(|module| module.rsplit('.').next()).collect();
    Err(PlanError::IdleOverride {
        pattern: rule.layers.pattern().to_owned(),
        ends: ends.into_iter().map(str::to_owned).collect(),
    })
}

/// What the user should know.
pub(super) fn notices(
    network: &Network,
    recipe: &Recipe,
    layers: &[PlannedLayer],
    outside: &[usize],
    checkpoint: &Checkpoint,
) -> Vec<String> {
    let of_network = network.notices().iter().map(Notice::to_string);
    let mut notices: Vec<String> = recipe.notes().iter().cloned().chain(of_network).collect();
    if let Some(first) = outside.first().map(|index| &layers[*index].name) {
        let (more, are) = match outside.len() - 1 {
            0 => (String::new(), "is"),
            1 => (" and one more layer".to_owned(), "are"),
            more => (format!(" and {more} more layers"), "are"),
        };
        notices.push(format!(
            "`{first}`{more}, outside of the blocks, {are} rounded to nearest: {} works on blocks",
            recipe.algorithms()
        ));
    }
    let simulated = layers.iter().find(|layer| matches!(layer.scheme.weight, TensorScheme::Block(_)));
    if let Some(layer) = simulated {
        notices.push(format!("no loader reads codes of `{}`: its values are stored as floats", layer.scheme.weight));
    }
    if let Some(input) = layers.iter().find_map(|layer| layer.scheme.input).filter(|_| recipe.export() == Export::Fake)
    {
        notices.push(format!("a loader of plain floats does not quantize inputs (`{input}`)"));
    }
    if !recipe.attention().is_empty() && recipe.export() == Export::Fake {
        notices.push("a loader of plain floats does not quantize the KV cache or attention".to_owned());
    }
    if network.family().is_none() && recipe.export() != Export::Fake {
        notices
            .push("what loads the result is not known for this architecture: try it before you rely on it".to_owned());
    }
    let modules = modules(network);
    for rule in recipe.idle_rules(modules.iter().map(String::as_str)) {
        notices.push(format!("no linear layer matches `{}`", rule.layers));
    }
    notices.extend(unread_tokenizer(checkpoint));
    for file in checkpoint.left_out_files().unwrap_or_default() {
        notices.push(format!("{} is not carried along: {}", file.name.display(), file.reason));
    }
    notices
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_of_another_kind_have_a_way_out_whatever_the_layout() {
        let refusal = no_linear_module();
        assert!(refusal.reason.contains("Conv1D") && !refusal.reason.contains("quark"));
        assert!(refusal.hint.contains("--scheme Q8_0") && refusal.hint.contains("--format fake"));
    }
}
