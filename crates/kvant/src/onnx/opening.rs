//! Checks whether ONNX Runtime opens a graph as programs do, with its graph optimizations: in a separate process, because
//! the library may crash over a graph, and would take Kvant with it.

use crate::cancel::CancelToken;
use crate::error::{Error, ErrorKind};
use crate::job::GraphEngine;
use kvant_container::Remedy;
use kvant_onnx::runtime::{RuntimeError, open_file};
use serde_json::{Value, json};
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// The answer of ONNX Runtime to a graph.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Opening {
    /// It opens it; its name and version.
    Opens(String),
    /// It does not.
    Refuses {
        /// Its name and version.
        engine: String,
        /// Its answer, or its exit status.
        problem: String,
        /// Whether it ended the process without an answer.
        is_crash: bool,
    },
    /// It could not be asked: the library was not found, or is not wanted.
    Unknown,
}

/// The remedy if ONNX Runtime crashes on a graph. Measured with 1.31.1 on a vision transformer in float16: of its levels of
/// optimization only the highest, which moves convolutions to channels last, crashes.
const AFTER_CRASH: &str = "write it anyway, and open it with fewer optimizations: sessions with graph_optimization_level ORT_ENABLE_EXTENDED, or ORT_DISABLE_ALL, may take it";

impl Opening {
    /// As data; `null` where nobody was asked.
    pub fn object(&self) -> Value {
        match self {
            Self::Opens(engine) => json!({ "engine": engine, "opens": true }),
            Self::Refuses { engine, problem, .. } => json!({ "engine": engine, "opens": false, "problem": problem }),
            Self::Unknown => Value::Null,
        }
    }
}

/// Asks the library that is named, else the one that is found.
pub fn ask(model: &Path, engine: &GraphEngine) -> Opening {
    let Some((program, first)) = engine.prober.split_first() else { return Opening::Unknown };
    let mut command = Command::new(program);
    command.args(first).arg("open-graph").arg(model).args(&engine.library);
    match command.stdin(Stdio::null()).stderr(Stdio::null()).output() {
        Ok(output) => answer(&output),
        Err(_) => Opening::Unknown,
    }
}

/// The answer of the process; one without an answer has crashed.
fn answer(output: &Output) -> Opening {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let said: Option<Value> = serde_json::from_slice(&output.stdout).ok();
    match said {
        Some(said) => match (text(&said["engine"]), text(&said["problem"])) {
            (Some(engine), Some(problem)) => Opening::Refuses { engine, problem, is_crash: false },
            (Some(engine), None) => Opening::Opens(engine),
            _ => Opening::Unknown,
        },
        None => {
            let problem = format!("it ended the process that opened the graph ({})", output.status);
            Opening::Refuses { engine: "onnxruntime".to_owned(), problem, is_crash: true }
        }
    }
}

/// Refuses a graph that was written and that ONNX Runtime does not open, unless it is known why.
///
/// # Errors
/// Says why; a user who asks to stop.
pub fn accept(model: &Path, engine: &GraphEngine, is_known: bool, cancel: &CancelToken) -> Result<Opening, Error> {
    let opening = ask(model, engine);
    // Ctrl-C in a terminal ends the process that was asked, too.
    if cancel.is_cancelled() {
        return Err(kvant_container::Error::Cancelled.into());
    }
    match opening {
        Opening::Refuses { engine, problem, is_crash } if !is_known => {
            let failure = Error::new(ErrorKind::Invalid, format!("{engine} does not open the result: {problem}"));
            let remedy = Remedy::SkipVerification(if is_crash { AFTER_CRASH } else { "write it anyway" });
            let unsigned = problem.contains(SIGNED_FROM_OPSET_21).then(|| Remedy::setting("activation", USE_UNSIGNED));
            Err(failure.with_remedies(unsigned.into_iter().chain([remedy]).collect()))
        }
        opening => Ok(opening),
    }
}

/// Opens a graph in this process, which ONNX Runtime may crash.
pub fn open(model: &Path, library: Option<&Path>) -> Opening {
    match open_file(model, library) {
        Ok(engine) => Opening::Opens(engine),
        Err(RuntimeError::Load { engine, problem }) => Opening::Refuses { engine, problem, is_crash: false },
        Err(_) => Opening::Unknown,
    }
}

/// What ONNX Runtime 1.31 says of int8 activations in graphs of opset 21 and later on x86: its optimizer copies them behind a Transpose with
/// their type in an attribute, and then makes their zero points uint8 without it (microsoft/onnxruntime, issue 25526).
const SIGNED_FROM_OPSET_21: &str = "output_dtype INT8 does not match y_zero_point type UINT8";

const USE_UNSIGNED: &str = "quantize activations to uint8 with ‹activation› uint8: this is a fault of ONNX Runtime on x86 with int8 activations from opset 21 on, which \
                            int4 weights need";

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::ExitStatus;

    #[test]
    fn silent_probe_process_counts_as_crashed() {
        let said = |text: &str| answer(&Output { status: ExitStatus::default(), stdout: text.into(), stderr: vec![] });
        for opening in [
            Opening::Opens("onnxruntime 1.31".to_owned()),
            Opening::Refuses { engine: "onnxruntime 1.31".to_owned(), problem: "no".to_owned(), is_crash: false },
            Opening::Unknown,
        ] {
            assert_eq!(said(&opening.object().to_string()), opening);
        }
        assert!(
            matches!(said(""), Opening::Refuses { problem, is_crash: true, .. } if problem.contains("ended the process"))
        );
    }
}
