//! Requests that are refused before the work starts.

use crate::input_statistics::InputStatisticsError;
use kvant_container::{Diagnostic, ErrorKind, Remedy};
use kvant_forward::forward::ForwardError;
use kvant_model::model_config::ConfigError;
use kvant_quant::activation::ActivationError;
use kvant_quant::counts::number;
use kvant_quant::scheme::SchemeError;
use kvant_weights::activation_point::ActivationPoint;
use kvant_weights::import_error::ImportError;
use kvant_weights::parts::CannotHold;
use std::collections::BTreeSet;
use std::path::PathBuf;

/// The reason that there is no plan.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// A file of the source (*io*, *invalid* or *unsupported*).
    #[error(transparent)]
    Container(#[from] kvant_container::Error),
    /// config.json (*invalid*).
    #[error("{0}")]
    Config(#[from] ConfigError),
    /// The source is quantized, and cannot be read.
    #[error(transparent)]
    Import(#[from] ImportError),
    /// The target of a conversion does not hold what the source does (*unsupported*).
    #[error("`{tensor}` cannot be converted to {target} as it is: {reason}")]
    Conversion {
        /// The first such tensor.
        tensor: String,
        /// The target.
        target: String,
        /// The reason.
        reason: String,
        /// The remedy.
        hint: String,
    },
    /// There is nothing to convert (*invalid*).
    #[error("no weight of the source is quantized")]
    NotQuantized,
    /// Nothing is to be converted to floats (*invalid*).
    #[error("the source is in floats already")]
    FloatsAlready,
    /// There is nothing that says how the source is quantized, if it is (*invalid*).
    #[error("the source has no config.json, which would say how its weights are quantized")]
    Unsaid,
    /// The format cannot be written without config.json (*invalid*).
    #[error(
        "‹format› {format} needs a config.json, which says what model the tensors are, and the source does not have one"
    )]
    NeedsConfig {
        /// The format.
        format: String,
    },
    /// Excluded layers are quantized in the source, and their codes cannot be kept beside the others (*unsupported*).
    #[error("`{}`{} excluded, and the codes in the source cannot be kept in ‹format› {format}: {reason}", .layers.first().map_or("", String::as_str), and_more(.layers.len()))]
    ExcludedCodes {
        /// The layers.
        layers: Vec<String>,
        /// The format.
        format: String,
        /// The reason for the first one.
        reason: String,
        /// The formats in which they can be kept.
        formats: Vec<String>,
    },
    /// Something is said of layers that there are none of (*invalid*).
    #[error("no layer matches `{pattern}`, given {}", idle_place(*excludes, *of_file))]
    IdleOverride {
        /// The pattern.
        pattern: String,
        /// Whether they are to be kept, and not of a scheme of their own.
        excludes: bool,
        /// Whether the recipe file says it.
        of_file: bool,
        /// Names that are like it.
        nearest: Vec<String>,
        /// The suffixes of layer names.
        ends: Vec<String>,
    },
    /// The scheme does not fit the layer's shape (*invalid*).
    #[error("layer `{layer}`{} cannot be `{scheme}`: {problem}", more_text(.others.len()))]
    Shape {
        /// The layer.
        layer: String,
        /// Its scheme.
        scheme: Box<str>,
        /// The mismatch.
        problem: Box<SchemeError>,
        /// The other layers that do not fit their schemes.
        others: Box<[String]>,
        /// The layers that do. Without any nothing would be quantized.
        fitting: Box<[String]>,
        /// Schemes that fit all of those that do not.
        alternatives: Box<[String]>,
    },
    /// The format has no place for the layer (*unsupported*).
    #[error("layer `{layer}` cannot be stored as `{scheme}`: {problem}")]
    CannotHold {
        /// The layer.
        layer: String,
        /// Its scheme.
        scheme: String,
        /// The reason.
        problem: CannotHold,
    },
    /// Activations have static scales, and there is no data to find them (*invalid*).
    #[error("{place}: the scales of `{scheme}` need calibration data, and none is given")]
    Calibration {
        /// The first such place.
        place: String,
        /// Its scheme.
        scheme: String,
        /// Whether the place is in attention: the KV cache, queries or the softmax.
        of_attention: bool,
    },
    /// A file of statistics lacks what the recipe needs of some layers (*invalid*).
    #[error("{} lacks {tensors}", kvant_container::shown(file))]
    StatisticsMissing {
        /// The file.
        file: PathBuf,
        /// The names of the first tensors, as text.
        tensors: String,
        /// The layers.
        layers: Vec<String>,
        /// How to rename its tensors, where the names of layers differ at their beginning alone.
        renaming: Option<String>,
    },
    /// A tensor of statistics is refused.
    #[error(transparent)]
    Statistics(Box<InputStatisticsError>),
    /// Statistics do not fit their layer (*invalid*).
    #[error("tensor `{tensor}` in {} is of {}, and the layer has {expected}", kvant_container::shown(file), number(*found, "channel"))]
    StatisticsLength {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// The channels of the layer.
        expected: usize,
        /// The values of the tensor.
        found: usize,
    },
    /// The plan has scales of activations or algorithms that need data, and is to be carried out without (*invalid*).
    #[error("the scales of activations have not been calibrated")]
    Uncalibrated,
    /// The recipe's algorithms cannot be run.
    #[error("{algorithms}: {problem}")]
    Algorithm {
        /// As they are spelled.
        algorithms: String,
        /// The obstacle.
        problem: AlgorithmProblem,
    },
    /// A scheme makes no sense for activations, or is not here (*unsupported*).
    #[error("{place}: {problem}")]
    Activation {
        /// The first such place.
        place: String,
        /// The problem.
        problem: ActivationError,
    },
    /// Attention cannot be quantized as asked (*unsupported*).
    #[error("attention cannot be quantized so: {reason}")]
    Attention {
        /// The reason.
        reason: String,
    },
    /// The results of calibration do not fit the plan (*invalid*).
    #[error("{site} wants {expected} scales, and {found} are given")]
    Parameters {
        /// The place.
        site: ActivationPoint,
        /// Scales that its tensors hold.
        expected: usize,
        /// Scales that are there.
        found: usize,
    },
    /// Layers that loaders fuse have different schemes (*invalid*).
    #[error("loaders fuse `{first}` and `{second}`, which would be `{first_scheme}` and `{second_scheme}`")]
    Siblings {
        /// One layer.
        first: String,
        /// Its scheme, or `kept`.
        first_scheme: String,
        /// Another.
        second: String,
        /// Its scheme, or `kept`.
        second_scheme: String,
    },
    /// The source is quantized already (*unsupported*).
    #[error("the source is quantized already{}: `{first}`{}", method_text(.method), self::others(*tensors, "tensor"))]
    AlreadyQuantized {
        /// Their number.
        tensors: usize,
        /// The first.
        first: String,
        /// The `quant_method` of config.json.
        method: Option<String>,
    },
    /// The scales of an fp8 weight do not fit it (*invalid*).
    #[error("tensor `{scale}` of shape {shape:?} does not hold scales for `{weight}` of {rows} x {columns}")]
    SourceScales {
        /// The scales.
        scale: String,
        /// Their shape.
        shape: Vec<usize>,
        /// The weight.
        weight: String,
        /// Output channels.
        rows: usize,
        /// Input channels.
        columns: usize,
    },
    /// A weight is of a type that is not read (*unsupported*).
    #[error("tensor `{tensor}` is of type {dtype}, which is not read as a weight")]
    SourceType {
        /// The tensor.
        tensor: String,
        /// Its type.
        dtype: String,
    },
    /// The output head would be quantized, and loaders take the embedding in its place (*invalid*).
    #[error(
        "the output head `{layer}` would be quantized, and tie_word_embeddings in config.json makes loaders use the embedding instead"
    )]
    TiedHead {
        /// The head.
        layer: String,
    },
    /// Activations of a layer that is never run would have to be observed (*unsupported*).
    #[error(
        "layer `{layer}` predicts further tokens and is not run, so no calibration finds the static scales of `{scheme}`"
    )]
    NotRun {
        /// The layer.
        layer: String,
        /// Its scheme.
        scheme: String,
    },
    /// Logits, which no calibration observes, would have static scales (*unsupported*).
    #[error("the output of `{layer}` cannot have the static scales of `{scheme}`: logits are not observed")]
    Logits {
        /// The head.
        layer: String,
        /// Its scheme.
        scheme: String,
    },
    /// Nothing is left to quantize (*invalid*).
    #[error("no layer is left to quantize: {reason}")]
    Nothing {
        /// The reason.
        reason: &'static str,
        /// The remedy.
        hint: &'static str,
        /// The convolutions that there are, counted by kind.
        kinds: Box<[String]>,
    },
    /// Biases get a scheme, and no quantized layer has one (*invalid*).
    #[error("no quantized layer has a bias, to which `{scheme}` is given")]
    NoBiases {
        /// The scheme.
        scheme: String,
    },
    /// There is no layer of a kind that gets a scheme (*invalid*).
    #[error("the model has no {kind} layer, to which a scheme is given")]
    NoSuchKind {
        /// The kind.
        kind: &'static str,
        /// Those that there are, counted by kind.
        others: Box<[String]>,
    },
}

/// The reason that algorithms cannot run.
#[derive(Debug, thiserror::Error)]
pub enum AlgorithmProblem {
    /// There is no calibration data (*invalid*).
    #[error("needs calibration data, and none is given")]
    NoData,
    /// There is nothing that names the architecture (*invalid*).
    #[error("needs a config.json, which says what the layers read, and the source does not have one")]
    NoConfig,
    /// Nothing is known of the architecture (*unsupported*).
    #[error("{architecture} has no description that fits its tensors, so that it is not known what its layers read")]
    Undescribed {
        /// Its name.
        architecture: String,
        /// Whether a description of it can be drafted.
        can_be_described: bool,
    },
    /// A scheme simulates values (*unsupported*).
    #[error("layer `{layer}` would be `{scheme}`, which has no codes to choose")]
    NoCodes {
        /// The first such layer.
        layer: String,
        /// Its scheme.
        scheme: String,
    },
    /// A setting is for graphs alone (*unsupported*).
    #[error("`{rounding}:{setting}` is for ONNX graphs, and this is a checkpoint")]
    Setting {
        /// The rounding.
        rounding: String,
        /// Its setting.
        setting: &'static str,
    },
    /// A rounding or a tuning is not for a scheme (*unsupported*).
    #[error("`{algorithm}` is not for layer `{layer}` in `{scheme}`: {reason}")]
    Scheme {
        /// The algorithm.
        algorithm: String,
        /// The first such layer.
        layer: String,
        /// Its scheme.
        scheme: String,
        /// The reason.
        reason: &'static str,
    },
    /// No scale can be moved (*unsupported*).
    #[error("`{transform}` finds no pair of layers in this model through which scales could be moved")]
    NoLinks {
        /// The transform.
        transform: String,
    },
    /// No bias can be corrected (*unsupported*).
    #[error("`bias-correction` finds no layer with a bias among those that are quantized")]
    NoBiases,
    /// A block has a step whose gradient is not computed (*unsupported*).
    #[error("`{tuning}` cannot tune `{layer}` and the other layers of its block: gradients of {step} are not computed")]
    NoGradients {
        /// The tuning.
        tuning: &'static str,
        /// The first such layer.
        layer: String,
        /// The step.
        step: &'static str,
    },
    /// The model has a step whose gradient is not computed (*unsupported*).
    #[error(
        "`{}` cannot learn its matrices on this model: gradients of {step} are not computed",
        kvant_quant::rotation::NAME
    )]
    CannotLearnRotation {
        /// The step.
        step: &'static str,
    },
    /// There is no forward pass for the model.
    #[error(transparent)]
    CannotRun(Box<ForwardError>),
}

impl Diagnostic for AlgorithmProblem {
    fn kind(&self) -> ErrorKind {
        match self {
            // Data are a setting that is missing.
            AlgorithmProblem::NoData => ErrorKind::Usage,
            AlgorithmProblem::NoConfig => ErrorKind::Invalid,
            AlgorithmProblem::CannotRun(problem) => problem.kind(),
            _ => ErrorKind::Unsupported,
        }
    }

    fn hint(&self) -> Option<String> {
        Remedy::hint(&self.remedies())
    }

    fn remedies(&self) -> Vec<Remedy> {
        let without = Remedy::LeaveOut { setting: "algorithm", effect: "to round to nearest" };
        match self {
            AlgorithmProblem::NoData => vec![Remedy::GiveCalibrationData, without],
            AlgorithmProblem::NoConfig => {
                vec![Remedy::text("put the model's config.json next to its weights"), without]
            }
            AlgorithmProblem::NoCodes { .. } => {
                vec![Remedy::setting("exclude", "keep the layer with ‹exclude›"), without]
            }
            AlgorithmProblem::Setting { setting, .. } => vec![Remedy::text(format!("leave {setting} out"))],
            AlgorithmProblem::Scheme { .. } => vec![Remedy::text("choose another scheme or algorithm"), without],
            AlgorithmProblem::NoLinks { .. } => {
                vec![Remedy::text("use a rounding such as gptq, which needs no pairs")]
            }
            AlgorithmProblem::NoBiases => {
                vec![Remedy::text("leave bias-correction out of ‹algorithm›: loaders would not know a new bias")]
            }
            AlgorithmProblem::NoGradients { tuning, .. } => {
                vec![Remedy::setting("algorithm", format!("leave {tuning} out of ‹algorithm›"))]
            }
            AlgorithmProblem::CannotLearnRotation { .. } => {
                let text = format!(
                    "leave steps out of `{}`, whose fixed matrices need no gradients",
                    kvant_quant::rotation::NAME
                );
                vec![Remedy::setting("algorithm", text)]
            }
            AlgorithmProblem::CannotRun(problem) if problem.kind() != ErrorKind::Unsupported => {
                Remedy::of_hint(problem.hint())
            }
            AlgorithmProblem::Undescribed { can_be_described: true, .. } => vec![description_wanted(), without],
            AlgorithmProblem::Undescribed { .. } => {
                vec![Remedy::text("calibrate it with `kvant.torch` in Python"), without]
            }
            AlgorithmProblem::CannotRun(problem) if matches!(**problem, ForwardError::TwoTowers { .. }) => {
                Remedy::of_hint(problem.hint()).into_iter().chain([without]).collect()
            }
            AlgorithmProblem::CannotRun(_) => vec![without],
        }
    }
}

/// The way out of what an architecture without a description cannot have.
fn description_wanted() -> Remedy {
    let text = "describe the architecture in a file and name that in ‹family› (`kvant inspect MODEL ‹suggest-family›` writes a first one)";
    Remedy::setting("family", text)
}

/// The verb of a list of layers whose first is named, after the number of the others.
fn and_more(layers: usize) -> String {
    format!("{} {}", others(layers, "layer"), if layers > 1 { "are" } else { "is" })
}

/// How many things there are besides the first, which is named.
pub(super) fn others(all: usize, thing: &str) -> String {
    match all {
        0 | 1 => String::new(),
        2 => format!(" and one more {thing}"),
        all => format!(" and {}", number(all - 1, &format!("more {thing}"))),
    }
}

fn more_text(others: usize) -> String {
    if others == 0 { String::new() } else { format!(" (and {})", number(others, "more layer")) }
}

/// The remedy where no layer fits its scheme.
fn other_scheme(alternatives: &[String]) -> String {
    match alternatives {
        [] => "no layer fits: choose another ‹scheme› or ‹format›".to_owned(),
        all => format!("no layer fits: choose another ‹scheme›, e.g. {}", all.join(", ")),
    }
}

/// The remedy, with options to copy that keep all layers that do not fit.
fn shape_hint(layer: &str, alternatives: &[String], others: &[String], fitting: &[String]) -> String {
    let keep = match alternatives {
        [] => "keep such layers with ‹exclude›".to_owned(),
        all => {
            format!("give such layers another scheme with ‹override› ({}), or keep them with ‹exclude›", all.join(", "))
        }
    };
    let option = |name: &str| format!("‹exclude› '{}'", pattern_without(name, fitting));
    let options: BTreeSet<String> = others.iter().map(String::as_str).chain([layer]).map(option).collect();
    format!("{keep}: {}", options.into_iter().collect::<Vec<_>>().join(" "))
}

/// The shortest pattern of the end of a name that matches none of the others.
fn pattern_without(name: &str, others: &[String]) -> String {
    let mut ends = name.rmatch_indices('.').map(|(at, _)| &name[at..]);
    let end = ends.find(|end| !others.iter().any(|other| other.ends_with(end)));
    end.map_or_else(|| name.to_owned(), |end| format!("*{end}"))
}

fn method_text(method: &Option<String>) -> String {
    method.as_ref().map_or_else(String::new, |method| format!(" ({method})"))
}

fn idle_place(excludes: bool, of_file: bool) -> &'static str {
    match (of_file, excludes) {
        (true, _) => "in the recipe file",
        (false, true) => "with ‹exclude›",
        (false, false) => "with ‹override›",
    }
}

impl Diagnostic for PlanError {
    fn kind(&self) -> ErrorKind {
        match self {
            // Data are a setting that is missing.
            PlanError::Calibration { .. } => ErrorKind::Usage,
            PlanError::Container(error) => error.kind(),
            PlanError::Import(error) => error.kind(),
            PlanError::Statistics(error) => error.kind(),
            PlanError::Algorithm { problem, .. } => problem.kind(),
            PlanError::Config(_)
            | PlanError::NotQuantized
            | PlanError::FloatsAlready
            | PlanError::Unsaid
            | PlanError::NeedsConfig { .. }
            | PlanError::IdleOverride { .. }
            | PlanError::Shape { .. }
            | PlanError::Siblings { .. }
            | PlanError::SourceScales { .. }
            | PlanError::StatisticsMissing { .. }
            | PlanError::StatisticsLength { .. }
            | PlanError::Uncalibrated
            | PlanError::Parameters { .. }
            | PlanError::TiedHead { .. }
            | PlanError::NoSuchKind { .. }
            | PlanError::NoBiases { .. }
            | PlanError::Nothing { .. } => ErrorKind::Invalid,
            PlanError::CannotHold { .. }
            | PlanError::Conversion { .. }
            | PlanError::ExcludedCodes { .. }
            | PlanError::NotRun { .. }
            | PlanError::Logits { .. }
            | PlanError::Activation { .. }
            | PlanError::Attention { .. }
            | PlanError::AlreadyQuantized { .. }
            | PlanError::SourceType { .. } => ErrorKind::Unsupported,
        }
    }

    fn remedies(&self) -> Vec<Remedy> {
        match self {
            PlanError::ExcludedCodes { formats, .. } => {
                let format = (!formats.is_empty())
                    .then(|| Remedy::UseFormat(format!("keep their codes with ‹format› {}", formats.join(" or "))));
                let scheme = Remedy::setting("override", "give them a scheme with ‹override›");
                let floats = "makes floats of all layers, which can be quantized with the same ‹exclude›";
                format.into_iter().chain([scheme, Remedy::command("convert ‹to› float", floats)]).collect()
            }
            PlanError::IdleOverride { nearest, .. } if !nearest.is_empty() => {
                vec![Remedy::ChooseOneOf(nearest.clone()), Remedy::command("inspect MODEL", "shows all")]
            }
            PlanError::NeedsConfig { .. } => vec![
                Remedy::text("put the model's config.json next to its weights"),
                Remedy::LeaveOut {
                    setting: "format",
                    effect: ": codes are then written with ‹format› tensors, which describes them in the files themselves",
                },
            ],
            PlanError::Algorithm { problem, .. } => problem.remedies(),
            PlanError::Calibration { of_attention: true, .. } => vec![
                Remedy::GiveCalibrationData,
                Remedy::LeaveOut { setting: "kv-cache", effect: "and ‹attention› too" },
            ],
            PlanError::Calibration { .. } => vec![
                Remedy::GiveCalibrationData,
                Remedy::QuantizeWeightsOnly,
                Remedy::UseScheme("choose a scheme with dynamic activations (`kvant list schemes`)".to_owned()),
                Remedy::setting("statistics", "give the ranges of its inputs in a file with ‹statistics›"),
            ],
            PlanError::StatisticsMissing { renaming: Some(advice), .. } => vec![Remedy::text(advice.clone())],
            PlanError::StatisticsMissing { layers, .. } => {
                let mut ways = vec![Remedy::text("capture the statistics of these layers too")];
                ways.extend(layers.iter().take(1).map(|layer| Remedy::ExcludeLayer(layer.clone())));
                ways
            }
            PlanError::Attention { .. } => vec![
                Remedy::leave_out("kv-cache"),
                Remedy::leave_out("attention"),
                Remedy::command("inspect", "shows what is known of the model"),
            ],
            PlanError::AlreadyQuantized { .. } => vec![
                Remedy::text("start from the original checkpoint in bf16, f16, f32 or fp8"),
                Remedy::command("convert", "changes the layout"),
                Remedy::Requantize,
            ],
            PlanError::Shape { fitting, alternatives, .. } if fitting.is_empty() => {
                vec![Remedy::UseScheme(other_scheme(alternatives))]
            }
            PlanError::Shape { layer, others, .. } => {
                let layers = std::iter::once(layer).chain(others.iter());
                let ways = Remedy::of_hint(self.hint()).into_iter();
                ways.chain(layers.map(|layer| Remedy::ExcludeLayer(layer.clone()))).collect()
            }
            error => Remedy::of_hint(error.hint()),
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            PlanError::Container(error) => error.hint(),
            PlanError::Import(error) => error.hint(),
            PlanError::Statistics(error) => error.hint(),
            PlanError::Conversion { hint, .. } => Some(hint.clone()),
            PlanError::ExcludedCodes { .. } => Remedy::hint(&self.remedies()),
            PlanError::IdleOverride { nearest, ends, .. } if nearest.is_empty() => {
                Some(format!("layers end in {}; `kvant inspect MODEL` shows all", ends.join(", ")))
            }
            PlanError::IdleOverride { nearest, .. } => {
                Some(format!("did you mean {}? `kvant inspect MODEL` shows all", nearest.join(" or ")))
            }
            PlanError::FloatsAlready => {
                Some("use it as it is, or name a type of floats that it does not have with ‹dtype›, of bf16, f16 and f32".to_owned())
            }
            PlanError::NotQuantized => Some("quantize it with `kvant quantize`".to_owned()),
            PlanError::Unsaid => Some("put its original config.json next to it".to_owned()),
            PlanError::NeedsConfig { .. } => Some(
                "put the model's config.json next to its weights, or leave ‹format› out: codes are then written with ‹format› \
                 tensors, which describes them in the files themselves"
                    .to_owned(),
            ),
            PlanError::Algorithm { problem, .. } => Remedy::hint(&problem.remedies()),
            PlanError::Uncalibrated => Some("give a text to calibrate with".to_owned()),
            PlanError::Config(_) => Some("config.json must be the one that came with the model".to_owned()),
            PlanError::Shape { fitting, alternatives, .. } if fitting.is_empty() => Some(other_scheme(alternatives)),
            PlanError::Shape { layer, alternatives, others, fitting, .. } => {
                Some(shape_hint(layer, alternatives, others, fitting))
            }
            PlanError::CannotHold { problem, .. } => Some(problem.hint.clone()),
            PlanError::Calibration { .. } | PlanError::StatisticsMissing { .. } => Remedy::hint(&self.remedies()),
            PlanError::StatisticsLength { .. } => {
                Some("capture the statistics of this model: they are of another one".to_owned())
            }
            PlanError::Activation { problem, .. } => Some(problem.hint().to_owned()),
            PlanError::Attention { .. } => {
                Some("leave ‹kv-cache› and ‹attention› out; `kvant inspect` shows what is known of the model".to_owned())
            }
            PlanError::Parameters { .. } => Some("calibrate again: the parameters are of another plan".to_owned()),
            PlanError::Siblings { first, second, .. } => Some(format!(
                "give both one scheme: an ‹override› or ‹exclude› that matches `{first}` must match `{second}` too"
            )),
            PlanError::AlreadyQuantized { .. } => {
                Some(
                    "start from the original checkpoint in bf16, f16, f32 or fp8; change the layout with `kvant convert`; \
                     or accept the loss of both quantizations with ‹requantize›"
                        .to_owned(),
                )
            }
            PlanError::SourceScales { .. } => Some("the checkpoint is damaged, or of another convention".to_owned()),
            PlanError::SourceType { .. } => Some("store the weights as F32, F16, BF16, F8_E4M3 or F8_E5M2".to_owned()),
            PlanError::TiedHead { layer } => Some(format!(
                "keep it with ‹exclude› '{layer}'; or set tie_word_embeddings to false in config.json of the source, whose head is stored \
                 apart, and quantize it"
            )),
            PlanError::NotRun { layer, .. } => {
                let module = layer.split('.').next().unwrap_or(layer);
                Some(format!("keep these layers with ‹exclude› '{module}.*', or give them a scheme without static scales with ‹override›"))
            }
            PlanError::Logits { layer, .. } => {
                Some(format!("keep it with ‹exclude› '{layer}', or give it a scheme whose output stays in float with ‹override›"))
            }
            PlanError::Nothing { hint, kinds, .. } if kinds.is_empty() => Some((*hint).to_owned()),
            PlanError::Nothing { hint, kinds, .. } => Some(format!(
                "{hint}; to quantize the {} too, give their kind a scheme: ‹layer-type› conv2d=int8:channel",
                kinds.join(" and ")
            )),
            PlanError::NoBiases { .. } => Some("leave ‹bias› out".to_owned()),
            PlanError::NoSuchKind { others, .. } if others.is_empty() => {
                Some("leave it out: the model has linear layers only".to_owned())
            }
            PlanError::NoSuchKind { others, .. } => Some(format!("leave it out; the model has {}", others.join(" and "))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_to_exclude_spares_layers_that_fit() {
        let names = |all: &[&str]| all.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let fitting = names(&["encoder.0.output.dense", "head"]);
        let (first, others) =
            ("encoder.0.attention.output.dense", names(&["encoder.0.key", "pooler.dense", "lm.head"]));
        let hint = shape_hint(first, &["int4:g32".to_owned()], &others, &fitting);
        // `pooler.dense` has no longer end that is not its whole name.
        let options =
            ["*.attention.output.dense", "*.head", "*.key", "pooler.dense"].map(|p| format!("‹exclude› '{p}'"));
        assert!(hint.ends_with(&format!(": {}", options.join(" "))), "{hint}");
        assert_eq!(pattern_without("dense", &names(&["x.dense"])), "dense");
    }
}
