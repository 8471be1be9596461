//! Planning quantized inputs and outputs of layers: the places to observe, and the tensors for what is found.

use super::ParameterTensor;
use super::error::PlanError;
use super::layer::{LayerDraft, has_global_scale};
use super::recognised::Recognised;
use kvant_model::family::Role;
use kvant_model::network::{FusedExperts, Linear, ShapedLayer};
use kvant_numeric::ComputeDType;
use kvant_quant::activation::{self, ActivationStatistic};
use kvant_quant::scheme::{ActivationScheme, MinScale};
use kvant_weights::activation_point::ActivationPoint;
use kvant_weights::activation_point::Parameters;
use kvant_weights::parts::{ActivationSpec, ParameterPart, Side};

/// The known facts about a layer besides its plan.
#[derive(Clone, Debug)]
pub(super) struct LayerOrigin {
    /// Its name in the source.
    pub(super) module: String,
    /// What it reads together with others.
    reads: Option<Shared>,
}

/// Activations that several layers read, or a part of them each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Shared {
    /// The input of layers that loaders fuse.
    Siblings(usize),
    /// The tokens of a block that are routed to experts.
    Routed(usize),
    /// The hidden activations of a block's experts.
    Hidden(usize),
}

/// What places have in common that stand in for one another.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kin {
    /// The same input.
    Input(Shared),
    /// Outputs of layers that read the same and have the same name among the experts.
    Output(Shared, String),
    /// Keys and values of a block.
    KeyValue(usize),
}

impl LayerOrigin {
    pub(super) fn of_linear(linear: &Linear) -> LayerOrigin {
        let experts = linear.expert.zip(linear.block).map(|(_, block)| read_by_expert(block, linear.role));
        let siblings = || linear.siblings.map(|group| Shared::Siblings(group.index()));
        LayerOrigin { module: linear.module.clone(), reads: experts.or_else(siblings) }
    }

    pub(super) fn of_expert(experts: &FusedExperts, module: String) -> LayerOrigin {
        LayerOrigin { module, reads: Some(read_by_expert(experts.block, experts.role)) }
    }

    /// That of a convolution or a layer of a tower, which shares its input with no other.
    pub(super) fn of_shaped(layer: &ShapedLayer) -> LayerOrigin {
        LayerOrigin { module: layer.module.clone(), reads: None }
    }

    fn scale_group(&self, side: Side) -> Option<Kin> {
        match (side, self.reads?) {
            (Side::Input, shared) => Some(Kin::Input(shared)),
            // What the layers put out differs even where they read the same.
            (Side::Output, Shared::Siblings(_)) => None,
            (Side::Output, shared) => {
                let leaf = self.module.rsplit('.').next().unwrap_or_default();
                Some(Kin::Output(shared, leaf.to_owned()))
            }
        }
    }
}

/// Experts read the tokens that are routed to them, or their hidden activations.
fn read_by_expert(block: usize, role: Role) -> Shared {
    if role == Role::Down { Shared::Hidden(block) } else { Shared::Routed(block) }
}

/// A place to observe, before those that stand in for one another are numbered.
#[derive(Clone, Debug)]
pub(super) struct SiteDraft {
    pub(super) site: ActivationPoint,
    pub(super) scheme: ActivationScheme,
    pub(super) arithmetic: ComputeDType,
    pub(super) features: usize,
    pub(super) scale_group: Option<Kin>,
    /// Whether all of its kin have one scale.
    pub(super) shares: bool,
    pub(super) min_scale: MinScale,
}

/// What quantizing an input or an output of a layer takes.
pub(super) struct ActivationDraft {
    pub(super) parts: Vec<ParameterPart>,
    pub(super) site: Option<SiteDraft>,
}

impl Recognised<'_> {
    /// The places and tensors of a layer's inputs and outputs.
    pub(super) fn activations(
        &self,
        layer: &LayerDraft,
        origin: &LayerOrigin,
    ) -> Result<Vec<ActivationDraft>, PlanError> {
        let sides = [(Side::Input, layer.scheme.input), (Side::Output, layer.scheme.output)];
        let quantized = sides.into_iter().filter_map(|(side, scheme)| Some((side, scheme?)));
        quantized.map(|(side, scheme)| self.activation(layer, origin, side, scheme)).collect()
    }

    fn activation(
        &self,
        layer: &LayerDraft,
        origin: &LayerOrigin,
        side: Side,
        scheme: ActivationScheme,
    ) -> Result<ActivationDraft, PlanError> {
        self.check_activation(&format!("layer `{}`", layer.name), scheme, false)?;
        let (site, features) = match side {
            Side::Input => (ActivationPoint::Input(origin.module.clone()), layer.columns),
            Side::Output => (ActivationPoint::Output(origin.module.clone()), layer.rows),
        };
        let spec =
            ActivationSpec { name: &layer.name, side, scheme, features, source: layer.source.dtype, site: &site };
        let parts = self.format.activation_parts(&spec).map_err(|problem| PlanError::CannotHold {
            layer: layer.name.clone(),
            scheme: layer.scheme.to_string(),
            problem,
        })?;
        let site = scheme.needs_calibration().then(|| SiteDraft {
            site: site.clone(),
            scheme,
            arithmetic: layer.source.dtype.arithmetic(),
            features,
            scale_group: origin.scale_group(side),
            shares: has_global_scale(scheme.scheme),
            min_scale: MinScale::default(),
        });
        Ok(ActivationDraft { parts, site })
    }

    /// Refuses schemes that make no sense for activations, and those that need data where there is none.
    pub(super) fn check_activation(
        &self,
        place: &str,
        scheme: ActivationScheme,
        of_attention: bool,
    ) -> Result<(), PlanError> {
        let problem = |problem| PlanError::Activation { place: place.to_owned(), problem };
        if !scheme.needs_calibration() {
            return activation::check(scheme).map_err(problem);
        }
        ActivationStatistic::new(scheme).map_err(problem)?;
        if self.recipe.is_calibrated() || self.recipe.statistics().is_some() {
            return Ok(());
        }
        Err(PlanError::Calibration { place: place.to_owned(), scheme: scheme.to_string(), of_attention })
    }
}

/// Returns whether activations, if they are quantized, have static scales.
pub(super) fn is_static(scheme: Option<ActivationScheme>) -> bool {
    scheme.is_some_and(|scheme| scheme.needs_calibration())
}

/// Refuses parameters that do not fill the tensors.
pub(super) fn check_parameters(tensors: &[ParameterTensor], parameters: &Parameters) -> Result<(), PlanError> {
    for ParameterTensor { part, .. } in tensors {
        let found = parameters.get(&part.site).map_or(0, |parameters| parameters.scales.len());
        if found != part.len() {
            return Err(PlanError::Parameters { site: part.site.clone(), expected: part.len(), found });
        }
    }
    Ok(())
}
