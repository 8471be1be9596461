//! Names of models on the Hugging Face Hub, as opposed to paths.

/// The most bytes of a part of a name of a model.
const LONGEST_NAME: usize = 96;
/// Folders in which people keep models: a path through one of them is no name of a model.
const FOLDERS: [&str; 10] =
    ["models", "model", "checkpoints", "checkpoint", "outputs", "output", "out", "data", "tmp", "home"];

/// Returns whether a text is a name on the Hub, `ORGANISATION/NAME`, and not a path to a folder.
pub fn is_hub_name(text: &str) -> bool {
    let is_part = |part: &str| {
        let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        let is_edge = |c: char| matches!(c, '-' | '.');
        !part.is_empty()
            && part.len() <= LONGEST_NAME
            && part.chars().all(is_allowed)
            && !part.starts_with(is_edge)
            && !part.ends_with(is_edge)
            && !part.contains("..")
            && !part.contains("--")
    };
    text.split_once('/').is_some_and(|(organisation, name)| {
        is_part(organisation) && is_part(name) && !FOLDERS.contains(&organisation.to_ascii_lowercase().as_str())
    })
}
