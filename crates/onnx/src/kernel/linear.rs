//! QuantizeLinear and DequantizeLinear of all domains: integers and floats of 4 to 32 bits, for a tensor, an axis or blocks.
//!
//! Codes below a byte are held in bytes, codes of floats as the floats they stand for.

use kvant_container::onnx::{DataType, TensorProto, data_type, shape, tensor_bytes};
use kvant_numeric::arithmetic::{round_to_bf16, round_to_f16};
use kvant_numeric::format::MiniFloat;
use kvant_numeric::pack::unpacked_bits;
use rayon::prelude::*;

use super::KernelError;
use crate::data::{Array, Element, Values, from_bytes};

/// Elements that one task computes.
const TASK: usize = 1 << 14;

/// Scales and zero points, and which of them an element has.
#[derive(Debug, Clone)]
pub struct Parameters<'a> {
    /// One scale, one for each place of the axis, or one for each block along it.
    pub scale: Array<'a>,
    /// As many zero points; 0 where there are none. Of the type of the codes.
    pub zero_point: Option<Array<'a>>,
    /// The axis, negative from the end.
    pub axis: i64,
    /// Elements of a block along the axis; 0 where there are no blocks.
    pub block: usize,
}

/// The codes of values: `saturate(round_half_even(x / scale) + zero_point)`; for floats the nearest to
/// `x / scale + zero_point`, 8 bits and below saturating. Errors: a type without a kernel, parameters that do not fit the shape.
pub fn quantize(values: &Array<'_>, parameters: &Parameters<'_>, to: DataType) -> Result<Array<'static>, KernelError> {
    let (x, places) = (values.to_f32s(), Places::new(values.shape(), parameters)?);
    let scale = parameters.scale.to_f32s();
    let zero = parameters.zero_point.as_ref().map(Array::to_f32s);
    let zero = |p: usize| zero.as_ref().map_or(0.0, |zero| zero[p]);
    let float =
        |round: fn(f32) -> f32| Values::F32(places.map(x.len(), |i, p| round(x[i] / scale[p] + zero(p))).into());
    // Zero points of up to 32 bits are integers of a double.
    let zeros = parameters.zero_point.as_ref().map(integers);
    let code = |i: usize, p: usize, low: i64, high: i64| {
        let zero = zeros.as_ref().map_or(0, |zeros| zeros[p]);
        ((x[i] / scale[p]).round_ties_even() as i64).saturating_add(zero).clamp(low, high)
    };
    macro_rules! integer {
        ($type:ty, $low:expr, $high:expr) => {
            <$type>::values(places.map(x.len(), |i, p| code(i, p, $low, $high) as $type).into())
        };
        ($type:ty) => {
            integer!($type, <$type>::MIN.into(), <$type>::MAX.into())
        };
    }
    let codes = match to {
        DataType::INT8 => integer!(i8),
        DataType::UINT8 => integer!(u8),
        DataType::INT16 => integer!(i16),
        DataType::UINT16 => integer!(u16),
        DataType::INT32 => integer!(i32),
        DataType::UINT32 => integer!(u32),
        DataType::INT4 => integer!(i8, -8, 7),
        DataType::UINT4 => integer!(u8, 0, 15),
        DataType::INT2 => integer!(i8, -2, 1),
        DataType::UINT2 => integer!(u8, 0, 3),
        DataType::FLOAT16 => float(round_to_f16),
        DataType::BFLOAT16 => float(round_to_bf16),
        DataType::FLOAT8E4M3FN => float(|v| small(MiniFloat::E4M3, v)),
        DataType::FLOAT8E5M2 => float(|v| small(MiniFloat::E5M2, v)),
        DataType::FLOAT4E2M1 => float(|v| small(MiniFloat::E2M1, v)),
        other => return Err(KernelError::new("output_dtype", format!("{other:?}"))),
    };
    filled(values.shape(), codes)
}

/// The values of codes: `(code - zero_point) * scale`, in single precision.
pub fn dequantize(codes: &Array<'_>, parameters: &Parameters<'_>) -> Result<Array<'static>, KernelError> {
    let places = Places::new(codes.shape(), parameters)?;
    let scale = parameters.scale.to_f32s();
    let zeros = parameters.zero_point.as_ref();
    let values = match codes.values() {
        Values::F32(_) | Values::F64(_) | Values::F16(_) | Values::Bf16(_) => {
            let (codes, zeros) = (codes.to_f32s(), zeros.map(Array::to_f32s));
            let zero = |p: usize| zeros.as_ref().map_or(0.0, |zeros| zeros[p]);
            places.map(codes.len(), |i, p| (codes[i] - zero(p)) * scale[p])
        }
        _ => {
            let zeros = zeros.map(integers);
            let zero = |p: usize| zeros.as_ref().map_or(0, |zeros| zeros[p]);
            crate::data::each_type!(codes.values(), v => {
                places.map(v.len(), |i, p| (v[i].to_integer().unwrap_or(0) as i64 - zero(p)) as f32 * scale[p])
            })
        }
    };
    filled(codes.shape(), Values::F32(values.into()))
}

/// The nearest values of a float type of up to 16 bits, as a cast gives them. Types of 8 bits saturate.
pub fn round_to(values: &Array<'_>, to: DataType) -> Result<Array<'static>, KernelError> {
    let one = Array::of(Vec::new(), vec![1.0f32]);
    let scale = one.ok_or_else(|| KernelError::new("to", "nothing"))?;
    quantize(values, &Parameters { scale, zero_point: None, axis: 0, block: 0 }, to)
}

/// The contents of a tensor as an array: codes below a byte in bytes, floats of up to 8 bits as floats. `None` for types
/// arrays do not have and tensors that do not fill their shape.
pub fn constant(tensor: &TensorProto) -> Option<Array<'static>> {
    let (bytes, shape) = (tensor_bytes(tensor).ok()?, shape(tensor).ok()?);
    let count = shape.iter().product();
    let codes = |bits: u32| unpacked_bits(&bytes, bits, count);
    // The highest bit of a code is its sign.
    let signed =
        |codes: Vec<u8>, bits: u32| codes.iter().map(|code| (code << (8 - bits)) as i8 >> (8 - bits)).collect();
    let decoded = |format: MiniFloat| bytes.iter().map(|&code| format.decode(code)).collect::<Vec<f32>>();
    let values = match data_type(tensor) {
        DataType::UINT4 => Values::U8(codes(4)?.into()),
        DataType::INT4 => Values::I8(signed(codes(4)?, 4)),
        DataType::UINT2 => Values::U8(codes(2)?.into()),
        DataType::INT2 => Values::I8(signed(codes(2)?, 2)),
        DataType::FLOAT8E4M3FN => Values::F32(decoded(MiniFloat::E4M3).into()),
        DataType::FLOAT8E5M2 => Values::F32(decoded(MiniFloat::E5M2).into()),
        DataType::FLOAT4E2M1 => Values::F32(codes(4)?.iter().map(|code| MiniFloat::E2M1.decode(*code)).collect()),
        other => return Some(Array::new(shape, from_bytes(other, &bytes)?)?.into_owned()),
    };
    Array::new(shape, values)
}

/// The nearest value of a small float; NaN stays.
fn small(format: MiniFloat, value: f32) -> f32 {
    if value.is_nan() { value } else { format.round(value) }
}

fn integers(array: &Array<'_>) -> Vec<i64> {
    crate::data::each_type!(array.values(), v => v.iter().map(|x| x.to_integer().unwrap_or(0) as i64).collect())
}

/// As many values as went in, which filled the shape.
fn filled(shape: &[usize], values: Values<'static>) -> Result<Array<'static>, KernelError> {
    Array::new(shape.to_vec(), values).ok_or_else(|| KernelError::new("shape", format!("{shape:?}")))
}

/// Which parameter an element has.
enum Places {
    One,
    Axis { length: usize, inner: usize },
    Blocks { length: usize, inner: usize, block: usize, blocks: usize },
}

impl Places {
    fn new(shape: &[usize], parameters: &Parameters<'_>) -> Result<Self, KernelError> {
        let of_scale = parameters.scale.shape();
        let misfit = || KernelError::new("scale", format!("{of_scale:?} for a tensor of shape {shape:?}"));
        let count = parameters.scale.len();
        if parameters.zero_point.as_ref().is_some_and(|zero| zero.len() != count) {
            return Err(KernelError::new(
                "zero_point",
                format!("{:?}", parameters.zero_point.as_ref().map(Array::shape)),
            ));
        }
        if count == 1 {
            return Ok(Self::One);
        }
        let axis = if parameters.axis < 0 { parameters.axis + shape.len() as i64 } else { parameters.axis };
        let axis = usize::try_from(axis).ok().filter(|&axis| axis < shape.len()).ok_or_else(misfit)?;
        let (length, inner) = (shape[axis], shape[axis + 1..].iter().product());
        if of_scale.len() == 1 && parameters.block == 0 {
            return if count == length { Ok(Self::Axis { length, inner }) } else { Err(misfit()) };
        }
        let block = parameters.block;
        let mut expected = shape.to_vec();
        expected[axis] = if block == 0 { 0 } else { length.div_ceil(block) };
        match of_scale == expected {
            true => Ok(Self::Blocks { length, inner, block, blocks: expected[axis] }),
            false => Err(misfit()),
        }
    }

    /// The results of `of(element, parameter)`, in order.
    fn map<T: Send>(&self, count: usize, of: impl Fn(usize, usize) -> T + Sync) -> Vec<T> {
        let all = (0..count).into_par_iter().with_min_len(TASK);
        match *self {
            Self::One => all.map(|i| of(i, 0)).collect(),
            Self::Axis { length, inner } => all.map(|i| of(i, i / inner % length)).collect(),
            Self::Blocks { length, inner, block, blocks } => {
                let parameter = |i: usize| {
                    let (outer, place) = (i / (length * inner), i / inner % length);
                    (outer * blocks + place / block) * inner + i % inner
                };
                all.map(|i| of(i, parameter(i))).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::*;

    fn floats(shape: &[usize], values: &[f32]) -> Array<'static> {
        Array::of(shape.to_vec(), values.to_vec()).unwrap()
    }

    fn per_tensor(scale: f32, zero: Option<Array<'static>>) -> Parameters<'static> {
        Parameters { scale: floats(&[], &[scale]), zero_point: zero, axis: 1, block: 0 }
    }

    #[test]
    fn integer_codes_round_to_even_and_saturate() {
        let x = floats(&[5], &[0.25, 0.75, -100.0, 1e30, f32::NAN]);
        let codes = quantize(&x, &per_tensor(0.5, None), DataType::INT8).unwrap();
        assert_eq!(codes, Array::of(vec![5], vec![0i8, 2, -128, 127, 0]).unwrap());
        let zero = Array::of(vec![], vec![10u8]);
        let codes = quantize(&x, &per_tensor(0.5, zero.clone()), DataType::UINT8).unwrap();
        assert_eq!(codes, Array::of(vec![5], vec![10u8, 12, 0, 255, 10]).unwrap());
        let back = dequantize(&codes, &per_tensor(0.5, zero)).unwrap();
        assert_eq!(&back.to_f32s()[..4], [0.0, 1.0, -5.0, 122.5]);
        let wide = quantize(&floats(&[1], &[-70000.0]), &per_tensor(1.0, None), DataType::INT16).unwrap();
        assert_eq!(wide, Array::of(vec![1], vec![i16::MIN]).unwrap());
        let four = quantize(&x, &per_tensor(0.5, None), DataType::INT4).unwrap();
        assert_eq!(four, Array::of(vec![5], vec![0i8, 2, -8, 7, 0]).unwrap());
    }

    #[test]
    fn axis_and_block_parameters_apply_separately() {
        let x = floats(&[2, 2, 2], &[1.0; 8]);
        let axis = Parameters { scale: floats(&[2], &[1.0, 0.5]), zero_point: None, axis: -2, block: 0 };
        let codes = quantize(&x, &axis, DataType::INT8).unwrap();
        assert_eq!(codes, Array::of(vec![2, 2, 2], vec![1i8, 1, 2, 2, 1, 1, 2, 2]).unwrap());
        let x = floats(&[1, 3, 2], &[1.0; 6]);
        let scale = floats(&[1, 2, 2], &[1.0, 0.5, 0.25, 0.125]);
        let blocks = Parameters { scale, zero_point: None, axis: 1, block: 2 };
        let codes = quantize(&x, &blocks, DataType::INT8).unwrap();
        assert_eq!(codes, Array::of(vec![1, 3, 2], vec![1i8, 2, 1, 2, 4, 8]).unwrap());
        assert_eq!(dequantize(&codes, &blocks).unwrap(), x);
        let wrong = Parameters { block: 0, ..blocks };
        assert!(quantize(&x, &wrong, DataType::INT8).is_err());
    }

    #[test]
    fn float_codes_are_cast_after_scaling() {
        let x = floats(&[3], &[1000.0, 0.3, -3.0]);
        let e4m3 = quantize(&x, &per_tensor(1.0, None), DataType::FLOAT8E4M3FN).unwrap();
        assert_eq!(e4m3.to_f32s()[..], [448.0, 0.3125, -3.0]);
        let half = round_to(&x, DataType::BFLOAT16).unwrap();
        assert_eq!(half.to_f32s()[..], [1000.0, bf16::from_f32(0.3).to_f32(), -3.0]);
        let half = round_to(&x, DataType::FLOAT16).unwrap();
        assert_eq!(half.to_f32s()[1], f16::from_f32(0.3).to_f32());
    }

    #[test]
    fn packed_constants_are_unpacked() {
        let tensor = |data_type, bytes: &[u8]| kvant_container::onnx::tensor("t", data_type, &[3], bytes.to_vec());
        let int4 = constant(&tensor(DataType::INT4, &[0x8f, 0x07])).unwrap();
        assert_eq!(int4, Array::of(vec![3], vec![-1i8, -8, 7]).unwrap());
        let uint4 = constant(&tensor(DataType::UINT4, &[0x8f, 0x07])).unwrap();
        assert_eq!(uint4, Array::of(vec![3], vec![15u8, 8, 7]).unwrap());
        let int2 = constant(&tensor(DataType::INT2, &[0b00_01_10_11])).unwrap();
        assert_eq!(int2, Array::of(vec![3], vec![-1i8, -2, 1]).unwrap());
        let fp8 = constant(&tensor(DataType::FLOAT8E4M3FN, &[0x38, 0xb8, 0x7e])).unwrap();
        assert_eq!(fp8.to_f32s()[..], [1.0, -1.0, 448.0]);
    }
}
