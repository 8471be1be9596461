//! Reports for people: pages of facts, charts and tables in HTML or Markdown, made from the objects that commands print with ‹json›.
//!
//! A page in HTML is one file that needs no network. What a page shows of each object is in `contents.rs`, `eval.rs` and their like; how it looks
//! is in `html.rs`, `markdown.rs` and `chart.rs`.

mod activations;
mod chart;
mod compared;
mod evaluation;
mod experts;
mod generation;
mod graph;
mod histograms;
mod html;
mod markdown;
mod pictures;
mod quantization;
mod searched;
mod weights;

use crate::error::{Error, ErrorKind};
pub use crate::paths::PageFormat;
use crate::paths::{Paths, page_format, refuse_missing};
use crate::text::{Align, Table, short_names, shown};
use chart::{Bars, Points, Strips};
use generation::Sample;
use histograms::Histograms;
use kvant_container::Remedy;
use kvant_container::supply::shown_name;
use pictures::Pictures;
use serde::Serialize;
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};

/// What `‹json›` of a command printed, with a name for people.
#[derive(Clone, Debug)]
pub struct NamedResult {
    /// The name: that of the model, or of the file.
    pub name: String,
    /// An object of one of the schemas in `docs/schemas`, its `schema` key included.
    pub value: Value,
}

/// A report for people.
#[derive(Clone, Debug)]
pub struct Page {
    title: String,
    /// What makes numbers on it mislead. They are on the page too.
    warnings: Vec<String>,
    parts: Vec<Part>,
}

/// A part of a page.
#[derive(Clone, Debug)]
enum Part {
    Heading(String),
    /// Names, and a value for each.
    Facts(Vec<(String, String)>),
    /// Figures that stand out, each with what it is.
    Figures(Vec<(String, String)>),
    /// A sentence.
    Text(String),
    List(Vec<String>),
    /// Something to copy.
    Code(String),
    /// Texts beside each other.
    Samples(Vec<Sample>),
    Table(Table),
    Bars(Bars),
    Points(Points),
    Strips(Strips),
    Histograms(Histograms),
    Pictures(Pictures),
}

/// A page to make of results in files.
#[derive(Clone, Debug)]
pub struct PageRequest {
    /// Files with what commands printed with ‹json›.
    pub results: Vec<PathBuf>,
    /// The file to write.
    pub output: PathBuf,
    /// Whether a page that Kvant wrote is replaced.
    pub overwrite: bool,
}

impl Page {
    /// Makes a page of results in files, and writes it.
    ///
    /// # Errors
    /// Files that cannot be read, those of [`Page::of`], and a file that is not to be replaced.
    pub fn make(request: &PageRequest) -> Result<Page, Error> {
        let PageRequest { results, output, overwrite } = request;
        let mut paths = Paths::new(*overwrite, true);
        results.iter().for_each(|file| paths.reads("the result", Some(file)));
        paths.writes_page("‹output›", Some(output))?;
        refuse_missing(results.iter().map(|file| ("the results", file.as_path())))?;
        paths.check()?;
        let names = short_names(&results.iter().map(|file| file.with_extension("")).collect::<Vec<_>>());
        let read = results.iter().zip(names).map(|(file, name)| read_result(file, name));
        let page = Page::of(&read.collect::<Result<Vec<_>, Error>>()?)?;
        page.write(output)?;
        Ok(page)
    }

    /// What makes numbers on the page mislead, in sentences.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// The page of one result, or of several evaluations beside each other.
    ///
    /// # Errors
    /// No results, objects of other commands, and several results that are not all evaluations of one kind.
    pub fn of(results: &[NamedResult]) -> Result<Page, Error> {
        let results = compared::expanded(results);
        let [result] = &results[..] else { return compared::page(&results) };
        let object = Object::of(&result.value);
        let (what, parts) = match object.schema() {
            "kvant.quantize" if object.text("format") == "onnx" => ("Quantization", graph::quantized(&object)),
            "kvant.quantize" => ("Quantization", quantization::parts(&object)),
            "kvant.eval" if object.has("samples") || object.has("time") => ("Evaluation", graph::evaluated(&object)),
            "kvant.eval" => ("Evaluation", evaluation::parts(&object)),
            "kvant.generate" => ("Generated text", generation::parts(&object)),
            "kvant.search" => ("Search for the best mix", searched::mixes(&object)),
            "kvant.sensitivity" => ("Sensitivity of layers", searched::layers(&object)),
            _ => return Err(not_reported(result)),
        };
        Ok(Page { title: format!("{what}: {}", result.name), warnings: Vec::new(), parts })
    }

    /// The page as text of a format.
    pub fn render(&self, format: PageFormat) -> String {
        let page = match format {
            PageFormat::Html => html::render(self),
            PageFormat::Markdown => markdown::render(self),
        };
        // Settings are named as the command line spells them, as in what it prints.
        crate::settings::spelled(&page, |setting| format!("--{setting}"))
    }

    /// Writes the page.
    ///
    /// # Errors
    /// *Usage* for names that end in none of .html and .md; those of the system.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        let format = page_format(path)?;
        let written = kvant_container::write_file(path, self.render(format).as_bytes());
        written.map_err(|cause| Error::io(format!("cannot write {}", shown(path)), &cause))
    }
}

/// Refuses a file for a page, of a command that writes nothing else, that has another format or exists.
///
/// # Errors
/// *Usage* for names that end in none of .html and .md; *invalid* for files that exist.
pub(crate) fn check_new(page: &Path) -> Result<(), Error> {
    page_format(page)?;
    if page.symlink_metadata().is_err() {
        return Ok(());
    }
    let failure = Error::new(ErrorKind::Invalid, format!("{} exists already", shown(page)));
    Err(failure.with_remedies(vec![Remedy::text("name another file for ‹report›, or move it away")]))
}

/// Writes the page of what a command found of a model, where one is asked for. `about` says first what that was, as far as the result does not.
///
/// # Errors
/// Those of [`Page::write`]. Where the system refuses the file, the result of the command is kept in a temporary one: hours of work
/// may be behind it, and the page follows from it.
pub(crate) fn write<T: Serialize>(
    path: Option<&Path>,
    model: &Path,
    command: &str,
    about: &[(&str, String)],
    found: impl FnOnce() -> T,
) -> Result<(), Error> {
    let Some(path) = path else { return Ok(()) };
    let model = &shown_name(model).map_or_else(|| model.to_owned(), PathBuf::from);
    let name = model.file_name().map_or_else(|| shown(model).to_string(), |name| name.to_string_lossy().into_owned());
    let value = serde_json::to_value(crate::json::versioned(command, found()));
    let value = value.map_err(|problem| Error::internal(problem.to_string()))?;
    let result = NamedResult { name, value };
    let mut page = Page::of(std::slice::from_ref(&result))?;
    page.parts.splice(0..0, (!about.is_empty()).then(|| known_facts(about.iter().cloned())));
    page.write(path).map_err(|error| match keep(&result) {
        Some(kept) => {
            let again = format!("report {} -o FILE", shown(&kept));
            let rest = format!("{}; everything else is complete", error.message);
            Error { message: rest, ..error }.with_remedies(vec![Remedy::command(again, "writes it to another file")])
        }
        None => error,
    })
}

/// Saves a result as JSON in a temporary file that stays; `None` if that fails too.
fn keep(result: &NamedResult) -> Option<PathBuf> {
    let mut file = tempfile::Builder::new().prefix("kvant-result-").suffix(".json").tempfile().ok()?;
    serde_json::to_writer_pretty(&mut file, &result.value).ok()?;
    file.keep().ok().map(|(_, path)| path)
}

fn not_reported(result: &NamedResult) -> Error {
    let message = format!("{} is not the result of quantize, eval, generate, search or sensitivity", result.name);
    Error::new(ErrorKind::Invalid, message).with_hint(Some("save what one of them prints with ‹json›".to_owned()))
}

/// Reads the object that a command printed with ‹json›, from a file.
///
/// # Errors
/// Files that cannot be read or hold no such object.
fn read_result(file: &Path, name: String) -> Result<NamedResult, Error> {
    let text = std::fs::read_to_string(file);
    let text = text.map_err(|cause| Error::io(format!("cannot read {}", shown(file)), &cause))?;
    let value: Value = serde_json::from_str(text.trim_start_matches('\u{feff}')).map_err(|problem| {
        let message = format!("{} is not JSON: {problem}", shown(file));
        Error::new(ErrorKind::Invalid, message).with_hint(Some("save what a command prints with ‹json›".to_owned()))
    })?;
    Ok(NamedResult { name, value })
}

/// An object of a schema; what is missing or of another type counts as nothing.
#[derive(Clone, Copy, Debug)]
struct Object<'v>(Option<&'v Map<String, Value>>);

impl<'v> Object<'v> {
    fn of(value: &'v Value) -> Object<'v> {
        Object(value.as_object())
    }

    fn get(&self, key: &str) -> Option<&'v Value> {
        self.0.and_then(|map| map.get(key)).filter(|value| !value.is_null())
    }

    fn has(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    /// The name of the schema, without its version.
    fn schema(&self) -> &'v str {
        self.text("schema").split('/').next().unwrap_or_default()
    }

    fn text(&self, key: &str) -> &'v str {
        self.get(key).and_then(Value::as_str).unwrap_or_default()
    }

    fn number(&self, key: &str) -> Option<f64> {
        self.get(key).and_then(Value::as_f64)
    }

    fn count(&self, key: &str) -> Option<u64> {
        self.get(key).and_then(Value::as_u64)
    }

    fn flag(&self, key: &str) -> bool {
        self.get(key).and_then(Value::as_bool).unwrap_or(false)
    }

    fn object(&self, key: &str) -> Object<'v> {
        Object(self.get(key).and_then(Value::as_object))
    }

    fn list(&self, key: &str) -> &'v [Value] {
        self.get(key).and_then(Value::as_array).map_or(&[], Vec::as_slice)
    }

    fn objects(&self, key: &str) -> impl Iterator<Item = Object<'v>> + use<'v> {
        self.list(key).iter().map(Object::of)
    }

    /// Names with their counts, the most frequent first.
    fn counts(&self, key: &str) -> Vec<(&'v str, u64)> {
        let map = self.get(key).and_then(Value::as_object).into_iter().flatten();
        let mut counts: Vec<(&str, u64)> =
            map.filter_map(|(name, count)| Some((name.as_str(), count.as_u64()?))).collect();
        counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        counts
    }

    fn numbers(&self, key: &str) -> Vec<f64> {
        self.list(key).iter().map(|number| number.as_f64().unwrap_or(0.0)).collect()
    }

    fn texts(&self, key: &str) -> Vec<String> {
        self.list(key).iter().filter_map(Value::as_str).map(str::to_owned).collect()
    }
}

/// A number of a measurement with four significant digits; a dash for none.
fn number(value: Option<f64>) -> String {
    match value {
        None => "-".to_owned(),
        Some(0.0) => "0".to_owned(),
        Some(value) => {
            let places = (3 - value.abs().log10().floor() as i32).clamp(0, 9);
            format!("{value:.*}", places as usize)
        }
    }
}

/// A number of any magnitude in scientific notation, as summaries print losses; a dash for none.
fn scientific(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.3e}"))
}

/// A share as a percentage.
fn percent(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{:.2} %", 100.0 * value))
}

/// A value with its standard error.
fn with_error(value: Option<f64>, error: Option<f64>) -> String {
    match error {
        Some(error) => format!("{} ± {}", number(value), number(Some(error))),
        None => number(value),
    }
}

/// Those of facts that have a value.
fn known_facts<'n>(facts: impl IntoIterator<Item = (&'n str, String)>) -> Part {
    let known = facts.into_iter().filter(|(_, value)| !value.is_empty());
    Part::Facts(known.map(|(name, value)| (name.to_owned(), value)).collect())
}

/// A table whose first columns are text.
fn table(texts: &[&str], numbers: &[&str]) -> Table {
    let texts = texts.iter().map(|title| (*title, Align::Left));
    let numbers = numbers.iter().map(|title| (*title, Align::Right));
    Table::new(&texts.chain(numbers).collect::<Vec<_>>())
}

/// The signal-to-noise ratio of each block.
fn blocks(decibels: Vec<Option<f64>>) -> Option<Part> {
    let rows: Vec<(String, f64)> = decibels
        .into_iter()
        .enumerate()
        .filter_map(|(block, value)| Some((format!("block {block}"), value?)))
        .collect();
    (!rows.is_empty()).then(|| {
        Part::Bars(Bars {
            title: "Signal-to-noise ratio after each block (higher is better)".to_owned(),
            unit: "dB".to_owned(),
            rows,
        })
    })
}

#[cfg(test)]
mod tests;
