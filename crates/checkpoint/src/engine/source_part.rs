//! Which bytes of the source a job reads: where they are fetched when they are needed, the next jobs' are fetched ahead, and nobody keeps
//! those of a job that is done. A job may read more, and is only slower for it.

use super::Engine;
use crate::plan::{Job, KeptTensor, PlannedLayer, ScalesOfSource, SourceStorage, TensorAction};
use kvant_container::TensorView;
use kvant_container::supply::Held;
use std::ops::Range;

/// A part of a tensor of the source.
pub(super) struct SourcePart<'a> {
    view: TensorView<'a>,
    part: Range<usize>,
}

impl<'a> SourcePart<'a> {
    fn whole(view: TensorView<'a>) -> SourcePart<'a> {
        SourcePart { view, part: 0..view.byte_len() as usize }
    }

    /// Says that the part will be read after those announced before.
    pub fn announce(&self) {
        self.view.announce(self.part.clone());
    }

    /// Keeps the part until the result is dropped.
    pub fn hold(&self) -> Option<Held> {
        self.view.hold(self.part.clone())
    }
}

impl Engine<'_> {
    /// What a job reads of a source that is not quantized, or in a type of floats with scales; nothing where the source is whole.
    pub(super) fn sources(&self, job: &Job) -> Vec<SourcePart<'_>> {
        if !self.checkpoint.is_supplied() {
            return Vec::new();
        }
        match job {
            Job::Layers(layers) => {
                layers.iter().flat_map(|layer| self.sources_of_layer(self.plan.layer(*layer))).collect()
            }
            Job::Keep(kept) => self.sources_of_kept(self.plan.kept_tensor(*kept)),
            Job::Parameters => Vec::new(),
        }
    }

    fn sources_of_layer(&self, layer: &PlannedLayer) -> Vec<SourcePart<'_>> {
        let source = &layer.source;
        let length = layer.rows * layer.columns * source.dtype.size();
        let start = source.expert.unwrap_or(0) * length;
        let weight =
            self.checkpoint.tensor(&source.tensor).map(|view| SourcePart { view, part: start..start + length });
        let scales = match &source.storage {
            SourceStorage::Scaled(scales) => self.scales(scales),
            SourceStorage::Plain | SourceStorage::Packed { .. } => None,
        };
        weight.into_iter().chain(scales).collect()
    }

    fn sources_of_kept(&self, kept: &KeptTensor) -> Vec<SourcePart<'_>> {
        let Some(view) = self.checkpoint.tensor(&kept.source) else { return Vec::new() };
        match &kept.action {
            TensorAction::Copy(range) => vec![SourcePart { view, part: range.clone() }],
            TensorAction::Widen { scales, .. } => {
                [SourcePart::whole(view)].into_iter().chain(self.scales(scales)).collect()
            }
            TensorAction::Dequantize { .. } | TensorAction::Cast { .. } | TensorAction::Round { .. } => {
                vec![SourcePart::whole(view)]
            }
        }
    }

    fn scales(&self, scales: &ScalesOfSource) -> Option<SourcePart<'_>> {
        self.checkpoint.tensor(&scales.tensor).map(SourcePart::whole)
    }
}
