//! The description of one tensor's quantization in compressed-tensors: its `QuantizationArgs`, which allow no other keys.

use kvant_numeric::format::MiniFloat;
use kvant_quant::scheme::{
    ActivationScheme, Axis, FloatScale, FloatScheme, Granularity, IntScheme, TensorScheme, Timing, ZeroPoint,
};
use kvant_weights::parts::CannotHold;
use serde::{Serialize, Serializer};

const USE_OTHERS: &str = "use ‹format› quark or fake, or another scheme (`kvant list schemes`)";
const E8M0: Option<&str> = Some("torch.uint8");
const E4M3: Option<&str> = Some("torch.float8_e4m3fn");

/// One tensor's description; keys that the library leaves out where they do not apply are left out.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Args {
    #[serde(skip_serializing_if = "Option::is_none")]
    actorder: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    block_structure: Option<[u32; 2]>,
    dynamic: Dynamic,
    group_size: Option<u32>,
    num_bits: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    observer: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    scale_dtype: Option<&'static str>,
    strategy: &'static str,
    symmetric: bool,
    #[serde(rename = "type")]
    kind: &'static str,
}

/// `false`, `true` or `"local"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dynamic {
    No,
    Yes,
    Local,
}

impl Serialize for Dynamic {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Dynamic::No => serializer.serialize_bool(false),
            Dynamic::Yes => serializer.serialize_bool(true),
            Dynamic::Local => serializer.serialize_str("local"),
        }
    }
}

/// The refusal of a tensor scheme.
pub(super) fn no_words(scheme: TensorScheme) -> CannotHold {
    CannotHold::new(format!("compressed-tensors has no `{scheme}`"), USE_OTHERS)
}

impl Args {
    /// The description of a weight.
    pub(super) fn of_weight(scheme: TensorScheme) -> Result<Args, CannotHold> {
        match scheme {
            TensorScheme::Int(int) => weight_int(int),
            TensorScheme::Float(float) => float_args(float).ok_or_else(|| no_words(scheme)),
            _ => Err(no_words(scheme)),
        }
    }

    /// The same with a list of the groups of input channels beside the weight.
    pub(super) fn act_order(self) -> Args {
        let grouped = self.strategy == "group";
        Args { actorder: grouped.then_some("group"), ..self }
    }

    /// The description of input activations.
    pub(super) fn of_input(input: ActivationScheme) -> Result<Args, CannotHold> {
        let refuse = || CannotHold::new(format!("compressed-tensors has no inputs `{input}`"), USE_OTHERS);
        let args = match input.scheme {
            TensorScheme::Int(int) => int_args(int),
            TensorScheme::Float(float) => float_args(float),
            _ => None,
        };
        args.and_then(|args| args.with_timing(input.timing)).ok_or_else(refuse)
    }

    /// The description of activations whose scales are found then.
    fn with_timing(self, timing: Timing) -> Option<Args> {
        let strategy = if self.strategy == "channel" { "token" } else { self.strategy };
        let dynamic = match (timing, strategy) {
            (Timing::Local, "tensor_group") => Dynamic::Local,
            (Timing::Static, "tensor") => Dynamic::No,
            (Timing::Dynamic, "tensor" | "token" | "group") => Dynamic::Yes,
            _ => return None,
        };
        let observer = (dynamic != Dynamic::Yes).then_some("static_minmax");
        Some(Args { strategy, dynamic, observer, ..self })
    }
}

fn weight_int(scheme: IntScheme) -> Result<Args, CannotHold> {
    if let (false, bits @ 2..=8) = (scheme.format.is_signed(), scheme.format.bits()) {
        // With a zero point unsigned codes are signed ones, moved.
        let reason = format!("compressed-tensors has no unsigned integers such as `{}`", TensorScheme::Int(scheme));
        return Err(CannotHold::new(reason, format!("use int{bits} with a zero point (`:zp`), which is the same")));
    }
    int_args(scheme).ok_or_else(|| no_words(TensorScheme::Int(scheme)))
}

fn int_args(scheme: IntScheme) -> Option<Args> {
    let held = scheme.format.is_signed() && scheme.format.bits() <= 8 && scheme.zero_point != ZeroPoint::Float;
    let args = Args {
        symmetric: scheme.zero_point == ZeroPoint::Zero,
        kind: "int",
        ..granularity_args(scheme.granularity, scheme.format.bits())?
    };
    (held && args.strategy != "block").then_some(args)
}

fn float_args(scheme: FloatScheme) -> Option<Args> {
    let args = granularity_args(scheme.granularity, scheme.format.bits())?;
    match (scheme.scale, scheme.format, args.group_size) {
        (FloatScale::Plain(_), MiniFloat::E4M3, _) => Some(args),
        (FloatScale::E8m0(_), MiniFloat::E2M1 | MiniFloat::E2M3 | MiniFloat::E4M3, Some(32)) => {
            Some(Args { scale_dtype: E8M0, ..args })
        }
        (FloatScale::E4m3WithGlobal, MiniFloat::E2M1, Some(16)) => {
            Some(Args { scale_dtype: E4M3, strategy: "tensor_group", ..args })
        }
        _ => None,
    }
}

/// A symmetric static float with this granularity; `None` for one that compressed-tensors lacks.
fn granularity_args(granularity: Granularity, num_bits: u32) -> Option<Args> {
    let (strategy, group_size, block_structure) = match granularity {
        Granularity::Tensor => ("tensor", None, None),
        // A group as long as the axis is a channel.
        Granularity::Channel(Axis::Rows) | Granularity::Group { axis: Axis::Columns, size: None } => {
            ("channel", None, None)
        }
        Granularity::Group { axis: Axis::Columns, size: Some(size) } => ("group", Some(size.get()), None),
        Granularity::Block { rows, columns } => ("block", None, Some([rows.get(), columns.get()])),
        Granularity::Channel(Axis::Columns) | Granularity::Group { axis: Axis::Rows, .. } => return None,
    };
    Some(Args {
        actorder: None,
        block_structure,
        dynamic: Dynamic::No,
        group_size,
        num_bits,
        observer: None,
        scale_dtype: None,
        strategy,
        symmetric: true,
        kind: "float",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsigned_weights_get_a_hint_for_signed_with_zero_point() {
        let error = Args::of_weight("uint4:g128:zp".parse().unwrap()).unwrap_err();
        assert!(error.hint.contains("int4 with a zero point"), "{}", error.hint);
        assert!(Args::of_weight("int4:g128:zp".parse().unwrap()).is_ok());
    }

    #[test]
    fn inexpressible_schemes_are_refused() {
        for text in [
            "int16:tensor",
            "int4:g32:fzp",
            "int4:g32@0",
            "int4:channel@1",
            "int8:b128x128",
            "e5m2:tensor",
            "e3m2:g32:e8m0",
            "e2m1:g16:e8m0",
            "e2m1:g16:e5m3",
            "e2m1:g32:e4m3:f32",
            "e2m1:g32",
            "mx6",
            "bfp16",
            "mxint8",
            "bf16",
            "int4:channel/e4m3:tensor",
        ] {
            assert!(Args::of_weight(text.parse().unwrap()).is_err(), "{text}");
        }
        for text in [
            "int8:channel!static",
            "int8:g32!static",
            "e2m1:g16:e4m3:f32!static",
            "int8:tensor!local",
            "uint8:tensor:zp!dynamic",
        ] {
            assert!(Args::of_input(text.parse().unwrap()).is_err(), "{text}");
        }
    }
}
