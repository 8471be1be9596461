//! Writes a checkpoint's logits, for comparison with other implementations.
//!
//! ```text
//! logits MODEL LENGTH TOKENS OUT [THREADS]
//! ```
//!
//! Of a model of images, `TOKENS` is a file of images or of arrays, in place of tokens.
//!
//! Of a model of sounds, `TOKENS` is a file or folder of sounds or of arrays, in place of tokens. Of an encoder-decoder whose encoder reads
//! them, the decoder reads the first tokens of the vocabulary behind that which it begins with, `LENGTH` in number.
//!
//! Of a model of text and images, `TOKENS` may be a file of conversations (`.jsonl`), in place of tokens: `OUT` receives the logits of all
//! rows, and `OUT.tokens` the number of tokens of each and the tokens, in which rows of images have the numbers behind the vocabulary.
//!
//! Of an encoder-decoder, the encoder reads each sequence, and the decoder predicts the same: its logits are written, one row more than there are
//! tokens.
//!
//! Of an encoder it writes the last hidden states, then all that its readouts give, one after the other.
//!
//! `TOKENS` holds sequences of `LENGTH` little-endian `u32`; `OUT` receives the logits of every token as `f32`. `KVANT_ROTATE` spells a
//! rotation of the model (`rotate:seed=3`).

use kvant_container::Checkpoint;
use kvant_data::calibration::Documents;
use kvant_data::images::{ImageOptions, Images};
use kvant_data::sounds::{SoundOptions, Sounds};
use kvant_formats::algorithm::Algorithms;
use kvant_forward::forward::cpu::Cpu;
use kvant_forward::forward::{Decoder, ForwardError};
use std::error::Error;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, length, file, out, rest @ ..] = arguments.as_slice() else {
        return Err("usage: logits MODEL LENGTH TOKENS OUT [THREADS]".into());
    };
    let threads = rest.first().map_or(Ok(0), |threads| threads.parse())?;
    let bytes = if Path::new(file).is_dir() { Vec::new() } else { std::fs::read(file)? };
    let mut tokens: Vec<u32> =
        bytes.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]])).collect();
    let mut checkpoint = Checkpoint::open(Path::new(model))?;
    if let Some(rotate) = std::env::var("KVANT_ROTATE").ok().map(|text| text.parse::<Algorithms>()).transpose()? {
        let rotation = rotate.rotation.ok_or("KVANT_ROTATE is no rotation")?;
        checkpoint = kvant_formats::rotated::open(checkpoint, Some(rotation))?;
    }
    let mut decoder = Decoder::open_any(&checkpoint)?;
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build()?;
    if file.ends_with(".jsonl") {
        let logits = pool.install(|| of_conversations(&mut decoder, &checkpoint, Path::new(model), [file, out]));
        let logits = logits.map_err(|error| error.to_string())?;
        std::fs::write(out, logits.iter().flat_map(|z| z.to_le_bytes()).collect::<Vec<u8>>())?;
        return Ok(());
    }
    let mut length = length.parse()?;
    if let Some(input) = decoder.sound_input() {
        let sounds = Sounds::open(Path::new(file), Path::new(model), input, SoundOptions::default())?;
        let rows = decoder.give_sounds(Arc::new(sounds))?;
        let numbers = pool.install(|| of_sounds(&decoder, &rows, length as u32))?;
        std::fs::write(out, numbers.iter().flat_map(|z| z.to_le_bytes()).collect::<Vec<u8>>())?;
        return Ok(());
    }
    if let Some(shape) = decoder.image_shape() {
        let images = Images::open(Path::new(file), Path::new(model), shape, ImageOptions::default())?;
        let sequences = decoder.give_images(Arc::new(images))?;
        length = sequences.first().map_or(1, Vec::len);
        tokens = sequences.concat();
    }
    if decoder.stacks().is_some() {
        let texts = tokens.chunks_exact(length).map(<[u32]>::to_vec).collect();
        tokens = decoder.sequences_of(texts)?.concat();
        length = 2 * length + 1;
    }
    let logits = match decoder.is_encoder() {
        true => {
            let (hidden, readouts) = pool.install(|| decoder.encode(&Cpu::default(), &tokens, length))?;
            [hidden, readouts.concat()].concat()
        }
        false => pool.install(|| decoder.logits(&Cpu::default(), &tokens, length))?,
    };
    std::fs::write(out, logits.iter().flat_map(|z| z.to_le_bytes()).collect::<Vec<u8>>())?;
    Ok(())
}

/// What a model makes of sounds, one after the other: logits, or hidden states and readouts.
fn of_sounds(decoder: &Decoder<'_>, rows: &[Vec<u32>], length: u32) -> Result<Vec<f32>, ForwardError> {
    let mut numbers = Vec::new();
    let text: Vec<u32> = (0..length).collect();
    for rows in rows {
        if decoder.stacks().is_some() {
            let sequence = decoder.sequence_of_pair(rows, &text)?;
            numbers.extend(decoder.logits(&Cpu::default(), &sequence, sequence.len())?);
        } else {
            let (hidden, readouts) = decoder.encode(&Cpu::default(), rows, rows.len())?;
            numbers.extend(hidden);
            numbers.extend(readouts.concat());
        }
    }
    Ok(numbers)
}

/// The logits of all conversations of a file, whose tokens are written.
fn of_conversations<'a>(
    decoder: &mut Decoder<'a>,
    checkpoint: &'a Checkpoint,
    model: &Path,
    [file, out]: [&String; 2],
) -> Result<Vec<f32>, Box<dyn Error + Send + Sync>> {
    let images = decoder.text_images(checkpoint, model);
    let data = Documents::load_with_images(Path::new(file), None, model, decoder.vocabulary(), images)?;
    let sequences = || data.documents.iter().map(|document| document.tokens.as_slice());
    let images = Arc::new(data.images.clone());
    decoder.give_text_images(checkpoint, &images, sequences(), &Cpu::default(), u64::MAX, |_, _| {
        ControlFlow::Continue(())
    })?;
    let (mut logits, mut words) = (Vec::new(), Vec::new());
    for tokens in sequences() {
        logits.extend(decoder.logits(&Cpu::default(), tokens, tokens.len())?);
        words.push(tokens.len() as u32);
        words.extend_from_slice(tokens);
    }
    std::fs::write(format!("{out}.tokens"), words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>())?;
    Ok(logits)
}
