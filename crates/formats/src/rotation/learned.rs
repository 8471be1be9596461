//! What was learned of the rotations of a model, by their places, and the tensors that hold it.

use kvant_container::{Dtype, Layout, TensorDeclaration, TensorFile, TensorView};
use kvant_quant::rotation::{BlockDiagonal, RotationPlace};
use kvant_weights::import_error::ImportError;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// The largest element of `B' B - I` that a learned block `B` may have: beyond the rounding of f32 it is no rotation.
const DEPARTURE: f64 = 1e-6;

/// Learned matrices, each of which follows the rotation of its place.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LearnedRotations {
    places: BTreeMap<RotationPlace, Arc<BlockDiagonal>>,
}

impl LearnedRotations {
    /// The matrices of these places.
    pub fn new(places: impl IntoIterator<Item = (RotationPlace, BlockDiagonal)>) -> LearnedRotations {
        LearnedRotations { places: places.into_iter().map(|(place, matrix)| (place, Arc::new(matrix))).collect() }
    }

    /// The matrix of a place.
    pub fn get(&self, place: RotationPlace) -> Option<&Arc<BlockDiagonal>> {
        self.places.get(&place)
    }

    /// All matrices.
    pub fn iter(&self) -> impl Iterator<Item = (RotationPlace, &BlockDiagonal)> {
        self.places.iter().map(|(place, matrix)| (*place, &**matrix))
    }

    /// The tensors, in memory; `path` is that of the model.
    ///
    /// # Errors
    /// More bytes than a file holds.
    pub(crate) fn to_file(&self, path: &Path) -> Result<TensorFile, ImportError> {
        let (mut declarations, mut contents) = (Vec::new(), Vec::new());
        for (place, matrix) in self.iter() {
            let (declaration, bytes) = blocks_to_tensor(&place.to_string(), matrix.size(), matrix.blocks());
            declarations.push(declaration);
            contents.push(bytes);
        }
        let layout = Layout::new(declarations, u64::MAX, BTreeMap::new()).map_err(kvant_container::Error::from)?;
        Ok(TensorFile::in_memory(&layout, &contents, path)?)
    }

    /// The matrices that tensors hold.
    ///
    /// # Errors
    /// *Invalid* for tensors that are no learned matrices.
    pub(crate) fn of_file(file: &TensorFile) -> Result<LearnedRotations, ImportError> {
        let matrix = |view: TensorView<'_>| {
            let place = view.name().parse::<RotationPlace>().ok();
            let matrix = blocks_of_tensor(view).and_then(|(size, blocks)| BlockDiagonal::of_blocks(size, blocks));
            place.zip(matrix).ok_or_else(|| not_learned(view.name()))
        };
        Ok(LearnedRotations::new(file.tensors().map(matrix).collect::<Result<Vec<_>, _>>()?))
    }

    /// Refuses matrices that would change a model's function.
    ///
    /// # Errors
    /// *Invalid*, with the first place whose matrix is not orthogonal.
    pub(crate) fn check_orthogonal(&self) -> Result<(), ImportError> {
        let skewed = self.iter().find(|(_, matrix)| !matches!(matrix.departure(), departure if departure < DEPARTURE));
        skewed.map_or(Ok(()), |(place, _)| Err(not_learned(&place.to_string())))
    }
}

fn not_learned(place: &str) -> ImportError {
    ImportError::invalid(place, "is no matrix of a learned rotation")
}

/// Square blocks as a tensor of f64, `[blocks, size, size]`: its declaration, and its bytes.
pub fn blocks_to_tensor(name: &str, size: usize, blocks: &[Vec<f64>]) -> (TensorDeclaration, Vec<u8>) {
    let bytes = blocks.iter().flatten().flat_map(|element| element.to_le_bytes()).collect();
    (TensorDeclaration::new(name, Dtype::F64, vec![blocks.len(), size, size]), bytes)
}

/// The size of square blocks, and the blocks, of such a tensor; `None` for any other.
pub fn blocks_of_tensor(view: TensorView<'_>) -> Option<(usize, Vec<Vec<f64>>)> {
    let [_, size, columns] = *view.shape() else { return None };
    if size != columns || size == 0 || view.dtype() != Dtype::F64 {
        return None;
    }
    let elements: Vec<f64> = view.bytes().as_chunks::<8>().0.iter().map(|bytes| f64::from_le_bytes(*bytes)).collect();
    Some((size, elements.chunks_exact(size * size).map(<[f64]>::to_vec).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matrices_round_trip_and_others_are_refused() {
        let matrix = |channels, size| BlockDiagonal::identity(channels, size).unwrap();
        let places = [(RotationPlace::Stream, matrix(12, 4)), (RotationPlace::Values(3), matrix(8, 8))];
        let learned = LearnedRotations::new(places);
        let file = learned.to_file(Path::new("model")).unwrap();
        assert_eq!(LearnedRotations::of_file(&file).unwrap(), learned);
        let skewed = BlockDiagonal::of_blocks(2, vec![vec![1.0, 0.1, 0.0, 1.0]]).unwrap();
        assert!(LearnedRotations::new([(RotationPlace::Stream, skewed)]).check_orthogonal().is_err());
        assert!(learned.check_orthogonal().is_ok());
    }
}
