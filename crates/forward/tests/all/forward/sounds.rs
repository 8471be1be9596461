//! Models of sounds: what they are given, and what is refused.

use super::models;
use crate::support;
use kvant_container::{Checkpoint, Diagnostic, Dtype, ErrorKind};
use kvant_data::sounds::{SoundInput, SoundOptions, Sounds};
use kvant_forward::evaluation::{DEFAULT_MEMORY, EvaluationError, ScoredEnd, evaluate_scored};
use kvant_forward::forward::cpu::Cpu;
use kvant_forward::forward::{Decoder, ForwardError};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

/// An array of sounds with the values of a function of sound and place.
fn sounds(dir: &Path, input: SoundInput, shape: &[usize], value: impl Fn(usize, usize) -> f32) -> Arc<Sounds> {
    let sizes: Vec<String> = shape.iter().map(usize::to_string).collect();
    let header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}), }}", sizes.join(", "));
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.as_bytes());
    let of_each: usize = shape[1..].iter().product();
    for sound in 0..shape[0] {
        bytes.extend((0..of_each).flat_map(|place| value(sound, place).to_le_bytes()));
    }
    let file = dir.join(format!("sounds_{}.npy", sizes.join("_")));
    std::fs::write(&file, bytes).unwrap();
    Arc::new(Sounds::open(&file, dir, input, SoundOptions::default()).unwrap())
}

fn wave(sound: usize, place: usize) -> f32 {
    ((place * 7 + sound * 1000) as f32 * 0.37).sin()
}

#[test]
fn sounds_are_sequences_of_the_rows_of_convolutions() {
    for family in ["hubert", "wav2vec2"] {
        let dir = models::write(family, Dtype::F32, "");
        let checkpoint = Checkpoint::open(dir.path()).unwrap();
        let mut decoder = Decoder::open_any(&checkpoint).unwrap_or_else(|error| panic!("{family}: {error}"));
        assert_eq!((decoder.sound_input(), decoder.is_encoder()), (Some(SoundInput::Waveform), true), "{family}");
        let sequences = decoder.give_sounds(sounds(dir.path(), SoundInput::Waveform, &[3, 200], wave)).unwrap();
        // 200 samples by kernels of 10 and 3 with steps of 5 and 2.
        assert!(sequences.len() == 3 && sequences.iter().all(|tokens| tokens.len() == 19), "{family}");
        let run = |tokens: &[u32]| decoder.encode(&Cpu::default(), tokens, 19).unwrap().0;
        let all = run(&sequences.concat());
        let width = 19 * decoder.hidden();
        assert_eq!(all.len(), 3 * width, "{family}");
        for (sound, tokens) in sequences.iter().enumerate() {
            assert_eq!(run(tokens), all[sound * width..(sound + 1) * width], "{family}");
        }
        assert_ne!(all[..width], all[width..2 * width], "{family}");
    }
}

const SPECTROGRAM: SoundInput = SoundInput::LogMel { bins: 8, frames: 24 };

/// Calls `work` with a model of spectrograms and the rows of two sounds.
fn with_whisper(work: impl FnOnce(&Decoder<'_>, &[Vec<u32>])) {
    let dir = models::write("whisper", Dtype::F32, "");
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    let mut decoder = Decoder::open_any(&checkpoint).unwrap();
    assert_eq!(decoder.sound_input(), Some(SPECTROGRAM));
    let rows = decoder.give_sounds(sounds(dir.path(), SPECTROGRAM, &[2, 8, 24], wave)).unwrap();
    assert!(rows.len() == 2 && rows.iter().all(|rows| rows.len() == 12));
    work(&decoder, &rows);
}

#[test]
fn decoders_see_the_sound_and_tokens_before_them() {
    with_whisper(|decoder, rows| {
        let logits = |rows: &[u32], text: &[u32]| {
            let sequence = decoder.sequence_of_pair(rows, text).unwrap();
            decoder.logits(&Cpu::default(), &sequence, sequence.len()).unwrap()
        };
        let (vocabulary, found) = (decoder.vocabulary(), logits(&rows[0], &[12, 40]));
        assert_eq!(found.len(), 3 * vocabulary);
        let other = logits(&rows[0], &[12, 41]);
        assert_eq!(found[..2 * vocabulary], other[..2 * vocabulary]);
        assert_ne!(found[2 * vocabulary..], other[2 * vocabulary..]);
        assert_ne!(found[..vocabulary], logits(&rows[1], &[12, 40])[..vocabulary]);
    });
}

#[test]
fn sounds_without_texts_are_compared_and_not_scored() {
    with_whisper(|decoder, rows| {
        let sequence = |rows: &[u32], text: &[u32], scored| ScoredEnd {
            tokens: decoder.sequence_of_pair(rows, text).unwrap(),
            scored,
        };
        let evaluate = |sequences: &[ScoredEnd], reference| {
            let watch = |_, _| ControlFlow::Continue(());
            evaluate_scored(decoder, reference, &Cpu::default(), sequences, DEFAULT_MEMORY, watch)
        };
        let silent = [sequence(&rows[0], &[], 0), sequence(&rows[1], &[], 0)];
        assert!(matches!(evaluate(&silent, None), Err(EvaluationError::NothingScored)));
        let found = evaluate(&silent, Some(decoder)).unwrap();
        let comparison = found.comparison.unwrap();
        assert_eq!((found.tokens, found.windows, comparison.top1_agreement), (0, 2, 1.0));
        assert!(found.perplexity.is_nan() && comparison.kl_mean.value.abs() < 1e-6, "{comparison:?}");
        // Of a text, the first token is given and the others are scored.
        let both = [sequence(&rows[0], &[3, 12, 40], 2), silent[1].clone()];
        let found = evaluate(&both, Some(decoder)).unwrap();
        assert_eq!((found.tokens, found.windows), (2, 2));
        let tokens = &both[0].tokens;
        let logits = decoder.logits(&Cpu::default(), tokens, tokens.len()).unwrap();
        let loss = |row: usize, target: usize| {
            let row: Vec<f64> =
                logits.chunks_exact(decoder.vocabulary()).nth(row).unwrap().iter().map(|z| f64::from(*z)).collect();
            row.iter().map(|z| z.exp()).sum::<f64>().ln() - row[target]
        };
        let expected = ((loss(1, 12) + loss(2, 40)) / 2.0).exp();
        assert!((found.perplexity / expected - 1.0).abs() < 1e-5, "{} {expected}", found.perplexity);
    });
}

#[test]
fn what_is_no_sound_of_the_model_is_refused() {
    let dir = models::write("wav2vec2", Dtype::F32, "");
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    let mut decoder = Decoder::open_any(&checkpoint).unwrap();
    let none = decoder.encode(&Cpu::default(), &[0; 19], 19).unwrap_err();
    assert!(matches!(none, ForwardError::NoSounds) && none.hint().is_some(), "{none}");
    let short = decoder.give_sounds(sounds(dir.path(), SoundInput::Waveform, &[1, 19], wave)).unwrap_err();
    assert!(matches!(short, ForwardError::ShortSound { .. }) && short.hint().is_some(), "{short}");
    let sequences = decoder.give_sounds(sounds(dir.path(), SoundInput::Waveform, &[2, 200], wave)).unwrap();
    let mut mixed = sequences[0].clone();
    mixed[18] = sequences[1][18];
    let foreign = decoder.encode(&Cpu::default(), &mixed, 19).unwrap_err();
    assert!(matches!(foreign, ForwardError::Token { .. }), "{foreign}");

    let text = models::write("bert", Dtype::F32, "");
    let text = Checkpoint::open(text.path()).unwrap();
    let refused =
        Decoder::open_any(&text).unwrap().give_sounds(sounds(dir.path(), SoundInput::Waveform, &[1, 300], wave));
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Unsupported);
    for (key, value, words) in [
        ("add_adapter", serde_json::json!(true), "add_adapter"),
        ("feat_extract_norm", serde_json::json!("batch"), "feat_extract_norm"),
        ("conv_kernel", serde_json::json!([10, 4]), "4 taps"),
        ("num_conv_pos_embedding_groups", serde_json::json!(3), "3 groups"),
    ] {
        let mut fixture = support::Checkpoint::read("wav2vec2");
        fixture.config[key] = value;
        let other = models::write_fixture(&fixture, Dtype::F32, "");
        let error = Decoder::open_any(&Checkpoint::open(other.path()).unwrap()).err().unwrap();
        assert!(error.to_string().contains(words), "{error}");
    }
}
