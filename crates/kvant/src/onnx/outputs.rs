//! The graphs that a run writes: one file, or one for each of several graph formats in a directory. Not how they are made.

use super::quantize::{check_output, no_output};
use crate::delivery::check_runs;
use crate::error::{Error, ErrorKind};
use crate::job::{Job, Sinks, SourceKind};
use crate::text::shown;
use kvant_container::Remedy;
use kvant_container::onnx::{ExternalData, PRODUCER, read};
use kvant_onnx::recipe::{Layout, Recipe};
use kvant_onnx::settings::PairLayout;
use std::path::{Path, PathBuf};

/// One of the graphs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GraphOutput {
    /// Where it goes.
    pub path: PathBuf,
    /// Its format, where one was asked for; else the recipe's.
    format: Option<PairLayout>,
}

impl GraphOutput {
    /// Its layout, with a recipe.
    pub fn layout(&self, recipe: &Recipe) -> Layout {
        self.format.map_or(recipe.layout, layout)
    }
}

/// All graphs of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GraphOutputs {
    /// What the user has named: the file, or the directory.
    pub named: PathBuf,
    /// The graphs, in the order in which their formats were asked for.
    pub all: Vec<GraphOutput>,
}

/// The layout of a format.
pub fn layout(format: PairLayout) -> Layout {
    match format {
        PairLayout::Qdq => Layout::Qdq,
        PairLayout::Qoperator => Layout::QOperator,
    }
}

/// Refuses a format that is given twice.
///
/// # Errors
/// Names it.
pub fn refuse_repeated(formats: &[PairLayout]) -> Result<(), Error> {
    let repeated = formats.iter().enumerate().find(|(at, format)| formats[..*at].contains(format));
    let Some((_, format)) = repeated else { return Ok(()) };
    let error = Error::new(ErrorKind::Usage, format!("‹graph-format› {format} is given twice"));
    Err(error.with_hint(Some("name each format once".to_owned())))
}

impl GraphOutputs {
    /// The graphs of a job.
    ///
    /// # Errors
    /// No output, or a format that is given twice.
    pub fn of(job: &Job) -> Result<GraphOutputs, Error> {
        let Sinks { output, graph_formats, .. } = &job.sinks;
        let named = output.clone().ok_or_else(no_output)?;
        refuse_repeated(graph_formats)?;
        let all = match &graph_formats[..] {
            [] | [_] => vec![GraphOutput { path: named.clone(), format: graph_formats.first().copied() }],
            several => {
                let place = |format: &PairLayout| named.join(format!("{format}.onnx"));
                several.iter().map(|format| GraphOutput { path: place(format), format: Some(*format) }).collect()
            }
        };
        Ok(GraphOutputs { named, all })
    }

    /// Returns whether the output is a directory with a file for each of several formats.
    pub fn has_directory(&self) -> bool {
        self.all.len() > 1
    }

    /// Refuses what is in the way of the graphs.
    ///
    /// # Errors
    /// Names it.
    pub fn check(&self, sinks: &Sinks) -> Result<(), Error> {
        let overwrite = sinks.commit.overwrite;
        if !self.has_directory() {
            check_external_data(&self.named, sinks.external_data)?;
            return check_output(&self.named, overwrite);
        }
        let named = shown(&self.named);
        let usage =
            |message: String, hint: &str| Error::new(ErrorKind::Usage, message).with_hint(Some(hint.to_owned()));
        if SourceKind::named(&self.named).is_some() {
            let message =
                format!("several graph formats are written to a directory, and {named} is the name of a file");
            return Err(usage(message, "choose a name without an ending, or name one ‹graph-format›"));
        }
        if self.named.exists() && !self.named.is_dir() {
            return Err(usage(format!("{named} is not a directory"), "choose another name with ‹output›"));
        }
        let paths = || self.all.iter().map(|output| output.path.as_path());
        check_runs(paths(), &sinks.settings, sinks.commit)?;
        paths().try_for_each(|path| check_output(path, overwrite).and_then(|()| refuse_foreign(path)))
    }
}

/// Refuses external data of a graph that cannot state their name.
fn check_external_data(graph: &Path, external: ExternalData) -> Result<(), Error> {
    let is_text = graph.file_name().is_none_or(|name| name.to_str().is_some());
    if is_text || external != ExternalData::Always {
        return Ok(());
    }
    let message = format!("{}: a graph states the name of its external data, in UTF-8", shown(graph));
    let output = Remedy::setting("output", "choose a name in UTF-8 with ‹output›");
    let inside = Remedy::setting("external-data", "leave the weights in the graph with ‹external-data› never");
    Err(Error::new(ErrorKind::Usage, message).with_remedies(vec![output, inside]))
}

/// Refuses to replace a graph that the user has not named and that Kvant has not made.
fn refuse_foreign(path: &Path) -> Result<(), Error> {
    let is_ours = || read(path).is_ok_and(|model| model.producer_name.as_deref() == Some(PRODUCER));
    if !path.exists() || is_ours() {
        return Ok(());
    }
    let message = format!("{} exists already, and Kvant has not made it", shown(path));
    let output = Remedy::setting("output", "choose another directory with ‹output›");
    Err(Error::new(ErrorKind::Invalid, message).with_remedies(vec![Remedy::text("move it away"), output]))
}
