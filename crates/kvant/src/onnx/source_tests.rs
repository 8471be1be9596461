//! Graphs that are rewritten in place while a request reads them.

use crate::ending::files_are_mine;
use crate::{
    CancelToken, Conversion, ConvertTo, Error, ErrorKind, Evaluation, Event, Events, GraphEngine, Job, Limits,
    Sensitivity, Source, Verification,
};
use kvant_container::onnx::{ExternalData, external_data_path, read, write};
use kvant_onnx::runtime::RuntimeChoice;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Writes to a file as soon as a stage of the work has begun.
struct Rewrite(PathBuf);

impl Events for Rewrite {
    fn event(&mut self, event: Event<'_>) {
        if matches!(event, Event::StageStarted { .. }) {
            touch(&self.0);
        }
    }
}

/// Writes to a file when the work begins, before the first stage.
struct RewriteAtStart(PathBuf);

impl Events for RewriteAtStart {
    fn event(&mut self, event: Event<'_>) {
        if matches!(event, Event::Started) {
            touch(&self.0);
        }
    }
}

fn touch(path: &Path) {
    let file = fs::File::options().append(true).open(path).unwrap();
    file.set_modified(SystemTime::now() + Duration::from_secs(9)).unwrap();
}

fn embedded() -> Limits {
    let engine = GraphEngine { choice: RuntimeChoice::Rten, ..GraphEngine::default() };
    Limits { engine, threads: Some(1), ..Limits::default() }
}

/// A directory with a graph whose weights lie beside it, and a job that quantizes it.
fn job() -> (tempfile::TempDir, Job) {
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/onnx/tinytransformer.float.onnx");
    let directory = tempfile::tempdir().unwrap();
    let model = directory.path().join("float.onnx");
    write(read(Path::new(golden)).unwrap(), &model, ExternalData::Always).unwrap();
    let mut job = Job::new(model);
    job.recipe.scheme = Some("A8W8".to_owned());
    job.data.files = vec!["random".into()];
    job.data.num_samples = 2;
    job.limits = embedded();
    job.sinks.output = Some(directory.path().join("out.onnx"));
    (directory, job)
}

fn assert_names(error: &Error, file: &Path) {
    assert_eq!(error.kind, ErrorKind::System, "{error}");
    let told = format!("{} has changed while it was read", file.canonicalize().unwrap().display());
    assert!(error.message.contains(&told), "{error}");
}

#[test]
fn a_graph_that_is_rewritten_while_it_is_quantized_gets_no_name() {
    let _lock = files_are_mine();
    for of_data in [false, true] {
        let (directory, job) = job();
        let model = &job.source.model;
        let file = if of_data { external_data_path(model) } else { model.clone() };
        let error = job.run(&mut Rewrite(file.clone()), &CancelToken::new()).err().unwrap();
        assert_names(&error, &file);
        let mut left: Vec<_> =
            fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["float.onnx", "float.onnx.data"], "no result of it stays");
    }
}

#[test]
fn a_graph_that_is_rewritten_while_it_is_measured_is_an_error() {
    let _lock = files_are_mine();
    let (_directory, job) = job();
    job.run(&mut (), &CancelToken::new()).unwrap();
    let (float, quantized) = (job.source.model.clone(), job.sinks.output.clone().unwrap());
    for file in [&float, &quantized] {
        let mut evaluation = Evaluation::new(Source::new(&quantized), "random");
        evaluation.reference = Some(float.clone());
        evaluation.num_samples = Some(2);
        evaluation.limits = embedded();
        let error = evaluation.run(&mut Rewrite(file.clone()), &CancelToken::new()).err().unwrap();
        assert_names(&error, file);
    }
    let mut sensitivity = Sensitivity {
        job,
        test: None,
        test_samples: 2,
        labels: None,
        candidates: Vec::new(),
        target: None,
        leave_one_out: false,
        output: None,
        overwrite: false,
    };
    sensitivity.job.sinks.output = None;
    let error = sensitivity.run(&mut Rewrite(float.clone()), &CancelToken::new()).err().unwrap();
    assert_names(&error, &float);
}

#[test]
fn a_checkpoint_that_is_rewritten_while_it_becomes_a_graph_gets_no_name() {
    let _lock = files_are_mine();
    let nano = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/models/nano_llama");
    let directory = tempfile::tempdir().unwrap();
    let model = directory.path().join("model");
    fs::create_dir(&model).unwrap();
    for entry in fs::read_dir(nano).unwrap().map(|entry| entry.unwrap()).filter(|entry| entry.path().is_file()) {
        fs::copy(entry.path(), model.join(entry.file_name())).unwrap();
    }
    let mut conversion = Conversion::new(Source::new(&model), ConvertTo::Onnx);
    conversion.sinks.output = Some(directory.path().join("out.onnx"));
    let file = model.join("model.safetensors");
    let error = conversion.run(&mut RewriteAtStart(file.clone()), &CancelToken::new()).err().unwrap();
    assert_eq!(error.kind, ErrorKind::System, "{error}");
    assert!(error.message.contains("model.safetensors has changed while it was read"), "{error}");
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "the model alone");
}

#[cfg(unix)]
#[test]
fn a_graph_that_is_rewritten_while_it_is_verified_is_an_error() {
    let _lock = files_are_mine();
    use std::os::unix::fs::PermissionsExt;
    let (directory, job) = job();
    // What asks ONNX Runtime is a program of its own, between the first look and the verdict.
    let prober = directory.path().join("prober");
    fs::write(&prober, "#!/bin/sh\ntouch -d '2001-01-01' \"$2\"\necho '{}'\n").unwrap();
    fs::set_permissions(&prober, fs::Permissions::from_mode(0o755)).unwrap();
    let verification = Verification {
        fusions: false,
        model: job.source.model.clone(),
        loader: None,
        tensor_parallel: None,
        quick: false,
        engine: GraphEngine { prober: vec![prober.into()], ..GraphEngine::default() },
    };
    assert_names(&verification.run().err().unwrap(), &job.source.model);
}
