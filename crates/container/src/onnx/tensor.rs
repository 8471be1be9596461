//! A `TensorProto`'s contents as one run of little-endian bytes, whichever field they came in; and tensors made from bytes.

use std::borrow::Cow;

use bytes::Bytes;

use super::data_type::{DataType, byte_len, data_type_name};
use super::message::EnumOrUnknown;
use super::proto::TensorProto;
use crate::error::OnnxError;

/// The element type; an unknown number is [`DataType::UNDEFINED`].
pub fn data_type(tensor: &TensorProto) -> DataType {
    DataType::from_number(tensor.data_type())
}

/// The dimensions, or an error for a negative one.
pub fn shape(tensor: &TensorProto) -> Result<Vec<usize>, OnnxError> {
    let negative = |_| problem(tensor, format!("the shape {:?} has a negative dimension", tensor.dims));
    tensor.dims.iter().map(|&d| usize::try_from(d).map_err(negative)).collect()
}

/// Number of elements: the product of the dimensions, 1 for a scalar.
pub fn element_count(tensor: &TensorProto) -> Result<usize, OnnxError> {
    let product = shape(tensor)?.into_iter().try_fold(1usize, usize::checked_mul);
    product.ok_or_else(|| problem(tensor, format!("the shape {:?} has more elements than memory", tensor.dims)))
}

/// A tensor of a name, type and shape with the given contents (little-endian, packed).
pub fn tensor(name: &str, data_type: DataType, shape: &[usize], contents: impl Into<Bytes>) -> TensorProto {
    TensorProto {
        name: Some(name.to_owned()),
        data_type: Some(data_type as i32),
        dims: shape.iter().map(|&d| d as i64).collect(),
        raw_data: Some(contents.into()),
        ..TensorProto::default()
    }
}

/// Gives a tensor of floats other contents of the same type and shape (little-endian), whichever field the old ones were in.
pub fn set_contents(tensor: &mut TensorProto, contents: impl Into<Bytes>) {
    tensor.float_data.clear();
    tensor.raw_data = Some(contents.into());
}

/// The contents as little-endian bytes, packed for types below a byte, of exactly the size of type and shape.
///
/// Borrowed where they are `raw_data` already. Errors: external data that nobody has mapped, strings, wrong sizes.
pub fn tensor_bytes(tensor: &TensorProto) -> Result<Cow<'_, [u8]>, OnnxError> {
    let data_type = data_type(tensor);
    let elements = element_count(tensor)?;
    let Some(expected) = byte_len(data_type, elements as u64) else {
        let problem_of = match byte_len(data_type, 1) {
            Some(_) => format!("the shape {:?} has more bytes than memory", tensor.dims),
            None => format!("its type {} has no bytes", data_type_name(data_type)),
        };
        return Err(problem(tensor, problem_of));
    };
    let bytes = match &tensor.raw_data {
        Some(raw) => Cow::Borrowed(&raw[..]),
        None => Cow::Owned(typed_bytes(tensor, data_type)),
    };
    match bytes.len() == expected {
        true => Ok(bytes),
        false => {
            let what = format!("{} of shape {:?}", data_type_name(data_type), tensor.dims);
            Err(problem(tensor, format!("{what} needs {expected} bytes and has {}", bytes.len())))
        }
    }
}

/// The bytes of the typed fields (`float_data` and the like), by the specification's mapping from types to fields.
fn typed_bytes(tensor: &TensorProto, data_type: DataType) -> Vec<u8> {
    use DataType::*;
    match data_type {
        FLOAT | COMPLEX64 => tensor.float_data.iter().flat_map(|v| v.to_le_bytes()).collect(),
        DOUBLE | COMPLEX128 => tensor.double_data.iter().flat_map(|v| v.to_le_bytes()).collect(),
        INT64 => tensor.int64_data.iter().flat_map(|v| v.to_le_bytes()).collect(),
        UINT64 => tensor.uint64_data.iter().flat_map(|v| v.to_le_bytes()).collect(),
        UINT32 => tensor.uint64_data.iter().flat_map(|&v| (v as u32).to_le_bytes()).collect(),
        INT32 => tensor.int32_data.iter().flat_map(|v| v.to_le_bytes()).collect(),
        UINT16 | INT16 | FLOAT16 | BFLOAT16 => {
            tensor.int32_data.iter().flat_map(|&v| (v as u16).to_le_bytes()).collect()
        }
        // One byte each: for the types of four and two bits that is a packed byte already.
        _ => tensor.int32_data.iter().map(|&v| v as u8).collect(),
    }
}

/// An error of a tensor.
pub(super) fn problem(tensor: &TensorProto, problem: String) -> OnnxError {
    OnnxError::Tensor { tensor: tensor.name().to_owned(), problem }
}

trait FromNumber {
    fn from_number(number: i32) -> DataType;
}

impl FromNumber for DataType {
    fn from_number(number: i32) -> DataType {
        EnumOrUnknown::from_i32(number).enum_value_or(DataType::UNDEFINED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typed_fields_read_like_raw_data() {
        let mut typed = tensor("t", DataType::INT16, &[3], Bytes::new());
        typed.raw_data = None;
        typed.int32_data = vec![-1, 2, 300];
        assert_eq!(&*tensor_bytes(&typed).unwrap(), [255, 255, 2, 0, 44, 1]);
        let mut packed = tensor("t", DataType::INT4, &[3], Bytes::new());
        packed.raw_data = None;
        packed.int32_data = vec![0x21, 0x03];
        assert_eq!(&*tensor_bytes(&packed).unwrap(), [0x21, 3]);
    }

    #[test]
    fn mismatched_tensor_sizes_are_refused() {
        let short = tensor("t", DataType::FLOAT, &[2], vec![0; 4]);
        assert!(tensor_bytes(&short).unwrap_err().to_string().contains("needs 8 bytes and has 4"));
        let mut negative = short.clone();
        negative.dims = vec![-1];
        assert!(tensor_bytes(&negative).unwrap_err().to_string().contains("negative"));
        let mut huge = short;
        huge.dims = vec![i64::MAX, i64::MAX];
        assert!(tensor_bytes(&huge).is_err());
        huge.dims = vec![1 << 31, 1 << 31];
        let refused = tensor_bytes(&huge).unwrap_err().to_string();
        assert!(refused.contains("more bytes than memory"), "{refused}");
    }

    #[test]
    fn scalar_has_one_element() {
        assert_eq!(&*tensor_bytes(&tensor("s", DataType::UINT8, &[], vec![7])).unwrap(), [7]);
    }
}
