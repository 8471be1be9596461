//! A quantized matrix in memory.

use super::matrix::Matrix;
use super::scheme::WeightScheme;
use super::{fake, of_rounding};
use crate::error::{Error, ErrorKind};
use kvant_numeric::ggml::{self, GgmlType};
use kvant_numeric::kernel::{FloatDType, narrow_to_bf16, narrow_to_f16};
use kvant_numeric::parts::in_parts;
use kvant_numeric::simd::Isa;
use kvant_quant::activation::StaticParameters;
use kvant_quant::parameters;
use kvant_quant::rounding::{RoundingError, TensorContext, Weights, nearest_in_bands};
use kvant_quant::scheme::{Granularity, LayerScheme, TensorScheme};
use kvant_quant::{Codes, QuantParts, QuantTensor};
use rayon::prelude::*;
use std::convert::Infallible;
use std::ops::Range;

/// A matrix after quantization.
#[derive(Clone, Debug, PartialEq)]
pub struct QuantizedMatrix {
    scheme: WeightScheme,
    pub(super) source: FloatDType,
    rows: usize,
    columns: usize,
    pub(super) content: Content,
}

/// What is stored of it.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Content {
    /// Codes with scales.
    Codes(QuantTensor),
    /// Blocks of a GGUF type, rows after one another.
    Blocks(GgmlType, Vec<u8>),
    /// Numbers on the grid of a scheme without codes.
    Values(Vec<f32>),
}

impl QuantizedMatrix {
    /// Rounds every number to the nearest code, as the engine rounds the weights of a model: on all threads, with the same codes for
    /// any number of them.
    ///
    /// # Errors
    /// *Invalid* for NaN, infinities and shapes that do not fit the scheme, *unsupported* for numbers that need scales beyond those that
    /// the scheme stores.
    pub fn nearest(matrix: &Matrix<'_>, scheme: &WeightScheme) -> Result<QuantizedMatrix, Error> {
        let (rows, columns) = matrix.shape();
        let content = match scheme {
            WeightScheme::Layer(LayerScheme { weight, .. }) => match weight {
                TensorScheme::Block(_) | TensorScheme::Cast(_) => Content::Values(fake::of_weight(matrix, *weight)?),
                weight => {
                    let weights = Weights::of_shape(matrix.elements(), rows, columns);
                    let context = TensorContext::new(matrix.dtype().arithmetic());
                    Content::Codes(nearest_in_bands(*weight, context, weights).map_err(of_rounding)?)
                }
            },
            WeightScheme::Ggml(kind) => Content::Blocks(*kind, blocks(matrix, *kind)?),
        };
        Ok(QuantizedMatrix { scheme: *scheme, source: matrix.dtype(), rows, columns, content })
    }

    /// Rounds every number to the nearest code under scales and zero points that are known, such as learned ones: row-major, as many as
    /// the scheme has for the matrix.
    ///
    /// # Errors
    /// As [`nearest`](Self::nearest), and where parameters are missing, in excess or no scales; *unsupported* for schemes whose scales
    /// have several levels and for GGUF types.
    pub fn with_parameters(
        matrix: &Matrix<'_>,
        scheme: &WeightScheme,
        given: StaticParameters,
    ) -> Result<QuantizedMatrix, Error> {
        let scheme = scheme.with_scales()?;
        let weight = scheme.weight;
        let (rows, columns) = matrix.shape();
        let scale_columns = fake::check_parameters(weight, (rows, columns), &given)?.1;
        let values = matrix.values();
        if !values.iter().all(|value| value.is_finite()) {
            return Err(of_rounding(RoundingError::NotFinite));
        }
        let (tile_rows, tile_columns) = weight.granularity().unwrap_or(Granularity::Tensor).tile(rows, columns);
        let quotient = fake::quotient_dtype(weight, matrix.dtype());
        let code = |(index, value): (usize, &f32)| {
            let place = index / columns / tile_rows * scale_columns + index % columns / tile_columns;
            let (scale, zero_point) = (given.scales[place], given.zero_points.get(place).copied().unwrap_or(0.0));
            match weight {
                TensorScheme::Float(float) => i64::from(float.format.encode(quotient.round(value / scale))),
                TensorScheme::Int(int) => parameters::quantize(int.format, *value, 1.0 / scale, f64::from(zero_point)),
                // Other schemes have been refused.
                _ => 0,
            }
        };
        let codes: Vec<i64> = values.par_iter().enumerate().map(code).collect();
        let codes = match weight.format().bits() <= 8 {
            true => Codes::Bytes(codes.into_iter().map(|code| code as u8).collect()),
            false => Codes::Wide(codes),
        };
        let zero_points = given.zero_points.iter().map(|point| f64::from(*point)).collect();
        let parts = QuantParts { codes, scales: given.scales, zero_points, global_scale: None };
        let tensor = QuantTensor::new(weight, rows, columns, parts).map_err(|error| of_rounding(error.into()))?;
        Ok(QuantizedMatrix::of_codes(*scheme, matrix.dtype(), tensor))
    }

    /// A matrix whose codes were chosen elsewhere.
    pub(super) fn of_codes(scheme: LayerScheme, source: FloatDType, tensor: QuantTensor) -> QuantizedMatrix {
        let (rows, columns) = tensor.shape();
        QuantizedMatrix { scheme: WeightScheme::Layer(scheme), source, rows, columns, content: Content::Codes(tensor) }
    }

    /// Its scheme.
    pub fn scheme(&self) -> WeightScheme {
        self.scheme
    }

    /// Rows and columns.
    pub fn shape(&self) -> (usize, usize) {
        (self.rows, self.columns)
    }

    /// The codes with their scales; `None` for blocks of GGUF types and schemes without codes.
    pub fn tensor(&self) -> Option<&QuantTensor> {
        match &self.content {
            Content::Codes(tensor) => Some(tensor),
            _ => None,
        }
    }

    /// The blocks of a GGUF type, rows after one another.
    pub fn blocks(&self) -> Option<&[u8]> {
        match &self.content {
            Content::Blocks(_, bytes) => Some(bytes),
            _ => None,
        }
    }

    /// The codes; `None` as for [`tensor`](Self::tensor).
    pub fn codes(&self) -> Option<&Codes> {
        self.tensor().map(QuantTensor::codes)
    }

    /// Rows and columns of the scales; `(0, 0)` without scales.
    pub fn scale_shape(&self) -> (usize, usize) {
        self.tensor().map_or((0, 0), QuantTensor::scale_shape)
    }

    /// Its numbers in f32, row-major.
    pub fn dequantize(&self) -> Vec<f32> {
        if let Content::Values(values) = &self.content {
            return values.clone();
        }
        self.in_bands(1, |values, _: &mut ()| values)
    }

    /// Its numbers as little-endian bytes of f16 or bf16, the nearest ones; of bf16 for other types.
    pub fn dequantize_to_half(&self, dtype: FloatDType) -> Vec<u8> {
        self.in_bands(2, |values, halves: &mut Vec<[u8; 2]>| {
            halves.resize(values.len(), [0; 2]);
            match dtype {
                FloatDType::F16 => narrow_to_f16(Isa::best(), values, halves),
                _ => narrow_to_bf16(Isa::best(), values, halves),
            }
            halves.as_flattened()
        })
    }

    /// Makes something of the numbers of each band of rows, `size` elements for a number.
    fn in_bands<T: Copy + Send + Sync, B: Default>(
        &self,
        size: usize,
        make: impl for<'b> Fn(&'b [f32], &'b mut B) -> &'b [T] + Sync + Send,
    ) -> Vec<T> {
        let columns = self.columns;
        let band = (1 << 16) / columns.max(1) + 1;
        let state = || (Vec::new(), B::default());
        let made = in_parts(self.rows * columns * size, band * columns * size, state, |(values, made), positions| {
            let rows = positions.start / size / columns..positions.end / size / columns;
            self.read_rows(rows, values);
            Ok::<_, Infallible>((make(values, made), ()))
        });
        match made {
            Ok((made, _)) => made,
            Err(never) => match never {},
        }
    }

    /// The numbers of some rows, in place of what a buffer had.
    fn read_rows(&self, rows: Range<usize>, values: &mut Vec<f32>) {
        values.clear();
        match &self.content {
            Content::Codes(tensor) => tensor.dequantize_rows(Isa::best(), rows, 0..self.columns, values),
            Content::Blocks(kind, bytes) => {
                let row_bytes = kind.row_bytes(self.columns).unwrap_or(0);
                values.resize(rows.len() * self.columns, 0.0);
                ggml::dequantize(Isa::best(), *kind, &bytes[rows.start * row_bytes..rows.end * row_bytes], values);
            }
            Content::Values(known) => {
                values.extend_from_slice(&known[rows.start * self.columns..rows.end * self.columns]);
            }
        }
    }
}

/// Blocks of a GGUF type.
fn blocks(matrix: &Matrix<'_>, kind: GgmlType) -> Result<Vec<u8>, Error> {
    let (rows, columns) = matrix.shape();
    let Some(row_bytes) = kind.row_bytes(columns) else {
        let message =
            format!("rows of {columns} numbers are not a multiple of {kind}'s block of {}", kind.block_elements());
        return Err(Error::new(ErrorKind::Invalid, message).with_hint(Some("use a type of smaller blocks".to_owned())));
    };
    let values = matrix.values();
    if !values.iter().all(|value| value.is_finite()) {
        return Err(of_rounding(RoundingError::NotFinite));
    }
    let mut bytes = vec![0; rows * row_bytes];
    let band = (1 << 16) / columns.max(1) + 1;
    let bands = bytes.par_chunks_mut((band * row_bytes).max(1)).zip(values.par_chunks((band * columns).max(1)));
    bands.for_each(|(out, values)| ggml::quantize(Isa::best(), kind, columns, values, None, out));
    match ggml::first_saturated(kind, &values, &bytes) {
        None => Ok(bytes),
        Some(index) => {
            let message = format!("the value {:e} at index {index} is beyond what {kind} holds", values[index]);
            Err(Error::new(ErrorKind::Unsupported, message).with_hint(Some("use a type of wider range".to_owned())))
        }
    }
}
