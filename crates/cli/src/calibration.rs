//! From calibration data to a plan with parameters: loads the data, runs it through the source, and tells what was found.

use crate::args::{CalibrationArgs, RunArgs};
use crate::failure::{Failure, Kind};
use crate::model;
use crate::printer::Printer;
use crate::progress::{Progress, Unit};
use kvant_container::Checkpoint;
use kvant_llm::blockwise::{self, BlockProgress, BlockwiseReport, Found, Settings, Sources, State};
use kvant_llm::calibration::data::{CalibrationData, Options};
use kvant_llm::calibration::{Resolved, Statistics, StatisticsFile, observe, resolve};
use kvant_llm::engine::{Output, OutputError};
use kvant_llm::forward::Decoder;
use kvant_llm::plan::Plan;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, PoisonError};

/// The tokens of a sequence unless said otherwise, where the model can take them.
const SEQUENCE: usize = 512;

/// What calibration needs besides the plan.
pub struct Calibration<'a> {
    /// The source.
    pub checkpoint: &'a Checkpoint,
    /// Its directory.
    pub model: &'a Path,
    /// The output.
    pub target: &'a Path,
    /// The data.
    pub args: &'a CalibrationArgs,
    /// How to run.
    pub run: &'a RunArgs,
    /// Set when the user wants it to stop.
    pub cancelled: &'a AtomicBool,
}

/// Calibration data, with what is told of them.
pub struct Loaded {
    data: CalibrationData,
    provenance: Value,
}

impl Loaded {
    /// The sequences.
    pub fn sequences(&self) -> &[Vec<u32>] {
        &self.data.sequences
    }

    /// The sequences that are held out.
    pub fn held_out(&self) -> &[Vec<u32>] {
        &self.data.held_out
    }

    /// What the output depends on besides the plan.
    pub fn key(&self, precision: &str) -> String {
        format!("{precision} {}", self.provenance)
    }
}

impl Calibration<'_> {
    /// Reads the data, and as many sequences more, where there are so many, to be held out.
    ///
    /// # Errors
    /// Whatever is wrong with the data or the tokenizer.
    pub fn load(&self, decoder: &Decoder<'_>, held_out: usize, printer: &Printer) -> Result<Loaded, Failure> {
        let data = self.data(decoder, held_out)?;
        data.provenance.warnings().iter().for_each(|warning| printer.warning(&warning.to_string()));
        let provenance = serde_json::to_value(&data.provenance).map_err(|e| Failure::internal(e.to_string()))?;
        Ok(Loaded { data, provenance })
    }

    /// The plan for data: a run with others does not go on with its output.
    pub fn plan_for(&self, plan: Plan, loaded: &Loaded) -> Plan {
        let carry = self.args.carry.name();
        plan.with_data(&format!("{} {carry}", loaded.key(self.args.precision.name())))
    }

    /// Quantizes the blocks of a plan into an output that was begun; the plan with what was found, for the rest.
    ///
    /// # Errors
    /// Whatever is wrong with the model or the system. The same command goes on with the block in which it stopped.
    pub fn quantize_blocks(
        &self,
        decoder: &Decoder<'_>,
        loaded: &Loaded,
        plan: Plan,
        output: &Output,
        printer: &Printer,
    ) -> Result<(Plan, BlockwiseReport), Failure> {
        let Found { statistics, report: blocks, .. } = self.run_blocks(decoder, loaded, &plan, output, printer)?;
        let Resolved { parameters, report } = resolve(&plan, &statistics)?;
        report.notices().iter().for_each(|notice| printer.note(notice));
        let record = json!({
            "data": loaded.provenance,
            "precision": self.args.precision.name(),
            "carry": self.args.carry.name(),
            "algorithms": plan.recipe.algorithms().to_string(),
            "report": report,
            "layers": blocks.layers,
            "links": blocks.links,
            "starved": blocks.starved,
            "held_out": blocks.held_out,
        });
        Ok((plan.with_found(parameters)?.with_record(record), blocks))
    }

    fn run_blocks(
        &self,
        decoder: &Decoder<'_>,
        loaded: &Loaded,
        plan: &Plan,
        output: &Output,
        printer: &Printer,
    ) -> Result<Found, Failure> {
        let progress = Progress::new(printer, Unit::Tokens);
        let watch = Mutex::new(progress.watch_resumed());
        let watch = |at: BlockProgress| {
            let place = format!("block {} of {}, {}", at.block + 1, at.blocks, at.stage.words());
            watch.lock().unwrap_or_else(PoisonError::into_inner)(&place, at.tokens, at.all_tokens);
        };
        let (checkpoint, ops) = (self.checkpoint, self.args.precision.ops());
        let CalibrationData { sequences, held_out, .. } = &loaded.data;
        let sources = Sources { plan, checkpoint, decoder, ops: &ops, sequences, held_out, output };
        let key = loaded.key(self.args.precision.name());
        let (memory, carry) = (self.args.max_memory.0, self.args.carry);
        let settings = Settings { target: self.target, key: &key, memory, carry };
        let blocks = plan.blocks.len();
        let resumes = |done: usize| {
            printer.note(&match done < blocks {
                true => format!("resuming at block {} of {blocks}", done + 1),
                false => "resuming after the last block".to_owned(),
            })
        };
        let work = || blockwise::run(&sources, settings, self.cancelled, &watch, &resumes);
        Ok(model::pool(self.run)?.install(work)?)
    }

    /// The plan with the parameters that the data give.
    ///
    /// # Errors
    /// Whatever is wrong with the data, the tokenizer or the model; before anything is written.
    pub fn complete(&self, plan: Plan, printer: &Printer) -> Result<Plan, Failure> {
        let decoder = Decoder::open(self.checkpoint)?;
        let Loaded { data, provenance } = self.load(&decoder, 0, printer)?;
        let precision = self.args.precision.name();
        let file = StatisticsFile::beside(self.target, format!("{} {precision} {provenance}", plan.fingerprint));
        let kept = file.read();
        let statistics = match &kept {
            Some(statistics) => {
                printer.note("resuming with the statistics of an interrupted run");
                statistics
            }
            None => {
                if file.is_of_another() {
                    return Err(OutputError::other_run(self.target).into());
                }
                &self.observe(&plan, &decoder, &data, printer)?
            }
        };
        let Resolved { parameters, report } = resolve(&plan, statistics)?;
        if kept.is_none() {
            let failure = |cause| Failure::system(format!("cannot write {}: {cause}", file.path().display()));
            file.write(statistics).map_err(failure)?;
        }
        report.notices().iter().for_each(|notice| printer.note(notice));
        let record = json!({ "data": provenance, "precision": precision, "report": report });
        Ok(plan.with_parameters(parameters)?.with_record(record))
    }

    fn data(&self, decoder: &Decoder<'_>, held_out: usize) -> Result<CalibrationData, Failure> {
        let options = Options { held_out, ..options(self.args, decoder.longest()) };
        check_length(&options, decoder.longest())?;
        Ok(CalibrationData::load(&options, self.model, decoder.vocabulary(), |_, _| {})?)
    }

    fn observe(
        &self,
        plan: &Plan,
        decoder: &Decoder<'_>,
        data: &CalibrationData,
        printer: &Printer,
    ) -> Result<Statistics, Failure> {
        let progress = Progress::new(printer, Unit::Tokens);
        let mut watch = progress.watch_places();
        let blocks = decoder.blueprint().blocks.len();
        let watch = |block: usize, done: u64, all: u64| {
            watch(&format!("block {} of {blocks}, observing activations", block + 1), done, all);
        };
        let none = Statistics::new(plan)?;
        let memory = self.args.max_memory.0;
        let ops = self.args.precision.ops();
        let work = || observe(decoder, &ops, &data.sequences, none, memory, self.cancelled, watch);
        Ok(model::pool(self.run)?.install(work)?)
    }
}

/// What is asked of the data of a model that takes sequences of `longest` tokens, if that is known.
pub fn options(args: &CalibrationArgs, longest: Option<usize>) -> Options {
    let length = args.seq_len.unwrap_or(SEQUENCE.min(longest.unwrap_or(SEQUENCE)));
    Options {
        seed: args.seed,
        shuffle: args.shuffle,
        packing: args.packing,
        column: args.column.clone(),
        ..Options::new(args.calib.iter(), args.num_samples, length)
    }
}

/// Refuses data, where any are named, that are too long for the model or not there, without reading them.
///
/// # Errors
/// What loading them would report.
pub fn check(args: &CalibrationArgs, longest: Option<usize>) -> Result<(), Failure> {
    if args.calib.is_empty() {
        return Ok(());
    }
    let options = options(args, longest);
    options.check()?;
    check_length(&options, longest)
}

fn check_length(options: &Options, longest: Option<usize>) -> Result<(), Failure> {
    let (length, longest) = (options.sequence_length, longest.unwrap_or(usize::MAX));
    if length <= longest {
        return Ok(());
    }
    let message = format!("sequences of {length} tokens are longer than the {longest} that the model can take");
    Err(Failure::new(Kind::Invalid, message).with_hint(Some("give a smaller --seq-len".to_owned())))
}

/// Removes what was kept for a run that is now whole.
pub fn clear_away(target: &Path) -> Result<(), Failure> {
    let blocks = State::directory(target);
    let failure = |cause| Failure::system(format!("cannot remove {}: {cause}", blocks.display()));
    State::remove(target).map_err(failure)?;
    let file = StatisticsFile::beside(target, String::new());
    file.remove().map_err(|cause| Failure::system(format!("cannot remove {}: {cause}", file.path().display())))
}
