//! Checkpoints in Quark's layout whose convolutions are codes of the weight's own shape.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

use crate::common::{Tensor, encoded, write};
use kvant_container::Dtype;
use kvant_formats::verify::{Loads, Options, Report, verify};
use serde_json::{Value, json};

/// Weights by channel in int8, as amd-quark describes them.
fn config() -> Value {
    let weight = json!({
        "ch_axis": 0, "dtype": "int8", "group_size": null, "is_dynamic": false, "observer_cls": "PerChannelMinMaxObserver",
        "qscheme": "per_channel", "round_method": "half_even", "scale_type": "float", "symmetric": true,
    });
    let layer = json!({ "bias": null, "input_tensors": null, "output_tensors": null, "weight": weight });
    json!({ "architectures": ["Network"], "quantization_config": {
        "algo_config": null, "exclude": [], "export": { "kv_cache_group": [], "pack_method": "reorder", "weight_format": "real_quantized" },
        "global_quant_config": layer, "kv_cache_quant_config": {}, "layer_quant_config": {}, "layer_type_quant_config": {},
        "quant_method": "quark", "quant_mode": "eager_mode", "softmax_quant_spec": null, "version": "0.13",
    } })
}

fn codes(name: &str, shape: &[usize]) -> Tensor {
    let count = shape.iter().product::<usize>();
    let values = (0..count).map(|index| (index * 37 % 251) as u8).collect();
    (format!("{name}.weight"), Dtype::I8, shape.to_vec(), values)
}

fn floats(name: &str, values: &[f32]) -> Tensor {
    (name.to_owned(), Dtype::F32, vec![values.len()], encoded(Dtype::F32, values))
}

/// A linear layer, a convolution and a transposed one, whose output channels are the second axis.
fn network(scales: &[f32]) -> Vec<Tensor> {
    let mut tensors = vec![codes("conv", &[8, 3, 3, 3]), codes("head", &[4, 8]), codes("up", &[8, 6, 2, 2])];
    tensors.push(floats("conv.bias", &[0.5; 8]));
    tensors.push(floats("conv.weight_scale", scales));
    tensors.push(floats("head.weight_scale", &[0.25; 4]));
    tensors.push(floats("up.weight_scale", &[0.125; 6]));
    tensors.sort_by(|a, b| a.0.cmp(&b.0));
    tensors
}

fn verified(tensors: &[Tensor]) -> Report {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path(), &config(), tensors);
    verify(directory.path(), &Options::default()).unwrap()
}

#[test]
fn convolutions_that_are_codes_are_valid_and_loaded_by_no_loader() {
    let report = verified(&network(&[0.5; 8]));
    assert!(report.passes(), "{:?}", report.findings);
    assert_eq!(report.quantized_layers, 3);
    for id in ["amd-quark", "transformers", "vllm", "sglang"] {
        let verdict = report.verdicts.iter().find(|verdict| verdict.id == id).unwrap();
        assert_eq!(verdict.loads, Loads::No, "{id}");
        assert!(
            verdict.reasons.iter().any(|reason| reason.place == "conv" && reason.reason.contains("convolutions")),
            "{verdict:?}"
        );
    }
}

#[test]
fn convolutions_with_damaged_scales_are_errors() {
    for (scales, place, reason) in [
        (&[0.5f32; 7][..], "conv.weight_scale", "does not fit the codes"),
        (&[0.5, 0.5, f32::NAN, 0.5, 0.5, 0.5, 0.5, 0.5], "conv.weight_scale", "NaN or infinite"),
    ] {
        let report = verified(&network(scales));
        assert!(report.errors().any(|f| f.place == place && f.reason.contains(reason)), "{:?}", report.findings);
    }
    let mut wide = network(&[0.5; 8]);
    let conv = wide.iter_mut().find(|tensor| tensor.0 == "conv.weight").unwrap();
    *conv = (conv.0.clone(), Dtype::I32, vec![8, 3, 3, 3], vec![0; 8 * 27 * 4]);
    assert!(verified(&wide).errors().any(|finding| finding.place == "conv.weight"));
}
