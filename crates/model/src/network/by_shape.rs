//! Recognition without a description: 2-D floating-point weights whose names speak of neither embedding, norm, head
//! nor router are linear layers. Roles are guessed from the last part of the name, which is enough to find fused
//! siblings; no links are derived.

use std::collections::BTreeSet;

use super::names::parse_index;
use super::stacked_experts;
use super::surroundings::Surroundings;
use super::tables::is_embedding_name;
use super::{FamilyDraft, Linear, LinearId, Network, Notice, Place, Reason, Slot, TensorMeta, links, siblings};
use crate::family::{Family, Orientation, Part, Role, RowOrder, is_registered, kept_by_default, leaf};
use crate::model_config::ModelConfig;
use kvant_quant::glob::Glob;

/// Usual last parts of module names.
const LEAVES: &[(Role, &[&str])] = &[
    (Role::Query, &["q_proj", "wq"]),
    (Role::Key, &["k_proj", "wk"]),
    (Role::Value, &["v_proj", "wv"]),
    (Role::QueryKeyValue, &["qkv_proj", "query_key_value", "Wqkv", "c_attn", "wqkv"]),
    (Role::QueryDown, &["q_a_proj"]),
    (Role::QueryUp, &["q_b_proj"]),
    (Role::KeyValueDown, &["kv_a_proj_with_mqa"]),
    (Role::KeyValueUp, &["kv_b_proj"]),
    (Role::Output, &["o_proj", "out_proj", "wo"]),
    (Role::Gate, &["gate_proj", "w1"]),
    (Role::Up, &["up_proj", "w3"]),
    (Role::GateUp, &["gate_up_proj"]),
    (Role::Down, &["down_proj", "w2"]),
];

/// Last parts of the names of output heads.
const HEADS: &[&str] = &[
    "lm_head",
    "embed_out",
    "output_layer",
    "output",
    "output_projection",
    "head",
    "unembed",
    "score",
    "classifier",
    "proj_out",
];

/// Name parts of an output head: deeper modules are layers of the model.
const ABOVE_HEADS: &[&str] = &["model", "language_model", "transformer", "thinker"];

/// Last words of the names of what makes classes, boxes or scores out of the last hidden state.
const PREDICTORS: &[&str] = &["classifier", "head", "heads", "predictor", "scorer"];

/// Parts of names that say the same.
const PREDICTIONS: &[&str] = &["bbox_embed", "class_embed", "qa_outputs"];

/// Last parts of the names of routers, if the output is narrow.
const ROUTERS: &[&str] = &["gate", "router", "wg", "shared_expert_gate"];

/// Last parts of the names of small layers that make decay rates, step sizes and gates of recurrent and sparse attention.
const GATES: &[&str] =
    &["a_proj", "b_proj", "dt_proj", "in_proj_a", "in_proj_b", "in_proj_ba", "weights_proj", "x_proj"];

/// The most outputs of a layer of unknown purpose that is taken for a gate of heads.
const GATE_ROWS: usize = 128;

/// Words in the names of what turns a step of denoising into scales and shifts, in components of diffusers pipelines. Some models compute
/// these layers in f32 whatever the type of the others.
const CONDITIONS: &[&str] = &["time", "timestep", "guidance", "mod", "modulation", "adaln"];

/// Parts of names that say the same in the original files of diffusion models.
const CONDITION_PARTS: &[&str] = &["emb_layers", "label_emb", "t_embedder", "vector_in", "y_embedder"];

/// The first parts of names in files that hold a whole pipeline, but for those of the network that denoises.
const BESIDE_DIFFUSION: &[&str] = &["cond_stage_model", "conditioner", "first_stage_model", "text_encoders", "vae"];

/// Fewer inputs or outputs than these make a layer of unknown purpose too small to be worth a scale.
const FEW: usize = 8;

pub(super) fn recognise(family: Option<&'static Family>, config: &ModelConfig, tensors: &[TensorMeta]) -> Network {
    let mut linears = Vec::new();
    let surroundings = Surroundings::of(config, tensors);
    let numbered = tensors.iter().enumerate();
    let place = |(at, tensor)| place_weight(at, tensor, config, &surroundings, &mut linears);
    let places = numbered.map(place).collect();
    let mut places = attach_rest(tensors, places, &mut linears);
    let experts = stacked_experts::find(tensors, config.hidden_size, &mut places);
    orient(tensors, &mut linears);
    keep(&mut linears, config);
    let siblings = siblings::assign(&mut linears);
    let blocks = linears.iter().filter_map(|linear| linear.block).chain(experts.iter().map(|experts| experts.block));
    let blocks: BTreeSet<usize> = blocks.collect();
    let has_head = linears.iter().any(|linear| linear.role == Role::Head);
    // Components of diffusers pipelines are no decoders, which is all that descriptions are of.
    let can_be_described = !config.is_component && FamilyDraft::new(config, tensors).is_some();
    Network {
        family: None,
        can_be_described,
        trunk: String::new(),
        blocks: blocks.into_iter().collect(),
        unclear: BTreeSet::new(),
        sharing: BTreeSet::new(),
        passed_over: BTreeSet::new(),
        facts: links::Facts::default(),
        head_bias: None,
        tied: !has_head || config.tie_word_embeddings == Some(true),
        notices: notices(family, config, can_be_described, tensors, &places),
        unplaced_modules: super::unplaced_modules(tensors, &places),
        linears,
        experts,
        norms: Vec::new(),
        siblings,
        places,
    }
}

/// The place of a tensor, which becomes a layer if it is the weight of one.
fn place_weight(
    at: usize,
    tensor: &TensorMeta,
    config: &ModelConfig,
    surroundings: &Surroundings,
    linears: &mut Vec<Linear>,
) -> Place {
    let reason = surroundings.reason(tensor);
    if reason != Reason::Unrecognised {
        return Place::Other(reason);
    }
    if index_after(&tensor.name, |part| part == "layers") >= Some(config.num_layers.unwrap_or(usize::MAX)) {
        return Place::Other(Reason::ExtraLayer);
    }
    let (Some(module), &[out_features, in_features]) = (tensor.name.strip_suffix(".weight"), tensor.shape.as_slice())
    else {
        return Place::Other(Reason::NotLinear);
    };
    if is_embedding(module, out_features, config) {
        return Place::Embedding;
    }
    if is_norm(leaf(module)) {
        return Place::Other(Reason::NotLinear);
    }
    linears.push(linear(at, module, out_features, in_features, config));
    Place::Linear(LinearId(linears.len() - 1), Slot::Weight)
}

fn linear(at: usize, module: &str, out_features: usize, in_features: usize, config: &ModelConfig) -> Linear {
    let role = role(module, out_features, in_features, config);
    Linear {
        module: module.to_owned(),
        role,
        part: part(module, role),
        block: index_after(module, |_| true),
        expert: index_after(module, |part| part == "experts"),
        orientation: Orientation::OutIn,
        rows: RowOrder::Stacked,
        in_features,
        out_features,
        siblings: None,
        weight: at,
        bias: None,
        scale: None,
        kept: false,
    }
}

/// Turns weights that are stored as `[in, out]` (transformers' Conv1D), which show by a bias of as many values as columns. Where some of a
/// model's blocks are, all are of which no bias shows the opposite.
fn orient(tensors: &[TensorMeta], linears: &mut [Linear]) {
    let shown = |linear: &Linear| {
        let length = tensors[linear.bias?].shape.iter().product::<usize>();
        match (length == linear.out_features, length == linear.in_features) {
            (true, false) => Some(Orientation::OutIn),
            (false, true) => Some(Orientation::InOut),
            _ => None,
        }
    };
    if !linears.iter().any(|linear| shown(linear) == Some(Orientation::InOut)) {
        return;
    }
    for linear in linears.iter_mut().filter(|linear| linear.block.is_some()) {
        if shown(linear) != Some(Orientation::OutIn) {
            linear.orientation = Orientation::InOut;
            std::mem::swap(&mut linear.in_features, &mut linear.out_features);
        }
    }
}

/// Marks the layers to keep: by role, by known names of the architecture, and small layers that decide routing or gating.
fn keep(linears: &mut [Linear], config: &ModelConfig) {
    let known = config.model_types.iter().find_map(|name| kept_by_default(name));
    let globs: Vec<Glob> = known.unwrap_or_default().iter().map(|glob| Glob::new(glob)).collect();
    for linear in linears {
        let by_name = globs.iter().any(|glob| glob.matches(&linear.module));
        linear.kept = linear.role.is_kept_by_default() || by_name || is_delicate(linear, config);
    }
}

/// Gates, scores, predictions, and what scales and shifts behind norms: errors there cost most, and there is little to gain.
fn is_delicate(linear: &Linear, config: &ModelConfig) -> bool {
    let module = linear.module.as_str();
    linear.out_features == 1
        || is_gate(linear, config)
        || is_prediction(module)
        || (may_be_diffusion(config) && (is_condition(module) || is_beside_diffusion(module)))
        || module.split('.').any(is_norm)
        || (linear.role == Role::Unknown && linear.out_features.min(linear.in_features) < FEW)
}

/// Named like a gate, or inside a block with a few outputs, as many as there are heads.
fn is_gate(linear: &Linear, config: &ModelConfig) -> bool {
    let heads = config.num_heads == Some(linear.out_features);
    let narrow = linear.out_features <= GATE_ROWS && linear.out_features * 16 <= linear.in_features;
    let unknown = linear.role == Role::Unknown && linear.block.is_some();
    GATES.contains(&leaf(&linear.module))
        || (unknown && (narrow || (heads && linear.out_features < linear.in_features)))
}

/// Named like what makes the model's predictions, outside of its blocks.
fn is_prediction(module: &str) -> bool {
    let mut outside = module.split('.').take_while(|part| parse_index(part).is_none());
    let predicts = |part: &str| part.rsplit_once('_').is_some_and(|(_, word)| PREDICTORS.contains(&word));
    outside.any(|part| PREDICTIONS.contains(&part) || predicts(part))
}

/// A component of a pipeline, or weights without a config.json, as diffusion models in one file are.
fn may_be_diffusion(config: &ModelConfig) -> bool {
    config.is_component || (config.model_types.is_empty() && config.architectures.is_empty())
}

/// Named like what makes scales and shifts of a step of denoising.
fn is_condition(module: &str) -> bool {
    let by_word = module.split(['.', '_']).any(|word| CONDITIONS.iter().any(|known| word.eq_ignore_ascii_case(known)));
    by_word || module.split('.').any(|part| CONDITION_PARTS.contains(&part))
}

/// In a model that one file holds beside the network that denoises: a text encoder, or what turns latents into pictures.
fn is_beside_diffusion(module: &str) -> bool {
    module.split('.').next().is_some_and(|first| BESIDE_DIFFUSION.contains(&first))
}

fn role(module: &str, out_features: usize, in_features: usize, config: &ModelConfig) -> Role {
    let leaf = leaf(module);
    if is_head(module) {
        return Role::Head;
    }
    if is_router(module, out_features, in_features, config) {
        return if out_features == 1 { Role::SharedGate } else { Role::Router };
    }
    role_of_leaf(leaf).unwrap_or(Role::Unknown)
}

/// The role that layers of this name usually have.
pub(super) fn role_of_leaf(leaf: &str) -> Option<Role> {
    LEAVES.iter().find(|(_, leaves)| leaves.contains(&leaf)).map(|(role, _)| *role)
}

/// Named like a head, outside of the blocks and not deep inside the model.
pub(super) fn is_head(module: &str) -> bool {
    let above = module.rsplit_once('.').map_or("", |(above, _)| above);
    HEADS.contains(&leaf(module)) && (above.is_empty() || above.split('.').all(|part| ABOVE_HEADS.contains(&part)))
}

/// A layer of what is called a router, or named like one, with as many outputs as there are experts (or some more, which stand for
/// none), or few if their number is not known.
fn is_router(module: &str, out_features: usize, in_features: usize, config: &ModelConfig) -> bool {
    let says_router = |part: &str| part.split('_').any(|word| word == "router");
    let experts = config.experts.as_ref().map(|experts| experts.count);
    let few = experts.is_none_or(|count| out_features <= 2 * count) && out_features <= in_features / 4;
    let narrow = out_features == 1 || few || experts == Some(out_features);
    module.split('.').any(says_router) || (ROUTERS.contains(&leaf(module)) && narrow)
}

/// Named like an embedding, or outside the blocks with a row per token and not named like a head.
fn is_embedding(module: &str, out_features: usize, config: &ModelConfig) -> bool {
    let leaf = leaf(module);
    let named = is_embedding_name(module) || leaf == "relative_attention_bias";
    let outside = index_after(module, |_| true).is_none();
    let has_row_per_token = outside && config.vocab_size == Some(out_features);
    !HEADS.contains(&leaf) && !is_prediction(module) && (named || has_row_per_token)
}

fn is_norm(part: &str) -> bool {
    part.contains("norm") || part.starts_with("ln_") || part == "ln"
}

pub(super) fn part(module: &str, role: Role) -> Part {
    match role {
        Role::Head => Part::Trunk,
        Role::Router | Role::SharedGate => Part::Routing,
        Role::Unknown => Part::Unknown,
        _ if module.contains("shared_expert") => Part::SharedExperts,
        _ if index_after(module, |part| part == "experts").is_some() => Part::Experts,
        Role::Gate | Role::Up | Role::GateUp | Role::Down => Part::Mlp,
        _ => Part::Attention,
    }
}

/// The first number in a dotted name whose left neighbour satisfies `is_list`.
pub(super) fn index_after(module: &str, is_list: impl Fn(&str) -> bool) -> Option<usize> {
    let parts: Vec<&str> = module.split('.').collect();
    let mut pairs = parts.windows(2);
    pairs.find_map(|pair| parse_index(pair[1]).filter(|_| is_list(pair[0])))
}

/// Attaches biases and fp8 scales to their layers.
fn attach_rest(tensors: &[TensorMeta], mut places: Vec<Place>, linears: &mut [Linear]) -> Vec<Place> {
    let by_module: std::collections::HashMap<String, usize> =
        linears.iter().enumerate().map(|(at, linear)| (linear.module.clone(), at)).collect();
    for (at, tensor) in tensors.iter().enumerate() {
        let Some((module, last)) = tensor.name.rsplit_once('.') else { continue };
        let Some(&id) = by_module.get(module) else { continue };
        let (target, slot) = match last {
            "bias" => (&mut linears[id].bias, Slot::Bias),
            "weight_scale_inv" | "weight_scale" => (&mut linears[id].scale, Slot::Scale),
            _ => continue,
        };
        *target = Some(at);
        places[at] = Place::Linear(LinearId(id), slot);
    }
    places
}

fn notices(
    family: Option<&'static Family>,
    config: &ModelConfig,
    can_be_described: bool,
    tensors: &[TensorMeta],
    places: &[Place],
) -> Vec<Notice> {
    let name = config.model_types.first().or(config.architectures.first());
    let unknown = match family {
        Some(Family { name: family, .. }) => {
            Some(Notice::ForeignNames { family, is_registered: is_registered(family) })
        }
        None if config.is_component => None,
        None => Some(name.map_or(Notice::NoArchitecture, |name| Notice::UnknownArchitecture {
            name: name.clone(),
            can_be_described,
            described: crate::family::described_by_users(),
        })),
    };
    let mut notices: Vec<Notice> = unknown.into_iter().collect();
    notices.extend(super::common_notices(tensors, places));
    notices.extend(stacked_experts_notice(tensors, places));
    notices.extend(unknown_experts(tensors, places));
    notices
}

/// That experts in one tensor are kept, and how they are quantized.
fn stacked_experts_notice(tensors: &[TensorMeta], places: &[Place]) -> Option<Notice> {
    let is_weight = |place: &&Place| matches!(place, Place::Experts(_, Slot::Weight));
    let first = places.iter().position(|place| is_weight(&place))?;
    let first = tensors[first].name.clone();
    Some(Notice::KeptExperts { tensors: places.iter().filter(is_weight).count(), first })
}

fn unknown_experts(tensors: &[TensorMeta], places: &[Place]) -> Option<Notice> {
    let both = tensors.iter().zip(places);
    let mut stacked = both.filter(|(tensor, place)| {
        **place == Place::Other(Reason::NotLinear) && tensor.shape.len() == 3 && tensor.name.contains("experts")
    });
    let first = stacked.next()?.0.name.clone();
    Some(Notice::UnknownExperts { tensors: 1 + stacked.count(), first })
}
