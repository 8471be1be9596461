//! Checks that the floats of a source are finite before computing with them, so that the error names the tensor and
//! not a later result.

use crate::engine::{EngineError, Share, file_of};
use crate::plan::{KeptTensor, Plan};
use kvant_container::{Checkpoint, Dtype, TensorView};
use kvant_numeric::kernel::FloatDType;
use kvant_weights::weight::{first_not_finite, place};
use std::collections::BTreeSet;

/// Bytes that are looked at before their pages are given back.
const PIECE: usize = 16 << 20;

/// Refuses a source in which a tensor of at most so many bytes that stays as it is (a norm, a bias, an embedding) holds NaN or infinite
/// values. Small ones are looked at first.
///
/// # Errors
/// [`EngineError::Weight`] with the tensor and the place in it.
pub fn check_small(plan: &Plan, checkpoint: &Checkpoint, bytes: u64) -> Result<(), EngineError> {
    check_chosen(checkpoint, plan.kept().iter(), bytes)
}

/// The same for the tensors that a share of the plan writes.
///
/// # Errors
/// As [`check_small`].
pub fn check_share(plan: &Plan, checkpoint: &Checkpoint, share: &Share, bytes: u64) -> Result<(), EngineError> {
    check_chosen(checkpoint, plan.kept().iter().filter(|kept| share.tensors.contains(&kept.tensor)), bytes)
}

fn check_chosen<'p>(
    checkpoint: &Checkpoint,
    kept: impl Iterator<Item = &'p KeptTensor>,
    bytes: u64,
) -> Result<(), EngineError> {
    let names: BTreeSet<&str> = kept.map(|kept| kept.source.as_str()).collect();
    let is_checked = |view: &TensorView<'_>| names.contains(view.name()) && view.byte_len() <= bytes;
    check(checkpoint, checkpoint.tensors().filter(is_checked))
}

/// The same for all vectors of a source: norms and biases.
///
/// # Errors
/// As [`check_small`].
pub fn check_vectors(checkpoint: &Checkpoint) -> Result<(), EngineError> {
    check(checkpoint, checkpoint.tensors().filter(|view| view.shape().len() < 2))
}

/// The same for all floats of a source, scales included.
///
/// # Errors
/// As [`check_small`].
pub fn check_all(checkpoint: &Checkpoint) -> Result<(), EngineError> {
    check(checkpoint, checkpoint.tensors())
}

fn check<'a>(checkpoint: &Checkpoint, tensors: impl Iterator<Item = TensorView<'a>>) -> Result<(), EngineError> {
    let mut tensors: Vec<TensorView<'_>> = tensors.collect();
    tensors.sort_by_key(TensorView::byte_len);
    tensors.iter().for_each(|view| view.announce(0..view.byte_len() as usize));
    for view in tensors {
        let source = match view.dtype() {
            Dtype::F32 => FloatDType::F32,
            Dtype::F16 => FloatDType::F16,
            Dtype::BF16 => FloatDType::Bf16,
            _ => continue,
        };
        let mut pieces = view.pieces(PIECE).enumerate();
        let broken = pieces.find_map(|(piece, bytes)| {
            let (index, value) = first_not_finite(bytes, source)?;
            Some((piece * (PIECE / source.size()) + index, value))
        });
        if let Some((index, value)) = broken {
            let tensor = view.name().to_owned();
            let file = file_of(checkpoint, &tensor, None);
            let reason = format!("the value at {:?} is {value}", place(index, view.shape()));
            return Err(EngineError::Weight { tensor, excludable: None, file, reason });
        }
        view.release();
    }
    Ok(())
}
