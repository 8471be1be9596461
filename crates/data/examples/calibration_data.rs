//! Prints calibration data as one JSON object, for comparison with other implementations.
//!
//! ```text
//! calibration_data MODEL SAMPLES LENGTH PACKING FILE...
//! ```
//!
//! `PACKING` is `document`, `sample`, `concatenate`, `random` or, for what suits the files, `natural`. The object holds
//! `sequences`, `provenance` and `warnings`.

use kvant_data::calibration::{CalibrationData, Options, Packing};
use std::error::Error;
use std::path::Path;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, samples, length, packing, files @ ..] = arguments.as_slice() else {
        return Err("usage: calibration_data MODEL SAMPLES LENGTH PACKING FILE...".into());
    };
    let mut options = Options::new(files, samples.parse()?, length.parse()?);
    options.packing = Packing::ALL.into_iter().find(|known| known.name() == packing);
    let data = CalibrationData::load(&options, Path::new(model), u32::MAX as usize, |_, _| {})?;
    let warnings: Vec<String> = data.provenance.warnings().iter().map(ToString::to_string).collect();
    let object = serde_json::json!({
        "sequences": data.sequences,
        "provenance": data.provenance,
        "warnings": warnings,
    });
    serde_json::to_writer(std::io::stdout(), &object)?;
    Ok(())
}
