//! The scheme that is nearest to a stored one among those that a target holds: what values are quantized to where the codes
//! cannot be taken over.

use super::forms;
use crate::format::OutputFormat;
use kvant_quant::scheme::{FloatScale, FloatScheme, IntScheme, LayerScheme, ScaleType, TensorScheme};

/// The candidates after the stored scheme itself: common schemes of all layouts.
const DEFAULTS: &[&str] = &[
    "int8:g128",
    "int8:g32",
    "int8:channel",
    "e4m3:b128x128",
    "e4m3:channel",
    "e4m3:tensor",
    "uint4:g128:zp",
    "uint4:g64:zp",
    "uint4:g32:zp",
    "int4:g128",
    "int4:g64",
    "int4:g32",
    "int4:channel",
    "e2m1:g16:e4m3:f32",
    "e2m1:g32:e8m0",
];

/// The nearest scheme that `holds`: the stored one with scales of the target's type, else the usual one whose width is
/// nearest, more bits before fewer. Products with quantized inputs want weights of the same format, where there is a usual one.
pub fn nearest(format: OutputFormat, stored: LayerScheme, holds: impl Fn(LayerScheme) -> bool) -> Option<LayerScheme> {
    let with = |weight: TensorScheme| format.fitted(LayerScheme { weight, ..stored });
    let own = forms(in_model_type(stored.weight)).into_iter().map(with);
    let bits = |scheme: &TensorScheme| i64::from(scheme.format().bits());
    let wanted = bits(&stored.weight);
    let mut usual: Vec<TensorScheme> = DEFAULTS.iter().filter_map(|text| text.parse().ok()).collect();
    let is_other = |scheme: &TensorScheme| stored.input.is_some() && scheme.format() != stored.weight.format();
    usual.sort_by_key(|scheme| ((bits(scheme) - wanted).abs(), bits(scheme) < wanted, is_other(scheme)));
    own.chain(usual.into_iter().map(with)).find(|scheme| holds(*scheme))
}

fn in_model_type(scheme: TensorScheme) -> TensorScheme {
    match scheme {
        TensorScheme::Int(int) => TensorScheme::Int(IntScheme { scale: ScaleType::Model, ..int }),
        TensorScheme::Float(float) if matches!(float.scale, FloatScale::Plain(_)) => {
            TensorScheme::Float(FloatScheme { scale: FloatScale::Plain(ScaleType::Model), ..float })
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(format: OutputFormat, stored: &str, holds: impl Fn(&str) -> bool) -> Option<String> {
        nearest(format, stored.parse().unwrap(), |scheme| holds(&scheme.to_string())).map(|scheme| scheme.to_string())
    }

    #[test]
    fn nearest_scheme_prefers_the_stored_one_then_the_width() {
        assert_eq!(found(OutputFormat::QUARK, "int4:g64:f16", |_| true).as_deref(), Some("int4:g64"));
        assert_eq!(found(OutputFormat::AWQ, "int4:g64:bf16", |_| true).as_deref(), Some("int4:g64:f16"));
        assert_eq!(
            found(OutputFormat::GPTQ, "int5:g128:f16", |s| s.starts_with("int8")).as_deref(),
            Some("int8:g128:f16")
        );
        assert_eq!(
            found(OutputFormat::AWQ, "int3:g128:f16", |s| s.starts_with("uint4")).as_deref(),
            Some("uint4:g128:f16:zp")
        );
        let blocks = |scheme: &str| scheme.starts_with("e4m3:b128x128");
        assert_eq!(found(OutputFormat::QUARK, "e4m3:b128x128", |s| !blocks(s)).as_deref(), Some("int8:g128"));
        let with_inputs = found(OutputFormat::QUARK, "e4m3:b128x128+e4m3:g128!dynamic", |s| !blocks(s));
        assert_eq!(with_inputs.as_deref(), Some("e4m3:channel+e4m3:g128!dynamic"));
        assert_eq!(found(OutputFormat::MXFP4, "e4m3:tensor", |_| false), None);
    }
}
