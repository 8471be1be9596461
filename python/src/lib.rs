//! The extension module of the Python package `kvant`: the requests of the library, and the command line. It converts values between
//! the languages, delivers events and signals, and has no logic of its own.

mod events;
mod language_model;
mod layers;
mod parameters;
mod request;
mod run;
mod spelling;
mod stored;
mod tensor;

use kvant::look_in_packages;
use kvant_cli::set_program;
use pyo3::prelude::*;
use std::ffi::OsString;
use std::path::PathBuf;

/// The system's allocator retains more freed memory between live blocks.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// What the package cannot do in Python.
#[pymodule(name = "_kvant")]
mod kvant_module {
    #[pymodule_export]
    use super::{add_family, main, use_program};
    #[pymodule_export]
    use crate::language_model::LanguageModel;
    #[pymodule_export]
    use crate::layers::{algorithms, layer_scheme, packed_activations, quantization_config};
    #[pymodule_export]
    use crate::parameters::{is_graph, parameters, spelled};
    #[pymodule_export]
    use crate::run::run;
    #[pymodule_export]
    use crate::stored::StoredModel;
    #[pymodule_export]
    use crate::tensor::{
        GraphObserver, GraphScheme, Hessian, InputStatistics, Observer, QuantTensor, fake_quantize, position,
        power_of_two, product_scales, quantize_tensor, round_tensor,
    };
    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}

/// Uses the description of an architecture, and returns the name of its family.
#[pyfunction]
fn add_family(py: Python<'_>, file: PathBuf) -> PyResult<&'static str> {
    let added = py.detach(|| kvant::add_family(&file));
    added.map(|family| family.name).map_err(|error| tensor::raised(py, error))
}

/// Carries out a command line without the name of the program, and returns the exit code of the process.
#[pyfunction]
fn main(py: Python<'_>, arguments: Vec<OsString>) -> u8 {
    py.detach(|| kvant_cli::run(arguments))
}

/// States the command line that starts another process of the program, up to the name of a command, and the directories of packages of
/// this one, in which ONNX Runtime may be.
#[pyfunction]
fn use_program(program: Vec<OsString>, packages: Vec<PathBuf>) {
    set_program(program);
    look_in_packages(packages);
}
