//! Errors as the user meets them: a kind that decides the exit code, a message, a hint. What the libraries report is
//! turned into one here and nowhere else.

use crate::hint;
use crate::interrupt;
use kvant_container::ErrorKind;
use kvant_llm::blockwise::BlockwiseError;
use kvant_llm::calibration::data::CalibrationDataError;
use kvant_llm::calibration::{ObserveError, ResolveError, StatisticsError};
use kvant_llm::conversion::MeasureError;
use kvant_llm::engine::{EngineError, OutputError};
use kvant_llm::evaluation::EvaluationError;
use kvant_llm::forward::ForwardError;
use kvant_llm::gguf::GgufPlanError;
use kvant_llm::gguf::imatrix::ImatrixError;
use kvant_llm::import::ImportError;
use kvant_llm::plan::PlanError;
use kvant_llm::recipe::RecipeError;
use kvant_onnx::calibration::CalibrationError;
use serde::Serialize;

/// What kind of error it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// The input is wrong.
    Invalid,
    /// The input may be right; Kvant does not handle it.
    Unsupported,
    /// The system refused: no such file, no permission, no space.
    System,
    /// The command line is wrong.
    Usage,
    /// The model does not pass; what is wrong with it has been told as data.
    Unfit,
    /// Kvant is wrong.
    Internal,
    /// The user asked to stop.
    Interrupted,
}

impl Kind {
    /// The exit code of the process.
    pub fn exit_code(self) -> u8 {
        match self {
            Kind::Invalid | Kind::Unsupported | Kind::System | Kind::Unfit => 1,
            Kind::Usage | Kind::Internal => 2,
            // As shells report a process that a signal has ended.
            Kind::Interrupted => 128 + interrupt::signal(),
        }
    }
}

/// An error for the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What kind it is.
    pub kind: Kind,
    /// What is wrong, naming the file, tensor or layer.
    pub message: String,
    /// The way out.
    pub hint: Option<String>,
}

impl Failure {
    /// An error without a hint.
    pub fn new(kind: Kind, message: impl Into<String>) -> Failure {
        Failure { kind, message: message.into(), hint: None }
    }

    /// The system refused something.
    pub fn system(message: impl Into<String>) -> Failure {
        Failure::new(Kind::System, message)
    }

    /// A bug.
    pub fn internal(message: impl Into<String>) -> Failure {
        let report = "this is a bug in Kvant: please report it with the command line and this message";
        Failure::new(Kind::Internal, format!("internal error: {}", message.into())).with_hint(Some(report.to_owned()))
    }

    /// The same with those ways out alone that this command has options for.
    pub fn for_command(self, command: &str) -> Failure {
        let hint = self.hint.as_deref().and_then(|hint| hint::of_command(hint, command));
        Failure { hint, ..self }
    }

    /// The same with a hint.
    pub fn with_hint(self, hint: Option<String>) -> Failure {
        Failure { hint, ..self }
    }
}

impl From<ErrorKind> for Kind {
    fn from(kind: ErrorKind) -> Kind {
        match kind {
            ErrorKind::Io => Kind::System,
            ErrorKind::Invalid => Kind::Invalid,
            ErrorKind::Unsupported => Kind::Unsupported,
            ErrorKind::Cancelled => Kind::Interrupted,
        }
    }
}

impl From<kvant_container::Error> for Failure {
    fn from(error: kvant_container::Error) -> Failure {
        Failure::new(error.kind().into(), error.to_string()).with_hint(error.hint())
    }
}

impl From<kvant_onnx::error::QuantizeError> for Failure {
    fn from(error: kvant_onnx::error::QuantizeError) -> Failure {
        Failure::new(error.kind().into(), error.to_string()).with_hint(error.hint())
    }
}

impl From<kvant_onnx::settings::SettingsError> for Failure {
    fn from(error: kvant_onnx::settings::SettingsError) -> Failure {
        let kind = match error.kind() {
            ErrorKind::Invalid | ErrorKind::Io => Kind::Usage,
            kind => kind.into(),
        };
        Failure::new(kind, error.to_string()).with_hint(error.hint())
    }
}

impl From<kvant_onnx::sensitivity::SensitivityError> for Failure {
    fn from(error: kvant_onnx::sensitivity::SensitivityError) -> Failure {
        Failure::new(error.kind().into(), error.to_string()).with_hint(error.hint())
    }
}

impl From<kvant_onnx::data::DataError> for Failure {
    fn from(error: kvant_onnx::data::DataError) -> Failure {
        let kind = match &error {
            kvant_onnx::data::DataError::IdlePreprocessing { .. } => Kind::Usage,
            error => error.kind().into(),
        };
        Failure::new(kind, error.to_string()).with_hint(error.hint().map(str::to_owned))
    }
}

impl From<CalibrationError> for Failure {
    fn from(error: CalibrationError) -> Failure {
        match error {
            CalibrationError::Panicked(_) => Failure::internal(error.to_string()),
            error => Failure::new(error.kind().into(), error.to_string()).with_hint(error.hint()),
        }
    }
}

impl From<kvant_onnx::evaluation::EvaluationError> for Failure {
    fn from(error: kvant_onnx::evaluation::EvaluationError) -> Failure {
        Failure::new(error.kind().into(), error.to_string()).with_hint(error.hint().map(str::to_owned))
    }
}

impl From<kvant_llm::onnx::OnnxExportError> for Failure {
    fn from(error: kvant_llm::onnx::OnnxExportError) -> Failure {
        Failure::new(error.kind().into(), error.to_string()).with_hint(error.hint())
    }
}

impl From<ImportError> for Failure {
    fn from(error: ImportError) -> Failure {
        Failure::new(error.kind().into(), error.to_string()).with_hint(error.hint())
    }
}

impl From<MeasureError> for Failure {
    fn from(error: MeasureError) -> Failure {
        Failure::new(error.kind().into(), error.to_string()).with_hint(error.hint())
    }
}

impl From<RecipeError> for Failure {
    fn from(error: RecipeError) -> Failure {
        // What was typed makes no recipe: a scheme, an algorithm or an option that there is none of.
        let kind = match &error {
            RecipeError::Invalid(_) | RecipeError::Read { .. } => Kind::Usage,
            RecipeError::Unsupported(_) => Kind::Unsupported,
        };
        Failure::new(kind, error.to_string()).with_hint(Some(error.hint().to_owned()))
    }
}

impl From<PlanError> for Failure {
    fn from(error: PlanError) -> Failure {
        // Data are an option that is missing, as they are for graphs.
        let kind = if error.lacks_data() { Kind::Usage } else { error.kind().into() };
        Failure::new(kind, error.to_string()).with_hint(error.hint())
    }
}

impl From<GgufPlanError> for Failure {
    fn from(error: GgufPlanError) -> Failure {
        Failure::new(error.kind().into(), error.to_string()).with_hint(error.hint())
    }
}

impl From<ImatrixError> for Failure {
    fn from(error: ImatrixError) -> Failure {
        Failure::new(error.kind().into(), error.to_string()).with_hint(error.hint())
    }
}

impl From<ForwardError> for Failure {
    fn from(error: ForwardError) -> Failure {
        Failure::new(error.kind().into(), error.to_string()).with_hint(error.hint())
    }
}

impl From<EvaluationError> for Failure {
    fn from(error: EvaluationError) -> Failure {
        Failure::new(error.kind().into(), error.to_string()).with_hint(error.hint())
    }
}

impl From<CalibrationDataError> for Failure {
    fn from(error: CalibrationDataError) -> Failure {
        let kind = match &error {
            CalibrationDataError::NoFields { .. } => Kind::Usage,
            error => error.kind().into(),
        };
        Failure::new(kind, error.to_string()).with_hint(error.hint())
    }
}

impl From<ObserveError> for Failure {
    fn from(error: ObserveError) -> Failure {
        Failure::new(error.kind().into(), error.to_string()).with_hint(error.hint())
    }
}

impl From<BlockwiseError> for Failure {
    fn from(error: BlockwiseError) -> Failure {
        match error {
            BlockwiseError::Engine(error) => error.into(),
            error => Failure::new(error.kind().into(), error.to_string()).with_hint(error.hint()),
        }
    }
}

impl From<StatisticsError> for Failure {
    fn from(error: StatisticsError) -> Failure {
        Failure::new(Kind::Unsupported, error.to_string())
    }
}

impl From<ResolveError> for Failure {
    fn from(error: ResolveError) -> Failure {
        Failure::new(error.kind().into(), error.to_string()).with_hint(Some(error.hint().to_owned()))
    }
}

impl From<OutputError> for Failure {
    fn from(error: OutputError) -> Failure {
        Failure::new(error.kind().into(), error.to_string()).with_hint(error.hint())
    }
}

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Failure {
        Failure::new(error.kind().into(), error.to_string()).with_hint(error.hint())
    }
}
