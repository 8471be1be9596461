//! The scheme of one tensor: format, granularity, scale, zero point, observer. A small value with one spelling. Not what
//! a layer does with its inputs: see [`LayerScheme`](super::LayerScheme).

use super::{Axis, FloatScale, Granularity, ScaleType, SchemeError, ZeroPoint};
use crate::observer::{ObservedTensor, ObserverRef, SharedBy};
use kvant_numeric::format::{Int, MicroExponent, MiniFloat, ScaleRule};
use kvant_numeric::ggml::{GgmlType, GroupedType};
use kvant_numeric::{ComputeDType, DType};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Affine quantization to integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IntScheme {
    /// The integers.
    pub format: Int,
    /// Which elements share a scale.
    pub granularity: Granularity,
    /// The type of scales.
    pub scale: ScaleType,
    /// The code of zero.
    pub zero_point: ZeroPoint,
    /// The range statistic.
    pub observer: ObserverRef,
}

/// Scaled floats of at most eight bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FloatScheme {
    /// The floats.
    pub format: MiniFloat,
    /// Which elements share a scale.
    pub granularity: Granularity,
    /// The encoding of scales.
    pub scale: FloatScale,
    /// The range statistic.
    pub observer: ObserverRef,
}

/// Formats whose shared exponents are part of the element format; exported only as floats on their grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BlockFormat {
    /// MX6 or MX9.
    MicroExponent(MicroExponent),
    /// BFP16.
    Bfp16,
    /// OCP MXINT8.
    MxInt8(ScaleRule),
}

/// A cast to a 16-bit float.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cast {
    /// IEEE binary16.
    F16,
    /// bfloat16.
    Bf16,
}

impl Cast {
    /// The precision of the type.
    pub fn arithmetic(self) -> ComputeDType {
        match self {
            Cast::F16 => ComputeDType::F16,
            Cast::Bf16 => ComputeDType::Bf16,
        }
    }
}

/// How one tensor is quantized.
///
/// Spelling: `format[:granularity][:scale][:zero point][:observer]`, for example `int4:g128`, `uint4:g32:f16:zp`,
/// `e4m3:channel`, `e4m3:b128x128:f32`, `e2m1:g32:e8m0` (MXFP4), `e2m1:g16:e4m3:f32` (NVFP4), `int8:tensor:mse`, `mx9`,
/// `bf16`, `gguf-q4_k`, and `int4:channel:f32/e4m3:tensor:f32` (int4 codes of fp8 codes). Groups run along the input channels unless
/// `@0` follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TensorScheme {
    /// Integers.
    Int(IntScheme),
    /// Small floats.
    Float(FloatScheme),
    /// Per-tensor fp8 first, then its codes' values to integers: the second scheme's scales multiply the first's.
    Progressive {
        /// The scheme of the first stage, per tensor.
        first: FloatScheme,
        /// The scheme of the second stage.
        second: IntScheme,
    },
    /// Shared-exponent formats.
    Block(BlockFormat),
    /// 16-bit floats.
    Cast(Cast),
    /// The blocks of a tensor type of GGUF.
    Gguf(GroupedType),
}

/// The prefix of tensor types of GGUF in spellings: some have the names of ftypes, which are mixes of several.
const GGUF: &str = "gguf-";

/// The remark about schemes that no loader supports, used in lists, plans, errors and summaries.
pub const EVALUATION_ONLY: &str = "for evaluation only: no loader supports it";

/// Whether no loader supports weights of these elements with any scales: MX6, MX9, BFP16, MXINT8 and integers of more than
/// 8 bits. [`EVALUATION_ONLY`] says so.
pub fn is_for_evaluation_only(format: DType) -> bool {
    match format {
        DType::MicroExponent(_) | DType::Bfp16 | DType::MxInt8 => true,
        DType::Int(int) => int.bits() > 8,
        _ => false,
    }
}

impl TensorScheme {
    /// Returns whether no loader supports such weights: besides those of [`is_for_evaluation_only`], MX blocks of e5m2.
    pub fn is_for_evaluation_only(self) -> bool {
        let is_e5m2_block =
            |float: FloatScheme| float.format == MiniFloat::E5M2 && matches!(float.scale, FloatScale::E8m0(_));
        is_for_evaluation_only(self.format()) || matches!(self, TensorScheme::Float(float) if is_e5m2_block(float))
    }

    /// Whether a whole weight of fewer than 8 bits shares one scale, which costs much accuracy, and the spelling that gives each
    /// group of input channels its own.
    pub fn finer_spelling(self) -> Option<String> {
        let format = self.format();
        match self {
            TensorScheme::Int(int) if format.bits() < 8 && int.granularity == Granularity::Tensor => {
                let zero_point = match int.zero_point {
                    ZeroPoint::Zero => "",
                    ZeroPoint::Integer => ":zp",
                    ZeroPoint::Float => ":fzp",
                };
                Some(format!("{format}:g128{zero_point}"))
            }
            TensorScheme::Float(float) if format.bits() < 8 && float.granularity == Granularity::Tensor => {
                Some(format!("{format}:g32:e8m0"))
            }
            _ => None,
        }
    }

    /// The format of the stored elements.
    pub fn format(self) -> DType {
        match self {
            TensorScheme::Int(scheme) | TensorScheme::Progressive { second: scheme, .. } => DType::Int(scheme.format),
            TensorScheme::Float(scheme) => DType::MiniFloat(scheme.format),
            TensorScheme::Block(BlockFormat::MicroExponent(format)) => DType::MicroExponent(format),
            TensorScheme::Block(BlockFormat::Bfp16) => DType::Bfp16,
            TensorScheme::Block(BlockFormat::MxInt8(_)) => DType::MxInt8,
            TensorScheme::Cast(Cast::F16) => DType::F16,
            TensorScheme::Cast(Cast::Bf16) => DType::Bf16,
            TensorScheme::Gguf(blocks) => blocks.codes(),
        }
    }

    /// Which elements share a scale; casts have none.
    pub fn granularity(self) -> Option<Granularity> {
        match self {
            TensorScheme::Int(scheme) | TensorScheme::Progressive { second: scheme, .. } => Some(scheme.granularity),
            TensorScheme::Float(scheme) => Some(scheme.granularity),
            TensorScheme::Block(BlockFormat::MicroExponent(_)) => Some(Granularity::group(MicroExponent::BLOCK as u32)),
            TensorScheme::Block(BlockFormat::Bfp16) => Some(Granularity::group(8)),
            TensorScheme::Block(BlockFormat::MxInt8(_)) => Some(Granularity::group(32)),
            TensorScheme::Cast(_) => None,
            TensorScheme::Gguf(blocks) => Some(Granularity::group(blocks.group as u32)),
        }
    }

    /// The range statistic; min-max where there is no choice.
    pub fn observer(self) -> ObserverRef {
        match self {
            TensorScheme::Int(scheme) => scheme.observer,
            TensorScheme::Float(scheme) => scheme.observer,
            _ => ObserverRef::MIN_MAX,
        }
    }

    /// The same with another range statistic, where it has one and none was chosen.
    pub fn with_observer(self, observer: ObserverRef) -> TensorScheme {
        match self {
            TensorScheme::Int(scheme) if scheme.observer == ObserverRef::MIN_MAX => {
                TensorScheme::Int(IntScheme { observer, ..scheme })
            }
            TensorScheme::Float(scheme) if scheme.observer == ObserverRef::MIN_MAX => {
                TensorScheme::Float(FloatScheme { observer, ..scheme })
            }
            _ => self,
        }
    }

    /// The reason that the observer does not support such a weight or such activations.
    pub(crate) fn observer_refusal(self, is_weight: bool) -> Option<&'static str> {
        let has_power_of_two_scales = matches!(self, TensorScheme::Int(int) if int.scale == ScaleType::PowerOfTwo);
        let shared_by = match self.granularity() {
            Some(Granularity::Tensor) | None => SharedBy::Tensor,
            Some(Granularity::Channel(_)) => SharedBy::Channel,
            Some(Granularity::Group { .. } | Granularity::Block { .. }) => SharedBy::Group,
        };
        let dtype = self.format();
        self.observer().refusal(&ObservedTensor { is_weight, dtype, has_power_of_two_scales, shared_by })
    }

    /// Whether something of the whole tensor (its range) must be known before its first element can be quantized.
    pub fn needs_tensor_range(self) -> bool {
        match self {
            TensorScheme::Int(scheme) => scheme.granularity == Granularity::Tensor,
            TensorScheme::Float(scheme) => scheme.granularity == Granularity::Tensor || scheme.scale.has_global_scale(),
            TensorScheme::Progressive { .. } => true,
            TensorScheme::Block(_) | TensorScheme::Cast(_) | TensorScheme::Gguf(_) => false,
        }
    }

    /// Checks whether a `rows x columns` weight can be quantized with this scheme.
    ///
    /// # Errors
    /// [`SchemeError::GroupDoesNotDivide`].
    pub fn check_shape(self, rows: usize, columns: usize) -> Result<(), SchemeError> {
        match self {
            // Blocks at the end of a row may be short.
            TensorScheme::Block(_) | TensorScheme::Cast(_) => Ok(()),
            TensorScheme::Gguf(blocks) => {
                let block = Granularity::group(blocks.kind.block_elements() as u32);
                block.scale_shape(rows, columns).map(|_| ())
            }
            _ => self.granularity().map_or(Ok(()), |g| g.scale_shape(rows, columns).map(|_| ())),
        }
    }
}

impl fmt::Display for TensorScheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TensorScheme::Int(scheme) => scheme.fmt(f),
            TensorScheme::Float(scheme) => scheme.fmt(f),
            TensorScheme::Progressive { first, second } => write!(f, "{second}/{first}"),
            TensorScheme::Block(BlockFormat::MxInt8(rule)) if *rule != ScaleRule::Even => {
                write!(f, "{}:{}", self.format(), rule.name())
            }
            TensorScheme::Block(_) | TensorScheme::Cast(_) => write!(f, "{}", self.format()),
            TensorScheme::Gguf(blocks) => write!(f, "{GGUF}{}", blocks.kind.name().to_ascii_lowercase()),
        }
    }
}

impl fmt::Display for IntScheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", DType::Int(self.format), self.granularity)?;
        if self.scale != ScaleType::Model {
            write!(f, ":{}", self.scale)?;
        }
        f.write_str(match self.zero_point {
            ZeroPoint::Zero => "",
            ZeroPoint::Integer => ":zp",
            ZeroPoint::Float => ":fzp",
        })?;
        write_observer(f, self.observer)
    }
}

impl fmt::Display for FloatScheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", DType::MiniFloat(self.format), self.granularity)?;
        if self.scale != FloatScale::Plain(ScaleType::Model) {
            write!(f, ":{}", self.scale)?;
        }
        write_observer(f, self.observer)
    }
}

fn write_observer(f: &mut fmt::Formatter<'_>, observer: ObserverRef) -> fmt::Result {
    if observer == ObserverRef::MIN_MAX { Ok(()) } else { write!(f, ":{observer}") }
}

/// The parts of a spelling, before they are known to go together.
#[derive(Default)]
struct Parts {
    granularity: Option<Granularity>,
    scale: Option<ScaleType>,
    rule: Option<ScaleRule>,
    block_scale: Option<MiniFloat>,
    zero_point: Option<ZeroPoint>,
    observer: Option<ObserverRef>,
}

impl Parts {
    fn read(parts: &mut std::str::Split<'_, char>, whole: &str) -> Result<Parts, SchemeError> {
        let mut read = Parts::default();
        for part in parts {
            if !read.accept(part) {
                return Err(SchemeError::Spelling { text: whole.to_owned(), part: part.to_owned() });
            }
        }
        Ok(read)
    }

    /// Takes one part into the place it belongs to; false where it is unknown or the place is taken.
    fn accept(&mut self, part: &str) -> bool {
        match part {
            "e4m3" => return put(&mut self.block_scale, MiniFloat::E4M3),
            "e5m3" => return put(&mut self.block_scale, MiniFloat::E5M3),
            "zp" => return put(&mut self.zero_point, ZeroPoint::Integer),
            "fzp" => return put(&mut self.zero_point, ZeroPoint::Float),
            "e8m0" => return put(&mut self.rule, ScaleRule::Even),
            _ => {}
        }
        if let Some(granularity) = Granularity::parse(part) {
            return put(&mut self.granularity, granularity);
        }
        if let Some(scale) = ScaleType::parse(part) {
            return put(&mut self.scale, scale);
        }
        if let Ok(observer) = part.parse() {
            return put(&mut self.observer, observer);
        }
        let rule = part.strip_prefix("e8m0-").unwrap_or(part);
        let rule = ScaleRule::ALL.iter().find(|(name, _)| *name == rule);
        rule.is_some_and(|(_, rule)| put(&mut self.rule, *rule))
    }

    fn int_scheme(self, format: Int) -> Option<IntScheme> {
        if self.rule.is_some() || self.block_scale.is_some() {
            return None;
        }
        Some(IntScheme {
            format,
            granularity: self.granularity.unwrap_or(Granularity::Tensor),
            scale: self.scale.unwrap_or_default(),
            zero_point: self.zero_point.unwrap_or_default(),
            observer: self.observer.unwrap_or_default(),
        })
    }

    fn float_scheme(self, format: MiniFloat) -> Option<FloatScheme> {
        let scale = match (self.rule, self.block_scale, self.scale) {
            (None, None, scale) => FloatScale::Plain(scale.unwrap_or_default()),
            (Some(rule), None, None) => FloatScale::E8m0(rule),
            (None, Some(MiniFloat::E5M3), None) => FloatScale::E5m3,
            (None, Some(MiniFloat::E5M3), Some(ScaleType::F32)) => FloatScale::E5m3WithGlobal,
            (None, Some(MiniFloat::E4M3), Some(ScaleType::F32)) => FloatScale::E4m3WithGlobal,
            _ => return None,
        };
        let granularity = self.granularity.unwrap_or(Granularity::Tensor);
        let observer = self.observer.unwrap_or_default();
        let grouped = matches!(granularity, Granularity::Group { axis: Axis::Columns, .. });
        let legal = match scale {
            FloatScale::Plain(ScaleType::PowerOfTwo) => false,
            FloatScale::Plain(_) => true,
            _ => grouped && [ObserverRef::MIN_MAX, ObserverRef::SEARCH].contains(&observer),
        };
        (legal && self.zero_point.is_none()).then_some(FloatScheme { format, granularity, scale, observer })
    }

    fn is_empty(&self) -> bool {
        self.rule.is_none() && self.is_empty_but_for_rule()
    }

    fn is_empty_but_for_rule(&self) -> bool {
        self.granularity.is_none()
            && self.scale.is_none()
            && self.block_scale.is_none()
            && self.zero_point.is_none()
            && self.observer.is_none()
    }
}

fn put<T>(place: &mut Option<T>, value: T) -> bool {
    place.is_none() && place.replace(value).is_none()
}

impl FromStr for TensorScheme {
    type Err = SchemeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Some(kind) = text.strip_prefix(GGUF) {
            let blocks = kind.parse::<GgmlType>().ok().and_then(GroupedType::of);
            let unknown = || SchemeError::Spelling { text: text.to_owned(), part: kind.to_owned() };
            return blocks.map(TensorScheme::Gguf).ok_or_else(unknown);
        }
        if let Some((second, first)) = text.split_once('/') {
            return progressive(text, second, first);
        }
        let mut split = text.split(':');
        let format: DType = split.next().unwrap_or_default().parse()?;
        let parts = Parts::read(&mut split, text)?;
        let scheme = match format {
            DType::Int(format) => parts.int_scheme(format).map(TensorScheme::Int),
            // These are for scales.
            DType::MiniFloat(MiniFloat::E5M3) | DType::E8m0 => None,
            DType::MiniFloat(format) => parts.float_scheme(format).map(TensorScheme::Float),
            DType::MxInt8 => {
                let rule = parts.rule.unwrap_or_default();
                parts.is_empty_but_for_rule().then_some(TensorScheme::Block(BlockFormat::MxInt8(rule)))
            }
            DType::MicroExponent(f) => parts.is_empty().then_some(TensorScheme::Block(BlockFormat::MicroExponent(f))),
            DType::Bfp16 => parts.is_empty().then_some(TensorScheme::Block(BlockFormat::Bfp16)),
            DType::F16 => parts.is_empty().then_some(TensorScheme::Cast(Cast::F16)),
            DType::Bf16 => parts.is_empty().then_some(TensorScheme::Cast(Cast::Bf16)),
        };
        scheme.ok_or_else(|| SchemeError::Combination { text: text.to_owned() })
    }
}

fn progressive(text: &str, second: &str, first: &str) -> Result<TensorScheme, SchemeError> {
    match (first.parse()?, second.parse()?) {
        (TensorScheme::Float(first), TensorScheme::Int(second))
            if first.granularity == Granularity::Tensor && second.granularity != Granularity::Tensor =>
        {
            Ok(TensorScheme::Progressive { first, second })
        }
        _ => Err(SchemeError::Combination { text: text.to_owned() }),
    }
}

impl Serialize for TensorScheme {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for TensorScheme {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensor_scheme_spellings_round_trip() {
        for text in [
            "int4:g128",
            "uint4:g32:f16:zp",
            "uint4:g32:fzp",
            "int8:tensor",
            "int8:channel:pow2",
            "int8:tensor:mse",
            "int8:tensor:percentile99.9",
            "e4m3:tensor",
            "e4m3:channel:f32",
            "e4m3:b128x128:f32",
            "e2m1:g32:e8m0",
            "e2m1:g32:e8m0-floor",
            "e2m1:g16:e5m3",
            "e2m1:g16:e4m3:f32",
            "e2m1:g16:e5m3:f32",
            "mx6",
            "mx9",
            "bfp16",
            "mxint8",
            "mxint8:floor",
            "f16",
            "bf16",
            "int4:channel:f32/e4m3:tensor:f32",
            "int4:g-1",
            "int4:g32@0",
            "gguf-q4_k",
            "gguf-iq4_xs",
        ] {
            let scheme: TensorScheme = text.parse().unwrap_or_else(|e| panic!("{text}: {e}"));
            assert_eq!(scheme.to_string(), text);
            let json = serde_json::to_string(&scheme).unwrap();
            assert_eq!(serde_json::from_str::<TensorScheme>(&json).unwrap(), scheme);
        }
    }

    #[test]
    fn meaningless_tensor_schemes_are_refused() {
        for text in [
            "int4:e8m0",
            "e4m3:zp",
            "e2m1:tensor:e8m0",
            "mx6:g16",
            "bf16:tensor",
            "int4:g128:g64",
            "e5m3:tensor",
            "int4:g128/e4m3:channel",
            "int4:tensor/e4m3:tensor",
            "e4m3:pow2",
            "e2m1:g32:e8m0:mse",
            "e8m0",
            "int4:what",
            "gguf-f16",
            "gguf-q4_k:g32",
            "",
            ":",
        ] {
            assert!(text.parse::<TensorScheme>().is_err(), "{text}");
        }
    }

    #[test]
    fn groups_must_divide_but_tiles_need_not() {
        let check = |text: &str| text.parse::<TensorScheme>().unwrap().check_shape(100, 200);
        assert!(check("int4:g100").is_ok() && check("e4m3:b128x128").is_ok() && check("mx6").is_ok());
        assert!(matches!(check("int4:g128"), Err(SchemeError::GroupDoesNotDivide { length: 200, size: 128, .. })));
    }
}
