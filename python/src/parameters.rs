//! The keyword arguments of the package's functions, which follow from the options of the command line.

use crate::spelling::Spelling;
use kvant::SourceKind;
use kvant_cli::{Parameter, ParameterKind, parameters as options_of};
use pyo3::prelude::*;
use serde_json::{Value, json};
use std::path::PathBuf;

/// Options whose keyword has another name: what Python programs call it, or because the name is a keyword of the language.
const RENAMED: &[(&str, &str)] =
    &[("calib", "data"), ("override", "overrides"), ("for", "for_"), ("prompt", "prompts")];

/// The keyword of an option or argument.
pub fn keyword(parameter: &Parameter) -> String {
    let Some(option) = &parameter.option else { return parameter.id.clone() };
    let renamed = RENAMED.iter().find(|(name, _)| name == option);
    renamed.map_or_else(|| option.replace('-', "_"), |(_, keyword)| (*keyword).to_owned())
}

/// Other keywords of the same meaning: the option's own name, and the aliases that the help shows.
fn other_keywords(parameter: &Parameter) -> Vec<String> {
    let primary = keyword(parameter);
    let names = parameter.option.iter().chain(&parameter.aliases).map(|name| name.replace('-', "_"));
    names.filter(|name| *name != primary && name != "for").collect()
}

/// The parameters of a command as JSON: a list of objects with `keyword`, `aliases`, `option` (null for a positional argument), `kind`
/// (flag, yes_no, whole, number, path or text), `is_list`, `is_required`, `values`, `default`, `about` and `heading`.
#[pyfunction]
pub fn parameters(command: &str) -> String {
    let object = |parameter: Parameter| {
        json!({
            "keyword": keyword(&parameter),
            "aliases": other_keywords(&parameter),
            "option": parameter.option,
            "kind": kind(parameter.kind),
            "is_list": parameter.is_list,
            "is_required": parameter.is_required,
            "values": parameter.values,
            "default": parameter.default,
            "about": parameter.about,
            "heading": parameter.heading,
        })
    };
    options_of(command).into_iter().map(object).collect::<Value>().to_string()
}

/// A text of a command's help as Python programmers read it: options are keyword arguments.
#[pyfunction]
pub fn spelled(command: &str, text: &str) -> String {
    let spelling = Spelling::of_command(command);
    spelling.options(&spelling.settings(text))
}

/// Whether the library takes a path for an ONNX graph.
#[pyfunction]
pub fn is_graph(model: PathBuf) -> bool {
    SourceKind::of(&model) == SourceKind::Graph
}

fn kind(kind: ParameterKind) -> &'static str {
    match kind {
        ParameterKind::Flag => "flag",
        ParameterKind::YesNo => "yes_no",
        ParameterKind::Whole => "whole",
        ParameterKind::Number => "number",
        ParameterKind::Path => "path",
        ParameterKind::Text => "text",
    }
}
