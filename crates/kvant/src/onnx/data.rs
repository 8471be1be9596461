//! The samples of a job, opened for the inputs of a graph.

use super::sequences::TextSequences;
use crate::error::{Error, ErrorKind};
use crate::events::Reporter;
use crate::job::{Data, Job};
use crate::text::printable;
use kvant_container::Remedy;
use kvant_container::onnx::GraphProto;
use kvant_onnx::data::{DataOptions, SampleSource, Samples, inputs};
use std::path::{Path, PathBuf};

/// The source of a job's samples.
pub enum GraphData {
    /// Arrays, images or made-up values.
    Samples(SampleSource),
    /// Files of text or tokens, which decoders are run on.
    Text(Vec<PathBuf>),
}

impl GraphData {
    /// The data of a path.
    pub fn of_path(path: &Path) -> GraphData {
        match is_text(path) {
            true => GraphData::Text(vec![path.to_path_buf()]),
            false => GraphData::Samples(of_path(path)),
        }
    }

    /// Returns whether values are made up.
    pub fn is_made_up(&self) -> bool {
        matches!(self, GraphData::Samples(SampleSource::Random(_)))
    }

    /// Opens the first samples for the inputs of a graph, at most so many of them.
    ///
    /// # Errors
    /// Data that do not fit the graph, text for a graph that is no decoder.
    pub fn first(&self, job: &Job, graph: &GraphProto, count: usize) -> Result<Samples, Error> {
        match self {
            GraphData::Samples(source) => opened(source, &job.data, graph, Some(count), None),
            GraphData::Text(files) => Ok(TextSequences::load(job, files, graph, count, 0)?.samples()?),
        }
    }

    /// Opens the samples behind the first `used`, at most so many of them; `None` where there are none.
    ///
    /// # Errors
    /// Those of [`Self::first`].
    pub fn behind(&self, job: &Job, graph: &GraphProto, used: usize, most: usize) -> Result<Option<Samples>, Error> {
        match self {
            GraphData::Samples(source) => Ok(opened(source, &job.data, graph, None, None)?.behind(used, most)),
            GraphData::Text(files) => TextSequences::load(job, files, graph, used, most)?.held_out_samples(),
        }
    }
}

/// The calibration data, and where they are from.
///
/// # Errors
/// No data, or such as do not fit the graph.
pub fn calibration(job: &Job, graph: &GraphProto, reporter: &Reporter<'_>) -> Result<(Samples, GraphData), Error> {
    let source = source(&job.data)?.ok_or_else(no_data)?;
    let mut samples = match &source {
        GraphData::Samples(_) => source.first(job, graph, job.data.num_samples)?,
        GraphData::Text(files) => {
            let sequences = TextSequences::load(job, files, graph, job.data.num_samples, 0)?;
            sequences.warnings().iter().for_each(|warning| reporter.warning(warning));
            sequences.samples()?
        }
    };
    if samples.random() {
        reporter.note("the calibration data is made up: ranges will not fit real inputs, and accuracy will suffer");
        return Ok((samples, source));
    }
    for (input, value) in samples.constant_inputs()? {
        reporter.warning(&format!(
            "input `{input}` is {value} in all samples: ranges will not fit real inputs, and a measured SQNR says nothing; \
             look at the calibration data",
            input = printable(&input),
            // Not -0.
            value = value + 0.0,
        ));
    }
    Ok((samples, source))
}

/// Refuses calibration data that a run would refuse, without reading their values. The number of samples; none without data.
///
/// # Errors
/// Data that do not fit the graph.
pub fn check(job: &Job, graph: &GraphProto) -> Result<usize, Error> {
    match source(&job.data)? {
        None => Ok(0),
        Some(GraphData::Text(files)) => {
            TextSequences::check(job, &files, graph)?;
            Ok(job.data.num_samples)
        }
        Some(samples) => Ok(samples.first(job, graph, job.data.num_samples)?.len()),
    }
}

/// The source of the data; `None` without data.
///
/// # Errors
/// Several of them that are not text.
pub fn source(data: &Data) -> Result<Option<GraphData>, Error> {
    if !data.files.is_empty() && data.files.iter().all(|file| is_text(file)) {
        return Ok(Some(GraphData::Text(data.files.clone())));
    }
    if !data.shares.is_empty() {
        let message = "shares of calibration data are for text and tokens, and the data of this graph are samples";
        return Err(Error::new(ErrorKind::Usage, message)
            .with_remedies(vec![Remedy::text("give one file or directory without a share")]));
    }
    Ok(one_source(&data.files)?.map(|path| GraphData::Samples(of_path(path))))
}

/// A path, or the name of made-up values.
pub(crate) fn of_path(path: &Path) -> SampleSource {
    path.to_str().and_then(|text| text.parse().ok()).unwrap_or_else(|| SampleSource::Path(path.to_path_buf()))
}

/// Returns whether a path is that of text or tokens, and not of arrays, images or made-up values.
pub(crate) fn is_text(path: &Path) -> bool {
    let ending = path.extension().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
    let is_array = ["npz", "npy", "safetensors", "jpg", "jpeg", "png"].contains(&ending.as_str());
    matches!(of_path(path), SampleSource::Path(_)) && path.is_file() && !is_array
}

/// Opens data for the inputs of a graph; `labels` is the array among them that is for none.
///
/// # Errors
/// Data that do not fit the graph.
pub fn opened(
    source: &SampleSource,
    data: &Data,
    graph: &GraphProto,
    num_samples: Option<usize>,
    labels: Option<String>,
) -> Result<Samples, Error> {
    let preprocessing = data.preprocess.as_deref().map(str::parse).transpose()?;
    let options = DataOptions { num_samples, preprocessing, seed: data.seed, labels };
    Ok(source.open(&inputs(graph), &options)?)
}

fn no_data() -> Error {
    Error::new(ErrorKind::Usage, "this recipe needs calibration data").with_remedies(vec![Remedy::GiveSamples])
}

/// The one path of data that a graph takes.
fn one_source(paths: &[PathBuf]) -> Result<Option<&Path>, Error> {
    match paths {
        [] => Ok(None),
        [path] => Ok(Some(path)),
        _ => {
            let error = Error::new(ErrorKind::Usage, "an ONNX graph is calibrated on one file or directory");
            Err(error.with_hint(Some("put the files into one directory and give that".to_owned())))
        }
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn data_path_that_is_not_utf8_is_kept() {
        let path = PathBuf::from(OsStr::from_bytes(b"caf\xe9.npz"));
        assert_eq!(of_path(&path), SampleSource::Path(path));
        assert!(matches!(of_path(Path::new("random")), SampleSource::Random(_)));
    }
}
