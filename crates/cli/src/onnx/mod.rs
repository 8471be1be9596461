//! ONNX graphs at the command line: what the commands do when the model is one.

mod data;
pub mod decoder;
pub mod eval;
pub mod inspect;
mod measure;
pub mod opening;
pub mod plan;
pub mod quantize;
mod recipe;
pub mod sensitivity;
mod staged;
pub mod verify;

use std::path::Path;

use crate::args::{EngineArgs, RunArgs};
use crate::failure::{Failure, Kind};
use crate::model;
use kvant_container::onnx::ModelProto;
use kvant_onnx::data::Source;
use kvant_onnx::runtime::{RuntimeChoice, RuntimeOptions};

/// Whether a path means an ONNX graph.
pub fn is_graph(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("onnx"))
}

/// Reads a graph and its external data.
fn read(path: &Path) -> Result<ModelProto, Failure> {
    Ok(kvant_container::onnx::read(path)?)
}

/// Whether data are made up.
fn is_random(source: &Source) -> bool {
    matches!(source, Source::Random(_))
}

fn runtime(args: &EngineArgs, run: &RunArgs) -> RuntimeOptions {
    RuntimeOptions {
        choice: args.runtime,
        threads: Some(model::threads(run)),
        library: args.runtime_library.clone(),
        ..RuntimeOptions::default()
    }
}

/// Refuses a library of an engine that is not asked for.
fn refuse_idle_library(args: &EngineArgs) -> Result<(), Failure> {
    if args.runtime != RuntimeChoice::Rten || args.runtime_library.is_none() {
        return Ok(());
    }
    let failure = Failure::new(Kind::Usage, "--runtime-library and --runtime rten exclude each other");
    Err(failure.with_hint(Some("leave one of them out: the library is that of ONNX Runtime".to_owned())))
}

/// The one path of data that a graph takes.
fn one_source(paths: &[std::path::PathBuf]) -> Result<Option<&Path>, Failure> {
    match paths {
        [] => Ok(None),
        [path] => Ok(Some(path)),
        _ => {
            let failure = Failure::new(Kind::Usage, "an ONNX graph is calibrated on one file or directory");
            Err(failure.with_hint(Some("put the files into one directory and give that".to_owned())))
        }
    }
}
