//! A checkpoint opened as its rotated model, whose weights `rotation` computes as they are read.

use crate::{import, rotation};
use kvant_container::Checkpoint;
use kvant_quant::rotation::Rotate;
use kvant_weights::import_error::ImportError;

/// The rotated model of a checkpoint, or the checkpoint where no rotation is asked for. Norms and biases are computed here, weights when they are read.
///
/// # Errors
/// *Unsupported* for models whose function a rotation would change, and for weights that are quantized already.
pub fn open(model: Checkpoint, rotation: Option<Rotate>) -> Result<Checkpoint, ImportError> {
    let Some(rotate) = rotation else { return Ok(model) };
    let (config, replaced) = {
        let tensors = import::open(&model)?.into_tensors();
        rotation::checked(&model, &rotate, &tensors)?
    };
    Ok(model.with_rewriting(rotate.to_string(), config, replaced))
}
