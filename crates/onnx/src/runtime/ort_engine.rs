//! ONNX Runtime as an engine.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use half::{bf16, f16};
use kvant_container::onnx::{ModelProto, ValueInfoProto};
use ort::logging::LogLevel;
use ort::session::builder::{GraphOptimizationLevel, SessionBuilder};
use ort::session::{OutputSelector, RunOptions, Session as OrtSession, SessionInputValue};
use ort::value::{DynValue, TensorElementType, TensorRef};

use super::choice::RuntimeOptions;
use super::error::RuntimeError;
use super::model_file::{MAPS_NEED_NAMES, ModelFile, tensor_bytes};
use super::ort_library::{OnnxRuntime, load};
use super::session::{Session, Visit};
use crate::data::{Array, Element, Values};

/// From this many bytes on weights are left where they lie: copies in the order of the kernels would be as large again.
const NOT_PACKED: usize = 512 << 20;

/// A model as ONNX Runtime loads it, any number of times.
pub(super) struct OrtModel {
    runtime: OnnxRuntime,
    file: Arc<ModelFile>,
    optimize: bool,
    packed: bool,
    own: Option<OwnThreads>,
}

/// Threads of a session alone.
#[derive(Clone, Copy)]
struct OwnThreads {
    count: usize,
    /// Whether they spin while a run waits for them, and stop when it ends. Else they sleep.
    spin: bool,
}

impl OrtModel {
    /// Makes a model ready, so that the wanted tensors, all of them made by its nodes, can be had.
    pub fn new(model: &ModelProto, wanted: &[String], options: &RuntimeOptions) -> Result<Self, RuntimeError> {
        let runtime = load(options.library.as_deref(), options.threads)?;
        let file = Arc::new(ModelFile::new(with_outputs(model, wanted), options.scratch.as_deref())?);
        let own = options.threads.filter(|_| options.threads != runtime.threads);
        Ok(Self {
            file,
            optimize: options.optimize && !mostly_wanted(model, wanted),
            packed: tensor_bytes(model) < NOT_PACKED,
            own: own.map(|count| OwnThreads { count, spin: false }),
            runtime,
        })
    }

    /// A session of its own.
    pub fn open(&self) -> Result<OrtEngine, RuntimeError> {
        let name = format!("onnxruntime {}", self.runtime.version);
        let refused = |e: ort::Error| RuntimeError::Load { engine: name.clone(), problem: message(e) };
        let builder = OrtSession::builder(&self.runtime.environment).map_err(refused)?;
        let mut builder = configured(builder, self.optimize, self.packed, self.own).map_err(refused)?;
        let session = match &*self.file {
            ModelFile::Bytes(bytes) => builder.commit_from_memory(bytes),
            ModelFile::File { path, .. } => builder.commit_from_file(path),
        };
        let kept = MAPS_NEED_NAMES.then(|| Arc::clone(&self.file));
        Ok(OrtEngine { session: session.map_err(refused)?, name, _file: kept })
    }
}

/// Opens a model as a program does that runs nothing else: with all graph optimizations, weights in the order of kernels, and its
/// own threads.
pub(super) fn open_alone(model: &ModelProto, options: &RuntimeOptions) -> Result<OrtEngine, RuntimeError> {
    let runtime = load(options.library.as_deref(), options.threads)?;
    let file = Arc::new(ModelFile::new(model.clone(), options.scratch.as_deref())?);
    let own = Some(OwnThreads { count: options.threads.unwrap_or(1), spin: true });
    OrtModel { runtime, file, optimize: true, packed: true, own }.open()
}

/// Opens a file with the settings that sessions have by default; the engine's name.
pub(super) fn open_file(path: &Path, library: Option<&Path>) -> Result<String, RuntimeError> {
    let runtime = load(library, Some(1))?;
    let name = format!("onnxruntime {}", runtime.version);
    let refused = |e: ort::Error| RuntimeError::Load { engine: name.clone(), problem: message(e) };
    let builder = OrtSession::builder(&runtime.environment).map_err(refused)?;
    let mut builder = configured(builder, true, true, None).map_err(refused)?;
    builder.commit_from_file(path).map_err(refused)?;
    Ok(name)
}

/// A message of the library without its last line breaks.
fn message(problem: impl std::fmt::Display) -> String {
    problem.to_string().trim_end().to_owned()
}

/// A model loaded by ONNX Runtime.
pub(super) struct OrtEngine {
    session: OrtSession,
    name: String,
    /// The files the session maps, where a map needs their names.
    _file: Option<Arc<ModelFile>>,
}

impl OrtEngine {
    fn failed(&self, problem: impl std::fmt::Display) -> RuntimeError {
        RuntimeError::Run { engine: self.name.clone(), problem: message(problem) }
    }
}

/// Returns whether so many tensors are wanted that nodes can hardly be fused: optimization would only take memory.
fn mostly_wanted(model: &ModelProto, wanted: &[String]) -> bool {
    wanted.len() > 1 && 2 * wanted.len() > model.graph.node.len()
}

fn configured(
    builder: SessionBuilder,
    optimize: bool,
    packed: bool,
    own: Option<OwnThreads>,
) -> Result<SessionBuilder, ort::Error> {
    let level = if optimize { GraphOptimizationLevel::All } else { GraphOptimizationLevel::Disable };
    let builder = builder.with_optimization_level(level)?.with_prepacking(packed)?.with_log_level(LogLevel::Fatal)?;
    match own {
        Some(OwnThreads { count, spin }) => {
            let builder = builder.with_independent_thread_pool()?.with_intra_op_spinning(spin)?;
            // The threads of one session must not take the cores from the next.
            let builder = builder.with_config_entry("session.force_spinning_stop", "1")?;
            Ok(builder.with_intra_threads(count)?)
        }
        None => Ok(builder),
    }
}

/// The model with the wanted tensors as outputs.
fn with_outputs(model: &ModelProto, wanted: &[String]) -> ModelProto {
    let mut model = model.clone();
    if let Some(graph) = model.graph.as_mut() {
        let mut outputs: HashSet<String> = graph.output.iter().map(|value| value.name().to_owned()).collect();
        for name in wanted {
            if outputs.insert(name.clone()) {
                graph.output.push(ValueInfoProto { name: Some(name.clone()), ..ValueInfoProto::default() });
            }
        }
    }
    model
}

impl Session for OrtEngine {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn run(
        &mut self,
        inputs: &[(&str, Array<'_>)],
        wanted: &[String],
        visit: &mut Visit<'_>,
    ) -> Result<(), RuntimeError> {
        let values = inputs.iter().map(|(name, array)| Ok((*name, lent(array).map_err(|e| self.failed(e))?)));
        let values = values.collect::<Result<Vec<_>, RuntimeError>>()?;
        let selector = wanted.iter().fold(OutputSelector::no_default(), |selector, name| selector.with(name));
        let run_options = RunOptions::new().map_err(|e| self.failed(e))?.with_outputs(selector);
        let engine = &self.name;
        let failed = |problem: String| RuntimeError::Run { engine: engine.clone(), problem };
        let outputs = self.session.run_with_options(values, &run_options).map_err(|e| failed(e.to_string()))?;
        for name in wanted {
            let output = outputs.get(name).ok_or_else(|| RuntimeError::UnknownTensor(name.clone()))?;
            let array = array(output).map_err(|problem| failed(format!("tensor `{name}`: {problem}")))?;
            if visit(name, &array).is_break() {
                break;
            }
        }
        Ok(())
    }
}

/// An array as an input, lent.
fn lent<'a>(array: &'a Array<'_>) -> Result<SessionInputValue<'a>, ort::Error> {
    crate::data::each_type!(array.values(), v => {
        TensorRef::from_array_view((array.shape().to_vec(), &v[..])).map(SessionInputValue::from)
    })
}

/// An output as an array, lent.
fn array(value: &DynValue) -> Result<Array<'_>, String> {
    let ort::value::ValueType::Tensor { ty, .. } = value.dtype() else { return Err("it is not a tensor".to_owned()) };
    match ty {
        TensorElementType::Float32 => extracted::<f32>(value),
        TensorElementType::Float64 => extracted::<f64>(value),
        TensorElementType::Float16 => extracted::<f16>(value),
        TensorElementType::Bfloat16 => extracted::<bf16>(value),
        TensorElementType::Int64 => extracted::<i64>(value),
        TensorElementType::Int32 => extracted::<i32>(value),
        TensorElementType::Int16 => extracted::<i16>(value),
        TensorElementType::Int8 => extracted::<i8>(value),
        TensorElementType::Uint64 => extracted::<u64>(value),
        TensorElementType::Uint32 => extracted::<u32>(value),
        TensorElementType::Uint16 => extracted::<u16>(value),
        TensorElementType::Uint8 => extracted::<u8>(value),
        TensorElementType::Bool => extracted::<bool>(value),
        other => Err(format!("elements of type {other:?} cannot be read")),
    }
}

fn extracted<T: Element + ort::value::PrimitiveTensorElementType>(value: &DynValue) -> Result<Array<'_>, String> {
    let (shape, values) = value.try_extract_tensor::<T>().map_err(|e| e.to_string())?;
    let shape = shape.iter().map(|&d| usize::try_from(d)).collect::<Result<_, _>>().map_err(|e| e.to_string())?;
    let values: Values<'_> = T::values(values.into());
    Array::new(shape, values).ok_or_else(|| "its values do not fill its shape".to_owned())
}
