//! Quantized checkpoints read layer by layer, for callers with their own model code.

use super::packed::PackedTensor;
use crate::ending::concluded_reading;
use crate::error::{Error, ErrorKind};
use kvant_container::{Checkpoint, Dtype};
use kvant_formats::import::{Import, StoredActivation, open_with_convolutions};
use kvant_numeric::simd::Isa;
use kvant_quant::scheme::{LayerScheme, TensorScheme};
use kvant_weights::band::Band;
use kvant_weights::weight::{ImportedTensor, PackedMatrix, Stored};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// A checkpoint of any format that Kvant reads.
#[derive(Debug)]
pub struct StoredModel {
    checkpoint: Checkpoint,
}

impl StoredModel {
    /// Opens the directory of a checkpoint.
    ///
    /// # Errors
    /// *Invalid* for damaged files, *unsupported* for pickles and other files that are not read, *system* for missing ones.
    pub fn open(path: &Path) -> Result<StoredModel, Error> {
        Ok(StoredModel { checkpoint: Checkpoint::open(path)? })
    }

    /// The quantized layers by name: objects with `scheme`, the spelling of the layer's scheme; `bias`, that of its bias, or null;
    /// `is_packed`, whether its weight is codes;
    /// `is_convolution`, whether these have the shape of the weight, and are not unpacked by [`StoredModel::read`]; and for `input` and
    /// `output` the stored parameters, `scales` and `zero_points`, or null.
    ///
    /// # Errors
    /// *Invalid* where tensors contradict config.json or each other, *unsupported* for what is quantized beside layers, and for layouts
    /// that are not read.
    pub fn layers(&self) -> Result<Value, Error> {
        concluded_reading(|| {
            let import = open_with_convolutions(&self.checkpoint)?;
            if import.first_attention().is_some() {
                let error = Error::new(
                    ErrorKind::Unsupported,
                    "the checkpoint quantizes keys, values or probabilities of attention",
                );
                return Err(error.with_hint(Some("quantize the model without ‹kv-cache› and ‹attention›".to_owned())));
            }
            layers(&import)
        })
    }

    /// Delivers every tensor of the float model: packed weights as values in f32, others as they are stored.
    ///
    /// # Errors
    /// As [`StoredModel::layers`], and those of `deliver`.
    pub fn read(&self, mut deliver: impl FnMut(PackedTensor) -> Result<(), Error>) -> Result<(), Error> {
        concluded_reading(|| {
            let tensors = open_with_convolutions(&self.checkpoint)?.into_tensors();
            tensors.into_iter().try_for_each(|tensor| deliver(values(tensor)))
        })
    }
}

fn layers(import: &Import<'_>) -> Result<Value, Error> {
    let is_bias = |name: &str| name.strip_suffix(".bias").is_some_and(|module| import.biases().contains_key(module));
    let weights = import.tensors().iter().filter_map(|tensor| match &tensor.stored {
        Stored::Packed(matrices) if !is_bias(&tensor.meta.name) => {
            Some((tensor.meta.name.strip_suffix(".weight").unwrap_or(&tensor.meta.name), &matrices[..]))
        }
        _ => None,
    });
    let packed: BTreeMap<&str, &[_]> = weights.collect();
    let convolutions: BTreeSet<&str> =
        import.convolutions().iter().filter_map(|codes| codes.name().strip_suffix(".weight")).collect();
    let names = import.schemes().keys().chain(import.all_activations().keys()).map(String::as_str);
    let names: BTreeSet<&str> = names.chain(packed.keys().copied()).collect();
    let mut described = Map::new();
    for name in names {
        let matrices = packed.get(name);
        let stated = import.schemes().get(name).copied();
        let weight = stated.or_else(|| scheme_of(matrices?.first()?)).ok_or_else(|| unknown(name))?;
        let activations = import.activations(name).cloned().unwrap_or_default();
        let scheme = LayerScheme {
            weight,
            input: activations.input.as_ref().map(|input| input.scheme),
            output: activations.output.as_ref().map(|output| output.scheme),
        };
        let layer = json!({
            "scheme": scheme.to_string(),
            "bias": import.biases().get(name).map(ToString::to_string),
            "is_packed": matrices.is_some(),
            "is_convolution": convolutions.contains(name),
            "input": parameters(name, activations.input)?,
            "output": parameters(name, activations.output)?,
        });
        described.insert(name.to_owned(), layer);
    }
    Ok(Value::Object(described))
}

fn scheme_of(matrix: &PackedMatrix<'_>) -> Option<TensorScheme> {
    matrix.scheme(matrix.is_symmetric(Isa::best()), matrix.cut())
}

fn unknown(layer: &str) -> Error {
    let error = Error::new(ErrorKind::Unsupported, format!("layer {layer}: no scheme describes its weight"));
    error.with_hint(Some("convert the checkpoint: ‹to› float makes a float model of it".to_owned()))
}

/// Stored parameters as JSON.
fn parameters(layer: &str, activation: Option<StoredActivation>) -> Result<Value, Error> {
    let Some(found) = activation.and_then(|activation| activation.parameters) else { return Ok(Value::Null) };
    let is_scale = |scale: &f32| scale.is_finite() && *scale > 0.0;
    if !found.scales.iter().all(is_scale) || !found.zero_points.iter().all(|point| point.is_finite()) {
        let message = format!("layer {layer}: a static scale of its activations is not above zero, or not finite");
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    Ok(json!({ "scales": found.scales, "zero_points": found.zero_points }))
}

fn values(tensor: ImportedTensor<'_>) -> PackedTensor {
    let name = tensor.meta.name;
    match tensor.stored {
        Stored::Plain(view) => {
            let shape = view.shape().to_vec();
            PackedTensor { name, dtype: view.dtype(), shape, bytes: view.bytes().to_vec() }
        }
        Stored::Packed(matrices) => {
            let mut values = Vec::new();
            for matrix in &matrices {
                let whole = Band { rows: 0..matrix.rows(), columns: 0..matrix.columns() };
                matrix.read(Isa::best(), &whole, &mut values);
                matrix.release();
            }
            let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            PackedTensor { name, dtype: Dtype::F32, shape: tensor.meta.shape, bytes }
        }
    }
}
