//! The end of planning: types are chosen, metadata and tokenizer described, everything laid out.

use super::build::Planner;
use super::convert::{Fits, file_type_of};
use super::types::{Candidate, choose_type, recipe_notices};
use super::{Content, GgufPlan, GgufPlanError, PlannedTensor, Reason};
use crate::gguf::recipe::GgufRecipe;
use crate::gguf::source::kept_type;
use crate::plan::{source_bytes, source_text, without_codes};
use kvant_container::Checkpoint;
use kvant_container::gguf::{GgufDeclaration, GgufLayout, Metadata, TensorType};
use kvant_gguf::ftype::{Category, Model, is_70b};
use kvant_gguf::model::metadata::{self, Facts};
use kvant_gguf::model::rope;
use kvant_gguf::model::tokenizer::{self, Habits};
use kvant_gguf::model::{BlockNumbers, Draft};
use kvant_model::family::AttentionScale;
use kvant_model::network::{Notice, TensorMeta};
use kvant_numeric::simd::Isa;
use kvant_weights::float_dtype::float_dtype;
use kvant_weights::weight::{Band, ImportedTensor, Stored, WeightMatrix};
use std::collections::BTreeMap;
use std::path::Path;
use xxhash_rust::xxh3::xxh3_128;

impl Planner<'_> {
    pub(super) fn finish(
        mut self,
        tensors: &[ImportedTensor<'_>],
        checkpoint: &Checkpoint,
        recipe: GgufRecipe,
        fits: Option<&Fits>,
        names: Names<'_>,
    ) -> Result<GgufPlan, GgufPlanError> {
        let vocabulary = self.model.drafts.iter().find(|draft| draft.category == Category::Embedding);
        let vocabulary = vocabulary.map_or(0, |draft| draft.shape[0]);
        let (config, family, architecture) = (self.model.config, self.model.family, self.model.architecture);
        let blocks = self.model.network.blocks().len();
        let facts = Facts { config, family, architecture, blocks, vocabulary };
        for (name, values) in rope::factors(&facts)? {
            let (shape, content) = (vec![values.len()], Content::Values(values));
            let (name, category) = (name.to_owned(), Category::Other);
            self.model.drafts.push(Draft {
                name,
                shape,
                content,
                block: None,
                category,
                modules: Vec::new(),
                fixed: true,
            });
        }
        let file_type =
            fits.and_then(|fits| file_type_of(&self.model.drafts, fits)).unwrap_or(recipe.ftype().row().file_type);
        let mut metadata = metadata::of_model(&facts, &model_name(names.model), file_type)?;
        for BlockNumbers { key, tensors: positions } in &self.model.numbers {
            let values = positions.iter().map(|position| self.number(*position, tensors, checkpoint));
            metadata.set(*key, values.collect::<Result<Vec<f32>, _>>()?);
        }
        let habits = Habits { family: family.name, rows: vocabulary };
        let mut notices = tokenizer::describe(checkpoint, habits, &mut metadata)?;
        notices.extend(tokenizer::rename(&mut metadata));
        notices.extend(self.notices(&recipe)?);
        notices.extend(kvant_formats::lora::notices(checkpoint));
        let of_graph = [
            other_pattern,
            other_caps,
            other_scale,
            other_routing,
            other_choice,
            other_activation,
            other_clipping,
            other_direction,
        ]
        .into_iter();
        let departures =
            other_windows(&facts, &metadata).into_iter().chain(of_graph.filter_map(|find| find(&facts))).collect();
        if let Some(importance) = recipe.importance() {
            importance.describe(&mut metadata);
        }
        let planned = self.typed(tensors, &recipe, fits)?;
        notices.extend(loss_notices(&planned, fits));
        notices.extend(widening_notice(&planned, tensors));
        check_importance(&recipe, &planned)?;
        notices.extend(importance_notice(&recipe, &planned));
        let layout = GgufLayout::new(names.file, &metadata, planned.iter().map(declaration).collect())
            .map_err(kvant_container::Error::from)?;
        Ok(GgufPlan {
            family: Some(family.name),
            architecture: architecture.name.to_owned(),
            fingerprint: fingerprint(checkpoint, &recipe, &layout, &planned),
            sources: self.model.tensors.iter().map(|tensor| tensor.name.clone()).collect(),
            source_bytes: source_bytes(checkpoint),
            dropped: self.model.dropped,
            recipe,
            metadata,
            tensors: planned,
            layout,
            in_parts: false,
            notices,
            departures,
        })
    }

    /// The only element of a tensor of the source, which the metadata state. If the checkpoint is not written yet, the
    /// tensor is read from its source, which has the same values.
    fn number(
        &self,
        position: usize,
        tensors: &[ImportedTensor<'_>],
        checkpoint: &Checkpoint,
    ) -> Result<f32, GgufPlanError> {
        let TensorMeta { name, dtype, .. } = &self.model.tensors[position];
        let imported = tensors.get(position).and_then(|tensor| match &tensor.stored {
            Stored::Plain(view) => Some(*view),
            Stored::Packed(_) => None,
        });
        let view = imported.or_else(|| checkpoint.tensor(name));
        let read =
            view.and_then(|view| Some(WeightMatrix::plain(view.bytes(), float_dtype(view.dtype())?, (1, 1), false)));
        let Some(matrix) = read else {
            return Err(GgufPlanError::SourceType { tensor: name.clone(), dtype: dtype.clone() });
        };
        let mut values = Vec::new();
        matrix.read(Isa::best(), &Band { rows: 0..1, columns: 0..1 }, &mut values);
        let number = values.first().copied().filter(|number| number.is_finite());
        number.ok_or_else(|| self.model.shape_error(position, "a finite number is expected"))
    }

    fn notices(&self, recipe: &GgufRecipe) -> Result<Vec<String>, GgufPlanError> {
        let mut notices: Vec<String> =
            self.model.network.notices().iter().filter(is_reported).map(Notice::to_string).collect();
        let others = self.model.dropped.iter().filter(|tensor| tensor.reason == "vision or audio").count();
        if others > 0 {
            notices
                .push(format!("tensors of vision or audio ({others}) are left out: the file holds the language model"));
        }
        let names: Vec<Vec<&str>> = self.model.drafts.iter().map(all_names).collect();
        notices.extend(recipe_notices(recipe, &names)?);
        Ok(notices)
    }

    /// All tensors with their types, in the order of the file: the embedding, block after block, what stands behind.
    fn typed(
        &mut self,
        tensors: &[ImportedTensor<'_>],
        recipe: &GgufRecipe,
        fits: Option<&Fits>,
    ) -> Result<Vec<PlannedTensor>, GgufPlanError> {
        let mut drafts = std::mem::take(&mut self.model.drafts);
        drafts.sort_by_key(|draft| (order(draft), draft.block));
        let model = self.model(&drafts, recipe);
        let mut values = 0;
        let mut typed = Vec::with_capacity(drafts.len());
        for draft in drafts {
            let candidate = Candidate {
                name: &draft.name,
                modules: &draft.modules,
                category: draft.category,
                value: values,
                block: draft.block.unwrap_or(0),
                shape: &draft.shape,
                stored: stored(tensors, &draft.content),
                fixed: draft.fixed,
            };
            let fit = fits.and_then(|fits| fits.get(&draft.name));
            let (kind, reason) = match fit {
                Some(fit) if fit.carried.is_some() => (fit.kind, Reason::Carried),
                Some(fit) if fit.loss.is_some() => (fit.kind, Reason::Anew),
                Some(fit) => (fit.kind, Reason::Kept),
                None if matches!(draft.content, Content::Integers(_)) => (TensorType::I32, Reason::Fixed),
                None => choose_type(recipe, &model, &candidate)?,
            };
            let carried = fit.and_then(|fit| fit.carried);
            values += usize::from(matches!(draft.category, Category::Value { .. }));
            let Draft { name, shape, content, block, modules, .. } = draft;
            typed.push(PlannedTensor { name, kind, shape, content, reason, carried, block, modules });
        }
        Ok(typed)
    }

    fn model(&self, drafts: &[Draft], recipe: &GgufRecipe) -> Model {
        let (heads, groups) = (self.model.config.num_heads.unwrap_or(1), self.model.config.num_kv_heads().unwrap_or(1));
        let blocks = self.model.network.blocks().len();
        let is_value = |draft: &&Draft| matches!(draft.category, Category::Value { .. });
        Model {
            blocks,
            experts: self.model.config.experts.as_ref().map_or(0, |experts| experts.count),
            heads_per_group: heads / groups.max(1),
            values: drafts.iter().filter(is_value).count(),
            tied: !drafts.iter().any(|draft| draft.category == Category::Head),
            is_70b: is_70b(self.model.architecture.name, blocks, heads, groups),
            has_importance: recipe.has_importance(),
        }
    }
}

/// The type of the source's floats.
fn stored(tensors: &[ImportedTensor<'_>], content: &Content) -> TensorType {
    match content {
        Content::Slabs(slabs) => kept_type(tensors, slabs),
        Content::Taken(_) | Content::Values(_) => TensorType::F32,
        Content::Integers(_) => TensorType::I32,
    }
}

/// Returns whether a notice applies here: quantized and omitted tensors are reported differently.
fn is_reported(notice: &&Notice) -> bool {
    matches!(notice, Notice::ExtraLayers { .. })
}

/// All names by which a tensor can be called.
fn all_names(draft: &Draft) -> Vec<&str> {
    let stem = draft.name.strip_suffix(".weight").unwrap_or(&draft.name);
    [draft.name.as_str(), stem].into_iter().chain(draft.modules.iter().map(String::as_str)).collect()
}

/// The position of a tensor in the file.
fn order(draft: &Draft) -> u8 {
    match (draft.block, draft.name.starts_with("output")) {
        (None, false) => 0,
        (Some(_), _) => 1,
        (None, true) => 2,
    }
}

pub(super) fn declaration(tensor: &PlannedTensor) -> GgufDeclaration {
    GgufDeclaration { name: tensor.name.clone(), kind: tensor.kind, shape: tensor.shape.clone() }
}

/// The name of a file, and the directory that gives the model its name.
pub(super) struct Names<'a> {
    pub file: &'a str,
    pub model: &'a Path,
}

/// The name of the model: that of its directory.
fn model_name(directory: &Path) -> String {
    let path = directory.canonicalize().unwrap_or_else(|_| directory.to_path_buf());
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
    name.unwrap_or_else(|| "model".to_owned())
}

/// Importance must be that of this model.
pub(super) fn check_importance(recipe: &GgufRecipe, tensors: &[PlannedTensor]) -> Result<(), GgufPlanError> {
    let Some(importance) = recipe.importance() else { return Ok(()) };
    for tensor in tensors.iter().filter(|tensor| tensor.is_quantized()) {
        let matrices = if tensor.shape.len() > 2 { tensor.shape[0] } else { 1 };
        let expected = tensor.columns() * matrices;
        let found = importance.len_of(&tensor.name);
        if let Some(found) = found.filter(|found| *found != expected) {
            return Err(GgufPlanError::Importance { tensor: tensor.name.clone(), found, expected });
        }
    }
    Ok(())
}

/// Architectures that read the length of a sliding window and compute none.
const WINDOWS_IGNORED: [&str; 2] = ["phi3", "phimoe"];

/// Sliding windows that the graph of the architecture does not compute.
fn other_windows(facts: &Facts<'_>, metadata: &Metadata) -> Option<String> {
    let config = facts.config;
    let window = config.sliding_window.filter(|_| config.flag_or("use_sliding_window", true))?;
    let is_stated = metadata.get(&facts.key("attention.sliding_window")).is_some();
    let is_computed = is_stated && !WINDOWS_IGNORED.contains(&facts.architecture.name);
    let matters = !is_computed && config.max_positions.is_none_or(|longest| window < longest);
    matters.then(|| {
        format!(
            "llama.cpp's graph of `{}` has no sliding windows: texts of more than {window} tokens are computed otherwise",
            facts.architecture.name
        )
    })
}

/// Architectures whose graphs have full attention in the last of so many layers, and sliding windows in the others.
const PERIODS: [(&str, usize); 4] = [("gemma2", 2), ("gemma3", 6), ("cohere2", 4), ("gpt-oss", 2)];

/// Layers with sliding windows that are others than those of the graph of the architecture.
fn other_pattern(facts: &Facts<'_>) -> Option<String> {
    let (name, period) = PERIODS.iter().find(|(name, _)| *name == facts.architecture.name)?;
    let config = facts.config;
    let window = config.sliding_window?;
    let matters = config.max_positions.is_none_or(|longest| window < longest);
    let is_other =
        |(layer, kind): (usize, &String)| (kind == "sliding_attention") == (layer + 1).is_multiple_of(*period);
    let differs = config.layer_types.iter().enumerate().any(is_other);
    (matters && differs).then(|| {
        format!(
            "llama.cpp's graph of `{name}` has full attention in one of {period} layers, and `layer_types` says otherwise: texts of \
             more than {window} tokens are computed otherwise"
        )
    })
}

/// The caps that llama.cpp applies to Gemma 2 where config.json states none.
fn other_caps(facts: &Facts<'_>) -> Option<String> {
    let config = facts.config;
    let has_both = config.attention_softcap.is_some() && config.logit_softcap.is_some();
    (facts.architecture.name == "gemma2" && !has_both).then(|| {
        "llama.cpp's graph of `gemma2` caps attention at 50 and logits at 30 where config.json states no bound: results differ"
            .to_owned()
    })
}

/// A scale of attention that is none of those which llama.cpp derives from the sizes (Gemma 2 and 3).
fn other_scale(facts: &Facts<'_>) -> Option<String> {
    let AttentionScale::InverseRootOf(key) = facts.family.math.attention_scale else { return None };
    let stated = facts.config.number(key).ok()??;
    let (width, per_head) = (facts.head_dim().ok()?, facts.config.hidden_size? / facts.heads().ok()?.max(1));
    let is_derived = [width, per_head].iter().any(|size| *size as f64 == stated);
    (!is_derived)
        .then(|| format!("llama.cpp does not read `{key}`: it scales attention by the size of heads, not by {stated}"))
}

/// Architectures whose graphs divide the weights of the chosen experts by their sum, or do not, whatever config.json says.
const NORMALISES: [(&str, bool); 3] = [("qwen3moe", true), ("qwen2moe", false), ("olmoe", false)];

/// Weights of experts that the graph of the architecture computes otherwise.
fn other_routing(facts: &Facts<'_>) -> Option<String> {
    let (name, divides) = NORMALISES.iter().find(|(name, _)| *name == facts.architecture.name)?;
    let stated = facts.config.experts.as_ref()?.normalise.unwrap_or(false);
    (stated != *divides).then(|| {
        format!(
            "llama.cpp's graph of `{name}` does not read `norm_topk_prob`, which is {stated}: it computes as if it were {divides}, \
             and results differ"
        )
    })
}

/// The activation functions of graphs whose architectures have one for every model: their name, and those of config.json.
const ACTIVATIONS: [(&[&str], &str, &[&str]); 3] = [
    (
        &[
            "llama",
            "qwen2",
            "qwen3",
            "qwen2moe",
            "qwen3moe",
            "olmo2",
            "olmoe",
            "phi3",
            "phimoe",
            "stablelm",
            "smollm3",
            "command-r",
            "cohere2",
        ],
        "SiLU",
        &["silu", "swish"],
    ),
    (
        &["gpt2", "gptneox", "phi2", "starcoder2", "gemma", "gemma2", "gemma3"],
        "GELU",
        &["gelu", "gelu_new", "gelu_fast", "gelu_python", "gelu_pytorch_tanh", "gelu_accurate"],
    ),
    (&["nemotron"], "squared ReLU", &["relu2"]),
];

/// An activation function that the graph of the architecture does not have.
fn other_activation(facts: &Facts<'_>) -> Option<String> {
    let name = facts.architecture.name;
    let (_, computed, names) = ACTIVATIONS.iter().find(|(names, ..)| names.contains(&name))?;
    let stated = facts.config.activation.as_deref().filter(|stated| !names.contains(stated))?;
    Some(format!("llama.cpp's graph of `{name}` computes {computed}, and the model `{stated}`: results differ"))
}

/// The choice of experts by Phi-3.5-MoE: each of two in turn, with a softmax over those near it.
fn other_choice(facts: &Facts<'_>) -> Option<String> {
    (facts.architecture.name == "phimoe").then(|| {
        "llama.cpp's graph of `phimoe` weighs experts by one softmax, and the model by one for each of the two: results differ".to_owned()
    })
}

/// A clipping of queries, keys and values that the graph does not have.
fn other_clipping(facts: &Facts<'_>) -> Option<String> {
    let name = facts.architecture.name;
    let stated = facts.config.clip_qkv.filter(|_| !["dbrx", "mpt", "olmo"].contains(&name))?;
    Some(format!(
        "llama.cpp's graph of `{name}` does not clip queries, keys and values at {stated} (`clip_qkv`): results differ"
    ))
}

/// Attention to what follows, in a graph that looks back only.
fn other_direction(facts: &Facts<'_>) -> Option<String> {
    let config = facts.config;
    let stated = config.flag_or("use_bidirectional_attention", false)
        || config.text("use_bidirectional_attention") == Some("all");
    stated.then(|| {
        let name = facts.architecture.name;
        format!("llama.cpp's graph of `{name}` looks back only, and the model ahead too (`use_bidirectional_attention`): results differ")
    })
}

/// The losses of a conversion, of all requantized tensors and of all with rounded scales.
fn loss_notices(tensors: &[PlannedTensor], fits: Option<&Fits>) -> Vec<String> {
    let Some(fits) = fits else { return Vec::new() };
    let lost = tensors.iter().filter_map(|tensor| Some((tensor, fits.get(&tensor.name)?.loss.as_ref()?)));
    let (rounded, recoded): (Vec<_>, Vec<_>) = lost.partition(|(tensor, _)| tensor.carried.is_some());
    let together = rounded.first().map(|(tensor, loss)| match rounded.len() {
        1 => format!("`{}`: {loss}, and rounded", tensor.name),
        count => format!("scales or minima of {count} tensors are rounded; of `{}`, the first, {loss}", tensor.name),
    });
    let mut kinds: BTreeMap<TensorType, Vec<&str>> = BTreeMap::new();
    recoded.iter().for_each(|(tensor, _)| kinds.entry(tensor.kind).or_default().push(&tensor.name));
    requantized(&kinds).into_iter().chain(together).collect()
}

/// The excluded layers that lose the codes that they have in the source.
fn widening_notice(planned: &[PlannedTensor], tensors: &[ImportedTensor<'_>]) -> Option<String> {
    let has_codes = |tensor: &&PlannedTensor| match &tensor.content {
        Content::Slabs(slabs) => slabs.iter().any(|slab| tensors[slab.tensor].stored.has_codes()),
        Content::Taken(_) | Content::Values(_) | Content::Integers(_) => false,
    };
    let excluded = planned.iter().filter(|tensor| tensor.reason == Reason::Excluded).filter(has_codes);
    without_codes(excluded.map(|tensor| tensor.name.as_str()), "this file has")
}

/// The tensors whose values are quantized again: how many to each type, and the first.
fn requantized(kinds: &BTreeMap<TensorType, Vec<&str>>) -> Option<String> {
    let told = kinds.iter().map(|(kind, names)| match names.as_slice() {
        [one] => format!("`{one}` is requantized to {kind}"),
        all => format!("{} tensors are requantized to {kind}, the first `{}`", all.len(), all[0]),
    });
    (!kinds.is_empty()).then(|| told.collect::<Vec<_>>().join("; "))
}

/// Tensors of unknown importance weigh all inputs the same.
pub(super) fn importance_notice(recipe: &GgufRecipe, tensors: &[PlannedTensor]) -> Option<String> {
    let importance = recipe.importance()?;
    let unknown = |tensor: &&PlannedTensor| tensor.is_quantized() && importance.len_of(&tensor.name).is_none();
    let (embedding, others): (Vec<_>, Vec<_>) =
        tensors.iter().filter(unknown).partition(|tensor| tensor.name.starts_with("token_embd"));
    let first = others.first().or(embedding.first().filter(|_| others.len() > 1))?;
    let more = match others.len() {
        0 | 1 => String::new(),
        all => format!(" and {} more", all - 1),
    };
    Some(format!("the importance of `{}`{more} is not known: all inputs weigh the same there", first.name))
}

pub(super) fn fingerprint(
    checkpoint: &Checkpoint,
    recipe: &GgufRecipe,
    layout: &GgufLayout,
    tensors: &[PlannedTensor],
) -> String {
    let mut bytes = source_text(checkpoint, &recipe.canonical()).into_bytes();
    let carried = tensors.iter().filter_map(|tensor| Some((&tensor.name, tensor.carried?)));
    carried.for_each(|(name, carried)| bytes.extend(format!("{name} {}\n", carried.scheme()).into_bytes()));
    layout.files().iter().for_each(|file| bytes.extend_from_slice(&file.header));
    if let Some(importance) = recipe.importance() {
        bytes.extend_from_slice(&importance.hash().to_le_bytes());
    }
    format!("{:032x}", xxh3_128(&bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvant_gguf::model::architecture::Architecture;
    use kvant_model::family::by_name;
    use kvant_model::model_config::ModelConfig;
    use serde_json::{Value, json};

    fn noted(family: &str, config: &Value, notice: fn(&Facts<'_>) -> Option<String>) -> Option<String> {
        let (config, family) = (ModelConfig::from_json(config).unwrap(), by_name(family).unwrap());
        let architecture = Architecture::of(family).unwrap();
        notice(&Facts { config: &config, family, architecture, blocks: 4, vocabulary: 8 })
    }

    #[test]
    fn weights_of_experts_that_graphs_compute_otherwise_are_noted() {
        let routed = |family: &str, normalised: Option<bool>| {
            let config = json!({"model_type": family, "num_experts": 4, "norm_topk_prob": normalised});
            noted(family, &config, other_routing)
        };
        assert!(routed("qwen3_moe", Some(true)).is_none() && routed("olmoe", None).is_none());
        let told = routed("qwen3_moe", Some(false)).unwrap();
        assert!(told.contains("`norm_topk_prob`, which is false") && told.contains("as if it were true"), "{told}");
        assert!(routed("qwen2_moe", Some(true)).unwrap().contains("as if it were false"));
        let dense = json!({"model_type": "qwen3", "norm_topk_prob": false});
        assert!(noted("qwen3", &dense, other_routing).is_none());
    }

    #[test]
    fn layers_with_other_sliding_windows_than_graphs_have_are_noted() {
        let (sliding, full) = ("sliding_attention", "full_attention");
        let gemma = |types: [&str; 4], window: usize| {
            let config = json!({
                "model_type": "gemma2", "layer_types": types, "sliding_window": window, "max_position_embeddings": 128,
            });
            noted("gemma2", &config, other_pattern)
        };
        assert!(gemma([sliding, full, sliding, full], 16).is_none());
        assert!(gemma([full, sliding, full, sliding], 16).unwrap().contains("more than 16 tokens"));
        assert!(gemma([full, sliding, full, sliding], 128).is_none(), "no text is longer");
    }

    #[test]
    fn missing_bounds_of_gemma_2_are_noted() {
        let capped = json!({"model_type": "gemma2", "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0});
        assert!(noted("gemma2", &capped, other_caps).is_none());
        assert!(
            noted("gemma2", &json!({"model_type": "gemma2"}), other_caps).is_none(),
            "its class has the same bounds"
        );
        let none = json!({"model_type": "gemma2", "attn_logit_softcapping": null});
        assert!(noted("gemma2", &none, other_caps).is_some());
    }

    #[test]
    fn requantized_tensors_are_noted_together() {
        let kinds = BTreeMap::from([(TensorType::Q4_K, vec!["a", "b", "c"]), (TensorType::Q8_0, vec!["d"])]);
        let told = requantized(&kinds).unwrap();
        assert!(told.contains("3 tensors are requantized to Q4_K, the first `a`"), "{told}");
        assert!(told.contains("`d` is requantized to Q8_0") && told.matches(';').count() == 1, "{told}");
        assert!(requantized(&BTreeMap::new()).is_none());
    }
}
