//! Quality limits: decides whether a quantized language model is close enough to its source to be committed. Both are run on text that no
//! algorithm has seen.

use crate::calibration::Calibration;
use crate::error::{Error, ErrorKind};
use crate::events::{Reporter, Stage, Unit};
use crate::images::{self, TowerRun};
use crate::job::{self, Job, SourceKind};
use crate::onnx::accuracy;
use crate::paths::refuse_directory;
use crate::text::shown;
use kvant_checkpoint::engine::rejection_report;
use kvant_container::{Checkpoint, Remedy, write_file};
use kvant_data::calibration as data;
use kvant_data::images::{ImagesUnread, TextImages};
use kvant_forward::evaluation::{Comparison, Evaluation, JoinedSequences, Mean, default_window, evaluate_sequences};
use kvant_forward::forward::Decoder;
use kvant_quant::counts::number;
use serde_json::{Value, json};
use std::cell::RefCell;
use std::path::Path;
use std::sync::Arc;

/// Below this number of tokens, a measurement is reported as uncertain.
const FEW_TOKENS: usize = 1024;

/// The limits of a run, and their evaluation data.
pub struct Gate<'a> {
    job: &'a Job,
    target: &'a Path,
    source: &'a Checkpoint,
    sequences: Vec<Vec<u32>>,
    images: Arc<TextImages>,
    /// The source of the sequences.
    data: String,
    /// Whether the result has a scheme of GGUF files alone.
    has_gguf_scheme: bool,
    /// The report of the result once it is measured.
    measured: RefCell<Option<Value>>,
}

/// Refuses limits that nothing could be measured on, and those of graphs.
///
/// # Errors
/// Names the option.
pub fn check(job: &Job) -> Result<(), Error> {
    let is_graph = job.source.kind() == SourceKind::Graph;
    if is_graph {
        accuracy::check(job)?;
    }
    // Data to measure on are those of graphs too.
    let given = job.limits.quality.given().filter(|option| !(is_graph && *option == "‹eval›"));
    let Some(option) = given else { return Ok(()) };
    let refused =
        |message: String, hint: &str| Err(Error::new(ErrorKind::Usage, message).with_hint(Some(hint.to_owned())));
    if is_graph {
        return refused(format!("{option} applies only to language models"), "leave it out for ONNX graphs");
    }
    if let Some(text) = &job.limits.quality.eval {
        refuse_directory("‹eval›", text)?;
    }
    if job.limits.quality.eval.is_none() && job.data.files.is_empty() {
        return refused(format!("{option} is measured on text, and none is given"), "give a text with ‹eval› FILE");
    }
    Ok(())
}

/// Returns whether limits are measured on calibration data.
pub fn measures_on_calibration_data(job: &Job) -> bool {
    job.limits.quality.given().is_some() && job.limits.quality.eval.is_none()
}

/// Refuses limits of a planned run that could not be measured, because the model does not run here or the file contains no text.
///
/// # Errors
/// Those of [`Gate::open`] that headers and the beginning of the text reveal.
pub fn preflight(job: &Job, source: &Checkpoint) -> Result<(), Error> {
    if job.limits.quality.given().is_none() {
        return Ok(());
    }
    decoder(job, source)?;
    let model = Some(job.source.model.as_path());
    Ok(job.limits.quality.eval.as_deref().map_or(Ok(()), |file| data::Documents::check(file, None, model))?)
}

/// The source as a decoder, without which no limit can be measured.
fn decoder<'c>(job: &Job, source: &'c Checkpoint) -> Result<Decoder<'c>, Error> {
    let option = job.limits.quality.given().unwrap_or_default();
    let way = || Remedy::text(format!("leave {option} out: it is measured by running the model as a decoder"));
    Decoder::open(source).map_err(|error| Error::not_run(error, way()))
}

impl<'a> Gate<'a> {
    /// Reads the evaluation data; `None` without limits. `calibrates` says whether the run uses the
    /// calibration data itself, so that only held-out sequences remain.
    ///
    /// # Errors
    /// Errors of the source, the text or the tokenizer; data without held-out sequences.
    pub fn open(
        job: &'a Job,
        source: &'a Checkpoint,
        target: &'a Path,
        calibrates: bool,
        reporter: &Reporter<'_>,
    ) -> Result<Option<Gate<'a>>, Error> {
        if job.limits.quality.given().is_none() {
            return Ok(None);
        }
        let decoder = decoder(job, source)?;
        let (Windows { sequences, images }, data) = match &job.limits.quality.eval {
            Some(text) => {
                let images = decoder.text_images(source, &job.source.model);
                (windows(job, &decoder, text, images, reporter)?, shown(text))
            }
            None => (held_out(job, source, &decoder, target, calibrates, reporter)?, "held-out sequences".to_owned()),
        };
        let (has_gguf_scheme, measured) = (false, RefCell::new(None));
        Ok(Some(Gate { job, target, source, sequences, images, data, has_gguf_scheme, measured }))
    }

    /// The same for a result with a scheme of GGUF files alone, for which other ways lead to less loss.
    #[must_use]
    pub fn of_gguf_scheme(self) -> Gate<'a> {
        Gate { has_gguf_scheme: true, ..self }
    }

    /// Measures a complete result before it is committed.
    ///
    /// # Errors
    /// Limits that it exceeds; failures to run it.
    pub fn judge(&self, made: &Path, reporter: &Reporter<'_>) -> Result<(), Error> {
        let found = self.measure(made, reporter)?;
        let Some(comparison) = &found.comparison else { return Ok(()) };
        if let Some(warning) = self.uncertainty(&found, comparison) {
            reporter.warning(&warning);
        }
        let exceeded = self.exceeded(&found, comparison);
        let report = self.report(&found, comparison, exceeded.is_empty());
        self.measured.replace(Some(report.clone()));
        if exceeded.is_empty() {
            return Ok(());
        }
        let kept = rejection_report(self.target)?;
        let text = serde_json::to_string_pretty(&report).map_err(|e| Error::internal(e.to_string()))?;
        write_file(&kept, (text + "\n").as_bytes())
            .map_err(|cause| Error::io(format!("cannot write {}", shown(&kept)), &cause))?;
        let message = format!("{}, on {} of {}", exceeded.join("; "), number(found.tokens, "token"), self.data);
        let hint = format!(
            "{}, each with ‹restart› to discard the rejected result; the report is {}; run again with looser limits, or without limits, to \
             accept the result",
            self.ways(comparison),
            shown(&kept),
        );
        Err(Error::new(ErrorKind::Invalid, message).with_hint(Some(hint)))
    }

    /// The measurement, for the report of the run.
    pub fn measured(&self) -> Option<Value> {
        self.measured.borrow().clone()
    }

    fn measure(&self, made: &Path, reporter: &Reporter<'_>) -> Result<Evaluation, Error> {
        let checkpoint = job::open(made)?;
        // A rotated model is compared with the one that was rotated.
        let original = self.source.rewriting().map(|_| self.job.source.open()).transpose()?;
        let source = original.as_ref().unwrap_or(self.source);
        let (mut decoder, mut reference) = (Decoder::open(&checkpoint)?, Decoder::open(source)?);
        let sequences = || self.sequences.iter().map(Vec::as_slice);
        let (precision, limits) = (self.job.data.precision, &self.job.limits);
        let how = TowerRun { stage: Stage::Evaluation, precision, limits, reporter };
        images::give(&mut decoder, &checkpoint, &self.images, sequences(), &how)?;
        images::give(&mut reference, source, &self.images, sequences(), &how)?;
        let (ops, memory) = (self.job.data.precision.ops(), self.job.limits.memory.0);
        let progress = reporter.stage(Stage::Evaluation, Unit::Tokens);
        let watch = progress.watch_cancelled();
        let sequences = &self.sequences;
        let work = || evaluate_sequences(&decoder, Some(&reference), &ops, sequences, memory, watch);
        Ok(self.job.limits.pool()?.install(work)?)
    }

    /// The warning that a limit is checked on few tokens, with the standard error.
    fn uncertainty(&self, found: &Evaluation, comparison: &Comparison) -> Option<String> {
        let quality = &self.job.limits.quality;
        let has_limit = quality.max_kl.is_some() || quality.max_perplexity_increase.is_some();
        if !has_limit || found.tokens >= FEW_TOKENS {
            return None;
        }
        Some(format!(
            "the limits are checked on only {} of {}: KL divergence {}, ratio of perplexities {}; \
             give a longer text with ‹eval› FILE for smaller errors",
            number(found.tokens, "token"),
            self.data,
            shown_mean(comparison.kl_mean, 6),
            shown_mean(comparison.perplexity_ratio, 4)
        ))
    }

    /// The limits that are not kept, in words.
    fn exceeded(&self, found: &Evaluation, comparison: &Comparison) -> Vec<String> {
        let (kl, increase) = (comparison.kl_mean.value, increase(comparison));
        let above = |limit: Option<f64>, value: f64| limit.filter(|limit| value.is_nan() || value > *limit);
        let of_kl = above(self.job.limits.quality.max_kl, kl)
            .map(|limit| format!("the KL divergence from the source, {kl:.6} nats, is above ‹max-kl› {limit}"));
        let of_perplexity = above(self.job.limits.quality.max_perplexity_increase, increase).map(|limit| {
            format!(
                "the perplexity, {:.4}, is {increase:.3} % above that of the source, {:.4}: more than \
                 ‹max-perplexity-increase› {limit}",
                found.perplexity, comparison.reference_perplexity
            )
        });
        of_kl.into_iter().chain(of_perplexity).collect()
    }

    fn report(&self, found: &Evaluation, comparison: &Comparison, accepted: bool) -> Value {
        json!({
            "accepted": accepted,
            "data": self.data,
            "tokens": found.tokens,
            "kl_mean": comparison.kl_mean.value,
            "kl_mean_error": comparison.kl_mean.error,
            "max_kl": self.job.limits.quality.max_kl,
            "perplexity": found.perplexity,
            "reference_perplexity": comparison.reference_perplexity,
            "perplexity_increase_percent": increase(comparison),
            "max_perplexity_increase_percent": self.job.limits.quality.max_perplexity_increase,
            "top1_agreement": comparison.top1_agreement,
            "blocks_sqnr_db": comparison.blocks,
        })
    }

    /// The likely remedy.
    fn ways(&self, comparison: &Comparison) -> String {
        let is_plain = self.job.recipe.algorithm.is_empty() && self.job.recipe.imatrix.is_none();
        let algorithm = match (is_plain, self.has_gguf_scheme) {
            (true, false) => "try ‹algorithm› gptq with ‹calib› FILE",
            (true, true) => "try ‹algorithm› imatrix with ‹calib› FILE",
            (false, _) => "try more calibration data",
        };
        let (scheme, layers) = match self.has_gguf_scheme {
            true => ("a scheme of more bits, e.g. ‹scheme› Q6_K", "tensors"),
            false => ("a scheme with smaller groups", "layers"),
        };
        let blocks = comparison.blocks.iter().enumerate().filter(|(_, decibels)| decibels.is_finite());
        let drops = blocks.min_by(|(_, a), (_, b)| a.total_cmp(b));
        let worst =
            drops.map(|(block, decibels)| format!(" (the error is largest after block {block}: {decibels:.1} dB)"));
        format!("{algorithm}, {scheme}, or more bits for some {layers} with ‹override›{}", worst.unwrap_or_default())
    }
}

/// A mean with its standard error, which a single window does not have.
fn shown_mean(mean: Mean, digits: usize) -> String {
    match mean {
        Mean { value, error } if error.is_nan() => format!("{value:.digits$}"),
        Mean { value, error } => format!("{value:.digits$} ± {error:.digits$}"),
    }
}

/// By how many percent the perplexity has grown.
fn increase(comparison: &Comparison) -> f64 {
    100.0 * (comparison.perplexity_ratio.value - 1.0)
}

/// Sequences to measure on, with the images in them.
struct Windows {
    sequences: Vec<Vec<u32>>,
    images: Arc<TextImages>,
}

/// A file of text or tokens in windows, as `kvant eval` cuts it; a short text is one window.
///
/// # Errors
/// Those of the file and the tokenizer; images.
pub(crate) fn text_windows(
    job: &Job,
    decoder: &Decoder<'_>,
    file: &Path,
    reporter: &Reporter<'_>,
) -> Result<Vec<Vec<u32>>, Error> {
    let why = ImagesUnread { reason: "a search for a mix measures text alone".to_owned(), ..ImagesUnread::of_text() };
    Ok(windows(job, decoder, file, TextImages::unread(why), reporter)?.sequences)
}

fn windows(
    job: &Job,
    decoder: &Decoder<'_>,
    file: &Path,
    images: TextImages,
    reporter: &Reporter<'_>,
) -> Result<Windows, Error> {
    let data::Documents { documents, images, warnings } =
        data::Documents::load_with_images(file, None, &job.source.model, decoder.vocabulary(), images)?;
    warnings.iter().for_each(|warning| reporter.warning(&warning.to_string()));
    let longest = job.data.seq_len.unwrap_or_else(|| default_window(decoder.longest()));
    let documents = documents.into_iter().map(|document| data::TokenDocument { is_row: true, ..document });
    let documents: Vec<data::TokenDocument> = documents.collect();
    let JoinedSequences { tokens, windows } = JoinedSequences::of_documents(&documents, longest, None)?;
    let sequences = windows.into_iter().map(|window| tokens[window.tokens].to_vec()).collect();
    Ok(Windows { sequences, images: Arc::new(images) })
}

/// The held-out part of the calibration data.
fn held_out(
    job: &Job,
    source: &Checkpoint,
    decoder: &Decoder<'_>,
    target: &Path,
    calibrates: bool,
    reporter: &Reporter<'_>,
) -> Result<Windows, Error> {
    let calibration = Calibration { job, checkpoint: source, target };
    let loaded = calibration.read(decoder, data::Options::tenth(job.data.num_samples), reporter)?;
    let sequences = if calibrates { loaded.held_out() } else { loaded.sequences() };
    if sequences.iter().any(|sequence| sequence.len() > 1) {
        return Ok(Windows { sequences: sequences.to_vec(), images: Arc::clone(loaded.images()) });
    }
    let option = job.limits.quality.given().unwrap_or_default();
    let message =
        format!("calibration takes all sequences of the calibration data: none are left to measure {option} on");
    let text = Remedy::setting("eval", "give a text with ‹eval› FILE");
    let fewer = Remedy::setting("num-samples", "calibrate on fewer sequences with ‹num-samples›");
    Err(Error::new(ErrorKind::Invalid, message).with_remedies(vec![text, fewer]))
}
