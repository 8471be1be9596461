//! Runs a model over all samples piece by piece: between pieces, weights of later nodes may change. Each node runs
//! once for each sample, regardless of the number of pieces.

use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use kvant_container::onnx::{Bytes, GraphProto, ModelProto, TensorProto, set_contents};

use super::data::Data;
use super::trial::panicked;
use crate::data::Array;
use crate::error::AlgorithmError;
use crate::fake_quantization::{declared, open};
use crate::graph::for_each_read;
use crate::runtime::{RuntimeError, RuntimeOptions};
use crate::tensor_store::TensorStore;

/// A partially executed model.
pub(super) struct IncrementalExecutor {
    model: ModelProto,
    /// The first node that has not run.
    next: usize,
    /// Tensors that later nodes read.
    store: TensorStore,
    /// The last node that reads a tensor.
    last: HashMap<String, usize>,
    /// The inputs of the model, and the tensors made so far that are kept.
    live: HashSet<String>,
    samples: usize,
    /// Where it can return to.
    pin: Option<Pin>,
}

/// A place of a walk, with the tensors that are kept for it.
struct Pin {
    next: usize,
    live: HashSet<String>,
}

/// Tensors that nodes give, kept apart from a walk.
pub(super) struct Recording(TensorStore);

impl Recording {
    /// A tensor of a sample; `None` if it was not recorded.
    pub fn array(&self, name: &str, sample: usize) -> Result<Option<Arc<Array<'static>>>, AlgorithmError> {
        Ok(self.0.get(name, sample)?)
    }
}

impl IncrementalExecutor {
    /// Reads the samples. The nodes of the model are in an order in which they can run.
    pub fn new(model: ModelProto, data: &mut Data<'_>) -> Result<Self, AlgorithmError> {
        let samples = data.samples.len();
        let scratch = data.runtime.scratch.clone().unwrap_or_else(std::env::temp_dir);
        // There are two walks side by side.
        let store = TensorStore::new(data.runtime.budget / 2, scratch);
        let mut live = HashSet::new();
        for sample in 0..samples {
            for (name, array) in data.samples.sample(sample)? {
                live.insert(name.to_owned());
                store.put(name, sample, array.into_owned())?;
            }
        }
        let mut last = HashMap::new();
        for (position, node) in model.graph.node.iter().enumerate() {
            for_each_read(node, &mut |name| {
                last.insert(name.to_owned(), position);
            });
        }
        Ok(Self { model, next: 0, store, last, live, samples, pin: None })
    }

    /// The same walk, which keeps the outputs of the model to its end.
    pub fn keeping_outputs(mut self) -> Self {
        let names = self.model.graph.output.iter().map(|output| output.name().to_owned());
        self.last.extend(names.map(|name| (name, usize::MAX)));
        self
    }

    /// The names of the model's outputs.
    pub fn outputs(&self) -> Vec<String> {
        self.graph().output.iter().map(|output| output.name().to_owned()).collect()
    }

    /// Returns whether a tensor of the samples is kept.
    pub fn holds(&self, name: &str) -> bool {
        self.live.contains(name)
    }

    /// Number of samples.
    pub fn samples(&self) -> usize {
        self.samples
    }

    /// The graph, as it is now.
    pub fn graph(&self) -> &GraphProto {
        &self.model.graph
    }

    /// The position of the node that makes a tensor.
    pub fn maker(&self, tensor: &str) -> Option<usize> {
        self.graph().node.iter().position(|node| node.output.iter().any(|name| name == tensor))
    }

    /// A tensor of a sample: one that a later node reads, or that was kept.
    pub fn tensor(&self, name: &str, sample: usize) -> Result<Arc<Array<'static>>, AlgorithmError> {
        let found = self.store.get(name, sample)?;
        found.ok_or_else(|| RuntimeError::UnknownTensor(name.to_owned()).into())
    }

    /// Replaces a constant that no finished node has read.
    pub fn set_constant(&mut self, name: &str, values: &[f32]) {
        set_constant(&mut self.model, name, values);
    }

    /// Runs all nodes before `end`; `kept` are kept even where nothing reads them any more.
    pub fn advance(&mut self, end: usize, kept: &[&str], data: &Data<'_>) -> Result<(), AlgorithmError> {
        if end > self.next {
            let piece = self.piece(end, kept);
            let put = |name: &str, sample: usize, array: &Array<'_>| -> Result<(), AlgorithmError> {
                Ok(self.store.put(name, sample, array.clone().into_owned())?)
            };
            self.run(&piece, &self.model_of(&piece)?, &put, data)?;
            self.live.extend(piece.gives);
            self.next = end;
        }
        let pinned = |name: &str| self.pin.as_ref().is_some_and(|pin| pin.live.contains(name));
        let done = |name: &&String| {
            let is_over = self.last.get(*name).is_none_or(|&last| last < self.next);
            is_over && !kept.contains(&name.as_str()) && !pinned(name)
        };
        let done: Vec<String> = self.live.iter().filter(done).cloned().collect();
        for name in done {
            self.store.remove(&name, self.samples);
            self.live.remove(&name);
        }
        Ok(())
    }

    /// Remembers the place, to return to it.
    pub fn pin(&mut self) {
        self.pin = Some(Pin { next: self.next, live: self.live.clone() });
    }

    /// Returns to the remembered place: the nodes behind it run again.
    pub fn return_to_pin(&mut self) {
        let Some(pin) = self.pin.take() else { return };
        for name in self.live.difference(&pin.live) {
            self.store.remove(name, self.samples);
        }
        (self.next, self.live) = (pin.next, pin.live);
    }

    /// The position of the next node to run.
    pub fn next(&self) -> usize {
        self.next
    }

    /// Runs nodes for some tensors that they give, which are kept apart: the walk stays where it is. Other names are ignored.
    pub fn record(&self, names: &[String], data: &Data<'_>) -> Result<Recording, AlgorithmError> {
        let makers = names.iter().filter_map(|name| Some((self.maker(name)?, name)));
        let made: Vec<(usize, &String)> = makers.filter(|(position, _)| *position >= self.next).collect();
        let end = made.iter().map(|(position, _)| position + 1).max().unwrap_or(self.next);
        let gives: HashSet<&String> = made.into_iter().map(|(_, name)| name).collect();
        let piece = GraphPiece { gives: gives.into_iter().cloned().collect(), ..self.piece(end, &[]) };
        let scratch = data.runtime.scratch.clone().unwrap_or_else(std::env::temp_dir);
        let recording = Recording(TensorStore::new(data.runtime.budget / 2, scratch));
        let put = |name: &str, sample: usize, array: &Array<'_>| -> Result<(), AlgorithmError> {
            Ok(recording.0.put(name, sample, array.clone().into_owned())?)
        };
        self.run(&piece, &self.model_of(&piece)?, &put, data)?;
        Ok(recording)
    }

    /// Shows the outputs of the model as they would be with other values for some constants, sample by sample in any order. The
    /// walk stays where it is, and must [keep outputs](Self::keeping_outputs).
    pub fn ahead(&self, constants: &[(&str, &[f32])], show: &Show<'_>, data: &Data<'_>) -> Result<(), AlgorithmError> {
        let piece = self.piece(self.graph().node.len(), &[]);
        let mut model = self.model_of(&piece)?;
        constants.iter().for_each(|(name, values)| set_constant(&mut model, name, values));
        self.run(&piece, &model, show, data)?;
        for name in self.outputs().iter().filter(|name| !piece.gives.contains(name)) {
            for sample in 0..self.samples {
                let made = self.tensor(name, sample)?;
                show(name, sample, &made)?;
            }
        }
        Ok(())
    }

    /// The nodes from where the walk stands to `end`, as a model.
    fn piece(&self, end: usize, kept: &[&str]) -> GraphPiece {
        let nodes = &self.graph().node[self.next..end];
        let made: HashSet<&str> = nodes.iter().flat_map(|n| &n.output).map(String::as_str).collect();
        let mut reads = Vec::new();
        let mut constants = HashSet::new();
        for node in nodes {
            for_each_read(node, &mut |name| match self.live.contains(name) {
                true if !reads.iter().any(|read| read == name) => reads.push(name.to_owned()),
                true => {}
                false if !made.contains(name) => drop(constants.insert(name.to_owned())),
                false => {}
            });
        }
        let later =
            |name: &&String| self.last.get(*name).is_some_and(|&last| last >= end) || kept.contains(&name.as_str());
        let gives = nodes.iter().flat_map(|n| &n.output).filter(|name| !name.is_empty()).filter(later).cloned();
        GraphPiece { nodes: self.next..end, reads, constants, gives: gives.collect() }
    }

    /// Runs a piece over all samples, as many at a time as there are threads: an engine's own threads would change sums.
    fn run(
        &self,
        piece: &GraphPiece,
        model: &ModelProto,
        show: &Show<'_>,
        data: &Data<'_>,
    ) -> Result<(), AlgorithmError> {
        if piece.gives.is_empty() {
            return Ok(());
        }
        let sessions = crate::calibration::sessions(data.runtime.threads).min(self.samples);
        let options = RuntimeOptions { threads: Some(1), ..data.runtime.clone() };
        let cancelled = data.cancelled;
        let work = |first: usize| -> Result<(), AlgorithmError> {
            let mut session = open(model, &piece.gives, &options)?;
            for sample in (first..self.samples).step_by(sessions) {
                if cancelled.load(Ordering::Relaxed) {
                    return Err(AlgorithmError::Cancelled);
                }
                self.sample(&mut *session, piece, sample, show)?;
            }
            Ok(())
        };
        let work = &work;
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..sessions).map(|first| scope.spawn(move || work(first))).collect();
            let ended = threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err(panicked())));
            ended.collect::<Result<Vec<()>, _>>().map(drop)
        })
    }

    fn sample(
        &self,
        session: &mut dyn crate::runtime::Session,
        piece: &GraphPiece,
        sample: usize,
        show: &Show<'_>,
    ) -> Result<(), AlgorithmError> {
        let arrays: Vec<_> = piece.reads.iter().map(|name| self.tensor(name, sample)).collect::<Result<_, _>>()?;
        let inputs: Vec<_> = piece.reads.iter().zip(&arrays).map(|(name, a)| (name.as_str(), a.view())).collect();
        let mut shown = Ok(());
        session.run(&inputs, &piece.gives, &mut |name, array| {
            shown = show(name, sample, array);
            if shown.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        shown
    }

    fn model_of(&self, piece: &GraphPiece) -> Result<ModelProto, AlgorithmError> {
        let graph = self.graph();
        let used = |tensor: &&TensorProto| piece.constants.contains(tensor.name());
        let arrays: Vec<_> = piece.reads.iter().map(|name| self.tensor(name, 0)).collect::<Result<_, _>>()?;
        let inputs = piece.reads.iter().zip(&arrays).map(|(name, array)| declared(name, Some(array)));
        let made = GraphProto {
            name: Some("piece".to_owned()),
            node: graph.node[piece.nodes.clone()].to_vec(),
            initializer: graph.initializer.iter().filter(used).cloned().collect(),
            input: inputs.collect(),
            output: piece.gives.iter().map(|name| declared(name, None)).collect(),
            ..GraphProto::default()
        };
        let (opset_import, ir_version) = (self.model.opset_import.clone(), self.model.ir_version);
        Ok(ModelProto { ir_version, opset_import, graph: Some(made).into(), ..ModelProto::default() })
    }
}

/// Takes a tensor of a sample.
pub(super) type Show<'s> = dyn Fn(&str, usize, &Array<'_>) -> Result<(), AlgorithmError> + Sync + 's;

fn set_constant(model: &mut ModelProto, name: &str, values: &[f32]) {
    let Some(graph) = model.graph.as_mut() else { return };
    if let Some(tensor) = graph.initializer.iter_mut().find(|tensor| tensor.name() == name) {
        set_contents(tensor, Bytes::copy_from_slice(bytemuck::cast_slice(values)));
    }
}

/// Nodes that run together, and what goes in and out of them.
struct GraphPiece {
    nodes: std::ops::Range<usize>,
    reads: Vec<String>,
    constants: HashSet<String>,
    gives: Vec<String>,
}
