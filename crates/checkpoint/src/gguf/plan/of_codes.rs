//! The file planned for codes that do not exist yet: invalid requests are refused before they are computed.

use super::build::{Planner, config_of};
use super::convert::{Fits, ftype_of};
use super::finish::Names;
use super::{GgufPlan, GgufPlanError, TensorSlice};
use crate::gguf::carried::{Carried, Fit, coded};
use crate::gguf::recipe::GgufRecipe;
use crate::gguf::source::{common, type_of_floats};
use crate::plan::{Plan, PlannedLayer};
use kvant_container::Checkpoint;
use kvant_container::gguf::TensorType;
use kvant_gguf::model::{Builder, Draft, drafts_of};
use kvant_model::model_config::ModelConfig;
use kvant_model::network::{Network, TensorMeta};
use kvant_numeric::ggml::Coded;
use kvant_quant::scheme::{ScaleType, TensorScheme};

impl GgufPlan {
    /// The file for the codes of a plan for the same checkpoint: its tensors, their types and its size. It is shown and
    /// checked before the codes are computed, after which [`GgufPlan::convert_of`] plans the file again.
    ///
    /// # Errors
    /// [`GgufPlanError::NoBlocks`] where no type holds the codes of a layer, or not those of all layers that become one tensor;
    /// [`GgufPlanError::Attention`]; otherwise as [`GgufPlan::new`].
    pub fn of_codes(checkpoint: &Checkpoint, plan: &Plan, file_name: &str) -> Result<GgufPlan, GgufPlanError> {
        if !plan.recipe().attention().is_empty() {
            return Err(GgufPlanError::Attention);
        }
        let json = config_of(checkpoint)?;
        let config = ModelConfig::from_json(&json)?;
        let metas = metas(plan);
        let network = Network::recognise(&config, &metas);
        let mut builder = Planner { model: Builder::of_network(&config, &metas, &network)? };
        let fits = builder.fits_of_plan(plan)?;
        builder.add_scales_to_come(&fits);
        let recipe = GgufRecipe::plain(ftype_of(&builder.model.drafts, &fits));
        let names = Names { file: file_name, model: checkpoint.directory().unwrap_or_else(|| checkpoint.path()) };
        // No tensor is there to be looked at: all types are known.
        builder.finish(&[], checkpoint, recipe, Some(&fits), names)
    }
}

/// The tensors of a planned checkpoint, in reading order: layers first, then copied tensors.
fn metas(plan: &Plan) -> Vec<TensorMeta> {
    let layers = plan.layers().iter();
    let layers =
        layers.map(|layer| TensorMeta::new(format!("{}.weight", layer.name), vec![layer.rows, layer.columns], "F32"));
    let declarations = plan.layout().declarations();
    let kept = plan.kept().iter().filter_map(|kept| declarations.get(kept.tensor));
    let kept = kept.map(|kept| TensorMeta::new(kept.name.clone(), kept.shape.clone(), "F32"));
    layers.chain(kept).collect()
}

/// The types in which tensors are carried over that are none of the plan's layers, in the order of [`metas`].
fn kept_types(plan: &Plan) -> Vec<TensorType> {
    let declarations = plan.layout().declarations();
    let kept = plan.kept().iter().filter_map(|kept| declarations.get(kept.tensor));
    kept.map(|kept| type_of_floats(kept.dtype)).collect()
}

impl Planner<'_> {
    /// The conversion of the codes of a plan's layers, and the copied tensors.
    fn fits_of_plan(&self, plan: &Plan) -> Result<Fits, GgufPlanError> {
        let kept = kept_types(plan);
        let mut fits = Fits::new();
        for (draft, slabs) in self.model.drafts.iter().filter(|draft| !draft.fixed).filter_map(drafts_of) {
            let fit = match self.codes_of(draft, slabs, plan.layers())? {
                Some(carried) => Fit { kind: carried.kind(), carried: Some(carried), loss: None },
                None => {
                    let kinds = slabs.iter().filter_map(|slab| kept.get(slab.tensor.checked_sub(plan.layers().len())?));
                    Fit { kind: common(kinds.copied()).unwrap_or(TensorType::F32), carried: None, loss: None }
                }
            };
            fits.insert(draft.name.clone(), fit);
        }
        Ok(fits)
    }

    /// Global scales beside codes; their values are found with the codes.
    fn add_scales_to_come(&mut self, fits: &Fits) {
        let is_scaled = |draft: &Draft| {
            let carried = fits.get(&draft.name).and_then(|fit| fit.carried);
            carried.is_some_and(Carried::has_tensor_scale)
        };
        let scaled = self.model.drafts.iter().filter(|draft| is_scaled(draft)).filter_map(drafts_of);
        let scales = scaled.map(|(draft, _)| draft.scales(vec![1.0; draft.matrices()]));
        let scales: Vec<Draft> = scales.collect();
        self.model.drafts.extend(scales);
    }

    /// The conversion of a tensor's layers to blocks; `None` without codes.
    fn codes_of(
        &self,
        draft: &Draft,
        slabs: &[TensorSlice],
        layers: &[PlannedLayer],
    ) -> Result<Option<Carried>, GgufPlanError> {
        let coded: Vec<&PlannedLayer> = slabs.iter().filter_map(|slab| layers.get(slab.tensor)).collect();
        let Some(first) = coded.first() else { return Ok(None) };
        let refused = |layer: &PlannedLayer, reason: &str| {
            Err(GgufPlanError::NoBlocks { layer: layer.name.clone(), reason: reason.to_owned() })
        };
        if coded.len() < slabs.len() {
            return refused(first, "others that become the same tensor are kept as they are");
        }
        if slabs.iter().any(|slab| !slab.is_by_rows()) {
            return refused(first, "it is transposed in the file, or has other columns or values there");
        }
        let scheme = first.scheme.weight;
        if let Some(other) = coded.iter().find(|layer| layer.scheme.weight != scheme) {
            let reason = format!("`{}`, which becomes the same tensor, has codes of another kind", first.name);
            return refused(other, &reason);
        }
        if has_other_scales(scheme) {
            return refused(first, "blocks have scales of binary16: leave the type of scales out of the scheme");
        }
        let coded = coded_of(first)?;
        match self.unread_scale(draft).filter(|_| coded == Coded::Nvfp4) {
            Some(reason) => refused(first, &reason),
            None => Ok(Some(Carried::Codes { coded, scheme })),
        }
    }
}

/// Returns whether integers were asked for with scales that blocks would round.
fn has_other_scales(scheme: TensorScheme) -> bool {
    matches!(scheme, TensorScheme::Int(int) if int.scale != ScaleType::F16)
}

/// The type that holds the codes of a layer.
fn coded_of(layer: &PlannedLayer) -> Result<Coded, GgufPlanError> {
    coded(layer.scheme.weight, layer.columns)
        .map_err(|reason| GgufPlanError::NoBlocks { layer: layer.name.clone(), reason })
}
