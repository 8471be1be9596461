//! Quantized KV caches token by token, and scores of whole models.

use super::language_model::{GenerateUntil, LanguageModel, TokenPair};
use crate::ending::files_are_mine;
use crate::{CancelToken, Event, Events, Generation, Job, Prompt, Source};
use kvant_container::Checkpoint;
use kvant_forward::forward::cpu::{Cpu, Precision};
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
fn text_events_of_a_prompt_join_to_its_text() {
    struct Parts(Vec<(usize, bool, String)>);
    impl Events for Parts {
        fn event(&mut self, event: Event<'_>) {
            if let Event::Text { prompt, is_reference, text } = event {
                self.0.push((prompt, is_reference, text.to_owned()));
            }
        }
    }
    let _lock = files_are_mine();
    let mut generation = Generation::new(Source::new(nano_llama()), "The iterator yields every");
    generation.prompts.push(Prompt::Text("fn main() {".to_owned()));
    generation.max_new_tokens = Some(10);
    generation.stop = vec!["e o".to_owned()];
    generation.reference = Some(nano_llama());
    let mut parts = Parts(Vec::new());
    let report = generation.run(&mut parts, &CancelToken::new()).unwrap();
    assert!(parts.0.len() > 4, "{:?}", parts.0);
    for (index, prompt) in report.prompts.iter().enumerate() {
        for (is_reference, text) in [(false, &prompt.model.text), (true, &prompt.reference.as_ref().unwrap().text)] {
            let found = parts.0.iter().filter(|part| (part.0, part.1) == (index, is_reference));
            assert_eq!(&found.map(|part| part.2.as_str()).collect::<String>(), text);
        }
    }
}

#[test]
fn weights_in_memory_give_the_logits_of_stored_ones() {
    let _lock = files_are_mine();
    let directory = tempfile::tempdir().unwrap();
    for scheme in ["int4_wo_128", "W4A16", "int4:g32:zp", "FP8_DYNAMIC", "mxfp4", "Q8_0"] {
        let mut job = Job::new(nano_llama());
        job.recipe.scheme = Some(scheme.to_owned());
        let extension = if scheme.starts_with('Q') { "gguf" } else { "directory" };
        let output = directory.path().join(scheme.replace(':', "-")).with_extension(extension);
        job.sinks.output = Some(output.clone());
        job.run(&mut (), &CancelToken::new()).unwrap();
        let checkpoint = Source::new(output).open().unwrap();
        let decoder = Decoder::open(&checkpoint).unwrap();
        for (many, single) in [
            (Cpu::default(), Cpu::default().by_rows()),
            (Cpu::with_precision(Precision::Bf16), Cpu::with_precision(Precision::Bf16).by_rows()),
        ] {
            let run = |budget: u64| {
                let mut session = Session::new(&decoder, SessionOps { many: &many, single: &single });
                let used = session.expand_weights(budget);
                assert_eq!(used > 0, budget > 0 && extension != "gguf", "{scheme}: {used} of {budget}");
                let sequence = session.begin();
                session.append(&[(sequence, &[5, 17, 301])]).unwrap();
                session.append(&[(sequence, &[42])]).unwrap()
            };
            assert!(run(0) == run(u64::MAX), "{scheme}");
        }
    }
}

#[test]
fn harness_functions_agree_with_each_other() {
    let _lock = files_are_mine();
    let model = LanguageModel::new(Source::new(nano_llama()));
    let (tokenizer, cancel) = (model.tokenizer().unwrap(), CancelToken::new());
    let facts = model.facts().unwrap();
    assert_eq!((facts.max_length, facts.begin_token, facts.end_tokens.as_slice()), (512, Some(0), &[0][..]));
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
    for unknown in [pair(&prompt, &[2048]), pair(&[2048], &prompt)] {
        let error = model.loglikelihood(&[unknown], &mut (), &cancel).unwrap_err();
        assert!(error.message.contains("2048"), "{error:?}");
    }
    // Windows of three tokens see less, and score every token once.
    let short = LanguageModel { max_length: Some(3), ..model };
    let windows = short.loglikelihood_rolling(&[prompt], 0, &mut (), &cancel).unwrap();
    assert!(windows[0].is_finite() && windows[0] != rolling[0], "{windows:?}");
}
