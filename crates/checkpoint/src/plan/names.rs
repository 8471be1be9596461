//! Names of modules and tensors in the output, and wording for the plan.

use super::error::others;
use super::{LayerId, PlanError, PlannedLayer, SourceStorage, SourceWeight};
use crate::recipe::Recipe;
use kvant_container::{Checkpoint, Layout, shown};
use kvant_formats::format::{FormatHandle, OutputFormat};
use kvant_gguf::model::restore::unread_tokenizer;
use kvant_model::model_config::ModelConfig;
use kvant_model::network::{Network, Notice, Place, Reason, ShapedLayer, Slot, expert_module};
use kvant_quant::glob::{Glob, nearest_names};
use kvant_quant::scheme::{EVALUATION_ONLY, TensorScheme};
use kvant_quant::tuning::Tuning;
use kvant_weights::parts::CannotHold;
use std::collections::{BTreeMap, BTreeSet};

/// What heads are called in architectures without a description, whose tied heads have no tensor to tell.
pub(super) const USUAL_HEADS: [&str; 4] = ["embed_out", "lm_head", "output_projection", "proj_out"];

/// A tensor's name with its module renamed.
pub(super) fn of_tensor(tensor: &str, rename: impl Fn(&str) -> String) -> String {
    match tensor.rsplit_once('.') {
        Some((module, leaf)) => format!("{}.{leaf}", rename(module)),
        None => tensor.to_owned(),
    }
}

/// The module of a head that the checkpoint has no tensor for.
pub(super) fn head(network: &Network) -> &'static str {
    let head = network.family().and_then(|family| family.trunk.heads.first());
    head.map_or("lm_head", |head| *head)
}

/// Loaders put quantized tensors into linear modules, which GPT-2's layers are not. Only `described` architectures can be written as
/// GGUF files.
pub(super) fn no_linear_module(described: bool) -> CannotHold {
    let hint = match described {
        true => "write a GGUF file with a GGUF scheme, e.g. ‹scheme› Q8_0, or floats with ‹format› fake",
        false => "write floats with ‹format› fake",
    };
    CannotHold::new("its weight is stored as [in, out] (a Conv1D), whose codes no loader reads", hint)
}

/// Says which excluded layers become floats where the output, `outputs_have`, has no place for their codes.
pub fn without_codes<'n>(mut excluded: impl Iterator<Item = &'n str>, outputs_have: &str) -> Option<String> {
    let first = excluded.next()?;
    let layers = match excluded.count() {
        0 => format!("`{first}` is excluded and becomes floats"),
        more => format!("`{first}` and {more} more are excluded and become floats"),
    };
    Some(format!("{layers}: {outputs_have} no place for the codes of the source"))
}

/// The plan's reason for copying a tensor.
pub(super) fn reason(place: Place) -> &'static str {
    match place {
        Place::Linear(_, Slot::Bias) | Place::Experts(_, Slot::Bias) => "bias",
        Place::Linear(_, Slot::Scale) | Place::Experts(_, Slot::Scale) => "scale",
        Place::Linear(_, Slot::Weight) | Place::Experts(_, Slot::Weight) => "weight",
        Place::Norm(..) => "norm",
        Place::Embedding => "embedding",
        Place::Positions | Place::RelativePositions => "positions",
        Place::DecoderPositions => "positions of the decoder",
        Place::TokenTypes => "token types",
        Place::LayerInputs => "inputs of layers",
        Place::Patches(_) => "patches of images",
        Place::SoundConvolution(_) => "convolution of sounds",
        Place::HeadBias => "bias",
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
    let each = fused().flat_map(|fused| (0..fused.experts).map(|e| expert_module(&fused.module, e)));
    linears.chain(each).chain(fused().map(|fused| fused.module.clone())).collect()
}

/// Refuses what is said of layers that there are none of: whoever spells such a pattern means others. Layers that are kept may also
/// be tensors that are never quantized, the head of a model whose head is its embedding, or those of other models where another
/// tool has listed them.
///
/// # Errors
/// The first such pattern.
pub(super) fn refuse_idle_rules<'t>(
    network: &Network,
    shaped: &[ShapedLayer],
    recipe: &Recipe,
    tensors: impl Iterator<Item = &'t str> + Clone,
) -> Result<(), PlanError> {
    // Rules also keep layers of a kind that is quantized.
    let reached = shaped.iter().filter(|layer| {
        recipe.layer_types().any(|kind| kind == layer.kind) || recipe.decide_shaped(layer.kind, &layer.module).is_some()
    });
    let modules: Vec<String> = modules(network).into_iter().chain(reached.map(|layer| layer.module.clone())).collect();
    let of_tensors =
        tensors.flat_map(|tensor| [Some(tensor), tensor.rsplit_once('.').map(|(module, _)| module)]).flatten();
    let kept = |glob: &Glob| of_tensors.clone().chain([head(network)]).any(|name| glob.matches(name));
    let idle = recipe.idle_rules(modules.iter().map(String::as_str)).into_iter();
    let mut wrong = idle.filter(|rule| match rule.choice.scheme() {
        Some(_) => true,
        None => !rule.may_be_idle && !kept(&rule.layers),
    });
    let Some(rule) = wrong.next() else { return Ok(()) };
    let ends: BTreeSet<&str> = modules.iter().filter_map(|module| module.rsplit('.').next()).collect();
    Err(PlanError::IdleOverride {
        pattern: rule.layers.pattern().to_owned(),
        excludes: rule.choice.scheme().is_none(),
        of_file: rule.of_file,
        nearest: nearest_names(&rule.layers, modules.iter().map(String::as_str)),
        ends: ends.into_iter().map(str::to_owned).collect(),
    })
}

/// Integer schemes that the format stores with one 32-bit integer for each weight.
fn unpacked(recipe: &Recipe, layers: &[PlannedLayer], layout: &Layout) -> Vec<String> {
    let is_large = |layer: &&PlannedLayer| {
        let weights = (layer.rows * layer.columns) as u64;
        matches!(layer.scheme.weight, TensorScheme::Int(_)) && layer.output_bytes(layout) >= 4 * weights
    };
    let schemes: BTreeSet<String> =
        layers.iter().filter(is_large).map(|layer| layer.scheme.weight.to_string()).collect();
    let notice = |scheme: &String| {
        format!(
            "`{scheme}` takes 32 bits for each weight in the format {}: ‹format› compressed-tensors packs it densely",
            recipe.format()
        )
    };
    schemes.iter().map(notice).collect()
}

/// What is said where it is not known that anything loads the result.
pub(super) fn unknown_loaders(network: &Network, config: &ModelConfig, format: OutputFormat) -> Option<String> {
    if format == OutputFormat::PlainFloats || format.describes_in_metadata() || network.family().is_some() {
        return None;
    }
    if !config.is_component {
        let reason = "what loads the result is not known for this architecture: try it before you rely on it";
        return Some(reason.to_owned());
    }
    let is_read = format == OutputFormat::Checkpoint(FormatHandle::TORCHAO);
    let reason = "diffusers does not load this layout: use ‹format› torchao or fake";
    (!is_read).then(|| reason.to_owned())
}

/// Notices for the user.
pub(super) fn notices(
    network: &Network,
    recipe: &Recipe,
    layers: &[PlannedLayer],
    layout: &Layout,
    outside: &[LayerId],
    checkpoint: &Checkpoint,
) -> Vec<String> {
    // Experts that are kept by default may be quantized all the same.
    let has_experts = layers.iter().any(|layer| layer.source.expert.is_some());
    let holds = |notice: &&Notice| !(has_experts && matches!(notice, Notice::KeptExperts { .. }));
    let of_network = network.notices().iter().filter(holds).map(Notice::to_string);
    let mut notices: Vec<String> = recipe.notes().iter().cloned().chain(of_network).collect();
    if let Some(first) = outside.first().map(|index| &layers[index.index()].name) {
        let (more, are) = (others(outside.len(), "layer"), if outside.len() > 1 { "are" } else { "is" });
        notices.push(format!(
            "`{first}`{more}, outside of the blocks, {are} rounded to nearest: {} works on blocks",
            recipe.algorithms()
        ));
    }
    let rounding = recipe.algorithms().rounding.name();
    let reads_few_bits = |layer: &PlannedLayer| {
        let input = layer.scheme.input.filter(|input| !input.needs_calibration());
        input.is_some_and(|input| input.scheme.format().bits() <= 4)
    };
    let learned = recipe.algorithms().tunings.iter().find(|tuning| matches!(tuning, Tuning::AutoRound(_)));
    if let Some(learned) = learned.filter(|_| rounding != "rtn" && layers.iter().any(reads_few_bits)) {
        let name = learned.name();
        notices.push(format!("with inputs of 4 bits {name} loses less after rounding to nearest than after {rounding}: leave {rounding} out"));
    }
    let weights: BTreeSet<String> = layers
        .iter()
        .filter(|layer| layer.scheme.weight.is_for_evaluation_only())
        .map(|layer| layer.scheme.weight.to_string())
        .collect();
    notices.extend(
        weights.iter().map(|weight| format!("`{weight}` is {EVALUATION_ONLY}, so weights become floats on its grid")),
    );
    let coarse: BTreeMap<String, String> = layers
        .iter()
        .filter_map(|layer| Some((layer.scheme.weight.to_string(), layer.scheme.weight.finer_spelling()?)))
        .collect();
    notices.extend(coarse.iter().map(|(scheme, finer)| {
        format!("`{scheme}` gives each weight a single scale, which costs accuracy: `{finer}` gives each group its own")
    }));
    if recipe.format() == OutputFormat::PlainFloats {
        notices.extend(left_to_evaluation(recipe, layers));
    } else {
        notices.extend(unpacked(recipe, layers, layout));
    }
    // A checkpoint of blocks becomes a GGUF file, which runtimes load.
    if recipe.format() == OutputFormat::TENSORS && !recipe.makes_blocks() {
        notices.push(
            "no runtime loads the result as a model: it is codes and scales, described in the metadata of their files \
             (`kvant verify` checks them, `kvant convert ‹to› float` gives their values)"
                .to_owned(),
        );
    }
    if let Some(head) = checkpoint.separated_head() {
        let values: usize = checkpoint.tensor(head).map_or(0, |tensor| tensor.shape().iter().product());
        notices.push(format!(
            "the head gets a separate weight, `{head}`, which the recipe names, and the embeddings that it shared stay as they are \
             ({values} more values)"
        ));
    }
    if !recipe.keep_defaults() && network.family().is_some() && network.head().is_none() && network.is_tied() {
        notices.push(
            "the output head is the embedding, which stays in float: ‹no-keep-defaults› does not quantize it"
                .to_owned(),
        );
    }
    let modules = modules(network);
    let keeps_other_kinds = |glob: &Glob| {
        let mut tensors = checkpoint.tensors().filter_map(|tensor| tensor.name().strip_suffix(".weight"));
        recipe.layer_types().next().is_some() && tensors.any(|module| glob.matches(module))
    };
    for rule in recipe.idle_rules(modules.iter().map(String::as_str)) {
        if keeps_other_kinds(&rule.layers) {
            continue;
        }
        notices.push(format!("`{}` names no linear layer, nothing changes", rule.layers));
    }
    notices.extend(cast_weights(layers));
    notices.extend(unread_tokenizer(checkpoint));
    notices.extend(kvant_formats::lora::notices(checkpoint));
    notices.extend(kvant_formats::rotation::notices(checkpoint, network));
    notices.extend(code_notice(checkpoint));
    for file in checkpoint.left_out_files().unwrap_or_default() {
        notices.push(format!("{} is not carried along: {}", shown(&file.name), file.reason));
    }
    notices
}

/// That weights in eight bits without scales are floats, and have lost something already.
fn cast_weights(layers: &[PlannedLayer]) -> Option<String> {
    let is_cast = |source: &SourceWeight| source.storage == SourceStorage::Plain && source.dtype.size() == 1;
    let cast: Vec<&PlannedLayer> = layers.iter().filter(|layer| is_cast(&layer.source)).collect();
    let tensor = &cast.first()?.source.tensor;
    let (more, are) = (others(cast.len(), "weight"), if cast.len() > 1 { "are" } else { "is" });
    Some(format!(
        "`{tensor}`{more} {are} fp8 without scales in the source: they are taken as floats, and what rounding to them lost stays lost"
    ))
}

/// That code goes along which nobody has looked at.
fn code_notice(checkpoint: &Checkpoint) -> Option<String> {
    let files = checkpoint.custom_code().files;
    let names: Vec<String> = files.iter().map(|file| shown(file)).collect();
    let subject =
        if let [name] = names.as_slice() { format!("{name} is") } else { format!("{} are", names.join(", ")) };
    let text = "copied, as the configuration names the model's own code: Kvant does not run it, loaders do \
                (trust_remote_code)";
    (!names.is_empty()).then(|| format!("{subject} {text}"))
}

/// That loaders of plain floats leave out what evaluation applies.
fn left_to_evaluation(recipe: &Recipe, layers: &[PlannedLayer]) -> Option<String> {
    let schemes = layers.iter().flat_map(|layer| [layer.scheme.input, layer.scheme.output]).flatten();
    let schemes: BTreeSet<String> = schemes.map(|scheme| format!("`{scheme}`")).collect();
    let attention = (!recipe.attention().is_empty()).then(|| "attention".to_owned());
    let all: Vec<String> = schemes.into_iter().chain(attention).collect();
    let what = all.join(", ");
    (!all.is_empty())
        .then(|| format!("loaders of plain floats leave activations in float ({what}); `kvant eval` quantizes them"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn non_linear_layer_kinds_get_a_hint_for_every_format() {
        let refusal = no_linear_module(true);
        assert!(refusal.reason.contains("Conv1D") && !refusal.reason.contains("quark"));
        assert!(refusal.hint.contains("‹scheme› Q8_0") && refusal.hint.contains("‹format› fake"));
    }
}
