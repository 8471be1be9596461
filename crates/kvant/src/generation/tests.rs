//! Quantized KV caches token by token, and scores of whole models.

use super::language_model::{GenerateUntil, LanguageModel, TokenPair};
use crate::ending::files_are_mine;
use crate::{CancelToken, Job, Source};
use kvant_container::Checkpoint;
use kvant_forward::forward::cpu::Cpu;
use kvant_forward::forward::{Decoder, Session, SessionOps};
use kvant_forward::generation::Sampling;
use std::path::{Path, PathBuf};

fn nano_llama() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/models/nano_llama")
}

/// The model with a quantized cache, and attention if asked for.
fn quantized(directory: &Path, post_rope: bool, attention: bool) -> PathBuf {
    let text = directory.join("text.txt");
    std::fs::write(&text, "the quick brown fox jumps over the lazy dog ".repeat(40)).unwrap();
    let mut job = Job::new(nano_llama());
    job.recipe.scheme = Some("fp8".to_owned());
    job.recipe.kv_cache = Some("fp8".to_owned());
    job.recipe.kv_cache_post_rope = post_rope;
    job.recipe.attention = attention.then(|| "fp8".to_owned());
    job.data.files = vec![text];
    job.data.num_samples = 4;
    job.data.seq_len = Some(32);
    let output = directory.join(format!("fp8-{post_rope}-{attention}"));
    job.sinks.output = Some(output.clone());
    job.run(&mut (), &CancelToken::new()).unwrap();
    output
}

#[test]
fn quantized_caches_give_the_logits_of_the_whole_pass() {
    let _lock = files_are_mine();
    let directory = tempfile::tempdir().unwrap();
    let tokens: Vec<u32> = (0..20).map(|i| i * 37 % 400 + 3).collect();
    for (post_rope, attention) in [(false, false), (true, false), (true, true)] {
        let checkpoint = Checkpoint::open(&quantized(directory.path(), post_rope, attention)).unwrap();
        let decoder = Decoder::open(&checkpoint).unwrap();
        assert!(decoder.quantizes_attention());
        let (many, single) = (Cpu::default(), Cpu::default().by_rows());
        let mut session = Session::new(&decoder, SessionOps { many: &many, single: &single });
        let sequence = session.begin();
        let mut found = session.append(&[(sequence, &tokens[..7])]).unwrap();
        for token in &tokens[7..] {
            found = session.append(&[(sequence, &[*token])]).unwrap();
        }
        let vocabulary = decoder.vocabulary();
        let expected = decoder.logits(&many, &tokens, tokens.len()).unwrap()[19 * vocabulary..].to_vec();
        // A value between two codes may fall to the other one where sums differ in the last bit.
        let distance: f32 = found.iter().zip(&expected).map(|(a, b)| (a - b) * (a - b)).sum();
        let energy: f32 = expected.iter().map(|z| z * z).sum();
        assert!(distance <= 1e-6 * energy, "{post_rope} {attention}: {distance} of {energy}");
    }
}

#[test]
fn harness_functions_agree_with_each_other() {
    let _lock = files_are_mine();
    let model = LanguageModel::new(Source::new(nano_llama()));
    let (tokenizer, cancel) = (model.tokenizer().unwrap(), CancelToken::new());
    let facts = model.facts().unwrap();
    assert_eq!((facts.max_length, facts.end_tokens.as_slice()), (512, &[0][..]));
    let prompt = tokenizer.encode("The iterator yields every").unwrap();
    let options = GenerateUntil { until: vec![".".to_owned()], max_gen_toks: 12, sampling: Sampling::GREEDY };
    let found = model.generate_until(std::slice::from_ref(&prompt), &options, &mut (), &cancel).unwrap().remove(0);
    assert!(!found.text.contains('.') && !found.tokens.is_empty(), "{found:?}");
    let pair = |context: &[u32], continuation: &[u32]| TokenPair {
        context: context.to_vec(),
        continuation: continuation.to_vec(),
    };
    let (first, rest) = found.tokens.split_at(1);
    let pairs = [
        pair(&prompt, &found.tokens),
        pair(&prompt, first),
        pair(&[&prompt[..], first].concat(), rest),
        pair(&[0], &prompt),
        pair(&prompt, &[]),
    ];
    let scores = model.loglikelihood(&pairs, &mut (), &cancel).unwrap();
    assert!(scores[0].is_greedy && scores[4].log_likelihood == 0.0, "{scores:?}");
    let parts = scores[1].log_likelihood + scores[2].log_likelihood;
    assert!((scores[0].log_likelihood - parts).abs() < 1e-4, "{scores:?}");
    let rolling = model.loglikelihood_rolling(&[prompt.clone(), Vec::new()], 0, &mut (), &cancel).unwrap();
    assert!((rolling[0] - scores[3].log_likelihood).abs() < 1e-4 && rolling[1] == 0.0, "{rolling:?}");
    // Windows of three tokens see less, and score every token once.
    let short = LanguageModel { max_length: Some(3), ..model };
    let windows = short.loglikelihood_rolling(&[prompt], 0, &mut (), &cancel).unwrap();
    assert!(windows[0].is_finite() && windows[0] != rolling[0], "{windows:?}");
}
