//! Rounds layers of a block to nearest: where nothing else is requested, and where an algorithm has too little data.

use super::error::BlockwiseError;
use super::report::LayerReport;
use super::rounding::{STRIP, SharedInputGroup};
use super::run::Blockwise;
use super::work::Work;
use crate::plan::LayerId;
use crate::plan::PlannedLayer;
use kvant_numeric::simd::Isa;
use kvant_quant::QuantTensor;
use kvant_quant::rounding::{RoundingError, Rtn, TensorContext};
use kvant_weights::weight::{Band, BandAxis, WeightMatrix, bands};
use rayon::prelude::*;

impl<'a> Blockwise<'_, 'a> {
    /// Rounds a layer to nearest; `starved` says why not otherwise.
    pub(super) fn to_nearest(
        &self,
        work: &mut Work<'_, '_, 'a>,
        readers: &SharedInputGroup,
        index: LayerId,
        starved: Option<&(u64, String)>,
    ) -> Result<(), BlockwiseError> {
        self.engine.check_cancelled()?;
        let layer = self.plan.layer(index);
        let (matrix, context) = self.to_round(work, index)?;
        let tensor = self.nearest(layer, &matrix, context)?;
        if let Some((tokens, _)) = starved {
            work.starve(layer, *tokens, "rounded to nearest");
        }
        let seen = work.inputs.get(&readers.module).map(|inputs| inputs.statistic.tokens());
        let losses = self.losses(work, &readers.module, index, &tensor)?;
        let report = LayerReport {
            layer: layer.name.clone(),
            algorithm: "rtn".to_owned(),
            tokens: starved.map(|(tokens, _)| *tokens).or(seen).unwrap_or(self.tokens),
            held_out: losses.and_then(|losses| losses.held_out),
            loss_rtn: losses.map(|losses| losses.nearest),
            loss: losses.map(|losses| losses.chosen),
            damping: None,
            dead_columns: 0,
            note: match starved {
                Some((_, problem)) => Some(format!("rounded to nearest: {problem}")),
                None => work.report.scarcity(&layer.name),
            },
        };
        self.finish(work, readers, index, tensor, report)
    }

    /// The weight rounded to nearest, band by band.
    pub(super) fn nearest(
        &self,
        layer: &PlannedLayer,
        matrix: &WeightMatrix<'_>,
        context: TensorContext,
    ) -> Result<QuantTensor, BlockwiseError> {
        let rounded = nearest(self.engine.isa, layer, matrix, context);
        Ok(rounded.map_err(|problem| self.engine.rounding_error(layer, matrix, problem))?)
    }
}

/// A weight rounded to nearest, band by band.
///
/// # Errors
/// Values that have no codes.
pub(crate) fn nearest(
    isa: Isa,
    layer: &PlannedLayer,
    matrix: &WeightMatrix<'_>,
    context: TensorContext,
) -> Result<QuantTensor, RoundingError> {
    let rtn = Rtn::new(layer.scheme.weight, context)?.on(isa);
    let axis = if layer.is_searched_whole() { BandAxis::Whole } else { BandAxis::Rows };
    let bands = bands(matrix.rows, matrix.columns, axis, layer.tile_rows(), STRIP);
    let round = |values: &mut Vec<f32>, band: &Band| {
        values.clear();
        matrix.read(isa, band, values);
        rtn.round(values, band.rows.len(), band.columns.len())
    };
    let parts: Vec<_> = bands.par_iter().map_init(Vec::new, round).collect::<Result<_, _>>()?;
    let mut parts = parts.into_iter();
    let mut whole = parts.next().unwrap_or_else(|| rtn.empty(matrix.columns));
    parts.try_for_each(|part| whole.append_rows(part))?;
    Ok(whole)
}
