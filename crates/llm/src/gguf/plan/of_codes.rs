//! The file that codes will become which are not there yet: what can be refused before they are made.

use super::{GgufPlan, GgufPlanError};
use crate::gguf::architecture::ARCHITECTURES;
use crate::gguf::carried::{coded, type_of};
use crate::gguf::mix::{MIXES, Mix};
use crate::gguf::recipe::GgufRecipe;
use crate::plan::{Plan, PlannedLayer};
use kvant_container::Checkpoint;
use kvant_container::gguf::TensorType;
use kvant_numeric::ggml::Coded;
use std::collections::HashMap;

impl GgufPlan {
    /// The file that the codes of a plan for the same checkpoint are to become, with types that are about right: for checks before
    /// the codes are made, after which [`GgufPlan::convert`] plans it anew.
    ///
    /// # Errors
    /// [`GgufPlanError::NoBlocks`] where no type holds the codes of a layer, otherwise as [`GgufPlan::new`].
    pub fn of_codes(checkpoint: &Checkpoint, plan: &Plan, file_name: &str) -> Result<GgufPlan, GgufPlanError> {
        let mut weights: HashMap<TensorType, usize> = HashMap::new();
        for layer in &plan.layers {
            let kind = type_of(held(layer)?);
            *weights.entry(kind).or_default() += layer.rows * layer.columns;
        }
        let most = weights.into_iter().max_by_key(|(kind, weights)| (*weights, *kind)).map(|(kind, _)| kind);
        let mix = MIXES.iter().find(|row| Some(row.base) == most).map_or(Mix::F16, |row| row.mix);
        let file = GgufPlan::new(checkpoint, GgufRecipe::plain(mix).with_requantizing(), file_name)?;
        file.refuse_unscaled(&plan.layers)?;
        Ok(file)
    }

    /// Codes with a scale over those of groups stand where the graph multiplies with it.
    fn refuse_unscaled(&self, layers: &[PlannedLayer]) -> Result<(), GgufPlanError> {
        let row = ARCHITECTURES.iter().find(|row| row.name == self.architecture && Some(row.family) == self.family);
        for layer in layers.iter().filter(|layer| held(layer).is_ok_and(|coded| coded == Coded::Nvfp4)) {
            let tensor = self.tensors.iter().find(|tensor| tensor.modules.contains(&layer.module));
            if tensor.is_some_and(|tensor| row.is_none_or(|row| !row.multiplies(&tensor.name))) {
                let graph = &self.architecture;
                let reason = format!("llama.cpp's graph of {graph} does not multiply it with the scale of the tensor");
                return Err(GgufPlanError::NoBlocks { layer: layer.name.clone(), reason });
            }
        }
        Ok(())
    }
}

/// The type that holds the codes of a layer.
fn held(layer: &PlannedLayer) -> Result<Coded, GgufPlanError> {
    coded(layer.scheme.weight, layer.columns)
        .map_err(|reason| GgufPlanError::NoBlocks { layer: layer.name.clone(), reason })
}
