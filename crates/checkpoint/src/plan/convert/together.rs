//! Layers that the target holds one by one, and whose configuration cannot state them together: AWQ has one group size, fp8 one
//! scheme. Where loss is accepted, all of them get what one of them has; the one is chosen with which most weights keep their codes.

use super::{StoredDefaults, Task, way_out};
use crate::plan::draft::{self, DraftedLayer, Drafts};
use crate::plan::error::PlanError;
use crate::plan::quantization_config::can_say;
use crate::plan::recognised::Recognised;
use crate::plan::{PackedUse, SourceStorage};
use kvant_quant::scheme::{Axis, Granularity, LayerScheme, TensorScheme};
use kvant_weights::parts::CannotHold;

impl Recognised<'_> {
    /// Layers that the target's configuration states together: these, or, where loss is accepted, requantized ones.
    pub(super) fn stated_together(&self, task: &Task<'_, '_>, layers: Drafts) -> Result<Drafts, PlanError> {
        let all = schemes(&layers);
        let Err(problem) = can_say(self.format, &self.recipe, &all) else { return Ok(layers) };
        let requantize = task.conversion.requantize;
        if let Some(others) = requantize.then(|| self.with_a_reference(task, &layers)).flatten() {
            return Ok(others);
        }
        Err(self.refuse_together(&layers, &problem, way_out(requantize)))
    }

    fn refuse_together(&self, layers: &Drafts, problem: &CannotHold, hint: &str) -> PlanError {
        let drafted: Vec<&DraftedLayer> = draft::layers(&layers.drafts).collect();
        let entry = |drafted: &DraftedLayer| (drafted.layer.name.clone(), drafted.layer.scheme);
        let differs = |one: &&&DraftedLayer| {
            let first = drafted.first().map(|first| entry(first));
            let both: Vec<_> = first.into_iter().chain([entry(one)]).collect();
            can_say(self.format, &self.recipe, &both).is_err()
        };
        let at = drafted.iter().find(differs).or(drafted.first());
        let tensor = at.map_or("", |drafted| drafted.layer.source.tensor.as_str());
        self.refusal(tensor, problem.reason.clone(), hint)
    }

    /// Layers that can be stated together with one of them, as it is now.
    fn with_a_reference(&self, task: &Task<'_, '_>, layers: &Drafts) -> Option<Drafts> {
        let mut references: Vec<(String, LayerScheme)> = Vec::new();
        for (name, scheme) in schemes(layers) {
            if references.iter().all(|(_, other)| *other != scheme) {
                references.push((name, scheme));
            }
        }
        // The last of equals counts: that with the smallest groups.
        references
            .sort_by_key(|(_, scheme)| std::cmp::Reverse(tile(scheme.weight).map_or(usize::MAX, |(_, size)| size)));
        let alike = references.into_iter().filter_map(|reference| {
            let defaults = StoredDefaults { tile: tile(reference.1.weight), ..task.defaults };
            let layers = self.convert_layers(&Task { reference: Some(reference), defaults, ..task.clone() }).ok()?;
            can_say(self.format, &self.recipe, &schemes(&layers)).is_ok().then_some(layers)
        });
        alike.max_by_key(weights_with_codes)
    }
}

fn schemes(layers: &Drafts) -> Vec<(String, LayerScheme)> {
    draft::layers(&layers.drafts).map(|drafted| (drafted.layer.name.clone(), drafted.layer.scheme)).collect()
}

/// Rows and columns of a group.
fn tile(scheme: TensorScheme) -> Option<(usize, usize)> {
    match scheme.granularity()? {
        Granularity::Group { axis: Axis::Columns, size: Some(size) } => Some((1, size.get() as usize)),
        _ => None,
    }
}

/// The number of weights that keep their codes.
fn weights_with_codes(layers: &Drafts) -> usize {
    let keeps = |drafted: &&DraftedLayer| {
        matches!(drafted.layer.source.storage, SourceStorage::Packed { packed_use: PackedUse::Codes, .. })
    };
    draft::layers(&layers.drafts).filter(keeps).map(|drafted| drafted.layer.rows * drafted.layer.columns).sum()
}
