//! Towers of models of text and images: what they read and make, and which are refused.

use super::models;
use crate::support;
use kvant_container::{Checkpoint, Diagnostic, Dtype, ErrorKind};
use kvant_data::images::PatchSizes;
use kvant_forward::forward::{ForwardError, TowerImages, VisionTower};
use serde_json::{Value, json};

/// The tower of the small model of Gemma 3, some keys of whose config.json are replaced.
fn gemma3(changes: Value) -> Result<TowerImages, ForwardError> {
    let mut fixture = support::Checkpoint::read("gemma3");
    fixture.config["mm_tokens_per_image"] = 1.into();
    fixture.config["vision_config"] = json!({
        "model_type": "siglip_vision_model", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1,
        "num_attention_heads": 2, "image_size": 28, "patch_size": 14,
    });
    for (key, value) in changes.as_object().unwrap() {
        fixture.config[key] = value.clone();
    }
    let dir = models::write_fixture(&fixture, Dtype::F32, "");
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    VisionTower::open(&checkpoint).map(|tower| tower.images())
}

#[test]
fn towers_make_as_many_rows_as_config_json_states() {
    let of = |rows| TowerImages::Equal { shape: [3, 28, 28], rows };
    assert_eq!(gemma3(json!({})).unwrap(), of(1));
    assert_eq!(gemma3(json!({"mm_tokens_per_image": 4})).unwrap(), of(4));
    let error = gemma3(json!({"mm_tokens_per_image": 3})).unwrap_err();
    assert!(error.kind() == ErrorKind::Unsupported && error.to_string().contains("mm_tokens_per_image"), "{error}");
}

/// The tower of a small model of Qwen, some keys of whose `vision_config` are replaced.
fn qwen(family: &str, changes: Value) -> Result<TowerImages, ForwardError> {
    let mut fixture = support::Checkpoint::read(family);
    fixture.config["vision_config"] = json!({
        "depth": 1, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "deepstack_visual_indexes": [0], "out_hidden_size": 64,
    });
    for (key, value) in changes.as_object().unwrap() {
        fixture.config["vision_config"][key] = value.clone();
    }
    let dir = models::write_fixture(&fixture, Dtype::F32, "");
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    VisionTower::open(&checkpoint).map(|tower| tower.images())
}

#[test]
fn towers_of_qwen_read_images_of_any_size() {
    let of = |patch| TowerImages::AnySize(PatchSizes { patch, square: 2, frames: 2 });
    assert_eq!(qwen("qwen2_5_vl", json!({"in_channels": null})).unwrap(), of(14));
    assert_eq!(qwen("qwen3_vl", json!({})).unwrap(), of(16));
    for (family, change, words) in [
        ("qwen2_5_vl", json!({"window_size": 27}), "windows of 27 pixels"),
        ("qwen3_vl", json!({"deepstack_visual_indexes": [1]}), "deepstack_visual_indexes"),
        ("qwen3_vl", json!({"deepstack_visual_indexes": [0, 0]}), "deepstack_visual_indexes"),
        ("qwen3_vl", json!({"hidden_act": "mystery"}), "mystery"),
    ] {
        let error = qwen(family, change).unwrap_err();
        assert!(error.kind() == ErrorKind::Unsupported && error.to_string().contains(words), "{error}");
    }
    let error = qwen("qwen3_vl", json!({"deepstack_visual_indexes": [0], "spatial_merge_size": 4})).unwrap_err();
    assert!(matches!(error, ForwardError::Shape { .. }), "{error}");
}

#[test]
fn models_without_a_tower_that_runs_are_refused_by_name() {
    for (family, words) in [("llama", "no tower"), ("mllama", "mllama")] {
        let mut fixture = support::Checkpoint::read(family);
        if family == "mllama" {
            fixture.config["vision_config"] = json!({"num_hidden_layers": 1});
        }
        let dir = models::write_fixture(&fixture, Dtype::F32, "");
        let error = VisionTower::open(&Checkpoint::open(dir.path()).unwrap()).unwrap_err();
        assert!(error.kind() == ErrorKind::Unsupported && error.to_string().contains(words), "{error}");
    }
    let unknown = gemma3(json!({"vision_config": {"model_type": "pixtral"}})).unwrap_err();
    assert_eq!(unknown.kind(), ErrorKind::Unsupported, "{unknown}");
}
