//! Planning a conversion: weights that are quantized in the source keep their codes, in blocks of the type that holds them; all
//! else keeps its type.

use super::build::{Planner, opened};
use super::finish::Names;
use super::of_file::GgufTensors;
use super::{GgufPlan, GgufPlanError, TensorSlice};
use crate::gguf::carried::{Accepted, Fit, anew, fit};
use crate::gguf::recipe::GgufRecipe;
use crate::gguf::source::kept_type;
use kvant_container::Checkpoint;
use kvant_container::gguf::TensorType;
use kvant_gguf::ftype::{FTYPES, Ftype};
use kvant_gguf::model::{Builder, Draft, drafts_of};
use kvant_model::network::Network;
use kvant_numeric::simd::Isa;
use kvant_weights::weight::{ImportedTensor, PackedMatrix, Stored};
use std::collections::HashMap;
use std::path::Path;

const ACTIVATIONS: &str = "the source quantizes activations, which llama.cpp does in its own way";

/// The actions on tensors, by their names in the file.
pub(super) type Fits = HashMap<String, Fit>;

impl GgufPlan {
    /// Plans the file `file_name` that holds the codes of a quantized checkpoint, or all that another file holds.
    ///
    /// # Errors
    /// [`GgufPlanError::Conversion`] for codes that no type holds, [`GgufPlanError::NotQuantized`]; otherwise as
    /// [`GgufPlan::new`].
    pub fn convert(checkpoint: &Checkpoint, accepted: Accepted, file_name: &str) -> Result<GgufPlan, GgufPlanError> {
        Self::convert_of(checkpoint, checkpoint.path(), accepted, file_name)
    }

    /// The same for a checkpoint derived from another one: `model` is the directory that gives the model its name.
    ///
    /// # Errors
    /// As [`GgufPlan::convert`].
    pub fn convert_of(
        checkpoint: &Checkpoint,
        model: &Path,
        accepted: Accepted,
        file_name: &str,
    ) -> Result<GgufPlan, GgufPlanError> {
        if let Some(file) = checkpoint.gguf() {
            return GgufTensors::new(checkpoint, file)?.same(file_name);
        }
        let opened = opened(checkpoint)?;
        let network = Network::recognise(&opened.config, &opened.metas);
        let mut builder = Planner { model: Builder::of_network(&opened.config, &opened.metas, &network)? };
        builder.check_sources(&opened.tensors)?;
        let fits = builder.fits(&opened.tensors, accepted)?;
        builder.add_tensor_scales(&opened.tensors, &fits);
        let ftype = ftype_of(&builder.model.drafts, &fits);
        let recipe = GgufRecipe::plain(ftype);
        let mut plan =
            builder.finish(&opened.tensors, checkpoint, recipe, Some(&fits), Names { file: file_name, model })?;
        if opened.activations {
            plan.notices.push(ACTIVATIONS.to_owned());
        }
        Ok(plan)
    }
}

impl Planner<'_> {
    /// The types of all tensors that have no fixed one.
    fn fits(&self, tensors: &[ImportedTensor<'_>], accepted: Accepted) -> Result<Fits, GgufPlanError> {
        let mut fits = Fits::new();
        for (draft, slabs) in self.model.drafts.iter().filter(|draft| !draft.fixed).filter_map(drafts_of) {
            let matrices: Vec<&PackedMatrix<'_>> = slabs.iter().filter_map(|slab| packed(tensors, slab)).collect();
            let fit = match matrices.iter().any(|matrix| !matrix.is_float()) {
                false => Fit { kind: kept_type(tensors, slabs), carried: None, loss: None },
                true => self.fit(draft, slabs, &matrices, accepted)?,
            };
            fits.insert(draft.name.clone(), fit);
        }
        match fits.values().any(|fit| fit.carried.is_some() || fit.loss.is_some()) {
            true => Ok(fits),
            false => Err(GgufPlanError::NotQuantized),
        }
    }

    /// The reason that codes with a global scale cannot be copied, if so: the graph does not read it.
    pub(super) fn unread_scale(&self, draft: &Draft) -> Option<String> {
        let graph = self.model.architecture.name;
        (!self.model.architecture.multiplies(&draft.name))
            .then(|| format!("llama.cpp's graph of {graph} does not multiply it with the scale of the tensor"))
    }

    /// Adds the scales of tensors, which graphs multiply products with: those of NVFP4 have no place in blocks.
    fn add_tensor_scales(&mut self, tensors: &[ImportedTensor<'_>], fits: &Fits) {
        let mut added = Vec::new();
        for (draft, slabs) in self.model.drafts.iter().filter_map(drafts_of) {
            let matrices: Vec<&PackedMatrix<'_>> = slabs.iter().filter_map(|slab| packed(tensors, slab)).collect();
            let each = slabs.len() / draft.matrices().max(1);
            let matrices: Vec<&PackedMatrix<'_>> = matrices.into_iter().step_by(each.max(1)).collect();
            let scales = fits.get(&draft.name).and_then(|fit| tensor_scales(&matrices, fit));
            added.extend(scales.map(|scales| draft.scales(scales)));
        }
        self.model.drafts.extend(added);
    }

    fn fit(
        &self,
        draft: &Draft,
        slabs: &[TensorSlice],
        matrices: &[&PackedMatrix<'_>],
        accepted: Accepted,
    ) -> Result<Fit, GgufPlanError> {
        for matrix in matrices {
            matrix.refuse_broken_scales(Isa::best(), matrix.tensor_name().unwrap_or(&draft.name))?;
        }
        let whole = slabs.len() == matrices.len() && slabs.iter().all(TensorSlice::is_by_rows);
        let tensor = || slabs.first().map_or(draft.name.clone(), |slab| self.model.tensors[slab.tensor].name.clone());
        let refused = |reason: String| GgufPlanError::Conversion { tensor: tensor(), reason };
        match whole {
            true => {
                let found = fit(Isa::best(), matrices, accepted).map_err(&refused)?;
                match tensor_scales(matrices, &found).and_then(|_| self.unread_scale(draft)) {
                    Some(reason) => anew(matrices, matrices[0].columns(), accepted, reason).map_err(refused),
                    None => Ok(found),
                }
            }
            false => {
                let columns = draft.shape.last().copied().unwrap_or(1);
                let reason = "it is changed in the file, or a part of it has no codes";
                anew(matrices, columns, accepted, reason.to_owned()).map_err(refused)
            }
        }
    }
}

/// The scales over those of groups, for every matrix of a tensor of NVFP4; none where they are all 1.
fn tensor_scales(matrices: &[&PackedMatrix<'_>], fit: &Fit) -> Option<Vec<f32>> {
    fit.carried.filter(|carried| carried.has_tensor_scale())?;
    let scales: Vec<f32> = matrices.iter().map(|matrix| matrix.global_scale().unwrap_or(1.0)).collect();
    scales.iter().any(|scale| *scale != 1.0).then_some(scales)
}

pub(super) fn packed<'t, 'a>(tensors: &'t [ImportedTensor<'a>], slab: &TensorSlice) -> Option<&'t PackedMatrix<'a>> {
    match &tensors.get(slab.tensor)?.stored {
        Stored::Packed(matrices) => matrices.get(slab.matrix).map(|matrix| &**matrix),
        Stored::Plain(_) => None,
    }
}

/// The ftype of the file: that of the type with most weights.
pub(super) fn ftype_of(drafts: &[Draft], fits: &Fits) -> Ftype {
    let most = most(drafts, fits);
    FTYPES.iter().find(|row| Some(row.base) == most).map_or(Ftype::F16, |row| row.ftype)
}

/// `general.file_type` of a file most of whose weights are of a type that values are not quantized to.
pub(super) fn file_type_of(drafts: &[Draft], fits: &Fits) -> Option<u32> {
    /// `LLAMA_FTYPE_MOSTLY_NVFP4`.
    const NVFP4: u32 = 39;
    (most(drafts, fits) == Some(TensorType::NVFP4)).then_some(NVFP4)
}

/// The type with most weights, of those that have codes.
fn most(drafts: &[Draft], fits: &Fits) -> Option<TensorType> {
    let mut weights: HashMap<TensorType, usize> = HashMap::new();
    for draft in drafts {
        let kind = fits.get(&draft.name).map(|fit| fit.kind).filter(|kind| kind.block_elements() > 1);
        if let Some(kind) = kind {
            *weights.entry(kind).or_default() += draft.shape.iter().product::<usize>();
        }
    }
    weights.into_iter().max_by_key(|(kind, weights)| (*weights, *kind)).map(|(kind, _)| kind)
}
