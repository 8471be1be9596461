//! The positions of the model's tensors in the file: the inverse of the plan that writes such files.

use super::config::{Restored, restore};
use crate::model::architecture::Architecture;
use crate::model::values::values;
use crate::model::{BlockNumbers, Builder, Change, Content, Draft, TensorSlice};
use crate::model::{codec, names, numbers};
use kvant_container::Checkpoint;
use kvant_container::Diagnostic;
use kvant_container::gguf::{GgufFile, GgufTensor};
use kvant_container::shown;
use kvant_model::model_config::ModelConfig;
use kvant_model::network::{Network, TensorMeta};
use kvant_numeric::simd::Isa;
use kvant_weights::import_error::ImportError;
use kvant_weights::weight::{BlockMatrix, BlockPiece, ImportedTensor, PackedMatrix, Stored};
use std::collections::HashSet;
use std::sync::Arc;

/// A tensor of the model and where it is.
pub(crate) struct Found<'a> {
    pub meta: TensorMeta,
    /// One, or one an expert.
    pub matrices: Vec<BlockMatrix<'a>>,
    /// What has become of every value.
    pub change: Change,
    /// Whether files hold it as F32 always, so that it is small.
    pub small: bool,
}

/// The tensors of a checkpoint that is a GGUF file.
///
/// # Errors
/// *Unsupported* for tensors that have no place in the family, *invalid* where shapes contradict each other.
pub fn tensors<'a>(checkpoint: &'a Checkpoint, file: &'a GgufFile) -> Result<Vec<ImportedTensor<'a>>, ImportError> {
    let Contents { found, numbers } = find(file, &restore(file)?)?;
    let numbers = numbers.into_iter().filter_map(|(meta, _)| {
        let stored = Stored::Plain(checkpoint.tensor(&meta.name)?);
        Some(ImportedTensor { meta, stored })
    });
    let imported = found.into_iter().map(|Found { meta, matrices, .. }| {
        let stored = match checkpoint.tensor(&meta.name) {
            Some(view) => Stored::Plain(view),
            None => Stored::Packed(matrices.into_iter().map(|one| Arc::new(PackedMatrix::Blocks(one))).collect()),
        };
        ImportedTensor { meta, stored }
    });
    Ok(imported.chain(numbers).collect())
}

/// All tensors of the model.
pub(crate) struct Contents<'a> {
    /// Those that are in tensors of the file.
    pub found: Vec<Found<'a>>,
    /// Those that are numbers of the metadata.
    pub numbers: Vec<(TensorMeta, f32)>,
}

/// Finds all tensors of the model.
pub(crate) fn find<'a>(file: &'a GgufFile, restored: &Restored) -> Result<Contents<'a>, ImportError> {
    let config = ModelConfig::from_json(&restored.config).map_err(|error| invalid(file, error.to_string()))?;
    let network = Network::recognise(&config, &restored.metas);
    let model = Builder::of_network(&config, &restored.metas, &network).map_err(|error| {
        let hint = error.hint().unwrap_or_else(|| "convert the checkpoint that it was made of".to_owned());
        ImportError::unsupported(shown(file.path()), error.to_string(), hint)
    })?;
    let Builder { drafts, numbers: stated, .. } = model;
    let mut places: Vec<Places<'a>> = restored.metas.iter().map(|_| Places::default()).collect();
    for draft in &drafts {
        let Content::Slabs(slabs) = &draft.content else { continue };
        // A head that is the embedding need not be there twice.
        let Some(tensor) = file.tensor(&draft.name) else { continue };
        if tensor.shape().iter().product::<usize>() != draft.shape.iter().product::<usize>() {
            let reason = format!("shape {:?} is not {:?}", tensor.shape(), draft.shape);
            return Err(ImportError::invalid(tensor.name(), reason));
        }
        let factors = factors(file, &draft.name, draft.matrices())?;
        add(&mut places, tensor, slabs, &factors, draft.fixed)?;
    }
    refuse_others(file, &drafts, restored.architecture)?;
    let mut numbers = Vec::new();
    for BlockNumbers { key, tensors } in &stated {
        for (block, position) in tensors.iter().enumerate() {
            let value = numbers::value(file.metadata(), key, block);
            let value = value.ok_or_else(|| ImportError::invalid(*key, "is not a number for every block"))?;
            numbers.push((restored.metas[*position].clone(), value));
        }
    }
    let is_stated: HashSet<usize> = stated.iter().flat_map(|numbers| numbers.tensors.iter().copied()).collect();
    let others = restored.metas.iter().zip(places).enumerate().filter(|(position, _)| !is_stated.contains(position));
    let found = others.map(|(_, (meta, places))| places.found(meta)).collect::<Result<_, _>>()?;
    Ok(Contents { found, numbers })
}

/// The pieces of a tensor of the model.
#[derive(Default)]
struct Places<'a> {
    /// Rows and columns of a matrix.
    size: (usize, usize),
    pieces: Vec<(usize, BlockPiece<'a>)>,
    change: Option<Change>,
    small: bool,
}

impl<'a> Places<'a> {
    fn found(self, meta: &TensorMeta) -> Result<Found<'a>, ImportError> {
        let count = self.pieces.iter().map(|(matrix, _)| matrix + 1).max().unwrap_or(0);
        let mut matrices: Vec<Vec<BlockPiece<'a>>> = vec![Vec::new(); count];
        self.pieces.into_iter().for_each(|(matrix, piece)| matrices[matrix].push(piece));
        let whole = matrices.into_iter().map(|pieces| BlockMatrix::new(self.size.0, self.size.1, pieces));
        let matrices = whole.collect::<Option<Vec<_>>>().filter(|matrices| !matrices.is_empty());
        let missing =
            || ImportError::invalid(&meta.name, "the file lacks tensors, or rows of tensors, that it was made into");
        Ok(Found {
            meta: meta.clone(),
            matrices: matrices.ok_or_else(missing)?,
            change: self.change.unwrap_or(Change::None),
            small: self.small,
        })
    }
}

/// The scales of a tensor's matrices, which are 1 where the file has none.
pub fn factors(file: &GgufFile, weight: &str, matrices: usize) -> Result<Vec<f32>, ImportError> {
    let name = names::of_scale(weight);
    let Some(tensor) = file.tensor(&name) else { return Ok(vec![1.0; matrices]) };
    let fits = tensor.shape().iter().product::<usize>() == matrices;
    let found = Some(tensor).filter(|_| fits).and_then(|tensor| values(Isa::best(), tensor));
    let found = found.filter(|scales| scales.iter().all(|scale| scale.is_finite() && *scale >= 0.0));
    found.ok_or_else(|| ImportError::invalid(name, format!("is not a list of {matrices} scales")))
}

/// Notes the slabs of a tensor of the file where they belong.
fn add<'a>(
    places: &mut [Places<'a>],
    tensor: GgufTensor<'a>,
    slabs: &[TensorSlice],
    factors: &[f32],
    small: bool,
) -> Result<(), ImportError> {
    let kind = codec::of(tensor.kind()).ok_or_else(|| {
        let hint = "use a file of another type, or the checkpoint that it was made of";
        ImportError::unsupported(tensor.name(), format!("values of {} are not decoded here", tensor.kind()), hint)
    })?;
    let mut first = 0;
    let each = (slabs.len() / factors.len().max(1)).max(1);
    for (slab, factor) in slabs.iter().zip(factors.iter().flat_map(|factor| std::iter::repeat_n(factor, each))) {
        let place = &mut places[slab.tensor];
        (place.size, place.change, place.small) = (slab.size, Some(slab.change), small);
        let piece = BlockPiece {
            tensor: tensor.into(),
            kind,
            width: slab.out_columns(),
            first,
            rows: slab.rows,
            transposed: slab.transposed,
            columns: slab.columns,
            factor: *factor,
        };
        place.pieces.push((slab.matrix, piece));
        first += slab.out_rows();
    }
    Ok(())
}

/// Tensors that say what metadata do not: they are read with config.json.
const FACTORS: [&str; 3] = ["rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"];

fn refuse_others(file: &GgufFile, drafts: &[Draft], architecture: &Architecture) -> Result<(), ImportError> {
    let known: HashSet<&str> = drafts.iter().map(|draft| draft.name.as_str()).chain(FACTORS).collect();
    // A scale of the inputs is for engines that quantize them.
    let is_scale = |name: &str| {
        let stem = name.strip_suffix(".scale").or_else(|| name.strip_suffix(".input_scale"));
        let weight = stem.map(|stem| format!("{stem}.weight")).unwrap_or_default();
        known.contains(weight.as_str()) && architecture.multiplies(&weight)
    };
    match file.tensors().find(|tensor| !known.contains(tensor.name()) && !is_scale(tensor.name())) {
        None => Ok(()),
        Some(tensor) => {
            let hint =
                "the file was made by another version or of another model: use the checkpoint that it was made of";
            Err(ImportError::unsupported(
                tensor.name(),
                "does not belong to the architecture that the file declares",
                hint,
            ))
        }
    }
}

fn invalid(file: &GgufFile, reason: String) -> ImportError {
    ImportError::invalid(shown(file.path()), reason)
}
