//! Layers that cannot be what the rest becomes: one of them does not refuse a model. They stay in floats, and the plan says why. Schemes
//! that do not fit a large part of the model are refused, and so are those that were asked for by name.

use super::PlanError;
use super::layer::{LayerDraft, has_global_scale};
use super::recognised::Recognised;
use crate::recipe::RuleMatch;
use kvant_formats::format::OutputFormat;
use kvant_formats::loader_rules::fused_rows;
use kvant_model::family::Orientation;
use kvant_model::network::{Linear, Notice};
use kvant_quant::counts::number;
use kvant_quant::scheme::LayerScheme;
use kvant_weights::parts::CannotHold;
use std::collections::BTreeMap;

/// The plan's reason for keeping them, for its table.
pub(super) const DOES_NOT_FIT: &str = "does not fit the scheme";
const READ_AS_FLOAT: &str = "read as a float";

/// Of the weights that are to be quantized, one part in so many may be left in floats because a scheme does not fit.
const TOLERATED_PART: usize = 4;

/// Architectures whose forward pass in transformers casts its activations to the type of the weight of `wo`: in Quark's layout that is
/// one of packed integers.
const CASTS_TO_WO: &[&str] =
    &["kosmos-2.5", "longt5", "mt5", "pix2struct", "pop2piano", "switch_transformers", "t5", "udop", "umt5"];

/// Architectures whose classes in transformers read float weights by their names as they are made or loaded, of layers that are quantized
/// too: they raise where a layer has packed codes in the place of its weight.
const READ_FLOATS: &[&str] = &[
    "bailing_hybrid",
    "dinov2",
    "dinov2_with_registers",
    "dinov3_vit",
    "longt5",
    "mt5",
    "pop2piano",
    "recurrent_gemma",
    "rwkv",
    "siglip",
    "siglip2",
    "siglip2_text_model",
    "siglip2_vision_model",
    "siglip_text_model",
    "siglip_vision_model",
    "switch_transformers",
    "t5",
    "udop",
    "umt5",
];

/// Architectures whose classes do so with one layer, by the end of its name.
const READ_ONE: &[(&str, &str)] = &[("wav2vec2", "feature_projection.projection")];

/// Architectures whose experts transformers takes apart before it loads compressed-tensors.
const UNFUSES_EXPERTS: &[&str] = &["llama4", "llama4_text"];

/// The layers that stay in floats although their scheme is the default one, and why; a note for each reason.
pub(super) struct OddLayers {
    reasons: BTreeMap<String, &'static str>,
    notices: Vec<String>,
}

/// Architectures some of whose blocks are the same layers: transformers ties their floats, but makes codes and scales for each.
const SHARES_BLOCKS: &[&str] = &["zamba", "zamba2"];

impl OddLayers {
    /// Finds them.
    pub(super) fn of(source: &Recognised<'_>) -> Result<OddLayers, PlanError> {
        source.refuse_experts_that_do_not_load()?;
        source.refuse_shared_blocks()?;
        let casting = source.casting_layers()?;
        source.refuse_packed_weights_that_are_read(&casting)?;
        let mut problems: BTreeMap<usize, String> = BTreeMap::new();
        let (mut misfits, mut all) = (0, 0);
        for (index, linear) in source.network.linears().iter().enumerate() {
            let Some(scheme) = source.by_default(&casting, linear) else { continue };
            let elements = linear.out_features.saturating_mul(linear.in_features);
            all += elements;
            if let Some(problem) = source.problem(linear, scheme) {
                misfits += elements;
                problems.insert(index, problem);
            }
        }
        let is_tolerated = misfits.saturating_mul(TOLERATED_PART) <= all;
        Ok(if is_tolerated { casting.and(source.misfits_with_siblings(&problems)) } else { casting })
    }

    /// Why a layer stays.
    pub(super) fn reason(&self, module: &str) -> Option<&'static str> {
        self.reasons.get(module).copied()
    }

    /// Notices for the user.
    pub(super) fn into_notices(self) -> Vec<String> {
        self.notices
    }

    fn and(self, other: OddLayers) -> OddLayers {
        OddLayers {
            reasons: self.reasons.into_iter().chain(other.reasons).collect(),
            notices: self.notices.into_iter().chain(other.notices).collect(),
        }
    }
}

impl Recognised<'_> {
    /// The scheme of a layer that nothing is said of by name.
    fn by_default(&self, odd: &OddLayers, linear: &Linear) -> Option<LayerScheme> {
        let unnamed = matches!(self.recipe.decide(&linear.module), RuleMatch::Default(_));
        self.decide(odd, &linear.module, linear.kept).ok().filter(|_| unnamed)
    }

    /// The reason that a layer cannot have its scheme.
    fn problem(&self, linear: &Linear, scheme: LayerScheme) -> Option<String> {
        let (rows, columns) = (linear.out_features, linear.in_features);
        if rows == 0 || columns == 0 || self.format.capabilities().fused_experts_only {
            return None;
        }
        if let Err(problem) = scheme.weight.check_shape(rows, columns) {
            return Some(problem.to_string());
        }
        if self.format == OutputFormat::PlainFloats {
            return None;
        }
        match self.parts(&self.draft(linear, scheme).ok()?, None, false) {
            Err(PlanError::CannotHold { problem, .. }) => Some(problem.reason),
            _ => None,
        }
    }

    /// A layer with its scheme.
    pub(super) fn draft(&self, linear: &Linear, scheme: LayerScheme) -> Result<LayerDraft, PlanError> {
        let is_transposed = linear.orientation == Orientation::InOut;
        let source = self.source_weight(linear.weight, is_transposed, self.storage(linear)?)?;
        let shares = has_global_scale(scheme.weight);
        Ok(LayerDraft {
            name: self.output_name(&linear.module),
            module: linear.module.clone(),
            role: linear.role.name(),
            rows: linear.out_features,
            columns: linear.in_features,
            scheme,
            source,
            shares_scale: linear.siblings.filter(|_| shares).map(|group| group.index()),
            fused_rows: fused_rows(linear, &self.config),
        })
    }

    /// Loaders fuse siblings, which therefore stay together; a note for each reason.
    fn misfits_with_siblings(&self, problems: &BTreeMap<usize, String>) -> OddLayers {
        let mut reasons = BTreeMap::new();
        let mut notes: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for (index, problem) in problems {
            let linear = &self.network.linears()[*index];
            let group = linear.siblings.map(|group| &self.network.siblings()[group.index()].members);
            let members = group.into_iter().flatten().map(|id| self.network.linear(*id).module.clone());
            let together: Vec<String> = members.chain([linear.module.clone()]).collect();
            notes.entry(problem).or_default().push(linear.module.clone());
            reasons.extend(together.into_iter().map(|module| (module, DOES_NOT_FIT)));
        }
        let notes = notes.into_iter().map(|(problem, modules)| format!("{} in floats: {problem}", stays(&modules)));
        OddLayers { reasons, notices: notes.collect() }
    }

    /// In Quark's layout, the layers whose weight a loader reads as a float.
    fn casting_layers(&self) -> Result<OddLayers, PlanError> {
        let casts = self.config.model_types.iter().any(|name| CASTS_TO_WO.contains(&name.as_str()));
        if !self.format.capabilities().integer_weight || !casts {
            return Ok(OddLayers { reasons: BTreeMap::new(), notices: Vec::new() });
        }
        let linears = self.network.linears().iter().filter(|linear| linear.module.ends_with(".wo"));
        let modules: Vec<String> = linears.map(|linear| linear.module.clone()).collect();
        for module in &modules {
            if let RuleMatch::Override(scheme) = self.recipe.decide(module) {
                let problem = CannotHold {
                    reason:
                        "transformers casts activations to the type of this weight, which Quark's layout makes integers"
                            .to_owned(),
                    hint: "leave it in floats".to_owned(),
                };
                return Err(PlanError::CannotHold { layer: module.clone(), scheme: scheme.to_string(), problem });
            }
        }
        let notice = (!modules.is_empty()).then(|| {
            format!("{} in floats: transformers casts activations to the type of this weight", stays(&modules))
        });
        Ok(OddLayers {
            reasons: modules.into_iter().map(|module| (module, READ_AS_FLOAT)).collect(),
            notices: notice.into_iter().collect(),
        })
    }

    /// Blocks that are the same layers, of which loaders make copies with random codes and scales.
    fn refuse_shared_blocks(&self) -> Result<(), PlanError> {
        let shares = self.config.model_types.iter().any(|name| SHARES_BLOCKS.contains(&name.as_str()));
        let layer = self.network.linears().iter().find(|linear| linear.module.contains("shared_transf"));
        let Some(layer) = layer.filter(|_| shares && self.format != OutputFormat::PlainFloats) else { return Ok(()) };
        let problem = CannotHold {
            reason: "several blocks of this architecture are the same layers, and transformers makes codes and scales for each, which are \
                     stored once"
                .to_owned(),
            hint: "use ‹format› fake, whose floats are tied as they load".to_owned(),
        };
        Err(PlanError::CannotHold { layer: layer.module.clone(), scheme: self.recipe.scheme_name(), problem })
    }

    /// Layers without a tensor `weight`, in architectures whose classes look for it.
    fn refuse_packed_weights_that_are_read(&self, odd: &OddLayers) -> Result<(), PlanError> {
        let architecture = self.config.model_types.first().map_or("", String::as_str);
        let one = READ_ONE.iter().find(|(name, _)| *name == architecture).map(|(_, layer)| *layer);
        let reads = READ_FLOATS.contains(&architecture) || one.is_some();
        if !reads || self.format == OutputFormat::PlainFloats {
            return Ok(());
        }
        let is_read = |linear: &&Linear| one.is_none_or(|layer| linear.module.ends_with(layer));
        for linear in self.network.linears().iter().filter(is_read) {
            let Ok(scheme) = self.decide(odd, &linear.module, linear.kept) else { continue };
            // Schemes that do not fit the layer are reported elsewhere.
            let Ok(parts) = self.parts(&self.draft(linear, scheme)?, None, false) else { continue };
            if !parts.iter().any(|part| part.name.ends_with(".weight")) {
                let reason = "transformers reads the float weights of this architecture as it makes the model, and raises where codes are \
                              packed under another name";
                let hint = match one {
                    None => "use a scheme of fp8, e.g. FP8_DYNAMIC, or write floats with ‹format› fake",
                    Some(_) => "keep the layer in float, use a scheme of fp8, or write floats with ‹format› fake",
                };
                let problem = CannotHold { reason: reason.to_owned(), hint: hint.to_owned() };
                return Err(PlanError::CannotHold {
                    layer: linear.module.clone(),
                    scheme: scheme.to_string(),
                    problem,
                });
            }
        }
        Ok(())
    }

    /// Experts in one tensor that transformers looks for one by one where the rest is in compressed-tensors' layout.
    fn refuse_experts_that_do_not_load(&self) -> Result<(), PlanError> {
        let unfuses = self.config.model_types.iter().any(|name| UNFUSES_EXPERTS.contains(&name.as_str()));
        let experts = self.network.notices().iter().find_map(|notice| match notice {
            Notice::UnknownExperts { first, .. } => Some(first.clone()),
            _ => None,
        });
        // Those of a described family are taken apart, but into layers of other names.
        let experts = experts.or_else(|| self.network.experts().first().map(|experts| experts.module.clone()));
        let Some(layer) = experts.filter(|_| unfuses && self.format.capabilities().unfuses_experts) else {
            return Ok(());
        };
        let problem = CannotHold {
            reason: "transformers looks for the gate, up and down layers of each expert of this architecture in compressed-tensors' \
                     layout, which are not written, and would start them at random"
                .to_owned(),
            hint: "use ‹format› fake, in which they stay one tensor".to_owned(),
        };
        let scheme = self.recipe.scheme_name();
        Err(PlanError::CannotHold { layer, scheme, problem })
    }
}

/// The first of some layers, and how many more there are.
pub(super) fn stays(modules: &[String]) -> String {
    let first = modules.first().map_or("", String::as_str);
    match modules.len() {
        1 => format!("`{first}` stays"),
        count => format!("`{first}` and {} stay", number(count - 1, "more layer")),
    }
}
