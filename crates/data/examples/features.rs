//! Writes what a model of sounds reads of a sound, for comparison with other implementations.
//!
//! ```text
//! features MODEL SOUND OUT
//! ```
//!
//! `MODEL` is a directory with a preprocessor_config.json, that of a waveform where it names no class; `OUT` receives the values as `f32`: samples, or a row for each filter.

use kvant_data::sounds::{SoundExtractor, SoundInput};
use std::error::Error;
use std::path::Path;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, sound, out] = arguments.as_slice() else { return Err("usage: features MODEL SOUND OUT".into()) };
    let values = SoundExtractor::of_model(Path::new(model), SoundInput::Waveform)?.values(Path::new(sound))?;
    std::fs::write(out, values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>())?;
    Ok(())
}
