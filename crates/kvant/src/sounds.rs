//! Sounds for checkpoints of models of sounds: how they are opened, and the sequences that a model reads of them.

use crate::error::{Error, ErrorKind};
use crate::events::Reporter;
use crate::text::counts;
use kvant_container::{Checkpoint, Remedy};
use kvant_data::sounds::{SoundExtractor, SoundInput, SoundOptions, Sounds, Transcripts};
use kvant_data::tokenizer::TokenizerError;
use kvant_forward::evaluation::ScoredEnd;
use kvant_forward::forward::Decoder;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What the model of a checkpoint reads of sounds; `None` for models of text, and for those that do not run.
pub fn input(checkpoint: &Checkpoint) -> Option<SoundInput> {
    Decoder::open_any(checkpoint).ok()?.sound_input()
}

/// The sounds of a path, prepared as the first of these checkpoints says that states how.
///
/// # Errors
/// Data that are no sounds, or do not fit the model.
pub fn open(path: &Path, models: &[&Path], input: SoundInput, options: SoundOptions) -> Result<Arc<Sounds>, Error> {
    let states = |model: &&&Path| SoundExtractor::of_model(model, input).is_ok();
    let model = models.iter().find(states).or(models.first()).copied().map_or_else(PathBuf::new, Path::to_path_buf);
    Ok(Arc::new(Sounds::open(path, &model, input, options)?))
}

/// Gives a model sounds, and returns the sequence of each. The encoder of an encoder-decoder reads the sound, and its decoder the text beside
/// it, behind the special tokens of the first of these checkpoints that has a tokenizer; where there is no text, the token that decoders
/// begin with. The tokens of texts are scored.
///
/// # Errors
/// Sounds that the model does not read, texts without a tokenizer or too long for the model.
pub fn give(
    decoder: &mut Decoder<'_>,
    sounds: &Arc<Sounds>,
    models: &[&Path],
    reporter: &Reporter<'_>,
) -> Result<Vec<ScoredEnd>, Error> {
    let rows = decoder.give_sounds(Arc::clone(sounds))?;
    if sounds.cut() > 0 {
        let (cut, all) = (sounds.cut(), counts::number(sounds.len(), "sound"));
        reporter.note(&format!(
            "{cut} of {all} are longer than the model's window, and only their beginning is read: split them, and the texts beside them"
        ));
    }
    let Some(stacks) = decoder.stacks() else {
        return Ok(rows.into_iter().map(|tokens| ScoredEnd { tokens, scored: 0 }).collect());
    };
    let start = stacks.start.unwrap_or(u32::MAX);
    let (mut sequences, mut silent, mut transcripts) = (Vec::new(), 0, None);
    for (sound, rows) in rows.iter().enumerate() {
        let Some(text) = sounds.text(sound)?.filter(|text| !text.is_empty()) else {
            silent += 1;
            sequences.push(ScoredEnd { tokens: decoder.sequence_of_pair(rows, &[])?, scored: 0 });
            continue;
        };
        let known = match transcripts.take() {
            Some(known) => known,
            None => tokenizer(models)?,
        };
        let found = known.tokens(&text, start)?;
        transcripts = Some(known);
        let tokens = [&found.prefix[..], &found.text].concat();
        refuse_long(decoder, tokens.len(), &sounds.name(sound))?;
        sequences.push(ScoredEnd { tokens: decoder.sequence_of_pair(rows, &tokens)?, scored: found.text.len() });
    }
    if silent > 0 {
        let of = counts::number(sounds.len(), "sound");
        reporter.note(&format!(
            "{silent} of {of} have no text: the decoder reads the token that it begins with alone; put what is said in \
             `a.wav` into `a.txt` beside it"
        ));
    }
    Ok(sequences)
}

/// The tokenizer of the first model that has one.
fn tokenizer(models: &[&Path]) -> Result<Transcripts, Error> {
    let mut first = None;
    for model in models {
        match Transcripts::open(model) {
            Ok(transcripts) => return Ok(transcripts),
            Err(error) => drop(first.get_or_insert(error)),
        }
    }
    Err(first.map_or_else(|| Error::from(TokenizerError::Missing { file: "tokenizer.json".into() }), Error::from))
}

/// Refuses a text with more tokens than the decoder has positions.
fn refuse_long(decoder: &Decoder<'_>, tokens: usize, sound: &str) -> Result<(), Error> {
    match decoder.longest().filter(|longest| tokens > *longest) {
        None => Ok(()),
        Some(longest) => {
            let message = format!("the text of {sound} has {tokens} tokens, and the decoder reads at most {longest}");
            let remedy = Remedy::text("cut the sound and its text into shorter ones");
            Err(Error::new(ErrorKind::Invalid, message).with_remedies(vec![remedy]))
        }
    }
}
