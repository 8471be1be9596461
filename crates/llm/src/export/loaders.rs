//! What loads an export of which scheme. Rows for amd-quark and transformers are what the interop tests found; those for
//! vLLM and SGLang follow their sources as of autumn 2026 and are not run here.

use super::Export;
use kvant_numeric::Format;
use kvant_numeric::format::{Int, MiniFloat};
use kvant_quant::scheme::{
    ActivationScheme, AttentionScheme, Axis, FloatScale, Granularity, IntScheme, LayerScheme, TensorScheme, Timing,
    ZeroPoint,
};

/// What of a model makes loaders stumble, whatever the scheme.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelTraits {
    /// The architecture has a description; of others it is not known which modules loaders take for linear layers.
    pub described: bool,
    /// There are vision towers or the like beside the language model.
    pub other_modalities: bool,
    /// There is a mixture of experts.
    pub experts: bool,
    /// Experts are one tensor in the source, and linear layers one by one in the output.
    pub fused_experts: bool,
    /// Some experts are kept.
    pub kept_experts: bool,
    /// All weights are stored as bf16 (or fp8).
    pub bf16: bool,
    /// How attention is quantized.
    pub attention: AttentionScheme,
}

/// A loader of an export, and which layers of which models it takes.
struct LoaderRow {
    export: Export,
    name: &'static str,
    takes: fn(LayerScheme, ModelTraits) -> bool,
}

const LOADERS: &[LoaderRow] = &[
    LoaderRow {
        export: Export::Quark,
        name: "amd-quark",
        takes: |scheme, model| quark_import(scheme) && !model.other_modalities,
    },
    LoaderRow { export: Export::Quark, name: "transformers with amd-quark", takes: quark_in_transformers },
    LoaderRow {
        export: Export::Quark,
        name: "vLLM",
        takes: |scheme, model| quark_in_vllm(scheme) && in_engines(scheme, model),
    },
    LoaderRow {
        export: Export::Quark,
        name: "SGLang",
        takes: |scheme, model| quark_in_sglang(scheme) && in_engines(scheme, model),
    },
    LoaderRow {
        export: Export::CompressedTensors,
        name: "transformers with compressed-tensors",
        takes: compressed_tensors_in_transformers,
    },
    LoaderRow { export: Export::CompressedTensors, name: "vLLM", takes: compressed_tensors_in_vllm },
    LoaderRow { export: Export::CompressedTensors, name: "SGLang", takes: compressed_tensors_in_vllm },
    LoaderRow { export: Export::Fake, name: "whatever loads the source", takes: |_, _| true },
    LoaderRow { export: Export::Gguf, name: "llama.cpp", takes: |_, _| true },
    LoaderRow { export: Export::Gguf, name: "Ollama", takes: |_, _| true },
    LoaderRow { export: Export::Gguf, name: "LM Studio", takes: |_, _| true },
];

/// The loaders of an export.
pub(super) fn of_export(export: Export) -> Vec<&'static str> {
    LOADERS.iter().filter(|row| row.export == export).map(|row| row.name).collect()
}

/// The loaders that are known to take all of a model's layers. Of architectures without a description nothing is known
/// but that plain floats load as before.
pub(crate) fn loaders(
    export: Export,
    model: ModelTraits,
    schemes: impl Iterator<Item = LayerScheme> + Clone,
) -> Vec<&'static str> {
    let rows = LOADERS.iter().filter(|row| row.export == export && (model.described || export == Export::Fake));
    rows.filter(|row| schemes.clone().all(|scheme| (row.takes)(scheme, model))).map(|row| row.name).collect()
}

/// Queries, keys, values and softmax in fp8 with one static scale, or as they are: what inference engines know.
fn has_fp8_attention(model: ModelTraits) -> bool {
    let AttentionScheme { key_value, query, probabilities, .. } = model.attention;
    let is_fp8 = |scheme: ActivationScheme| {
        let fp8 = scheme.scheme.format() == Format::MiniFloat(MiniFloat::E4M3);
        fp8 && scheme.timing == Timing::Static && scheme.scheme.granularity() == Some(Granularity::Tensor)
    };
    let mut schemes = [key_value.map(|cache| cache.scheme), query, probabilities].into_iter().flatten();
    schemes.all(is_fp8)
}

/// What inference engines find in both layouts: no quantized outputs but those that are cached.
fn in_engines(scheme: LayerScheme, model: ModelTraits) -> bool {
    scheme.output.is_none() && has_fp8_attention(model) && !model.fused_experts
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
fn quark_in_transformers(scheme: LayerScheme, model: ModelTraits) -> bool {
    let two_stages = match scheme.weight {
        TensorScheme::Float(float) => float.scale.has_tensor_scale(),
        TensorScheme::Progressive { .. } => true,
        _ => false,
    };
    // A softmax is quantized in one implementation of attention alone, which must be asked for.
    !model.experts && !model.other_modalities && !two_stages && model.attention.probabilities.is_none()
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

/// It merges experts while it decompresses them: some forms raise there, NVFP4 loses its scale of the tensor unsaid, and
/// experts that are kept, or were one tensor, are not found. fp4 and MX run in bf16 alone.
fn compressed_tensors_in_transformers(scheme: LayerScheme, model: ModelTraits) -> bool {
    if model.fused_experts || model.kept_experts {
        return false;
    }
    match scheme.weight {
        TensorScheme::Int(int) => !model.experts || (int.zero_point == ZeroPoint::Zero && scheme.input.is_none()),
        TensorScheme::Float(float) => match float.scale {
            FloatScale::Plain(_) => !model.experts || float.granularity == Granularity::Channel(Axis::Rows),
            FloatScale::E8m0(_) => model.bf16 && (!model.experts || float.format == MiniFloat::E2M1),
            _ => model.bf16 && !model.experts,
        },
        _ => true,
    }
}

/// Integers of 2, 3, 5, 6 and 7 bits only as weights. How it would name experts that were one tensor is not known.
fn compressed_tensors_in_vllm(scheme: LayerScheme, model: ModelTraits) -> bool {
    let known = match scheme.weight {
        TensorScheme::Int(int) => matches!(int.format.bits(), 4 | 8) || scheme.input.is_none(),
        _ => true,
    };
    known && in_engines(scheme, model)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvant_quant::scheme::{KvCacheScheme, MinScale, Rotary};

    const DENSE: ModelTraits = ModelTraits {
        described: true,
        other_modalities: false,
        experts: false,
        fused_experts: false,
        kept_experts: false,
        bf16: true,
        attention: AttentionScheme { rotary: Rotary::Before, key_value: None, query: None, probabilities: None },
    };
    const EXPERTS: ModelTraits = ModelTraits { experts: true, ..DENSE };

    fn found(export: Export, text: &str, model: ModelTraits) -> Vec<&'static str> {
        loaders(export, model, [text.parse().unwrap()].into_iter())
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
            assert_eq!(loaders(export, DENSE, [scheme].into_iter()).is_empty(), nobody, "{}", preset.name);
        }
    }

    #[test]
    fn engines_know_fp8_caches_and_no_quantized_outputs() {
        let cached = |text: &str| {
            let key_value = Some(KvCacheScheme { scheme: text.parse().unwrap(), min_scale: MinScale::default() });
            ModelTraits { attention: AttentionScheme { key_value, ..AttentionScheme::default() }, ..DENSE }
        };
        let fp8 = found(Export::Quark, "e4m3:tensor+e4m3:tensor!static", cached("e4m3:tensor!static"));
        assert_eq!(fp8, found(Export::Quark, "e4m3:tensor+e4m3:tensor!static", DENSE));
        let int8 = found(Export::Quark, "e4m3:tensor+e4m3:tensor!static", cached("int8:tensor!static"));
        assert_eq!(int8, ["amd-quark", "transformers with amd-quark"]);
        let output = found(Export::Quark, "e4m3:tensor+e4m3:tensor!static+e4m3:tensor!static", DENSE);
        assert_eq!(output, ["amd-quark", "transformers with amd-quark"]);
    }

    #[test]
    fn loaders_that_would_be_silently_wrong_are_not_named() {
        let quark = |text, model| found(Export::Quark, text, model);
        assert!(!quark("e2m1:g16:e4m3:f32", DENSE).contains(&"transformers with amd-quark"));
        assert!(!quark("int4:g128", EXPERTS).contains(&"transformers with amd-quark"));
        assert!(quark("int4:g128", DENSE).contains(&"transformers with amd-quark"));
        assert!(!quark("int3:channel", DENSE).contains(&"amd-quark"));
        assert!(quark("int4:g128", ModelTraits { described: false, ..DENSE }).is_empty());
        let packed = |text, model| found(Export::CompressedTensors, text, model);
        assert_eq!(packed("e2m1:g16:e4m3:f32", EXPERTS), ["vLLM", "SGLang"]);
        assert_eq!(packed("e2m1:g32:e8m0", ModelTraits { bf16: false, ..DENSE }), ["vLLM", "SGLang"]);
        assert_eq!(packed("int4:g128", ModelTraits { kept_experts: true, ..EXPERTS }), ["vLLM", "SGLang"]);
        let fused = ModelTraits { fused_experts: true, ..EXPERTS };
        assert!(packed("int4:g128", fused).is_empty());
        assert_eq!(quark("e2m1:g32:e8m0", fused), ["amd-quark"]);
        assert_eq!(found(Export::Fake, "mx9", ModelTraits { described: false, ..EXPERTS }).len(), 1);
    }
}
