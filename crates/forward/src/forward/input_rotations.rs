//! What layers read, as hooks see it and as the checkpoint rotates it. Its rotations are checked against its layers.

use super::blueprint::{Block, Blueprint};
use super::error::ForwardError;
use super::hook::ActivationPoint;
use super::options::{Flow, StopAt};
use super::run::Run;
use super::spans::Spans;
use super::tensors::Projection;
use kvant_formats::import::{Import, InputRotations};
use kvant_quant::rotation::Rotation;
use rayon::prelude::*;
use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::HashMap;
use std::ops::ControlFlow;

/// The rotations of a checkpoint, all of which are of layers in blocks.
///
/// # Errors
///
/// [`ForwardError::Unsupported`] for those of other layers, and where the channels are not those of the layer.
pub(super) fn of_layers(import: &Import<'_>, blueprint: &Blueprint) -> Result<InputRotations, ForwardError> {
    let rotations = import.input_rotations();
    if rotations.is_empty() {
        return Ok(InputRotations::new());
    }
    let layers = blueprint.blocks.iter().flat_map(Block::layers);
    let columns: HashMap<&str, usize> = layers.map(|layer| (layer.module.as_str(), layer.columns)).collect();
    for (module, rotation) in rotations {
        let fits = |columns: &usize| columns.is_multiple_of(rotation.channels());
        if !columns.get(module.as_str()).is_some_and(fits) {
            let what = format!("rotated inputs of {module}, which is no layer of a block with so many inputs");
            return Err(ForwardError::unsupported(what));
        }
    }
    Ok(rotations.clone())
}

impl Run<'_, '_> {
    /// Whether the run ends before these layers, which read rows `x` at a depth. Where it ends just there, the rows are
    /// shown.
    pub(super) fn enter(&self, depth: StopAt, layers: &[&Projection], x: &[f32], spans: Spans<'_>) -> Flow<()> {
        self.enter_with(depth, || layers.iter().for_each(|layer| self.show_input(layer, x, spans)))
    }

    /// The same before a layer that reads rows `x`, which are rotated already where its inputs are.
    pub(super) fn enter_read(&self, depth: StopAt, layer: &Projection, x: &[f32], spans: Spans<'_>) -> Flow<()> {
        self.enter_with(depth, || self.show(ActivationPoint::Input(&layer.module), x, layer.columns, spans))
    }

    fn enter_with(&self, depth: StopAt, show: impl FnOnce()) -> Flow<()> {
        let order = self.with.until.map_or(Ordering::Less, |until| depth.cmp(&until));
        if order == Ordering::Equal {
            show();
        }
        if order == Ordering::Less { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    }

    /// Shows what a layer reads of rows `x`.
    pub(super) fn show_input(&self, layer: &Projection, x: &[f32], spans: Spans<'_>) {
        let site = ActivationPoint::Input(&layer.module);
        if self.with.tap.is_some_and(|tap| tap.wants(site)) {
            self.show(site, &self.rotated(layer, x), layer.columns, spans);
        }
    }

    /// What a layer reads of rows `x`: rotated, where the checkpoint rotates its inputs.
    pub(super) fn rotated<'x>(&self, layer: &Projection, x: &'x [f32]) -> Cow<'x, [f32]> {
        let Some(rotation) = self.decoder.rotations.get(&layer.module) else { return Cow::Borrowed(x) };
        let mut rows = self.buffers.copy(x);
        self.rotate_rows(rotation, &mut rows, layer.columns, Rotation::apply);
        Cow::Owned(rows)
    }

    /// Rotates rows of `columns` elements, by groups of as many as the rotation has channels, in f64. `apply` says how.
    pub(super) fn rotate_rows(
        &self,
        rotation: &Rotation,
        rows: &mut [f32],
        columns: usize,
        apply: fn(&Rotation, &mut [f64], &mut Vec<f64>),
    ) {
        let precision = self.ops.precision();
        rows.par_chunks_mut(columns.max(1)).for_each_init(
            || (Vec::new(), Vec::new()),
            |(wide, scratch), row| {
                wide.clear();
                wide.extend(row.iter().map(|value| f64::from(*value)));
                wide.chunks_exact_mut(rotation.channels()).for_each(|group| apply(rotation, group, scratch));
                row.iter_mut().zip(&*wide).for_each(|(value, wide)| *value = precision.round(*wide as f32));
            },
        );
    }
}
