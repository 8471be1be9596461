//! Checkpoints that are quantized already, whoever made them, seen as if their weights were floats: which tensors there
//! would be, and how to make values of those that are packed. Reads headers, config.json and scalars; weights are read
//! band by band through [`PackedMatrix`]. Runs nothing.
//!
//! One file a layout and a line in `METHODS`. A layout is data (`layout::Layout`): the parts that an export would
//! write, so that one unpacker inverts one packer.

mod activations;
mod awq;
mod catalog;
mod compressed_tensors;
mod fake;
mod fp8;
mod gptq;
mod layout;
mod modelopt;
mod mxfp4;
mod quark;
pub(crate) mod scalars;
pub(crate) mod survey;
mod tensors;

pub use crate::import_error::ImportError;
pub use crate::weight::{BlockMatrix, CodeMatrix, ImportedTensor, MergedMatrix, PackedMatrix, Stored};
pub use activations::{StoredActivation, StoredActivations, StoredAttention};
pub(crate) use fake::is_fake_quantized;
pub(crate) use fp8::{scale_block, stated_block};

use crate::config_json::tensors::described;
use crate::export::TENSORS_METHOD;
use crate::network::{TensorMeta, modality_part};
use catalog::{Catalog, Module};
use kvant_container::{Checkpoint, TensorView};
use layout::Layout;
use serde_json::Value;
use std::collections::HashMap;
use std::sync::Arc;

/// A reader of one tool's configuration.
trait Method {
    /// How the weights of a module are stored; none where they are plain tensors.
    fn weights(&self, module: &Module<'_, '_>) -> Result<Vec<Weight>, ImportError>;

    /// How the activations of a linear layer are quantized.
    fn activations(&self, module: &Module<'_, '_>) -> Result<StoredActivations, ImportError>;

    /// What the tensors of a module say of the attention that it is, or is a part of.
    fn attention(&self, module: &Module<'_, '_>) -> Result<StoredAttention, ImportError>;

    /// Whether outputs of layers are quantized because they enter the KV cache.
    fn quantizes_cache(&self) -> bool {
        false
    }
}

/// A float tensor that is stored as something else.
struct Weight {
    name: String,
    shape: Vec<usize>,
    /// Its only matrix, or those of all experts.
    matrices: Vec<Layout>,
}

impl Weight {
    /// The weight of a linear layer.
    fn of(module: &Module<'_, '_>, layout: Layout) -> Weight {
        let shape = vec![layout.rows, layout.columns];
        Weight { name: module.tensor_name("weight"), shape, matrices: vec![layout] }
    }
}

/// Makes a reader from a `quantization_config`.
type Reader = fn(&Value) -> Result<Box<dyn Method>, ImportError>;

/// A row of the table of methods.
struct MethodRow {
    /// `quant_method` in config.json.
    name: &'static str,
    reader: Reader,
}

/// Every `quant_method` that is read.
const METHODS: &[MethodRow] = &[
    MethodRow { name: "quark", reader: quark::reader },
    MethodRow { name: "compressed-tensors", reader: compressed_tensors::reader },
    MethodRow { name: "awq", reader: awq::reader },
    MethodRow { name: "gptq", reader: gptq::reader },
    MethodRow { name: "auto-round", reader: gptq::auto_round_reader },
    MethodRow { name: "fp8", reader: fp8::reader },
    MethodRow { name: "fbgemm_fp8", reader: fp8::fbgemm_reader },
    MethodRow { name: "mxfp4", reader: mxfp4::reader },
    MethodRow { name: "modelopt", reader: modelopt::reader },
    MethodRow { name: TENSORS_METHOD, reader: tensors::reader },
];

/// Files in which tools said, or say, what config.json leaves unsaid, and the method that they mean.
pub(crate) const SIDE_FILES: &[(&str, &str)] =
    &[("quantize_config.json", "gptq"), ("quant_config.json", "awq"), ("hf_quant_config.json", "modelopt")];

/// Suffixes of parameters that are no weights, in any layout: what describes activations.
const PARAMETERS: &[&str] = &[
    "input_scale",
    "input_scale_2",
    "input_zero_point",
    "input_global_scale",
    "output_scale",
    "output_zero_point",
    "k_scale",
    "v_scale",
    "q_scale",
    "kv_scale",
    "prob_output_scale",
];

/// A checkpoint, seen as floats.
#[derive(Clone, Debug, Default)]
pub struct Import<'a> {
    tensors: Vec<ImportedTensor<'a>>,
    activations: HashMap<String, StoredActivations>,
    attention: HashMap<usize, StoredAttention>,
    quantizes_cache: bool,
}

impl<'a> Import<'a> {
    /// The tensors, in the order of the checkpoint.
    pub fn tensors(&self) -> &[ImportedTensor<'a>] {
        &self.tensors
    }

    /// How the activations of a module are quantized; `None` where they are not.
    pub fn activations(&self, module: &str) -> Option<&StoredActivations> {
        self.activations.get(module)
    }

    /// Whether anything but weights is quantized.
    pub fn quantizes_activations(&self) -> bool {
        !self.activations.is_empty() || !self.attention.is_empty()
    }

    /// Whether keys and values are quantized for the cache, as attention or as outputs of the layers that make them.
    pub fn quantizes_cache(&self) -> bool {
        self.quantizes_cache || self.attention.values().any(|found| found.key.is_some() || found.value.is_some())
    }

    /// What the attention of a decoder block quantizes; `None` where it does not.
    pub fn attention(&self, block: usize) -> Option<&StoredAttention> {
        self.attention.get(&block)
    }

    /// What the first block whose attention is quantized does.
    pub fn first_attention(&self) -> Option<&StoredAttention> {
        let first = self.attention.keys().min()?;
        self.attention.get(first)
    }

    /// The tensors themselves.
    pub fn into_tensors(self) -> Vec<ImportedTensor<'a>> {
        self.tensors
    }
}

/// Sees a checkpoint as floats. Checks the names, types and sizes of everything that is read later.
///
/// # Errors
///
/// *Invalid* where tensors contradict config.json or each other, *unsupported* for layouts that are not read.
pub fn open(checkpoint: &Checkpoint) -> Result<Import<'_>, ImportError> {
    if let Some(file) = checkpoint.gguf() {
        let tensors = crate::gguf_model::restore::tensors(checkpoint, file)?;
        return Ok(Import { tensors, ..Import::default() });
    }
    let catalog = Catalog::new(checkpoint);
    let config = checkpoint.config()?;
    let stated = config.as_ref().and_then(|config| config.get("quantization_config"));
    if stated.is_some_and(|stated| !stated.is_object() && !stated.is_null()) {
        return Err(ImportError::invalid("config.json", "its quantization_config is no object"));
    }
    let method = method_of(checkpoint, config.as_ref())?;
    let builder = Builder { catalog: &catalog, method: &*method, parts: HashMap::new(), import: Import::default() };
    let mut import = builder.build()?;
    let described = fake::activations(config.as_ref(), import.tensors.iter().map(|tensor| &tensor.meta))?;
    import.activations.extend(described.activations);
    import.attention.extend(described.attention);
    import.quantizes_cache = method.quantizes_cache() || described.quantizes_cache;
    if !checkpoint.adapters().is_empty() {
        crate::lora::merge(checkpoint, &mut import.tensors)?;
    }
    Ok(import)
}

/// The reader of a checkpoint's layout.
fn method_of(checkpoint: &Checkpoint, config: Option<&Value>) -> Result<Box<dyn Method>, ImportError> {
    if let Some(described) = described_tensors(checkpoint, config) {
        return tensors::reader(&described);
    }
    match config.and_then(quantization_config) {
        Some(stated) => method(stated),
        None => side_method(checkpoint),
    }
}

/// What the metadata of files says of codes that belong to no model: where there is no config.json, or one that refers to it.
fn described_tensors(checkpoint: &Checkpoint, config: Option<&Value>) -> Option<Value> {
    let stated = config.and_then(quantization_config).and_then(|stated| stated.get("quant_method")?.as_str());
    if config.is_some() && stated != Some(TENSORS_METHOD) {
        return None;
    }
    described(checkpoint)
}

/// The method that a file beside config.json tells. Where none does, there may still be fp8 weights with scales.
fn side_method(checkpoint: &Checkpoint) -> Result<Box<dyn Method>, ImportError> {
    for (file, name) in SIDE_FILES {
        let row = METHODS.iter().find(|row| row.name == *name);
        if let (Some(stated), Some(row)) = (checkpoint.json(file)?, row) {
            return (row.reader)(&stated);
        }
    }
    fp8::reader(&Value::Null)
}

/// What a checkpoint says of its quantization, and the method: in config.json, or in a file beside it.
pub(crate) fn stated(checkpoint: &Checkpoint, config: Option<&Value>) -> Option<(String, Value)> {
    if let Some(described) = described_tensors(checkpoint, config) {
        return Some((TENSORS_METHOD.to_owned(), described));
    }
    if let Some(stated) = config.and_then(quantization_config) {
        let name = stated.get("quant_method").and_then(Value::as_str).unwrap_or_default();
        return Some((name.to_owned(), stated.clone()));
    }
    let beside = |(file, name): &(&str, &str)| Some(((*name).to_owned(), checkpoint.json(file).ok()??));
    SIDE_FILES.iter().find_map(beside)
}

/// What a config.json says of quantization; multimodal models may say it of a part.
fn quantization_config(config: &Value) -> Option<&Value> {
    let keys = ["quantization_config", "compression_config"];
    let of =
        |fields: &'_ Value| keys.iter().find_map(|key| fields.get(*key)).filter(|value| value.is_object()).is_some();
    let part = config.as_object()?.values().find(|value| value.is_object() && of(value));
    let fields = if of(config) { Some(config) } else { part };
    keys.iter().find_map(|key| fields?.get(*key))
}

fn method(config: &Value) -> Result<Box<dyn Method>, ImportError> {
    let name = config.get("quant_method").and_then(Value::as_str).unwrap_or_default();
    match METHODS.iter().find(|row| row.name == name) {
        Some(row) => (row.reader)(config),
        None => {
            let names: Vec<&str> = METHODS.iter().map(|row| row.name).collect();
            let reason = format!("{} is not read; these are: {}", crate::recipe_error::quoted(name), names.join(", "));
            let hint = "dequantize the checkpoint with the tool that made it";
            Err(ImportError::unsupported("quantization_config.quant_method", reason, hint))
        }
    }
}

fn plain<'a>(name: &str, view: TensorView<'a>) -> ImportedTensor<'a> {
    let meta = TensorMeta::new(name, view.shape(), view.dtype().to_string());
    ImportedTensor { meta, stored: Stored::Plain(view) }
}

/// Goes through the tensors of a checkpoint.
struct Builder<'c, 'a> {
    catalog: &'c Catalog<'a>,
    method: &'c dyn Method,
    /// The modules seen, and the names of the parts of their weights.
    parts: HashMap<&'c str, Vec<String>>,
    import: Import<'a>,
}

impl<'c, 'a> Builder<'c, 'a> {
    fn build(mut self) -> Result<Import<'a>, ImportError> {
        for (name, view) in self.catalog.tensors() {
            let (module, suffix) = name.rsplit_once('.').unwrap_or(("", name));
            if !self.parts.contains_key(module) {
                self.add_module(module)?;
            }
            let is_part = self.parts.get(module).is_some_and(|parts| parts.contains(name));
            if !is_part && !PARAMETERS.contains(&suffix) {
                self.import.tensors.push(plain(name, *view));
            }
        }
        Ok(self.import)
    }

    /// Adds the weights of a module that are packed, where the first of its tensors stands.
    fn add_module(&mut self, name: &'c str) -> Result<(), ImportError> {
        let module = self.catalog.module(name);
        self.add_activations(&module)?;
        let mut parts = Vec::new();
        for weight in self.method.weights(&module)? {
            let bound = weight
                .matrices
                .iter()
                .map(|layout| layout.bind(self.catalog).map(|matrix| Arc::new(PackedMatrix::Apart(matrix))));
            let matrices = bound.collect::<Result<Vec<_>, _>>()?;
            let meta = TensorMeta::new(weight.name, weight.shape, "F32");
            self.import.tensors.push(ImportedTensor { meta, stored: Stored::Packed(matrices) });
            let names = weight
                .matrices
                .into_iter()
                .take(1)
                .flat_map(|layout| layout.parts.into_iter().map(|part| part.name).chain(layout.groups));
            parts.extend(names);
        }
        self.parts.insert(name, parts);
        Ok(())
    }

    fn add_activations(&mut self, module: &Module<'_, '_>) -> Result<(), ImportError> {
        let activations = self.method.activations(module)?;
        if !activations.is_empty() {
            self.import.activations.insert(module.name.to_owned(), activations);
        }
        let attention = self.method.attention(module)?;
        if let (false, Some(block)) = (attention.is_empty(), block_of(module.name)) {
            let known = self.import.attention.remove(&block).unwrap_or_default();
            self.import.attention.insert(block, known.or(attention));
        }
        Ok(())
    }
}

/// The decoder block that a module belongs to: the first number of its name, outside of vision and audio towers.
fn block_of(module: &str) -> Option<usize> {
    let number = module.split('.').find_map(|part| part.parse().ok());
    number.filter(|_| modality_part(module).is_none())
}
