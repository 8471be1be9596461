//! Lists of what is not quantized: they name every linear layer that is in floats, none that is quantized, and nothing that
//! does not exist.

use crate::format::FormatHandle;
use crate::loader_names::LoaderNames;
use crate::verify::statement::{Listed, QuantConfig};
use crate::verify::subject::CheckpointView;
use kvant_model::family::Role;
use kvant_model::network::Linear;
use kvant_quant::counts::number;
use kvant_quant::finding::{Findings, Severity};
use std::collections::HashSet;

pub(super) fn run(subject: &CheckpointView<'_>, findings: &mut Findings) {
    let Some(statement) = subject.statement.as_ref().filter(|_| !subject.survey.weights.is_empty()) else { return };
    // They have no list: loaders know layers by their tensors.
    let format = FormatHandle::reading(&statement.method);
    if [FormatHandle::TORCHAO, FormatHandle::MLX].map(Some).contains(&format) {
        return;
    }
    for linear in subject.float_linears().filter(|linear| statement.quantizes(&linear.module)) {
        in_floats(linear, statement, findings);
    }
    for weight in subject.survey.weights.iter().filter(|weight| statement.lists(&weight.module)) {
        let reason = "is quantized, but config.json lists it as unquantized: loaders would read its codes as floats";
        findings.error(&weight.module, reason, "take it off the list in config.json");
    }
    let modules = modules(subject);
    let mut absent = statement.listed.iter().filter(|listed| !exists(listed, &modules));
    let Some(first) = absent.next() else { return };
    let reason = match absent.count() {
        0 => "is listed in config.json, and no module has such a name".to_owned(),
        others => {
            format!("and {} are listed in config.json, and no module has such a name", number(others, "more name"))
        }
    };
    findings.note(&first.text, reason, "");
}

/// A layer in floats that config.json does not list.
fn in_floats(linear: &Linear, statement: &QuantConfig, findings: &mut Findings) {
    let reason = "is stored as floats, but config.json does not list it as unquantized";
    let list = match statement.method.as_str() {
        "compressed-tensors" => "add it to `ignore` in config.json",
        "quark" => "add it to `exclude` in config.json",
        _ => "add it to `modules_to_not_convert` in config.json",
    };
    // Heads and routers are modules of their own to most loaders; some methods let loaders look at the tensors.
    let is_apart = linear.role.is_kept_by_default() || linear.role == Role::Unknown;
    let names_classes = matches!(statement.method.as_str(), "compressed-tensors" | "quark");
    let severity = match (is_apart, names_classes, statement.decides_alone()) {
        (true, false, _) => return,
        (true, true, _) => Severity::Warning,
        (false, _, true) => Severity::Error,
        (false, _, false) => Severity::Warning,
    };
    findings.add(severity, &linear.module, reason, list);
}

/// The names of all modules with tensors, and of those that contain them.
fn modules(subject: &CheckpointView<'_>) -> HashSet<String> {
    let mut modules = HashSet::new();
    for tensor in &subject.survey.tensors {
        let mut name = tensor.name.as_str();
        while let Some((module, _)) = name.rsplit_once('.') {
            if !modules.insert(module.to_owned()) {
                break;
            }
            name = module;
        }
        modules.insert(tensor.name.clone());
    }
    let names = LoaderNames::of(&subject.config);
    let renamed: Vec<String> = modules.iter().flat_map(|module| names.of_module(module)).collect();
    modules.extend(renamed);
    // A tied head has no tensor.
    let heads = subject.network.family().map_or(&["lm_head"][..], |family| family.trunk.heads);
    modules.extend(heads.iter().map(|head| (*head).to_owned()));
    modules
}

fn exists(listed: &Listed, modules: &HashSet<String>) -> bool {
    modules.contains(&listed.text) || modules.iter().any(|module| listed.matches(module))
}
