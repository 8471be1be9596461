//! Making a plan: from a checkpoint's headers, its config.json, its tokenizer and a recipe.

use super::finish::Names;
use super::of_file::GgufTensors;
use super::{GgufPlan, GgufPlanError};
use crate::gguf::recipe::GgufRecipe;
use kvant_container::{Checkpoint, Dtype, TensorView};
use kvant_formats::import;
use kvant_gguf::model::{Builder, Content, drafts_of};
use kvant_model::model_config::ModelConfig;
use kvant_model::network::{Network, TensorMeta};
use kvant_weights::float_dtype::float_dtype;
use kvant_weights::weight::{ImportedTensor, Stored};
use serde_json::Value;

impl GgufPlan {
    /// Plans the file `file_name` that a recipe makes of a checkpoint, or of another file.
    ///
    /// # Errors
    /// Whatever can be refused: see [`GgufPlanError`].
    pub fn new(checkpoint: &Checkpoint, recipe: GgufRecipe, file_name: &str) -> Result<GgufPlan, GgufPlanError> {
        if let Some(file) = checkpoint.gguf() {
            return GgufTensors::new(checkpoint, file)?.requantized(recipe, file_name);
        }
        let opened = opened(checkpoint)?;
        if !recipe.requantizes() {
            refuse_quantized(&opened.tensors, &opened.config)?;
        }
        let network = Network::recognise(&opened.config, &opened.metas);
        let builder = Planner { model: Builder::of_network(&opened.config, &opened.metas, &network)? };
        builder.check_sources(&opened.tensors)?;
        let names = Names { file: file_name, model: checkpoint.directory().unwrap_or_else(|| checkpoint.path()) };
        let ftype = recipe.ftype();
        let plan = builder.finish(&opened.tensors, checkpoint, recipe, None, names)?;
        match ftype.is_float() || plan.quantized() > 0 {
            true => Ok(plan),
            false => Err(GgufPlanError::NothingFits { ftype }),
        }
    }
}

/// A checkpoint, seen as a model of floats.
pub(super) struct Opened<'a> {
    pub config: ModelConfig,
    pub tensors: Vec<ImportedTensor<'a>>,
    pub metas: Vec<TensorMeta>,
    /// Whether anything but weights is quantized.
    pub activations: bool,
}

/// What config.json states.
pub(super) fn config_of(checkpoint: &Checkpoint) -> Result<Value, GgufPlanError> {
    let of_file = checkpoint.path().is_file();
    checkpoint.config()?.ok_or(GgufPlanError::NoConfig { of_file })
}

pub(super) fn opened(checkpoint: &Checkpoint) -> Result<Opened<'_>, GgufPlanError> {
    let json = config_of(checkpoint)?;
    let config = ModelConfig::from_json(&json)?;
    let import = import::open(checkpoint)?;
    import.refuse_input_rotations()?;
    let activations = import.quantizes_activations();
    let tensors = import.into_tensors();
    let metas = tensors.iter().map(|tensor| tensor.meta.clone()).collect();
    Ok(Opened { config, tensors, metas, activations })
}

/// Quantized sources with their own loaders are not silently made coarser. fp8 is how some models are
/// published.
fn refuse_quantized(tensors: &[ImportedTensor<'_>], config: &ModelConfig) -> Result<(), GgufPlanError> {
    let stated = config.quantization.as_ref().and_then(|stated| stated.get("quant_method")?.as_str());
    let method = stated.unwrap_or("fp8");
    let has_codes = |tensor: &&ImportedTensor<'_>| match &tensor.stored {
        Stored::Packed(matrices) => matrices.iter().any(|matrix| !matrix.is_float()),
        Stored::Plain(_) => false,
    };
    let packed = tensors.iter().find(has_codes);
    match packed.filter(|_| method != "fp8") {
        Some(tensor) => {
            Err(GgufPlanError::AlreadyQuantized { method: method.to_owned(), tensor: tensor.meta.name.clone() })
        }
        None => Ok(()),
    }
}

/// The tensors that a model becomes in the file, while they get their types.
pub(super) struct Planner<'a> {
    pub model: Builder<'a>,
}

impl Planner<'_> {
    /// Checks that all that will be read can be: types of floats, sizes of packed matrices.
    pub fn check_sources(&self, tensors: &[ImportedTensor<'_>]) -> Result<(), GgufPlanError> {
        let integers = self.model.drafts.iter().filter_map(|draft| match draft.content {
            Content::Integers(position) => Some(position),
            _ => None,
        });
        for ImportedTensor { meta, stored } in integers.map(|position| &tensors[position]) {
            let is_read = |view: &TensorView<'_>| matches!(view.dtype(), Dtype::I32 | Dtype::I64);
            if !matches!(stored, Stored::Plain(view) if is_read(view)) {
                return Err(GgufPlanError::SourceType { tensor: meta.name.clone(), dtype: meta.dtype.clone() });
            }
        }
        for slab in self.model.drafts.iter().filter_map(drafts_of).flat_map(|(_, slabs)| slabs) {
            let ImportedTensor { meta, stored } = &tensors[slab.tensor];
            let fits = match stored {
                Stored::Plain(view) => float_dtype(view.dtype()).is_some(),
                Stored::Packed(all) => all.get(slab.matrix).is_some_and(|one| (one.rows(), one.columns()) == slab.size),
            };
            if !fits {
                let (tensor, dtype) = (meta.name.clone(), meta.dtype.clone());
                return Err(GgufPlanError::SourceType { tensor, dtype });
            }
        }
        Ok(())
    }
}
