//! The storage of modules of a quantized checkpoint, as given by the reader of its format: the tensors of a module, the layout of a weight as
//! the parts that would be written, and the description of activations. The inverse of what [`super::CheckpointFormat`] writes.

mod activations;
mod catalog;
mod layout;
pub(crate) mod scalars;

pub(crate) use activations::{GlobalScaleName, ParameterNames};
pub use activations::{StoredActivation, StoredActivations, StoredAttention};
pub use catalog::ModuleTensors;
pub(crate) use catalog::{Catalog, not_a_matrix};
pub(crate) use layout::found_encoding;
pub use layout::{CodeType, WeightLayout};

use crate::format::mlx;
use kvant_quant::rotation::Rotation;
use kvant_quant::scheme::TensorScheme;
use kvant_weights::import_error::ImportError;
use serde_json::Value;
use std::fmt;
use std::sync::Arc;

/// Reads the modules of a checkpoint, as its configuration describes them.
pub trait ModuleReader: fmt::Debug {
    /// The storage of a module's weights; empty for plain tensors.
    ///
    /// # Errors
    /// *Invalid* where the tensors contradict the configuration or each other, *unsupported* for layouts that are not read.
    fn weights(&self, module: &ModuleTensors<'_, '_>) -> Result<Vec<ModuleWeight>, ImportError>;

    /// The scheme of a convolution's weight, whose codes have its shape and whose scales are those of its output channels or of all of
    /// it. Whether the axis of output channels is the first is known to the model, not to the checkpoint.
    fn convolution(&self, module: &ModuleTensors<'_, '_>) -> Option<TensorScheme> {
        let _ = module;
        None
    }

    /// The bias of a module, where it is codes and scales; `None` for floats.
    ///
    /// # Errors
    /// As for weights.
    fn bias(&self, module: &ModuleTensors<'_, '_>) -> Result<Option<ModuleWeight>, ImportError> {
        let _ = module;
        Ok(None)
    }

    /// The scheme of a weight that is stored as floats on the grid of its codes, with the parameters of these beside it in tensors
    /// that belong to no float model.
    fn rounded(&self, module: &ModuleTensors<'_, '_>) -> Option<RoundedWeight> {
        let _ = module;
        None
    }

    /// The quantized activations of a linear layer.
    ///
    /// # Errors
    /// As for weights.
    fn activations(&self, module: &ModuleTensors<'_, '_>) -> Result<StoredActivations, ImportError> {
        let _ = module;
        Ok(StoredActivations::default())
    }

    /// The rotation of a linear layer's inputs while the model runs; `columns` is their number.
    ///
    /// # Errors
    /// As for weights.
    fn input_rotation(
        &self,
        module: &ModuleTensors<'_, '_>,
        columns: usize,
    ) -> Result<Option<Arc<Rotation>>, ImportError> {
        let _ = (module, columns);
        Ok(None)
    }

    /// Returns whether a tensor that looks like the weight of a module describes what is done to the inputs of a layer.
    fn describes_transform(&self, tensor: &str) -> bool {
        let _ = tensor;
        false
    }

    /// The attention described by the tensors of a module that is attention, or part of it.
    ///
    /// # Errors
    /// As for weights.
    fn attention(&self, module: &ModuleTensors<'_, '_>) -> Result<StoredAttention, ImportError> {
        let _ = module;
        Ok(StoredAttention::default())
    }

    /// Whether the configuration says that the weight of a linear layer is quantized; `None` where every layer is that it does not
    /// exclude.
    fn quantizes(&self, module: &str) -> Option<bool> {
        let _ = module;
        None
    }

    /// Returns whether outputs of layers are quantized because they enter the KV cache.
    fn quantizes_cache(&self) -> bool {
        false
    }
}

/// A float tensor that is stored as something else.
#[derive(Clone, Debug)]
pub struct ModuleWeight {
    /// Its name.
    pub name: String,
    /// Its shape in the float model.
    pub shape: Vec<usize>,
    /// Its only matrix, or those of all experts.
    pub matrices: Vec<WeightLayout>,
}

/// A weight that is stored as the values of its codes.
#[derive(Clone, Debug)]
pub struct RoundedWeight {
    /// The scheme of the codes.
    pub scheme: TensorScheme,
    /// The tensors beside it that describe its quantization.
    pub parameters: Vec<String>,
}

impl ModuleWeight {
    /// The weight of a linear layer.
    pub fn of(module: &ModuleTensors<'_, '_>, layout: WeightLayout) -> ModuleWeight {
        let shape = vec![layout.rows, layout.columns];
        ModuleWeight { name: module.tensor_name("weight"), shape, matrices: vec![layout] }
    }
}

/// The quantization in a config.json; multimodal models may state it for a part.
pub fn quantization_config(config: &Value) -> Option<&Value> {
    let part = || config.as_object()?.values().filter(|value| value.is_object()).find_map(stated_in);
    stated_in(config).or_else(part)
}

fn stated_in(fields: &Value) -> Option<&Value> {
    let keys = ["quantization_config", "compression_config"];
    let of_others = keys.iter().find_map(|key| fields.get(*key)).filter(|value| value.is_object());
    let of_mlx = fields.get(mlx::KEY).filter(|stated| mlx::is_stated(stated));
    // mlx-lm looks at its own key first.
    let is_other = |config: &&Value| method_of(config).is_some_and(|method| method != mlx::METHOD);
    of_others.filter(is_other).or(of_mlx).or(of_others)
}

/// The `quant_method` of a configuration; MLX states none.
pub fn method_of(config: &Value) -> Option<&str> {
    let stated = config.get("quant_method").and_then(Value::as_str);
    stated.or_else(|| mlx::is_stated(config).then_some(mlx::METHOD))
}
