//! A small quantized model that tests break in one place.

use crate::common::{self, Tensor};
use kvant_checkpoint::recipe::Settings;
use kvant_container::{Checkpoint, Dtype};
use kvant_formats::format::OutputFormat;
use kvant_formats::verify::{LoaderSupport, Options, Report, verify};
use kvant_quant::finding::{Finding, Severity};
use serde_json::Value;
use std::path::Path;

/// A checkpoint in memory.
#[derive(Clone)]
pub struct Model {
    pub config: Value,
    pub tensors: Vec<Tensor>,
}

impl Model {
    /// The Llama of one block.
    pub fn float() -> Model {
        Model { config: common::llama_config(), tensors: common::llama(Dtype::BF16) }
    }

    /// The same, quantized.
    pub fn quantized(scheme: &str, export: OutputFormat) -> Model {
        Model::float().quantize(scheme, export)
    }

    /// Quantized by Kvant.
    pub fn quantize(&self, scheme: &str, export: OutputFormat) -> Model {
        self.quantize_mixed(scheme, &[], export)
    }

    /// Quantized by Kvant, some layers otherwise.
    pub fn quantize_mixed(&self, scheme: &str, overrides: &[&str], export: OutputFormat) -> Model {
        let dir = tempfile::tempdir().unwrap();
        let (source, target) = (dir.path().join("source"), dir.path().join("target"));
        common::write(&source, &self.config, &self.tensors);
        let overrides = overrides.iter().map(|text| text.parse().unwrap()).collect();
        let settings = Settings { format: Some(export), overrides, ..common::scheme(scheme) };
        common::quantize(&source, &target, &settings, 2).unwrap();
        Model::read(&target)
    }

    /// Reads a directory.
    pub fn read(dir: &Path) -> Model {
        let checkpoint = Checkpoint::open(dir).unwrap();
        let tensor = |view: kvant_container::TensorView<'_>| {
            (view.name().to_owned(), view.dtype(), view.shape().to_vec(), view.bytes().to_vec())
        };
        Model { config: checkpoint.config().unwrap().unwrap(), tensors: checkpoint.tensors().map(tensor).collect() }
    }

    /// With a tensor in place of the one of its name.
    pub fn with(mut self, tensor: Tensor) -> Model {
        let place = self.tensors.iter_mut().find(|(name, ..)| *name == tensor.0);
        match place {
            Some(place) => *place = tensor,
            None => self.tensors.push(tensor),
        }
        self
    }

    /// Without the tensors whose names end so.
    pub fn without(mut self, end: &str) -> Model {
        let before = self.tensors.len();
        self.tensors.retain(|(name, ..)| !name.ends_with(end));
        assert!(self.tensors.len() < before, "{end}");
        self
    }

    /// With other bytes in the first tensor whose name ends so.
    pub fn edit(mut self, end: &str, edit: impl FnOnce(&mut Vec<u8>)) -> Model {
        let (.., bytes) = self.tensors.iter_mut().find(|(name, ..)| name.ends_with(end)).expect(end);
        edit(bytes);
        self
    }

    /// With another config.json.
    pub fn configured(mut self, edit: impl FnOnce(&mut Value)) -> Model {
        edit(&mut self.config);
        self
    }

    /// With another `quantization_config`.
    pub fn restated(self, edit: impl FnOnce(&mut Value)) -> Model {
        self.configured(|config| edit(&mut config["quantization_config"]))
    }

    /// Its findings.
    pub fn verify_with(&self, options: &Options) -> Report {
        let dir = tempfile::tempdir().unwrap();
        common::write(dir.path(), &self.config, &self.tensors);
        std::fs::write(dir.path().join("tokenizer.json"), r#"{"added_tokens":[],"model":{"vocab":{"a":0,"b":31}}}"#)
            .unwrap();
        verify(dir.path(), options).unwrap()
    }

    pub fn verify(&self) -> Report {
        self.verify_with(&Options::default())
    }

    /// That one check, and no other, finds an error, at a place that ends so.
    pub fn assert_error(&self, check: &str, place: &str, reason: &str) {
        let report = self.verify();
        let errors: Vec<&Finding> = report.errors().collect();
        assert!(!report.passes() && !errors.is_empty(), "{:?}", report.findings);
        assert!(errors.iter().all(|error| error.check == check), "{errors:?}");
        let fits = |error: &&&Finding| error.place.ends_with(place) && error.reason.contains(reason);
        assert!(errors.iter().find(fits).is_some_and(|error| error.hint.is_some()), "{errors:?}");
    }

    /// That a check finds something of that severity, and that nothing is an error.
    pub fn assert_found(&self, severity: Severity, check: &str, place: &str, reason: &str) {
        let report = self.verify();
        assert!(report.passes(), "{:?}", report.findings);
        let fits = |finding: &&Finding| (finding.severity, finding.check) == (severity, check);
        let found = report.findings.iter().filter(fits);
        let there = found.clone().any(|finding| finding.place.ends_with(place) && finding.reason.contains(reason));
        assert!(there, "{:?}", report.findings);
    }

    /// That nothing is found but notes.
    pub fn assert_healthy(&self) {
        let report = self.verify();
        let bad: Vec<&Finding> = report.findings.iter().filter(|finding| finding.severity != Severity::Note).collect();
        assert!(report.passes() && bad.is_empty(), "{bad:?}");
    }
}

/// A loader's support of a model.
pub fn verdict<'r>(report: &'r Report, loader: &str) -> &'r LoaderSupport {
    report.verdicts.iter().find(|verdict| verdict.id == loader).unwrap()
}

/// The bytes of an f32.
pub fn float(value: f32) -> Vec<u8> {
    value.to_le_bytes().to_vec()
}
