//! rten, the engine that is built in: pure Rust, floats in single precision, integers of 32 bits.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use kvant_container::onnx::{DataType, ModelProto};
use rten::{Model, ModelOptions, NodeId, RunOptions, ThreadPool, Value, ValueOrView, ValueView};
use rten_tensor::prelude::*;
use rten_tensor::{Tensor, TensorView};

use super::choice::RuntimeOptions;
use super::error::RuntimeError;
use super::session::{Session, Visit};
use super::{rten_capability, rten_load, rten_model};
use crate::data::{Array, Values};

/// The version in `Cargo.toml`, pinned.
pub(super) const NAME: &str = "rten 0.27.0";

/// A model loaded by rten, which any number of sessions run.
pub(super) struct RtenModel {
    model: Arc<Model>,
    nodes: Arc<HashMap<String, NodeId>>,
    threads: Option<usize>,
    opened: AtomicUsize,
    file: Option<Arc<tempfile::TempDir>>,
}

impl RtenModel {
    /// Checks that rten computes the model right, and loads it. Tensors inside the graph can be had only where it is not
    /// optimized, which is seen to here.
    pub fn new(model: &ModelProto, wanted: &[String], options: &RuntimeOptions) -> Result<Self, RuntimeError> {
        let outputs = model.graph.output.iter().map(|value| value.name());
        let outputs: Vec<&str> = outputs.collect();
        let inside = wanted.iter().any(|name| !outputs.contains(&name.as_str()));
        let needed = rten_model::needed(model, wanted);
        rten_capability::check(&needed)?;
        let rewritten = rten_model::rewritten(&needed);
        let load = |optimize: bool| {
            let mut load = ModelOptions::with_all_ops();
            load.enable_optimization(optimize);
            rten_load::load(&load, rewritten.clone(), options.scratch.as_deref())
        };
        let (loaded, file) = match options.optimize && !inside {
            // Its optimizer fails on some graphs that it runs as they are.
            true => load(true).or_else(|_| load(false))?,
            false => load(false)?,
        };
        let node = |name: &String| match loaded.find_node(name) {
            Some(node) => Ok((name.clone(), node)),
            None => Err(RuntimeError::UnknownTensor(name.clone())),
        };
        let inputs = model.graph.input.iter().map(|value| value.name().to_owned());
        let inputs = inputs.filter_map(|name| Some((name.clone(), loaded.find_node(&name)?)));
        let nodes: HashMap<_, _> = wanted.iter().map(node).chain(inputs.map(Ok)).collect::<Result<_, _>>()?;
        let (threads, opened) = (options.threads, AtomicUsize::new(0));
        Ok(Self { model: loaded.into(), nodes: nodes.into(), threads, opened, file: file.map(Arc::new) })
    }

    /// A session with the weights of all others, and threads of its own: they run side by side.
    pub fn open(&self) -> RtenEngine {
        let number = self.opened.fetch_add(1, Ordering::Relaxed);
        let pool = self.threads.map(|threads| pool(threads, number));
        RtenEngine { model: self.model.clone(), nodes: self.nodes.clone(), pool, _file: self.file.clone() }
    }
}

/// A model ready to run.
pub(super) struct RtenEngine {
    model: Arc<Model>,
    nodes: Arc<HashMap<String, NodeId>>,
    pool: Option<Arc<ThreadPool>>,
    _file: Option<Arc<tempfile::TempDir>>,
}

impl RtenEngine {
    fn node(&self, name: &str) -> Result<NodeId, RuntimeError> {
        self.nodes.get(name).copied().ok_or_else(|| RuntimeError::UnknownTensor(name.to_owned()))
    }
}

/// The pool of so many threads for the sessions of a number, which all models share: an evaluation may have many.
fn pool(threads: usize, session: usize) -> Arc<ThreadPool> {
    static POOLS: Mutex<BTreeMap<(usize, usize), Arc<ThreadPool>>> = Mutex::new(BTreeMap::new());
    let mut pools = POOLS.lock().unwrap_or_else(PoisonError::into_inner);
    pools.entry((threads, session)).or_insert_with(|| Arc::new(ThreadPool::with_num_threads(threads))).clone()
}

impl Session for RtenEngine {
    fn name(&self) -> String {
        NAME.to_owned()
    }

    fn run(
        &mut self,
        inputs: &[(&str, Array<'_>)],
        wanted: &[String],
        visit: &mut Visit<'_>,
    ) -> Result<(), RuntimeError> {
        let narrow = inputs.iter().map(|(name, array)| Ok((*name, narrowed(name, array)?)));
        let narrow = narrow.collect::<Result<Vec<_>, RuntimeError>>()?;
        let values = narrow.iter().map(|(name, array)| Ok((self.node(name)?, value(name, array)?)));
        let values = values.collect::<Result<Vec<_>, RuntimeError>>()?;
        let outputs = wanted.iter().map(|name| self.node(name)).collect::<Result<Vec<_>, _>>()?;
        let run_options = RunOptions::default().with_thread_pool(self.pool.clone());
        let results = self.model.run(values, &outputs, Some(run_options));
        let results = results.map_err(|e| RuntimeError::Run { engine: NAME.to_owned(), problem: e.to_string() })?;
        for (name, result) in wanted.iter().zip(results) {
            let Some(array) = array(result) else {
                let problem = format!("`{name}` is not a tensor");
                return Err(RuntimeError::Run { engine: NAME.to_owned(), problem });
            };
            if visit(name, &array).is_break() {
                break;
            }
        }
        Ok(())
    }
}

/// An input in a type rten has: 64-bit integers and truth values as 32-bit integers, other floats as single precision.
fn narrowed<'a>(name: &str, array: &'a Array<'_>) -> Result<Array<'a>, RuntimeError> {
    let to = match array.data_type() {
        DataType::INT64 | DataType::BOOL => DataType::INT32,
        DataType::DOUBLE | DataType::FLOAT16 | DataType::BFLOAT16 => DataType::FLOAT,
        same => same,
    };
    let problem =
        || RuntimeError::Input { input: name.to_owned(), problem: "integers of more than 32 bits".to_owned() };
    array.view().cast(to).ok_or_else(problem)
}

fn value<'a>(name: &str, array: &'a Array<'_>) -> Result<ValueOrView<'a>, RuntimeError> {
    let shape = array.shape();
    Ok(ValueOrView::View(match array.values() {
        Values::F32(v) => ValueView::FloatTensor(TensorView::from_data(shape, &v[..])),
        Values::I32(v) => ValueView::Int32Tensor(TensorView::from_data(shape, &v[..])),
        Values::I8(v) => ValueView::Int8Tensor(TensorView::from_data(shape, &v[..])),
        Values::U8(v) => ValueView::UInt8Tensor(TensorView::from_data(shape, &v[..])),
        _ => {
            let problem = "the embedded engine does not have its type".to_owned();
            return Err(RuntimeError::Input { input: name.to_owned(), problem });
        }
    }))
}

fn array(value: Value) -> Option<Array<'static>> {
    fn owned<T: Clone>(tensor: Tensor<T>) -> (Vec<usize>, std::borrow::Cow<'static, [T]>) {
        (tensor.shape().to_vec(), tensor.into_data().into())
    }
    let (shape, values) = match value {
        Value::FloatTensor(t) => {
            let (shape, values) = owned(t);
            (shape, Values::F32(values))
        }
        Value::Int32Tensor(t) => {
            let (shape, values) = owned(t);
            (shape, Values::I32(values))
        }
        Value::Int8Tensor(t) => {
            let (shape, values) = owned(t);
            (shape, Values::I8(values))
        }
        Value::UInt8Tensor(t) => {
            let (shape, values) = owned(t);
            (shape, Values::U8(values))
        }
        _ => return None,
    };
    Array::new(shape, values)
}
