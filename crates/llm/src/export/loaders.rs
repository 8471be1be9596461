//! What loads an export of which scheme. Rows for amd-quark and transformers are what the interop tests found; those for
//! vLLM and SGLang follow their sources as of autumn 2026 and are not run here.

use super::Export;
use kvant_numeric::Format;
use kvant_numeric::format::{Int, MiniFloat};
use kvant_quant::scheme::{
    ActivationScheme, Axis, FloatScale, Granularity, IntScheme, LayerScheme, TensorScheme, ZeroPoint,
};

/// A loader of an export, and which layers it takes: by scheme, and by whether they are experts.
struct LoaderRow {
    export: Export,
    name: &'static str,
    takes: fn(LayerScheme, bool) -> bool,
}

const LOADERS: &[LoaderRow] = &[
    LoaderRow { export: Export::Quark, name: "amd-quark", takes: |scheme, _| quark_import(scheme) },
    LoaderRow { export: Export::Quark, name: "transformers with amd-quark", takes: quark_in_transformers },
    LoaderRow { export: Export::Quark, name: "vLLM", takes: |scheme, _| quark_in_vllm(scheme) },
    LoaderRow { export: Export::Quark, name: "SGLang", takes: |scheme, _| quark_in_sglang(scheme) },
    LoaderRow {
        export: Export::CompressedTensors,
        name: "transformers with compressed-tensors",
        takes: compressed_tensors_in_transformers,
    },
    LoaderRow {
        export: Export::CompressedTensors,
        name: "vLLM",
        takes: |scheme, _| compressed_tensors_in_vllm(scheme),
    },
    LoaderRow {
        export: Export::CompressedTensors,
        name: "SGLang",
        takes: |scheme, _| compressed_tensors_in_vllm(scheme),
    },
    LoaderRow { export: Export::Fake, name: "whatever loads the source", takes: |_, _| true },
];

/// The loaders that take all of a model's layers, given as schemes and whether they are experts.
pub(crate) fn loaders(export: Export, layers: impl Iterator<Item = (LayerScheme, bool)> + Clone) -> Vec<&'static str> {
    let rows = LOADERS.iter().filter(|row| row.export == export);
    rows.filter(|row| layers.clone().all(|(scheme, expert)| (row.takes)(scheme, expert))).map(|row| row.name).collect()
}

/// Its import raises on packed 3-bit integers and knows no e5m3 scales under one of the tensor.
fn quark_import(scheme: LayerScheme) -> bool {
    match scheme.weight {
        TensorScheme::Int(int) => int.format != Int::INT3,
        TensorScheme::Float(float) => float.scale != FloatScale::E5m3OfTensor,
        _ => true,
    }
}

/// Without a word it leaves scales of second stages, and experts, at random values.
fn quark_in_transformers(scheme: LayerScheme, expert: bool) -> bool {
    let two_stages = match scheme.weight {
        TensorScheme::Float(float) => float.scale.has_tensor_scale(),
        TensorScheme::Progressive { .. } => true,
        _ => false,
    };
    !expert && !two_stages
}

fn quark_in_vllm(scheme: LayerScheme) -> bool {
    match scheme.weight {
        TensorScheme::Int(int) if is_four_bits(int) => scheme.input.is_none() && is_grouped(int.granularity),
        TensorScheme::Int(int) => {
            int.format == Int::INT8 && int.zero_point == ZeroPoint::Zero && has_int8_input(scheme)
        }
        TensorScheme::Float(float) => match float.scale {
            FloatScale::Plain(_) => float.format == MiniFloat::E4M3 && scheme.input.is_some(),
            FloatScale::E8m0(_) => float.format.bits() < 8,
            FloatScale::E4m3OfTensor => scheme.input.is_some(),
            FloatScale::E5m3 | FloatScale::E5m3OfTensor => false,
        },
        TensorScheme::Progressive { .. } | TensorScheme::Block(_) | TensorScheme::Cast(_) => false,
    }
}

fn quark_in_sglang(scheme: LayerScheme) -> bool {
    match (scheme.weight, scheme.input) {
        (TensorScheme::Int(int), Some(_)) => int.format == Int::INT8 && has_int8_input(scheme),
        (TensorScheme::Float(float), Some(_)) => match float.scale {
            FloatScale::Plain(_) => float.format == MiniFloat::E4M3,
            FloatScale::E8m0(_) => float.format == MiniFloat::E2M1,
            _ => false,
        },
        _ => false,
    }
}

fn is_four_bits(int: IntScheme) -> bool {
    matches!(int.format, Int::INT4 | Int::UINT4)
}

fn is_grouped(granularity: Granularity) -> bool {
    matches!(granularity, Granularity::Group { axis: Axis::Columns, .. })
}

fn has_int8_input(scheme: LayerScheme) -> bool {
    let is_int8 = |input: ActivationScheme| input.scheme.format() == Format::Int(Int::INT8);
    scheme.input.is_some_and(is_int8)
}

/// It merges experts while it decompresses them: some forms raise there, and NVFP4 loses its scale of the tensor unsaid.
fn compressed_tensors_in_transformers(scheme: LayerScheme, expert: bool) -> bool {
    match scheme.weight {
        TensorScheme::Int(int) if expert => int.zero_point == ZeroPoint::Zero && scheme.input.is_none(),
        TensorScheme::Float(float) if expert => match float.scale {
            FloatScale::Plain(_) => float.granularity == Granularity::Channel(Axis::Rows),
            FloatScale::E8m0(_) => float.format == MiniFloat::E2M1,
            _ => false,
        },
        _ => true,
    }
}

/// Integers of 2, 3, 5, 6 and 7 bits only as weights.
fn compressed_tensors_in_vllm(scheme: LayerScheme) -> bool {
    match scheme.weight {
        TensorScheme::Int(int) => matches!(int.format.bits(), 4 | 8) || scheme.input.is_none(),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(export: Export, text: &str, expert: bool) -> Vec<&'static str> {
        loaders(export, [(text.parse().unwrap(), expert)].into_iter())
    }

    #[test]
    fn every_preset_loads_somewhere_but_the_one_that_nobody_reads() {
        for preset in kvant_quant::scheme::PRESETS {
            let scheme = preset.scheme().unwrap();
            let export = match preset.dialect {
                kvant_quant::scheme::Dialect::Quark => Export::Quark,
                kvant_quant::scheme::Dialect::CompressedTensors => Export::CompressedTensors,
            };
            let nobody = preset.name.starts_with("amdfp4_global");
            assert_eq!(loaders(export, [(scheme, false)].into_iter()).is_empty(), nobody, "{}", preset.name);
        }
    }

    #[test]
    fn loaders_that_would_be_silently_wrong_are_not_named() {
        assert!(!found(Export::Quark, "e2m1:g16:e4m3:f32", false).contains(&"transformers with amd-quark"));
        assert!(!found(Export::Quark, "int4:g128", true).contains(&"transformers with amd-quark"));
        assert!(found(Export::Quark, "int4:g128", false).contains(&"transformers with amd-quark"));
        assert_eq!(found(Export::CompressedTensors, "e2m1:g16:e4m3:f32", true), ["vLLM", "SGLang"]);
        assert!(!found(Export::Quark, "int3:channel", false).contains(&"amd-quark"));
    }
}
