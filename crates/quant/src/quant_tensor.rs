//! The quantized tensor: codes, scales, zero points and their scheme. The waist of the hourglass: roundings make it and
//! know no packing, exports pack it and know no rounding.

use crate::parameters::{Affine, dequantize};
use crate::scheme::{FloatScheme, Granularity, IntScheme, SchemeError, TensorScheme};
use kvant_numeric::ggml::GroupedView;

/// Unpacked codes, row-major.
#[derive(Clone, Debug, PartialEq)]
pub enum Codes {
    /// Formats of at most eight bits: one byte each, two's complement where the format is signed.
    Bytes(Vec<u8>),
    /// Integers of 16 and 32 bits.
    Wide(Vec<i64>),
}

fn misfit(scheme: TensorScheme) -> SchemeError {
    SchemeError::Combination { text: scheme.to_string() }
}

impl Codes {
    /// The number of codes.
    pub fn len(&self) -> usize {
        match self {
            Codes::Bytes(codes) => codes.len(),
            Codes::Wide(codes) => codes.len(),
        }
    }

    /// Gives their memory back.
    pub(crate) fn discard(&mut self) {
        match self {
            Codes::Bytes(codes) => *codes = Vec::new(),
            Codes::Wide(codes) => *codes = Vec::new(),
        }
    }

    /// Returns whether there are no codes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Code `index` of an integer format, sign-extended.
    pub fn integer(&self, index: usize, signed: bool) -> i64 {
        match self {
            Codes::Bytes(codes) if signed => i64::from(codes[index] as i8),
            Codes::Bytes(codes) => i64::from(codes[index]),
            Codes::Wide(codes) => codes[index],
        }
    }
}

/// A quantized matrix, or a band of one: all of `columns` for some rows, or some columns for all rows.
#[derive(Clone, Debug, PartialEq)]
pub struct QuantTensor {
    pub(crate) scheme: TensorScheme,
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    pub(crate) codes: Codes,
    pub(crate) scales: Vec<f32>,
    pub(crate) zero_points: Vec<f64>,
    pub(crate) global_scale: Option<f32>,
    /// Of GGUF blocks: what scales and minima are multiples of.
    pub(crate) factors: Vec<f32>,
    pub(crate) scale_shape: (usize, usize),
}

/// All of a quantized matrix, or a band of one, but its codes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parameters<'a> {
    scheme: TensorScheme,
    shape: (usize, usize),
    scale_shape: (usize, usize),
    scales: &'a [f32],
    zero_points: &'a [f64],
    global_scale: Option<f32>,
    factors: &'a [f32],
}

impl<'a> Parameters<'a> {
    /// Those of `rows x columns` codes: scales and zero points (one for each scale, or none) are row-major.
    ///
    /// # Errors
    /// [`SchemeError::GroupDoesNotDivide`] where the scheme does not fit the shape, [`SchemeError::Combination`] where there
    /// are not as many scales and zero points as scheme and shape ask for.
    pub fn new(
        scheme: TensorScheme,
        shape: (usize, usize),
        (scales, zero_points): (&'a [f32], &'a [f64]),
        global_scale: Option<f32>,
    ) -> Result<Parameters<'a>, SchemeError> {
        let granularity = scheme.granularity().ok_or_else(|| misfit(scheme))?;
        let scale_shape = granularity.scale_shape(shape.0, shape.1)?;
        let count = scale_shape.0 * scale_shape.1;
        if scales.len() != count || !(zero_points.is_empty() || zero_points.len() == count) {
            return Err(misfit(scheme));
        }
        Ok(Parameters { scheme, shape, scale_shape, scales, zero_points, global_scale, factors: &[] })
    }

    /// The scheme of the codes.
    pub fn scheme(&self) -> TensorScheme {
        self.scheme
    }

    /// Rows and columns of the codes.
    pub fn shape(&self) -> (usize, usize) {
        self.shape
    }

    /// Rows and columns of the scales, in row-major order.
    pub fn scale_shape(&self) -> (usize, usize) {
        self.scale_shape
    }

    /// Scales as they are stored: see [`QuantTensor::scales`].
    pub fn scales(&self) -> &'a [f32] {
        self.scales
    }

    /// Zero points, one for each scale; empty where every code of zero is 0.
    pub fn zero_points(&self) -> &'a [f64] {
        self.zero_points
    }

    /// The scale of the whole tensor: see [`QuantTensor::global_scale`].
    pub fn global_scale(&self) -> Option<f32> {
        self.global_scale
    }

    /// The blocks of these codes, if the scheme is one of GGUF; appended to `out`.
    pub fn put_blocks(&self, codes: &[u8], out: &mut Vec<u8>) {
        let TensorScheme::Gguf(blocks) = self.scheme else { return };
        let minima: Vec<f32> = self.zero_points.iter().map(|minimum| *minimum as f32).collect();
        let view = GroupedView { codes, scales: self.scales, minima: &minima, factors: self.factors };
        let start = out.len();
        out.resize(start + codes.len() / blocks.kind.block_elements() * blocks.kind.block_bytes(), 0);
        blocks.assemble(view, &mut out[start..]);
    }
}

/// The fields of a [`QuantTensor`], as its accessors describe them.
#[derive(Clone, Debug, PartialEq)]
pub struct QuantParts {
    /// The codes, row-major.
    pub codes: Codes,
    /// The scales, row-major.
    pub scales: Vec<f32>,
    /// The zero points, one for each scale, or none.
    pub zero_points: Vec<f64>,
    /// The scale of the whole tensor, where the scheme has one.
    pub global_scale: Option<f32>,
}

impl QuantTensor {
    /// Puts a `rows x columns` tensor together from its parts.
    ///
    /// # Errors
    /// [`SchemeError::GroupDoesNotDivide`] where the scheme does not fit the shape, [`SchemeError::Combination`] where the
    /// parts do not have the sizes that scheme and shape ask for.
    pub fn new(
        scheme: TensorScheme,
        rows: usize,
        columns: usize,
        parts: QuantParts,
    ) -> Result<QuantTensor, SchemeError> {
        let QuantParts { codes, scales, zero_points, global_scale } = parts;
        let parameters = Parameters::new(scheme, (rows, columns), (&scales, &zero_points), global_scale)?;
        let scale_shape = parameters.scale_shape();
        if codes.len() != rows * columns || matches!(codes, Codes::Bytes(_)) != (scheme.format().bits() <= 8) {
            return Err(misfit(scheme));
        }
        let factors = Vec::new();
        Ok(QuantTensor { scheme, rows, columns, codes, scales, zero_points, global_scale, factors, scale_shape })
    }

    /// The same with the numbers that scales and minima of blocks of GGUF are multiples of.
    pub(crate) fn with_factors(self, factors: Vec<f32>) -> QuantTensor {
        QuantTensor { factors, ..self }
    }

    /// A tensor without rows.
    pub(crate) fn empty(scheme: TensorScheme, columns: usize) -> QuantTensor {
        let codes = if scheme.format().bits() <= 8 { Codes::Bytes(Vec::new()) } else { Codes::Wide(Vec::new()) };
        QuantTensor {
            scheme,
            rows: 0,
            columns,
            codes,
            scales: Vec::new(),
            zero_points: Vec::new(),
            global_scale: None,
            factors: Vec::new(),
            scale_shape: (0, 0),
        }
    }

    /// Takes all rows away and keeps the memory.
    pub fn clear(&mut self) {
        match &mut self.codes {
            Codes::Bytes(codes) => codes.clear(),
            Codes::Wide(codes) => codes.clear(),
        }
        self.scales.clear();
        self.zero_points.clear();
        self.factors.clear();
        (self.rows, self.global_scale, self.scale_shape) = (0, None, (0, 0));
    }

    /// Adds rows and their scales; the rounding appends their contents.
    pub(crate) fn grow(&mut self, rows: usize) -> Result<(), SchemeError> {
        let granularity = self.scheme.granularity().unwrap_or(Granularity::Tensor);
        let (scale_rows, scale_columns) = granularity.scale_shape(rows, self.columns)?;
        let first = if granularity == Granularity::Tensor { 0 } else { self.scale_shape.0 };
        self.scale_shape = (first + scale_rows, scale_columns);
        self.rows += rows;
        Ok(())
    }

    /// The same with other codes, of integers.
    pub fn with_integers(&self, codes: Vec<i64>) -> QuantTensor {
        let codes = match self.codes {
            Codes::Bytes(_) => Codes::Bytes(codes.into_iter().map(|code| code as u8).collect()),
            Codes::Wide(_) => Codes::Wide(codes),
        };
        QuantTensor { codes, ..self.clone() }
    }

    /// Scale and zero point of each element, row-major.
    pub fn affines(&self) -> impl Iterator<Item = Affine> {
        let (tile_rows, tile_columns) = self.tile();
        let position =
            move |i: usize| (i / self.columns / tile_rows) * self.scale_shape.1 + i % self.columns / tile_columns;
        (0..self.rows * self.columns).map(move |i| {
            let place = position(i);
            Affine { scale: self.scales[place], zero_point: self.zero_points.get(place).copied().unwrap_or(0.0) }
        })
    }

    /// The scheme of the codes.
    pub fn scheme(&self) -> TensorScheme {
        self.scheme
    }

    /// Rows and columns of the codes.
    pub fn shape(&self) -> (usize, usize) {
        (self.rows, self.columns)
    }

    /// Rows and columns of the scales, in row-major order.
    pub fn scale_shape(&self) -> (usize, usize) {
        self.scale_shape
    }

    /// All but the codes.
    pub fn parameters(&self) -> Parameters<'_> {
        Parameters {
            scheme: self.scheme,
            shape: self.shape(),
            scale_shape: self.scale_shape,
            scales: &self.scales,
            zero_points: &self.zero_points,
            global_scale: self.global_scale,
            factors: &self.factors,
        }
    }

    /// The codes.
    pub fn codes(&self) -> &Codes {
        &self.codes
    }

    /// The codes, consuming the tensor.
    pub fn into_codes(self) -> Codes {
        self.codes
    }

    /// The codes of a format of at most eight bits; `None` for wider ones.
    pub fn code_bytes(&self) -> Option<&[u8]> {
        match &self.codes {
            Codes::Bytes(codes) => Some(codes),
            Codes::Wide(_) => None,
        }
    }

    /// Scales as they are stored: for two-level schemes the block scales, which [`global_scale`](Self::global_scale)
    /// multiplies.
    pub fn scales(&self) -> &[f32] {
        &self.scales
    }

    /// Zero points, one for each scale; empty where every code of zero is 0. Of blocks of GGUF, the minima.
    pub fn zero_points(&self) -> &[f64] {
        &self.zero_points
    }

    /// Its blocks, if it has a scheme of GGUF; appended to `out`.
    pub fn put_blocks(&self, out: &mut Vec<u8>) {
        self.parameters().put_blocks(self.code_bytes().unwrap_or_default(), out);
    }

    /// The scale of the whole tensor, of the first stage in progressive schemes.
    pub fn global_scale(&self) -> Option<f32> {
        self.global_scale
    }

    /// The values of the codes, row-major:
    /// `(code - zero_point) * scale` for integers, `code * scale` for floats, where a block scale is first multiplied by
    /// the tensor's; progressive codes are multiplied by both in turn; of blocks of GGUF, `level(code) * scale - minimum`.
    pub fn dequantize(&self) -> Vec<f32> {
        let (_, scale_columns) = self.scale_shape;
        let (tile_rows, tile_columns) = self.tile();
        let position = |i: usize| (i / self.columns / tile_rows) * scale_columns + i % self.columns / tile_columns;
        (0..self.rows * self.columns).map(|i| self.value(i, position(i))).collect()
    }

    pub(crate) fn tile(&self) -> (usize, usize) {
        let tile = self.scheme.granularity().map_or((1, 1), |g| g.tile(self.rows, self.columns));
        (tile.0.max(1), tile.1.max(1))
    }

    pub(crate) fn value(&self, index: usize, scale_index: usize) -> f32 {
        match self.scheme {
            TensorScheme::Int(scheme) => self.integer_value(scheme, index, scale_index),
            TensorScheme::Float(scheme) => self.float_value(scheme, index, scale_index),
            TensorScheme::Progressive { second, .. } => {
                self.integer_value(second, index, scale_index) * self.global_scale.unwrap_or(1.0)
            }
            TensorScheme::Gguf(blocks) => {
                let minimum = self.zero_points.get(scale_index).copied().unwrap_or(0.0) as f32;
                let code = self.codes.integer(index, false) as u8;
                blocks.levels.level(code) * self.scales[scale_index] - minimum
            }
            // No rounding makes a quantized tensor of these.
            TensorScheme::Block(_) | TensorScheme::Cast(_) => f32::NAN,
        }
    }

    fn integer_value(&self, scheme: IntScheme, index: usize, scale_index: usize) -> f32 {
        let zero_point = self.zero_points.get(scale_index).copied().unwrap_or(0.0);
        let code = self.codes.integer(index, scheme.format.is_signed());
        dequantize(code, Affine { scale: self.scales[scale_index], zero_point })
    }

    fn float_value(&self, scheme: FloatScheme, index: usize, scale_index: usize) -> f32 {
        let scale = self.global_scale.map_or(self.scales[scale_index], |g| self.scales[scale_index] * g);
        scheme.format.decode(self.codes.integer(index, false) as u8) * scale
    }

    /// Appends the rows of `other`, which has the same scheme and columns and starts on a tile of scales.
    ///
    /// # Errors
    /// [`SchemeError::Combination`] where the two do not belong together.
    pub fn append_rows(&mut self, other: QuantTensor) -> Result<(), SchemeError> {
        if (self.scheme, self.columns, self.scale_shape.1) != (other.scheme, other.columns, other.scale_shape.1) {
            return Err(SchemeError::Combination { text: format!("{} and {}", self.scheme, other.scheme) });
        }
        match (&mut self.codes, other.codes) {
            (Codes::Bytes(codes), Codes::Bytes(more)) => codes.extend(more),
            (Codes::Wide(codes), Codes::Wide(more)) => codes.extend(more),
            _ => {
                return Err(SchemeError::Combination { text: self.scheme.to_string() });
            }
        }
        self.rows += other.rows;
        // A scale of the whole tensor is the same in every band.
        if self.scheme.granularity() != Some(Granularity::Tensor) {
            self.scales.extend(other.scales);
            self.zero_points.extend(other.zero_points);
            self.factors.extend(other.factors);
            self.scale_shape.0 += other.scale_shape.0;
        }
        Ok(())
    }
}
