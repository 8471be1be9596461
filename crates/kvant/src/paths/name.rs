//! The kind of output that a name announces: a directory, a GGUF file or a graph. A name that announces another kind than the run
//! writes is refused before the work. Whether the path is free is checked by the engine.

use crate::error::{Error, ErrorKind};
use crate::events::Reporter;
use crate::text::shown;
use std::path::{Path, PathBuf};

/// The kind of output under a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputKind {
    /// A directory: a checkpoint, or one folder for each of several formats.
    Directory,
    /// A GGUF file.
    Gguf,
    /// An ONNX graph.
    Graph,
}

/// File extensions, the outputs they imply, and the value of `--format` or `--to` for these.
const ENDINGS: &[(&str, Option<OutputKind>, &str)] = &[
    ("gguf", Some(OutputKind::Gguf), "gguf writes a GGUF file, as its own schemes do, e.g. Q4_K_M"),
    ("onnx", Some(OutputKind::Graph), "onnx writes a graph"),
    ("safetensors", None, "quark or another layout of checkpoints writes a directory with .safetensors files in it"),
];

impl OutputKind {
    fn words(self) -> &'static str {
        match self {
            OutputKind::Directory => "a directory",
            OutputKind::Gguf => "a GGUF file",
            OutputKind::Graph => "an ONNX graph",
        }
    }
}

/// Refuses a name that ends as that of another kind of output does. `option` is the one that chooses the kind: `--format` or
/// `--to`.
///
/// # Errors
/// Names the output, its actual kind, and a remedy.
pub fn check_name(output: &Path, kind: OutputKind, option: &str) -> Result<(), Error> {
    if kind != OutputKind::Directory {
        refuse_slash(output)?;
    }
    let ending = output.extension().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
    let claimed = ENDINGS.iter().find(|(known, claimed, _)| *known == ending && *claimed != Some(kind));
    let Some((ending, _, way)) = claimed else { return Ok(()) };
    let shown = shown(output);
    let failure =
        Error::new(ErrorKind::Usage, format!("the output is {}, and {shown} ends in .{ending}", kind.words()));
    Err(failure.with_hint(Some(format!("choose a name without .{ending}; {option} {way}"))))
}

/// Refuses a file that is named as only a directory can be: by a name with a slash at its end.
///
/// # Errors
/// Names it.
pub fn refuse_slash(output: &Path) -> Result<(), Error> {
    if !output.as_os_str().as_encoded_bytes().ends_with(&[std::path::MAIN_SEPARATOR as u8]) {
        return Ok(());
    }
    let shown = shown(output);
    let failure = Error::new(ErrorKind::Usage, format!("the output is a file, and {shown} ends with a slash"));
    Err(failure.with_hint(Some("leave the slash out, or name a file in the directory".to_owned())))
}

/// The absolute path of an output, because messages may be read in another directory.
pub fn full_path(output: &Path) -> PathBuf {
    std::path::absolute(output).unwrap_or_else(|_| output.to_owned())
}

/// Notes that the name of a GGUF file does not end in .gguf.
pub fn tell_of_name(output: &Path, reporter: &Reporter<'_>) {
    if !output.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("gguf")) {
        let shown = shown(output);
        reporter.note(&format!("{shown} is a GGUF file without .gguf behind its name, which many programs look for"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_names_of_another_kind_are_refused() {
        use OutputKind::{Directory, Gguf, Graph};
        for (name, kind) in [("out", Directory), ("v1.5", Directory), ("a.GGUF", Gguf), ("a", Gguf), ("a.onnx", Graph)]
        {
            assert!(check_name(Path::new(name), kind, "‹format›").is_ok(), "{name}");
        }
        for (name, kind) in [("a.gguf", Directory), ("a.ONNX", Directory), ("a.safetensors", Gguf), ("a.gguf", Graph)] {
            let failure = check_name(Path::new(name), kind, "‹format›").unwrap_err();
            assert!(failure.kind == ErrorKind::Usage && failure.message.contains(name), "{}", failure.message);
            assert!(failure.hint.unwrap().contains("‹format› "), "{name}");
        }
    }
}
