//! Which engine runs a model, and how.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::UnknownWord;

/// The engine to run models with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RuntimeChoice {
    /// ONNX Runtime where its library is found, else the embedded engine.
    #[default]
    Auto,
    /// The embedded engine.
    Rten,
    /// ONNX Runtime.
    Ort,
}

impl RuntimeChoice {
    /// All choices, in the order of the help.
    pub const ALL: [Self; 3] = [Self::Auto, Self::Rten, Self::Ort];

    /// The spelling.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Rten => "rten",
            Self::Ort => "ort",
        }
    }
}

impl fmt::Display for RuntimeChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for RuntimeChoice {
    type Err = UnknownWord;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let unknown = || UnknownWord::new(text, "an engine: auto, rten or ort");
        Self::ALL.into_iter().find(|choice| choice.name() == text).ok_or_else(unknown)
    }
}

/// How models are run.
#[derive(Debug, Clone)]
pub struct RuntimeOptions {
    /// The engine.
    pub choice: RuntimeChoice,
    /// Threads of the engine; all cores where this is `None`.
    pub threads: Option<usize>,
    /// Whether the engine may fuse nodes. It does not where tensors inside the graph are wanted of the embedded engine, or most
    /// of them of ONNX Runtime.
    pub optimize: bool,
    /// The library of ONNX Runtime, in place of a search for it.
    pub library: Option<PathBuf>,
    /// Where a large model is put for the engine to map; the system's temporary directory where this is `None`.
    pub scratch: Option<PathBuf>,
    /// Bytes of wanted tensors held at a time: beyond it a sample is run again for the rest of them.
    pub budget: u64,
}

impl Default for RuntimeOptions {
    fn default() -> Self {
        let (choice, threads, library, scratch) = (RuntimeChoice::Auto, None, None, None);
        Self { choice, threads, optimize: true, library, scratch, budget: 1 << 30 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runtime_choices_round_trip() {
        for choice in RuntimeChoice::ALL {
            assert_eq!(choice.to_string().parse(), Ok(choice));
        }
        let error = "tract".parse::<RuntimeChoice>().unwrap_err();
        assert_eq!(error.to_string(), "`tract` is not an engine: auto, rten or ort");
    }
}
