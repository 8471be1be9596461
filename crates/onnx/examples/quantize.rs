//! Quantizes an ONNX model by a preset: `quantize IN.onnx OUT.onnx PRESET [qoperator|int8|int4|channels|+ALGORITHM|DATA]...`.
//! Prints the report as JSON.
#![allow(clippy::print_stdout)]

use std::error::Error;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use kvant_container::onnx::{ExternalData, read, write};
use kvant_onnx::algorithm::Data;
use kvant_onnx::calibration::observe;
use kvant_onnx::data::{DataOptions, SampleSource, inputs};
use kvant_onnx::element::Element;
use kvant_onnx::preset::Preset;
use kvant_onnx::quantize::prepare;
use kvant_onnx::recipe::Layout;
use kvant_onnx::runtime::RuntimeOptions;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [input, output, preset, changes @ ..] = &arguments[..] else {
        return Err("quantize IN.onnx OUT.onnx PRESET [qoperator|int8|int4|channels|+ALGORITHM|DATA]...".into());
    };
    let mut recipe = Preset::resolve(preset)?.ok_or("no such preset")?;
    let (mut data, mut opened) = (None, None);
    for change in changes {
        match change.as_str() {
            "qoperator" => recipe.layout = Layout::QOperator,
            "int8" => (recipe.weight.element, recipe.weight.symmetric) = (Element::Int8, true),
            "int4" => (recipe.weight.element, recipe.weight.symmetric) = (Element::Int4, true),
            "channels" => recipe.weight.per_channel = true,
            text if text.starts_with('+') => recipe.algorithms.extend(&text[1..].parse()?)?,
            path => data = Some(SampleSource::Path(path.into())),
        }
    }
    let threads = std::thread::available_parallelism().ok().map(usize::from);
    let (runtime, cancelled) = (RuntimeOptions { threads, ..RuntimeOptions::default() }, AtomicBool::new(false));
    let passes = recipe.passes();
    let prepared = prepare(read(Path::new(input))?, recipe, &passes, None)?;
    if prepared.needs_data() {
        let source = data.ok_or("this preset needs data")?;
        opened = Some(source.open(&inputs(&prepared.model.graph), &DataOptions::default())?);
    }
    let mut watch = |_, _| {};
    let progress = &mut watch;
    let mut data =
        opened.as_mut().map(|samples| Data { samples, runtime, cancelled: &cancelled, progress, kept: None });
    let prepared = prepared.transformed(data.as_mut(), None)?;
    let mut observation = prepared.observation();
    if let Some(data) = data.as_mut().filter(|_| !observation.tensors().is_empty()) {
        observe(&prepared.model, &mut observation, data.samples, &data.runtime, &mut |_, _| {}, &cancelled)?;
    }
    let (model, report) = prepared.finish(&observation, data.as_mut(), None)?;
    println!("{}", serde_json::to_string(&report)?);
    Ok(write(model, Path::new(output), ExternalData::Auto)?)
}
