//! The table of checkpoint formats, handles to its rows, and formats that are added to it while a program runs.

use super::stored::ModuleReader;
use super::tensors::DescribedLayer;
use super::{
    Capabilities, CheckpointFormat, ModelDescription, StackedExpert, awq, comfyui, compressed_tensors, fp8, gptq, mlx,
    modelopt, mxfp4, quark, tensors, torchao,
};
use kvant_model::model_config::ModelConfig;
use kvant_model::network::Network;
use kvant_quant::registry::{RegisterError, Registry, Row};
use kvant_quant::scheme::EVALUATION_ONLY;
use kvant_weights::import_error::ImportError;
use kvant_weights::parts::{ActivationSpec, AttentionSpec, CannotHold, LayerSpec, ParameterPart, Part};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;
use std::sync::LazyLock;

/// A checkpoint format: one of the table, or one that is [registered](register). Two are the same if they have the same name.
#[derive(Clone, Copy)]
pub struct FormatHandle(&'static dyn CheckpointFormat);

impl FormatHandle {
    /// AMD Quark's own layout.
    pub const QUARK: FormatHandle = FormatHandle(&quark::Quark);
    /// The layout of compressed-tensors, which llm-compressor writes.
    pub const COMPRESSED_TENSORS: FormatHandle = FormatHandle(&compressed_tensors::CompressedTensors);
    /// AWQ's gemm layout.
    pub const AWQ: FormatHandle = FormatHandle(&awq::Awq);
    /// GPTQ's first layout, with zero points less 1.
    pub const GPTQ: FormatHandle = FormatHandle(&gptq::Gptq::V1);
    /// GPTQ's second layout.
    pub const GPTQ_V2: FormatHandle = FormatHandle(&gptq::Gptq::V2);
    /// fp8 with a scale for the tensor or for blocks, as vLLM and DeepSeek have it.
    pub const FP8: FormatHandle = FormatHandle(&fp8::Fp8);
    /// MXFP4 experts as gpt-oss is published.
    pub const MXFP4: FormatHandle = FormatHandle(&mxfp4::Mxfp4);
    /// The layout of MLX.
    pub const MLX: FormatHandle = FormatHandle(&mlx::Mlx);
    /// NVIDIA ModelOpt's layouts, which are read only.
    pub const MODELOPT: FormatHandle = FormatHandle(&modelopt::ModelOpt);
    /// torchao's tensors in safetensors files.
    pub const TORCHAO: FormatHandle = FormatHandle(&torchao::TorchAo);
    /// Weights of diffusion models in one file, as ComfyUI has them.
    pub const COMFYUI: FormatHandle = FormatHandle(&comfyui::ComfyUi);
    /// Codes and scales of tensors that no config.json makes a model of, described in the metadata of their files.
    pub const TENSORS: FormatHandle = FormatHandle(&tensors::Tensors);
}

/// Every format of this crate.
const BUILT_IN: &[FormatHandle] = &[
    FormatHandle::QUARK,
    FormatHandle::COMPRESSED_TENSORS,
    FormatHandle::AWQ,
    FormatHandle::GPTQ,
    FormatHandle::GPTQ_V2,
    FormatHandle::FP8,
    FormatHandle::MXFP4,
    FormatHandle::MLX,
    FormatHandle::MODELOPT,
    FormatHandle::TORCHAO,
    FormatHandle::COMFYUI,
    FormatHandle::TENSORS,
];

/// Names of outputs and of conversion targets other than checkpoint formats.
const OTHER_NAMES: &[&str] = &["fake", "float", "gguf", "onnx"];

static FORMATS: LazyLock<Registry<FormatHandle>> =
    LazyLock::new(|| Registry::new(BUILT_IN.to_vec()).with_reserved(OTHER_NAMES));

impl Row for FormatHandle {
    const KIND: &'static str = "checkpoint format";

    fn names(&self) -> Vec<&str> {
        vec![self.name()]
    }

    /// The `quant_method`s that it reads.
    fn claims(&self) -> Vec<&str> {
        self.capabilities().reads.to_vec()
    }
}

/// Adds a format to the table for as long as the program runs. It is then chosen by its name, and checkpoints with its `quant_method`
/// are read.
///
/// # Errors
/// [`RegisterError`] where the name cannot be spelled, another format has it, or another reads one of the `quant_method`s.
pub fn register(format: impl CheckpointFormat + 'static) -> Result<FormatHandle, RegisterError> {
    // A handle is copied freely, so the format lives as long as the program, even one that is refused.
    let handle = FormatHandle(Box::leak(Box::new(format)));
    FORMATS.register(handle)?;
    Ok(handle)
}

/// No checkpoint format has this name (*invalid*).
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("unknown checkpoint format `{0}`")]
pub struct UnknownFormat(pub String);

impl FormatHandle {
    /// Every format that is read or written: those of this crate, then those that were registered.
    pub fn all() -> Vec<FormatHandle> {
        FORMATS.rows()
    }

    /// Every format that is written.
    pub fn written() -> impl Iterator<Item = FormatHandle> {
        FormatHandle::all().into_iter().filter(|format| format.capabilities().is_written)
    }

    /// The names of the formats that can say that inputs are rotated while the model runs.
    pub fn of_rotations() -> Vec<&'static str> {
        let can_say = |format: &FormatHandle| format.capabilities().input_rotations;
        FormatHandle::written().filter(can_say).map(FormatHandle::name).collect()
    }

    /// The format that reads a `quant_method`.
    pub fn reading(method: &str) -> Option<FormatHandle> {
        FormatHandle::all().into_iter().find(|format| format.capabilities().reads.contains(&method))
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        self.0.name()
    }

    /// One line for lists.
    pub fn about(self) -> &'static str {
        self.0.about()
    }

    /// Its capabilities.
    pub fn capabilities(self) -> Capabilities {
        self.0.capabilities()
    }

    /// The tensors that a layer becomes.
    ///
    /// # Errors
    /// [`CannotHold`] where the format has no place for the scheme or the shape.
    pub fn parts(self, layer: &LayerSpec<'_>) -> Result<Vec<Part>, CannotHold> {
        let weight = layer.scheme.weight;
        if weight.is_for_evaluation_only() {
            return Err(CannotHold::new(format!("`{weight}` is {EVALUATION_ONLY}"), "use ‹format› fake"));
        }
        if layer.input_rotation.is_some() && !self.capabilities().input_rotations {
            let reason = format!("{} has no place for rotations of inputs while the model runs", self.name());
            return Err(CannotHold::new(reason, format!("use ‹format› {}", FormatHandle::of_rotations().join(" or "))));
        }
        self.0.parts(layer)
    }

    /// The tensors that a quantized bias becomes.
    ///
    /// # Errors
    /// [`CannotHold`] where the format has no place for the scheme.
    pub fn bias_parts(self, bias: &LayerSpec<'_>) -> Result<Vec<Part>, CannotHold> {
        self.0.bias_parts(bias)
    }

    /// Where the matrix of an expert goes whose loaders want those of all experts of a block in one tensor; `module` is its name.
    pub fn stacked(self, family: &str, module: &str) -> Option<StackedExpert> {
        self.0.stacked(family, module)
    }

    /// The tensors with the static parameters of a layer's activations; none where scales are dynamic.
    ///
    /// # Errors
    /// [`CannotHold`] where the format has no place for the scheme.
    pub fn activation_parts(self, spec: &ActivationSpec<'_>) -> Result<Vec<ParameterPart>, CannotHold> {
        if spec.scheme.needs_calibration() { self.0.activation_parts(spec) } else { Ok(Vec::new()) }
    }

    /// The tensors with the static parameters of a block's attention.
    ///
    /// # Errors
    /// [`CannotHold`] where the format has no place for the scheme.
    pub fn attention_parts(self, spec: &AttentionSpec) -> Result<Vec<ParameterPart>, CannotHold> {
        self.0.attention_parts(spec)
    }

    /// Adds to a model's config.json what loaders of the format read and other tools do not write.
    pub fn complete(self, config: &mut Map<String, Value>) {
        self.0.complete(config);
    }

    /// What loaders of the format compute otherwise than the model: notices for the user.
    ///
    /// # Errors
    /// [`CannotHold`] where no loader of the format has a class for such a model.
    pub fn departures(self, config: &ModelConfig, network: &Network) -> Result<Vec<String>, CannotHold> {
        self.0.departures(config, network)
    }

    /// The name of weight scales, if loaders need a certain one.
    pub fn scale_name(self, in_blocks: bool) -> Option<&'static str> {
        self.0.scale_name(in_blocks)
    }

    /// The `quantization_config` of config.json.
    ///
    /// # Errors
    /// [`CannotHold`] for schemes that it cannot describe.
    pub fn config(self, model: &ModelDescription<'_>) -> Result<Value, CannotHold> {
        self.0.config(model)
    }

    /// What the metadata of every file say of these layers, and of the `others` among the output's tensors.
    pub fn metadata(self, layers: &[DescribedLayer<'_>], others: &[&str]) -> BTreeMap<String, String> {
        self.0.metadata(layers, others)
    }

    /// Reads a `quantization_config` with this `quant_method`.
    pub(crate) fn reader(self, method: &str, config: &Value) -> Result<Box<dyn ModuleReader>, ImportError> {
        self.0.reader(method, config)
    }
}

impl PartialEq for FormatHandle {
    fn eq(&self, other: &FormatHandle) -> bool {
        self.name() == other.name()
    }
}

impl Eq for FormatHandle {}

impl Hash for FormatHandle {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name().hash(state);
    }
}

impl fmt::Debug for FormatHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for FormatHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for FormatHandle {
    type Err = UnknownFormat;

    fn from_str(text: &str) -> Result<FormatHandle, UnknownFormat> {
        let found = FormatHandle::written().find(|format| format.name() == text);
        found.ok_or_else(|| UnknownFormat(text.to_owned()))
    }
}
