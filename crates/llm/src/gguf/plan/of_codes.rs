//! The file that codes will become which are not there yet: what can be refused before they are made.

use super::build::{Builder, Draft, drafts_of};
use super::{GgufPlan, GgufPlanError, Slab};
use crate::gguf::carried::coded;
use crate::gguf::mix::{Category, Mix};
use crate::gguf::recipe::GgufRecipe;
use crate::gguf::tokenizer::{self, Habits};
use crate::model_config::ModelConfig;
use crate::network::{Network, TensorMeta};
use crate::plan::{Plan, PlannedLayer};
use kvant_container::Checkpoint;
use kvant_container::gguf::Metadata;
use kvant_numeric::ggml::Coded;
use kvant_quant::scheme::{ScaleType, TensorScheme};

impl GgufPlan {
    /// The file that the codes of a plan for the same checkpoint are to become, with types of about their size: for checks before
    /// the codes are made, after which [`GgufPlan::convert_of`] plans it anew.
    ///
    /// # Errors
    /// [`GgufPlanError::NoBlocks`] where no type holds the codes of a layer, or not those of all layers that become one tensor;
    /// [`GgufPlanError::Attention`]; otherwise as [`GgufPlan::new`].
    pub fn of_codes(checkpoint: &Checkpoint, plan: &Plan, file_name: &str) -> Result<GgufPlan, GgufPlanError> {
        if !plan.recipe.attention().is_empty() {
            return Err(GgufPlanError::Attention);
        }
        let json = checkpoint.config()?.ok_or(GgufPlanError::NoConfig)?;
        let config = ModelConfig::from_json(&json)?;
        let metas = metas(plan);
        let network = Network::recognise(&config, &metas);
        let builder = Builder::of_network(&config, &metas, &network)?;
        for (draft, slabs) in builder.drafts.iter().filter_map(drafts_of) {
            builder.check_codes(draft, slabs, &plan.layers)?;
        }
        let rows = builder.drafts.iter().find(|draft| draft.category == Category::Embedding);
        let habits = Habits { family: builder.family.name, rows: rows.map_or(0, |draft| draft.shape[0]) };
        tokenizer::describe(checkpoint, habits, &mut Metadata::new())?;
        let mix = plan.layers.iter().find_map(|layer| mix_of(layer).ok()).unwrap_or(Mix::F16);
        GgufPlan::new(checkpoint, GgufRecipe::plain(mix).with_requantizing(), file_name)
    }
}

/// The tensors of the checkpoint that a plan makes, as they are read: layers first, then what is carried over.
fn metas(plan: &Plan) -> Vec<TensorMeta> {
    let layers = plan.layers.iter();
    let layers =
        layers.map(|layer| TensorMeta::new(format!("{}.weight", layer.name), vec![layer.rows, layer.columns], "F32"));
    let declarations = plan.layout.declarations();
    let kept = plan.kept.iter().filter_map(|kept| declarations.get(kept.tensor));
    let kept = kept.map(|kept| TensorMeta::new(kept.name.clone(), kept.shape.clone(), "F32"));
    layers.chain(kept).collect()
}

impl Builder<'_> {
    /// Refuses a tensor that blocks of codes cannot make.
    fn check_codes(&self, draft: &Draft, slabs: &[Slab], layers: &[PlannedLayer]) -> Result<(), GgufPlanError> {
        let coded: Vec<&PlannedLayer> = slabs.iter().filter_map(|slab| layers.get(slab.tensor)).collect();
        let Some(first) = coded.first() else { return Ok(()) };
        let refused = |layer: &PlannedLayer, reason: &str| {
            Err(GgufPlanError::NoBlocks { layer: layer.name.clone(), reason: reason.to_owned() })
        };
        if coded.len() < slabs.len() {
            return refused(first, "others that become the same tensor are kept as they are");
        }
        if slabs.iter().any(|slab| slab.transposed) {
            return refused(first, "it is turned over in the file");
        }
        if let Some(other) = coded.iter().find(|layer| layer.scheme.weight != first.scheme.weight) {
            return refused(
                other,
                &format!("`{}`, which becomes the same tensor, has codes of another kind", first.name),
            );
        }
        if has_other_scales(first.scheme.weight) {
            return refused(first, "blocks have scales of binary16: leave the type of scales out of the scheme");
        }
        if held(first)? == Coded::Nvfp4 && !self.architecture.multiplies(&draft.name) {
            let graph = self.architecture.name;
            let reason = format!("llama.cpp's graph of {graph} does not multiply it with the scale of the tensor");
            return refused(first, &reason);
        }
        Ok(())
    }
}

/// Whether integers were asked for with scales that blocks would round.
fn has_other_scales(scheme: TensorScheme) -> bool {
    matches!(scheme, TensorScheme::Int(int) if int.scale != ScaleType::F16)
}

/// The type that holds the codes of a layer.
fn held(layer: &PlannedLayer) -> Result<Coded, GgufPlanError> {
    coded(layer.scheme.weight, layer.columns)
        .map_err(|reason| GgufPlanError::NoBlocks { layer: layer.name.clone(), reason })
}

/// A mix whose blocks are as large as those of the codes.
fn mix_of(layer: &PlannedLayer) -> Result<Mix, GgufPlanError> {
    Ok(match held(layer)? {
        Coded::Q4_1 => Mix::Q4_1,
        Coded::Q5_0 => Mix::Q5_0,
        Coded::Q5_1 => Mix::Q5_1,
        Coded::Q8_0 => Mix::Q8_0,
        _ => Mix::Q4_0,
    })
}
