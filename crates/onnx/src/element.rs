//! The element types a tensor of a graph can be quantized to: one row each. No scales, no rounding.

use std::fmt;
use std::str::FromStr;

use kvant_container::onnx::DataType;
use kvant_numeric::DType;
use kvant_numeric::format::{Int, MiniFloat};
use kvant_quant::graph_grid::CodeRange;

use crate::UnknownWord;

/// The element type of a quantized tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the names are those of the types")]
pub enum Element {
    Int4,
    UInt4,
    Int8,
    UInt8,
    Int16,
    UInt16,
    Int32,
    UInt32,
    Float16,
    BFloat16,
    Float8E4M3,
    Float8E5M2,
    Block(Block),
}

/// Formats whose blocks of elements share an exponent. A graph holds them as floats behind a custom operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the names are those of the formats")]
pub enum Block {
    Bfp16,
    Mx4,
    Mx6,
    Mx9,
    MxFp4E2M1,
    MxFp6E2M3,
    MxFp6E3M2,
    MxFp8E4M3,
    MxFp8E5M2,
    MxInt8,
}

/// The spelling, storage and description of an element type.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    /// The element.
    pub element: Element,
    /// The name in recipes, options and reports.
    pub name: &'static str,
    /// The type of the stored codes; none where floats are stored.
    pub data_type: Option<DataType>,
}

const fn row(element: Element, name: &'static str, data_type: Option<DataType>) -> Row {
    Row { element, name, data_type }
}

/// Every element type.
pub const ELEMENTS: &[Row] = &[
    row(Element::Int4, "int4", Some(DataType::INT4)),
    row(Element::UInt4, "uint4", Some(DataType::UINT4)),
    row(Element::Int8, "int8", Some(DataType::INT8)),
    row(Element::UInt8, "uint8", Some(DataType::UINT8)),
    row(Element::Int16, "int16", Some(DataType::INT16)),
    row(Element::UInt16, "uint16", Some(DataType::UINT16)),
    row(Element::Int32, "int32", Some(DataType::INT32)),
    row(Element::UInt32, "uint32", Some(DataType::UINT32)),
    row(Element::Float16, "float16", Some(DataType::FLOAT16)),
    row(Element::BFloat16, "bfloat16", Some(DataType::BFLOAT16)),
    row(Element::Float8E4M3, "fp8_e4m3", Some(DataType::FLOAT8E4M3FN)),
    row(Element::Float8E5M2, "fp8_e5m2", Some(DataType::FLOAT8E5M2)),
    row(Element::Block(Block::Bfp16), "bfp16", None),
    row(Element::Block(Block::Mx4), "mx4", None),
    row(Element::Block(Block::Mx6), "mx6", None),
    row(Element::Block(Block::Mx9), "mx9", None),
    row(Element::Block(Block::MxFp4E2M1), "mxfp4_e2m1", None),
    row(Element::Block(Block::MxFp6E2M3), "mxfp6_e2m3", None),
    row(Element::Block(Block::MxFp6E3M2), "mxfp6_e3m2", None),
    row(Element::Block(Block::MxFp8E4M3), "mxfp8_e4m3", None),
    row(Element::Block(Block::MxFp8E5M2), "mxfp8_e5m2", None),
    row(Element::Block(Block::MxInt8), "mxint8", None),
];

impl Element {
    /// The row of the table.
    pub fn row(self) -> &'static Row {
        // Every element has a row: a test sees to it.
        ELEMENTS.iter().find(|row| row.element == self).unwrap_or(&ELEMENTS[0])
    }

    /// The type of the stored codes.
    pub fn data_type(self) -> Option<DataType> {
        self.row().data_type
    }

    /// The dtype of its codes; `None` for blocks, whose values have no codes under one scale.
    pub fn dtype(self) -> Option<DType> {
        use Element::*;
        Some(match self {
            Int4 => DType::Int(Int::INT4),
            UInt4 => DType::Int(Int::UINT4),
            Int8 => DType::Int(Int::INT8),
            UInt8 => DType::Int(Int::UINT8),
            Int16 => DType::Int(Int::INT16),
            UInt16 => DType::Int(Int::UINT16),
            Int32 => DType::Int(Int::INT32),
            UInt32 => DType::Int(Int::UINT32),
            Float16 => DType::F16,
            BFloat16 => DType::Bf16,
            Float8E4M3 => DType::MiniFloat(MiniFloat::E4M3),
            Float8E5M2 => DType::MiniFloat(MiniFloat::E5M2),
            Block(_) => return None,
        })
    }

    /// The integers of an integer type.
    pub fn int(self) -> Option<Int> {
        match self.dtype() {
            Some(DType::Int(int)) => Some(int),
            _ => None,
        }
    }

    /// Bits of an integer type; `None` for floats.
    pub fn integer_bits(self) -> Option<u32> {
        self.int().map(Int::bits)
    }

    /// Returns whether the codes are signed.
    pub fn is_signed(self) -> bool {
        self.int().is_none_or(Int::is_signed)
    }

    /// Returns whether values map to codes by a scale and a zero point.
    pub fn is_integer(self) -> bool {
        self.int().is_some()
    }

    /// Returns whether it is one of the two 8-bit floats.
    pub fn is_float8(self) -> bool {
        matches!(self.dtype(), Some(DType::MiniFloat(_)))
    }

    /// Returns whether the codes depend on the range of the values: those of integers and of 8-bit floats do.
    pub fn has_range(self) -> bool {
        self.is_integer() || self.is_float8()
    }

    /// All codes of an integer type.
    pub fn full_range(self) -> Option<CodeRange> {
        self.int().map(CodeRange::full)
    }

    /// The code range of a scale: the full range, without the lowest code if a signed type is symmetric.
    pub fn range(self, symmetric: bool) -> Option<CodeRange> {
        self.int().map(|int| CodeRange::of(int, symmetric))
    }

    /// Half of the codes, for processors whose 8-bit products overflow 16 bits.
    pub fn reduced_range(self) -> Option<CodeRange> {
        self.int().map(CodeRange::reduced)
    }
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.row().name)
    }
}

fn unknown(text: &str) -> UnknownWord {
    let names: Vec<&str> = ELEMENTS.iter().map(|row| row.name).collect();
    UnknownWord::new(text, format!("an element type of ONNX quantization; choose from {}", names.join(", ")))
}

impl FromStr for Element {
    type Err = UnknownWord;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wanted = text.trim().to_ascii_lowercase();
        let row = ELEMENTS.iter().find(|row| row.name == wanted);
        row.map(|row| row.element).ok_or_else(|| unknown(text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_is_listed_once_and_reads_back() {
        for row in ELEMENTS {
            assert_eq!(row.element.row().name, row.name);
            assert_eq!(row.name.parse::<Element>().unwrap(), row.element);
        }
        assert!("int7".parse::<Element>().is_err());
    }

    #[test]
    fn code_ranges_match_their_types() {
        let range = |min, max| Some(CodeRange { min, max });
        assert_eq!(Element::Int8.range(true), range(-127, 127));
        assert_eq!(Element::Int8.range(false), range(-128, 127));
        assert_eq!(Element::UInt16.range(true), range(0, 65535));
        assert_eq!(Element::UInt4.full_range(), range(0, 15));
        assert_eq!(Element::Int8.reduced_range(), range(-64, 64));
        assert_eq!(Element::UInt8.reduced_range(), range(0, 127));
        assert_eq!(Element::Int32.range(true), range(-i64::from(i32::MAX), i64::from(i32::MAX)));
        assert_eq!(Element::BFloat16.range(true), None);
    }
}
