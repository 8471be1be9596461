//! Layers of a quantized source that are excluded while others are quantized anew: their codes stay bit for bit, or the plan is
//! refused.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

use crate::blockwise::quantized_by_blocks;
use crate::common::{llama, llama_config, plan, quantize, scheme, write};
use crate::conversions::sources::shuffle_groups;
use kvant_checkpoint::recipe::Settings;
use kvant_container::{Checkpoint, Diagnostic, Dtype};
use kvant_formats::import;
use kvant_formats::verify::{Options, verify};
use kvant_weights::weight::Stored;
use std::path::Path;

const DOWN: &str = "model.layers.0.mlp.down_proj";

fn requantized(text: &str, format: &str) -> Settings {
    let exclude = vec!["*.down_proj".to_owned()];
    Settings { requantize: Some(true), exclude, format: Some(format.parse().unwrap()), ..scheme(text) }
}

/// The values of a layer, and whether they are codes.
fn values(model: &Path, layer: &str) -> (Vec<u32>, bool) {
    let checkpoint = Checkpoint::open(model).unwrap();
    let tensors = import::open(&checkpoint).unwrap().into_tensors();
    let tensor = tensors.iter().find(|tensor| tensor.meta.name == format!("{layer}.weight")).unwrap();
    let Stored::Packed(matrices) = &tensor.stored else { return (Vec::new(), false) };
    let band = kvant_weights::weight::Band { rows: 0..matrices[0].rows(), columns: 0..matrices[0].columns() };
    let mut values = Vec::new();
    matrices[0].read(kvant_numeric::simd::Isa::best(), &band, &mut values);
    (values.iter().map(|value| value.to_bits()).collect(), true)
}

#[test]
fn excluded_layers_keep_their_codes_where_the_format_allows() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    write(&path("base"), &llama_config(), &llama(Dtype::BF16));
    for (source, format) in [("FP8_DYNAMIC", "compressed-tensors"), ("int8:channel", "quark"), ("FP8_DYNAMIC", "quark")]
    {
        let (made, target) = (path(&format!("{source}{format}")), path(&format!("out{source}{format}")));
        quantize(&path("base"), &made, &scheme(source), 1).unwrap();
        let settings = requantized("int4:g32", format);
        let planned = plan(&made, &settings).unwrap();
        assert!(
            planned.notices().iter().any(|notice| notice.contains(DOWN) && notice.contains("codes")),
            "{:?}",
            planned.notices()
        );
        quantize(&made, &target, &settings, 2).unwrap();
        let (kept, is_coded) = values(&target, DOWN);
        assert!(is_coded && kept == values(&made, DOWN).0, "{source} {format}");
        let up = "model.layers.0.mlp.up_proj";
        assert_ne!(values(&target, up), values(&made, up));
        let report = verify(&target, &Options::default()).unwrap();
        assert!(report.passes(), "{:?}", report.findings);
        if source == "FP8_DYNAMIC" {
            // fp8 counts as floats, but not what stays as it is.
            let plain = path(&format!("plain{format}"));
            quantize(&made, &plain, &Settings { requantize: None, ..settings }, 2).unwrap();
            let file = |model: &Path| std::fs::read(model.join("model.safetensors")).unwrap();
            assert!(file(&plain) == file(&target), "{format}");
        }
    }
}

#[test]
fn single_scheme_formats_refuse_excluded_quantized_layers() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    write(&path("base"), &llama_config(), &llama(Dtype::BF16));
    quantize(&path("base"), &path("fp8"), &scheme("FP8_DYNAMIC"), 1).unwrap();
    let refused = plan(&path("fp8"), &requantized("uint4:g32:zp", "awq")).unwrap_err();
    let message = refused.to_string();
    assert!(message.contains(DOWN) && message.contains("‹format› awq"), "{message}");
    let hint = refused.hint().unwrap();
    // compressed-tensors has no unsigned integers.
    assert!(hint.contains("‹override›") && hint.contains("‹format› quark,"), "{hint}");
    plan(&path("fp8"), &requantized("uint4:g32:zp", "quark")).unwrap();
    let plain = Settings { requantize: None, ..requantized("uint4:g32:zp", "awq") };
    assert_eq!(plan(&path("fp8"), &plain).unwrap_err().to_string(), message);
    // Floats on the grid of codes are floats.
    plan(&path("fp8"), &requantized("int4:g32", "fake")).unwrap();
}

/// config.json says of all layers together whether groups are listed.
#[test]
fn kept_codes_in_activation_order_give_all_layers_a_list_of_groups() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    write(&path("base"), &llama_config(), &llama(Dtype::BF16));
    let gptq = Settings { format: Some("gptq".parse().unwrap()), ..scheme("int4:g32") };
    quantize(&path("base"), &path("gptq"), &gptq, 1).unwrap();
    shuffle_groups(&path("gptq"));
    let planned = plan(&path("gptq"), &requantized("int4:g32", "compressed-tensors")).unwrap();
    let names: Vec<&str> = planned.layout().declarations().iter().map(|tensor| tensor.name.as_str()).collect();
    let ending = |end: &str| names.iter().filter(|name| name.ends_with(end)).count();
    assert!(names.contains(&format!("{DOWN}.weight_g_idx").as_str()), "{names:?}");
    assert_eq!(ending(".weight_g_idx"), ending(".weight_packed"), "{names:?}");
}

#[test]
fn no_format_is_advised_where_none_keeps_the_codes() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    write(&path("base"), &llama_config(), &llama(Dtype::BF16));
    quantized_by_blocks(&path("base"), &path("fp8"), &scheme("fp8").with_algorithms(&["gptq".to_owned()]).unwrap());
    for format in ["quark", "compressed-tensors"] {
        let refused = plan(&path("fp8"), &requantized("int4:g32", format)).unwrap_err();
        let (message, hint) = (refused.to_string(), refused.hint().unwrap());
        assert!(message.contains("static scales"), "{message}");
        assert!(hint.contains("‹override›") && !hint.contains("‹format›"), "{hint}");
    }
}
