//! GPTQ, GPTAQ and Qronos as selectable roundings: their options, and their application to a layer.

use super::refine::Refinement;
use super::{ColumnOrder, Damping, Gptq, GptqFactors, Groups, Rounded, Variant};
use crate::hessian::{Hessian, HessianError};
use crate::options::{self, OptionError, OptionRow, Settings, Values};
use crate::rounding::problem::{Grid, LayerError, LayerProblem, Needs, RoundedLayer, SharedInputs};
use crate::rounding::{AnyRounding, Rounding, RoundingError, RoundingRow};
use crate::scheme::TensorScheme;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The settings as options are spelled.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Options {
    damping: f64,
    order: Order,
    groups: GroupScales,
    block: u32,
    rounds: u32,
    /// Of GPTAQ alone.
    alpha: Option<f32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Order {
    #[serde(alias = "on")]
    Activation,
    #[serde(alias = "off")]
    Stored,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum GroupScales {
    Static,
    Dynamic,
}

const OPTIONS: &[OptionRow] = &[
    OptionRow {
        name: "damping",
        values: Values::SHARE,
        about: "added to the Hessian's diagonal: a share of its mean (qronos: of its largest eigenvalue)",
    },
    OptionRow {
        name: "order",
        values: Values {
            text: "activation or stored",
            accepts: |text| matches!(text, "activation" | "stored" | "on" | "off"),
        },
        about: "which columns are rounded first: those with the largest inputs, or in stored order",
    },
    OptionRow {
        name: "groups",
        values: Values {
            text: "static, or dynamic together with order=stored",
            accepts: |text| matches!(text, "static" | "dynamic"),
        },
        about: "compute a group's scales from the original weights, or from the updated weights when it is reached",
    },
    OptionRow {
        name: "block",
        values: Values::COUNT,
        about: "columns whose errors are made up for together: for speed; codes differ by the rounding of sums only",
    },
    OptionRow {
        name: "rounds",
        values: Values::ROUNDS,
        about: "rounds of refinement afterwards, in which each group gets the scale and codes that leave the least error beside all others",
    },
];

const GPTAQ_OPTIONS: &[OptionRow] = &[
    OPTIONS[0],
    OPTIONS[1],
    OPTIONS[2],
    OPTIONS[3],
    OPTIONS[4],
    OptionRow {
        name: "alpha",
        values: Values::SHARE,
        about: "the share of the earlier layers' error that is made up for",
    },
];

/// A row for each of the algorithms.
pub(in crate::rounding) fn rows() -> [RoundingRow; 3] {
    let row = |default: Gptq, options: &'static [OptionRow], about: &'static str, paper: &'static str| {
        let row = RoundingRow::new(default.name().to_owned(), about, options, default.into(), move |given| {
            default.with_options(options, given).map(AnyRounding::from)
        });
        row.with_paper(paper)
    };
    [
        row(Gptq::GPTQ, OPTIONS, "each column makes up for the rounding errors of those before it", "arXiv 2210.17323"),
        row(
            Gptq::GPTAQ,
            GPTAQ_OPTIONS,
            "gptq that makes up for a share of the error of earlier layers too",
            "arXiv 2504.02692",
        ),
        row(
            Gptq::QRONOS,
            OPTIONS,
            "gptq towards what best reproduces the float model's outputs from the quantized model's inputs",
            "arXiv 2505.11695",
        ),
    ]
}

impl Gptq {
    fn options(&self) -> Options {
        let (Damping::OfMeanDiagonal(damping) | Damping::OfLargestEigenvalue(damping)) = self.damping;
        Options {
            damping,
            order: if self.order == ColumnOrder::Activation { Order::Activation } else { Order::Stored },
            groups: if self.order.groups() == Groups::Dynamic { GroupScales::Dynamic } else { GroupScales::Static },
            block: self.block as u32,
            rounds: self.rounds,
            alpha: match self.variant {
                Variant::Gptaq { alpha } => Some(alpha),
                Variant::Gptq | Variant::Qronos => None,
            },
        }
    }

    fn with_options(&self, rows: &[OptionRow], given: &[(&str, &str)]) -> Result<Gptq, OptionError> {
        let options = options::read(self.name(), rows, &self.options(), given)?;
        let order = match (options.order, options.groups) {
            (Order::Activation, GroupScales::Static) => ColumnOrder::Activation,
            (Order::Stored, GroupScales::Static) => ColumnOrder::Stored(Groups::Static),
            (Order::Stored, GroupScales::Dynamic) => ColumnOrder::Stored(Groups::Dynamic),
            (Order::Activation, GroupScales::Dynamic) => {
                return Err(options::refused(self.name(), rows, "groups", given));
            }
        };
        let damping = match self.damping {
            Damping::OfMeanDiagonal(_) => Damping::OfMeanDiagonal(options.damping),
            Damping::OfLargestEigenvalue(_) => Damping::OfLargestEigenvalue(options.damping),
        };
        let variant = match (self.variant, options.alpha) {
            (Variant::Gptaq { .. }, Some(alpha)) => Variant::Gptaq { alpha },
            (variant, _) => variant,
        };
        Ok(Gptq { variant, damping, order, block: options.block as usize, rounds: options.rounds })
    }

    /// The weight after the rounds of refinement.
    fn refined(
        &self,
        problem: &LayerProblem<'_>,
        hessian: &Hessian,
        factors: &GptqFactors,
        mut rounded: Rounded,
    ) -> Result<Rounded, LayerError> {
        let Grid::Scheme { context, .. } = problem.grid else { return Ok(rounded) };
        if self.rounds == 0 {
            return Ok(rounded);
        }
        problem.check_cancelled()?;
        let mismatch = match self.variant {
            Variant::Gptq => 0.0,
            Variant::Gptaq { alpha } => alpha,
            Variant::Qronos => 1.0,
        };
        let (rounds, isa, damping) = (self.rounds, factors.isa, factors.damping());
        let weight = factors.without_dead(problem.weight);
        Refinement { hessian, mismatch, damping, rounds, isa }.run(&weight, context, &mut rounded.tensor)?;
        let loss = hessian.loss(&weight, &rounded.tensor.dequantize());
        Ok(Rounded { loss, ..rounded })
    }

    /// The factors, of which there is one set for all weights that read the same inputs.
    fn shared_factors(&self, inputs: &SharedInputs) -> Arc<Result<GptqFactors, HessianError>> {
        inputs.derive(&format!("{self:?}"), |hessian| Gptq::prepare(self, hessian))
    }
}

impl Rounding for Gptq {
    fn name(&self) -> &str {
        match self.variant {
            Variant::Gptq => "gptq",
            Variant::Gptaq { .. } => "gptaq",
            Variant::Qronos => "qronos",
        }
    }

    fn settings(&self) -> Settings {
        options::shown(&self.options())
    }

    fn needs(&self) -> Needs {
        if self.variant == Variant::Gptq { Needs::Hessian } else { Needs::InputMismatch }
    }

    fn prepare(&self, inputs: &SharedInputs) -> Result<(), HessianError> {
        self.shared_factors(inputs).as_ref().as_ref().map(|_| ()).map_err(Clone::clone)
    }

    fn round(&self, problem: &mut LayerProblem<'_>) -> Result<RoundedLayer, LayerError> {
        problem.check_cancelled()?;
        let inputs = problem.inputs.ok_or(RoundingError::Hessian(HessianError::NoData))?;
        let prepared = self.shared_factors(inputs);
        let factors = prepared.as_ref().as_ref().map_err(|problem| RoundingError::from(problem.clone()))?;
        let rows = problem.shape.outputs;
        let rounded = match problem.grid {
            // Scales that are found as columns are reached are those of the weights as they come.
            Grid::Scheme { scheme, context, from } if self.order.groups() == Groups::Dynamic => {
                factors.round(from, rows, scheme, context)?
            }
            Grid::Scheme { scheme, context, from } => factors.round_to(problem.weight, from, rows, scheme, context)?,
            Grid::Fixed { parameters, .. } => factors.round_on(problem.weight, parameters.clone())?,
        };
        let rounded = self.refined(problem, &inputs.hessian, factors, rounded)?;
        Ok(RoundedLayer {
            tensor: rounded.tensor,
            bias: None,
            loss: Some(rounded.loss),
            damping: Some(factors.damping()),
            dead_columns: factors.dead_columns(),
        })
    }

    fn refuses(&self, scheme: &TensorScheme) -> Option<&'static str> {
        let is_dynamic = self.order.groups() == Groups::Dynamic && matches!(scheme, TensorScheme::Gguf(_));
        is_dynamic
            .then_some("groups of GGUF blocks share numbers, which are found before their codes: use groups=static")
    }

    /// As much damping as the Hessian of so few tokens has in the directions that it knows.
    fn for_few_tokens(&self, tokens: u64, inputs: usize) -> Option<AnyRounding> {
        let share = inputs as f64 / tokens as f64;
        Some(Gptq { damping: Damping::OfMeanDiagonal(share), ..*self }.into())
    }

    fn peak_bytes(&self, features: usize, rows: usize) -> u64 {
        Gptq::peak_bytes(self, features, rows)
    }

    /// A Cholesky factor; for each row the errors of earlier columns, once for codes and once for the loss.
    fn operations(&self, features: usize, rows: usize) -> f64 {
        let mismatch = self.variant != Variant::Gptq;
        let (features, rows) = (features as f64, rows as f64);
        let square = features * features;
        let factor = square * features * if mismatch { 4.0 / 3.0 } else { 1.0 / 3.0 };
        factor + rows * square * if mismatch { 3.0 } else { 2.0 }
    }
}
