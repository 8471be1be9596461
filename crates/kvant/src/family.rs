//! Architectures that Kvant has no description of: a user's descriptions, and first drafts of them.

use crate::cancel::CancelToken;
use crate::error::{Error, ErrorKind};
use crate::inspect::headers;
use crate::job::{self, SourceKind};
use crate::paths::{MODEL, protect, refuse_missing};
use crate::remote;
use crate::text::shown;
use kvant_model::family::{self, Family};
use kvant_model::network::FamilyDraft;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// The longest description that is read.
const MOST: u64 = 1 << 20;

/// Reads the description of an architecture from a TOML file, and uses it for as long as the program runs: checkpoints whose
/// `model_type` or architecture it names are calibrated, evaluated and written by it. The same file may be added again. See
/// [`kvant_model::family::parse`] for what a file holds.
///
/// # Errors
/// A file that cannot be read, that is no description, or that gives a family the name of another.
pub fn add_family(file: &Path) -> Result<&'static Family, Error> {
    let mut text = String::new();
    let read = File::open(file).and_then(|open| open.take(MOST).read_to_string(&mut text));
    read.map_err(|error| {
        let problem = format!("the description {} cannot be read: {error}", file.display());
        Error::new(ErrorKind::Usage, problem).with_hint(Some("name a TOML file".to_owned()))
    })?;
    let described = family::parse(&text, file)?;
    protect("the description", file);
    // Added before, by the same program.
    let known = family::by_name(described.name).filter(|known| format!("{known:?}") == format!("{described:?}"));
    let register =
        || family::register(described).map_err(|error| Error::from(family::name_error(&text, file, error.to_string())));
    known.map_or_else(register, Ok)
}

/// A first description of a checkpoint's architecture, from its configuration and the names and shapes of its tensors.
///
/// # Errors
/// Errors of its files, graphs, and models that do not read tokens in one stack of numbered blocks.
pub fn suggest_family(model: &Path) -> Result<FamilyDraft, Error> {
    let opened = remote::open(model, None, &CancelToken::new())?;
    let model = opened.path.as_path();
    refuse_missing([(MODEL, model)])?;
    let file = match SourceKind::of(model) {
        SourceKind::Graph => Some("an ONNX graph"),
        // Only those of known architectures are read.
        SourceKind::Gguf => Some("a GGUF file"),
        SourceKind::Checkpoint | SourceKind::Pipeline => None,
    };
    if let Some(file) = file {
        let problem = format!("{} is {file}, and ‹suggest-family› describes checkpoints", shown(model));
        let hint = "name the Hugging Face checkpoint that it was made from";
        return Err(Error::new(ErrorKind::Usage, problem).with_hint(Some(hint.to_owned())));
    }
    let (config, tensors) = headers(&job::open_whole(model)?)?;
    FamilyDraft::new(&config.unwrap_or_default(), &tensors).ok_or_else(|| {
        let problem =
            format!("no description of {} can be drafted: they are for models that read tokens in one stack of numbered blocks, whose \
             layers have names that other models have", model.display());
        let hint = "an encoder-decoder like BART is described by hand, with `like = \"bart\"`, in the file that ‹family› names; other models are \
                    quantized from weights alone, and `kvant.torch` in Python calibrates them";
        Error::new(ErrorKind::Unsupported, problem).with_hint(Some(hint.to_owned()))
    })
}
