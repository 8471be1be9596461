//! The forward pass against values computed by transformers, and what it refuses.

#![allow(clippy::panic, clippy::unwrap_used)] // Helpers of tests stand outside of tests.

mod depth;
mod generation;
mod heads;
mod images;
mod models;
mod overlay;
mod pairs;
mod routing;
mod session;
mod sounds;
mod text_images;

use crate::support;
use kvant_container::{Checkpoint, Diagnostic, Dtype, ErrorKind};
use kvant_data::calibration::TokenDocument;
use kvant_forward::evaluation::{
    EvaluationError, Options, default_window, evaluate, evaluate_documents, evaluate_models,
};
use kvant_forward::forward::cpu::Cpu;
use kvant_forward::forward::{Decoder, ForwardError};
use kvant_numeric::simd::Isa;
use serde::Deserialize;
use std::path::{Path, PathBuf};

/// See the field `about` of the file.
#[derive(Deserialize)]
struct Golden {
    tokens: Vec<Vec<u32>>,
    last_logits: Vec<Vec<f32>>,
    log_likelihood: Vec<f64>,
}

impl Golden {
    fn read() -> Golden {
        serde_json::from_str(include_str!("nano_llama.json")).unwrap()
    }

    fn length(&self) -> usize {
        self.tokens[0].len()
    }

    fn joined(&self) -> Vec<u32> {
        self.tokens.concat()
    }
}

fn model() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/models/nano_llama")
}

/// The model with a changed config.json.
fn changed(change: impl Fn(&mut serde_json::Value)) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::copy(model().join("model.safetensors"), dir.path().join("model.safetensors")).unwrap();
    let mut config = serde_json::from_str(&std::fs::read_to_string(model().join("config.json")).unwrap()).unwrap();
    change(&mut config);
    std::fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    dir
}

fn refusal(change: impl Fn(&mut serde_json::Value)) -> ForwardError {
    let dir = changed(change);
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    Decoder::open(&checkpoint).err().unwrap()
}

#[test]
fn logits_and_likelihoods_match_transformers() {
    let golden = Golden::read();
    let checkpoint = Checkpoint::open(&model()).unwrap();
    let decoder = Decoder::open(&checkpoint).unwrap();
    let (length, vocabulary) = (golden.length(), decoder.vocabulary());
    let logits = decoder.logits(&Cpu::default(), &golden.joined(), length).unwrap();
    for (sequence, expected) in golden.last_logits.iter().enumerate() {
        let row = &logits[((sequence + 1) * length - 1) * vocabulary..][..vocabulary];
        let largest = expected.iter().fold(0.0f32, |largest, z| largest.max(z.abs()));
        for (ours, theirs) in row.iter().zip(expected) {
            assert!((ours - theirs).abs() < 1e-5 * largest, "{sequence}: {ours} {theirs}");
        }
    }
}

#[test]
fn forward_pass_does_not_depend_on_the_number_of_threads() {
    let golden = Golden::read();
    let checkpoint = Checkpoint::open(&model()).unwrap();
    let decoder = Decoder::open(&checkpoint).unwrap();
    let run = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| decoder.logits(&Cpu::default(), &golden.joined(), golden.length()).unwrap())
    };
    let one: Vec<u32> = run(1).iter().map(|z| z.to_bits()).collect();
    for threads in [2, 3, 7] {
        assert!(run(threads).iter().map(|z| z.to_bits()).eq(one.iter().copied()), "{threads} threads");
    }
}

#[test]
fn attention_is_causal_and_limited_to_the_sequence() {
    let checkpoint = Checkpoint::open(&model()).unwrap();
    let decoder = Decoder::open(&checkpoint).unwrap();
    let ops = Cpu::new(Isa::best());
    let mut tokens = Golden::read().joined();
    let before = decoder.logits(&ops, &tokens, 40).unwrap();
    tokens[60] = 7;
    let after = decoder.logits(&ops, &tokens, 40).unwrap();
    let vocabulary = decoder.vocabulary();
    assert_eq!(before[..60 * vocabulary], after[..60 * vocabulary]);
    assert_ne!(before[60 * vocabulary..80 * vocabulary], after[60 * vocabulary..80 * vocabulary]);
    assert_eq!(before[80 * vocabulary..], after[80 * vocabulary..]);
}

#[test]
fn unsupported_architectures_are_refused_by_name() {
    for (key, value, named) in [
        ("model_type", "rwkv".into(), "no description that fits"),
        ("hidden_act", "softplus".into(), "softplus"),
        ("clip_qkv", 8.into(), "clip_qkv"),
        ("rope_parameters", serde_json::json!({"rope_type": "spiral"}), "spiral"),
        ("layer_types", serde_json::json!(["chunked_attention"]), "chunked_attention"),
    ] {
        let error = refusal(|config| {
            config[key] = value.clone();
            if key == "model_type" {
                config["architectures"] = serde_json::json!(["RwkvForCausalLM"]);
            }
        });
        assert!(error.kind() == ErrorKind::Unsupported && error.to_string().contains(named), "{error}");
    }
}

#[test]
fn encoders_see_both_ways_and_are_no_decoders() {
    let dir = models::write("bert", Dtype::F32, "");
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    let refused = Decoder::open(&checkpoint).err().unwrap();
    assert!(matches!(refused, ForwardError::Encoder { family: "bert" }) && refused.kind() == ErrorKind::Unsupported);
    let encoder = Decoder::open_any(&checkpoint).unwrap();
    let names: Vec<&str> = encoder.readouts().iter().map(|readout| readout.name).collect();
    assert!(encoder.is_encoder() && names == ["masked-token logits"], "{names:?}");
    let run = |tokens: &[u32]| encoder.encode(&Cpu::default(), tokens, models::LENGTH).unwrap();
    let (hidden, readouts) = run(&models::TOKENS);
    assert_eq!((hidden.len(), readouts[0].len()), (24 * encoder.hidden(), 24 * encoder.vocabulary()));
    let mut tokens = models::TOKENS;
    tokens[7] = 8;
    let (changed, _) = run(&tokens);
    let width = models::LENGTH * encoder.hidden();
    assert_ne!(hidden[..encoder.hidden()], changed[..encoder.hidden()], "the first token sees the last");
    assert_eq!(hidden[width..], changed[width..], "other sequences do not");
}

#[test]
fn embeddings_of_distances_tell_the_order_of_tokens() {
    let mut fixture = support::Checkpoint::read("deberta_v2");
    // Nothing else does.
    fixture.config["position_biased_input"] = false.into();
    let dir = models::write_fixture(&fixture, Dtype::F32, "");
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    let encoder = Decoder::open_any(&checkpoint).unwrap();
    let run = |tokens: &[u32]| encoder.encode(&Cpu::default(), tokens, tokens.len()).unwrap().0;
    let (width, forwards, backwards) = (encoder.hidden(), run(&[5, 9, 77, 31]), run(&[31, 77, 9, 5]));
    assert_ne!(forwards[..width], backwards[3 * width..], "the same token among the same others");
    // A sequence has the same hidden states among others.
    let both = encoder.encode(&Cpu::default(), &[5, 9, 77, 31, 8, 1, 2, 3], 4).unwrap().0;
    let apart = both.iter().zip(&forwards).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(apart < 1e-4, "{apart}");
    let without = |key: &str| {
        let mut fixture = support::Checkpoint::read("deberta_v2");
        fixture.config[key] = false.into();
        let dir = models::write_fixture(&fixture, Dtype::F32, "");
        Decoder::open_any(&Checkpoint::open(dir.path()).unwrap()).err().unwrap()
    };
    for key in ["relative_attention", "share_att_key"] {
        let error = without(key);
        assert!(error.kind() == ErrorKind::Unsupported && error.to_string().contains(key), "{error}");
    }
}

#[test]
fn classes_with_unknown_outputs_are_refused() {
    let mut fixture = support::Checkpoint::read("bert");
    let mut tensor = fixture.tensors[0].clone();
    (tensor.name, tensor.shape) = ("classifier.weight".to_owned(), vec![3, 64]);
    fixture.tensors.push(tensor);
    let dir = models::write_fixture(&fixture, Dtype::F32, "");
    let error = Decoder::open_any(&Checkpoint::open(dir.path()).unwrap()).err().unwrap().to_string();
    assert!(error.contains("what BertForMaskedLM makes of classifier"), "{error}");
}

#[test]
fn config_of_another_model_is_invalid() {
    for (key, value) in [("num_key_value_heads", 4), ("num_hidden_layers", 40), ("head_dim", 16), ("hidden_size", 256)]
    {
        let error = refusal(|config| config[key] = value.into());
        assert!(error.kind() == ErrorKind::Invalid && error.hint().is_some(), "{key}: {error}");
    }
    let error = refusal(|config| config["layer_types"] = serde_json::json!(["full_attention"]));
    assert!(error.kind() == ErrorKind::Invalid && error.to_string().contains("layer_types"), "{error}");
}

#[test]
fn perplexity_follows_from_the_likelihoods() {
    let golden = Golden::read();
    let checkpoint = Checkpoint::open(&model()).unwrap();
    let decoder = Decoder::open(&checkpoint).unwrap();
    let mut tokens = golden.joined();
    tokens.extend([1, 2, 3]);
    let options = Options::windows_of(golden.length());
    let found = evaluate(&decoder, None, &Cpu::default(), &tokens, options, |_, _| std::ops::ControlFlow::Continue(()))
        .unwrap();
    let mean = golden.log_likelihood.iter().sum::<f64>() / found.tokens as f64;
    assert_eq!((found.windows, found.tokens), (3, 3 * 39));
    assert!((found.perplexity / (-mean).exp() - 1.0).abs() < 1e-5, "{}", found.perplexity);
    assert_eq!(default_window(decoder.longest()), decoder.longest().unwrap().min(2048));
}

#[test]
fn model_has_no_divergence_from_itself_and_memory_changes_nothing() {
    let golden = Golden::read();
    let checkpoint = Checkpoint::open(&model()).unwrap();
    let decoder = Decoder::open(&checkpoint).unwrap();
    let run = |options| {
        evaluate(&decoder, Some(&decoder), &Cpu::default(), &golden.joined(), options, |_, _| {
            std::ops::ControlFlow::Continue(())
        })
        .unwrap()
    };
    let options = Options { stride: Some(9), ..Options::windows_of(40) };
    let found = run(options);
    assert_eq!(found.tokens, 3 * 40 - 1);
    let comparison = found.comparison.clone().unwrap();
    assert_eq!(comparison.reference_perplexity, found.perplexity);
    assert!(comparison.kl_p99 < 1e-5 && comparison.top1_agreement == 1.0, "{comparison:?}");
    assert!(comparison.blocks.iter().all(|decibels| *decibels == f64::INFINITY) && comparison.blocks.len() == 4);
    let spilled = run(Options { memory: 0, ..options });
    assert_eq!((spilled.perplexity, spilled.comparison), (found.perplexity, found.comparison));
}

#[test]
fn models_beside_one_reference_are_those_of_single_evaluations() {
    let tokens = Golden::read().joined();
    let checkpoint = Checkpoint::open(&model()).unwrap();
    let reference = Decoder::open(&checkpoint).unwrap();
    let dir = tempfile::tempdir().unwrap();
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(model().join(file), dir.path().join(file)).unwrap();
    }
    let mut config: serde_json::Value =
        serde_json::from_slice(&std::fs::read(dir.path().join("config.json")).unwrap()).unwrap();
    config["rms_norm_eps"] = 0.1.into();
    std::fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    let other = Decoder::open(&checkpoint).unwrap();
    let documents = [TokenDocument { tokens, is_row: false, has_images: false }];
    let go = |_, _| std::ops::ControlFlow::Continue(());
    let options = Options { most: Some(3), memory: 0, ..Options::windows_of(30) };
    let (ops, models) = (Cpu::default(), [&other, &reference]);
    let found = evaluate_models(&models, Some(&reference), &ops, &documents, options, go).unwrap();
    assert_eq!(found.len(), 2);
    for (model, found) in models.iter().zip(&found) {
        let alone = evaluate_documents(model, Some(&reference), &ops, &documents, options, go).unwrap();
        assert_eq!((&found.comparison, &found.ranges), (&alone.comparison, &alone.ranges));
        assert_eq!((found.perplexity, found.perplexity_error), (alone.perplexity, alone.perplexity_error));
        assert_eq!((found.windows, found.tokens), (3, 3 * 29));
        assert!(found.perplexity_error > 0.0, "{found:?}");
    }
    let kl = |index: usize| found[index].comparison.as_ref().unwrap().kl_mean.value;
    assert!(kl(0) > 1e-3 && kl(1) < 1e-6, "{} {}", kl(0), kl(1));
    let (mut last, mut total) = (0, 0);
    let watch = |done, all| {
        (last, total) = (done, all);
        std::ops::ControlFlow::Continue(())
    };
    let apart = evaluate_models(&models, None, &ops, &documents, options, watch).unwrap();
    assert_eq!((last, total), (2 * 90, 2 * 90));
    assert_eq!(apart[0].perplexity, found[0].perplexity);
}

#[test]
fn impossible_evaluations_are_refused() {
    let checkpoint = Checkpoint::open(&model()).unwrap();
    let decoder = Decoder::open(&checkpoint).unwrap();
    let run = |tokens: &[u32], window| {
        let options = Options::windows_of(window);
        evaluate(&decoder, None, &Cpu::default(), tokens, options, |_, _| std::ops::ControlFlow::Continue(()))
            .unwrap_err()
    };
    assert!(matches!(run(&[1; 10], 1), EvaluationError::Window { window: 1 }));
    assert!(matches!(run(&[1; 10], 11), EvaluationError::TooShort { tokens: 10, window: 11 }));
    let unknown = run(&[1, 1_000_000, 2, 3], 2);
    assert!(matches!(unknown, EvaluationError::Forward(ForwardError::Token { token: 1_000_000, .. })), "{unknown}");
}

#[test]
fn evaluation_stops_when_cancelled() {
    let checkpoint = Checkpoint::open(&model()).unwrap();
    let decoder = Decoder::open(&checkpoint).unwrap();
    for reference in [None, Some(&decoder)] {
        let mut calls = 0;
        let stop = |_, _| {
            calls += 1;
            std::ops::ControlFlow::Break(())
        };
        let found = evaluate(&decoder, reference, &Cpu::default(), &[1; 40], Options::windows_of(20), stop);
        assert_eq!(found.unwrap_err().kind(), ErrorKind::Cancelled);
        assert_eq!(calls, 1);
    }
}
