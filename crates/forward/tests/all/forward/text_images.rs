//! Towers of models of text and images: what they read and make, and which are refused.

use super::models;
use crate::support;
use kvant_container::{Checkpoint, Diagnostic, Dtype, ErrorKind};
use kvant_forward::forward::{ForwardError, VisionTower};
use serde_json::{Value, json};

/// The tower of the small model of Gemma 3, some keys of whose config.json are replaced.
fn gemma3(changes: Value) -> Result<(usize, [usize; 3]), ForwardError> {
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
    VisionTower::open(&checkpoint).map(|tower| (tower.rows(), tower.shape()))
}

#[test]
fn towers_make_as_many_rows_as_config_json_states() {
    assert_eq!(gemma3(json!({})).unwrap(), (1, [3, 28, 28]));
    assert_eq!(gemma3(json!({"mm_tokens_per_image": 4})).unwrap(), (4, [3, 28, 28]));
    let error = gemma3(json!({"mm_tokens_per_image": 3})).unwrap_err();
    assert!(error.kind() == ErrorKind::Unsupported && error.to_string().contains("mm_tokens_per_image"), "{error}");
}

#[test]
fn models_without_a_tower_that_runs_are_refused_by_name() {
    for (family, words) in [("llama", "no tower"), ("qwen3_vl", "qwen3_vl")] {
        let mut fixture = support::Checkpoint::read(family);
        if family == "qwen3_vl" {
            fixture.config["vision_config"] = json!({"depth": 1});
        }
        let dir = models::write_fixture(&fixture, Dtype::F32, "");
        let error = VisionTower::open(&Checkpoint::open(dir.path()).unwrap()).unwrap_err();
        assert!(error.kind() == ErrorKind::Unsupported && error.to_string().contains(words), "{error}");
    }
    let unknown = gemma3(json!({"vision_config": {"model_type": "pixtral"}})).unwrap_err();
    assert_eq!(unknown.kind(), ErrorKind::Unsupported, "{unknown}");
}
