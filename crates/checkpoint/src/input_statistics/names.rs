//! Names of layers in a file that differ from those of the model at their beginning: a language model inside of another model has a
//! prefix, and programs name it differently.

use std::collections::BTreeMap;

/// What names begin with in the file, and in the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Renaming {
    in_file: String,
    in_model: String,
    /// A name of the file.
    example: String,
}

impl Renaming {
    /// The advice to rename the tensors.
    pub(crate) fn advice(&self) -> String {
        let Renaming { in_file, in_model, example } = self;
        let how = match (in_file.as_str(), in_model.as_str()) {
            ("", model) => format!("put `{model}` before the names of its tensors"),
            (file, "") => format!("leave `{file}` out of the names of its tensors"),
            (file, model) => format!("begin the names of its tensors with `{model}` in place of `{file}`"),
        };
        format!("{how}: it has `{example}`")
    }
}

/// The renaming by which all of `modules` are layers of the file; `None` without one. Layers that the model has by the same name are not
/// renamed.
pub(super) fn renaming<S>(
    modules: &[String],
    layers: &BTreeMap<String, S>,
    has_layer: impl Fn(&str) -> bool,
) -> Option<Renaming> {
    let first = modules.first()?;
    let fits = |renaming: &Renaming| {
        modules.iter().all(|module| {
            let rest = module.strip_prefix(&renaming.in_model);
            rest.is_some_and(|rest| layers.contains_key(&format!("{}{rest}", renaming.in_file)))
        })
    };
    let candidates = layers.keys().filter(|layer| !has_layer(layer)).filter_map(|layer| {
        let same = shared_end(first, layer);
        let [in_file, in_model] = [layer, first].map(|name| name[..name.len() - same].to_owned());
        (same > 0).then(|| (same, Renaming { in_file, in_model, example: layer.clone() }))
    });
    candidates.filter(|(_, renaming)| fits(renaming)).max_by_key(|(same, _)| *same).map(|(_, renaming)| renaming)
}

/// The length of the end that two names have in common, in whole parts between dots.
fn shared_end(first: &str, second: &str) -> usize {
    let parts = first.rsplit('.').zip(second.rsplit('.'));
    let shared = parts.take_while(|(one, other)| one == other).map(|(part, _)| part.len() + 1).sum::<usize>();
    // The name itself has no dot before it.
    shared.min(first.len()).min(second.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renamings_are_found_by_all_names() {
        let advice = |modules: &[&str], layers: &[&str]| {
            let modules: Vec<String> = modules.iter().map(|name| (*name).to_owned()).collect();
            let layers: BTreeMap<String, ()> = layers.iter().map(|name| ((*name).to_owned(), ())).collect();
            let has_layer = |layer: &str| layer.starts_with("model.layers.");
            renaming(&modules, &layers, has_layer).map(|renaming| renaming.advice())
        };
        let model = ["model.layers.0.up", "model.layers.1.up"];
        for (layers, expected) in [
            (["layers.0.up", "layers.1.up"], "put `model.` before the names of its tensors: it has `layers.0.up`"),
            (
                ["language_model.model.layers.0.up", "language_model.model.layers.1.up"],
                "leave `language_model.` out of the names of its tensors: it has `language_model.model.layers.0.up`",
            ),
            (
                ["gpt.layers.0.up", "gpt.layers.1.up"],
                "begin the names of its tensors with `model` in place of `gpt`: it has `gpt.layers.0.up`",
            ),
        ] {
            assert_eq!(advice(&model, &layers).as_deref(), Some(expected));
        }
        // One of the layers has no counterpart, or none has.
        assert_eq!(advice(&model, &["layers.0.up"]), None);
        assert_eq!(advice(&model, &["layers.0.down", "layers.1.down"]), None);
        assert_eq!(advice(&[], &["a"]), None);
        // The other layer is in the file by its name.
        assert_eq!(advice(&model[1..], &["model.layers.0.up"]), None);
    }
}
