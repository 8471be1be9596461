//! Whether a finished checkpoint loads, and whether it is sane: checks of what is there against what it says of itself, and a
//! table of what loaders take. Works on checkpoints of any maker; runs nothing, and changes nothing.
//!
//! One file a check and a row in [`CHECKS`], for GGUF files in [`GGUF_CHECKS`]; loaders are data (`loader_rules/loader_rules.toml`).
//!
//! ```
//! use kvant_formats::verify::{Loads, Options, verify};
//! use std::path::Path;
//!
//! let report = verify(Path::new("../../tests/models/nano_llama"), &Options::default())?;
//! assert!(report.passes());
//! assert!(report.verdicts.iter().any(|verdict| verdict.id == "vllm" && verdict.loads == Loads::Yes));
//! # Ok::<(), kvant_container::Error>(())
//! ```

mod check;
mod gguf;
mod scan;
mod statement;
mod subject;

pub use crate::loader_rules::{Loader, LoaderSupport, Loads, Reason, loaders};
pub use check::{CHECKS, Check, Reads};
pub use gguf::loaders as gguf_loaders;
pub use gguf::{
    Declared as DeclaredInGguf, GGUF_CHECKS, GgufCheck, foreseen as foreseen_of_gguf, of_values as values_of_gguf,
};

use crate::loader_rules::{Attention, LoaderQuery, ModelFacts, Sharding, judge};
use check::{VALUES, opening};
use kvant_container::Checkpoint;
use kvant_container::gguf::means_gguf;
use kvant_model::network::is_embedding_name;
use kvant_quant::finding::{Finding, Findings, Severity};
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use subject::CheckpointView;

/// How closely is looked, and at what.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// What is read at most.
    pub reads: Reads,
    /// Whether it is an error that no known loader takes it.
    pub needs_loader: bool,
    /// The loader that decides alone, by its name in the table.
    pub loader: Option<&'static str>,
    /// A number of devices that the model must be shared out over.
    pub tensor_parallel: Option<usize>,
}

impl Default for Options {
    fn default() -> Self {
        Options { reads: Reads::Weights, needs_loader: true, loader: None, tensor_parallel: None }
    }
}

/// The results.
#[derive(Clone, Debug)]
pub struct Report {
    /// The directory or file.
    pub path: PathBuf,
    /// The family of the model, where there is a description; of a GGUF file its architecture.
    pub family: Option<&'static str>,
    /// `quant_method`, or `float`.
    pub method: String,
    /// Layers whose weights are codes.
    pub quantized_layers: usize,
    /// All tensors.
    pub tensors: usize,
    /// The findings of the checks, the worst first.
    pub findings: Vec<Finding>,
    /// The verdicts of the loaders.
    pub verdicts: Vec<LoaderSupport>,
    /// The loader that decides alone.
    loader: Option<&'static str>,
    tensor_parallel: Option<usize>,
}

impl Report {
    /// Whether the checkpoint passes: with a loader that decides alone, whether that takes it, on as many devices as were
    /// asked for, and its values are sound; else whether no check has found an error.
    pub fn passes(&self) -> bool {
        match self.loader {
            Some(id) => {
                self.verdicts.iter().any(|verdict| verdict.id == id && self.is_taken(verdict)) && !self.is_nonsense()
            }
            None => self.errors().next().is_none(),
        }
    }

    /// Whether values are wrong for every loader: NaN, or codes that no scale belongs to.
    pub fn is_nonsense(&self) -> bool {
        let of_checkpoint = |id: &str| CHECKS.iter().any(|check| check.id == id && check.subject == VALUES);
        let of_file = |id: &str| GGUF_CHECKS.iter().any(|check| check.id == id && check.reads == Reads::Weights);
        self.errors().any(|finding| of_checkpoint(finding.check) || of_file(finding.check))
    }

    fn is_taken(&self, verdict: &LoaderSupport) -> bool {
        let fits = self.tensor_parallel.is_none_or(|ways| verdict.tensor_parallel.contains(&ways));
        verdict.loads != Loads::No && fits
    }

    /// The findings that are errors.
    pub fn errors(&self) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(|finding| finding.severity == Severity::Error)
    }
}

/// Verifies a checkpoint: a directory, one file of safetensors, or one of GGUF.
///
/// # Errors
/// Where there is no checkpoint, or the system refuses to read it. What is wrong with a checkpoint is a finding.
pub fn verify(path: &Path, options: &Options) -> Result<Report, kvant_container::Error> {
    if means_gguf(path) {
        return gguf::verify(path, options);
    }
    match Checkpoint::open(path) {
        Ok(checkpoint) => Ok(report(path, &CheckpointView::new(&checkpoint), options)),
        Err(error) => Ok(unopened(path, opening(error)?, options)),
    }
}

/// The errors that verification of any output would find in its source already: config.json against names and shapes. No
/// weight is read, and nothing is said of GGUF files, whose configuration is made of what they hold.
pub fn inherited(checkpoint: &Checkpoint) -> Vec<Finding> {
    inherited_as(checkpoint, Severity::Error)
}

/// The same of warnings.
pub fn inherited_warnings(checkpoint: &Checkpoint) -> Vec<Finding> {
    inherited_as(checkpoint, Severity::Warning)
}

fn inherited_as(checkpoint: &Checkpoint, severity: Severity) -> Vec<Finding> {
    if checkpoint.gguf().is_some() { Vec::new() } else { check::inherited(&CheckpointView::new(checkpoint), severity) }
}

fn report(path: &Path, subject: &CheckpointView<'_>, options: &Options) -> Report {
    let checks = CHECKS.iter().filter(|check| check.reads <= options.reads);
    let found = checks.flat_map(|check| check.findings(subject)).chain(asked_ways(subject, options));
    let mut findings = without_repetitions(found.collect());
    findings.sort_by_key(|finding| finding.severity);
    let layers = subject.layers();
    let case = LoaderQuery {
        method: subject.method(),
        model: subject.model_facts().with_layers(layers.iter().map(|(_, layer)| layer)),
        layers,
        shaped: shaped(subject),
        biases: subject.survey.biases.iter().map(|(module, _)| module.as_str()).collect(),
        channel_biases: channel_biases(subject),
        unnamed_routers: unnamed_routers(subject),
        stops: stops(&findings),
        sharding: &subject.sharding,
        ways: ways(options),
    };
    let verdicts = judge(&case);
    if options.needs_loader && findings.iter().all(|finding| finding.severity != Severity::Error) {
        findings.splice(0..0, untaken(subject, &verdicts));
    }
    Report {
        path: path.to_owned(),
        family: subject.network.family().map(|family| family.name),
        method: subject.method().to_owned(),
        quantized_layers: subject.survey.weights.iter().map(|weight| weight.matrices).sum::<usize>()
            + subject.survey.convolutions.len(),
        tensors: subject.checkpoint.len(),
        findings,
        verdicts,
        loader: options.loader,
        tensor_parallel: options.tensor_parallel,
    }
}

/// The finding that no loader which reads the layout takes the model, if it is known what they make of its architecture.
fn untaken(subject: &CheckpointView<'_>, verdicts: &[LoaderSupport]) -> Option<Finding> {
    let is_known = subject.network.family().is_some() || subject.model_facts().component;
    let readers = || loaders().iter().zip(verdicts).filter(|(loader, _)| loader.of_method(subject.method()).is_some());
    if !is_known || readers().next().is_none() || readers().any(|(_, verdict)| verdict.loads != Loads::No) {
        return None;
    }
    let names: Vec<&str> = readers().map(|(_, verdict)| verdict.loader).collect();
    let mut findings = Findings::of("loaders");
    let reason = format!("no known loader takes it: {} do not", names.join(", "));
    findings.error(
        subject.method(),
        reason,
        "write it in another format or scheme: ‹for› names a loader, whose reasons are given",
    );
    findings.into_vec().pop()
}

/// The convolutions and embeddings whose weights are codes.
fn shaped<'s>(subject: &'s CheckpointView<'_>) -> Vec<&'s str> {
    let convolutions = subject.survey.convolutions.iter().map(|(module, _)| module.as_str());
    let weights = subject.survey.weights.iter().map(|weight| weight.module.as_str());
    convolutions.chain(weights.filter(|module| is_embedding_name(module))).collect()
}

/// A checkpoint whose files do not make one.
fn unopened(path: &Path, finding: Finding, options: &Options) -> Report {
    let (findings, sharding) = (vec![finding], Sharding::default());
    let (model, layers) = (ModelFacts { attention: Attention::None, ..ModelFacts::default() }, Vec::new());
    let (unnamed_routers, stops, ways) = (Vec::new(), stops(&findings), ways(options));
    let verdicts = judge(&LoaderQuery {
        method: "float",
        model,
        layers,
        shaped: Vec::new(),
        biases: Vec::new(),
        channel_biases: Vec::new(),
        unnamed_routers,
        stops,
        sharding: &sharding,
        ways,
    });
    Report {
        path: path.to_owned(),
        family: None,
        method: String::new(),
        quantized_layers: 0,
        tensors: 0,
        findings,
        verdicts,
        loader: options.loader,
        tensor_parallel: options.tensor_parallel,
    }
}

/// Problems for every loader.
fn stops(findings: &[Finding]) -> Vec<&Finding> {
    let errors = findings.iter().filter(|finding| finding.severity == Severity::Error);
    errors.filter(|finding| CHECKS.iter().any(|check| check.id == finding.check && check.stops)).collect()
}

/// Numbers of devices that are looked at.
fn ways(options: &Options) -> Vec<usize> {
    let mut ways = vec![1, 2, 4, 8];
    ways.extend(options.tensor_parallel.filter(|asked| !ways.contains(asked)));
    ways
}

/// What keeps the model from being shared out over the number of devices that was asked for.
fn asked_ways(subject: &CheckpointView<'_>, options: &Options) -> Vec<Finding> {
    let mut findings = Findings::of("tensor-parallel");
    let problems = options.tensor_parallel.into_iter().flat_map(|ways| subject.sharding.problems(ways));
    for (place, reason) in problems {
        findings.error(place, reason, "take fewer devices, or quantize with smaller groups");
    }
    findings.into_vec()
}

/// What a check of values has found is not repeated by the one that stumbled over it.
fn without_repetitions(findings: Vec<Finding>) -> Vec<Finding> {
    const CLOSER: [&str; 2] = ["scales", "groups"];
    const COARSER: [&str; 3] = ["layout", "activations", "kv-cache"];
    let is_error = |finding: &&Finding| finding.severity == Severity::Error && CLOSER.contains(&finding.check);
    let known: HashSet<String> = findings.iter().filter(is_error).map(|finding| finding.place.clone()).collect();
    findings.into_iter().filter(|f| !COARSER.contains(&f.check) || !known.contains(&f.place)).collect()
}

/// Layers whose biases are codes with a scale for each value.
fn channel_biases<'a>(subject: &'a CheckpointView<'_>) -> Vec<&'a str> {
    let biases = subject.survey.biases.iter();
    biases
        .filter(|(_, scales)| scales.shape().iter().product::<usize>() > 1)
        .map(|(module, _)| module.as_str())
        .collect()
}

/// Routers and heads in floats that config.json does not name.
fn unnamed_routers(subject: &CheckpointView<'_>) -> Vec<String> {
    let Some(statement) = &subject.statement else { return Vec::new() };
    let apart = subject.float_linears().filter(|linear| linear.role.is_kept_by_default());
    apart.filter(|linear| statement.quantizes(&linear.module)).map(|linear| linear.module.clone()).collect()
}
