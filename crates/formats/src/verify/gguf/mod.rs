//! GGUF files: metadata, tensors, tokenizer and scales against each other. What is wrong with the container itself (offsets,
//! alignment, unknown types) is found when it is opened.

mod facts;
mod metadata;
mod tensors;
mod tokenizer;
mod values;

pub use facts::loaders;

use super::{Options, Reads, Report, ways};
use crate::loader_rules::Sharding;
use crate::loader_rules::{LoaderQuery, ModelFacts, judge};
use kvant_container::gguf::{Array, GgufFile, GgufTensor, Metadata, TensorType, Value, describes_imatrix};
use kvant_container::shown;
use kvant_container::{Diagnostic, Error, ErrorKind};
use kvant_gguf::model::architecture::ARCHITECTURES;
use kvant_quant::finding::{Finding, Findings, Severity};
use std::collections::HashMap;
use std::path::Path;

/// A check of a GGUF file.
pub struct GgufCheck {
    /// Its name in findings.
    pub id: &'static str,
    /// One line about its purpose.
    pub about: &'static str,
    /// Its input.
    pub reads: Reads,
    /// Whether llama.cpp does not get past its errors.
    stops: bool,
    /// Whether it knows decoders alone: others have other tensors.
    of_decoders: bool,
    run: fn(&GgufView<'_>, &mut Findings),
}

/// The check of the file itself.
const FILE: &str = "gguf-file";

/// The check of scales and floats.
const VALUES: &str = "gguf-values";

/// Every check of a GGUF file.
pub const GGUF_CHECKS: &[GgufCheck] = &[
    GgufCheck {
        id: FILE,
        about: "header, types, offsets and lengths are valid for a GGUF file",
        reads: Reads::Headers,
        stops: true,
        of_decoders: false,
        // What is wrong here keeps the file from being opened: see [`unopened`].
        run: |_, _| {},
    },
    GgufCheck {
        id: "gguf-metadata",
        about: "the metadata that its architecture needs are there",
        reads: Reads::Headers,
        stops: true,
        of_decoders: true,
        run: metadata::run,
    },
    GgufCheck {
        id: "gguf-tensors",
        about: "every block has its tensors, of the sizes that the metadata give",
        reads: Reads::Headers,
        stops: true,
        of_decoders: true,
        run: tensors::run,
    },
    GgufCheck {
        id: "gguf-tokenizer",
        about: "the tokenizer's lists are equally long, and fit the embedding",
        reads: Reads::Headers,
        stops: true,
        of_decoders: true,
        run: tokenizer::run,
    },
    GgufCheck {
        id: VALUES,
        about: "scales of blocks and floats are finite",
        reads: Reads::Weights,
        stops: false,
        of_decoders: false,
        run: values::run,
    },
];

/// A tensor as the header has it.
#[derive(Clone, Copy, Debug)]
pub struct Declared<'a> {
    /// Its name.
    pub name: &'a str,
    /// The type of its blocks or elements.
    pub kind: TensorType,
    /// The slowest dimension first.
    pub shape: &'a [usize],
}

/// What is checked.
pub(super) struct GgufView<'a> {
    metadata: &'a Metadata,
    tensors: Vec<Declared<'a>>,
    /// Where they stand, by name.
    places: HashMap<&'a str, usize>,
    /// `general.architecture`.
    architecture: &'a str,
    /// The tensors' bytes, where the file is there already.
    file: Option<&'a GgufFile>,
}

impl<'a> GgufView<'a> {
    fn new(metadata: &'a Metadata, tensors: Vec<Declared<'a>>, file: Option<&'a GgufFile>) -> GgufView<'a> {
        let architecture = metadata.get("general.architecture").and_then(Value::as_str).unwrap_or_default();
        let places = tensors.iter().enumerate().map(|(place, tensor)| (tensor.name, place)).collect();
        GgufView { metadata, tensors, places, architecture, file }
    }

    /// That of a file.
    fn of_file(file: &'a GgufFile) -> GgufView<'a> {
        let declared =
            |tensor: GgufTensor<'a>| Declared { name: tensor.name(), kind: tensor.kind(), shape: tensor.shape() };
        GgufView::new(file.metadata(), file.tensors().map(declared).collect(), Some(file))
    }

    /// A tensor by its name.
    fn tensor(&self, name: &str) -> Option<Declared<'a>> {
        self.places.get(name).map(|place| self.tensors[*place])
    }

    /// Returns whether the file is a whole decoder of an architecture that is described; one without a name should be.
    fn is_known(&self) -> bool {
        let is_model = self.value("general.type").and_then(Value::as_str).is_none_or(|kind| kind == "model");
        let is_described = ARCHITECTURES.iter().any(|row| row.name == self.architecture);
        is_model && (is_described || self.architecture.is_empty())
    }

    /// A value of the metadata.
    fn value(&self, key: &str) -> Option<&Value> {
        self.metadata.get(key)
    }

    /// A number that the metadata give for a block, where they list one for each, or for all of them.
    fn number_of(&self, key: &str, block: Option<usize>) -> Option<usize> {
        match self.value(&format!("{}.{key}", self.architecture))?.as_array() {
            Some(Array::U32(numbers)) => numbers.get(block?).and_then(|number| usize::try_from(*number).ok()),
            Some(Array::I32(numbers)) => numbers.get(block?).and_then(|number| usize::try_from(*number).ok()),
            Some(_) => None,
            None => self.number(key),
        }
    }

    /// A number that the metadata give for the architecture.
    fn number(&self, key: &str) -> Option<usize> {
        let value = self.value(&format!("{}.{key}", self.architecture))?;
        value.as_u64().and_then(|number| usize::try_from(number).ok())
    }
}

/// Verifies a GGUF file.
///
/// # Errors
/// Where there is none, or the system refuses to read it.
pub(super) fn verify(path: &Path, options: &Options) -> Result<Report, Error> {
    match GgufFile::open(path) {
        Ok(file) if describes_imatrix(file.metadata()) => {
            let hint = "`kvant quantize MODEL ‹imatrix› FILE` takes it; `kvant inspect` shows what it holds";
            Ok(without_model(
                path,
                "general.type",
                "says that the file is an importance matrix, not a model",
                hint,
                options,
            ))
        }
        Ok(file) => Ok(report(path, &file, options)),
        Err(error) if matches!(error.kind(), ErrorKind::Invalid | ErrorKind::Unsupported) => {
            Ok(unopened(path, &error, options))
        }
        Err(error) => Err(error),
    }
}

/// The findings of verification for a file with such a header, before it is written.
pub fn foreseen(metadata: &Metadata, tensors: Vec<Declared<'_>>) -> Vec<Finding> {
    let mut findings = found(&GgufView::new(metadata, tensors, None), Reads::Headers);
    findings.retain(|finding| finding.severity == Severity::Error);
    findings
}

/// The findings of verification in the values of some tensors of a file.
///
/// # Errors
/// Where there is no such file, or the system refuses to read it.
pub fn of_values(path: &Path, selects: impl Fn(&str) -> bool) -> Result<Vec<Finding>, Error> {
    let file = GgufFile::open(path)?;
    let mut findings = Findings::of(VALUES);
    values::check(file.tensors().filter(|tensor| selects(tensor.name())).collect(), &mut findings);
    Ok(findings.into_vec())
}

fn found(subject: &GgufView<'_>, reads: Reads) -> Vec<Finding> {
    let checks = GGUF_CHECKS.iter().filter(|check| check.reads <= reads);
    let checks = checks.filter(|check| !check.of_decoders || subject.is_known());
    let found = checks.flat_map(|check| {
        let mut findings = Findings::of(check.id);
        (check.run)(subject, &mut findings);
        findings.into_vec()
    });
    found.collect()
}

fn report(path: &Path, file: &GgufFile, options: &Options) -> Report {
    let subject = GgufView::of_file(file);
    let mut findings = found(&subject, options.reads);
    if !subject.is_known() {
        let mut unknown = Findings::of("gguf-metadata");
        let reason =
            "is not a complete decoder of a known architecture: its metadata, tensors and tokenizer are not checked";
        unknown.note("general.architecture", reason, "");
        findings.append(&mut unknown.into_vec());
    }
    let quantized = file.tensors().filter(|tensor| tensor.kind().block_elements() > 1).count();
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let facts = facts::facts(&name, file.metadata(), file.tensors().map(|tensor| tensor.name()));
    judged(path, findings, options, (file.len(), quantized), facts)
}

/// A file that is none.
fn unopened(path: &Path, error: &Error, options: &Options) -> Report {
    let hint = error.hint().unwrap_or_default();
    let (place, told) = (shown(path), error.to_string());
    // Errors of files begin with their names.
    let reason = told.strip_prefix(&format!("{place}: ")).unwrap_or(&told);
    without_model(path, &place, reason, &hint, options)
}

/// A file without a model.
fn without_model(path: &Path, place: &str, reason: &str, hint: &str, options: &Options) -> Report {
    let mut findings = Findings::of(FILE);
    findings.error(place, reason, hint);
    let facts = ModelFacts { described: true, ..ModelFacts::default() };
    judged(path, findings.into_vec(), options, (0, 0), facts)
}

fn judged(
    path: &Path,
    mut findings: Vec<Finding>,
    options: &Options,
    (tensors, quantized): (usize, usize),
    model: ModelFacts,
) -> Report {
    findings.sort_by_key(|finding| finding.severity);
    let stops = |finding: &&Finding| {
        let check = GGUF_CHECKS.iter().find(|check| check.id == finding.check);
        finding.severity == Severity::Error && check.is_none_or(|check| check.stops)
    };
    let sharding = Sharding::default();
    let family = model.architecture;
    let case = LoaderQuery {
        method: "gguf",
        model,
        layers: Vec::new(),
        shaped: Vec::new(),
        biases: Vec::new(),
        channel_biases: Vec::new(),
        unnamed_routers: Vec::new(),
        stops: findings.iter().filter(stops).collect(),
        sharding: &sharding,
        ways: ways(options),
    };
    let verdicts = judge(&case);
    Report {
        path: path.to_owned(),
        family,
        method: "gguf".to_owned(),
        quantized_layers: quantized,
        tensors,
        findings,
        verdicts,
        loader: options.loader,
        tensor_parallel: options.tensor_parallel,
    }
}
