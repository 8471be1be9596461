//! What a recipe makes of every linear layer of a recognised source: the scheme that it gets, or why it stays.

use super::activation_points::{LayerOrigin, is_static};
use super::convert::ExcludedCodes;
use super::draft::{self, Draft, Drafts, DroppedDraft};
use super::error::PlanError;
use super::layer_drafts::LayerDrafts;
use super::misfits::OddLayers;
use super::names::without_codes;
use super::recognised::Recognised;
use crate::recipe::RuleMatch;
use kvant_formats::format::OutputFormat;
use kvant_formats::import::Import;
use kvant_model::family::Role;
use kvant_model::network::Linear;
use kvant_quant::scheme::LayerScheme;

/// Why a layer stays that the recipe names.
pub(super) const EXCLUDED: &str = "excluded";

/// The reason that a layer that the family keeps stays unquantized.
const KEPT_BY_DEFAULT: &str = "kept by default";

/// The remedy where nothing but the recipe keeps layers.
const LEAVE_OUT: &str = "leave out an ‹exclude›, or an ‹override› that keeps layers";

/// What the recipe decides, and the layers that stay whatever it says by default.
pub(super) struct Decisions<'s, 'a> {
    pub(super) source: &'s Recognised<'a>,
    odd: OddLayers,
}

impl Recognised<'_> {
    /// The scheme of a module, or why it is kept.
    pub(super) fn decide(
        &self,
        odd: &OddLayers,
        module: &str,
        family_keeps: bool,
    ) -> Result<LayerScheme, &'static str> {
        let scheme = match self.recipe.decide(module) {
            RuleMatch::Excluded => Err(EXCLUDED),
            RuleMatch::Override(scheme) => Ok(scheme),
            RuleMatch::Default(_) if family_keeps && self.recipe.keep_defaults() => Err(KEPT_BY_DEFAULT),
            RuleMatch::Default(scheme) => odd.reason(module).map_or(Ok(scheme), Err),
        };
        scheme.map(|scheme| self.recipe.fitted(scheme))
    }

    /// Returns whether the recipe excludes an fp8 weight that has scales, for an output with a place for its codes.
    pub(super) fn excludes_fp8(&self) -> bool {
        self.format != OutputFormat::PlainFloats && self.excluded_codes().next().is_some()
    }

    /// The layers with codes that the recipe excludes: fp8 with scales, and what an import has read.
    fn excluded_codes(&self) -> impl Iterator<Item = &Linear> {
        let is_excluded = |module: &str| matches!(self.recipe.decide(module), RuleMatch::Excluded);
        let linears = self.network.linears().iter();
        let has_codes = |linear: &Linear| self.scale_of(linear).is_some() || self.tensors[linear.weight].has_codes();
        linears.filter(move |linear| has_codes(linear) && is_excluded(&linear.module))
    }

    /// Says which excluded layers lose their codes, where the output has no place for any.
    fn note_of_floats(&self) -> Option<String> {
        if self.format != OutputFormat::PlainFloats {
            return None;
        }
        without_codes(self.excluded_codes().map(|linear| linear.module.as_str()), "plain floats have")
    }

    /// What the recipe makes of the source. Excluded layers keep the codes of `import`, if they have any.
    ///
    /// # Errors
    /// Whatever can be refused before tensors are numbered.
    pub(super) fn quantized(&self, import: Option<&Import<'_>>) -> Result<LayerDrafts, PlanError> {
        let decisions = Decisions { source: self, odd: OddLayers::of(self)? };
        decisions.check_siblings()?;
        let codes = ExcludedCodes::of(&decisions, import);
        let linears = self.network.linears().iter().map(|linear| decisions.draft_linear(linear, &codes));
        let experts = self.network.experts().iter().map(|experts| decisions.draft_experts(experts, &codes));
        let layers = Drafts::join(linears.chain(experts).chain([self.draft_shaped()]))?;
        let of_codes = self.settle_codes(&layers)?;
        let attention = self.attention(&layers.drafts)?;
        let layers = layers.without_misfits(self)?;
        self.refuse_tied_head(&layers.drafts)?;
        if draft::layers(&layers.drafts).next().is_none() {
            let (reason, hint) = decisions.nothing_left();
            return Err(PlanError::Nothing { reason, hint, kinds: self.convolutions() });
        }
        let mut layers = layers;
        layers.drafts.extend(self.draft_biases(&layers.drafts)?);
        let rest = self.keep_all(&draft::without_place(self, &layers.drafts));
        let of_codes = of_codes.or_else(|| self.note_of_floats());
        let notices = decisions.odd.into_notices().into_iter().chain(layers.notices).chain(of_codes).collect();
        Ok(LayerDrafts { layers: layers.drafts, attention, rest, act_order: codes.act_order(), notices })
    }
}

impl Recognised<'_> {
    /// Refuses to quantize a head that is stored, and that no loader reads: config.json says that it is the embedding.
    fn refuse_tied_head(&self, drafts: &[Draft]) -> Result<(), PlanError> {
        match self.tied_head().filter(|head| draft::layers(drafts).any(|drafted| drafted.weight == head.weight)) {
            Some(head) => Err(PlanError::TiedHead { layer: head.module.clone() }),
            None => Ok(()),
        }
    }

    /// The head that is stored although it is the embedding.
    fn tied_head(&self) -> Option<&Linear> {
        self.network.head().filter(|_| self.network.is_tied()).map(|head| self.network.linear(head))
    }
}

impl Decisions<'_, '_> {
    /// The scheme of a module, or why it is kept.
    pub(super) fn decide(&self, module: &str, family_keeps: bool) -> Result<LayerScheme, &'static str> {
        self.source.decide(&self.odd, module, family_keeps)
    }

    fn draft_linear(&self, linear: &Linear, codes: &ExcludedCodes<'_, '_>) -> Result<Drafts, PlanError> {
        match self.decide(&linear.module, linear.kept) {
            Ok(_) if self.source.format.capabilities().fused_experts_only => {
                self.source.keep_linear(linear, "no tensor of all experts").map(Drafts::from)
            }
            Ok(scheme) => self.quantize_linear(linear, scheme, codes.act_order()),
            Err(reason) => match codes.of_linear(self.source, linear, reason)? {
                Some(kept) => Ok(kept),
                None => self.source.keep_linear(linear, reason).map(Drafts::from),
            },
        }
    }

    fn quantize_linear(&self, linear: &Linear, scheme: LayerScheme, act_order: bool) -> Result<Drafts, PlanError> {
        if linear.out_features == 0 || linear.in_features == 0 {
            return self.source.keep_linear(linear, "empty").map(Drafts::from);
        }
        let observes = self.source.recipe.statistics().is_none();
        let has_static = is_static(scheme.input) || is_static(scheme.output);
        if observes && has_static && self.source.network.predicts_further(linear) {
            return Err(PlanError::NotRun { layer: linear.module.clone(), scheme: scheme.to_string() });
        }
        if observes && linear.role == Role::Head && is_static(scheme.output) {
            return Err(PlanError::Logits { layer: linear.module.clone(), scheme: scheme.to_string() });
        }
        let layer = self.source.draft(linear, scheme)?;
        let scale = self
            .source
            .scale_of(linear)
            .map(|tensor| Draft::Dropped(DroppedDraft { tensor, reason: "scales of a weight that is requantized" }));
        let layer = self.source.layer(linear.weight, layer, &LayerOrigin::of_linear(linear), act_order);
        Drafts::join([Ok(Drafts::from(Vec::from_iter(scale))), layer].into_iter())
    }

    /// Layers that loaders fuse into one must have one scheme, or be kept together.
    fn check_siblings(&self) -> Result<(), PlanError> {
        // llama.cpp fuses no tensors of a file, whose mixes have several types.
        let fuses_nothing = self.source.recipe.makes_blocks() || self.source.format.capabilities().fuses_nothing;
        if self.source.format == OutputFormat::PlainFloats || fuses_nothing {
            return Ok(());
        }
        let network = &self.source.network;
        for group in network.siblings() {
            let text = |linear: &Linear| {
                let scheme = self.decide(&linear.module, linear.kept);
                scheme.map_or_else(|_| "kept".to_owned(), |scheme| scheme.to_string())
            };
            let members: Vec<&Linear> = group.members.iter().map(|id| network.linear(*id)).collect();
            let first = text(members[0]);
            if let Some(other) = members.iter().find(|member| text(member) != first) {
                let (name, scheme) = (other.module.clone(), text(other));
                return Err(PlanError::Siblings {
                    first: members[0].module.clone(),
                    first_scheme: first,
                    second: name,
                    second_scheme: scheme,
                });
            }
        }
        Ok(())
    }

    /// The reason that no layer is quantized, and the remedy for it.
    fn nothing_left(&self) -> (&'static str, &'static str) {
        let Recognised { network, recipe, format, .. } = self.source;
        if network.linears().is_empty() && network.experts().is_empty() && self.source.shaped.is_empty() {
            let hint = "look at the tensors with `kvant inspect`: weights of linear layers are matrices of floats";
            return ("no linear layers are found in the checkpoint", hint);
        }
        if format.capabilities().fused_experts_only && network.experts().is_empty() {
            let reason = "there are no fused expert tensors, and this format quantizes nothing else";
            return (reason, "choose another format (`kvant list formats`)");
        }
        let is_kept = |linear: &Linear| self.decide(&linear.module, linear.kept) == Err(KEPT_BY_DEFAULT);
        let tied = self.source.tied_head();
        let mut others = network.linears().iter().filter(|linear| tied.is_none_or(|head| head.weight != linear.weight));
        let kept_experts = recipe.keep_defaults() && network.experts().iter().any(|experts| experts.kept);
        match (others.any(is_kept) || kept_experts, tied) {
            (false, None) => ("the recipe excludes every linear layer", LEAVE_OUT),
            (false, Some(_)) => {
                ("the recipe excludes every linear layer but the head, which is the embedding", LEAVE_OUT)
            }
            (true, None) => (
                "every linear layer is excluded or kept by default",
                "‹no-keep-defaults› quantizes layers that are kept by default, ‹override› gives some of them a scheme",
            ),
            // Without the defaults the head would be quantized too, and refused.
            (true, Some(_)) => (
                "every linear layer is excluded or kept by default",
                "‹override› gives layers that are kept by default a scheme",
            ),
        }
    }
}
