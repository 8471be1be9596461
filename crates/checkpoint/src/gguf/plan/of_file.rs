//! Plans a file from another one. Names, order and metadata are kept for any architecture; a tensor whose type
//! is kept keeps its bytes. Like
//! llama-quantize, it knows the model only from its metadata and tensor names.

use super::finish::{check_importance, declaration, fingerprint, importance_notice};
use super::types::{Candidate, choose_type, recipe_notices};
use super::{Content, GgufPlan, GgufPlanError, PlannedTensor, Reason, RowMap, TensorSlice};
use crate::gguf::recipe::{GgufRecipe, TypeChoice};
use crate::plan::source_bytes;
use kvant_container::Checkpoint;
use kvant_container::gguf::{ALIGNMENT_KEY, DEFAULT_ALIGNMENT, GgufFile, GgufLayout, GgufTensor, Metadata, TensorType};
use kvant_gguf::ftype::{Category, FTYPES, Ftype, Model, is_70b};
use kvant_gguf::model::metadata::QUANTIZATION_VERSION;
use kvant_gguf::model::restore::{self, Stated};
use kvant_gguf::model::{Change, codec, names};
use std::collections::HashMap;

/// Parts of the names of matrices that graphs read in the type that they have (`tensor_allows_quantization` of llama.cpp's
/// `src/llama-quant.cpp`).
const KEPT: &[&str] = &[
    "_norm.weight",
    "ffn_gate_inp.weight",
    "ffn_gate_tid2eid.weight",
    "altup",
    "laurel",
    "per_layer_model_proj",
    "position_embd",
    "token_types.weight",
    "ssm_conv1d",
    "shortconv.conv.weight",
    "indexer.k_proj.weight",
    "indexer.q_proj.weight",
    "time_mix_first.weight",
    "time_mix_w",
    "time_mix_v",
    "time_mix_a",
    "time_mix_g",
    "time_mix_decay_w",
    "time_mix_lerp_fused.weight",
    "attn_rel_b.weight",
    "sam.pos_embd",
    "sam.neck.",
    "sam.net_",
    ".rel_pos",
    ".patch_embd",
    ".patch_merger",
    "a.rvq.codebook",
    "mm.a.code_embd",
];

/// A file from which another one is derived.
pub(super) struct GgufTensors<'a> {
    checkpoint: &'a Checkpoint,
    file: &'a GgufFile,
    stated: Stated<'a>,
}

impl<'a> GgufTensors<'a> {
    /// The file behind a checkpoint.
    ///
    /// # Errors
    /// Where it is a part of a model, or states no architecture.
    pub fn new(checkpoint: &'a Checkpoint, file: &'a GgufFile) -> Result<GgufTensors<'a>, GgufPlanError> {
        let stated = Stated::of(file)?;
        Ok(GgufTensors { checkpoint, file, stated })
    }

    /// The plan of a file with the same contents.
    pub fn same(&self, file_name: &str) -> Result<GgufPlan, GgufPlanError> {
        let known = restore::known(self.file).unwrap_or_default();
        let tensors = self.file.tensors().enumerate();
        let planned =
            tensors.map(|(position, tensor)| self.planned(position, tensor, tensor.kind(), kept_as(tensor), &known));
        let planned = planned.collect();
        self.plan(GgufRecipe::plain(self.stated_mix()), self.metadata(), planned, known.family, file_name)
    }

    /// The plan of a file with other types.
    pub fn requantized(&self, recipe: GgufRecipe, file_name: &str) -> Result<GgufPlan, GgufPlanError> {
        let known = restore::known(self.file).unwrap_or_default();
        let model = self.model(&recipe);
        let mut planned = Vec::with_capacity(self.file.len());
        let values = self.values();
        for (position, tensor) in self.file.tensors().enumerate() {
            let value = values.get(&position).copied().unwrap_or(0);
            let (kind, reason) = self.choose(&recipe, &model, tensor, value, &known.modules)?;
            planned.push(self.planned(position, tensor, kind, reason, &known));
        }
        check_importance(&recipe, &planned)?;
        let metadata = self.described(&recipe);
        let mut plan = self.plan(recipe, metadata, planned, known.family, file_name)?;
        plan.notices = self.notices(&plan)?;
        Ok(plan)
    }

    /// The type of a tensor, and why.
    fn choose(
        &self,
        recipe: &GgufRecipe,
        model: &Model,
        tensor: GgufTensor<'_>,
        value: usize,
        modules: &HashMap<String, Vec<String>>,
    ) -> Result<(TensorType, Reason), GgufPlanError> {
        let (name, stored) = (tensor.name(), tensor.kind());
        let modules = modules.get(name).map_or(&[][..], Vec::as_slice);
        if !self.is_quantizable(tensor) {
            return Ok((stored, kept_as(tensor)));
        }
        if recipe.type_choice(name, modules) == TypeChoice::Keep {
            return Ok((stored, Reason::Excluded));
        }
        let candidate = Candidate {
            name,
            modules,
            category: Category::of_name(name),
            value,
            block: block_of(name).unwrap_or(0),
            shape: tensor.shape(),
            stored,
            fixed: false,
        };
        let (kind, reason) = choose_type(recipe, model, &candidate)?;
        let named = || name.to_owned();
        match (kind == stored, codec::of(stored)) {
            (true, _) => Ok((kind, reason)),
            (false, None) => Err(GgufPlanError::Undecoded { tensor: named(), kind: stored }),
            (false, Some(_)) if loses_twice(stored, kind) && !recipe.requantizes() => {
                Err(GgufPlanError::Twice { tensor: named(), from: stored, to: kind })
            }
            (false, Some(_)) => Ok((kind, reason)),
        }
    }

    /// Returns whether llama.cpp's graphs read a tensor in any type.
    fn is_quantizable(&self, tensor: GgufTensor<'_>) -> bool {
        let (name, dimensions) = (tensor.name(), tensor.shape().iter().skip_while(|length| **length == 1).count());
        // A scale of the head is read only with NVFP4.
        let is_scaled_head = name == "output.weight" && self.stated.has("output.scale");
        let is_empty = tensor.byte_len() == 0;
        dimensions > 1
            && !is_empty
            && name.ends_with("weight")
            && !is_scaled_head
            && !KEPT.iter().any(|part| name.contains(part))
    }

    fn planned(
        &self,
        position: usize,
        tensor: GgufTensor<'_>,
        kind: TensorType,
        reason: Reason,
        known: &restore::Known,
    ) -> PlannedTensor {
        let content = match kind == tensor.kind() {
            true => Content::Taken(position),
            false => Content::Slabs(slabs(position, tensor.shape())),
        };
        PlannedTensor {
            name: tensor.name().to_owned(),
            kind,
            shape: tensor.shape().to_vec(),
            content,
            reason,
            carried: None,
            block: block_of(tensor.name()),
            modules: known.modules.get(tensor.name()).cloned().unwrap_or_default(),
        }
    }

    /// The position of every tensor of values among them, by its position in the file.
    fn values(&self) -> HashMap<usize, usize> {
        let is_value = |tensor: &GgufTensor<'_>| matches!(Category::of_name(tensor.name()), Category::Value { .. });
        let found = self.file.tensors().enumerate().filter(|(_, tensor)| is_value(tensor));
        let mut found: Vec<(Option<usize>, usize)> = found.map(|(at, tensor)| (block_of(tensor.name()), at)).collect();
        found.sort_unstable();
        found.into_iter().enumerate().map(|(value, (_, at))| (at, value)).collect()
    }

    fn model(&self, recipe: &GgufRecipe) -> Model {
        let blocks = self.stated.size("block_count").unwrap_or(0);
        let heads = self.stated.size("attention.head_count").unwrap_or(1);
        let groups = self.stated.size("attention.head_count_kv").unwrap_or(heads);
        Model {
            blocks,
            experts: self.stated.size("expert_count").unwrap_or(0),
            heads_per_group: heads / groups.max(1),
            values: self.values().len(),
            tied: !self.stated.has("output.weight"),
            is_70b: is_70b(self.stated.architecture, blocks, heads, groups),
            has_importance: recipe.has_importance(),
        }
    }

    /// The mix that the file says it is of.
    fn stated_mix(&self) -> Ftype {
        let stated = self.file.metadata().get("general.file_type").and_then(|value| value.as_u64());
        FTYPES.iter().find(|row| Some(u64::from(row.file_type)) == stated).map_or(Ftype::F16, |row| row.ftype)
    }

    /// The metadata, but for an alignment that is not written.
    fn metadata(&self) -> Metadata {
        let mut metadata = self.file.metadata().clone();
        if self.file.alignment() != DEFAULT_ALIGNMENT {
            metadata.remove(ALIGNMENT_KEY);
        }
        metadata
    }

    /// The metadata, with what another mix changes of them.
    fn described(&self, recipe: &GgufRecipe) -> Metadata {
        let mut metadata = self.metadata();
        metadata.set("general.file_type", recipe.ftype().row().file_type);
        metadata.set("general.quantization_version", QUANTIZATION_VERSION);
        if let Some(importance) = recipe.importance() {
            importance.describe(&mut metadata);
        }
        metadata
    }

    fn notices(&self, plan: &GgufPlan) -> Result<Vec<String>, GgufPlanError> {
        let names = plan.tensors.iter().map(|tensor| {
            let modules = tensor.modules.iter().map(String::as_str);
            [tensor.name.as_str(), names::stem_of(&tensor.name)].into_iter().chain(modules).collect()
        });
        let names: Vec<Vec<&str>> = names.collect();
        let idle = recipe_notices(&plan.recipe, &names)?.into_iter();
        let twice = plan.tensors.iter().zip(self.file.tensors());
        let twice = twice.filter(|(made, source)| made.kind != source.kind() && loses_twice(source.kind(), made.kind));
        let twice = Some(twice.count()).filter(|count| *count > 0);
        let twice = twice.map(|count| format!("tensors quantized a second time, from codes: {count}"));
        Ok(idle.chain(twice).chain(importance_notice(&plan.recipe, &plan.tensors)).collect())
    }

    fn plan(
        &self,
        recipe: GgufRecipe,
        metadata: Metadata,
        tensors: Vec<PlannedTensor>,
        family: Option<&'static str>,
        file_name: &str,
    ) -> Result<GgufPlan, GgufPlanError> {
        let layout = GgufLayout::new(file_name, &metadata, tensors.iter().map(declaration).collect())
            .map_err(kvant_container::Error::from)?;
        Ok(GgufPlan {
            family,
            architecture: self.stated.architecture.to_owned(),
            fingerprint: fingerprint(self.checkpoint, &recipe, &layout, &tensors),
            sources: self.file.tensors().map(|tensor| tensor.name().to_owned()).collect(),
            source_bytes: source_bytes(self.checkpoint),
            dropped: Vec::new(),
            recipe,
            metadata,
            tensors,
            layout,
            in_parts: false,
            notices: Vec::new(),
            departures: Vec::new(),
        })
    }
}

/// Returns whether quantized values would be quantized again: only 32-bit floats keep them.
fn loses_twice(stored: TensorType, kind: TensorType) -> bool {
    stored.block_elements() > 1 && kind != TensorType::F32
}

/// The reason that a tensor always keeps its type.
fn kept_as(tensor: GgufTensor<'_>) -> Reason {
    if tensor.kind().block_elements() > 1 { Reason::Carried } else { Reason::Kept }
}

/// The matrices of a tensor, each whole: experts are one each.
fn slabs(tensor: usize, shape: &[usize]) -> Vec<TensorSlice> {
    let [matrices @ .., rows, columns] = shape else { return Vec::new() };
    let slab = |matrix| TensorSlice {
        tensor,
        matrix,
        size: (*rows, *columns),
        is_transposed: false,
        rows: RowMap::all(*rows),
        transposed: false,
        columns: None,
        change: Change::None,
    };
    (0..matrices.iter().product()).map(slab).collect()
}

/// The block that a tensor belongs to.
fn block_of(name: &str) -> Option<usize> {
    name.strip_prefix("blk.")?.split('.').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_expert_is_a_separate_matrix() {
        assert_eq!(slabs(7, &[3, 4, 32]).iter().map(|slab| slab.matrix).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(slabs(7, &[4, 32])[0].size, (4, 32));
        assert!(slabs(7, &[32]).is_empty());
        assert_eq!((block_of("blk.12.attn_q.weight"), block_of("output.weight")), (Some(12), None));
    }

    #[test]
    fn requantizing_loses_twice_except_from_or_to_lossless_floats() {
        assert!(loses_twice(TensorType::Q8_0, TensorType::Q4_K) && loses_twice(TensorType::Q8_0, TensorType::F16));
        assert!(!loses_twice(TensorType::Q8_0, TensorType::F32) && !loses_twice(TensorType::BF16, TensorType::Q4_K));
    }
}
