//! The outputs of one quantization: a checkpoint, checkpoints in further formats converted from it, a GGUF file
//! of its codes, a graph.
//! Not how each is written.

use super::convert::{self, Further};
use super::plan::Cost;
use super::planning::Planned;
use crate::card::{CardRequest, CardSource};
use crate::delivery::{Delivery, Settling, check_runs, claim};
use crate::error::{Error, ErrorKind};
use crate::events::Reporter;
use crate::gguf;
use crate::job::{self, Format, Job};
use crate::onnx::decoder::{Graph, Task};
use crate::onnx::quantize::check_output;
use crate::paths::{OutputKind, check_name, full_path, record, tell_of_name};
use crate::text::shown;
use kvant_checkpoint::engine::{self, Claim, Committed, OutputError, OutputPlan, Verify, is_recorded, record_files};
use kvant_checkpoint::gguf::{Accepted, GgufPlan};
use kvant_checkpoint::plan::{CalibratedPlan, Plan};
use kvant_checkpoint::recipe::MAX_SHARD_SIZE;
use kvant_container::onnx::external_data_path;
use kvant_container::unfinished::checkpoint_beside;
use kvant_container::{Checkpoint, Durability, Remedy, directory_of};
use kvant_formats::format::OutputFormat;
use kvant_formats::transcode::ConversionTarget;
use kvant_forward::forward::Decoder;
use kvant_quant::finding::Finding;
use std::fs;
use std::path::{Path, PathBuf};

/// Every output of a run.
pub struct Outputs<'a> {
    job: &'a Job,
    /// The path given by the user, and the kind of output there.
    output: PathBuf,
    kind: OutputKind,
    /// The source.
    checkpoint: PathBuf,
    /// The outputs converted from it.
    others: Vec<(OutputFormat, PathBuf)>,
    /// A GGUF file of its codes.
    file: Option<PathBuf>,
    /// A graph written from it.
    graph: Option<PathBuf>,
}

/// The result of a run.
pub struct Delivered {
    /// The first output.
    pub main: Output,
    /// The others.
    pub also: Vec<Output>,
}

impl Delivered {
    /// Every output, the first one first.
    pub fn all(&self) -> impl Iterator<Item = &Output> {
        std::iter::once(&self.main).chain(&self.also)
    }
}

/// One of the outputs.
pub struct Output {
    /// Its path.
    pub path: PathBuf,
    /// Its format.
    pub format: &'static str,
    /// Its bytes.
    pub bytes: u64,
    /// Average bits per weight of quantized weights.
    pub bits_per_weight: f64,
    /// Its loaders.
    pub loaders: Vec<&'static str>,
    /// What verification warns of in a checkpoint. Graphs and GGUF files have other checks.
    pub warnings: Vec<Finding>,
}

impl<'a> Outputs<'a> {
    /// One output, or one for each format in a directory. Files and graphs without a checkpoint among the formats are converted from one
    /// beside them, which is removed at the end.
    pub fn of(job: &'a Job, output: &Path) -> Outputs<'a> {
        let sinks = &job.sinks;
        let alone = sinks.formats.len() < 2;
        let place = |format: Format| if alone { output.to_owned() } else { output.join(format.name()) };
        let single = |format: Format, name: &str| if alone { output.to_owned() } else { place(format).join(name) };
        let file = sinks.wants_gguf().then(|| single(Format::Model(OutputFormat::Gguf), "model.gguf"));
        let graph = sinks.wants_graph().then(|| single(Format::Onnx, "model.onnx"));
        let formats = sinks.checkpoints();
        let checkpoint = match formats.first() {
            Some(first) => place(Format::Model(*first)),
            None if file.is_some() || graph.is_some() => checkpoint_beside(output),
            None => output.to_owned(),
        };
        let others = formats.iter().skip(1).map(|format| (*format, place(Format::Model(*format)))).collect();
        let kind = match (alone, &file, &graph) {
            (true, Some(_), _) => OutputKind::Gguf,
            (true, _, Some(_)) => OutputKind::Graph,
            _ => OutputKind::Directory,
        };
        Outputs { job, output: output.to_owned(), kind, checkpoint, others, file, graph }
    }

    /// The path of the checkpoint that all others are converted from.
    pub fn checkpoint(&self) -> &Path {
        &self.checkpoint
    }

    /// The path of a GGUF file.
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// Returns whether the checkpoint is intermediate.
    fn is_passing(&self) -> bool {
        (self.file.is_some() || self.graph.is_some()) && self.job.sinks.checkpoints().is_empty()
    }

    /// The source as the cards of the outputs describe it, with a note where its own card is unusual; `None` where no output has a card.
    ///
    /// # Errors
    /// A card that cannot be read.
    pub fn card_source(&self, source: &Checkpoint, reporter: &Reporter<'_>) -> Result<Option<CardSource>, Error> {
        if self.job.sinks.no_model_card || self.is_passing() {
            return Ok(None);
        }
        let (card, note) = CardSource::read(&self.job.source.model, source)?;
        reporter.notes(note);
        Ok(card)
    }

    /// How the checkpoint is committed. Loaders never see an intermediate one.
    pub fn settling(&self) -> Settling {
        let settling = Settling::of(self.job.sinks.commit);
        match self.is_passing() && settling.acceptance == Verify::Run {
            true => Settling { acceptance: Verify::Codes, ..settling },
            false => settling,
        }
    }

    /// Every output, starting with the checkpoint that all others are converted from.
    fn targets(&self) -> impl Iterator<Item = &Path> {
        let others = self.others.iter().map(|(_, path)| path.as_path());
        std::iter::once(self.checkpoint.as_path()).chain(others).chain(self.single_files())
    }

    /// Claims the checkpoint before the work. If unfinished work is to be discarded, that of all outputs is.
    ///
    /// # Errors
    /// Another run's work; the system's.
    pub fn claim(&self) -> Result<Claim, Error> {
        let commit = self.job.sinks.commit;
        if commit.restart {
            engine::discard_parts(&self.output)?;
        }
        match (commit.restart, self.has_folders()) {
            (true, true) => {
                engine::Output::discard_all(&self.targets().collect::<Vec<_>>(), commit.overwrite)?;
                // That of a run with one format.
                Claim::discard(&self.output, false)?;
            }
            (true, false) => {
                let discard = |target: &Path| Claim::discard(target, self.is_passing() && target == self.checkpoint);
                self.targets().try_for_each(discard)?;
            }
            (false, _) => {}
        }
        Ok(Claim::take(&self.checkpoint, &self.job.sinks.settings)?)
    }

    /// The file and the graph.
    fn single_files(&self) -> impl Iterator<Item = &Path> {
        self.file.iter().chain(&self.graph).map(PathBuf::as_path)
    }

    /// Refuses impossible outputs, without touching anything.
    ///
    /// # Errors
    /// The files in the way.
    pub fn check(&self, planned: &Planned) -> Result<(), Error> {
        check_name(&self.output, self.kind, "‹format›")?;
        // Unfinished work of a run with one format could not be resumed beside a directory of this name.
        let of_one_format = self.has_folders().then_some(self.output.as_path());
        check_runs(self.targets().chain(of_one_format), &self.job.sinks.settings, self.job.sinks.commit)?;
        let (source, overwrite, plan) =
            (self.job.source.model.as_path(), self.job.sinks.commit.overwrite, &planned.plan);
        if let Some((file, codes)) = self.file.as_ref().zip(planned.file.as_ref()) {
            // It is written last: before the checkpoint is complete, an existing one cannot be its own.
            match engine::Output::is_made(plan, &self.checkpoint)? {
                true => engine::Output::check_all(codes, source, std::slice::from_ref(file), overwrite)?,
                false => engine::Output::check(codes, source, file, overwrite)?,
            }
            self.refuse_unrecorded(file)?;
        }
        let checkpoints = std::iter::once(&self.checkpoint).chain(self.others.iter().map(|(_, path)| path));
        engine::Output::check_all(plan, source, &checkpoints.cloned().collect::<Vec<_>>(), overwrite)?;
        self.check_graph()?;
        if plan.needs_calibration() || plan.takes_statistics() {
            let overwrite = self.job.sinks.commit.overwrite || engine::Output::is_made(plan, &self.checkpoint)?;
            self.single_files().try_for_each(|output| record::check(output, overwrite))?;
        }
        self.check_room(planned)
    }

    fn check_graph(&self) -> Result<(), Error> {
        let Some(graph) = &self.graph else { return Ok(()) };
        check_output(graph, self.job.sinks.commit.overwrite)?;
        self.refuse_unrecorded(graph)
    }

    /// Where the user has named a directory for several formats, a file in it is replaced only if Kvant wrote it.
    fn refuse_unrecorded(&self, file: &Path) -> Result<(), Error> {
        if !self.has_folders() || !file.exists() || is_recorded(file) || engine::Output::is_uncommitted(file)? {
            return Ok(());
        }
        let message = format!("{} was changed since Kvant wrote it, or is not Kvant's", shown(file));
        let output = Remedy::setting("output", "choose another directory with ‹output›");
        Err(Error::new(ErrorKind::Invalid, message).with_remedies(vec![Remedy::text("move it away"), output]))
    }

    /// Returns whether the output is a directory with a folder for each of several formats.
    fn has_folders(&self) -> bool {
        self.job.sinks.formats.len() > 1
    }

    /// Notes a file in such a folder as written by Kvant.
    fn record(&self, file: &Path) -> Result<(), Error> {
        if !self.has_folders() {
            return Ok(());
        }
        let durability = if self.job.sinks.commit.sync { Durability::Disk } else { Durability::Process };
        let data = external_data_path(file);
        let beside = [data, record::beside(file)];
        let files = std::iter::once(file).chain(beside.iter().map(PathBuf::as_path).filter(|path| path.exists()));
        Ok(record_files(directory_of(file), files, durability)?)
    }

    /// Asks for room for all outputs and the activations between blocks together; a graph is about as large as the checkpoint.
    fn check_room(&self, planned: &Planned) -> Result<(), Error> {
        let plan: &dyn OutputPlan = &planned.plan;
        let others = || self.others.iter().map(|(_, path)| path.as_path());
        let checkpoints = || std::iter::once(self.checkpoint()).chain(others());
        let all = checkpoints().chain(self.graph.as_deref()).map(|path| (plan, path));
        let file = self.file().zip(planned.file.as_ref()).map(|(path, codes)| (codes as &dyn OutputPlan, path));
        let cost = Cost::of(self.job, &planned.plan).estimate;
        let activations = [(self.checkpoint.as_path(), cost.map_or(0, |cost| cost.disk))];
        // Tokenizer and other files go along with each checkpoint.
        let extra = planned.checkpoint.extra_bytes()?;
        let copied: Vec<(&Path, u64)> = checkpoints().map(|path| (path, extra)).collect();
        Ok(engine::Output::check_room(&all.chain(file).collect::<Vec<_>>(), &activations, &copied)?)
    }

    /// Refuses further outputs of another plan before any work: they are written last, so that none
    /// can be its own unless the first is complete.
    ///
    /// # Errors
    /// The files in the way.
    pub fn check_others(&self, plan: &dyn OutputPlan) -> Result<(), Error> {
        if engine::Output::is_made(plan, &self.checkpoint)? {
            return Ok(());
        }
        let (source, overwrite) = (&self.job.source.model, self.job.sinks.commit.overwrite);
        self.others.iter().try_for_each(|(_, path)| Ok(engine::Output::check(plan, source, path, overwrite)?))
    }

    /// Makes all other outputs of the first, with cards if these are wanted. Until the end a rerun finds each that is whole done.
    ///
    /// # Errors
    /// See `kvant convert`.
    pub fn deliver(
        &self,
        plan: &Plan,
        first: Committed,
        card: Option<CardRequest<'_>>,
        reporter: &Reporter<'_>,
    ) -> Result<Delivered, Error> {
        let kept = self.is_passing().then(|| first.path().to_owned());
        let delivered = self.deliver_all(plan, first, card, reporter);
        delivered.map_err(|failure| match kept.filter(|kept| kept.exists()) {
            Some(kept) => with_kept(failure, &kept),
            None => failure,
        })
    }

    fn deliver_all(
        &self,
        plan: &Plan,
        first: Committed,
        card: Option<CardRequest<'_>>,
        reporter: &Reporter<'_>,
    ) -> Result<Delivered, Error> {
        let convert =
            |(format, output): &(OutputFormat, PathBuf)| self.converted(first.path(), *format, output, card, reporter);
        let others = self.others.iter().map(convert).collect::<Result<Vec<_>, _>>()?;
        let file = self.file().map(|file| self.write_file(first.path(), file, reporter)).transpose()?;
        let graph = self.graph.as_deref().map(|graph| self.write_graph(first.path(), graph, reporter));
        let graph = graph.transpose()?.zip(self.graph.clone());
        self.single_files()
            .try_for_each(|output| record::keep(first.path(), output, self.job.sinks.commit.overwrite))?;
        self.single_files().try_for_each(|file| self.record(file))?;
        let of_plan = |path: PathBuf, plan: &Plan, warnings: Vec<Finding>| Output {
            path,
            warnings,
            format: plan.format().name(),
            bytes: plan.layout().total_size(),
            bits_per_weight: plan.bits_per_weight(),
            loaders: plan.loaders(),
        };
        let of_checkpoint = |committed: Committed, plan: &Plan| {
            let warnings = committed.warnings().to_vec();
            committed.commit().map(|path| of_plan(path, plan, warnings))
        };
        let file = file.map(|(placed, file)| placed.commit().map(|_| file)).transpose()?;
        let mut made = Vec::new();
        // The intermediate checkpoint is removed last: a run that is killed before finds it complete.
        match self.is_passing() {
            true => first.remove()?,
            false => made.push(of_checkpoint(first, plan)?),
        }
        for (other, plan) in others {
            made.push(of_checkpoint(other, &plan)?);
        }
        made.extend(file);
        made.extend(graph.map(|(graph, path)| Output {
            format: Format::Onnx.name(),
            bytes: graph.bytes,
            loaders: vec!["onnxruntime"],
            ..of_plan(full_path(&path), plan, Vec::new())
        }));
        let mut made = made.into_iter();
        let main = made.next().unwrap_or_else(|| of_plan(self.checkpoint.clone(), plan, Vec::new()));
        Ok(Delivered { main, also: made.collect() })
    }

    /// A GGUF file of the codes that were made.
    fn write_file(&self, made: &Path, output: &Path, reporter: &Reporter<'_>) -> Result<(Committed, Output), Error> {
        make_directory_of(output)?;
        tell_of_name(output, reporter);
        let checkpoint = job::open(made)?;
        let (model, name) = (&self.job.source.model, gguf::file_name(Some(output)));
        let plan = match gguf::recipe_of_blocks(self.job)? {
            Some(recipe) => GgufPlan::of_blocks(&checkpoint, model, recipe, &name)?,
            None => GgufPlan::convert_of(&checkpoint, model, Accepted::Rounding, &name)?,
        };
        gguf::tell(&plan, reporter);
        let commit = self.job.sinks.commit;
        let claim = claim(output, &self.job.sinks.settings, commit)?;
        let delivery = Delivery { plan: &plan, checkpoint: &checkpoint, source: made, commit };
        let (placed, _) = gguf::work(&delivery, claim, &self.job.limits, reporter)?;
        let made = Output {
            path: placed.path().to_owned(),
            format: OutputFormat::Gguf.name(),
            bytes: plan.layout.total_size(),
            bits_per_weight: plan.bits_per_weight(),
            loaders: plan.loaders(),
            warnings: Vec::new(),
        };
        Ok((placed, made))
    }

    fn converted(
        &self,
        made: &Path,
        format: OutputFormat,
        output: &Path,
        card: Option<CardRequest<'_>>,
        reporter: &Reporter<'_>,
    ) -> Result<(Committed, CalibratedPlan), Error> {
        let target = format.checkpoint().map_or(ConversionTarget::Fake, ConversionTarget::Codes);
        let max_shard_size = self.job.sinks.max_shard_size.unwrap_or(MAX_SHARD_SIZE).0;
        let further = Further { target, max_shard_size, sinks: &self.job.sinks, limits: &self.job.limits, card };
        convert::make(made, output, &further, reporter)
    }

    fn write_graph(&self, made: &Path, output: &Path, reporter: &Reporter<'_>) -> Result<Graph, Error> {
        make_directory_of(output)?;
        // Hours may have passed since the first look.
        self.check_graph()?;
        let checkpoint = job::open(made)?;
        let decoder = Decoder::open(&checkpoint)?;
        let weights_only = self.job.recipe.weights_only;
        let (sinks, limits) = (&self.job.sinks, &self.job.limits);
        let task = Task { checkpoint: &checkpoint, output, sinks, limits, weights_only };
        let claim = claim(output, &self.job.sinks.settings, self.job.sinks.commit)?;
        task.make(&decoder, claim, reporter)
    }
}

fn make_directory_of(output: &Path) -> Result<(), OutputError> {
    let directory = directory_of(output);
    let failed = |cause| OutputError::Io { action: "create", path: directory.to_owned(), cause };
    fs::create_dir_all(directory).map_err(failed)
}

/// The error with a word of the checkpoint that is whole and hidden.
fn with_kept(error: Error, kept: &Path) -> Error {
    let kept = format!("the same command resumes from {}, which holds the codes and can be removed", shown(kept));
    let hint = error.hint.as_ref().map_or_else(|| kept.clone(), |hint| format!("{hint}; {kept}"));
    let remedies = error.remedies().iter().cloned().chain([Remedy::Text(kept)]).collect();
    error.with_ways(Some(hint), remedies)
}
