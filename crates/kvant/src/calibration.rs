//! From calibration data to a plan with parameters: loads the data and runs it through the source.

use crate::error::{Error, ErrorKind};
use crate::events::{Reporter, Resumption, Stage, Unit};
use crate::images::{self, IMAGES, SOUNDS, TowerRun};
use crate::job::{Data, Job};
use crate::self_samples::SelfSamples;
use crate::sounds;
use crate::text::{counts, shown};
use kvant_checkpoint::activation_histograms::{PointHistogram, activation_histograms, shown_points};
use kvant_checkpoint::blockwise::{self, BlockProgress, BlockResults, BlockwiseReport, Settings, Sources, State};
use kvant_checkpoint::calibration::{
    Report as CalibrationReport, Resolved, Statistics, StatisticsFile, observe, resolve,
};
use kvant_checkpoint::engine::{Output, OutputError};
use kvant_checkpoint::learned_rotation::{
    self, LearnedRotation, RotationReport, RotationSettings, RotationSources, learn_rotation,
};
use kvant_checkpoint::plan::{CalibratedPlan, CalibrationSize, Plan, PlanOnData};
use kvant_container::{Checkpoint, Remedy};
use kvant_data::calibration::{CalibrationData, CalibrationDataError, Options};
use kvant_data::images::{ImageOptions, ImagesUnread, TextImages};
use kvant_data::sounds::SoundInput;
use kvant_forward::forward::Decoder;
use kvant_quant::rotation::Rotate;
use kvant_weights::activation_point::{ActivationPoint, Parameters};
use serde_json::{Value, json};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// The tokens of a sequence unless said otherwise, where the model can take them.
const SEQUENCE: usize = 512;

/// The most points of a model whose activations a report shows. It is a prime number: points that are evenly spread are not all of the same kind.
const SHOWN_POINTS: usize = 251;

/// What is said where ranges are those of an interrupted run that had no report to make.
pub const ACTIVATIONS_NOT_KEPT: &str =
    "the report does not show activations: the interrupted run, which had no report, did not keep them";

/// The result of calibration.
pub struct Calibrated {
    /// The plan with its parameters.
    pub plan: CalibratedPlan,
    /// The results of algorithms, if any ran.
    pub blocks: Option<BlockwiseReport>,
    /// The activations, if there is a report for people to show them; `None` where they were not gathered.
    pub activations: Option<Vec<PointHistogram>>,
}

impl From<CalibratedPlan> for Calibrated {
    fn from(plan: CalibratedPlan) -> Calibrated {
        Calibrated { plan, blocks: None, activations: None }
    }
}

/// Inputs of calibration besides the plan.
pub struct Calibration<'a> {
    /// The job.
    pub job: &'a Job,
    /// Its source.
    pub checkpoint: &'a Checkpoint,
    /// The output.
    pub target: &'a Path,
}

/// Calibration data and their description for the report. Of images and sounds, sequences are the tokens of each.
pub struct Loaded {
    sequences: Vec<Vec<u32>>,
    held_out: Vec<Vec<u32>>,
    images: Arc<TextImages>,
    provenance: Value,
}

impl Loaded {
    /// The sequences.
    pub fn sequences(&self) -> &[Vec<u32>] {
        &self.sequences
    }

    /// The sequences that are held out.
    pub fn held_out(&self) -> &[Vec<u32>] {
        &self.held_out
    }

    /// The images in sequences of text.
    pub fn images(&self) -> &Arc<TextImages> {
        &self.images
    }

    /// Everything besides the plan that the output depends on.
    pub fn key(&self, precision: &str) -> String {
        format!("{precision} {}", self.provenance)
    }
}

/// How a rotation was learned, and from which data.
pub struct LearnedOnData {
    /// The result.
    pub report: RotationReport,
    data: Loaded,
}

impl<'a> Calibration<'a> {
    /// Learns the rotation of a plan, for whose fixed one the checkpoint is opened; or takes over what an interrupted run has learned.
    ///
    /// # Errors
    /// Errors of the data, the model and the system; what was learned for the same output with other data or options.
    pub fn learn_rotation(
        &self,
        plan: &Plan,
        rotate: Rotate,
        reporter: &Reporter<'_>,
    ) -> Result<(LearnedRotation, LearnedOnData), Error> {
        let mut decoder = Decoder::open_any(self.checkpoint)?;
        let data = self.load_any(&mut decoder, Options::tenth(self.job.data.num_samples), reporter)?;
        let key = format!("{} {}", plan.fingerprint(), data.key(self.job.data.precision.name()));
        if learned_rotation::is_of_another(self.target, &key) {
            return Err(OutputError::other_run(self.target).into());
        }
        let sources = RotationSources { plan, decoder: &decoder, sequences: &data.sequences, held_out: &data.held_out };
        let settings = RotationSettings { target: self.target, key: &key, memory: self.job.limits.memory.0 };
        let learned = {
            let progress = reporter.stage(Stage::Algorithms, Unit::Tokens);
            let mut watch = progress.watch_resumed();
            let watch = |done: u64, all: u64| watch("learning the rotation", done, all);
            let resumed = |done: u32| reporter.resumed(Resumption::Rotation { done, total: rotate.steps });
            let work = || learn_rotation(sources, rotate, settings, reporter.cancel().flag(), resumed, watch);
            self.job.limits.pool()?.install(work)?
        };
        reporter.refuse_lost()?;
        let report = learned.report.clone();
        if !report.used {
            reporter.note("learning did not improve the rotation: it stays as it was before the first step");
        }
        Ok((learned, LearnedOnData { report, data }))
    }

    /// The plan for a model whose rotation is learned and whose activations have no static scales.
    ///
    /// # Errors
    /// None that could be expected: the plan has no parameters.
    pub fn plan_with_rotation(&self, plan: Plan, learned: &LearnedOnData) -> Result<CalibratedPlan, Error> {
        let record = self.record_of(&learned.data, &CalibrationReport::default(), Some(learned));
        let plan = self.plan_for(plan, &learned.data);
        Ok(plan.calibrated(Parameters::default(), record)?)
    }

    /// The data that a rotation was learned from, given to the decoder of the rotated model.
    ///
    /// # Errors
    /// As [`load_any`](Self::load_any).
    pub fn load_again(
        &self,
        decoder: &mut Decoder<'a>,
        held_out: usize,
        learned: Option<LearnedOnData>,
        reporter: &Reporter<'_>,
    ) -> Result<(Loaded, Option<RotationReport>), Error> {
        let is_text = decoder.image_shape().is_none() && decoder.sound_input().is_none();
        match learned {
            Some(LearnedOnData { report, data }) if is_text => {
                self.give(decoder, &data, reporter)?;
                Ok((data, Some(report)))
            }
            learned => {
                let loaded = self.load_any(decoder, held_out, reporter)?;
                Ok((loaded, learned.map(|learned| learned.report)))
            }
        }
    }

    /// What is recorded of a run without algorithms.
    fn record_of(&self, data: &Loaded, report: &CalibrationReport, learned: Option<&LearnedOnData>) -> Value {
        let mut record =
            json!({ "data": data.provenance, "precision": self.job.data.precision.name(), "report": report });
        if let Some(learned) = learned {
            record["rotation"] = json!(learned.report);
        }
        record
    }

    /// Reads text, or the images or sounds that a model of these reads, which it is given.
    ///
    /// # Errors
    /// Errors of the data or the tokenizer.
    pub fn load_any(
        &self,
        decoder: &mut Decoder<'a>,
        held_out: usize,
        reporter: &Reporter<'_>,
    ) -> Result<Loaded, Error> {
        match (decoder.image_shape(), decoder.sound_input()) {
            (Some(shape), _) => self.load_images(decoder, shape, held_out, reporter),
            (None, Some(input)) => self.load_sounds(decoder, input, held_out, reporter),
            (None, None) => self.load(decoder, held_out, reporter),
        }
    }

    /// Sounds, likewise, with the texts beside them.
    fn load_sounds(
        &self,
        decoder: &mut Decoder<'a>,
        input: SoundInput,
        held_out: usize,
        reporter: &Reporter<'_>,
    ) -> Result<Loaded, Error> {
        let (data, model) = (&self.job.data, self.job.source.model.as_path());
        let path = images::calibration_path(data, SOUNDS)?;
        let options = image_options(data, held_out);
        let sounds = sounds::open(path, &[model], input, options)?;
        let provenance = sounds.provenance(path, ImageOptions { samples: Some(data.num_samples), ..options })?;
        let provenance = serde_json::to_value(&provenance).map_err(|e| Error::internal(e.to_string()))?;
        let sequences = sounds::give(decoder, &sounds, &[model], reporter)?;
        let sequences: Vec<Vec<u32>> = sequences.into_iter().map(|sequence| sequence.tokens).collect();
        Ok(self.split_samples(sequences, "sound", provenance, reporter))
    }

    /// The first sequences, and those behind them to hold out.
    fn split_samples(
        &self,
        mut sequences: Vec<Vec<u32>>,
        noun: &'static str,
        provenance: Value,
        reporter: &Reporter<'_>,
    ) -> Loaded {
        let asked = self.job.data.num_samples;
        let held_out = sequences.split_off(asked.min(sequences.len()));
        if sequences.len() < asked {
            let found = counts::number(sequences.len(), noun);
            reporter.warning(&format!("the calibration data has {found}, but {asked} were requested"));
        }
        let images = Arc::new(TextImages::unread(ImagesUnread::of_text()));
        Loaded { sequences, held_out, images, provenance }
    }

    /// Reads the data, and further sequences, if available, to hold out, and gives the decoder the images in them.
    ///
    /// # Errors
    /// Errors of the data, the tokenizer or the tower for images.
    pub fn load(&self, decoder: &mut Decoder<'a>, held_out: usize, reporter: &Reporter<'_>) -> Result<Loaded, Error> {
        let loaded = self.read(decoder, held_out, reporter)?;
        self.give(decoder, &loaded, reporter)?;
        Ok(loaded)
    }

    /// Gives a decoder the images in texts.
    fn give(&self, decoder: &mut Decoder<'a>, loaded: &Loaded, reporter: &Reporter<'_>) -> Result<(), Error> {
        let sequences = loaded.sequences.iter().chain(&loaded.held_out).map(Vec::as_slice);
        let (precision, limits) = (self.job.data.precision, &self.job.limits);
        let how = TowerRun { stage: Stage::Calibration, precision, limits, reporter };
        images::give(decoder, self.checkpoint, &loaded.images, sequences, &how)
    }

    /// Reads the data alone.
    ///
    /// # Errors
    /// Errors of the data or the tokenizer.
    pub fn read(&self, decoder: &Decoder<'_>, held_out: usize, reporter: &Reporter<'_>) -> Result<Loaded, Error> {
        self.read_with(decoder, held_out, decoder.text_images(self.checkpoint, &self.job.source.model), reporter)
    }

    /// Reads the data alone, and refuses images in them.
    ///
    /// # Errors
    /// Errors of the data or the tokenizer.
    pub fn read_text(&self, decoder: &Decoder<'_>, held_out: usize, reporter: &Reporter<'_>) -> Result<Loaded, Error> {
        let why =
            ImagesUnread { reason: "a search for a mix measures text alone".to_owned(), ..ImagesUnread::of_text() };
        self.read_with(decoder, held_out, TextImages::unread(why), reporter)
    }

    fn read_with(
        &self,
        decoder: &Decoder<'_>,
        held_out: usize,
        images: TextImages,
        reporter: &Reporter<'_>,
    ) -> Result<Loaded, Error> {
        let data = self.data(decoder, held_out, images, reporter)?;
        data.provenance.warnings().iter().for_each(|warning| reporter.warning(&warning.to_string()));
        let provenance = serde_json::to_value(&data.provenance).map_err(|e| Error::internal(e.to_string()))?;
        let CalibrationData { sequences, held_out, images, .. } = data;
        let (sequences, held_out) = (decoder.sequences_of(sequences)?, decoder.sequences_of(held_out)?);
        Ok(Loaded { sequences, held_out, images: Arc::new(images), provenance })
    }

    /// Images: the first ones, or some in random order, and those behind them to hold out.
    fn load_images(
        &self,
        decoder: &mut Decoder<'a>,
        shape: [usize; 3],
        held_out: usize,
        reporter: &Reporter<'_>,
    ) -> Result<Loaded, Error> {
        let data = &self.job.data;
        let path = images::calibration_path(data, IMAGES)?;
        let options = image_options(data, held_out);
        let images = images::open(path, &[&self.job.source.model], shape, options)?;
        let provenance = images.provenance(path, ImageOptions { samples: Some(data.num_samples), ..options })?;
        let provenance = serde_json::to_value(&provenance).map_err(|e| Error::internal(e.to_string()))?;
        let sequences = decoder.give_images(images)?;
        Ok(self.split_samples(sequences, "image", provenance, reporter))
    }

    /// The plan for these data; a run with other data does not resume its output.
    pub fn plan_for(&self, plan: Plan, loaded: &Loaded) -> PlanOnData {
        let propagate = self.job.data.propagate.name();
        plan.on_data(&format!("{} {propagate}", loaded.key(self.job.data.precision.name())))
    }

    /// Quantizes the blocks of a plan into a started output, and returns the plan with the calibrated parameters for the rest. `rotation` is
    /// what was found before, if that was learned.
    ///
    /// # Errors
    /// Errors of the model and of the system. The same command resumes at the block in which it stopped.
    pub fn quantize_blocks(
        &self,
        decoder: &Decoder<'_>,
        loaded: &Loaded,
        plan: PlanOnData,
        output: &Output,
        rotation: Option<&RotationReport>,
        reporter: &Reporter<'_>,
    ) -> Result<Calibrated, Error> {
        let BlockResults { statistics, report: blocks, .. } =
            self.run_blocks(decoder, loaded, &plan, output, reporter)?;
        let Resolved { parameters, report } = resolve(&plan, &statistics)?;
        report.notices().iter().for_each(|notice| reporter.note(notice));
        let activations = self.histograms(&plan, &statistics, &parameters, reporter);
        let mut record = json!({
            "data": loaded.provenance,
            "precision": self.job.data.precision.name(),
            "carry": self.job.data.propagate.name(),
            "algorithms": plan.recipe().algorithms().to_string(),
            "report": report,
            "layers": blocks.layers,
            "links": blocks.links,
            "tunings": blocks.tunings,
            "starved": blocks.starved,
            "held_out": blocks.held_out,
        });
        if let Some(rotation) = rotation {
            record["rotation"] = json!(rotation);
        }
        Ok(Calibrated { plan: plan.calibrated(parameters, record)?, blocks: Some(blocks), activations })
    }

    /// The points whose activations are gathered for a report.
    fn shown_points(&self, plan: &Plan) -> Vec<ActivationPoint> {
        if self.job.sinks.page.is_some() { shown_points(plan, SHOWN_POINTS) } else { Vec::new() }
    }

    /// The activations of those points. An earlier run without a report has gathered none.
    fn histograms(
        &self,
        plan: &Plan,
        statistics: &Statistics,
        parameters: &Parameters,
        reporter: &Reporter<'_>,
    ) -> Option<Vec<PointHistogram>> {
        if self.shown_points(plan).is_empty() {
            return None;
        }
        if !statistics.has_distributions() {
            reporter.note(ACTIVATIONS_NOT_KEPT);
            return None;
        }
        Some(activation_histograms(plan, statistics, parameters))
    }

    fn run_blocks(
        &self,
        decoder: &Decoder<'_>,
        loaded: &Loaded,
        plan: &Plan,
        output: &Output,
        reporter: &Reporter<'_>,
    ) -> Result<BlockResults, Error> {
        let progress = reporter.stage(Stage::Algorithms, Unit::Tokens);
        let watch = Mutex::new(progress.watch_resumed());
        let watch = |at: BlockProgress| {
            let place = format!("block {} of {}, {}", at.block + 1, at.blocks, at.stage.words());
            watch.lock().unwrap_or_else(PoisonError::into_inner)(&place, at.tokens, at.all_tokens);
        };
        let (checkpoint, ops) = (self.checkpoint, self.job.data.precision.ops());
        let (sequences, held_out) = (loaded.sequences(), loaded.held_out());
        let sources = Sources { plan, checkpoint, decoder, ops: &ops, sequences, held_out, output };
        let key = loaded.key(self.job.data.precision.name());
        let (memory, propagate) = (self.job.limits.memory.0, self.job.data.propagate);
        let shown = &self.shown_points(plan)[..];
        let settings = Settings { target: self.target, key: &key, memory, propagate, shown };
        let blocks = plan.blocks().len();
        let resumes = |done: usize| reporter.resumed(Resumption::Blocks { done, total: blocks });
        let work = || blockwise::run(&sources, settings, reporter.cancel().flag(), &watch, &resumes);
        Ok(self.job.limits.pool()?.install(work)?)
    }

    /// The plan with the parameters that the data give, of a model whose rotation may be `learned` from them.
    ///
    /// # Errors
    /// Whatever is wrong with the data, the tokenizer or the model; before anything is written.
    pub fn complete(
        &self,
        plan: Plan,
        learned: Option<LearnedOnData>,
        reporter: &Reporter<'_>,
    ) -> Result<Calibrated, Error> {
        let mut decoder = Decoder::open_any(self.checkpoint)?;
        let (data, rotation) = self.load_again(&mut decoder, 0, learned, reporter)?;
        let (sequences, provenance) = (&data.sequences, &data.provenance);
        let precision = self.job.data.precision.name();
        let file = StatisticsFile::beside(self.target, format!("{} {precision} {provenance}", plan.fingerprint()));
        let kept = file.read();
        let statistics = match &kept {
            Some(statistics) => {
                reporter.resumed(Resumption::Statistics);
                statistics
            }
            None => {
                if file.is_of_another() {
                    return Err(OutputError::other_run(self.target).into());
                }
                &self.observe(&plan, &decoder, sequences, reporter)?
            }
        };
        let Resolved { parameters, report } = resolve(&plan, statistics)?;
        if kept.is_none() {
            reporter.refuse_lost()?;
            let failure = |cause: io::Error| Error::io(format!("cannot write {}", shown(file.path())), &cause);
            file.write(statistics).map_err(failure)?;
        }
        report.notices().iter().for_each(|notice| reporter.note(notice));
        let activations = self.histograms(&plan, statistics, &parameters, reporter);
        let plan = match rotation {
            None => plan.calibrated(parameters, Some(self.record_of(&data, &report, None)))?,
            Some(rotation) => {
                let learned = LearnedOnData { report: rotation, data };
                let record = self.record_of(&learned.data, &report, Some(&learned));
                self.plan_for(plan, &learned.data).calibrated(parameters, record)?
            }
        };
        Ok(Calibrated { plan, blocks: None, activations })
    }

    /// The plan with the parameters that the statistics of a file give.
    ///
    /// # Errors
    /// Scales that their type does not hold.
    pub fn complete_from_file(&self, plan: Plan, reporter: &Reporter<'_>) -> Result<CalibratedPlan, Error> {
        let Some(file) = plan.recipe().statistics() else { return Ok(plan.without_calibration()?) };
        let Resolved { parameters, report } = resolve(&plan, &Statistics::of_file(&plan, file)?)?;
        if let Some(first) = report.filled.first() {
            let points = counts::number(report.filled.len(), "activation point");
            let name = &file.provenance().name;
            let text = format!(
                "{name} has no range of {points} (the first is {}), which get that of the others that read the same",
                first.site
            );
            reporter.note(&text);
        }
        let others = CalibrationReport { filled: Vec::new(), ..report.clone() };
        others.notices().iter().for_each(|notice| reporter.note(notice));
        let record = json!({ "statistics": file.provenance(), "report": report });
        Ok(plan.calibrated(parameters, Some(record))?)
    }

    fn data(
        &self,
        decoder: &Decoder<'_>,
        held_out: usize,
        images: TextImages,
        reporter: &Reporter<'_>,
    ) -> Result<CalibrationData, Error> {
        let mut options = Options { held_out, ..options(&self.job.data, decoder.longest()) };
        check_length(&options, decoder.longest())?;
        if options.files.iter().any(|file| file.as_os_str() == Data::SELF && file.exists()) {
            reporter.note("self is a file here and is read; rename it to let the model write its own samples");
        }
        for at in (0..options.files.len()).filter(|at| Data::is_self(&self.job.data.files[*at])) {
            let (job, checkpoint, target) = (self.job, self.checkpoint, self.target);
            let (count, length) = (options.sequences_of(at)?, options.sequence_length);
            options.files[at] = SelfSamples { job, checkpoint, target, count, length }.write(reporter)?;
        }
        let (model, vocabulary) = (&self.job.source.model, decoder.vocabulary());
        Ok(CalibrationData::load_with_images(&options, model, vocabulary, images, |_, _| {})?)
    }

    fn observe(
        &self,
        plan: &Plan,
        decoder: &Decoder<'_>,
        sequences: &[Vec<u32>],
        reporter: &Reporter<'_>,
    ) -> Result<Statistics, Error> {
        let progress = reporter.stage(Stage::Calibration, Unit::Tokens);
        let mut watch = progress.watch_places();
        let blocks = decoder.blueprint().blocks.len();
        let watch = |block: usize, done: u64, all: u64| {
            watch(&format!("block {} of {blocks}, observing activations", block + 1), done, all);
        };
        let none = Statistics::new(plan)?.with_distributions(&self.shown_points(plan));
        let memory = self.job.limits.memory.0;
        let ops = self.job.data.precision.ops();
        let work = || observe(decoder, &ops, sequences, none, memory, reporter.cancel().flag(), watch);
        Ok(self.job.limits.pool()?.install(work)?)
    }
}

/// Which images or sounds are taken, with those that are held out.
fn image_options(data: &Data, held_out: usize) -> ImageOptions {
    let samples = Some(data.num_samples.saturating_add(held_out));
    ImageOptions { samples, shuffle: data.shuffle, seed: data.seed }
}

/// The options for data of a model with a context of `longest` tokens, if known.
pub fn options(data: &Data, longest: Option<usize>) -> Options {
    let length = data.seq_len.unwrap_or(SEQUENCE.min(longest.unwrap_or(SEQUENCE)));
    Options {
        seed: data.seed,
        shuffle: data.shuffle,
        packing: data.packing,
        column: data.column.clone(),
        shares: data.shares.clone(),
        ..Options::new(data.files.iter(), data.num_samples, length)
    }
}

/// How much data a job has for such a model, and how much memory it may take.
pub fn size(job: &Job, longest: Option<usize>) -> CalibrationSize {
    let options = options(&job.data, longest);
    CalibrationSize {
        sequences: options.samples as u64,
        held_out: Options::tenth(options.samples) as u64,
        length: options.sequence_length as u64,
        memory: job.limits.memory.0,
        tokenizing: options.tokenizer_memory(),
        precision: job.data.precision.of_pass(),
    }
}

/// Refuses data that are missing or too long for the model of a checkpoint, without reading them, and samples of a model that cannot
/// write any.
///
/// # Errors
/// Those of loading them.
pub fn check_for(checkpoint: &Checkpoint, job: &Job, longest: Option<usize>) -> Result<(), Error> {
    if job.data.files.iter().any(|file| Data::is_self(file)) {
        Decoder::open(checkpoint)?;
    }
    let is_given = !job.data.files.is_empty();
    let shape = if is_given { images::shape(checkpoint) } else { None };
    let sounds = if is_given { sounds::input(checkpoint) } else { None };
    match (shape, sounds) {
        (Some(shape), _) => {
            let path = images::calibration_path(&job.data, IMAGES)?;
            images::open(path, &[&job.source.model], shape, image_options(&job.data, 0)).map(drop)
        }
        (None, Some(input)) => {
            let path = images::calibration_path(&job.data, SOUNDS)?;
            sounds::open(path, &[&job.source.model], input, image_options(&job.data, 0)).map(drop)
        }
        (None, None) => {
            let images =
                Decoder::open_any(checkpoint).map(|decoder| decoder.text_images(checkpoint, &job.source.model));
            let unread = images.as_ref().ok().and_then(|images| images.format().err());
            check(&job.data, longest, &job.source.model, unread)
        }
    }
}

/// Refuses data that are missing or too long for the model, without reading them; `model` has the tokenizer, and `unread` says why images in
/// conversations are refused, where they are.
///
/// # Errors
/// Those of loading them.
pub fn check(data: &Data, longest: Option<usize>, model: &Path, unread: Option<&ImagesUnread>) -> Result<(), Error> {
    if data.files.is_empty() {
        return Ok(());
    }
    let options = options(data, longest);
    let files: Vec<PathBuf> = data.files.iter().filter(|file| !Data::is_self(file)).cloned().collect();
    if files.len() == data.files.len() {
        check_options(&options, model, unread)?;
    } else {
        // The samples of each file are those of the whole mixture.
        (0..data.files.len()).try_for_each(|at| options.sequences_of(at).map(drop))?;
        match (&data.column, files.is_empty()) {
            (_, false) => {
                check_options(&Options { files, shares: Vec::new(), ..options.clone() }, model, unread)?;
            }
            (Some(column), true) => {
                let (file, column) = (Data::SELF.into(), column.clone());
                return Err(CalibrationDataError::NoFields { file, column }.into());
            }
            (None, true) => {}
        }
    }
    check_length(&options, longest)
}

fn check_options(options: &Options, model: &Path, unread: Option<&ImagesUnread>) -> Result<(), Error> {
    match unread {
        None => options.check(model)?,
        Some(why) => options.check_without_images(model, why)?,
    }
    Ok(())
}

fn check_length(options: &Options, longest: Option<usize>) -> Result<(), Error> {
    let (length, longest) = (options.sequence_length, longest.unwrap_or(usize::MAX));
    if length <= longest {
        return Ok(());
    }
    let message = format!("sequences of {length} tokens are longer than the {longest} that the model can take");
    Err(Error::new(ErrorKind::Invalid, message)
        .with_remedies(vec![Remedy::setting("seq-len", "give a smaller ‹seq-len›")]))
}

/// Removes the work files of a completed run.
pub fn clear_away(target: &Path) -> Result<(), Error> {
    let blocks = State::directory(target);
    let failure = |cause: io::Error| Error::io(format!("cannot remove {}", shown(&blocks)), &cause);
    State::remove(target).map_err(failure)?;
    let file = StatisticsFile::beside(target, String::new());
    file.remove().map_err(|cause| Error::io(format!("cannot remove {}", shown(file.path())), &cause))
}
