//! Number formats of one element, and the formats whose elements share an exponent that is part of the format. Not the
//! choice of scales and granularity: that is a scheme, in `kvant-quant`.

mod block_float;
mod encoder;
mod int;
mod microexponent;
mod minifloat;
mod shared_exponent;

pub use block_float::{BFP16_BLOCK, bfp16_exponent, fake_quantize_bfp16, fake_quantize_mxint8, mxint8_exponent};
pub(crate) use encoder::Encoder;
pub use int::Int;
pub use microexponent::MicroExponent;
pub use minifloat::MiniFloat;
pub(crate) use minifloat::pow2;
pub use shared_exponent::{BlockElement, ScaleRule, e8m0_decode, e8m0_encode, shared_scale};

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// The dtype of one element: its number format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    /// Two's-complement or unsigned integers of 2 to 32 bits.
    Int(Int),
    /// Floats of at most eight bits.
    MiniFloat(MiniFloat),
    /// A power of two in one byte: the scale format of OCP MX, for scales alone.
    E8m0,
    /// IEEE binary16: a cast, without a scale.
    F16,
    /// bfloat16: a cast, without a scale.
    Bf16,
    /// Microsoft's MX6 and MX9: 16 elements share an exponent, pairs a further bit.
    MicroExponent(MicroExponent),
    /// Eight elements of 8-bit mantissa share an exponent.
    Bfp16,
    /// OCP MXINT8: 32 elements of 8 bits (two's complement, six of them fraction) share an exponent.
    MxInt8,
}

/// A row of the table of dtypes.
pub struct DTypeRow {
    /// The spelling used in schemes, recipes and reports.
    pub name: &'static str,
    /// The dtype.
    pub dtype: DType,
    /// One line for `kvant list dtypes`.
    pub about: &'static str,
}

const fn row(name: &'static str, dtype: DType, about: &'static str) -> DTypeRow {
    DTypeRow { name, dtype, about }
}

/// Every dtype, one row each. To add a float of at most eight bits, add a constant in `minifloat.rs` and a row here.
pub const DTYPES: &[DTypeRow] = &[
    row("int2", DType::Int(Int::INT2), "integers -2..1"),
    row("int3", DType::Int(Int::INT3), "integers -4..3"),
    row("int4", DType::Int(Int::INT4), "integers -8..7"),
    row("int5", DType::Int(Int::INT5), "integers -16..15"),
    row("int6", DType::Int(Int::INT6), "integers -32..31"),
    row("int7", DType::Int(Int::INT7), "integers -64..63"),
    row("int8", DType::Int(Int::INT8), "integers -128..127"),
    row("int16", DType::Int(Int::INT16), "integers of 16 bits"),
    row("int32", DType::Int(Int::INT32), "integers of 32 bits"),
    row("uint2", DType::Int(Int::UINT2), "integers 0..3"),
    row("uint4", DType::Int(Int::UINT4), "integers 0..15"),
    row("uint8", DType::Int(Int::UINT8), "integers 0..255"),
    row("uint16", DType::Int(Int::UINT16), "integers 0..65535"),
    row("uint32", DType::Int(Int::UINT32), "integers 0..4294967295"),
    row("e2m1", DType::MiniFloat(MiniFloat::E2M1), "fp4 of OCP MX and NVFP4, to 6"),
    row("e2m3", DType::MiniFloat(MiniFloat::E2M3), "fp6 of OCP MX, to 7.5"),
    row("e3m2", DType::MiniFloat(MiniFloat::E3M2), "fp6 of OCP MX, to 28"),
    row("e4m3", DType::MiniFloat(MiniFloat::E4M3), "fp8 e4m3fn, to 448, no infinities"),
    row("e5m2", DType::MiniFloat(MiniFloat::E5M2), "fp8 e5m2, to 57344"),
    row("e5m3", DType::MiniFloat(MiniFloat::E5M3), "unsigned fp8 for scales, to 114688"),
    row("e8m0", DType::E8m0, "powers of two for scales, 2^-127 to 2^127"),
    row("f16", DType::F16, "IEEE binary16, a cast"),
    row("bf16", DType::Bf16, "bfloat16, a cast"),
    row("mx6", DType::MicroExponent(MicroExponent::MX6), "16 elements share an exponent, pairs a bit; 4-bit mantissas"),
    row("mx9", DType::MicroExponent(MicroExponent::MX9), "16 elements share an exponent, pairs a bit; 7-bit mantissas"),
    row("bfp16", DType::Bfp16, "8 elements share an exponent; 8-bit mantissas"),
    row("mxint8", DType::MxInt8, "OCP MXINT8: 32 elements share an exponent; 8-bit mantissas"),
];

/// Spellings of other tools that are accepted for a dtype.
const ALIASES: &[(&str, &str)] = &[
    ("fp4", "e2m1"),
    ("fp6_e2m3", "e2m3"),
    ("fp6_e3m2", "e3m2"),
    ("fp8", "e4m3"),
    ("fp8_e4m3", "e4m3"),
    ("fp8_e5m2", "e5m2"),
    ("fp8_e5m3", "e5m3"),
    ("float16", "f16"),
    ("fp16", "f16"),
    ("bfloat16", "bf16"),
];

impl DType {
    /// Bits that one element takes, without its share of scales.
    pub fn bits(self) -> u32 {
        match self {
            DType::Int(int) => int.bits(),
            DType::MiniFloat(float) => float.bits(),
            DType::F16 | DType::Bf16 => 16,
            DType::MicroExponent(format) => format.element_bits(),
            DType::E8m0 | DType::Bfp16 | DType::MxInt8 => 8,
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let row = DTYPES.iter().find(|row| row.dtype == *self);
        f.write_str(row.map_or("unnamed", |row| row.name))
    }
}

/// The name is not in the table.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("unknown dtype `{0}`")]
pub struct UnknownDType(pub String);

impl FromStr for DType {
    type Err = UnknownDType;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let name = ALIASES.iter().find(|(alias, _)| *alias == text).map_or(text, |(_, name)| name);
        let row = DTYPES.iter().find(|row| row.name == name);
        row.map(|row| row.dtype).ok_or_else(|| UnknownDType(text.to_owned()))
    }
}

impl Serialize for DType {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for DType {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dtype_names_round_trip() {
        for row in DTYPES {
            assert_eq!(row.dtype.to_string(), row.name);
            assert_eq!(row.name.parse::<DType>(), Ok(row.dtype));
        }
    }

    #[test]
    fn aliases_parse_to_known_dtypes() {
        for (alias, name) in ALIASES {
            assert_eq!(alias.parse::<DType>(), name.parse::<DType>());
        }
        assert!("fp5".parse::<DType>().is_err());
    }
}
