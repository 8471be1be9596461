//! Quantized checkpoints of any tool, presented as if their weights were floats: the tensors there
//! would be, and the dequantization of packed ones. Reads headers, config.json and scalars; weights are read
//! band by band through [`PackedMatrix`](kvant_weights::weight::PackedMatrix). Runs nothing.
//!
//! Readers of formats are beside their writers, in [`crate::format`]: the layout of a weight is the list of parts that would be
//! written, so that one unpacker inverts one packer.

pub(crate) mod survey;

pub use crate::format::stored::{StoredActivation, StoredActivations, StoredAttention};
pub use crate::rotation::InputRotations;
use kvant_weights::import_error::ImportError;
use kvant_weights::weight::{ImportedTensor, Stored};

use crate::format::FormatHandle;
use crate::format::described_in_files;
use crate::format::plain_floats;
use crate::format::stored::{
    Catalog, ModuleReader, ModuleTensors, ModuleWeight, method_of as stated_method, not_a_matrix, quantization_config,
};
use crate::format::tensors::{self, TENSORS_METHOD};
use kvant_container::{Checkpoint, TensorView};
use kvant_model::network::{TensorMeta, modality_part};
use kvant_quant::scheme::TensorScheme;
use serde_json::Value;
use std::collections::HashMap;
use std::sync::Arc;

/// Files with quantization configurations of tools outside of config.json, with their format and `quant_method`.
pub fn side_files() -> impl Iterator<Item = (&'static str, FormatHandle, &'static str)> {
    FormatHandle::all().into_iter().flat_map(|format| {
        let capabilities = format.capabilities();
        let method = capabilities.reads.first().copied().unwrap_or(capabilities.method);
        capabilities.side_files.iter().map(move |file| (*file, format, method))
    })
}

/// Suffixes of parameters of activations, in any layout.
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
    // ComfyUI's: what layers are, and the scales of inputs in older files.
    "comfy_quant",
    "scaled_fp8",
    "scale_input",
];

/// Returns whether a tensor holds parameters of activations, by the last part of its name.
pub(crate) fn is_parameter(suffix: &str) -> bool {
    PARAMETERS.contains(&suffix)
}

/// Returns whether a tensor is a rotation of inputs in Quark's layout, by the last part of its name.
pub(crate) fn is_rotation(suffix: &str) -> bool {
    suffix == "input_rotation" || suffix.starts_with("shared_input_rotation_")
}

/// A checkpoint, seen as floats.
#[derive(Clone, Debug, Default)]
pub struct Import<'a> {
    tensors: Vec<ImportedTensor<'a>>,
    schemes: HashMap<String, TensorScheme>,
    biases: HashMap<String, TensorScheme>,
    convolutions: Vec<TensorView<'a>>,
    activations: HashMap<String, StoredActivations>,
    attention: HashMap<usize, StoredAttention>,
    quantizes_cache: bool,
    input_rotations: InputRotations,
}

impl<'a> Import<'a> {
    /// The tensors, in the order of the checkpoint.
    pub fn tensors(&self) -> &[ImportedTensor<'a>] {
        &self.tensors
    }

    /// The modules whose weights are quantized as config.json states it, with the schemes of these.
    pub fn schemes(&self) -> &HashMap<String, TensorScheme> {
        &self.schemes
    }

    /// The modules whose biases are codes, with the schemes of these. Among the tensors they are matrices of one row or one column.
    pub fn biases(&self) -> &HashMap<String, TensorScheme> {
        &self.biases
    }

    /// The codes of convolutions. They and their scales are among the tensors as they are stored.
    pub fn convolutions(&self) -> &[TensorView<'a>] {
        &self.convolutions
    }

    /// The modules with quantized activations.
    pub fn all_activations(&self) -> &HashMap<String, StoredActivations> {
        &self.activations
    }

    /// The quantization of a module's activations; `None` if there is none.
    pub fn activations(&self, module: &str) -> Option<&StoredActivations> {
        self.activations.get(module)
    }

    /// Returns whether anything but weights is quantized.
    pub fn quantizes_activations(&self) -> bool {
        !self.activations.is_empty() || !self.attention.is_empty()
    }

    /// Whether keys and values are quantized for the cache, as attention or as outputs of the layers that make them.
    pub fn quantizes_cache(&self) -> bool {
        self.quantizes_cache || self.attention.values().any(|found| found.key.is_some() || found.value.is_some())
    }

    /// The quantization of a decoder block's attention; `None` if there is none.
    pub fn attention(&self, block: usize) -> Option<&StoredAttention> {
        self.attention.get(&block)
    }

    /// The quantization of the first block with quantized attention.
    pub fn first_attention(&self) -> Option<&StoredAttention> {
        let first = self.attention.keys().min()?;
        self.attention.get(first)
    }

    /// The rotations of inputs of layers while the model runs. Their weights are those of rotated inputs.
    pub fn input_rotations(&self) -> &InputRotations {
        &self.input_rotations
    }

    /// Refuses a checkpoint in which inputs are rotated while the model runs, for those who read its weights alone.
    ///
    /// # Errors
    /// *Unsupported*, with the first such layer.
    pub fn refuse_input_rotations(&self) -> Result<(), ImportError> {
        let Some(module) = self.input_rotations.keys().min() else { return Ok(()) };
        let reason = "has inputs that are rotated while the model runs, which the result has no place for";
        let formats = FormatHandle::of_rotations().join(" or ");
        Err(ImportError::unsupported(module, reason, format!("keep it in the format {formats}")))
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
    let import = open_with_convolutions(checkpoint)?;
    match import.convolutions.first() {
        Some(view) => Err(not_a_matrix(*view)),
        None => Ok(import),
    }
}

/// The same with convolutions, whose codes are not unpacked.
///
/// # Errors
/// As [`open`].
pub fn open_with_convolutions(checkpoint: &Checkpoint) -> Result<Import<'_>, ImportError> {
    if let Some(file) = checkpoint.gguf() {
        let tensors = kvant_gguf::model::restore::tensors(checkpoint, file)?;
        return Ok(Import { tensors, ..Import::default() });
    }
    let catalog = Catalog::new(checkpoint);
    let config = checkpoint.config()?;
    let stated = config.as_ref().and_then(|config| config.get("quantization_config"));
    if stated.is_some_and(|stated| !stated.is_object() && !stated.is_null()) {
        return Err(ImportError::invalid("config.json", "its quantization_config is not an object"));
    }
    let reader = method_of(checkpoint, config.as_ref())?;
    let builder = Builder { catalog: &catalog, reader: &*reader, parts: HashMap::new(), import: Import::default() };
    let mut import = builder.build()?;
    let described = plain_floats::activations(config.as_ref(), import.tensors.iter().map(|tensor| &tensor.meta))?;
    import.schemes.extend(described.weights);
    import.activations.extend(described.activations);
    import.attention.extend(described.attention);
    import.quantizes_cache = reader.quantizes_cache() || described.quantizes_cache;
    if !checkpoint.adapters().is_empty() {
        crate::lora::merge(checkpoint, &mut import.tensors)?;
    }
    if checkpoint.regroups_matrices() {
        crate::experts::regroup(config.as_ref(), &mut import.tensors)?;
    }
    if let Some(rotate) = checkpoint.rewriting() {
        import.input_rotations.extend(crate::rotation::apply(checkpoint, rotate, &mut import.tensors)?);
    }
    Ok(import)
}

/// The reader of a checkpoint's layout.
fn method_of(checkpoint: &Checkpoint, config: Option<&Value>) -> Result<Box<dyn ModuleReader>, ImportError> {
    if let Some((method, described)) = described_tensors(checkpoint, config) {
        return reader(method, &described);
    }
    match config.and_then(quantization_config) {
        Some(stated) => reader(stated_method(stated).unwrap_or_default(), stated),
        None => side_method(checkpoint),
    }
}

/// The description of codes in the files themselves, and the method that reads it: if there is no config.json, or one that refers to it.
fn described_tensors(checkpoint: &Checkpoint, config: Option<&Value>) -> Option<(&'static str, Value)> {
    let Some(config) = config else { return described_in_files(checkpoint) };
    let stated = quantization_config(config).and_then(stated_method);
    let described = if stated == Some(TENSORS_METHOD) { tensors::described(checkpoint) } else { None };
    described.map(|described| (TENSORS_METHOD, described))
}

/// The reader for a file beside config.json. Without one, there may still be fp8 weights with scales.
fn side_method(checkpoint: &Checkpoint) -> Result<Box<dyn ModuleReader>, ImportError> {
    for (file, format, method) in side_files() {
        if let Some(stated) = checkpoint.json(file)? {
            return format.reader(method, &stated);
        }
    }
    FormatHandle::FP8.reader("fp8", &Value::Null)
}

/// The quantization configuration of a checkpoint, and its method: in config.json, or in a file beside it.
pub(crate) fn stated(checkpoint: &Checkpoint, config: Option<&Value>) -> Option<(String, Value)> {
    if let Some((method, described)) = described_tensors(checkpoint, config) {
        return Some((method.to_owned(), described));
    }
    if let Some(stated) = config.and_then(quantization_config) {
        let name = stated_method(stated).unwrap_or_default();
        return Some((name.to_owned(), stated.clone()));
    }
    side_files().find_map(|(file, _, method)| Some((method.to_owned(), checkpoint.json(file).ok()??)))
}

/// The reader of a method's configuration.
fn reader(name: &str, config: &Value) -> Result<Box<dyn ModuleReader>, ImportError> {
    if let Some(format) = FormatHandle::reading(name) {
        return format.reader(name, config);
    }
    let names: Vec<&str> = FormatHandle::all().iter().flat_map(|format| format.capabilities().reads).copied().collect();
    let reason = format!("{} is not read; these are: {}", kvant_weights::recipe_error::quoted(name), names.join(", "));
    let hint = "dequantize the checkpoint with the tool that made it";
    Err(ImportError::unsupported("quantization_config.quant_method", reason, hint))
}

fn plain<'a>(name: &str, view: TensorView<'a>) -> ImportedTensor<'a> {
    let meta = TensorMeta::new(name, view.shape(), view.dtype().to_string());
    ImportedTensor { meta, stored: Stored::Plain(view) }
}

/// Goes through the tensors of a checkpoint.
struct Builder<'c, 'a> {
    catalog: &'c Catalog<'a>,
    reader: &'c dyn ModuleReader,
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
            let is_beside = is_parameter(suffix) || is_rotation(suffix) || self.reader.describes_transform(name);
            if !is_part && !is_beside {
                self.import.tensors.push(plain(name, *view));
            }
        }
        Ok(self.import)
    }

    /// Adds the weights of a module that are packed, where the first of its tensors stands.
    fn add_module(&mut self, name: &'c str) -> Result<(), ImportError> {
        let module = self.catalog.module(name);
        self.add_activations(&module)?;
        let (mut parts, mut columns) = (Vec::new(), columns_of(&module));
        if let Some(bias) = self.reader.bias(&module)? {
            let scheme = bias.matrices.first().and_then(|layout| layout.scheme);
            self.import.biases.extend(scheme.map(|scheme| (name.to_owned(), scheme)));
            parts.extend(self.add_packed(bias)?);
        }
        if let (Some(scheme), Some(codes)) = (self.reader.convolution(&module), module.tensor("weight")) {
            self.import.schemes.insert(name.to_owned(), scheme);
            self.import.convolutions.push(codes);
        } else if let Some(rounded) = self.reader.rounded(&module) {
            self.import.schemes.insert(name.to_owned(), rounded.scheme);
            parts.extend(rounded.parameters);
        } else {
            for weight in self.reader.weights(&module)? {
                let scheme = weight.matrices.first().and_then(|layout| layout.scheme);
                self.import.schemes.extend(scheme.map(|scheme| (name.to_owned(), scheme)));
                columns = weight.matrices.first().map(|layout| layout.columns);
                parts.extend(self.add_packed(weight)?);
            }
        }
        let rotation = columns.map_or(Ok(None), |columns| self.reader.input_rotation(&module, columns))?;
        self.import.input_rotations.extend(rotation.map(|rotation| (name.to_owned(), rotation)));
        self.parts.insert(name, parts);
        Ok(())
    }

    /// Adds a tensor that is packed, and returns the names of its parts.
    fn add_packed(&mut self, weight: ModuleWeight) -> Result<Vec<String>, ImportError> {
        let bound = weight.matrices.iter().map(|layout| layout.bind(self.catalog).map(Arc::new));
        let matrices = bound.collect::<Result<Vec<_>, _>>()?;
        let meta = TensorMeta::new(weight.name, weight.shape, "F32");
        self.import.tensors.push(ImportedTensor { meta, stored: Stored::Packed(matrices) });
        let names = weight
            .matrices
            .into_iter()
            .take(1)
            .flat_map(|layout| layout.parts.into_iter().map(|part| part.name).chain(layout.groups));
        Ok(names.collect())
    }

    fn add_activations(&mut self, module: &ModuleTensors<'_, '_>) -> Result<(), ImportError> {
        let activations = self.reader.activations(module)?;
        if !activations.is_empty() {
            self.import.activations.insert(module.name.to_owned(), activations);
        }
        let attention = self.reader.attention(module)?;
        if let (false, Some(block)) = (attention.is_empty(), block_of(module.name)) {
            let known = self.import.attention.remove(&block).unwrap_or_default();
            self.import.attention.insert(block, known.or(attention));
        }
        Ok(())
    }
}

/// The input channels of a module whose weight is a plain matrix.
pub(crate) fn columns_of(module: &ModuleTensors<'_, '_>) -> Option<usize> {
    match *module.tensor("weight")?.shape() {
        [_, columns] => Some(columns),
        _ => None,
    }
}

/// The decoder block that a module belongs to: the first number of its name, outside of vision and audio towers.
fn block_of(module: &str) -> Option<usize> {
    let number = module.split('.').find_map(|part| part.parse().ok());
    number.filter(|_| modality_part(module).is_none())
}
