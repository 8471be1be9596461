//! Where the outputs of one quantization go: a checkpoint, checkpoints in further layouts that are made of its codes, a graph.
//! Not how each is made.

use crate::args::{Format, QuantizeArgs};
use crate::commands::convert::{self, Request};
use crate::escape::printable;
use crate::failure::{Failure, Kind};
use crate::model;
use crate::onnx::decoder::{Graph, Task};
use crate::onnx::quantize::check_output;
use crate::printer::Printer;
use kvant_container::directory_of;
use kvant_llm::conversion::Target;
use kvant_llm::engine::{Output, OutputError, Placed};
use kvant_llm::export::Export;
use kvant_llm::forward::Decoder;
use kvant_llm::plan::Plan;
use kvant_llm::recipe::MAX_SHARD_SIZE;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Every output of a run.
pub struct Outputs<'a> {
    args: &'a QuantizeArgs,
    /// What is quantized.
    checkpoint: PathBuf,
    /// What is converted from it.
    others: Vec<(Export, PathBuf)>,
    /// A graph that is made of it.
    graph: Option<PathBuf>,
}

/// What a run made.
pub struct Delivered {
    /// The first output.
    pub output: PathBuf,
    /// Its bytes.
    pub bytes: u64,
    /// Who loads it.
    pub loaders: Vec<&'static str>,
    /// The other outputs.
    pub also: Vec<PathBuf>,
}

impl<'a> Outputs<'a> {
    /// One output, or one for each format in a directory. A graph alone is made of a checkpoint beside it, which does not stay.
    pub fn of(args: &'a QuantizeArgs, output: &Path) -> Outputs<'a> {
        let exports = args.recipe.exports();
        let place = |format: Format| match args.recipe.format.len() {
            0 | 1 => output.to_owned(),
            _ => output.join(format.name()),
        };
        let (checkpoint, graph) = match (exports.first(), args.recipe.wants_graph()) {
            (None, true) => (beside(output), Some(output.to_owned())),
            (None, false) => (output.to_owned(), None),
            (Some(first), false) => (place(Format::Export(*first)), None),
            (Some(first), true) => (place(Format::Export(*first)), Some(place(Format::Onnx).join("model.onnx"))),
        };
        let others = exports.iter().skip(1).map(|export| (*export, place(Format::Export(*export)))).collect();
        Outputs { args, checkpoint, others, graph }
    }

    /// Where the checkpoint goes that all others are made of.
    pub fn checkpoint(&self) -> &Path {
        &self.checkpoint
    }

    fn is_passing(&self) -> bool {
        self.graph.is_some() && self.args.recipe.exports().is_empty()
    }

    /// Refuses what cannot become an output, without touching anything.
    ///
    /// # Errors
    /// What is in the way.
    pub fn check(&self, plan: &Plan) -> Result<(), Failure> {
        let source = self.args.recipe.model.as_path();
        let checkpoints = std::iter::once(&self.checkpoint).chain(self.others.iter().map(|(_, path)| path));
        Output::check_all(plan, source, &checkpoints.cloned().collect::<Vec<_>>(), self.args.finish.overwrite)?;
        // Nothing tells a graph that an interrupted run has written from one that came from elsewhere.
        self.graph.as_ref().map_or(Ok(()), |graph| check_output(graph, source, self.args.finish.overwrite))
    }

    /// Refuses further outputs that are of another plan, before anything is done for this one: they are made last, so that none
    /// can be its own unless the first is whole.
    ///
    /// # Errors
    /// What is in the way.
    pub fn check_others(&self, plan: &Plan) -> Result<(), Failure> {
        if Output::is_made(plan, &self.checkpoint)? {
            return Ok(());
        }
        let (source, overwrite) = (&self.args.recipe.model, self.args.finish.overwrite);
        self.others.iter().try_for_each(|(_, path)| Ok(Output::check(plan, source, path, overwrite)?))
    }

    /// Makes all other outputs of the first. Until the end a rerun finds each that is whole done.
    ///
    /// # Errors
    /// See `kvant convert`.
    pub fn deliver(
        &self,
        plan: &Plan,
        first: Placed,
        cancelled: &Arc<AtomicBool>,
        printer: &Printer,
    ) -> Result<Delivered, Failure> {
        let convert =
            |(export, output): &(Export, PathBuf)| self.converted(first.path(), *export, output, cancelled, printer);
        let others = self.others.iter().map(convert).collect::<Result<Vec<_>, _>>()?;
        let graph = self.graph.as_deref().map(|graph| self.write_graph(first.path(), graph, cancelled, printer));
        let graph = graph.transpose()?;
        let mut also = others.into_iter().map(Placed::acknowledge).collect::<Result<Vec<_>, _>>()?;
        if let (Some(graph), true) = (&graph, self.is_passing()) {
            first.remove()?;
            let output = self.graph.clone().unwrap_or_default();
            return Ok(Delivered { output, bytes: graph.bytes, loaders: vec!["onnxruntime"], also });
        }
        let output = first.acknowledge()?;
        also.extend(self.graph.clone());
        Ok(Delivered { output, bytes: plan.layout.total_size(), loaders: plan.loaders(), also })
    }

    fn converted(
        &self,
        made: &Path,
        export: Export,
        output: &Path,
        cancelled: &AtomicBool,
        printer: &Printer,
    ) -> Result<Placed, Failure> {
        let target = if export == Export::Fake { Target::Float(None) } else { Target::Codes(export) };
        let max_shard_size = self.args.recipe.max_shard_size.unwrap_or(MAX_SHARD_SIZE).0;
        let request = Request { target, max_shard_size, run: &self.args.run, finish: self.args.finish, cancelled };
        convert::make(made, output, &request, printer)
    }

    fn write_graph(
        &self,
        made: &Path,
        output: &Path,
        cancelled: &Arc<AtomicBool>,
        printer: &Printer,
    ) -> Result<Graph, Failure> {
        if let Some(directory) = output.parent() {
            fs::create_dir_all(directory).map_err(|cause| OutputError::Io {
                action: "create",
                path: directory.to_owned(),
                cause,
            })?;
        }
        // Hours may have passed since the first look.
        check_output(output, &self.args.recipe.model, self.args.finish.overwrite)?;
        let checkpoint = model::open(made)?;
        let decoder = Decoder::open(&checkpoint)?;
        let task = Task { output, finish: self.args.finish, run: &self.args.run, cancelled };
        task.make(&decoder, printer)
    }
}

/// The checkpoint that a graph is made of, by a name that no user gives.
fn beside(graph: &Path) -> PathBuf {
    let mut name = std::ffi::OsString::from(".");
    name.push(graph.file_name().unwrap_or_default());
    name.push(".kvant-checkpoint");
    graph.with_file_name(name)
}

/// Refuses a further file that could not be written, before the work whose result it is to hold.
///
/// # Errors
/// Its directory is missing or read-only, or the name is that of a directory.
pub fn check_writable(path: &Path) -> Result<(), Failure> {
    let directory = directory_of(path);
    let refused = |reason: &str, hint: &str| {
        let message = format!("cannot write {}: {reason}", printable(&path.to_string_lossy()));
        Err(Failure::new(Kind::Usage, message).with_hint(Some(hint.to_owned())))
    };
    match fs::metadata(directory) {
        _ if path.is_dir() => refused("it is a directory", "name a file in it"),
        Ok(found) if found.is_dir() && !found.permissions().readonly() => Ok(()),
        Ok(found) if found.is_dir() => refused("its directory is read-only", "name another place"),
        _ => refused("its directory is missing", "make the directory first, or name another place"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_written_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        assert!(check_writable(&folder.path().join("report.json")).is_ok());
        for (path, reason) in [("none/report.json", "missing"), ("", "a directory")] {
            let failure = check_writable(&folder.path().join(path)).unwrap_err();
            assert!(failure.kind == Kind::Usage && failure.message.contains(reason), "{}", failure.message);
        }
    }
}
