//! A matrix of codes with scales in tensors of their own, and the values that it stands for: codes are unpacked and multiplied
//! band by band, when they are asked for. Not which tensors it is made of: see `import/layout.rs`.

use super::codes::StoredCodes;
use crate::band::Band;
use crate::parts::{Packing, ScaleEncoding, encode};
use kvant_container::TensorView;
use kvant_numeric::format::{MiniFloat, e8m0_decode};
use kvant_numeric::kernel::{CodeKind, FloatDType, RowScales, dequantize_gathered, dequantize_row, widen};
use kvant_numeric::pack::transpose;
use kvant_numeric::simd::Isa;
use std::ops::Range;
use std::sync::Arc;

/// A matrix of `rows` output and `columns` input channels.
#[derive(Clone, Debug)]
pub struct CodeMatrix<'a> {
    /// Output channels.
    pub rows: usize,
    /// Input channels.
    pub columns: usize,
    /// What the codes stand for.
    pub kind: CodeKind,
    /// The codes.
    pub codes: StoredCodes<'a>,
    /// The scales, one for each tile.
    pub scales: StoredScales<'a>,
    /// The zero points, one for each scale; `None` where zero is code 0.
    pub zero_points: Option<ZeroPoints<'a>>,
    /// Rows and columns that share a scale.
    pub tile: (usize, usize),
    /// The group of every input channel, where groups are not runs of them.
    pub groups: Option<Arc<[u32]>>,
    /// The scale of the whole tensor.
    pub factor: Factor,
    /// The location of the bytes, to free them.
    pub places: Vec<(TensorView<'a>, Range<usize>)>,
}

/// A matrix of scales.
#[derive(Clone, Copy, Debug)]
pub struct StoredScales<'a> {
    /// Their bytes.
    pub bytes: &'a [u8],
    /// How a scale is stored.
    pub encoding: ScaleEncoding,
    /// Whether it is stored transposed.
    pub transposed: bool,
    /// Tiles along the output channels.
    pub rows: usize,
    /// Tiles along the input channels.
    pub columns: usize,
}

/// Where zero lies among the codes, for every scale.
#[derive(Clone, Copy, Debug)]
pub enum ZeroPoints<'a> {
    /// A matrix of codes.
    Codes {
        /// What the codes stand for.
        kind: CodeKind,
        /// The codes.
        codes: StoredCodes<'a>,
    },
    /// A matrix of what is added to unsigned codes times their scales: minus the scale times the code of zero, which need not be
    /// an integer.
    Biases(StoredScales<'a>),
}

/// The role of the global scale.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Factor {
    /// There is none.
    #[default]
    None,
    /// Multiplies the other scales.
    OfScales(f32),
    /// Divides the other scales.
    UnderScales(f32),
    /// Multiplies the values.
    OfValues(f32),
}

impl<'a> CodeMatrix<'a> {
    /// An fp8 weight with a float scale for every block of rows and columns; `None` for other types.
    pub fn fp8(
        (bytes, source): (&'a [u8], FloatDType),
        (rows, columns): (usize, usize),
        transposed: bool,
        scales: TensorView<'a>,
        tile: (usize, usize),
    ) -> Option<CodeMatrix<'a>> {
        let format = match source {
            FloatDType::E4m3 => MiniFloat::E4M3,
            FloatDType::E5m2 => MiniFloat::E5M2,
            _ => return None,
        };
        let scales = StoredScales {
            bytes: scales.bytes(),
            encoding: ScaleEncoding::of_float(scales.dtype())?,
            transposed: false,
            rows: rows.div_ceil(tile.0),
            columns: columns.div_ceil(tile.1),
        };
        let codes = StoredCodes { bytes, packing: Packing::Bytes, transposed, rows, columns, bits: 8, less_one: false };
        Some(CodeMatrix {
            rows,
            columns,
            kind: CodeKind::Float(format),
            codes,
            scales,
            zero_points: None,
            tile,
            groups: None,
            factor: Factor::None,
            places: Vec::new(),
        })
    }

    /// The name of the tensor that its codes are in.
    pub fn tensor_name(&self) -> Option<&'a str> {
        self.places.first().map(|(view, _)| view.name())
    }

    /// Output channels.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Input channels.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// The values of a band, row-major, appended to `out`: `(code - zero point) * scale` in `f32`.
    pub fn read(&self, isa: Isa, band: &Band, out: &mut Vec<f32>) {
        let start = out.len();
        out.resize(start + band.len(), 0.0);
        if band.is_empty() {
            return;
        }
        let codes = self.codes.read(isa, band.rows.clone(), band.columns.clone());
        let tiles = self.tiles(band);
        let scales = self.effective_scales(isa, &tiles);
        let zero_points = self.zero_points.map(|points| points.read(isa, &tiles, &scales)).unwrap_or_default();
        let lines = out[start..].chunks_mut(band.columns.len()).zip(codes.chunks(band.columns.len()));
        for (row, (out, codes)) in band.rows.clone().zip(lines) {
            let line = (row / self.tile.0 - tiles.rows.start) * tiles.columns.len();
            let line = line..line + tiles.columns.len();
            let scales = (&scales[line.clone()], zero_points.get(line).unwrap_or_default());
            self.dequantize(isa, codes, scales, &band.columns, out);
        }
        if let Factor::OfValues(factor) = self.factor {
            out[start..].iter_mut().for_each(|value| *value *= factor);
        }
    }

    fn dequantize(
        &self,
        isa: Isa,
        codes: &[u8],
        (scales, zero_points): (&[f32], &[f32]),
        columns: &Range<usize>,
        out: &mut [f32],
    ) {
        if let Some(groups) = &self.groups {
            return dequantize_gathered(self.kind, codes, &groups[columns.clone()], scales, zero_points, out);
        }
        let group = self.tile.1;
        let first = group - columns.start % group;
        dequantize_row(isa, self.kind, codes, RowScales { scales, zero_points, group, first }, out);
    }

    /// The scales that a band touches.
    pub(super) fn tiles(&self, band: &Band) -> Band {
        let rows = band.rows.start / self.tile.0..band.rows.end.div_ceil(self.tile.0);
        let columns = match self.groups {
            Some(_) => 0..self.scales.columns,
            None => band.columns.start / self.tile.1..band.columns.end.div_ceil(self.tile.1),
        };
        Band { rows, columns }
    }

    /// Some of the scales, with the global one if that belongs to them.
    pub(super) fn effective_scales(&self, isa: Isa, tiles: &Band) -> Vec<f32> {
        let mut scales = self.scales.read(isa, tiles);
        match self.factor {
            Factor::OfScales(factor) => scales.iter_mut().for_each(|scale| *scale *= factor),
            Factor::UnderScales(divisor) => scales.iter_mut().for_each(|scale| *scale /= divisor),
            Factor::None | Factor::OfValues(_) => {}
        }
        scales
    }

    /// Gives the pages of its bytes back to the system.
    pub fn release(&self) {
        self.places.iter().for_each(|(view, part)| view.release_part(part.clone()));
    }
}

impl StoredScales<'_> {
    /// Some of the scales, row-major.
    pub(crate) fn read(&self, isa: Isa, tiles: &Band) -> Vec<f32> {
        if !self.transposed {
            return self.read_stored(isa, tiles.rows.clone(), tiles.columns.clone(), self.columns);
        }
        let turned = self.read_stored(isa, tiles.columns.clone(), tiles.rows.clone(), self.rows);
        let mut scales = vec![0.0; turned.len()];
        transpose(&turned, tiles.columns.len(), tiles.rows.len(), &mut scales);
        scales
    }

    fn read_stored(&self, isa: Isa, rows: Range<usize>, columns: Range<usize>, width: usize) -> Vec<f32> {
        let size = self.encoding.size();
        let mut scales = vec![0.0; rows.len() * columns.len()];
        for (row, scales) in rows.zip(scales.chunks_mut(columns.len().max(1))) {
            let start = row * width;
            let bytes = &self.bytes[(start + columns.start) * size..(start + columns.end) * size];
            decode_scales(isa, self.encoding, bytes, scales);
        }
        scales
    }
}

/// The scales in some bytes.
pub fn decode_scales(isa: Isa, encoding: ScaleEncoding, bytes: &[u8], scales: &mut [f32]) {
    let mut each =
        |decode: fn(u8) -> f32| scales.iter_mut().zip(bytes).for_each(|(scale, byte)| *scale = decode(*byte));
    match encoding {
        ScaleEncoding::E5m3 => each(|byte| MiniFloat::E5M3.decode(byte)),
        ScaleEncoding::E8m0 => each(e8m0_decode),
        ScaleEncoding::F32 => widen(isa, FloatDType::F32, bytes, scales),
        ScaleEncoding::F16 => widen(isa, FloatDType::F16, bytes, scales),
        ScaleEncoding::Bf16 => widen(isa, FloatDType::Bf16, bytes, scales),
        ScaleEncoding::E4m3 => widen(isa, FloatDType::E4m3, bytes, scales),
    }
}

/// Numbers as a type of scales holds them.
pub fn rounded_scales(isa: Isa, encoding: ScaleEncoding, values: &[f32]) -> Vec<f32> {
    let mut rounded = vec![0.0; values.len()];
    decode_scales(isa, encoding, &encode(encoding, values), &mut rounded);
    rounded
}

impl Factor {
    /// Returns whether values are codes times scales, with it or without.
    pub(super) fn is_of_scales(self) -> bool {
        !matches!(self, Factor::OfValues(_))
    }
}

impl ZeroPoints<'_> {
    /// Some of the zero points, row-major; `scales` are those of the same tiles.
    pub(super) fn read(&self, isa: Isa, tiles: &Band, scales: &[f32]) -> Vec<f32> {
        match self {
            ZeroPoints::Codes { kind, codes } => {
                let codes = codes.read(isa, tiles.rows.clone(), tiles.columns.clone());
                codes.into_iter().map(|code| kind.value(code, 0.0)).collect()
            }
            ZeroPoints::Biases(biases) => {
                let zero = |(bias, scale): (f32, &f32)| if *scale == 0.0 { 0.0 } else { -bias / scale };
                biases.read(isa, tiles).into_iter().zip(scales).map(zero).collect()
            }
        }
    }

    /// The bytes that they take.
    pub(super) fn stored_bytes(&self) -> usize {
        match self {
            ZeroPoints::Codes { codes, .. } => codes.bytes.len(),
            ZeroPoints::Biases(biases) => biases.bytes.len(),
        }
    }
}
