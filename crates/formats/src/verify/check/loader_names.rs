//! Names after loading: compressed-tensors' `targets` and `ignore` are matched with the modules of the loaded model, which
//! transformers names otherwise than some checkpoints do. What it cannot match is left at random values, with a warning only.

use crate::loader_names::LoaderNames;
use crate::verify::subject::CheckpointView;
use kvant_quant::finding::Findings;

const TARGETS: &str = "target the class `Linear` in config.json, or name the layer as transformers does";
const IGNORE: &str = "add this name to `ignore` in config.json";

pub(super) fn run(subject: &CheckpointView<'_>, findings: &mut Findings) {
    let Some(statement) = subject.statement.as_ref().filter(|stated| stated.method == "compressed-tensors") else {
        return;
    };
    let names = LoaderNames::of(&subject.config);
    for weight in subject.survey.weights.iter().filter(|weight| !is_expert(&weight.module)) {
        if let Some(name) = unmatched(&names, &weight.module, |name| statement.quantizes(name)) {
            let reason = format!("is `{name}` once transformers has loaded it, which no target in config.json matches");
            findings.error(&weight.module, reason, TARGETS);
        }
    }
    let floats = subject.float_linears().filter(|linear| !statement.quantizes(&linear.module));
    for linear in floats.filter(|linear| !is_expert(&linear.module)) {
        if let Some(name) = unmatched(&names, &linear.module, |name| !statement.quantizes(name)) {
            let reason =
                format!("is `{name}` once transformers has loaded it, which config.json does not list in `ignore`");
            findings.error(&linear.module, reason, IGNORE);
        }
    }
}

/// The name of a module after loading, where none of those that it may have is as it should be.
fn unmatched(names: &LoaderNames, module: &str, is_right: impl Fn(&str) -> bool) -> Option<String> {
    let names = names.of_module(module);
    let wrong = !names.is_empty() && !names.iter().any(|name| is_right(name));
    wrong.then(|| names.into_iter().next()).flatten()
}

/// Experts are merged while they are loaded: their scheme is that of the first group, whatever its targets.
fn is_expert(module: &str) -> bool {
    let parts: Vec<&str> = module.split('.').collect();
    parts.windows(2).any(|pair| pair[0] == "experts" && pair[1].bytes().all(|byte| byte.is_ascii_digit()))
}
