//! Sequences that grow against sequences that pass as a whole.

use super::models::write;
use crate::support;
use kvant_container::{Checkpoint, Dtype};
use kvant_forward::forward::cpu::Cpu;
use kvant_forward::forward::{Decoder, Session, SessionOps};
use serde_json::{Value, json};

/// Tokens of the longest prompt, and as many that follow.
const LONGEST: usize = 17;
const APPENDED: usize = 6;

fn tokens() -> Vec<u32> {
    (0..LONGEST + APPENDED).map(|i| (i * 37 % 90 + 1) as u32).collect()
}

/// Calls `work` with a session over the decoder of a checkpoint.
fn with_session<T>(decoder: &Decoder<'_>, work: impl FnOnce(&mut Session<'_, '_>) -> T) -> T {
    let (many, single) = (Cpu::default(), Cpu::default().by_rows());
    work(&mut Session::new(decoder, SessionOps { many: &many, single: &single }))
}

fn assert_close(found: &[f32], expected: &[f32], what: &str) {
    let largest = expected.iter().fold(1e-3f32, |largest, z| largest.max(z.abs()));
    let worst = found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(found.len() == expected.len() && worst <= 1e-4 * largest, "{what}: {worst} of {largest}");
}

/// Prompts of several lengths, continued token by token, have the logits of whole sequences.
fn check(what: &str, decoder: &Decoder<'_>) {
    let (tokens, vocabulary) = (tokens(), decoder.vocabulary());
    let whole = |length: usize| {
        let logits = decoder.logits(&Cpu::default(), &tokens[..length], length).unwrap();
        logits[(length - 1) * vocabulary..].to_vec()
    };
    for prompt in [1, 2, LONGEST] {
        with_session(decoder, |session| {
            let sequence = session.begin();
            let found = session.append(&[(sequence, &tokens[..prompt])]).unwrap();
            assert_close(&found, &whole(prompt), &format!("{what}, prompt of {prompt}"));
            for end in prompt + 1..=prompt + APPENDED {
                let found = session.append(&[(sequence, &tokens[end - 1..end])]).unwrap();
                assert_close(&found, &whole(end), &format!("{what}, prompt of {prompt}, token {end}"));
            }
        });
    }
}

/// The model of a family with a changed config.json.
fn check_changed(family: &str, what: &str, change: impl FnOnce(&mut Value)) {
    let dir = write(family, Dtype::F32, "");
    let file = dir.path().join("config.json");
    let mut config: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    change(&mut config);
    std::fs::write(&file, config.to_string()).unwrap();
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    let decoder = Decoder::open(&checkpoint).unwrap_or_else(|error| panic!("{family}, {what}: {error}"));
    check(&format!("{family}, {what}"), &decoder);
}

#[test]
fn incremental_logits_equal_those_of_whole_sequences_in_every_family() {
    let is_decoder = |name: &String| {
        let network = support::Checkpoint::read(name).network();
        network.family().is_none_or(|family| family.encoder.is_none())
    };
    for family in support::names().into_iter().filter(is_decoder) {
        check_changed(&family, "as it is", |config| {
            // Some state, or have as their default, more than the experts of their fixtures.
            if config["num_experts_per_tok"].as_u64().is_none_or(|count| count > 4) {
                config["num_experts_per_tok"] = json!(2);
            }
        });
    }
}

#[test]
fn incremental_logits_respect_windows_shorter_than_the_sequence() {
    for family in ["mistral", "gemma2", "gemma3_text", "cohere2", "olmo3", "gpt_oss", "phi3", "starcoder2"] {
        check_changed(family, "a window of 5", |config| {
            config["sliding_window"] = json!(5);
        });
    }
    check_changed("qwen2", "a window of 5", |config| {
        config["sliding_window"] = json!(5);
        config["use_sliding_window"] = json!(true);
        config["max_window_layers"] = json!(1);
    });
}

#[test]
fn sequences_are_read_again_where_angles_change_with_the_length() {
    let dynamic = json!({"rope_type": "dynamic", "factor": 4.0});
    check_changed("llama", "dynamic angles", |config| {
        config["max_position_embeddings"] = json!(8);
        config["rope_scaling"] = dynamic;
    });
    check_changed("llama", "angles of two lengths", |config| {
        let half = config["head_dim"].as_u64().unwrap_or_else(|| {
            config["hidden_size"].as_u64().unwrap() / config["num_attention_heads"].as_u64().unwrap()
        }) / 2;
        let factors = |factor: f64| (0..half).map(|i| factor + i as f64 / 8.0).collect::<Vec<_>>();
        config["max_position_embeddings"] = json!(64);
        config["rope_scaling"] = json!({"rope_type": "longrope", "short_factor": factors(1.0), "long_factor": factors(2.0),
            "original_max_position_embeddings": 4, "factor": 16.0});
    });
}

#[test]
fn batch_gives_what_single_sequences_give() {
    let tokens = tokens();
    for family in [
        "llama",
        "mixtral",
        "deepseek_v3",
        "deepseek_v32",
        "gemma3n_text",
        "gemma4_layer_inputs",
        "gpt2",
        "gpt_oss",
        "jamba",
        "qwen3_5_moe",
        "lfm2",
        "nemotron_h",
        "falcon_h1",
    ] {
        let dir = write(family, Dtype::BF16, "");
        let checkpoint = Checkpoint::open(dir.path()).unwrap();
        let decoder = Decoder::open(&checkpoint).unwrap();
        let prompts = [&tokens[..1], &tokens[2..9], &tokens[4..6], &tokens[1..18], &tokens[5..6]];
        let alone: Vec<Vec<f32>> = prompts
            .iter()
            .map(|prompt| {
                with_session(&decoder, |session| {
                    let sequence = session.begin();
                    let mut logits = session.append(&[(sequence, prompt)]).unwrap();
                    logits.extend(session.append(&[(sequence, &[3])]).unwrap());
                    logits.extend(session.append(&[(sequence, &[8])]).unwrap());
                    logits
                })
            })
            .collect();
        let together = with_session(&decoder, |session| {
            let sequences = prompts.map(|_| session.begin());
            let mut logits = vec![Vec::new(); prompts.len()];
            for tokens in [prompts, [&[3][..]; 5], [&[8][..]; 5]] {
                let parts: Vec<(usize, &[u32])> = sequences.into_iter().zip(tokens).collect();
                let found = session.append(&parts).unwrap();
                let rows = logits.iter_mut().zip(found.chunks_exact(decoder.vocabulary()));
                rows.for_each(|(all, row)| all.extend_from_slice(row));
            }
            logits
        });
        assert!(alone == together, "{family}: a batch changes bits");
    }
}

#[test]
fn logits_do_not_depend_on_threads_or_on_expanded_weights() {
    let tokens = tokens();
    let dir = write("gpt2", Dtype::BF16, "");
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    let decoder = Decoder::open(&checkpoint).unwrap();
    let run = |threads: usize, budget: u64| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            with_session(&decoder, |session| {
                assert_eq!(session.expand_weights(budget) > 0, budget > 0);
                let sequence = session.begin();
                session.append(&[(sequence, &tokens[..9])]).unwrap();
                session.append(&[(sequence, &tokens[9..10])]).unwrap()
            })
        })
    };
    let expected = run(1, 0);
    for (threads, budget) in [(2, 0), (3, u64::MAX), (1, u64::MAX)] {
        assert!(run(threads, budget) == expected, "{threads} threads, {budget} bytes");
    }
}
