//! Convolutions, embeddings and layers of towers: quantized to nearest where the recipe gives their kind, or one of them, a scheme.

use super::activation_points::{LayerOrigin, is_static};
use super::draft::{Draft, Drafts, KeptDraft, OutputDraft, drafted};
use super::error::PlanError;
use super::layer::{LayerDraft, SourceStorage};
use super::misfits::{DOES_NOT_FIT, stays};
use super::names;
use super::recognised::Recognised;
use kvant_formats::format::OutputFormat;
use kvant_model::network::{LayerKind, Place, ShapedLayer};
use kvant_quant::counts::number;
use kvant_quant::scheme::{Granularity, LayerScheme};
use kvant_weights::parts::{CannotHold, Content, Packing, Part};
use std::collections::BTreeMap;

const PLAIN_FLOATS: &str =
    "give it int8 or fp8 with a scale for the tensor or each channel, or write floats with ‹format› fake";

impl Recognised<'_> {
    /// What becomes of convolutions and embeddings. None are there where the recipe says nothing of them.
    pub(super) fn draft_shaped(&self) -> Result<Drafts, PlanError> {
        let schemes: Vec<_> =
            self.shaped.iter().map(|layer| self.recipe.decide_shaped(layer.kind, &layer.module)).collect();
        self.refuse_absent_kinds()?;
        if schemes.iter().all(Option::is_none) {
            return Ok(Drafts::default());
        }
        let both = self.shaped.iter().zip(schemes);
        let notices = self.misfits_of_towers(both.clone())?;
        let draft = |(layer, scheme): (&ShapedLayer, Option<LayerScheme>)| match scheme {
            Some(scheme) => self.quantize_shaped(layer, self.recipe.fitted(scheme)),
            // Loaders take the scheme of most layers for that of all that are not excluded.
            None => {
                let module = Some(layer.module.clone());
                let kept = self.copy(layer.weight, names::reason(self.place(layer)));
                Ok(Drafts::from(vec![Draft::Kept(KeptDraft { module, ..kept })]))
            }
        };
        let drafts = Drafts::join(both.map(draft))?;
        Ok(Drafts { notices: drafts.notices.into_iter().chain(notices).collect(), ..drafts })
    }

    /// Notes which layers of towers stay because their schemes do not fit.
    ///
    /// # Errors
    /// Where that is all of them.
    fn misfits_of_towers<'l>(
        &self,
        layers: impl Iterator<Item = (&'l ShapedLayer, Option<LayerScheme>)>,
    ) -> Result<Vec<String>, PlanError> {
        let towers: Vec<_> = layers.filter(|(layer, _)| layer.kind == LayerKind::Tower).collect();
        let mut misfits: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (layer, scheme) in &towers {
            if let Some(problem) = scheme.and_then(|scheme| self.misfit_of_tower(layer, self.recipe.fitted(scheme))) {
                misfits.entry(problem).or_default().push(layer.module.clone());
            }
        }
        let asked = towers.iter().filter(|(_, scheme)| scheme.is_some()).count();
        if let Some(((layer, scheme), problem)) =
            towers.iter().find(|(_, scheme)| scheme.is_some()).zip(misfits.keys().next())
            && misfits.values().map(Vec::len).sum::<usize>() == asked
        {
            let hint = "give towers a scheme that fits, e.g. FP8_DYNAMIC or int8:channel".to_owned();
            return Err(PlanError::CannotHold {
                layer: layer.module.clone(),
                scheme: scheme.map(|scheme| scheme.to_string()).unwrap_or_default(),
                problem: CannotHold::new(problem.clone(), hint),
            });
        }
        let note = |(problem, modules): (String, Vec<String>)| format!("{} in floats: {problem}", stays(&modules));
        Ok(misfits.into_iter().map(note).collect())
    }

    fn place(&self, layer: &ShapedLayer) -> Place {
        self.network.places()[layer.weight]
    }

    fn quantize_shaped(&self, layer: &ShapedLayer, scheme: LayerScheme) -> Result<Drafts, PlanError> {
        let refuse = |reason: String, hint: &str| PlanError::CannotHold {
            layer: layer.module.clone(),
            scheme: scheme.to_string(),
            problem: CannotHold::new(reason, hint.to_owned()),
        };
        let has_static = is_static(scheme.input) || is_static(scheme.output);
        if has_static && (self.recipe.statistics().is_none() || layer.kind == LayerKind::Embedding) {
            let reason = format!("activations of a {} layer are not calibrated in files", layer.kind);
            return Err(refuse(
                reason,
                "leave static activations out (`!dynamic`, or weights only), or give their ranges with ‹statistics›",
            ));
        }
        if self.misfit_of_tower(layer, scheme).is_some() {
            let module = Some(layer.module.clone());
            let kept = Draft::Kept(KeptDraft { module, ..self.copy(layer.weight, DOES_NOT_FIT) });
            return Ok(Drafts::from(vec![kept]));
        }
        if layer.kind.is_transposed() && scheme.weight.granularity() != Some(Granularity::Tensor) {
            let reason = "the output channels of a transposed convolution are the second axis of its weight".to_owned();
            return Err(refuse(reason, "give it a scale for the tensor, such as int8:tensor, or use kvant.torch"));
        }
        let is_float = self.format == OutputFormat::PlainFloats;
        let states_tied = self.network.family().is_some() || self.config.tie_word_embeddings == Some(true);
        if self.place(layer) == Place::Embedding && states_tied && self.network.is_tied() && !is_float {
            let reason = "the output head has the same weight, and would read its codes".to_owned();
            return Err(refuse(reason, "keep it, or write floats with ‹format› fake"));
        }
        if !is_float && layer.kind != LayerKind::Tower && !self.format.capabilities().shaped_layers {
            let reason = format!("the format {} holds linear layers", self.format);
            return Err(refuse(
                reason,
                "write floats with ‹format› fake; ‹format› quark has codes of such layers, but no known loader takes them",
            ));
        }
        let storage = self.packed_values(layer.weight).unwrap_or(SourceStorage::Plain);
        let draft = LayerDraft {
            name: self.output_name(&layer.module),
            module: layer.module.clone(),
            role: layer.kind.name(),
            rows: layer.rows,
            columns: layer.columns,
            scheme,
            source: self.source_weight(layer.weight, false, storage)?,
            shares_scale: None,
            fused_rows: None,
        };
        let activations = |draft: &LayerDraft| match has_static {
            true => self.activations(draft, &LayerOrigin::of_shaped(layer)),
            false => Ok(Vec::new()),
        };
        drafted(layer.weight, draft, |draft| {
            if is_float {
                return Ok((self.values(layer.weight, draft), activations(draft)?));
            }
            if layer.kind == LayerKind::Tower {
                let parts = self.parts(draft, None, false)?;
                return Ok((OutputDraft::Parts { parts, slice: (0, 1) }, activations(draft)?));
            }
            let shape = self.tensors[layer.weight].shape();
            let parts = with_shape(self.parts(draft, None, false)?, shape).ok_or_else(|| {
                let reason = format!("the format {} stores codes of a {} layer as bytes", self.format, layer.kind);
                refuse(reason, PLAIN_FLOATS)
            })?;
            Ok((OutputDraft::Parts { parts, slice: (0, 1) }, activations(draft)?))
        })
    }

    /// Why a layer of a tower cannot have the scheme that towers are given, and stays: their sizes follow other rules than those of language
    /// models.
    fn misfit_of_tower(&self, layer: &ShapedLayer, scheme: LayerScheme) -> Option<String> {
        let of_kind = layer.kind == LayerKind::Tower && self.recipe.layer_types().any(|kind| kind == LayerKind::Tower);
        let misfit = scheme.weight.check_shape(layer.rows, layer.columns).err()?;
        of_kind.then(|| misfit.to_string())
    }

    /// Refuses schemes for kinds of layers that the model lacks.
    fn refuse_absent_kinds(&self) -> Result<(), PlanError> {
        let has = |kind: LayerKind| self.shaped.iter().any(|layer| layer.kind == kind);
        match self.recipe.layer_types().find(|kind| !has(*kind)) {
            Some(kind) => Err(PlanError::NoSuchKind { kind: kind.name(), others: self.kinds(|_| true) }),
            None => Ok(()),
        }
    }

    /// The convolutions of the source, in words: `53 conv2d layers`.
    pub(super) fn convolutions(&self) -> Box<[String]> {
        self.kinds(|kind| !matches!(kind, LayerKind::Embedding | LayerKind::Tower))
    }

    /// Convolutions and embeddings, in words.
    fn kinds(&self, is_meant: impl Fn(LayerKind) -> bool) -> Box<[String]> {
        let mut counts: BTreeMap<LayerKind, usize> = BTreeMap::new();
        let meant = self.shaped.iter().filter(|layer| is_meant(layer.kind));
        meant.for_each(|layer| *counts.entry(layer.kind).or_default() += 1);
        counts.into_iter().map(|(kind, count)| number(count, &format!("{kind} layer"))).collect()
    }
}

/// The tensors of a layer whose codes have the shape of its weight; `None` where codes are packed, or have scales for groups.
fn with_shape(mut parts: Vec<Part>, shape: &[usize]) -> Option<Vec<Part>> {
    for part in &mut parts {
        match &part.content {
            Content::Codes { packing: Packing::Bytes, transposed: false } => part.shape = shape.to_vec(),
            Content::Codes { .. } => return None,
            Content::Scales { transposed: true, .. } => return None,
            _ => {}
        }
    }
    Some(parts)
}
