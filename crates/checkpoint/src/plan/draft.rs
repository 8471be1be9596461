//! What becomes of a tensor of the source, before the output's tensors are numbered: a layer that is quantized, or a tensor that is carried
//! over or dropped.

use super::activation_points::{ActivationDraft, LayerOrigin};
use super::error::PlanError;
use super::layer::{LayerDraft, LayerOutput, values_type};
use super::recognised::Recognised;
use super::{DroppedTensor, KeptTensor, PlannedLayer, TensorAction};
use kvant_container::Dtype;
use kvant_formats::format::OutputFormat;
use kvant_quant::scheme::{Granularity, LayerScheme, SchemeError, TensorScheme};
use kvant_weights::parts::{CannotHold, Fused, Part};
use std::collections::{BTreeMap, BTreeSet};

/// What becomes of a tensor of the source.
pub(super) enum Draft {
    Layer(Box<DraftedLayer>),
    Kept(KeptDraft),
    Dropped(DroppedDraft),
}

/// A layer that is quantized, and what is declared of it.
pub(super) struct DraftedLayer {
    /// The index of its weight among the source's tensors.
    pub(super) weight: usize,
    pub(super) layer: LayerDraft,
    pub(super) output: OutputDraft,
    pub(super) activations: Vec<ActivationDraft>,
}

/// What a layer becomes: a [`LayerOutput`] without places among the declarations.
pub(super) enum OutputDraft {
    /// The tensors of a checkpoint format. Matrices of one weight, of which there is more than one, share them.
    Parts { parts: Vec<Part>, slice: (usize, usize) },
    /// Floats in the place of the source's. All matrices of a weight share the tensor.
    Values { dtype: Dtype, shape: Vec<usize>, offset: u64 },
}

/// A layer whose shape does not fit its scheme.
pub(super) struct Misfit {
    layer: LayerDraft,
    problem: SchemeError,
}

/// A tensor that is carried over.
pub(super) struct KeptDraft {
    /// Its index among the source's tensors.
    pub(super) tensor: usize,
    /// The module that loaders must not expect quantized.
    pub(super) module: Option<String>,
    /// Its name in the output.
    pub(super) name: String,
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<usize>,
    pub(super) action: TensorAction,
    pub(super) reason: &'static str,
    /// The effect of the linear layer whose weight it is.
    pub(super) role: Option<&'static str>,
}

/// A tensor that has no successor.
pub(super) struct DroppedDraft {
    /// Its index among the source's tensors.
    pub(super) tensor: usize,
    pub(super) reason: &'static str,
}

impl Draft {
    /// The index among the source's tensors of what this is the place of.
    fn tensor(&self) -> usize {
        match self {
            Draft::Layer(layer) => layer.weight,
            Draft::Kept(kept) => kept.tensor,
            Draft::Dropped(dropped) => dropped.tensor,
        }
    }

    /// The layer that is quantized.
    pub(super) fn layer(&self) -> Option<&DraftedLayer> {
        if let Draft::Layer(layer) = self { Some(layer) } else { None }
    }
}

impl KeptDraft {
    /// The tensor with its place among the declarations.
    pub(super) fn declared(self, source: &Recognised<'_>, tensor: usize) -> KeptTensor {
        let view = &source.tensors[self.tensor];
        let KeptDraft { action, reason, role, .. } = self;
        KeptTensor { source: view.stored_name(), position: view.position, tensor, action, reason, role }
    }
}

impl DroppedDraft {
    pub(super) fn named(&self, source: &Recognised<'_>) -> DroppedTensor {
        DroppedTensor { name: source.tensors[self.tensor].stored_name(), reason: self.reason }
    }
}

impl DraftedLayer {
    /// The layer whose first tensor is the `first` of the declarations, and what its activations take.
    pub(super) fn declared(self, first: usize) -> (PlannedLayer, Vec<ActivationDraft>) {
        let layer = self.layer.with_output(match self.output {
            OutputDraft::Parts { parts, slice } => LayerOutput::Parts { parts, first, slice },
            OutputDraft::Values { dtype, offset, .. } => LayerOutput::Values { tensor: first, offset, dtype },
        });
        (layer, self.activations)
    }
}

/// What becomes of some tensors, in the order in which the output's are declared.
#[derive(Default)]
pub(super) struct Drafts {
    pub(super) drafts: Vec<Draft>,
    /// Layers whose shapes do not fit their schemes, which are named together later on.
    pub(super) misfits: Vec<Misfit>,
    /// Notices for the user.
    pub(super) notices: Vec<String>,
    /// Excluded layers that keep their codes.
    pub(super) kept_codes: Vec<String>,
    /// Excluded weights whose codes have no place.
    pub(super) lost_codes: Vec<LostCodes>,
}

/// An excluded weight whose codes have no place, and why.
pub(super) struct LostCodes {
    pub(super) tensor: String,
    pub(super) reason: String,
}

impl Drafts {
    /// One after the other, up to the first error.
    pub(super) fn join(all: impl Iterator<Item = Result<Drafts, PlanError>>) -> Result<Drafts, PlanError> {
        let mut joined = Drafts::default();
        for one in all {
            let Drafts { drafts, misfits, notices, kept_codes, lost_codes } = one?;
            joined.drafts.extend(drafts);
            joined.misfits.extend(misfits);
            joined.notices.extend(notices);
            joined.kept_codes.extend(kept_codes);
            joined.lost_codes.extend(lost_codes);
        }
        Ok(joined)
    }

    /// Refuses layers whose shapes do not fit their schemes, all of them together, and matrices that do not fill the tensors that they
    /// share.
    pub(super) fn without_misfits(self, source: &Recognised<'_>) -> Result<Drafts, PlanError> {
        let alternatives = source.alternatives(&self.misfits).into();
        let mut misfits = self.misfits.into_iter();
        let Some(Misfit { layer, problem }) = misfits.next() else {
            check_shared(&self.drafts)?;
            return Ok(Drafts { misfits: Vec::new(), ..self });
        };
        let others = misfits.map(|misfit| misfit.layer.name).collect();
        let fitting = layers(&self.drafts).map(|drafted| drafted.layer.name.clone()).collect();
        let scheme = layer.scheme.to_string().into();
        Err(PlanError::Shape { layer: layer.name, scheme, problem: problem.into(), others, fitting, alternatives })
    }
}

impl From<Vec<Draft>> for Drafts {
    fn from(drafts: Vec<Draft>) -> Drafts {
        Drafts { drafts, ..Drafts::default() }
    }
}

/// The layers among drafts.
pub(super) fn layers(drafts: &[Draft]) -> impl Iterator<Item = &DraftedLayer> + Clone {
    drafts.iter().filter_map(Draft::layer)
}

/// Refuses matrices that do not fill the tensors that they share: all experts of a block must be there, and alike.
fn check_shared(drafts: &[Draft]) -> Result<(), PlanError> {
    let mut shared: BTreeMap<&str, Vec<(&LayerDraft, usize)>> = BTreeMap::new();
    for drafted in layers(drafts) {
        if let OutputDraft::Parts { parts, slice: (expert, count) } = &drafted.output
            && let Some(part) = parts.first().filter(|_| *count != 1)
        {
            let sharing = shared.entry(&part.name).or_default();
            // The place of an expert that config.json does not count is beyond the tensor.
            let is_counted = expert < count;
            sharing.push((&drafted.layer, if is_counted { *count } else { 0 }));
        }
    }
    for sharing in shared.into_values() {
        let (first, _) = sharing[0];
        let fills = |(layer, count): &(&LayerDraft, usize)| *count == sharing.len() && layer.scheme == first.scheme;
        if let Some((layer, _)) = sharing.iter().find(|sharing| !fills(sharing)) {
            let reason = "all experts of a block are one tensor in this format, and not all of them have this scheme";
            let problem = CannotHold::new(reason, "give all experts of a block one scheme, or leave all in float");
            let (layer, scheme) = (layer.name.clone(), layer.scheme.to_string());
            return Err(PlanError::CannotHold { layer, scheme, problem });
        }
    }
    Ok(())
}

/// The indices of the source's tensors that have no place yet.
pub(super) fn without_place(source: &Recognised<'_>, drafts: &[Draft]) -> Vec<usize> {
    let taken: BTreeSet<usize> = drafts.iter().map(Draft::tensor).collect();
    (0..source.tensors.len()).filter(|tensor| !taken.contains(tensor)).collect()
}

impl Recognised<'_> {
    /// Schemes that fit all of these layers, and that the format holds: smaller groups, and a scale for each channel.
    fn alternatives(&self, misfits: &[Misfit]) -> Vec<String> {
        let weights = misfits.iter().map(|misfit| misfit.layer.scheme.weight);
        let group = weights.clone().find_map(|weight| match (weight, weight.granularity()) {
            (TensorScheme::Int(_), Some(Granularity::Group { size: Some(size), .. })) => Some((weight, size.get())),
            _ => None,
        });
        let with = |granularity: String| {
            let (weight, size) = group?;
            Some(weight.to_string().replacen(&format!(":g{size}"), &format!(":{granularity}"), 1))
        };
        let smaller = [64, 32].into_iter().filter(|size| group.is_some_and(|(_, own)| *size < own));
        let of_integers = smaller.map(|size| format!("g{size}")).chain(["channel".to_owned()]).filter_map(with);
        let is_held = |spelled: &String| {
            let holds = |misfit: &Misfit, weight: TensorScheme| {
                let layer =
                    LayerDraft { scheme: LayerScheme { weight, ..misfit.layer.scheme }, ..misfit.layer.clone() };
                weight.check_shape(layer.rows, layer.columns).is_ok()
                    && (self.format == OutputFormat::PlainFloats || self.parts(&layer, None, false).is_ok())
            };
            spelled.parse().is_ok_and(|weight| misfits.iter().all(|misfit| holds(misfit, weight)))
        };
        of_integers.chain(["e4m3:channel".to_owned()]).filter(is_held).collect()
    }

    /// Floats in the place of a layer's weight.
    pub(super) fn values(&self, weight: usize, layer: &LayerDraft) -> OutputDraft {
        let dtype = values_type(layer.scheme.weight, layer.source.dtype);
        OutputDraft::Values { dtype, shape: self.tensors[weight].shape().to_vec(), offset: 0 }
    }

    /// A layer with tensors of its own.
    pub(super) fn layer(
        &self,
        weight: usize,
        layer: LayerDraft,
        origin: &LayerOrigin,
        act_order: bool,
    ) -> Result<Drafts, PlanError> {
        drafted(weight, layer, |layer| {
            let output = if self.format == OutputFormat::PlainFloats {
                self.values(weight, layer)
            } else {
                let count = self.config.experts.as_ref().map_or(0, |experts| experts.count);
                let stacked = self.stacked(&layer.name);
                let fused = stacked.as_ref().map(|stacked| Fused { module: &stacked.module, count });
                let slice = stacked.as_ref().map_or((0, 1), |stacked| (stacked.expert, count));
                OutputDraft::Parts { parts: self.parts(layer, fused, act_order)?, slice }
            };
            Ok((output, self.activations(layer, origin)?))
        })
    }
}

/// A layer with its output, where its shape fits the scheme.
pub(super) fn drafted(
    weight: usize,
    layer: LayerDraft,
    output: impl FnOnce(&LayerDraft) -> Result<(OutputDraft, Vec<ActivationDraft>), PlanError>,
) -> Result<Drafts, PlanError> {
    if let Err(problem) = layer.scheme.weight.check_shape(layer.rows, layer.columns) {
        return Ok(Drafts { misfits: vec![Misfit { layer, problem }], ..Drafts::default() });
    }
    let (output, activations) = output(&layer)?;
    Ok(Drafts::from(vec![Draft::Layer(Box::new(DraftedLayer { weight, layer, output, activations }))]))
}
