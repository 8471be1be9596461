//! Writes what a model of images reads of a picture, for comparison with other implementations.
//!
//! ```text
//! pixels MODEL PICTURE OUT
//! ```
//!
//! `MODEL` is a directory with a preprocessor_config.json; `OUT` receives the values as `f32`, channel by channel, row by row.

use kvant_data::images::ImageProcessor;
use std::error::Error;
use std::path::Path;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, picture, out] = arguments.as_slice() else { return Err("usage: pixels MODEL PICTURE OUT".into()) };
    let pixels = ImageProcessor::of_model(Path::new(model))?.pixels(Path::new(picture))?;
    std::fs::write(out, pixels.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>())?;
    Ok(())
}
