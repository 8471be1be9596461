//! The recipes that are tried for a graph, from cheap to expensive: each adds one thing to the best one so far.

use super::attempt::WidenedLayer;
use crate::error::Error;
use crate::job::Job;
use crate::onnx::recipe;
use kvant_checkpoint::recipe::OverrideText;
use kvant_onnx::calibration::ObserverRef;
use kvant_onnx::sensitivity::Widening;
use kvant_quant::counts::number;
use kvant_quant::recipe::OverrideEntry;
use std::collections::BTreeMap;

/// How the name of a method of finding ranges begins.
const RANGES: &str = "ranges by ";

/// A recipe to try.
#[derive(Clone)]
pub struct Candidate {
    /// What it adds to the recipe of the job.
    additions: Vec<String>,
    /// The job with this recipe.
    pub job: Job,
    /// The layers that have other types.
    pub widened: Vec<WidenedLayer>,
}

/// Something that a recipe may have in addition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addition {
    /// A scale for each output channel of a weight: costs nothing.
    PerChannel,
    /// Half of the codes of weights, with which no sums saturate: costs a bit.
    ReducedRange,
    /// Another method of finding ranges: a pass over the data.
    Method(&'static str),
    /// Scales moved between layers, which costs nothing in an inference.
    Equalization,
    /// An algorithm that runs layer by layer over data.
    Algorithm(&'static str),
}

/// All of them, from cheap to expensive.
pub const ADDITIONS: [Addition; 7] = [
    Addition::PerChannel,
    Addition::ReducedRange,
    Addition::Method("minmax"),
    Addition::Method("auto"),
    Addition::Equalization,
    Addition::Algorithm("bias-correction"),
    Addition::Algorithm("adaround"),
];

impl Addition {
    /// Returns whether it trains each layer, which takes much longer than all others together.
    pub fn is_trained(self) -> bool {
        self == Addition::Algorithm("adaround")
    }
}

impl Candidate {
    /// The recipe of a job.
    pub fn of(job: &Job) -> Candidate {
        Candidate { additions: Vec::new(), job: job.clone(), widened: Vec::new() }
    }

    /// The same with something in addition; `None` where it has that already.
    ///
    /// # Errors
    /// Those of the recipe.
    pub fn with(&self, addition: Addition) -> Result<Option<Candidate>, Error> {
        let settings = recipe::settings(&self.job)?;
        let resolved = settings.resolve()?.recipe;
        let mut job = self.job.clone();
        let graph = &mut job.recipe.graph;
        let name = match addition {
            Addition::PerChannel if resolved.weight.per_channel => return Ok(None),
            Addition::PerChannel => {
                graph.per_channel = true;
                "scales per channel".to_owned()
            }
            Addition::ReducedRange if graph.reduce_range => return Ok(None),
            Addition::ReducedRange => {
                graph.reduce_range = true;
                "half of the weights' codes".to_owned()
            }
            Addition::Method(_) if resolved.activation.is_none() => return Ok(None),
            Addition::Method(name) => {
                let Ok(method) = name.parse::<ObserverRef>() else { return Ok(None) };
                if resolved.activation.is_some_and(|scheme| scheme.method == method) {
                    return Ok(None);
                }
                graph.calibration_method = Some(method);
                graph.percentile = None;
                format!("{RANGES}{name}")
            }
            Addition::Equalization if has(&settings.algorithm, "cle") => return Ok(None),
            Addition::Equalization => {
                graph.equalize = true;
                "cle".to_owned()
            }
            Addition::Algorithm(name) if has(&settings.algorithm, name) => return Ok(None),
            Addition::Algorithm(name) => {
                job.recipe.algorithm.push(name.to_owned());
                name.to_owned()
            }
        };
        let mut additions = self.additions.clone();
        if let Addition::Method(_) = addition {
            // The last method counts.
            additions.retain(|known| !known.starts_with(RANGES));
        }
        additions.push(name);
        Ok(Some(Candidate { additions, job, widened: self.widened.clone() }))
    }

    /// The same with wider types for some layers.
    pub fn widened(&self, steps: &[Widening]) -> Candidate {
        let mut job = self.job.clone();
        let overrides = steps.iter().flat_map(|step| &step.overrides);
        let text = |entry: &OverrideEntry| OverrideText {
            layers: entry.tensors.clone().unwrap_or_default(),
            scheme: entry.scheme.clone(),
        };
        job.recipe.overrides.extend(overrides.map(text));
        let mut widened = self.widened.clone();
        for step in steps {
            widened.retain(|known| known.layer != step.layer);
            widened.push(WidenedLayer { layer: step.layer.clone(), types: step.candidate.clone() });
        }
        Candidate { additions: self.additions.clone(), job, widened }
    }

    /// The recipe in words.
    pub fn name(&self) -> String {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        self.widened.iter().for_each(|layer| *counts.entry(&layer.types).or_default() += 1);
        let widened = counts.into_iter().map(|(types, count)| format!("{types} in {}", number(count, "layer")));
        let parts = std::iter::once("the recipe".to_owned()).chain(self.additions.iter().cloned()).chain(widened);
        parts.collect::<Vec<_>>().join(" + ")
    }
}

/// Returns whether a list of algorithms, each with its options, has one.
fn has(algorithms: &[String], name: &str) -> bool {
    let names = algorithms.iter().flat_map(|text| text.split(','));
    names.into_iter().any(|text| text.split(':').next() == Some(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn additions_that_a_recipe_has_already_are_left_out() {
        let mut job = Job::new("model.onnx");
        job.recipe.scheme = Some("A8W8".to_owned());
        let base = Candidate::of(&job);
        let more = |candidate: &Candidate, addition| candidate.with(addition).unwrap();
        let per_channel = more(&base, Addition::PerChannel).unwrap();
        assert_eq!(per_channel.name(), "the recipe + scales per channel");
        assert!(per_channel.job.recipe.graph.per_channel && more(&per_channel, Addition::PerChannel).is_none());
        let methods = more(&per_channel, Addition::Method("minmax")).unwrap();
        assert!(more(&methods, Addition::Method("minmax")).is_none());
        let auto = more(&methods, Addition::Method("auto")).unwrap();
        assert_eq!(auto.name(), "the recipe + scales per channel + ranges by auto");
        let half = more(&auto, Addition::ReducedRange).unwrap();
        assert!(half.job.recipe.graph.reduce_range && more(&half, Addition::ReducedRange).is_none());
        let corrected = more(&methods, Addition::Algorithm("bias-correction")).unwrap();
        assert!(more(&corrected, Addition::Algorithm("bias-correction")).is_none());
        assert_eq!(corrected.job.recipe.algorithm, ["bias-correction"]);
        let equal = more(&corrected, Addition::Equalization).unwrap();
        assert!(more(&equal, Addition::Equalization).is_none());
        job.recipe.algorithm = vec!["cle,adaround:num_iterations=5".to_owned()];
        let given = Candidate::of(&job);
        assert!(more(&given, Addition::Equalization).is_none());
        assert!(more(&given, Addition::Algorithm("adaround")).is_none());
        job.recipe.scheme = Some("WEIGHTS_INT8".to_owned());
        assert!(more(&Candidate::of(&job), Addition::Method("auto")).is_none(), "no activations");
    }

    #[test]
    fn later_types_of_a_layer_replace_earlier_ones() {
        let entry = |name: &str, scheme: &str| OverrideEntry::of_tensors(name, scheme);
        let step = |layer: &str, candidate: &str, scheme: &str| Widening {
            layer: layer.to_owned(),
            candidate: candidate.to_owned(),
            overrides: vec![entry("w", scheme)],
        };
        let steps = [step("a", "A8W8", "int8"), step("b", "A8W8", "int8"), step("a", "float", "keep")];
        let mixed = Candidate::of(&Job::new("model.onnx")).widened(&steps);
        assert_eq!(mixed.name(), "the recipe + A8W8 in 1 layer + float in 1 layer");
        let types = mixed.widened.iter().map(|layer| (layer.layer.as_str(), layer.types.as_str()));
        assert_eq!(types.collect::<Vec<_>>(), [("b", "A8W8"), ("a", "float")]);
        assert_eq!(mixed.job.recipe.overrides.last().map(|last| last.scheme.as_str()), Some("keep"));
    }
}
