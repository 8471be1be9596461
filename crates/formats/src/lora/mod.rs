//! LoRA adapters as PEFT saves them, merged into the weights of the model that they were trained on, as these are read: no weight is
//! copied to be changed. What is small, a bias or a norm, is replaced when the adapter is opened. Other kinds of adapters are refused.

mod agreement;
mod config;
mod names;
mod resolve;

use kvant_container::shown;
use kvant_container::{AdapterSource, Checkpoint, Dtype, Layout, TensorDeclaration, TensorFile, TensorView};
use kvant_model::model_config::ModelConfig;
use kvant_model::network::{Network, TensorMeta};
use kvant_numeric::kernel::{FloatDType, widen};
use kvant_numeric::simd::Isa;
use kvant_weights::import_error::ImportError;
use kvant_weights::weight::{ImportedTensor, LowRank, MergedBase, MergedMatrix, PackedMatrix, Stored, StoredBytes};
use kvant_weights::weight::{WeightMatrix, first_not_finite, place};
use resolve::{Change, Factors, Resolved, resolve};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// The biases and norms that adapters replace in a model with these tensors, after all that is refused has been.
///
/// # Errors
/// *Invalid* for tensors that fit no weight of the model, *unsupported* for adapters of other kinds; both name tensor or field.
pub(crate) fn checked(
    model: &Checkpoint,
    adapters: &[AdapterSource],
    tensors: &[ImportedTensor<'_>],
) -> Result<TensorFile, ImportError> {
    let resolved = resolve_all(model, adapters, tensors)?;
    check_finite(adapters)?;
    replaced(tensors, &resolved, adapters)
}

/// Merges a checkpoint's adapters into its tensors.
pub(crate) fn merge<'a>(checkpoint: &'a Checkpoint, tensors: &mut [ImportedTensor<'a>]) -> Result<(), ImportError> {
    let resolved = resolve_all(checkpoint, checkpoint.adapters(), tensors)?;
    let mut merged: BTreeMap<usize, MergedMatrix<'a>> = BTreeMap::new();
    for Resolved { tensor, is_transposed, change, .. } in resolved {
        match change {
            Change::Vector(_) => {}
            Change::Matrix(view) => {
                let base = base_of(&tensors[tensor], is_transposed)?;
                let matrix = matrix_of(view, (base.matrix.rows, base.matrix.columns), is_transposed)?;
                merged.insert(tensor, MergedMatrix::new(MergedBase { matrix, ..base }));
            }
            Change::Product(factors) => {
                let product = product(&factors)?;
                let entry = match merged.remove(&tensor) {
                    Some(entry) => entry,
                    None => MergedMatrix::new(base_of(&tensors[tensor], is_transposed)?),
                };
                merged.entry(tensor).or_insert(entry).add(product);
            }
        }
    }
    for (tensor, matrix) in merged {
        tensors[tensor].stored = Stored::Packed(vec![Arc::new(PackedMatrix::Merged(matrix))]);
    }
    Ok(())
}

/// The folders of the adapters that have a part in a tensor of the model, for messages.
pub fn folders_of<'c>(checkpoint: &'c Checkpoint, tensor: &str) -> Vec<&'c Path> {
    let module = tensor.strip_suffix("weight").unwrap_or(tensor);
    let has_part = |adapter: &&AdapterSource| adapter.file().tensors().any(|view| view.name().contains(module));
    checkpoint.adapters().iter().filter(has_part).map(AdapterSource::path).collect()
}

/// An error of a tensor of an adapter.
fn wrong(view: TensorView<'_>, reason: impl Into<String>) -> ImportError {
    ImportError::adapter(format!("tensor `{}` in {}", view.name(), shown(view.file())), reason)
}

/// Refuses adapters with values that are no numbers. In the sums that are read later they would seem to be the model's.
fn check_finite(adapters: &[AdapterSource]) -> Result<(), ImportError> {
    for view in adapters.iter().flat_map(|adapter| adapter.file().tensors()) {
        if let Some((index, value)) = first_not_finite(view.bytes(), float_source(view)?) {
            return Err(wrong(view, format!("the value at {:?} is {value}", place(index, view.shape()))));
        }
        view.release();
    }
    Ok(())
}

/// How many weights the adapters of a checkpoint change, in words for the user.
pub fn notices(checkpoint: &Checkpoint) -> impl Iterator<Item = String> {
    checkpoint.adapters().iter().map(|adapter| {
        let weights = adapter.file().tensors().filter(|tensor| names::is_left_factor(tensor.name())).count();
        let products = adapter.file().tensors().filter(|tensor| names::is_factor(tensor.name())).count();
        let others = match adapter.file().len() - products {
            0 => String::new(),
            1 => ", and another tensor replaced".to_owned(),
            others => format!(", and {others} other tensors replaced"),
        };
        let plural = if weights == 1 { "" } else { "s" };
        format!("{} is merged into {weights} weight{plural}{others}", shown(adapter.path()))
    })
}

/// The action on every tensor of adapters.
fn resolve_all<'a>(
    checkpoint: &Checkpoint,
    adapters: &'a [AdapterSource],
    tensors: &[ImportedTensor<'_>],
) -> Result<Vec<Resolved<'a>>, ImportError> {
    let config = checkpoint.config()?.map(|json| ModelConfig::from_json(&json)).transpose();
    let config = config.map_err(|error| ImportError::invalid("config.json", error.to_string()))?.unwrap_or_default();
    let metas: Vec<TensorMeta> = tensors.iter().map(|tensor| tensor.meta.clone()).collect();
    let network = Network::recognise(&config, &metas);
    let mut resolved = Vec::new();
    for adapter in adapters {
        resolved.extend(resolve(adapter, &metas, &network)?);
    }
    resolve::refuse_twice(&resolved)?;
    // What is replaced is replaced before anything is added to it.
    resolved.sort_by_key(|change| matches!(change.change, Change::Product(_)));
    Ok(resolved)
}

/// The vectors that adapters bring, in the types of those whose place they take.
fn replaced(
    tensors: &[ImportedTensor<'_>],
    resolved: &[Resolved<'_>],
    adapters: &[AdapterSource],
) -> Result<TensorFile, ImportError> {
    let (mut declarations, mut contents) = (Vec::new(), Vec::new());
    for Resolved { tensor, change, .. } in resolved {
        let Change::Vector(view) = change else { continue };
        let Stored::Plain(base) = &tensors[*tensor].stored else {
            return Err(wrong(*view, "would replace a tensor that is quantized"));
        };
        declarations.push(TensorDeclaration::new(base.name(), base.dtype(), base.shape().to_vec()));
        contents.push(cast(*view, base.dtype())?);
    }
    let layout = Layout::new(declarations, u64::MAX, BTreeMap::new()).map_err(kvant_container::Error::from)?;
    let path = adapters.first().map(|adapter| adapter.file().path()).unwrap_or(Path::new(""));
    Ok(TensorFile::in_memory(&layout, &contents, path)?)
}

fn cast(view: TensorView<'_>, dtype: Dtype) -> Result<Vec<u8>, ImportError> {
    let source = float_source(view)?;
    let mut values = vec![0.0; view.bytes().len() / source.size()];
    widen(Isa::best(), source, view.bytes(), &mut values);
    let encoding = kvant_weights::parts::ScaleEncoding::of_float(dtype);
    let encoding =
        encoding.ok_or_else(|| wrong(view, format!("would replace a tensor of type {dtype}, which is not a float")))?;
    let encoded = kvant_weights::parts::encode(encoding, &values);
    let source = source_of(dtype).unwrap_or(FloatDType::F32);
    match first_not_finite(&encoded, source) {
        Some((index, _)) => Err(wrong(view, format!("{} is beyond what {dtype} holds", values[index]))),
        None => Ok(encoded),
    }
}

/// The weight that an adapter changes, as a matrix of output and input channels.
fn base_of<'a>(tensor: &ImportedTensor<'a>, is_transposed: bool) -> Result<MergedBase<'a>, ImportError> {
    let name = &tensor.meta.name;
    match &tensor.stored {
        Stored::Plain(view) => {
            let matrix = matrix_of(*view, shape_of(&tensor.meta.shape, is_transposed), is_transposed)?;
            let (dtype, bytes) = (view.dtype(), view.byte_len());
            let stored = Some(StoredBytes::whole(*view));
            Ok(MergedBase { matrix, stored, name: Some(view.name()), is_float: true, dtype, bytes })
        }
        Stored::Packed(matrices) => {
            let [matrix] = matrices.as_slice() else {
                let hint = "quantize the model without it, or merge it with PEFT first";
                return Err(ImportError::unsupported(
                    name,
                    "is several matrices, which adapters are not merged into",
                    hint,
                ));
            };
            Ok(MergedBase {
                matrix: WeightMatrix::packed(Arc::clone(matrix)),
                stored: None,
                name: matrix.tensor_name(),
                is_float: matrix.is_float(),
                dtype: Dtype::F32,
                bytes: matrix.stored_bytes(),
            })
        }
    }
}

/// Output and input channels of a tensor of this shape.
fn shape_of(shape: &[usize], is_transposed: bool) -> (usize, usize) {
    match (shape, is_transposed) {
        (&[columns, rows], true) => (rows, columns),
        (&[rows, columns], false) => (rows, columns),
        _ => (0, 0),
    }
}

fn product<'a>(factors: &Factors<'a>) -> Result<LowRank<'a>, ImportError> {
    let Factors { left, right, transposed, rank, shape, scale } = *factors;
    Ok(LowRank {
        left: matrix_of(left, (shape.0, rank), transposed)?,
        right: matrix_of(right, (rank, shape.1), transposed)?,
        scale,
    })
}

fn matrix_of<'a>(
    view: TensorView<'a>,
    (rows, columns): (usize, usize),
    is_transposed: bool,
) -> Result<WeightMatrix<'a>, ImportError> {
    let source = float_source(view)?;
    let length = rows.checked_mul(columns).and_then(|count| count.checked_mul(source.size()));
    if length != Some(view.bytes().len()) {
        return Err(wrong(view, format!("shape {:?} is not {rows} x {columns}", view.shape())));
    }
    Ok(WeightMatrix::plain(view.bytes(), source, (rows, columns), is_transposed))
}

fn float_source(view: TensorView<'_>) -> Result<FloatDType, ImportError> {
    source_of(view.dtype()).ok_or_else(|| {
        let hint = "adapters are merged in F32, F16 and BF16: convert the weights to one of these";
        ImportError::unsupported(view.name(), format!("is {}", view.dtype()), hint)
    })
}

/// The type of values that are widened; `None` for others than plain floats.
pub(crate) fn source_of(dtype: Dtype) -> Option<FloatDType> {
    match dtype {
        Dtype::F32 => Some(FloatDType::F32),
        Dtype::F16 => Some(FloatDType::F16),
        Dtype::BF16 => Some(FloatDType::Bf16),
        _ => None,
    }
}
