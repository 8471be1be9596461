//! Which transforms there are, and what each needs. Not how they work.

use super::{AutoSmoothQuant, Awq, SmoothQuant};

/// A way to change weights before they are rounded, with its settings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Transform {
    /// Scales from the largest magnitudes.
    SmoothQuant(SmoothQuant),
    /// Scales searched with quantized weights and inputs.
    AutoSmoothQuant(AutoSmoothQuant),
    /// Scales searched with quantized weights, then limits.
    Awq(Awq),
}

/// What a transform must know of a layer's inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// Their largest magnitudes.
    Maxima,
    /// Their largest magnitudes, and runs of what the layer belongs to.
    MaximaAndRuns,
    /// Their mean magnitudes, runs of what the layer belongs to, and samples of inputs.
    MeansRunsAndSamples,
}

/// A row of the table of transforms.
#[derive(Clone, Copy, Debug)]
pub struct TransformRow {
    /// The spelling in commands, recipes and reports.
    pub name: &'static str,
    /// Other spellings that are understood.
    pub aliases: &'static [&'static str],
    /// The transform with its usual settings.
    pub transform: Transform,
    /// Where it is from.
    pub paper: Option<&'static str>,
    /// One line that explains it.
    pub about: &'static str,
}

impl Transform {
    /// Every transform, one row each.
    pub const ALL: &[TransformRow] = &[
        TransformRow {
            name: "smoothquant",
            aliases: &["smooth"],
            transform: Transform::SmoothQuant(SmoothQuant::DEFAULTS),
            paper: Some("arXiv 2211.10438"),
            about: "moves outliers of inputs into weights, by the largest magnitudes of both",
        },
        TransformRow {
            name: "autosmoothquant",
            aliases: &[],
            transform: Transform::AutoSmoothQuant(AutoSmoothQuant::DEFAULTS),
            paper: None,
            about: "smoothquant by the exponent that changes the quantized block's outputs least",
        },
        TransformRow {
            name: "awq",
            aliases: &[],
            transform: Transform::Awq(Awq::DEFAULTS),
            paper: Some("arXiv 2306.00978"),
            about: "scales up the weights that large inputs meet, then clips weights, as outputs change least",
        },
    ];

    /// The transform of that name, or of that other spelling, with its usual settings.
    pub fn named(name: &str) -> Option<Transform> {
        let row = Transform::ALL.iter().find(|row| row.name == name || row.aliases.contains(&name));
        row.map(|row| row.transform)
    }

    /// The spelling in commands, recipes and reports.
    pub fn name(&self) -> &'static str {
        match self {
            Transform::SmoothQuant(_) => "smoothquant",
            Transform::AutoSmoothQuant(_) => "autosmoothquant",
            Transform::Awq(_) => "awq",
        }
    }

    /// How many exponents it tries on each link.
    pub fn trials(&self) -> u32 {
        match self {
            Transform::SmoothQuant(_) => 0,
            Transform::AutoSmoothQuant(auto) => auto.ratios,
            Transform::Awq(awq) => awq.ratios,
        }
    }

    /// What it must know of a layer's inputs.
    pub fn needs(&self) -> Needs {
        match self {
            Transform::SmoothQuant(_) => Needs::Maxima,
            Transform::AutoSmoothQuant(_) => Needs::MaximaAndRuns,
            Transform::Awq(_) => Needs::MeansRunsAndSamples,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_found_by_its_names() {
        for row in Transform::ALL {
            assert_eq!(row.transform.name(), row.name);
            for name in row.aliases.iter().chain([&row.name]) {
                assert_eq!(Transform::named(name), Some(row.transform));
            }
        }
        assert_eq!(Transform::named("gptq"), None);
        let needs: Vec<Needs> = Transform::ALL.iter().map(|row| row.transform.needs()).collect();
        assert_eq!(needs, [Needs::Maxima, Needs::MaximaAndRuns, Needs::MeansRunsAndSamples]);
    }
}
