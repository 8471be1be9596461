//! A checkpoint read as the rotated model of the same function (QuaRot's R1 and R2, arXiv 2404.00456), whose weights are computed as they
//! are read: no weight is copied to be changed. With the rotation `R` of the residual stream and `g` the weights of a norm,
//!
//! * tables of embeddings `E` become `E R`, and a head that shared them gets a separate weight;
//! * layers that read the stream through the norm become `W diag(g) R`, and the norm's weights ones, its bias `(b / g) R`;
//! * layers that write to the stream become `R' W`, their biases `b R`.
//!
//! The values of attention are rotated in each head by `V`: their rows become `V' W`, and the output projection `W V`.
//! Down projections may become `W H` as well, with a Hadamard matrix by which the forward pass rotates their inputs (R4).
//! Which layers these are, is derived in [`kvant_model::network::ResidualStream`]. Matrices may be learned ([`LearnedRotations`]); how, is not
//! known here.

mod changes;
mod learned;

use crate::algorithm::Algorithms;
use crate::lora::source_of;
use changes::{Asked, Changes, Refusal};
use kvant_container::{Checkpoint, Dtype, Layout, TensorDeclaration, TensorFile, TensorView};
use kvant_model::family::Orientation;
use kvant_model::model_config::{ModelConfig, untie};
use kvant_model::network::{Network, TensorMeta};
use kvant_numeric::kernel::{FloatDType, widen};
use kvant_numeric::simd::Isa;
use kvant_quant::counts::number;
use kvant_quant::rotation::{Rotate, Rotation};
use kvant_weights::import_error::ImportError;
use kvant_weights::parts::{ScaleEncoding, encode};
pub use learned::{LearnedRotations, blocks_of_tensor, blocks_to_tensor};

use kvant_weights::weight::{
    ImportedTensor, MergedBase, MergedMatrix, PackedMatrix, RotatedWeights, Stored, StoredBytes, WeightMatrix,
    WeightRotation,
};
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// The rotations of inputs that a forward pass computes, by module.
pub type InputRotations = HashMap<String, Arc<Rotation>>;

/// The largest finite f16.
const F16_MAX: f32 = 65504.0;
const HINT: &str = "leave `rotate` out of ‹algorithm›";
/// The same where the values of attention could be rotated.
const VALUES_ALONE: &str =
    "leave `rotate` out of ‹algorithm›, or give `rotate:stream=off`, which rotates the values of attention alone";
/// From this ratio of a norm's bias to its weight on, the user is warned.
const LARGE: f32 = 32.0;

/// config.json of the rotated model, and its norms and biases, after all that is refused has been. `tensors` are those of the model.
///
/// # Errors
/// *Unsupported* for models whose function a rotation would change, and for weights that are quantized already; *invalid* for matrices that
/// were not learned of this model.
pub(crate) fn checked(
    model: &Checkpoint,
    rotate: &Rotate,
    learned: Option<&LearnedRotations>,
    tensors: &[ImportedTensor<'_>],
) -> Result<(Value, TensorFile), ImportError> {
    let rotation = ModelRotation::of(model, Asked { rotate, learned }, tensors)?;
    let mut config = model.config()?.unwrap_or_default();
    if rotation.changes.separate_head {
        untie(&mut config);
    }
    Ok((config, rotation.vectors(model, tensors)?))
}

/// What the user should know of a rotated model, whose network is `network`.
pub fn notices(checkpoint: &Checkpoint, network: &Network) -> Vec<String> {
    if checkpoint.rewriting().is_none() {
        return Vec::new();
    }
    separate_head(checkpoint, network).into_iter().chain(large_bias(checkpoint, network)).collect()
}

/// That norms give much more of their biases than of what they normalise, which quantized inputs resolve coarsely.
fn large_bias(checkpoint: &Checkpoint, network: &Network) -> Option<String> {
    let largest = |view: TensorView<'_>| widened(view).ok()?.into_iter().map(f32::abs).max_by(f32::total_cmp);
    let names = network.norms().iter().filter(|norm| norm.bias.is_some()).map(|norm| format!("{}.bias", norm.module));
    let found = names.filter_map(|name| Some((largest(checkpoint.tensor(&name)?)?, name)));
    let (most, name) = found.max_by(|one, other| one.0.total_cmp(&other.0)).filter(|(most, _)| *most > LARGE)?;
    Some(format!(
        "`{name}` is up to {most:.0} times as large as what the norm gives besides: errors of quantized layers behind it grow by as much \
         when they are rotated, so compare the result with one that is not"
    ))
}

/// That the head of a rotated model no longer shares the embeddings.
fn separate_head(checkpoint: &Checkpoint, network: &Network) -> Option<String> {
    let head = network.linear(network.head()?);
    let name = format!("{}.weight", head.module);
    let text = format!(
        "the head gets a separate weight, `{name}`: the last norm is folded into it, but not into the embeddings that it shared \
         ({} more)",
        number(head.in_features * head.out_features, "value")
    );
    checkpoint.tensor(&name).is_none().then_some(text)
}

/// Rotates the tensors of a checkpoint as they are read, and returns what must be rotated while the model runs. `spelling` is that of the
/// rotation.
pub(crate) fn apply<'a>(
    checkpoint: &'a Checkpoint,
    spelling: &str,
    tensors: &mut Vec<ImportedTensor<'a>>,
) -> Result<InputRotations, ImportError> {
    let algorithms: Algorithms = spelling.parse()?;
    let Some(rotate) = algorithms.rotation else { return Ok(InputRotations::new()) };
    let learned = checkpoint.rewriting_parameters().map(LearnedRotations::of_file).transpose()?;
    let rotation = ModelRotation::of(checkpoint, Asked { rotate: &rotate, learned: learned.as_ref() }, tensors)?;
    rotation.apply(checkpoint, tensors)?;
    Ok(rotation.changes.inputs)
}

/// The rotation of a model.
struct ModelRotation {
    network: Network,
    changes: Changes,
}

impl ModelRotation {
    fn of(
        checkpoint: &Checkpoint,
        asked: Asked<'_>,
        tensors: &[ImportedTensor<'_>],
    ) -> Result<ModelRotation, ImportError> {
        let config = checkpoint.config()?.map(|json| ModelConfig::from_json(&json)).transpose();
        let config =
            config.map_err(|error| ImportError::invalid("config.json", error.to_string()))?.unwrap_or_default();
        let metas: Vec<TensorMeta> = tensors.iter().map(|tensor| tensor.meta.clone()).collect();
        let network = Network::recognise(&config, &metas);
        let refused = |refusal: Refusal| {
            let place = refusal.tensor.map_or("the model", |tensor| metas[tensor].name.as_str());
            let values_alone = refusal.of_stream && asked.rotate.heads && !network.value_paths().is_empty();
            ImportError::unsupported(place, refusal.reason, if values_alone { VALUES_ALONE } else { HINT })
        };
        let changes = Changes::of(&network, &metas, asked, &config).map_err(refused)?;
        Ok(ModelRotation { network, changes })
    }

    /// The norms and biases of the rotated model, in their types.
    fn vectors(&self, checkpoint: &Checkpoint, tensors: &[ImportedTensor<'_>]) -> Result<TensorFile, ImportError> {
        let (mut declarations, mut contents) = (Vec::new(), Vec::new());
        let mut add = |tensor: usize, values: Vec<f64>| {
            let view = unchanged(checkpoint, &tensors[tensor])?;
            let values: Vec<f32> = values.into_iter().map(|value| value as f32).collect();
            let beyond = |value: &&f32| !value.is_finite() || view.dtype() == Dtype::F16 && value.abs() > F16_MAX;
            if let Some(value) = values.iter().find(beyond) {
                let reason = format!("would hold {value} in the rotated model");
                return Err(ImportError::unsupported(view.name(), reason, HINT));
            }
            let encoding = ScaleEncoding::of_float(view.dtype()).ok_or_else(|| not_float(view))?;
            declarations.push(TensorDeclaration::new(view.name(), view.dtype(), view.shape().to_vec()));
            contents.push(encode(encoding, &values));
            Ok(())
        };
        for norm in &self.changes.norms {
            let norm = self.network.norm(*norm);
            let offset = f64::from(norm.kind.offset());
            let weight = values(checkpoint, &tensors[norm.weight])?;
            self.check_length(&tensors[norm.weight], weight.len(), self.changes.channels)?;
            if let Some(bias) = norm.bias {
                let shift = values(checkpoint, &tensors[bias])?;
                self.check_length(&tensors[bias], shift.len(), weight.len())?;
                // A channel that the norm multiplies by zero has its bias alone, which nothing could scale.
                let both = shift.into_iter().zip(&weight);
                let divided = both.map(|(b, w)| if b == 0.0 { 0.0 } else { b / (offset + w) });
                add(bias, self.changes.rotate_stream(divided.collect()))?;
            }
            add(norm.weight, vec![1.0 - offset; weight.len()])?;
        }
        for (bias, rows) in &self.changes.biases {
            let mut all = values(checkpoint, &tensors[*bias])?;
            let end = rows.rows.iter().map(|range| range.end).max().unwrap_or(0);
            if all.len() < end {
                self.check_length(&tensors[*bias], all.len(), end)?;
            }
            let mut scratch = Vec::new();
            for range in &rows.rows {
                all[range.clone()]
                    .chunks_exact_mut(rows.channels())
                    .for_each(|part| rows.by.rotation.apply(part, &mut scratch));
            }
            add(*bias, all)?;
        }
        let layout = Layout::new(declarations, u64::MAX, BTreeMap::new()).map_err(kvant_container::Error::from)?;
        Ok(TensorFile::in_memory(&layout, &contents, checkpoint.path())?)
    }

    fn check_length(&self, tensor: &ImportedTensor<'_>, found: usize, expected: usize) -> Result<(), ImportError> {
        if found == expected {
            return Ok(());
        }
        Err(ImportError::invalid(&tensor.meta.name, format!("has {found} values, not {expected}")))
    }

    /// Changes the weights, and adds that of a separate head.
    fn apply<'a>(&self, checkpoint: &'a Checkpoint, tensors: &mut Vec<ImportedTensor<'a>>) -> Result<(), ImportError> {
        let kept = Arc::new(RotatedWeights::default());
        let mut gains = BTreeMap::new();
        for norm in &self.changes.norms {
            let of_norm = self.network.norm(*norm);
            let weight = values(checkpoint, &tensors[of_norm.weight])?;
            gains.insert(*norm, weight.into_iter().map(|w| w as f32 + of_norm.kind.offset()).collect::<Vec<f32>>());
        }
        let gains = |norm: &Option<_>| norm.as_ref().and_then(|norm| gains.get(norm)).cloned();
        let head = self.changes.head_of(&self.network, tensors);
        let head = head.map(|head| -> Result<_, ImportError> {
            let rotation =
                WeightRotation { gains: gains(&head.norm), inputs: Some(head.rotation.clone()), outputs: None };
            let rotated = Rotated { place: &MatrixPlace::WHOLE, rotation: &rotation, kept: &kept, is_new: true };
            let stored = rotated.stored(&tensors[head.table])?;
            Ok(ImportedTensor { meta: TensorMeta { name: head.name, ..tensors[head.table].meta.clone() }, stored })
        });
        let head = head.transpose()?;
        // Networks of no width have weights without values.
        for (tensor, change) in &self.changes.weights {
            if tensors[*tensor].meta.shape.contains(&0) {
                continue;
            }
            let rotation = WeightRotation {
                gains: gains(&change.norm),
                inputs: change.inputs.clone(),
                outputs: change.outputs.clone(),
            };
            let rotated = Rotated { place: &change.place, rotation: &rotation, kept: &kept, is_new: false };
            tensors[*tensor].stored = rotated.stored(&tensors[*tensor])?;
        }
        tensors.extend(head);
        Ok(())
    }
}

/// How many matrices a tensor has, and how they are stored.
#[derive(Clone, Copy, Debug)]
struct MatrixPlace {
    count: usize,
    orientation: Orientation,
}

impl MatrixPlace {
    const WHOLE: MatrixPlace = MatrixPlace { count: 1, orientation: Orientation::OutIn };
}

/// A rotation of the matrices of a tensor.
struct Rotated<'r> {
    place: &'r MatrixPlace,
    rotation: &'r WeightRotation,
    kept: &'r Arc<RotatedWeights>,
    /// Whether the result stands beside the tensor instead of in its place.
    is_new: bool,
}

impl Rotated<'_> {
    fn stored<'a>(&self, tensor: &ImportedTensor<'a>) -> Result<Stored<'a>, ImportError> {
        let bases = match &tensor.stored {
            Stored::Plain(view) => self.bases(*view)?,
            Stored::Packed(matrices) => {
                matrices.iter().map(|matrix| self.merged_base(tensor, matrix)).collect::<Result<_, _>>()?
            }
        };
        let rotate = |base: MergedBase<'a>| {
            if !self.rotation.fits(base.matrix.rows, base.matrix.columns) {
                let reason =
                    format!("is {} x {}, which the rotation does not fit", base.matrix.rows, base.matrix.columns);
                return Err(ImportError::unsupported(&tensor.meta.name, reason, HINT));
            }
            let matrix = base.matrix.rotated(self.rotation.clone(), Arc::clone(self.kept));
            let name = base.name.filter(|_| !self.is_new);
            Ok(Arc::new(PackedMatrix::Merged(MergedMatrix::new(MergedBase { matrix, name, ..base }))))
        };
        Ok(Stored::Packed(bases.into_iter().map(rotate).collect::<Result<_, _>>()?))
    }

    /// The matrices of a tensor of floats.
    fn bases<'a>(&self, view: TensorView<'a>) -> Result<Vec<MergedBase<'a>>, ImportError> {
        let source = float_type(view)?;
        let is_transposed = self.place.orientation == Orientation::InOut;
        let shape = match *view.shape() {
            [first, second] if self.place.count == 1 => Some((first, second)),
            [count, first, second] if self.place.count == count => Some((first, second)),
            // One below the other.
            [all, second] if all.is_multiple_of(self.place.count) => Some((all / self.place.count, second)),
            _ => None,
        };
        let shape = shape.map(|(first, second)| if is_transposed { (second, first) } else { (first, second) });
        let (rows, columns) = shape.filter(|(rows, columns)| rows * columns > 0).ok_or_else(|| {
            let reason = format!("has the shape {:?}, not that of {} matrices", view.shape(), self.place.count);
            ImportError::unsupported(view.name(), reason, HINT)
        })?;
        let bytes = view.bytes().chunks_exact(rows * columns * source.size());
        let base = |bytes: &'a [u8]| MergedBase {
            matrix: WeightMatrix::plain(bytes, source, (rows, columns), is_transposed),
            stored: Some(StoredBytes::whole(view)).filter(|_| self.place.count == 1),
            name: Some(view.name()),
            is_float: true,
            dtype: view.dtype(),
            bytes: bytes.len() as u64,
        };
        Ok(bytes.map(base).collect())
    }

    /// A weight that adapters change.
    fn merged_base<'a>(
        &self,
        tensor: &ImportedTensor<'a>,
        matrix: &Arc<PackedMatrix<'a>>,
    ) -> Result<MergedBase<'a>, ImportError> {
        let dtype = matrix.own_type().filter(|_| matrix.is_float());
        let dtype = dtype.ok_or_else(|| ImportError::unsupported(&tensor.meta.name, "is quantized already", HINT))?;
        Ok(MergedBase {
            matrix: WeightMatrix::packed(Arc::clone(matrix)),
            stored: None,
            name: matrix.tensor_name(),
            is_float: true,
            dtype,
            bytes: matrix.stored_bytes(),
        })
    }
}

/// A small tensor as it was before the rotation.
fn unchanged<'c>(checkpoint: &'c Checkpoint, tensor: &ImportedTensor<'_>) -> Result<TensorView<'c>, ImportError> {
    let plain = match &tensor.stored {
        Stored::Plain(view) => checkpoint.unchanged_tensor(view.name()),
        Stored::Packed(_) => None,
    };
    plain.ok_or_else(|| ImportError::unsupported(&tensor.meta.name, "is quantized already", HINT))
}

fn values(checkpoint: &Checkpoint, tensor: &ImportedTensor<'_>) -> Result<Vec<f64>, ImportError> {
    Ok(widened(unchanged(checkpoint, tensor)?)?.into_iter().map(f64::from).collect())
}

fn widened(view: TensorView<'_>) -> Result<Vec<f32>, ImportError> {
    let source = float_type(view)?;
    let mut values = vec![0.0; view.bytes().len() / source.size()];
    widen(Isa::best(), source, view.bytes(), &mut values);
    Ok(values)
}

fn float_type(view: TensorView<'_>) -> Result<FloatDType, ImportError> {
    source_of(view.dtype()).ok_or_else(|| not_float(view))
}

fn not_float(view: TensorView<'_>) -> ImportError {
    let reason = format!("is {}, and only F32, F16 and BF16 can be rotated", view.dtype());
    ImportError::unsupported(view.name(), reason, HINT)
}
