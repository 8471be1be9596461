//! Planning quantized inputs and outputs of layers: the places to observe, and the tensors for what is found.

use super::ParameterTensor;
use super::build::Builder;
use super::error::PlanError;
use super::layer::LayerDraft;
use kvant_model::family::Role;
use kvant_model::network::{FusedExperts, Linear};
use kvant_numeric::Arithmetic;
use kvant_quant::activation::{self, ActivationStatistic};
use kvant_quant::scheme::{ActivationScheme, MinScale};
use kvant_weights::activation_point::Parameters;
use kvant_weights::activation_point::{PlannedSite, Site};
use kvant_weights::parts::{ActivationSpec, ParameterPart, Side};

/// What is known of a layer besides its plan.
#[derive(Clone, Debug)]
pub(super) struct Origin {
    /// Its name in the source.
    pub(super) module: String,
    /// What reads the same activations, or a part of them: a key that all of them have.
    kin: Option<String>,
}

impl Origin {
    pub(super) fn of_linear(linear: &Linear) -> Origin {
        let experts = linear.expert.zip(linear.block).map(|(_, block)| kin_of_expert(block, linear.role));
        let siblings = || linear.siblings.map(|group| format!("siblings {}", group.index()));
        Origin { module: linear.module.clone(), kin: experts.or_else(siblings) }
    }

    pub(super) fn of_expert(experts: &FusedExperts, module: String) -> Origin {
        Origin { module, kin: Some(kin_of_expert(experts.block, experts.role)) }
    }
}

/// Experts read the tokens that are routed to them, or their hidden activations.
fn kin_of_expert(block: usize, role: Role) -> String {
    let input = if role == Role::Down { "hidden" } else { "routed" };
    format!("experts {block} {input}")
}

impl Builder<'_> {
    /// The places and tensors of a layer's inputs and outputs.
    pub(super) fn plan_activations(&mut self, layer: &LayerDraft, origin: &Origin) -> Result<(), PlanError> {
        for (side, scheme) in [(Side::Input, layer.scheme.input), (Side::Output, layer.scheme.output)] {
            let Some(scheme) = scheme else { continue };
            self.check_activation(&format!("layer `{}`", layer.name), scheme)?;
            let site = match side {
                Side::Input => Site::Input(origin.module.clone()),
                Side::Output => Site::Output(origin.module.clone()),
            };
            let features = if side == Side::Input { layer.columns } else { layer.rows };
            let spec =
                ActivationSpec { name: &layer.name, side, scheme, features, source: layer.source.dtype, site: &site };
            let parts = self.format.activation_parts(&spec).map_err(|problem| PlanError::CannotHold {
                layer: layer.name.clone(),
                scheme: layer.scheme.to_string(),
                problem,
            })?;
            self.declare_parameters(parts);
            if scheme.needs_calibration() {
                // What the layers put out differs even where they read the same.
                let kin = origin.kin.as_ref().filter(|_| side == Side::Input || origin.is_expert());
                let kin = kin.map(|key| self.kin_number(format!("{key} {side:?} {}", origin.leaf(side))));
                let shares = super::build::has_tensor_scale(scheme.scheme);
                self.add_site(
                    site,
                    scheme,
                    layer.source.dtype.arithmetic(),
                    features,
                    (kin, shares, MinScale::default()),
                );
            }
        }
        Ok(())
    }

    /// Refuses schemes that make no sense for activations, and those that need data where there is none.
    pub(super) fn check_activation(&self, place: &str, scheme: ActivationScheme) -> Result<(), PlanError> {
        let problem = |problem| PlanError::Activation { place: place.to_owned(), problem };
        if !scheme.needs_calibration() {
            return activation::check(scheme).map_err(problem);
        }
        ActivationStatistic::new(scheme).map_err(problem)?;
        if self.recipe.is_calibrated() {
            return Ok(());
        }
        Err(PlanError::Calibration { place: place.to_owned(), scheme: scheme.to_string() })
    }

    pub(super) fn declare_parameters(&mut self, parts: Vec<ParameterPart>) {
        for part in parts {
            let tensor = self.declare(part.name.clone(), part.dtype, part.shape.clone());
            self.parameter_tensors.push(ParameterTensor { part, tensor });
        }
    }

    /// The number of those that share a key.
    pub(super) fn kin_number(&mut self, key: String) -> usize {
        let next = self.kin.len();
        *self.kin.entry(key).or_insert(next)
    }

    pub(super) fn add_site(
        &mut self,
        site: Site,
        scheme: ActivationScheme,
        arithmetic: Arithmetic,
        features: usize,
        (kin, shares, min_scale): (Option<usize>, bool, MinScale),
    ) {
        self.sites.push(PlannedSite { site, scheme, arithmetic, features, kin, shares, min_scale });
    }
}

impl Origin {
    fn is_expert(&self) -> bool {
        self.kin.as_ref().is_some_and(|kin| kin.starts_with("experts"))
    }

    /// Outputs are alike where the layers have the same name among the experts.
    fn leaf(&self, side: Side) -> &str {
        match side {
            Side::Input => "",
            Side::Output => self.module.rsplit('.').next().unwrap_or_default(),
        }
    }
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
