//! Weights that are quantized in the source: their codes in another form, or their values, band by band. Not requantizing them,
//! which works as for floats.

use super::{COPY_BYTES, Engine, EngineError, file_of};
use crate::plan::{KeptTensor, LayerOutput, Plan, PlannedLayer};
use kvant_container::Checkpoint;
use kvant_container::unfinished::Written;
use kvant_formats::import;
use kvant_numeric::pack::transpose;
use kvant_quant::scheme::SchemeError;
use kvant_quant::{Codes, Parameters};
use kvant_weights::parts::{BandCodes, Coded, Content, KEPT_BYTES, Part, Piece, ScaleEncoding, Whole, encode};
use kvant_weights::weight::{Band, BandAxis, bands};
use kvant_weights::weight::{CodeMatrix, PackedMatrix, RecodedParameters, Stored};
use rayon::prelude::*;
use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

thread_local! {
    /// Memory for codes, kept from band to band.
    static CODES: RefCell<Vec<u8>> = RefCell::default();
}

/// The packed matrices of a checkpoint, by the name of the tensor that they stand for.
pub(super) type Packed<'a> = HashMap<String, Vec<Arc<PackedMatrix<'a>>>>;

/// Those that a plan reads.
pub(super) fn open<'a>(plan: &Plan, checkpoint: &'a Checkpoint) -> Result<Packed<'a>, EngineError> {
    if !plan.reads_codes() {
        return Ok(Packed::new());
    }
    let packed = import::open(checkpoint)?.into_tensors().into_iter().filter_map(|tensor| match tensor.stored {
        Stored::Packed(matrices) => Some((tensor.meta.name, matrices)),
        Stored::Plain(_) => None,
    });
    Ok(packed.collect())
}

/// Writes the codes of a layer in the form that the plan says.
pub(super) fn recode_layer(engine: &Engine<'_>, layer: &PlannedLayer) -> Result<Vec<Written>, EngineError> {
    let matrix = engine.packed(&layer.source.tensor, layer.source.expert.unwrap_or(0))?;
    let LayerOutput::Parts { parts, .. } = &layer.output else {
        return Err(EngineError::TensorVanished(layer.source.tensor.clone()));
    };
    let bands = layer.bands();
    let pieces = bands.par_iter().map(|band| recode_band(engine, layer, parts, matrix, band));
    let pieces = pieces.collect::<Result<Vec<_>, _>>()?;
    matrix.release();
    Ok(pieces.into_iter().flatten().collect())
}

fn recode_band(
    engine: &Engine<'_>,
    layer: &PlannedLayer,
    parts: &[Part],
    matrix: &PackedMatrix<'_>,
    band: &Band,
) -> Result<Vec<Written>, EngineError> {
    engine.check_cancelled()?;
    let wrong = |problem: SchemeError| engine.weight_error(layer, problem.to_string());
    let shape = (layer.rows, layer.columns);
    let whole = Whole { shape, groups: matrix.groups(), divisor: matrix.divisor() };
    let scheme = layer.scheme.weight;
    if let Some((matrix, codes)) = words_between(matrix, parts, band) {
        let RecodedParameters { scales, zero_points } = matrix.parameters(engine.isa, band, scheme);
        let size = (band.rows.len(), band.columns.len());
        let parameters = Parameters::new(scheme, size, (&scales, &zero_points), matrix.global_scale());
        let coded = Coded { codes, parameters: parameters.map_err(wrong)? };
        return engine.write_parts(layer, parts, coded, band, &whole);
    }
    let tensor = matrix.recoded(engine.isa, band, scheme, CODES.take()).map_err(wrong)?;
    let written = engine.write_parts(layer, parts, (&tensor).into(), band, &whole);
    if let Codes::Bytes(codes) = tensor.into_codes() {
        CODES.set(if codes.capacity() > KEPT_BYTES { Vec::new() } else { codes });
    }
    written
}

/// The codes of a band as words that all its parts can take over.
fn words_between<'m>(
    matrix: &'m PackedMatrix<'_>,
    parts: &[Part],
    band: &Band,
) -> Option<(&'m CodeMatrix<'m>, BandCodes<'m>)> {
    let PackedMatrix::Apart(matrix) = matrix else { return None };
    let (words, twos_complement) = matrix.words(band)?;
    let takes = |part: &Part| match part.content {
        Content::Codes { packing, transposed } => {
            let layout = packing.word_layout(transposed);
            layout.is_some_and(|layout| layout.words(band.rows.len(), band.columns.len()).is_some())
        }
        _ => true,
    };
    parts.iter().all(takes).then_some((matrix, BandCodes::Words { words, twos_complement }))
}

/// Writes the values of a copied weight, in the declared type.
pub(super) fn dequantize(
    engine: &Engine<'_>,
    kept: &KeptTensor,
    is_transposed: bool,
) -> Result<Vec<Written>, EngineError> {
    let matrices = engine.packed.get(&kept.source).ok_or_else(|| EngineError::TensorVanished(kept.source.clone()))?;
    let encoding = ScaleEncoding::of_floats(engine.plan.layout().declarations()[kept.tensor].dtype);
    let axis = if is_transposed { BandAxis::Columns } else { BandAxis::Rows };
    let mut written = Vec::new();
    for (index, matrix) in matrices.iter().enumerate() {
        let (rows, columns) = (matrix.rows(), matrix.columns());
        let start = index * rows * columns * encoding.size();
        let bands = bands(rows, columns, axis, 32, COPY_BYTES / 8);
        let write = |band: &Band| {
            engine.check_cancelled()?;
            let piece = values(engine, matrix, band, is_transposed, encoding);
            let piece = piece.map_err(|value| not_finite(engine, kept, matrix, value))?;
            engine.write_bytes(kept.tensor, start as u64 + piece.offset, &piece.bytes)
        };
        written.extend(bands.par_iter().map(write).collect::<Result<Vec<_>, _>>()?);
        matrix.release();
    }
    Ok(written)
}

/// The values of a band as they are stored, or the first that the type does not hold.
fn values(
    engine: &Engine<'_>,
    matrix: &PackedMatrix<'_>,
    band: &Band,
    is_transposed: bool,
    encoding: ScaleEncoding,
) -> Result<Piece<'static>, f32> {
    let mut values = Vec::new();
    matrix.read(engine.isa, band, &mut values);
    let most = match encoding {
        ScaleEncoding::F16 => f32::from(half::f16::MAX),
        ScaleEncoding::Bf16 => f32::from(half::bf16::MAX),
        _ => f32::MAX,
    };
    let fits = |value: &f32| value.abs() <= most;
    if let Some(value) = values.iter().find(|value| !fits(value)) {
        return Err(*value);
    }
    let mut start = band.rows.start * matrix.columns();
    if is_transposed {
        let mut turned = vec![0.0; values.len()];
        transpose(&values, band.rows.len(), band.columns.len(), &mut turned);
        values = turned;
        start = band.columns.start * matrix.rows();
    }
    Ok(Piece { offset: (start * encoding.size()) as u64, bytes: Cow::Owned(encode(encoding, &values)) })
}

fn not_finite(engine: &Engine<'_>, kept: &KeptTensor, matrix: &PackedMatrix<'_>, value: f32) -> EngineError {
    let dtype = engine.plan.layout().declarations()[kept.tensor].dtype;
    EngineError::Weight {
        tensor: kept.source.clone(),
        excludable: None,
        file: file_of(engine.checkpoint, &kept.source, matrix.tensor_name()),
        reason: match value.is_finite() {
            true => format!("the value {value:e} is beyond what {dtype} holds"),
            false => format!("one of its values is {value:e}"),
        },
    }
}

impl<'a> Engine<'a> {
    /// A packed matrix of the source.
    pub(super) fn packed(&self, tensor: &str, index: usize) -> Result<&Arc<PackedMatrix<'a>>, EngineError> {
        let found = self.packed.get(tensor).and_then(|matrices| matrices.get(index));
        found.ok_or_else(|| EngineError::TensorVanished(tensor.to_owned()))
    }
}
