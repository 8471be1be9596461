//! Checkpoint formats: the tensors of a quantized layer, its config.json, and how both are read. One file
//! or folder for each, with an implementation of [`CheckpointFormat`] and a row of the table in `handle.rs`. The bytes are made by one
//! packer for all: see [`kvant_weights::parts`].
//!
//! A format from outside of this crate is [registered](register) and then chosen by its name, like those in the table.
//! Plain floats and GGUF files are not checkpoint formats; [`OutputFormat`] has all three.

mod awq;
mod capabilities;
pub(crate) mod comfyui;
pub mod compressed_tensors;
mod fp8;
mod gptq;
mod grouped;
mod handle;
pub(crate) mod mlx;
mod modelopt;
mod module_scheme;
mod mxfp4;
mod output_format;
mod pattern;
pub mod plain_floats;
pub mod quark;
mod selector;
pub mod stored;
pub mod tensors;
mod torchao;

pub use capabilities::{Capabilities, ExcludedNames, ModuleNames};
pub use fp8::{scale_block, stated_block};
pub use handle::{FormatHandle, UnknownFormat, register};
pub use module_scheme::ModuleScheme;
pub use output_format::{OutputFormat, gguf_has_its_own};
pub use pattern::Pattern;

use crate::algorithm::Algorithms;
use kvant_container::Checkpoint;
use kvant_model::model_config::ModelConfig;
use kvant_model::network::Network;
use kvant_numeric::pack::NibbleOrder;
use kvant_quant::scheme::{AttentionScheme, LayerScheme, TensorScheme};
use kvant_weights::import_error::ImportError;
use kvant_weights::parts::{ActivationSpec, AttentionSpec, CannotHold, LayerSpec, ParameterPart, Part};
use quark::AttentionModules;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use stored::ModuleReader;
use tensors::DescribedLayer;

/// A way to store quantized layers in safetensors files, and to describe them in config.json.
pub trait CheckpointFormat: Send + Sync {
    /// Its name, which recipes, manifests and outputs' folders have.
    fn name(&self) -> &'static str;

    /// One line for lists.
    fn about(&self) -> &'static str;

    /// Its capabilities, and the configurations that it reads.
    fn capabilities(&self) -> Capabilities;

    /// The tensors that a layer becomes.
    ///
    /// # Errors
    /// [`CannotHold`] where the format has no place for the scheme or the shape.
    fn parts(&self, layer: &LayerSpec<'_>) -> Result<Vec<Part>, CannotHold>;

    /// The tensors that a quantized bias becomes: `bias` has its values as a row, or as a column where each has a scale.
    ///
    /// # Errors
    /// [`CannotHold`] where the format has no place for the scheme.
    fn bias_parts(&self, bias: &LayerSpec<'_>) -> Result<Vec<Part>, CannotHold> {
        let _ = bias;
        let reason = format!("the format {} has no place for quantized biases", self.name());
        Err(CannotHold::new(reason, "leave ‹bias› out, or use ‹format› quark or fake"))
    }

    /// The tensors with the static parameters of a layer's activations. Asked only for schemes that are calibrated.
    ///
    /// # Errors
    /// [`CannotHold`] where the format has no place for the scheme.
    fn activation_parts(&self, spec: &ActivationSpec<'_>) -> Result<Vec<ParameterPart>, CannotHold> {
        let _ = spec;
        let hint = "leave activations out with ‹weights-only›, or use ‹format› quark or compressed-tensors";
        Err(CannotHold::new(format!("{} quantizes only weights", self.name()), hint))
    }

    /// The tensors with the static parameters of a block's attention.
    ///
    /// # Errors
    /// [`CannotHold`] where the format has no place for the scheme.
    fn attention_parts(&self, spec: &AttentionSpec) -> Result<Vec<ParameterPart>, CannotHold> {
        let _ = spec;
        let reason = format!("{} quantizes only weights, not attention or its cache", self.name());
        Err(CannotHold::new(
            reason,
            "leave ‹kv-cache› and ‹attention› out, or use ‹format› quark or compressed-tensors",
        ))
    }

    /// Where the matrix of an expert goes whose loaders want those of all experts of a block in one tensor; `module` is its name.
    fn stacked(&self, family: &str, module: &str) -> Option<StackedExpert> {
        let _ = (family, module);
        None
    }

    /// Adds to a model's config.json what loaders of the format read and other tools do not write.
    fn complete(&self, config: &mut Map<String, Value>) {
        let _ = config;
    }

    /// What loaders of the format compute otherwise than the model: notices for the user.
    ///
    /// # Errors
    /// [`CannotHold`] where no loader of the format has a class for such a model.
    fn departures(&self, config: &ModelConfig, network: &Network) -> Result<Vec<String>, CannotHold> {
        let _ = (config, network);
        Ok(Vec::new())
    }

    /// The name of weight scales, if loaders need a certain one. `in_blocks` says that each belongs to a block
    /// of rows and columns.
    fn scale_name(&self, in_blocks: bool) -> Option<&'static str> {
        let _ = in_blocks;
        None
    }

    /// The `quantization_config` of config.json.
    ///
    /// # Errors
    /// [`CannotHold`] for schemes that it cannot describe.
    fn config(&self, model: &ModelDescription<'_>) -> Result<Value, CannotHold>;

    /// What the metadata of every file say besides: of these layers, and of the `others` among the output's tensors.
    fn metadata(&self, layers: &[DescribedLayer<'_>], others: &[&str]) -> BTreeMap<String, String> {
        let _ = (layers, others);
        BTreeMap::new()
    }

    /// Reads a `quantization_config` with this `quant_method`, one of [`Capabilities::reads`].
    ///
    /// # Errors
    /// *Invalid* where it contradicts itself, *unsupported* where it describes something that is not read.
    fn reader(&self, method: &str, config: &Value) -> Result<Box<dyn ModuleReader>, ImportError>;
}

/// The place of an expert in tensors of all experts of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StackedExpert {
    /// The module of the tensors.
    pub module: String,
    /// Which of the experts it is.
    pub expert: usize,
}

/// A quantized model, as far as configurations describe it.
#[derive(Clone, Copy, Debug)]
pub struct ModelDescription<'a> {
    /// The quantized modules.
    pub layers: &'a [(&'a str, LayerScheme)],
    /// The modules among them whose biases are quantized, with the schemes of these.
    pub biases: &'a [(&'a str, TensorScheme)],
    /// The linear modules that stay as they are: names, or patterns of the form that [`Capabilities::excluded_names`] states.
    pub exclude: &'a [&'a str],
    /// The quantized modules whose names in a model that transformers has loaded differ, under those names.
    pub aliases: &'a [(&'a str, LayerScheme)],
    /// The quantization of attention.
    pub attention: AttentionScheme,
    /// The modules that make queries, keys and values.
    pub attention_modules: &'a AttentionModules,
    /// Whether input channels are grouped by a list, not as runs.
    pub act_order: bool,
    /// The order of 4-bit codes in words, where the format leaves a choice.
    pub nibble_order: NibbleOrder,
    /// The algorithms that chose the codes.
    pub algorithms: &'a Algorithms,
    /// The modules whose inputs are rotated while the model runs, under all their names.
    pub input_rotations: &'a [(&'a str, InputRotation)],
}

/// The rotation of a layer's inputs by Sylvester's Hadamard matrix while the model runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct InputRotation {
    /// The channels that each matrix mixes.
    pub size: usize,
    /// Whether these are all channels of the layer.
    pub is_whole: bool,
}

impl InputRotation {
    /// The size of the matrices of all layers; `None` where each is as wide as its layer.
    ///
    /// # Errors
    /// [`CannotHold`] where there are several sizes.
    pub fn common_size(rotations: &[(&str, InputRotation)]) -> Result<Option<usize>, CannotHold> {
        let mut all = rotations.iter().map(|(_, rotation)| *rotation);
        let Some(first) = all.next().filter(|_| !rotations.iter().all(|(_, rotation)| rotation.is_whole)) else {
            return Ok(None);
        };
        match all.find(|other| other.size != first.size) {
            None => Ok(Some(first.size)),
            Some(other) => Err(CannotHold::new(
                format!("inputs are rotated in groups of {} and of {} channels", first.size, other.size),
                "give all layers one size with rotate:size=N",
            )),
        }
    }
}

/// The description of codes that files without a config.json hold themselves, and the method that reads it.
pub fn described_in_files(checkpoint: &Checkpoint) -> Option<(&'static str, Value)> {
    let of_comfyui = comfyui::described(checkpoint).map(|described| (comfyui::METHOD, described));
    of_comfyui.or_else(|| Some((tensors::TENSORS_METHOD, tensors::described(checkpoint)?)))
}

/// Takes what formats say of a source's tensors out of the metadata of its files: it is not true of what they become.
pub fn forget_metadata(metadata: &mut BTreeMap<String, String>) {
    metadata.remove(tensors::METADATA_KEY);
    comfyui::forget(metadata);
    torchao::forget(metadata);
}

/// Takes what config.json, or a part of it, says of the quantization of a source out of it: it is not true of what it becomes.
pub fn forget_config(fields: &mut Map<String, Value>) {
    for key in ["quantization_config", "compression_config", plain_floats::FAKE_QUANTIZATION] {
        fields.shift_remove(key);
    }
    if fields.get(mlx::KEY).is_some_and(mlx::is_stated) {
        fields.shift_remove(mlx::KEY);
    }
}
