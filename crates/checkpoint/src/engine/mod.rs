//! Doing what the plan says: in parallel, in bounded memory, one band of a weight at a time, every finished job recorded.
//! No decisions: those are the plan's.

mod folder;
mod layer;
mod manifest;
mod output;
mod output_check;
mod output_plan;
mod packed;
mod part;
mod rounded_bias;
mod share;
mod source_part;
mod turns;
mod verify;

pub use folder::{Folder, FolderStart};
pub use kvant_container::unfinished::{Claim, Differing, Options, OutputError, paths_beside, rejection_report};
pub use manifest::{is_recorded, record_files};
pub use output::{Committed, Gathered, Output, Start};
pub use output_plan::{CompletePlan, Form, OutputPlan};
pub use part::{Part, PartCommand, PartPlan, PartStart, WorkerId, discard_part, discard_parts, parts_of};
pub use share::{Share, shares};
pub(crate) use turns::take_turns;
pub use verify::{Verify, refuse_inherited};
pub(crate) use verify::{accept, refuse_errors, refuse_foreseen};

use crate::input_statistics::InputStatisticsError;
use crate::plan::{CalibratedPlan, Job, KeptTensor, ParameterTensor, Plan, TensorAction};
use kvant_container::supply::Held;
use kvant_container::unfinished::{Entry, Written};
use kvant_container::{Checkpoint, Diagnostic, Dtype, ErrorKind, Remedy, Writer};
use kvant_container::{shell_word, shown};
use kvant_formats::lora;
use kvant_numeric::kernel::widen;
use kvant_numeric::simd::Isa;
use kvant_weights::activation_point::Parameters;
use kvant_weights::import_error::ImportError;
use kvant_weights::parts::{Piece, ScaleEncoding, encode};
use kvant_weights::weight::{Band, BandAxis, bands, decode_scales};
use layer::quantize_layers;
use packed::{Packed, dequantize};
use source_part::SourcePart;
use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

/// Told how the work goes. Called from all threads.
pub trait Progress: Sync {
    /// Announces the jobs and bytes of the source to process, and those already done.
    fn begin(&self, total_bytes: u64, done_bytes: u64);
    /// A job with this number of bytes of the source is done.
    fn advance(&self, name: &str, bytes: u64);
}

/// Tells nobody.
pub struct Silent;

impl Progress for Silent {
    fn begin(&self, _total_bytes: u64, _done_bytes: u64) {}
    fn advance(&self, _name: &str, _bytes: u64) {}
}

/// Failures of a run.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// A file of the source or the output.
    #[error(transparent)]
    Container(#[from] kvant_container::Error),
    /// The output directory, the journal.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// A file of statistics.
    #[error(transparent)]
    Statistics(#[from] InputStatisticsError),
    /// The source is quantized, and cannot be read.
    #[error(transparent)]
    Import(#[from] ImportError),
    /// A weight cannot be quantized (*invalid*).
    #[error("tensor `{tensor}` in {file}: {reason}")]
    Weight {
        /// The tensor.
        tensor: String,
        /// The layer that was to be made of it, where it could be kept as it is in its place.
        excludable: Option<String>,
        /// Its file.
        file: String,
        /// The reason.
        reason: String,
    },
    /// A rounding could not choose the codes of a layer (*unsupported*).
    #[error("`{algorithm}` cannot choose the codes of layer `{layer}`: {reason}")]
    Rounding {
        /// The rounding.
        algorithm: String,
        /// The layer.
        layer: String,
        /// The reason.
        reason: String,
    },
    /// A file of the source was written to while it was read.
    #[error("{} has changed while it was read: the output would mix both versions", kvant_container::shown(.0))]
    SourceChanged(PathBuf),
    /// Bytes of the source were gone when they were read: the file was cut short, or its disk failed.
    #[error("{} could not be read to its end", kvant_container::shown(.0))]
    SourceLost(PathBuf),
    /// A weight needs a value beyond the range of its stored type (*unsupported* by the format).
    #[error("tensor `{tensor}` in {file}: {reason}")]
    TooLarge {
        /// The tensor.
        tensor: String,
        /// Its file.
        file: String,
        /// Which number.
        reason: String,
        /// The hint.
        way_out: String,
    },
    /// The source is not what the plan was made from.
    #[error("tensor `{0}` has gone from the source since the plan was made")]
    TensorVanished(String),
    /// The plan needs parameters of activations, but was given none.
    #[error("the scales of activations have not been calibrated")]
    Uncalibrated,
    /// The output is whole, and does not pass verification (*invalid*).
    #[error("{} does not pass verification: {place}: {reason}{}", kvant_container::shown(output), more(*errors))]
    VerificationFailed {
        /// The output, which keeps its preliminary name.
        output: PathBuf,
        /// The location of the first error.
        place: String,
        /// Its kind.
        reason: String,
        /// The number of errors.
        errors: usize,
    },
    /// The output would not pass verification, as headers and config.json show before the work (*invalid*).
    #[error("the result would not pass verification: {place}: {reason}{}", more(*errors))]
    PreflightFailed {
        /// The location of the first error.
        place: String,
        /// Its kind.
        reason: String,
        /// The hint, if one is known.
        way_out: Option<String>,
        /// The number of errors.
        errors: usize,
    },
    /// The threads could not be started.
    #[error("cannot start {0} threads")]
    Threads(usize),
    /// The user asked to stop.
    #[error("Interrupted. Run the same command again to resume.")]
    Cancelled,
}

impl EngineError {
    /// Returns whether the unfinished work is useless to a later run: with such a weight none could finish it.
    pub fn is_final(&self) -> bool {
        matches!(self, EngineError::Weight { .. } | EngineError::TooLarge { .. } | EngineError::SourceChanged(_))
    }
}

impl Diagnostic for EngineError {
    fn kind(&self) -> ErrorKind {
        match self {
            EngineError::Container(error) => error.kind(),
            EngineError::Output(error) => error.kind(),
            EngineError::Import(error) => error.kind(),
            EngineError::Statistics(error) => error.kind(),
            EngineError::TooLarge { .. } | EngineError::Rounding { .. } => ErrorKind::Unsupported,
            EngineError::Weight { .. }
            | EngineError::Uncalibrated
            | EngineError::VerificationFailed { .. }
            | EngineError::PreflightFailed { .. } => ErrorKind::Invalid,
            EngineError::SourceChanged(_)
            | EngineError::SourceLost(_)
            | EngineError::TensorVanished(_)
            | EngineError::Threads(_) => ErrorKind::Io,
            EngineError::Cancelled => ErrorKind::Cancelled,
        }
    }

    fn remedies(&self) -> Vec<Remedy> {
        match self {
            EngineError::Output(error) => error.remedies(),
            EngineError::Weight { excludable: Some(layer), .. } => vec![
                Remedy::text("download the file again, or make it again from the original model"),
                Remedy::ExcludeLayer(layer.clone()),
                Remedy::SkipVerification("keep the layer as it is, with such values"),
            ],
            EngineError::VerificationFailed { output, .. } => vec![
                Remedy::command(format!("verify {}", shell_word(output)), "lists all findings"),
                Remedy::SkipVerification("keep the output anyway"),
            ],
            EngineError::PreflightFailed { way_out, .. } => {
                let ways = way_out.iter().cloned().map(Remedy::Text);
                ways.chain([Remedy::SkipVerification("continue anyway")]).collect()
            }
            EngineError::Uncalibrated => vec![Remedy::GiveCalibrationData],
            EngineError::Threads(_) => vec![Remedy::setting("threads", "ask for fewer with ‹threads›")],
            error => Remedy::of_hint(error.hint()),
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            EngineError::Container(error) => error.hint(),
            EngineError::Output(error) => error.hint(),
            EngineError::Import(error) => error.hint(),
            EngineError::Statistics(error) => error.hint(),
            EngineError::Weight { excludable: None, .. } => {
                Some("download the file again, or make it again from the original model".to_owned())
            }
            EngineError::Weight { excludable: Some(layer), .. } => Some(format!(
                "download the file again, or make it again from the original model; ‹exclude› '{layer}' with ‹no-verify› keeps \
                 the layer as it is, with such values (exclude the layers that loaders fuse with it too: q, k and v; gate and up)"
            )),
            EngineError::SourceChanged(_) | EngineError::SourceLost(_) | EngineError::TensorVanished(_) => {
                Some("run again, and do not change the source while it is read".to_owned())
            }
            EngineError::TooLarge { way_out, .. } => Some(way_out.clone()),
            EngineError::Rounding { .. } => Some("leave ‹algorithm› out to round to nearest".to_owned()),
            EngineError::Uncalibrated => Some("give a text to calibrate with".to_owned()),
            EngineError::VerificationFailed { output, .. } => Some(format!(
                "`kvant verify {}` lists all findings; use ‹no-verify› to keep the output anyway",
                shell_word(output)
            )),
            EngineError::PreflightFailed { way_out, .. } => {
                let way_out = way_out.iter().map(String::as_str);
                let ways: Vec<&str> = way_out.chain(["use ‹no-verify› to continue anyway"]).collect();
                Some(ways.join("; "))
            }
            EngineError::Threads(_) => Some("ask for fewer with ‹threads›".to_owned()),
            EngineError::Cancelled => None,
        }
    }
}

/// The number of further errors.
fn more(errors: usize) -> String {
    match errors {
        0 | 1 => String::new(),
        2 => "; there is one more error".to_owned(),
        errors => format!("; there are {} more errors", errors - 1),
    }
}

/// The result of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Units of work in the plan.
    pub jobs: usize,
    /// Units that an earlier run had done.
    pub resumed: usize,
}

/// Executes a plan into a started output.
///
/// # Errors
/// See [`EngineError`]. After an error, a cancellation or a kill the same call resumes with the remaining jobs.
pub fn run(
    plan: &CalibratedPlan,
    checkpoint: &Checkpoint,
    output: &Output,
    threads: usize,
    cancelled: &AtomicBool,
    progress: &dyn Progress,
) -> Result<Done, EngineError> {
    let all: Vec<usize> = (0..plan.jobs().len()).collect();
    run_jobs(plan, checkpoint, output, &all, threads, cancelled, progress)
}

/// The same with some of the units of work, as indices among the plan's.
///
/// # Errors
/// As [`run`].
pub fn run_jobs(
    plan: &CalibratedPlan,
    checkpoint: &Checkpoint,
    output: &Output,
    chosen: &[usize],
    threads: usize,
    cancelled: &AtomicBool,
    progress: &dyn Progress,
) -> Result<Done, EngineError> {
    let jobs = plan.jobs();
    let left: Vec<usize> = chosen.iter().copied().filter(|job| !output.is_finished(*job)).collect();
    let parameters = Some(plan.parameters());
    let engine = Engine { parameters, ..Engine::new(plan, checkpoint, output, cancelled, progress)? };
    let bytes = |is_counted: &dyn Fn(usize) -> bool| -> u64 {
        chosen.iter().filter(|job| is_counted(**job)).map(|job| plan.source_bytes_of(&jobs[*job])).sum()
    };
    let resumed = chosen.iter().filter(|job| output.is_adopted(**job)).count();
    let done = bytes(&|job| output.is_adopted(job));
    progress.begin(done + bytes(&|job| !output.is_finished(job)), done);
    left.iter().for_each(|job| engine.sources(&jobs[*job]).iter().for_each(SourcePart::announce));
    let finished = take_turns(threads, &left, |job| engine.finish_job(job, &jobs[job]));
    // Before any other error: a source that was cut short is the cause of it. One that is fetched loses bytes where the user stops.
    refuse_changed(checkpoint)?;
    if !matches!(finished, Err(EngineError::Cancelled)) {
        refuse_lost(checkpoint)?;
    }
    finished?;
    Ok(Done { jobs: chosen.len(), resumed })
}

/// Refuses to keep results of bytes that were missing when they were read.
///
/// # Errors
/// [`EngineError::SourceLost`].
pub(crate) fn refuse_lost(checkpoint: &Checkpoint) -> Result<(), EngineError> {
    match checkpoint.lost_file() {
        Some(file) => Err(EngineError::SourceLost(file.to_owned())),
        None => Ok(()),
    }
}

/// Refuses a source that was written to since it was opened.
///
/// # Errors
/// [`EngineError::SourceChanged`].
pub(crate) fn refuse_changed(checkpoint: &Checkpoint) -> Result<(), EngineError> {
    match checkpoint.changed_file() {
        Some(file) => Err(EngineError::SourceChanged(file.to_owned())),
        None => Ok(()),
    }
}

/// Data shared by all jobs.
pub(crate) struct Engine<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) checkpoint: &'a Checkpoint,
    output: &'a Output,
    cancelled: &'a AtomicBool,
    progress: &'a dyn Progress,
    /// The calibrated parameters, once known.
    parameters: Option<&'a Parameters>,
    /// The weights that are quantized in the source.
    packed: Packed<'a>,
    pub(crate) isa: Isa,
}

impl<'a> Engine<'a> {
    /// An engine for a plan; opens what the plan reads of a source that is quantized.
    pub(crate) fn new(
        plan: &'a Plan,
        checkpoint: &'a Checkpoint,
        output: &'a Output,
        cancelled: &'a AtomicBool,
        progress: &'a dyn Progress,
    ) -> Result<Engine<'a>, EngineError> {
        let packed = packed::open(plan, checkpoint)?;
        Ok(Engine { plan, checkpoint, output, cancelled, progress, parameters: None, packed, isa: Isa::best() })
    }

    fn finish_job(&self, index: usize, job: &Job) -> Result<(), EngineError> {
        self.check_cancelled()?;
        let _held: Vec<Held> = self.sources(job).iter().filter_map(SourcePart::hold).collect();
        let pieces = match job {
            Job::Layers(layers) => quantize_layers(self, layers)?,
            Job::Keep(kept) => self.keep(self.plan.kept_tensor(*kept))?,
            Job::Parameters => self.write_parameters()?,
        };
        self.record(index, job, pieces)
    }

    /// Records a job that is done.
    pub(crate) fn record(&self, index: usize, job: &Job, pieces: Vec<Written>) -> Result<(), EngineError> {
        refuse_lost(self.checkpoint).or_else(|lost| self.check_cancelled().and(Err(lost)))?;
        self.output.record(&Entry { job: index, pieces })?;
        self.progress.advance(self.name(job), self.plan.source_bytes_of(job));
        Ok(())
    }

    pub(crate) fn check_cancelled(&self) -> Result<(), EngineError> {
        if self.cancelled.load(Ordering::Relaxed) { Err(EngineError::Cancelled) } else { Ok(()) }
    }

    fn name(&self, job: &Job) -> &str {
        match job {
            Job::Layers(layers) => layers.first().map_or("", |layer| &self.plan.layer(*layer).name),
            Job::Keep(kept) => &self.plan.kept_tensor(*kept).source,
            Job::Parameters => "scales of activations",
        }
    }

    /// Writes what calibration found.
    fn write_parameters(&self) -> Result<Vec<Written>, EngineError> {
        let found = self.parameters.ok_or(EngineError::Uncalibrated)?;
        let tensors = self.plan.parameter_tensors().iter();
        let write = |tensor: &ParameterTensor| {
            let parameters = found.get(&tensor.part.site).ok_or(EngineError::Uncalibrated)?;
            self.write_bytes(tensor.tensor, 0, &tensor.part.bytes(parameters))
        };
        tensors.map(write).collect()
    }

    fn keep(&self, kept: &KeptTensor) -> Result<Vec<Written>, EngineError> {
        match &kept.action {
            TensorAction::Copy(range) => self.copy(kept, range.clone()),
            TensorAction::Dequantize { is_transposed, .. } => dequantize(self, kept, *is_transposed),
            TensorAction::Cast { from, .. } => self.cast(kept, *from),
            TensorAction::Round { from, length, .. } => {
                let mut values = vec![0.0; *length];
                widen(self.isa, *from, self.tensor(&kept.source)?.bytes(), &mut values);
                self.round_bias(kept, &values)
            }
            TensorAction::Widen { dtype, shape, scales } => {
                let matrix = self.matrix(&kept.source, *dtype, *shape, None, false, Some(scales))?;
                let mut written = Vec::new();
                for band in bands(shape.0, shape.1, BandAxis::Rows, scales.block.0, COPY_BYTES / 4) {
                    self.check_cancelled()?;
                    written.push(self.write(kept.tensor, &self.widen(&matrix, &band))?);
                }
                Ok(written)
            }
        }
    }

    /// Writes a copied tensor with changed values, or the part of it that belongs to the job, in the type that it
    /// is declared with.
    pub(crate) fn write_changed(&self, job: &Job, values: &[f32]) -> Result<Vec<Written>, EngineError> {
        let Job::Keep(kept) = job else { return Ok(Vec::new()) };
        let KeptTensor { tensor, action, .. } = self.plan.kept_tensor(*kept);
        if matches!(action, TensorAction::Round { .. }) {
            return self.round_bias(self.plan.kept_tensor(*kept), values);
        }
        let encoding = ScaleEncoding::of_floats(self.plan.layout().declarations()[*tensor].dtype);
        let values = match action {
            TensorAction::Copy(range) => &values[range.start / encoding.size()..range.end / encoding.size()],
            TensorAction::Widen { .. }
            | TensorAction::Dequantize { .. }
            | TensorAction::Cast { .. }
            | TensorAction::Round { .. } => values,
        };
        let pieces = values.chunks(COPY_BYTES / 4).enumerate();
        let write = |(index, values): (usize, &[f32])| {
            let offset = index * (COPY_BYTES / 4) * encoding.size();
            self.write_bytes(*tensor, offset as u64, &encode(encoding, values))
        };
        pieces.map(write).collect()
    }

    /// Returns whether a job is done.
    pub(crate) fn is_finished(&self, job: usize) -> bool {
        self.output.is_finished(job)
    }

    fn copy(&self, kept: &KeptTensor, range: std::ops::Range<usize>) -> Result<Vec<Written>, EngineError> {
        let view = self.tensor(&kept.source)?;
        let mut written = Vec::new();
        let bytes = view.part(range.clone()).ok_or_else(|| EngineError::TensorVanished(kept.source.clone()))?;
        for (i, chunk) in bytes.chunks(COPY_BYTES).enumerate() {
            self.check_cancelled()?;
            let at = i * COPY_BYTES;
            written.push(self.write_bytes(kept.tensor, at as u64, chunk)?);
            view.release_part(range.start + at..range.start + at + chunk.len());
        }
        view.release();
        Ok(written)
    }

    /// Writes the floats of a tensor in the type that is declared.
    fn cast(&self, kept: &KeptTensor, from: Dtype) -> Result<Vec<Written>, EngineError> {
        let view = self.tensor(&kept.source)?;
        let (from, to) = (
            ScaleEncoding::of_floats(from),
            ScaleEncoding::of_floats(self.plan.layout().declarations()[kept.tensor].dtype),
        );
        let (mut values, mut written, mut offset) = (Vec::new(), Vec::new(), 0);
        for chunk in view.pieces(COPY_BYTES) {
            self.check_cancelled()?;
            values.resize(chunk.len() / from.size(), 0.0f32);
            decode_scales(self.isa, from, chunk, &mut values);
            self.check_range(kept, to, &values)?;
            let bytes = encode(to, &values);
            written.push(self.write_bytes(kept.tensor, offset, &bytes)?);
            offset += bytes.len() as u64;
        }
        view.release();
        Ok(written)
    }

    /// Refuses values that a type of floats would make infinite.
    fn check_range(&self, kept: &KeptTensor, to: ScaleEncoding, values: &[f32]) -> Result<(), EngineError> {
        let is_beyond = |value: &&f32| {
            let rounded = match to {
                ScaleEncoding::F16 => half::f16::from_f32(**value).to_f32(),
                ScaleEncoding::Bf16 => half::bf16::from_f32(**value).to_f32(),
                _ => **value,
            };
            value.is_finite() && !rounded.is_finite()
        };
        let Some(value) = values.iter().find(is_beyond) else { return Ok(()) };
        Err(EngineError::TooLarge {
            tensor: kept.source.clone(),
            file: file_of(self.checkpoint, &kept.source, None),
            reason: format!("the value {value} is beyond the range of the requested type"),
            way_out: "‹dtype› f32 holds all values, and bf16 nearly all".to_owned(),
        })
    }

    fn widen(&self, matrix: &kvant_weights::weight::WeightMatrix<'_>, band: &Band) -> Piece<'static> {
        let mut values = Vec::new();
        matrix.read(self.isa, band, &mut values);
        let bytes = values.iter().flat_map(|v| half::bf16::from_f32(*v).to_le_bytes()).collect();
        Piece { offset: (band.rows.start * matrix.columns * 2) as u64, bytes: Cow::Owned(bytes) }
    }

    pub(crate) fn write(&self, tensor: usize, piece: &Piece<'_>) -> Result<Written, EngineError> {
        self.write_bytes(tensor, piece.offset, &piece.bytes)
    }

    pub(crate) fn write_bytes(&self, tensor: usize, offset: u64, bytes: &[u8]) -> Result<Written, EngineError> {
        self.writer().write_at(tensor, offset, bytes)?;
        Ok(Written { tensor, offset, length: bytes.len() as u64, hash: xxhash_rust::xxh3::xxh3_64(bytes) })
    }

    fn writer(&self) -> &Writer {
        self.output.writer()
    }
}

/// The file that holds a tensor of a checkpoint, by its name there or, where it is packed, by that of one of its parts.
pub(crate) fn file_of(checkpoint: &Checkpoint, tensor: &str, part: Option<&str>) -> String {
    let view = checkpoint.tensor(tensor).or_else(|| checkpoint.tensor(part?));
    let path = match (view.as_ref(), checkpoint.gguf()) {
        (Some(view), _) => view.file(),
        (None, Some(file)) => file.path(),
        (None, None) => checkpoint.path(),
    };
    let merged: Vec<String> = lora::folders_of(checkpoint, tensor).iter().map(|folder| shown(folder)).collect();
    match merged.is_empty() {
        true => shown(path),
        false => format!("{} with {} merged into it", shown(path), merged.join(" and ")),
    }
}

/// Bytes that are copied at a time.
const COPY_BYTES: usize = 4 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exclude_hint_is_given_only_for_excludable_layers() {
        let error = |excludable: Option<String>| {
            let (tensor, file, reason) = ("t".to_owned(), "f".to_owned(), "it is NaN".to_owned());
            EngineError::Weight { tensor, excludable, file, reason }
        };
        let hint = |excludable| error(excludable).hint().unwrap_or_default();
        assert!(hint(Some("model.layers.0".to_owned())).contains("‹exclude› 'model.layers.0'"));
        assert!(!hint(None).contains("‹exclude›") && hint(None).contains("download"));
    }
}
