//! `.safetensors`: tokens in the tensor `input_ids`, or in the only one of integers; those that `attention_mask` has zeros
//! for are padding.

use super::super::CalibrationDataError;
use super::super::document::Sink;
use super::super::files::{DataFile, Reading};
use super::integers::{Integer, Tokens};
use kvant_container::{Dtype, TensorFile, TensorView};

/// The tensor of tokens.
const TOKENS: &str = "input_ids";
/// The tensor of the padding mask.
const MASK: &str = "attention_mask";

/// Hands out the rows of a tensor of two dimensions, or the whole of one.
pub(in super::super) fn read(
    file: &DataFile,
    reading: &Reading<'_>,
    sink: &mut Sink<'_>,
) -> Result<(), CalibrationDataError> {
    let tensors = TensorFile::open(&file.path)?;
    let (tokens, integer) = tokens(file, &tensors, reading.column)?;
    let mask = match tensors.tensors().find(|tensor| tensor.name() == MASK) {
        Some(mask) => Some((mask_integer(file, &mask, &tokens)?, mask.bytes())),
        None => None,
    };
    Tokens { integer, shape: tokens.shape(), bytes: tokens.bytes(), mask }.hand_out(file, reading, sink)
}

fn tokens<'a>(
    file: &DataFile,
    tensors: &'a TensorFile,
    column: Option<&str>,
) -> Result<(TensorView<'a>, Integer), CalibrationDataError> {
    let integers: Vec<_> = tensors.tensors().filter_map(|tensor| Some((tensor, integer(tensor.dtype())?))).collect();
    let named = integers.iter().find(|(tensor, _)| tensor.name() == column.unwrap_or(TOKENS));
    let mut others = integers.iter().filter(|(tensor, _)| tensor.name() != MASK);
    let only = others.next().filter(|_| column.is_none() && others.next().is_none());
    named.or(only).copied().ok_or_else(|| {
        let name = column.unwrap_or(TOKENS);
        CalibrationDataError::damaged(&file.path, format!("no tensor {name} of integers holds tokens"))
    })
}

fn mask_integer(
    file: &DataFile,
    mask: &TensorView<'_>,
    tokens: &TensorView<'_>,
) -> Result<Integer, CalibrationDataError> {
    let byte = Integer { width: 1, is_signed: false, is_big_endian: false };
    let found = if mask.dtype() == Dtype::BOOL { Some(byte) } else { integer(mask.dtype()) };
    let fits = |_: &Integer| mask.shape() == tokens.shape();
    found
        .filter(fits)
        .ok_or_else(|| CalibrationDataError::damaged(&file.path, format!("{MASK} does not fit the tokens")))
}

fn integer(dtype: Dtype) -> Option<Integer> {
    let (width, is_signed) = match dtype {
        Dtype::U8 => (1, false),
        Dtype::I8 => (1, true),
        Dtype::U16 => (2, false),
        Dtype::I16 => (2, true),
        Dtype::U32 => (4, false),
        Dtype::I32 => (4, true),
        Dtype::U64 => (8, false),
        Dtype::I64 => (8, true),
        _ => return None,
    };
    Some(Integer { width, is_signed, is_big_endian: false })
}
