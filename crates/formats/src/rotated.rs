//! A checkpoint opened as its rotated model, whose weights `rotation` computes as they are read.

use crate::rotation::LearnedRotations;
use crate::{import, rotation};
use kvant_container::Checkpoint;
use kvant_quant::rotation::Rotate;
use kvant_weights::import_error::ImportError;

/// The rotated model of a checkpoint, or the checkpoint where no rotation is asked for. Norms and biases are computed here, weights when they are read.
///
/// # Errors
/// *Unsupported* for models whose function a rotation would change, and for weights that are quantized already.
pub fn open(model: Checkpoint, rotation: Option<Rotate>) -> Result<Checkpoint, ImportError> {
    match rotation {
        None => Ok(model),
        Some(rotate) => open_with(model, rotate, None),
    }
}

/// The model of a checkpoint that is not rotated, rotated by matrices of which all have learned ones behind them.
///
/// # Errors
/// Those of [`open`]; *invalid* for matrices that are not of this model.
pub fn open_learned(model: Checkpoint, rotate: Rotate, learned: &LearnedRotations) -> Result<Checkpoint, ImportError> {
    learned.check_orthogonal()?;
    open_with(model, rotate, Some(learned))
}

fn open_with(model: Checkpoint, rotate: Rotate, learned: Option<&LearnedRotations>) -> Result<Checkpoint, ImportError> {
    let (config, replaced) = {
        let tensors = import::open(&model)?.into_tensors();
        rotation::checked(&model, &rotate, learned, &tensors)?
    };
    let parameters = learned.map(|learned| learned.to_file(model.path())).transpose()?;
    Ok(model.with_rewriting(rotate.to_string(), config, replaced, parameters))
}
