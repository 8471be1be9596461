//! Engines that run a model on data and show any of its tensors: ONNX Runtime where its library is found, else the embedded
//! one. No statistics and no graph passes.
//!
//! [`open`] loads a model for a set of wanted tensors, [`Program`] for several sessions at a time; [`Session::run`] runs it once and
//! shows them.

mod choice;
mod error;
mod grouped;
mod model_file;
mod ort_engine;
mod ort_library;
mod rten_capability;
mod rten_engine;
mod rten_load;
mod rten_model;
mod session;

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use kvant_container::onnx::{GraphProto, ModelProto, NodeProto, data_type_bits};

pub use choice::{RuntimeChoice, RuntimeOptions};
pub use error::RuntimeError;
pub use ort_library::look_in_packages;
pub use session::{Session, Visit};

use crate::data::{Array, Axis, type_of};
use crate::graph::{Index, STANDARD_DOMAIN, called, domain, for_each_node, function};
pub(crate) use grouped::Grouped;
use ort_engine::OrtModel;
use rten_engine::RtenModel;

/// Domains of operators that exist only as plug-ins, which are never loaded.
pub(crate) const PLUG_INS: &[&str] = &["com.amd.quark", "com.vai.quantize"];

/// Domains of operators that are built into an engine.
const BUILT_IN: &[&str] = &[
    STANDARD_DOMAIN,
    "ai.onnx",
    "ai.onnx.ml",
    "ai.onnx.preview",
    "ai.onnx.preview.training",
    "ai.onnx.training",
    "com.microsoft",
    "com.microsoft.experimental",
    "com.microsoft.internal.nhwc",
    "com.microsoft.nchwc",
    "com.ms.internal.nhwc",
    "org.pytorch.aten",
];

/// Loads a model, to run it for the wanted tensors: outputs, inputs, constants or any tensor between.
///
/// Errors: a tensor the graph does not have, an engine that is not found or does not take the model.
pub fn open(model: &ModelProto, wanted: &[String], options: &RuntimeOptions) -> Result<Box<dyn Session>, RuntimeError> {
    Program::new(model, wanted, options)?.open()
}

/// A model made ready for an engine and a set of wanted tensors: all sessions opened from it share one file of the model, and
/// with the embedded engine the weights as well.
///
/// The file lies in the scratch directory until this is dropped; on Unix sessions do not need it then.
pub struct Program {
    loaded: Loaded,
    /// Tensors that never change.
    constants: Arc<HashMap<String, Array<'static>>>,
    sizes: HashMap<String, u64>,
    budget: u64,
}

impl Program {
    /// Checks and writes the model. Errors: those of [`open`].
    pub fn new(model: &ModelProto, wanted: &[String], options: &RuntimeOptions) -> Result<Self, RuntimeError> {
        let graph = &model.graph;
        refuse_foreign_operators(model)?;
        let (constants, made) = constants(graph, wanted)?;
        let loaded = Loaded::new(model, &made, options)?;
        Ok(Self { loaded, constants: constants.into(), sizes: declared_sizes(graph), budget: options.budget })
    }

    /// A session, for the tensors that were wanted.
    pub fn open(&self) -> Result<Box<dyn Session>, RuntimeError> {
        let (constants, sizes) = (Arc::clone(&self.constants), self.sizes.clone());
        Ok(Box::new(Grouped::new(self.loaded.open()?, constants, sizes, self.budget)))
    }
}

/// A model in an engine's own form.
enum Loaded {
    Rten(RtenModel),
    Ort(Box<OrtModel>),
}

impl Loaded {
    fn new(model: &ModelProto, wanted: &[String], options: &RuntimeOptions) -> Result<Self, RuntimeError> {
        match found(options)?.0 {
            RuntimeChoice::Rten => Ok(Self::Rten(RtenModel::new(model, wanted, options)?)),
            _ => Ok(Self::Ort(Box::new(OrtModel::new(model, wanted, options)?))),
        }
    }

    fn open(&self) -> Result<Box<dyn Session>, RuntimeError> {
        match self {
            Self::Rten(model) => Ok(Box::new(model.open())),
            Self::Ort(model) => Ok(Box::new(model.open()?)),
        }
    }
}

/// The wanted tensors that are constants, and the names of those that nodes make.
pub(crate) fn constants(
    graph: &GraphProto,
    wanted: &[String],
) -> Result<(HashMap<String, Array<'static>>, Vec<String>), RuntimeError> {
    let index = Index::new(graph);
    // Data are for inputs without an initializer only, so that nothing overrides one.
    let tensor = |name: &str| match index.initializer(name) {
        Some(position) => graph.initializer.get(position),
        None => index.constant(graph, name),
    };
    let array = |name: &String| crate::kernel::linear::constant(tensor(name)?);
    let constants: HashMap<_, _> = wanted.iter().filter_map(|name| Some((name.clone(), array(name)?))).collect();
    let made = |name: &&String| !constants.contains_key(*name) && !index.is_input(name);
    let made: Vec<String> = wanted.iter().filter(made).cloned().collect();
    match made.iter().find(|name| index.producer(name).is_none()) {
        Some(unknown) => Err(RuntimeError::UnknownTensor(unknown.clone())),
        None => Ok((constants, made)),
    }
}

/// The engine alone: wanted tensors are made by nodes, all of them are in memory at a time, of the types the engine has.
pub(crate) fn engine(
    model: &ModelProto,
    wanted: &[String],
    options: &RuntimeOptions,
) -> Result<Box<dyn Session>, RuntimeError> {
    Loaded::new(model, wanted, options)?.open()
}

/// Opens a model in ONNX Runtime as a program does that runs nothing else. The session has its own threads, one where `options` name none.
///
/// # Errors
/// The library is not there, or refuses the model.
pub(crate) fn open_alone(model: &ModelProto, options: &RuntimeOptions) -> Result<Box<dyn Session>, RuntimeError> {
    Ok(Box::new(ort_engine::open_alone(model, options)?))
}

/// The engine that a choice leads to on this machine, and its version.
///
/// Errors: ONNX Runtime was asked for and is not there.
pub fn found(options: &RuntimeOptions) -> Result<(RuntimeChoice, String), RuntimeError> {
    let embedded = (RuntimeChoice::Rten, rten_engine::NAME.to_owned());
    if options.choice == RuntimeChoice::Rten {
        return Ok(embedded);
    }
    match ort_library::load(options.library.as_deref(), options.threads) {
        Ok(runtime) => Ok((RuntimeChoice::Ort, format!("onnxruntime {}", runtime.version))),
        Err(_) if options.choice == RuntimeChoice::Auto && options.library.is_none() => Ok(embedded),
        Err(error) => Err(error),
    }
}

/// Opens the file of a model in ONNX Runtime as programs do by default, with all its graph optimizations. Its name and version.
/// The library may end the process over a file that is damaged: call this in one of its own.
///
/// Errors: the library is not there; [`RuntimeError::Load`], with what it says, where it refuses the model.
pub fn open_file(path: &Path, library: Option<&Path>) -> Result<String, RuntimeError> {
    ort_engine::open_file(path, library)
}

/// Refuses a model that the engine of a choice would not run for the wanted tensors, as far as that can be told without loading it.
///
/// # Errors
/// Operators that neither engine has, an engine that is not found, and nodes that the embedded engine, where it is the one, does not compute.
pub fn refuse_unrunnable(model: &ModelProto, wanted: &[String], options: &RuntimeOptions) -> Result<(), RuntimeError> {
    refuse_foreign_operators(model)?;
    if wanted.is_empty() {
        return Ok(());
    }
    if options.choice == RuntimeChoice::Ort {
        return found(options).map(drop);
    }
    let (_, made) = constants(&model.graph, wanted)?;
    // Looking for ONNX Runtime takes longer than the check.
    match rten_capability::check(&rten_model::needed(model, &made)) {
        Err(_) if found(options)?.0 == RuntimeChoice::Ort => Ok(()),
        checked => checked,
    }
}

/// Refuses operators that neither engine has, whichever is chosen: those of plug-ins and of other makers, unless the model defines them.
///
/// # Errors
/// Names the domain and some of its nodes.
fn refuse_foreign_operators(model: &ModelProto) -> Result<(), RuntimeError> {
    let is_foreign = |node: &NodeProto| {
        PLUG_INS.contains(&domain(node)) || !(BUILT_IN.contains(&domain(node)) || function(model, node).is_some())
    };
    let mut foreign: Vec<&NodeProto> = Vec::new();
    for_each_node(&model.graph, &mut |node| {
        if is_foreign(node) && foreign.first().is_none_or(|first| domain(first) == domain(node)) {
            foreign.push(node);
        }
    });
    let Some(first) = foreign.first() else { return Ok(()) };
    let nodes = foreign.iter().take(5).map(|node| format!("{} `{}`", node.op_type(), called(node))).collect();
    Err(RuntimeError::Domain { domain: domain(first).to_owned(), nodes })
}

/// Bytes of the tensors whose type and shape are declared, open axes taken as 1.
fn declared_sizes(graph: &GraphProto) -> HashMap<String, u64> {
    let size = |(data_type, axes)| {
        let axes: Vec<Axis> = Option::<Vec<Axis>>::clone(&axes)?;
        let size = axes.iter().map(|axis| if let Axis::Fixed(size) = axis { *size as u64 } else { 1 });
        size.fold(data_type_bits(data_type), |n: Option<u64>, d| n?.checked_mul(d)).map(|bits| bits / 8)
    };
    let stated = graph.value_info.iter().chain(&graph.output);
    stated.filter_map(|value| Some((value.name().to_owned(), size(type_of(value))?))).collect()
}

#[cfg(test)]
mod tests;
