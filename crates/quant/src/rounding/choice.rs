//! Which roundings there are, and what each needs. Not how they work.

use super::{Gptq, Variant};

/// A way to choose codes, with its settings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rounding {
    /// Each weight to the nearest code: [`Rtn`](super::Rtn).
    Rtn,
    /// Column after column, each making up for the errors of those before it: [`Gptq`].
    ByColumns(Gptq),
}

/// What a rounding must know of a layer's inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// Nothing.
    Nothing,
    /// Their Hessian.
    Hessian,
    /// Their Hessian and their drift from the inputs in the float model.
    Drift,
}

/// A row of the table of roundings.
#[derive(Clone, Copy, Debug)]
pub struct RoundingRow {
    /// The spelling in commands, recipes and reports.
    pub name: &'static str,
    /// The rounding with its usual settings.
    pub rounding: Rounding,
    /// Where it is from.
    pub paper: Option<&'static str>,
    /// One line that explains it.
    pub about: &'static str,
}

impl Rounding {
    /// Every rounding, one row each.
    pub const ALL: &[RoundingRow] = &[
        RoundingRow { name: "rtn", rounding: Rounding::Rtn, paper: None, about: "round to nearest; needs no data" },
        RoundingRow {
            name: "gptq",
            rounding: Rounding::ByColumns(Gptq::GPTQ),
            paper: Some("arXiv 2210.17323"),
            about: "each column makes up for the rounding errors of those before it",
        },
        RoundingRow {
            name: "gptaq",
            rounding: Rounding::ByColumns(Gptq::GPTAQ),
            paper: Some("arXiv 2504.02692"),
            about: "gptq that makes up for a share of the error of earlier layers too",
        },
        RoundingRow {
            name: "qronos",
            rounding: Rounding::ByColumns(Gptq::QRONOS),
            paper: Some("arXiv 2505.11695"),
            about: "gptq towards what best reproduces the float model's outputs from the quantized model's inputs",
        },
    ];

    /// The rounding of that name with its usual settings.
    pub fn named(name: &str) -> Option<Rounding> {
        Rounding::ALL.iter().find(|row| row.name == name).map(|row| row.rounding)
    }

    /// The spelling in commands, recipes and reports.
    pub fn name(&self) -> &'static str {
        match self {
            Rounding::Rtn => "rtn",
            Rounding::ByColumns(gptq) => match gptq.variant {
                Variant::Gptq => "gptq",
                Variant::Gptaq { .. } => "gptaq",
                Variant::Qronos => "qronos",
            },
        }
    }

    /// What it must know of a layer's inputs.
    pub fn needs(&self) -> Needs {
        match self {
            Rounding::Rtn => Needs::Nothing,
            Rounding::ByColumns(gptq) => gptq.needs(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_found_by_its_name() {
        for row in Rounding::ALL {
            assert_eq!(Rounding::named(row.name), Some(row.rounding));
            assert_eq!(row.rounding.name(), row.name);
        }
        assert_eq!(Rounding::named("awq"), None);
        let needs: Vec<Needs> = Rounding::ALL.iter().map(|row| row.rounding.needs()).collect();
        assert_eq!(needs, [Needs::Nothing, Needs::Hessian, Needs::Drift, Needs::Drift]);
    }
}
