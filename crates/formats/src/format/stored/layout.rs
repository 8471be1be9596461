//! The storage of one quantized weight, as data: the parts that would be written, and the meaning of codes. Checks them
//! against the existing tensors and assembles the matrix. Reads no codes.

use super::catalog::Catalog;
use super::scalars;
use kvant_container::{Dtype, TensorView};
use kvant_numeric::format::{DType, MiniFloat};
use kvant_numeric::ggml::GroupedType;
use kvant_numeric::kernel::CodeKind;
use kvant_quant::scheme::{TensorScheme, ZeroPoint};
use kvant_weights::import_error::ImportError;
use kvant_weights::parts::{Content, Packing, Part, ScaleEncoding};
use kvant_weights::weight::{
    BlockMatrix, BlockPiece, BlockTensor, CodeMatrix, Factor, PackedMatrix, RowMap, StoredCodes, StoredScales,
    ZeroPoints,
};
use std::ops::Range;
use std::sync::Arc;

/// The kind of codes, independent of their packing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodeType {
    /// Integers.
    Integer {
        /// Bits of a code.
        bits: u32,
        /// Whether they are signed.
        signed: bool,
    },
    /// Floats of at most 8 bits.
    Float(MiniFloat),
}

/// The storage of a weight.
#[derive(Clone, Debug)]
pub struct WeightLayout {
    /// Output channels.
    pub rows: usize,
    /// Input channels.
    pub columns: usize,
    /// The kind of codes, independent of their packing.
    pub element: CodeType,
    /// Rows and columns that share a scale.
    pub tile: (usize, usize),
    /// The scheme according to config.json, if stated for the layer.
    pub scheme: Option<TensorScheme>,
    /// The tensors.
    pub parts: Vec<Part>,
    /// Whether the scale of the tensor multiplies values, not scales.
    pub two_stages: bool,
    /// Whether zero points may be missing, all being 0.
    pub zero_points_optional: bool,
    /// The tensor with the group of every input channel.
    pub groups: Option<String>,
    /// Which matrix of how many in each tensor.
    pub slice: (usize, usize),
}

impl WeightLayout {
    /// A weight of a scheme in the parts of a format.
    ///
    /// # Errors
    /// *Invalid* for an empty weight, *unsupported* where codes of the scheme are not read.
    pub fn of_scheme(
        module: &str,
        scheme: TensorScheme,
        shape: (usize, usize),
        parts: Vec<Part>,
    ) -> Result<WeightLayout, ImportError> {
        if shape.0 == 0 || shape.1 == 0 {
            return Err(ImportError::invalid(module, "is empty"));
        }
        let hint = "dequantize the checkpoint with the tool that made it";
        let refuse = || ImportError::unsupported(module, format!("codes of `{scheme}` are not read"), hint);
        WeightLayout::of_codes(scheme, shape, parts).filter(|_| scheme.format().bits() <= 8).ok_or_else(refuse)
    }

    fn of_codes(scheme: TensorScheme, (rows, columns): (usize, usize), parts: Vec<Part>) -> Option<WeightLayout> {
        let (element, two_stages, zero_point) = match scheme {
            TensorScheme::Int(int) => (integer(int.format), false, int.zero_point),
            TensorScheme::Progressive { second, .. } => (integer(second.format), true, second.zero_point),
            TensorScheme::Float(float) => (CodeType::Float(float.format), false, ZeroPoint::Zero),
            TensorScheme::Gguf(blocks) => (code_type(blocks.codes())?, false, ZeroPoint::Zero),
            TensorScheme::Block(_) | TensorScheme::Cast(_) => return None,
        };
        let signed = !matches!(element, CodeType::Integer { signed: false, .. });
        let zero_points_optional = zero_point == ZeroPoint::Zero && signed;
        let tile = scheme.granularity()?.tile(rows, columns);
        let layout = WeightLayout::new(element, (rows, columns), tile, parts);
        Some(WeightLayout { two_stages, zero_points_optional, scheme: Some(scheme), ..layout })
    }

    /// A weight with one scale for every `tile` of rows and columns.
    pub fn new(
        element: CodeType,
        (rows, columns): (usize, usize),
        tile: (usize, usize),
        parts: Vec<Part>,
    ) -> WeightLayout {
        WeightLayout {
            rows,
            columns,
            element,
            tile,
            scheme: None,
            parts,
            two_stages: false,
            zero_points_optional: false,
            groups: None,
            slice: (0, 1),
        }
    }

    /// The matrix of these tensors, once it is sure that they are what the layout says.
    pub(crate) fn bind<'a>(&self, catalog: &Catalog<'a>) -> Result<PackedMatrix<'a>, ImportError> {
        match self.scheme {
            Some(TensorScheme::Gguf(blocks)) => self.bind_blocks(blocks, catalog).map(PackedMatrix::Blocks),
            _ => self.bind_codes(catalog).map(PackedMatrix::Apart),
        }
    }

    fn bind_blocks<'a>(&self, blocks: GroupedType, catalog: &Catalog<'a>) -> Result<BlockMatrix<'a>, ImportError> {
        let missing = || ImportError::missing(self.name(), "the layer's weight");
        let part = self.parts.first().ok_or_else(missing)?;
        let view = catalog.tensor(&part.name).ok_or_else(missing)?;
        check_shape(part, view)?;
        check_dtype(part, view)?;
        let piece = BlockPiece {
            tensor: BlockTensor::Checkpoint(view),
            kind: blocks.kind,
            width: self.columns,
            first: 0,
            rows: RowMap::all(self.rows),
            transposed: false,
            columns: None,
            factor: 1.0,
        };
        let misfit = || ImportError::invalid(view.name(), format!("is not {} rows of blocks", self.rows));
        BlockMatrix::new(self.rows, self.columns, vec![piece]).ok_or_else(misfit)
    }

    fn bind_codes<'a>(&self, catalog: &Catalog<'a>) -> Result<CodeMatrix<'a>, ImportError> {
        let mut pieces = Pieces::default();
        for part in &self.parts {
            match catalog.tensor(&part.name) {
                Some(view) => self.add(&mut pieces, part, view)?,
                None if self.zero_points_optional && matches!(part.content, Content::ZeroPoints { .. }) => {}
                None => return Err(ImportError::missing(&part.name, "the layer's weight")),
            }
        }
        let whole = || ImportError::invalid(self.name(), "there are no codes or no scales");
        Ok(CodeMatrix {
            rows: self.rows,
            columns: self.columns,
            kind: self.kind(pieces.packing),
            codes: pieces.codes.ok_or_else(whole)?,
            scales: pieces.scales.ok_or_else(whole)?,
            zero_points: pieces.zero_points,
            tile: (self.tile.0.max(1), self.tile.1.max(1)),
            groups: self.groups.as_ref().map(|name| self.read_groups(catalog, name)).transpose()?.flatten(),
            factor: pieces.factor,
            places: pieces.places,
        })
    }

    /// A name for messages.
    fn name(&self) -> &str {
        self.parts.first().map_or("the layer", |part| &part.name)
    }

    /// Rows and columns of the matrix of scales.
    fn scale_shape(&self) -> (usize, usize) {
        (self.rows.div_ceil(self.tile.0.max(1)), self.columns.div_ceil(self.tile.1.max(1)))
    }

    fn add<'a>(&self, pieces: &mut Pieces<'a>, part: &Part, view: TensorView<'a>) -> Result<(), ImportError> {
        check_shape(part, view)?;
        match part.content {
            Content::Codes { packing, transposed } => {
                check_dtype(part, view)?;
                let codes = self.codes(view, (self.rows, self.columns), packing, transposed)?;
                (pieces.codes, pieces.packing) = (Some(codes), Some(packing));
                pieces.places.push((view, self.part_of(view)));
            }
            Content::Scales { encoding, transposed } => {
                let (rows, columns) = self.scale_shape();
                let encoding = found_encoding(encoding, view)?;
                let bytes = self.bytes(view, rows * columns * encoding.size())?;
                pieces.scales = Some(StoredScales { bytes, encoding, transposed, rows, columns });
                pieces.places.push((view, self.part_of(view)));
            }
            Content::ZeroPoints { packing, transposed, less_one } => {
                check_dtype(part, view)?;
                let codes = self.codes(view, self.scale_shape(), packing, transposed)?;
                let codes = StoredCodes { less_one, ..codes };
                pieces.zero_points = Some(ZeroPoints::Codes { kind: self.kind(Some(packing)), codes });
            }
            Content::Biases { encoding } => {
                let (rows, columns) = self.scale_shape();
                let encoding = found_encoding(encoding, view)?;
                let bytes = self.bytes(view, rows * columns * encoding.size())?;
                let biases = StoredScales { bytes, encoding, transposed: false, rows, columns };
                pieces.zero_points = Some(ZeroPoints::Biases(biases));
                pieces.places.push((view, self.part_of(view)));
            }
            Content::GlobalScale if self.two_stages => pieces.factor = Factor::OfValues(scalars::scalar(view)?),
            Content::GlobalScale => pieces.factor = Factor::OfScales(scalars::scalar(view)?),
            Content::GlobalScaleReciprocal => pieces.factor = Factor::UnderScales(scalars::scalar(view)?),
            Content::Shape => self.check_stated_shape(view)?,
            // Read beside the parts: see `groups` and `bind_blocks`.
            Content::Groups | Content::Blocks => {}
            // Of no consequence for the weight, which is stored rotated.
            Content::Hadamard => {}
        }
        Ok(())
    }

    fn codes<'a>(
        &self,
        view: TensorView<'a>,
        (rows, columns): (usize, usize),
        packing: Packing,
        transposed: bool,
    ) -> Result<StoredCodes<'a>, ImportError> {
        let stored = if transposed { (columns, rows) } else { (rows, columns) };
        let shape = packing.shape(stored.0, stored.1);
        let length = shape.iter().product::<usize>() * packing.dtype().bitsize() / 8;
        let bits = self.bits(packing);
        Ok(StoredCodes { bytes: self.bytes(view, length)?, packing, transposed, rows, columns, bits, less_one: false })
    }

    /// The bytes of this matrix, which must be `length`.
    fn bytes<'a>(&self, view: TensorView<'a>, length: usize) -> Result<&'a [u8], ImportError> {
        let bytes = view.bytes();
        if length.checked_mul(self.slice.1) != Some(bytes.len()) {
            let reason = format!("has {} bytes; {} matrices of {length} were expected", bytes.len(), self.slice.1);
            return Err(ImportError::invalid(view.name(), reason));
        }
        Ok(&bytes[self.part_of(view)])
    }

    /// The position of this matrix in a tensor of several.
    fn part_of(&self, view: TensorView<'_>) -> Range<usize> {
        let length = view.byte_len() as usize / self.slice.1.max(1);
        self.slice.0 * length..(self.slice.0 + 1) * length
    }

    /// Bits of a code as it is stored.
    fn bits(&self, packing: Packing) -> u32 {
        match (self.element, packing) {
            // One byte a code: sign-extended.
            (_, Packing::Bytes) => 8,
            (CodeType::Integer { bits, .. }, _) => bits,
            (CodeType::Float(format), _) => format.bits(),
        }
    }

    fn kind(&self, packing: Option<Packing>) -> CodeKind {
        let bits = self.bits(packing.unwrap_or(Packing::Bytes));
        match (self.element, packing) {
            (CodeType::Float(format), _) => CodeKind::Float(format),
            (CodeType::Integer { signed: true, .. }, Some(packing)) if packing.is_offset() => {
                CodeKind::OffsetInteger { bits }
            }
            (CodeType::Integer { signed, .. }, _) => CodeKind::Integer { bits, signed },
        }
    }

    fn check_stated_shape(&self, view: TensorView<'_>) -> Result<(), ImportError> {
        let stated = scalars::integers(view)?;
        if stated == [self.rows as i64, self.columns as i64] {
            return Ok(());
        }
        let reason = format!("says {stated:?}; the layer is [{}, {}]", self.rows, self.columns);
        Err(ImportError::invalid(view.name(), reason))
    }

    /// The groups, where they are not runs of the tile's length, which need no list.
    fn read_groups(&self, catalog: &Catalog<'_>, name: &str) -> Result<Option<Arc<[u32]>>, ImportError> {
        let Some(view) = catalog.tensor(name) else { return Ok(None) };
        let stated = scalars::integers(view)?;
        let count = self.scale_shape().1;
        let groups = stated.iter().map(|group| u32::try_from(*group).ok().filter(|group| (*group as usize) < count));
        let groups = groups.collect::<Option<Arc<[u32]>>>().filter(|groups| groups.len() == self.columns);
        let Some(groups) = groups else {
            let reason = format!("is not a list of {} groups below {count}", self.columns);
            return Err(ImportError::invalid(view.name(), reason));
        };
        let runs = groups.iter().enumerate().all(|(column, group)| column / self.tile.1.max(1) == *group as usize);
        Ok(Some(groups).filter(|_| !runs))
    }
}

/// The kind of codes of a format.
fn code_type(format: DType) -> Option<CodeType> {
    match format {
        DType::Int(int) => Some(integer(int)),
        DType::MiniFloat(float) => Some(CodeType::Float(float)),
        _ => None,
    }
}

fn integer(format: kvant_numeric::format::Int) -> CodeType {
    CodeType::Integer { bits: format.bits(), signed: format.is_signed() }
}

/// The tensors found so far.
#[derive(Default)]
struct Pieces<'a> {
    codes: Option<StoredCodes<'a>>,
    packing: Option<Packing>,
    scales: Option<StoredScales<'a>>,
    zero_points: Option<ZeroPoints<'a>>,
    factor: Factor,
    places: Vec<(TensorView<'a>, Range<usize>)>,
}

/// Shapes agree but for axes of length 1, which tools add and drop. With as many axes they are in other places: transposed.
fn check_shape(part: &Part, view: TensorView<'_>) -> Result<(), ImportError> {
    let long = |shape: &[usize]| shape.iter().copied().filter(|length| *length != 1).collect::<Vec<_>>();
    let (expected, found) = (&part.shape[..], view.shape());
    let fits = if expected.len() == found.len() { expected == found } else { long(expected) == long(found) };
    if fits {
        return Ok(());
    }
    let reason = format!("shape {:?} does not fit the layer: {:?} was expected", view.shape(), part.shape);
    Err(ImportError::invalid(view.name(), reason))
}

/// Types agree but for the sign of integers, which packing leaves open.
fn check_dtype(part: &Part, view: TensorView<'_>) -> Result<(), ImportError> {
    let plain = |dtype: Dtype| match dtype {
        Dtype::I8 => Dtype::U8,
        Dtype::I32 => Dtype::U32,
        other => other,
    };
    if plain(part.dtype) == plain(view.dtype()) {
        return Ok(());
    }
    let reason = format!("is {}; the layer's codes are {}", view.dtype(), part.dtype);
    Err(ImportError::invalid(view.name(), reason))
}

/// The encoding of a tensor of scales, where tools differ.
pub(crate) fn found_encoding(expected: ScaleEncoding, view: TensorView<'_>) -> Result<ScaleEncoding, ImportError> {
    let plain = matches!(expected, ScaleEncoding::F32 | ScaleEncoding::F16 | ScaleEncoding::Bf16);
    let found = ScaleEncoding::of_float(view.dtype()).filter(|_| plain);
    match (found, view.dtype()) {
        (Some(found), _) => Ok(found),
        (None, Dtype::F8_E8M0) if expected == ScaleEncoding::E8m0 => Ok(expected),
        (None, dtype) if dtype == expected.dtype() => Ok(expected),
        (None, dtype) => {
            Err(ImportError::invalid(view.name(), format!("scales are {dtype}; {} was expected", expected.dtype())))
        }
    }
}
