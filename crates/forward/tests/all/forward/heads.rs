//! The output head that is the embedding and has a bias, and norms of single heads of attention.

use super::models::{LENGTH, TOKENS, write_fixture};
use crate::support;
use kvant_container::{Checkpoint, Dtype};
use kvant_forward::forward::cpu::Cpu;
use kvant_forward::forward::{Decoder, ForwardError};
use serde_json::json;

fn logits(fixture: &support::Checkpoint) -> Result<Vec<f32>, ForwardError> {
    let dir = write_fixture(fixture, Dtype::F32, "");
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    let decoder = Decoder::open(&checkpoint)?;
    Ok(decoder.logits(&Cpu::default(), &TOKENS, LENGTH).unwrap())
}

fn without(fixture: support::Checkpoint, part: &str) -> support::Checkpoint {
    fixture.renamed(|name| (!name.contains(part)).then(|| name.to_owned()))
}

#[test]
fn bias_of_a_tied_head_is_added_to_the_logits() {
    for family in ["phi", "gptj"] {
        let tied = || support::Checkpoint::read(family).with_config("tie_word_embeddings", json!(true));
        let stored = logits(&tied()).unwrap();
        let with_bias = logits(&without(tied(), "lm_head.weight")).unwrap();
        assert_eq!(stored, with_bias, "{family}: the stored weight of a tied head is not read");
        let plain = logits(&without(tied(), "lm_head")).unwrap();
        let rows = plain.len() / TOKENS.len();
        let (_, _, _, bias) = crate::common::weight("lm_head.bias", Dtype::F32, &[rows]);
        let bias: Vec<f32> = bias.chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect();
        assert!(bias.iter().any(|bias| bias.abs() > 1e-3), "{family}");
        for (at, (found, plain)) in with_bias.iter().zip(&plain).enumerate() {
            let expected = plain + bias[at % rows];
            assert!((found - expected).abs() < 1e-5 * expected.abs().max(1.0), "{family}: {found} {expected}");
        }
    }
}

/// A fixture with as many heads, whose names are not in the order of their numbers.
fn many_heads() -> support::Checkpoint {
    let mut fixture = without(support::Checkpoint::read("stablelm"), "_layernorm.norms.")
        .with_config("num_attention_heads", json!(16))
        .with_config("num_key_value_heads", json!(8))
        .with_config("partial_rotary_factor", json!(0.5))
        .with_config(
            "rope_parameters",
            json!({"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}),
        );
    for block in 0..2 {
        for (letter, count) in [("q", 16), ("k", 8)] {
            for head in 0..count {
                let name = format!("model.layers.{block}.self_attn.{letter}_layernorm.norms.{head}.weight");
                fixture = fixture.with(&name, &[4], "BF16");
            }
        }
    }
    fixture
}

#[test]
fn norms_of_single_heads_are_those_of_their_numbers() {
    let fixture = many_heads();
    let expected = logits(&fixture).unwrap();
    // Files that list the tensors in another order are the same model, and other weights another.
    let mut reversed = many_heads();
    reversed.tensors.reverse();
    assert_eq!(logits(&reversed).unwrap(), expected);
    let swap = |name: &str| match name {
        "model.layers.0.self_attn.q_layernorm.norms.2.weight" => {
            Some("model.layers.0.self_attn.q_layernorm.norms.10.weight".to_owned())
        }
        "model.layers.0.self_attn.q_layernorm.norms.10.weight" => {
            Some("model.layers.0.self_attn.q_layernorm.norms.2.weight".to_owned())
        }
        name => Some(name.to_owned()),
    };
    // Weights follow from names: renaming alone changes only the order.
    assert_eq!(logits(&many_heads().renamed(swap)).unwrap(), expected);
    assert_ne!(logits(&many_heads().with_config("layer_norm_eps", json!(0.1))).unwrap(), expected);
}

#[test]
fn missing_and_misshapen_norms_of_heads_are_refused() {
    let missing = logits(&without(many_heads(), "layers.1.self_attn.k_layernorm.norms.5.")).unwrap_err();
    assert!(missing.to_string().contains("head 5 of 8"), "{missing}");
    let more = many_heads().with("model.layers.0.self_attn.k_layernorm.norms.8.weight", &[4], "BF16");
    let more = logits(&more).unwrap_err();
    assert!(more.to_string().contains("norms.8"), "{more}");
    for (family, end) in
        [("stablelm", "q_layernorm.norms.3.weight"), ("qwen3", "k_norm.weight"), ("olmo2", "q_norm.weight")]
    {
        let mut fixture = support::Checkpoint::read(family);
        let tensor = fixture.tensors.iter_mut().find(|tensor| tensor.name.ends_with(end)).unwrap();
        tensor.shape = vec![3];
        let refused = logits(&fixture).unwrap_err();
        assert!(
            matches!(refused, ForwardError::Shape { .. }) && refused.to_string().contains(end),
            "{family}: {refused}"
        );
    }
    // Optional norms that config.json does not ask for may be absent.
    let mut fixture = without(support::Checkpoint::read("stablelm"), "_layernorm.norms.");
    assert!(logits(&fixture).unwrap_err().to_string().contains("norm of queries or keys"));
    fixture.config.as_object_mut().unwrap().remove("qk_layernorm");
    logits(&fixture).unwrap();
}
