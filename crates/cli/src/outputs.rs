//! Where the outputs of one quantization go: a checkpoint, checkpoints in further layouts that are made of its codes, a GGUF file
//! of them, a graph.
//! Not how each is made.

use crate::args::{Format, QuantizeArgs};
use crate::commands::convert::{self, Request};
use crate::delivery::Delivery;
use crate::escape::printable;
use crate::failure::{Failure, Kind};
use crate::onnx::decoder::{Graph, Task};
use crate::onnx::quantize::check_output;
use crate::printer::Printer;
use crate::{gguf, model};
use kvant_container::{Checkpoint, directory_of};
use kvant_llm::conversion::Target;
use kvant_llm::engine::{Output, OutputError, Placed};
use kvant_llm::export::Export;
use kvant_llm::forward::Decoder;
use kvant_llm::gguf::{Accepted, GgufPlan};
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
    /// A GGUF file of its codes.
    file: Option<PathBuf>,
    /// A graph that is made of it.
    graph: Option<PathBuf>,
}

/// What a run made.
pub struct Delivered {
    /// The first output.
    pub main: Made,
    /// The others.
    pub also: Vec<PathBuf>,
}

/// One of the outputs.
pub struct Made {
    /// Where it is.
    pub output: PathBuf,
    /// Its format.
    pub format: &'static str,
    /// Its bytes.
    pub bytes: u64,
    /// Bits that a weight takes on average where there are codes.
    pub bits_per_weight: f64,
    /// Who loads it.
    pub loaders: Vec<&'static str>,
}

impl<'a> Outputs<'a> {
    /// One output, or one for each format in a directory. Files and graphs without a checkpoint among the formats are made of one
    /// beside them, which does not stay.
    pub fn of(args: &'a QuantizeArgs, output: &Path) -> Outputs<'a> {
        let recipe = &args.recipe;
        let alone = recipe.format.len() < 2;
        let place = |format: Format| if alone { output.to_owned() } else { output.join(format.name()) };
        let single = |format: Format, name: &str| if alone { output.to_owned() } else { place(format).join(name) };
        let file = recipe.wants_gguf().then(|| single(Format::Export(Export::Gguf), "model.gguf"));
        let graph = recipe.wants_graph().then(|| single(Format::Onnx, "model.onnx"));
        let exports = recipe.checkpoints();
        let checkpoint = match exports.first() {
            Some(first) => place(Format::Export(*first)),
            None if file.is_some() || graph.is_some() => beside(output),
            None => output.to_owned(),
        };
        let others = exports.iter().skip(1).map(|export| (*export, place(Format::Export(*export)))).collect();
        Outputs { args, checkpoint, others, file, graph }
    }

    /// Where the checkpoint goes that all others are made of.
    pub fn checkpoint(&self) -> &Path {
        &self.checkpoint
    }

    /// Whether nobody asked for the checkpoint.
    fn is_passing(&self) -> bool {
        (self.file.is_some() || self.graph.is_some()) && self.args.recipe.checkpoints().is_empty()
    }

    /// Refuses what cannot become an output, without touching anything.
    ///
    /// # Errors
    /// What is in the way.
    pub fn check(&self, plan: &Plan, checkpoint: &Checkpoint) -> Result<(), Failure> {
        let source = self.args.recipe.model.as_path();
        if let Some(file) = &self.file {
            let codes = GgufPlan::of_codes(checkpoint, plan, &gguf::file_name(Some(file)))?;
            let overwrite = self.args.finish.overwrite;
            // It is made last: before the checkpoint is whole none that is there can be its own.
            match Output::is_made(plan, &self.checkpoint)? {
                true => Output::check_all(&codes, source, std::slice::from_ref(file), overwrite)?,
                false => Output::check(&codes, source, file, overwrite)?,
            }
        }
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
        let file = self.file.as_deref().map(|file| self.write_file(first.path(), file, cancelled, printer));
        let file = file.transpose()?;
        let graph = self.graph.as_deref().map(|graph| self.write_graph(first.path(), graph, cancelled, printer));
        let graph = graph.transpose()?.zip(self.graph.clone());
        let of_plan = |output: PathBuf| Made {
            output,
            format: plan.export.row().name,
            bytes: plan.layout.total_size(),
            bits_per_weight: plan.bits_per_weight(),
            loaders: plan.loaders(),
        };
        let file = file.map(|(placed, file)| placed.acknowledge().map(|_| file)).transpose()?;
        let mut made = Vec::new();
        // What nobody asked for goes last: a run that is killed before finds it whole.
        match self.is_passing() {
            true => first.remove()?,
            false => made.push(of_plan(first.acknowledge()?)),
        }
        for other in others {
            made.push(of_plan(other.acknowledge()?));
        }
        made.extend(file);
        made.extend(graph.map(|(graph, output)| Made {
            format: Format::Onnx.name(),
            bytes: graph.bytes,
            loaders: vec!["onnxruntime"],
            ..of_plan(output)
        }));
        let also = made.iter().skip(1).map(|made| made.output.clone()).collect();
        let main = made.into_iter().next().unwrap_or_else(|| of_plan(self.checkpoint.clone()));
        Ok(Delivered { main, also })
    }

    /// A GGUF file of the codes that were made.
    fn write_file(
        &self,
        made: &Path,
        output: &Path,
        cancelled: &AtomicBool,
        printer: &Printer,
    ) -> Result<(Placed, Made), Failure> {
        make_directory_of(output)?;
        let checkpoint = model::open(made)?;
        let plan = GgufPlan::convert_of(
            &checkpoint,
            &self.args.recipe.model,
            Accepted::Rounding,
            &gguf::file_name(Some(output)),
        )?;
        plan.notices.iter().for_each(|notice| printer.note(notice));
        let QuantizeArgs { run, finish, .. } = self.args;
        let delivery = Delivery { plan: &plan, checkpoint: &checkpoint, source: made, target: output, finish: *finish };
        let (placed, _) = gguf::convert::work(&delivery, run, cancelled, printer)?;
        let made = Made {
            output: placed.path().to_owned(),
            format: Export::Gguf.row().name,
            bytes: plan.layout.file_len(),
            bits_per_weight: plan.bits_per_weight(),
            loaders: plan.loaders(),
        };
        Ok((placed, made))
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
        make_directory_of(output)?;
        // Hours may have passed since the first look.
        check_output(output, &self.args.recipe.model, self.args.finish.overwrite)?;
        let checkpoint = model::open(made)?;
        let decoder = Decoder::open(&checkpoint)?;
        let task = Task { output, finish: self.args.finish, run: &self.args.run, cancelled };
        task.make(&decoder, printer)
    }
}

fn make_directory_of(output: &Path) -> Result<(), OutputError> {
    let directory = directory_of(output);
    let failed = |cause| OutputError::Io { action: "create", path: directory.to_owned(), cause };
    fs::create_dir_all(directory).map_err(failed)
}

/// The checkpoint that a file or a graph is made of, by a name that no user gives.
fn beside(output: &Path) -> PathBuf {
    let mut name = std::ffi::OsString::from(".");
    name.push(output.file_name().unwrap_or_default());
    name.push(".kvant-checkpoint");
    output.with_file_name(name)
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
