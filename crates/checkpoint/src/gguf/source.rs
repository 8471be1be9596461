//! Reads the source rows of a tensor. Not their order: see [`RowMap`].

use kvant_container::gguf::{GgufTensor, TensorType};
use kvant_container::{Checkpoint, Dtype};
use kvant_formats::import;
use kvant_gguf::model::TensorSlice;
use kvant_gguf::model::codec;
use kvant_model::network::TensorMeta;
use kvant_numeric::ggml::GgmlType;
use kvant_numeric::kernel::FloatDType;
use kvant_numeric::pack::transpose;
use kvant_numeric::simd::Isa;
use kvant_weights::float_dtype::float_dtype;
use kvant_weights::import_error::ImportError;
use kvant_weights::weight::RowMap;
use kvant_weights::weight::{Band, WeightMatrix};
use kvant_weights::weight::{BlockMatrix, BlockPiece, ImportedTensor, PackedMatrix, Stored};
use std::sync::Arc;

/// The type in which floats are kept; fp8 becomes bfloat16.
pub(super) fn type_of_floats(dtype: Dtype) -> TensorType {
    match dtype {
        Dtype::F32 => TensorType::F32,
        Dtype::F16 => TensorType::F16,
        _ => TensorType::BF16,
    }
}

/// The type in which a tensor of the source is kept.
pub(super) fn stored_type(tensor: &ImportedTensor<'_>) -> TensorType {
    match &tensor.stored {
        Stored::Plain(view) => type_of_floats(view.dtype()),
        Stored::Packed(matrices) => {
            let kind = |kind: GgmlType| TensorType::from_id(kind.id());
            let kinds = matrices.iter().map(|matrix| matrix.float_type().and_then(kind).unwrap_or(TensorType::BF16));
            common(kinds).unwrap_or(TensorType::BF16)
        }
    }
}

/// The type in which slices of one tensor are kept.
pub(super) fn kept_type(tensors: &[ImportedTensor<'_>], slabs: &[TensorSlice]) -> TensorType {
    let kinds = slabs.iter().filter_map(|slab| tensors.get(slab.tensor)).map(stored_type);
    common(kinds).unwrap_or(TensorType::F32)
}

/// The type of all, or that which holds them all.
pub(super) fn common(mut kinds: impl Iterator<Item = TensorType>) -> Option<TensorType> {
    let first = kinds.next()?;
    Some(if kinds.all(|kind| kind == first) { first } else { TensorType::F32 })
}

/// The tensors of a checkpoint, to be read from.
pub(super) struct SourceTensors<'a>(pub Vec<ImportedTensor<'a>>);

impl<'a> SourceTensors<'a> {
    /// The tensors of a checkpoint, as if nothing were quantized; those of a GGUF file unchanged.
    ///
    /// # Errors
    /// If the checkpoint's own quantization is not supported.
    pub fn open(checkpoint: &'a Checkpoint) -> Result<SourceTensors<'a>, ImportError> {
        match checkpoint.gguf() {
            Some(file) => Ok(SourceTensors(file.tensors().map(as_it_stands).collect())),
            None => Ok(SourceTensors(import::open(checkpoint)?.into_tensors())),
        }
    }

    /// The matrix that a slab takes rows of; the plan has checked that it is there.
    pub fn matrix(&self, slab: &TensorSlice) -> Option<WeightMatrix<'a>> {
        match &self.0.get(slab.tensor)?.stored {
            Stored::Packed(matrices) => Some(WeightMatrix::packed(Arc::clone(matrices.get(slab.matrix)?))),
            Stored::Plain(view) => {
                let source = float_dtype(view.dtype())?;
                let step = slab.size.0 * slab.size.1 * source.size();
                let bytes = view.bytes().get(slab.matrix * step..(slab.matrix + 1) * step)?;
                Some(WeightMatrix::plain(bytes, source, slab.size, slab.is_transposed))
            }
        }
    }

    /// The integers of a tensor; `None` where it holds others than of 32 or 64 bits.
    pub fn integers(&self, position: usize) -> Option<Vec<i64>> {
        let Stored::Plain(view) = &self.0.get(position)?.stored else { return None };
        let bytes = view.bytes();
        match view.dtype() {
            Dtype::I32 => Some(bytes.as_chunks().0.iter().map(|bytes| i64::from(i32::from_le_bytes(*bytes))).collect()),
            Dtype::I64 => Some(bytes.as_chunks().0.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect()),
            _ => None,
        }
    }

    /// The codes that a slab takes rows of, where the source has any.
    pub fn packed(&self, slab: &TensorSlice) -> Option<&PackedMatrix<'a>> {
        match &self.0.get(slab.tensor)?.stored {
            Stored::Packed(matrices) => matrices.get(slab.matrix).map(|matrix| &**matrix),
            Stored::Plain(_) => None,
        }
    }

    /// Gives the pages of a slab's matrix back to the system.
    pub fn release(&self, slab: &TensorSlice) {
        match self.0.get(slab.tensor).map(|tensor| &tensor.stored) {
            Some(Stored::Plain(view)) => {
                let size = float_dtype(view.dtype()).map_or(0, FloatDType::size);
                let step = slab.size.0 * slab.size.1 * size;
                view.release_part(slab.matrix * step..(slab.matrix + 1) * step);
            }
            Some(Stored::Packed(matrices)) => matrices.get(slab.matrix).into_iter().for_each(|matrix| matrix.release()),
            None => {}
        }
    }

    /// The name of the tensor that a slab takes rows of.
    pub fn name(&self, slab: &TensorSlice) -> &str {
        self.0.get(slab.tensor).map_or("", |tensor| &tensor.meta.name)
    }
}

/// A tensor of a file, whose last two dimensions are a matrix; no matrices if its type has no codec.
fn as_it_stands(tensor: GgufTensor<'_>) -> ImportedTensor<'_> {
    let meta = TensorMeta::new(tensor.name(), tensor.shape(), tensor.kind().name());
    let matrices = matrices(tensor).unwrap_or_default();
    ImportedTensor { meta, stored: Stored::Packed(matrices) }
}

fn matrices(tensor: GgufTensor<'_>) -> Option<Vec<Arc<PackedMatrix<'_>>>> {
    let kind = codec::of(tensor.kind()).filter(|_| tensor.byte_len() > 0)?;
    let [outer @ .., rows, width] = tensor.shape() else { return None };
    let piece = |matrix: usize| BlockPiece {
        tensor: tensor.into(),
        kind,
        width: *width,
        first: matrix * rows,
        rows: RowMap::all(*rows),
        transposed: false,
        columns: None,
        factor: 1.0,
    };
    let matrix = |piece| Some(Arc::new(PackedMatrix::Blocks(BlockMatrix::new(*rows, *width, vec![piece])?)));
    (0..outer.iter().product()).map(|index| matrix(piece(index))).collect()
}

/// The elements of a band of what a slab becomes, row by row.
pub(super) fn read(isa: Isa, matrix: &WeightMatrix<'_>, slab: &TensorSlice, band: &Band, out: &mut Vec<f32>) {
    out.clear();
    let taken = if slab.transposed { 0..slab.rows.count() } else { band.rows.clone() };
    for rows in slab.rows.runs(taken) {
        matrix.read(isa, &Band { rows, columns: 0..slab.size.1 }, out);
    }
    if slab.transposed {
        // Transposed slices have a single band.
        let mut turned = vec![0.0; out.len()];
        transpose(out, slab.rows.count(), slab.size.1, &mut turned);
        *out = turned;
    }
    if let Some(columns) = slab.columns {
        let width = slab.size.1.max(1);
        let ordered = out.chunks(width).flat_map(|row| (0..row.len()).map(|column| row[columns.source(column)]));
        *out = ordered.collect();
    }
    slab.change.apply(out);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mixed_float_types_widen_to_f32() {
        use TensorType::{BF16, F16, F32};
        assert_eq!(common([F16, F16].into_iter()), Some(F16));
        assert_eq!((common([BF16, F16].into_iter()), common([F16, F16, F32].into_iter())), (Some(F32), Some(F32)));
        assert_eq!(common([].into_iter()), None);
    }
}
