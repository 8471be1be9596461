//! Encoder-decoders: which rows see which, runs that end in a block and continue, and gradients.

use crate::forward::models;
use kvant_container::{Checkpoint, Diagnostic, Dtype, ErrorKind};
use kvant_data::calibration::TokenDocument;
use kvant_forward::evaluation::{Options, evaluate_documents};
use kvant_forward::forward::cpu::Cpu;
use kvant_forward::forward::gradient::{BlockGradient, BlockGradients, Weights};
use kvant_forward::forward::{
    ActivationHook, ActivationPoint, Decoder, ForwardError, ForwardOptions, Rows, Runner, SequenceLength, StartFrom,
    StopAt,
};
use std::ops::ControlFlow;
use std::sync::Mutex;

const FAMILIES: [&str; 7] = ["bart", "marian", "mbart", "mt5", "pegasus", "t5", "umt5"];

/// Calls `work` with such a model and a sequence of it.
fn with_pair(family: &str, work: impl FnOnce(&Decoder<'_>, &[u32])) {
    models::with_decoder(family, Dtype::F32, "", |_, decoder| {
        let sequence = decoder.sequence_of_pair(&[5, 9, 77, 31, 8], &[12, 40, 3]).unwrap();
        work(decoder, &sequence);
    });
}

fn logits(decoder: &Decoder<'_>, sequence: &[u32]) -> Vec<f32> {
    decoder.logits(&Cpu::default(), sequence, sequence.len()).unwrap()
}

#[test]
fn decoders_see_all_of_the_source_and_nothing_behind_them() {
    for family in FAMILIES {
        with_pair(family, |decoder, sequence| {
            let (vocabulary, found) = (decoder.vocabulary(), logits(decoder, sequence));
            assert_eq!(found.len(), 4 * vocabulary, "{family}: a row for each token of the decoder");
            let other =
                |source: &[u32], target: &[u32]| logits(decoder, &decoder.sequence_of_pair(source, target).unwrap());
            let of_source = other(&[5, 9, 77, 31, 2], &[12, 40, 3]);
            assert_ne!(
                found[..vocabulary],
                of_source[..vocabulary],
                "{family}: the first row sees the end of the source"
            );
            let of_target = other(&[5, 9, 77, 31, 8], &[12, 41, 3]);
            assert_eq!(found[..2 * vocabulary], of_target[..2 * vocabulary], "{family}");
            assert_ne!(found[2 * vocabulary..3 * vocabulary], of_target[2 * vocabulary..3 * vocabulary], "{family}");
            let both = decoder.logits(&Cpu::default(), &sequence.repeat(2), sequence.len()).unwrap();
            let apart = both[found.len()..].iter().zip(&found).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(apart < 1e-4, "{family}: {apart}");
        });
    }
}

#[test]
fn encoder_decoders_continue_no_text() {
    let dir = models::write("t5", Dtype::F32, "");
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    let refused = Decoder::open(&checkpoint).err().unwrap();
    assert!(
        matches!(refused, ForwardError::EncoderDecoder { family: "t5" }) && refused.kind() == ErrorKind::Unsupported
    );
    let mut fixture = crate::support::Checkpoint::read("t5");
    fixture.config.as_object_mut().unwrap().remove("decoder_start_token_id");
    let dir = models::write_fixture(&fixture, Dtype::F32, "");
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    let error = Decoder::open_any(&checkpoint).unwrap().sequences_of(vec![vec![1, 2]]).unwrap_err();
    assert!(error.to_string().contains("decoder_start_token_id"), "{error}");
    let mut fixture = crate::support::Checkpoint::read("bart");
    fixture.config["decoder_attention_heads"] = 2.into();
    let dir = models::write_fixture(&fixture, Dtype::F32, "");
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    let error = Decoder::open_any(&checkpoint).err().unwrap();
    assert!(error.kind() == ErrorKind::Unsupported && error.to_string().contains("decoder_attention_heads"), "{error}");
}

#[test]
fn every_token_of_a_text_is_scored() {
    with_pair("bart", |decoder, _| {
        let documents = [TokenDocument { tokens: vec![5, 9, 77, 31, 8, 1], is_row: false, has_images: false }];
        let go = |_, _| ControlFlow::Continue(());
        let options = Options::windows_of(3);
        let found = evaluate_documents(decoder, Some(decoder), &Cpu::default(), &documents, options, go).unwrap();
        assert_eq!((found.tokens, found.windows, found.passed), (6, 2, 14));
        let rows: Vec<Vec<f32>> = [[5, 9, 77], [31, 8, 1]]
            .iter()
            .map(|text| logits(decoder, &decoder.sequence_of_pair(text, text).unwrap()))
            .collect();
        let likelihood = |row: &[f32], token: usize| {
            let sum: f64 = row.iter().map(|z| f64::from(*z).exp()).sum();
            f64::from(row[token]) - sum.ln()
        };
        let vocabulary = decoder.vocabulary();
        let of = |window: usize, tokens: [usize; 3]| -> f64 {
            let rows = rows[window].chunks_exact(vocabulary);
            rows.zip(tokens).map(|(row, token)| likelihood(row, token)).sum()
        };
        let expected = (-(of(0, [5, 9, 77]) + of(1, [31, 8, 1])) / 6.0).exp();
        assert!((found.perplexity / expected - 1.0).abs() < 1e-5, "{} {expected}", found.perplexity);
        let decibels = found.comparison.unwrap().blocks;
        assert!(decibels.iter().all(|block| *block == f64::INFINITY), "{decibels:?}");
        let overlapping = Options { stride: Some(1), ..options };
        assert!(evaluate_documents(decoder, None, &Cpu::default(), &documents, overlapping, go).is_err());
    });
}

/// Keeps what a module reads.
struct Keep<'m>(&'m str, Mutex<Vec<f32>>);

impl ActivationHook for Keep<'_> {
    fn wants(&self, site: ActivationPoint<'_>) -> bool {
        site == ActivationPoint::Input(self.0)
    }

    fn see(&self, _: ActivationPoint<'_>, rows: Rows<'_>) {
        self.1.lock().unwrap().extend_from_slice(rows.data);
    }
}

#[test]
fn runs_that_end_in_a_block_continue_to_the_same_end() {
    for family in ["bart", "t5"] {
        with_pair(family, |decoder, sequence| {
            let (cpu, length) = (Cpu::default(), SequenceLength::of(sequence));
            let runner = Runner::new(decoder, &cpu);
            let mut x = runner.embed(Default::default(), sequence, length).unwrap();
            for (index, block) in decoder.blueprint().blocks.iter().enumerate() {
                let mut expected = x.clone();
                assert_eq!(runner.block(Default::default(), index, length, &mut expected), ControlFlow::Continue(()));
                let output = &block.mixer.output().unwrap().module;
                let tap = Keep(output, Mutex::default());
                let until = ForwardOptions { tap: Some(&tap), until: Some(StopAt::Heads), ..Default::default() };
                let mut part = x.clone();
                assert_eq!(runner.block(until, index, length, &mut part), ControlFlow::Break(()));
                let heads = tap.1.into_inner().unwrap();
                let from = ForwardOptions { from: Some(StartFrom::Heads(&heads)), ..Default::default() };
                assert_eq!(runner.block(from, index, length, &mut part), ControlFlow::Continue(()));
                assert_eq!(part, expected, "{family}, block {index}");
                x = expected;
            }
        });
    }
}

#[test]
fn keys_and_values_of_decoders_read_the_rows_of_the_encoder() {
    with_pair("bart", |decoder, sequence| {
        let (cpu, length) = (Cpu::default(), SequenceLength::of(sequence));
        let runner = Runner::new(decoder, &cpu);
        let mut x = runner.embed(Default::default(), sequence, length).unwrap();
        for index in 0..2 {
            let _ = runner.block(Default::default(), index, length, &mut x);
        }
        let (key, query) = ("model.decoder.layers.0.encoder_attn.k_proj", "model.decoder.layers.0.encoder_attn.q_proj");
        for (module, rows) in [(key, 5), (query, 4)] {
            for until in [Some(StopAt::AttentionInput), None] {
                let tap = Keep(module, Mutex::default());
                let _ = runner.block(
                    ForwardOptions { tap: Some(&tap), until, ..Default::default() },
                    2,
                    length,
                    &mut x.clone(),
                );
                let seen = tap.1.into_inner().unwrap();
                assert_eq!(seen.len(), rows * decoder.hidden(), "{module}");
                if module == key {
                    assert_eq!(seen, x[..5 * decoder.hidden()]);
                }
            }
        }
    });
}

#[test]
fn gradients_of_both_stacks_match_differences() {
    for family in ["bart", "umt5"] {
        with_pair(family, |decoder, sequence| {
            let (cpu, length) = (Cpu::default(), SequenceLength::of(sequence));
            let runner = Runner::new(decoder, &cpu);
            let mut x = runner.embed(Default::default(), sequence, length).unwrap();
            for index in 0..decoder.blueprint().blocks.len() {
                let gradient = BlockGradient::new(&runner, index).unwrap();
                let stored = gradient.weights(&Default::default());
                let mut next = x.clone();
                let _ = runner.block(Default::default(), index, length, &mut next);
                let recorded = gradient.forward(Default::default(), &stored, &x, length);
                let apart = recorded.output().iter().zip(&next).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                assert!(apart < 1e-4, "{family}, block {index}: {apart}");
                let along: Vec<f32> = (0..x.len()).map(|i| ((i * 7919) % 1009) as f32 / 504.5 - 1.0).collect();
                let zeros = |(name, values): (&String, &Vec<f32>)| (name.clone(), vec![0.0; values.len()]);
                let mut gradients =
                    BlockGradients { weights: stored.iter().map(zeros).collect(), ..BlockGradients::default() };
                recorded.backward(along.clone(), &mut gradients);
                let gradients = gradients.weights;
                let score = |weights: &Weights| -> f64 {
                    let recorded = gradient.forward(Default::default(), weights, &x, length);
                    recorded.output().iter().zip(&along).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
                };
                for (name, values) in &stored {
                    let direction: Vec<f32> =
                        (0..values.len()).map(|i| ((i * 6133 + name.len()) % 997) as f32 / 4985.0 - 0.1).collect();
                    let moved = |step: f32| {
                        let mut weights = stored.clone();
                        let own = values.iter().zip(&direction).map(|(value, along)| value + step * along).collect();
                        weights.insert(name.clone(), own);
                        score(&weights)
                    };
                    let step = 1e-2;
                    let difference = (moved(step) - moved(-step)) / f64::from(2.0 * step);
                    let product: f64 =
                        gradients[name].iter().zip(&direction).map(|(g, d)| f64::from(*g) * f64::from(*d)).sum();
                    let allowed = 3e-2 * difference.abs().max(0.05);
                    assert!((product - difference).abs() < allowed, "{name}: {product} {difference}");
                }
                x = next;
            }
        });
    }
}
