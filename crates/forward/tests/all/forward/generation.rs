//! Prompts that are continued, and ends of sequences that are scored, against logits of whole sequences.

use super::models::{with_decoder, write};
use kvant_container::{Checkpoint, Diagnostic, Dtype, ErrorKind};
use kvant_forward::evaluation::{EvaluationError, ScoredSequence, likelihoods};
use kvant_forward::forward::cpu::Cpu;
use kvant_forward::forward::{Decoder, ForwardError};
use kvant_forward::generation::{
    Continuation, Finish, GenerationError, GenerationOptions, Next, Progress, Sampling, generate,
};
use std::ops::ControlFlow;

fn options(max_new_tokens: usize) -> GenerationOptions {
    let (sampling, cpu) = (Sampling::GREEDY, Cpu::default());
    GenerationOptions { max_new_tokens, sampling, stop: Vec::new(), cpu, memory: 1 << 30 }
}

fn run(decoder: &Decoder<'_>, prompts: &[Vec<u32>], options: &GenerationOptions) -> Vec<Continuation> {
    generate(decoder, prompts, options, |_| Next::Continue).unwrap()
}

fn prompts() -> Vec<Vec<u32>> {
    vec![vec![5], vec![7, 19, 4], vec![1, 2, 3, 4, 5, 6, 7, 8, 9], vec![7, 19, 4], vec![60, 61]]
}

#[test]
fn greedy_continuation_takes_the_likeliest_tokens_of_the_whole_pass() {
    for family in ["llama", "gemma2", "gpt2", "deepseek_v3"] {
        with_decoder(family, Dtype::F32, "", |_, decoder| {
            let found = run(decoder, &prompts(), &options(6));
            for (prompt, continuation) in prompts().iter().zip(found) {
                let (mut tokens, vocabulary) = (prompt.clone(), decoder.vocabulary());
                for _ in 0..6 {
                    let logits = decoder.logits(&Cpu::default(), &tokens, tokens.len()).unwrap();
                    let last = &logits[(tokens.len() - 1) * vocabulary..];
                    let best = (0..vocabulary).rev().max_by(|a, b| last[*a].total_cmp(&last[*b])).unwrap();
                    tokens.push(best as u32);
                }
                assert_eq!(continuation.tokens, tokens[prompt.len()..], "{family}");
                assert_eq!(continuation.finish, Finish::Length);
            }
        });
    }
}

#[test]
fn samples_depend_on_the_seed_and_on_nothing_else() {
    with_decoder("llama", Dtype::F32, "", |_, decoder| {
        let sampling = Sampling { temperature: 3.0, top_k: Some(40), top_p: Some(0.9), seed: 4 };
        let all = GenerationOptions { sampling, ..options(12) };
        let expected = run(decoder, &prompts(), &all);
        assert_ne!(expected[1].tokens, expected[3].tokens, "equal prompts are continued differently");
        // Memory for a single sequence, of 9 tokens and 12 new ones.
        let memory = decoder.cache_bytes(21);
        for (threads, memory) in [(1, memory), (3, 1 << 30)] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let found = pool.install(|| run(decoder, &prompts(), &GenerationOptions { memory, ..all.clone() }));
            assert_eq!(found, expected, "{threads} threads, {memory} bytes");
        }
        let alone = run(decoder, &prompts()[2..3], &all);
        assert_eq!(alone[0], expected[2]);
        let sampling = Sampling { seed: 5, ..sampling };
        assert_ne!(run(decoder, &prompts(), &GenerationOptions { sampling, ..all }), expected);
    });
}

#[test]
fn continuation_ends_at_end_tokens_and_where_it_is_told_to() {
    with_decoder("llama", Dtype::F32, "", |_, decoder| {
        let tokens = run(decoder, &[vec![5]], &options(8)).remove(0).tokens;
        let at = (0..8).find(|at| *at > 1 && !tokens[..*at].contains(&tokens[*at])).unwrap();
        let stopped = run(decoder, &[vec![5]], &GenerationOptions { stop: vec![tokens[at]], ..options(8) });
        assert_eq!(stopped, [Continuation { tokens: tokens[..at].to_vec(), finish: Finish::EndOfText }]);
        let mut seen = Vec::new();
        let found = generate(decoder, &[vec![5]], &options(8), |progress| {
            seen.push(progress);
            if matches!(progress, Progress::Token { token, .. } if token == tokens[at]) {
                Next::End
            } else {
                Next::Continue
            }
        });
        assert_eq!(found.unwrap(), [Continuation { tokens: tokens[..=at].to_vec(), finish: Finish::Stopped }]);
        assert_eq!(seen.len(), at + 3);
        let cancelled = generate(decoder, &[vec![5]], &options(8), |_| Next::Cancel).unwrap_err();
        assert_eq!(cancelled.kind(), ErrorKind::Cancelled);
    });
}

#[test]
fn impossible_generations_are_refused() {
    with_decoder("llama", Dtype::F32, "", |_, decoder| {
        let refused = |prompts: &[Vec<u32>], options: GenerationOptions| {
            generate(decoder, prompts, &options, |_| panic!("the work has begun")).unwrap_err()
        };
        let empty = refused(&[vec![5], vec![]], options(4));
        assert!(matches!(empty, GenerationError::EmptyPrompt { number: 2 }), "{empty}");
        let longest = decoder.longest().unwrap();
        let long = refused(&[vec![5, 6]], options(longest - 1));
        assert!(matches!(long, GenerationError::TooLong { prompt: 2, .. }), "{long}");
        assert!(long.hint().unwrap().ends_with(&format!("at most {}", longest - 2)), "{long:?}");
        let memory = refused(&[vec![5, 6]], GenerationOptions { memory: 100, ..options(4) });
        assert!(matches!(memory, GenerationError::Memory { tokens: 6, allowed: 100, .. }), "{memory}");
        assert!(matches!(refused(&[vec![5]], options(0)), GenerationError::Setting { .. }));
    });
    with_decoder("gpt2", Dtype::F32, "", |_, decoder| {
        let found = generate(decoder, &[vec![1_000_000]], &options(2), |_| Next::Continue).unwrap_err();
        assert!(matches!(found, GenerationError::Forward(ForwardError::Token { token: 1_000_000, .. })), "{found}");
    });
}

#[test]
fn likelihoods_are_those_of_the_logits() {
    let dir = write("llama", Dtype::F32, "");
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    let decoder = Decoder::open(&checkpoint).unwrap();
    let vocabulary = decoder.vocabulary();
    let greedy = run(&decoder, &[vec![9, 8, 7]], &options(3)).remove(0).tokens;
    let greedy = [&[9, 8, 7][..], &greedy].concat();
    // The last two read the same as the first.
    let sequences = [&[5, 6, 7, 8][..], &greedy, &[1, 2], &[4, 3, 2, 1, 5, 6, 7], &[3], &[5, 6, 7, 9], &[5, 6, 7, 8]];
    let scored = [2, 3, 1, 6, 0, 1, 3];
    let all: Vec<ScoredSequence<'_>> =
        sequences.iter().zip(scored).map(|(tokens, scored)| ScoredSequence { tokens, scored }).collect();
    let found = likelihoods(&decoder, &Cpu::default(), &all, 1 << 20, |_, _| ControlFlow::Continue(())).unwrap();
    for (sequence, found) in all.iter().zip(&found) {
        let logits = decoder.logits(&Cpu::default(), sequence.tokens, sequence.tokens.len()).unwrap();
        let (mut sum, mut is_greedy) = (0.0, true);
        for at in sequence.tokens.len() - sequence.scored..sequence.tokens.len() {
            let row: Vec<f64> = logits[(at - 1) * vocabulary..at * vocabulary].iter().map(|z| f64::from(*z)).collect();
            let target = row[sequence.tokens[at] as usize];
            sum += target - row.iter().map(|z| z.exp()).sum::<f64>().ln();
            is_greedy &= row.iter().all(|z| *z <= target);
        }
        assert!((found.log_likelihood - sum).abs() < 1e-4, "{found:?} {sum}");
        assert_eq!(found.is_greedy, is_greedy);
    }
    assert!(found[1].is_greedy && !found[0].is_greedy);
    let nothing = [ScoredSequence { tokens: &[1, 2], scored: 2 }];
    let error =
        likelihoods(&decoder, &Cpu::default(), &nothing, 1 << 20, |_, _| ControlFlow::Continue(())).unwrap_err();
    assert!(matches!(error, EvaluationError::Window { .. }), "{error}");
}
