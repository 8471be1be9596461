//! Round to nearest of integers: scale and zero point of every tile from its range or by a search, then codes.

use super::grid::IntGrid;
use super::{Groups, RoundingError, Rtn, Strip, grown};
use crate::observer::{ObservedValues, ObserverRef};
use crate::parameters::{Affine, quantize};
use crate::quant_tensor::{Codes, QuantTensor};
use crate::rounding::batch::{Affines, Steps};
use crate::rounding::tiles::Tiles;
use crate::scheme::{Granularity, IntScheme, ScaleType, TensorScheme, ZeroPoint};
use kvant_numeric::kernel::{AffineStep, Range, element_codes};
use kvant_numeric::simd::dispatch;

impl Rtn {
    pub(super) fn append_int(
        &self,
        scheme: IntScheme,
        strip: Strip<'_>,
        groups: &mut Groups,
        out: &mut QuantTensor,
    ) -> Result<(), RoundingError> {
        let tiles = strip.tiles(scheme.granularity);
        self.find_ranges(scheme, strip, &tiles, groups)?;
        self.find_affines(scheme, strip, &tiles, groups)?;
        match &mut out.codes {
            Codes::Bytes(codes) if scheme.zero_point != ZeroPoint::Float => {
                self.byte_codes(scheme, strip, &tiles, groups, codes);
            }
            codes => plain_codes(scheme, &strip.values(self.isa), &tiles, &groups.affines, codes),
        }
        if scheme.granularity != Granularity::Tensor || out.scales.is_empty() {
            out.scales.extend(groups.affines.iter().map(|a| a.scale));
            out.zero_points.extend(groups.affines.iter().filter(|_| scheme.has_zero_points()).map(|a| a.zero_point));
        }
        Ok(())
    }

    fn find_affines(
        &self,
        scheme: IntScheme,
        strip: Strip<'_>,
        tiles: &Tiles,
        groups: &mut Groups,
    ) -> Result<(), RoundingError> {
        let arithmetic = self.context.arithmetic;
        let Groups { ranges, affines, .. } = groups;
        affines.resize(ranges.len(), Affine { scale: 1.0, zero_point: 0.0 });
        if [ObserverRef::MIN_MAX, ObserverRef::SEARCH].contains(&scheme.observer) {
            dispatch(self.isa, Affines { scheme, arithmetic, ranges, affines });
            return if scheme.observer == ObserverRef::SEARCH {
                self.search(TensorScheme::Int(scheme), None, strip, tiles, affines)
            } else {
                Ok(())
            };
        }
        let values = strip.values(self.isa);
        for (tile, (affine, range)) in affines.iter_mut().zip(ranges).enumerate() {
            *affine = self.searched_affine(scheme, &tiles.gather(&values, tile), *range);
        }
        Ok(())
    }

    fn searched_affine(&self, scheme: IntScheme, values: &[f32], range: Range) -> Affine {
        let arithmetic = self.context.arithmetic;
        if scheme.observer == ObserverRef::MSE && scheme.scale == ScaleType::PowerOfTwo {
            return scheme.best_power_of_two(values, range);
        }
        let range = scheme.observer.range(&ObservedValues::values(values), &IntGrid { scheme, arithmetic });
        scheme.parameters(range, arithmetic)
    }

    fn byte_codes(&self, scheme: IntScheme, strip: Strip<'_>, tiles: &Tiles, groups: &mut Groups, codes: &mut Vec<u8>) {
        let Groups { affines, steps, .. } = groups;
        steps.resize(affines.len(), AffineStep { inverse_scale: 1.0, zero_point: 0 });
        dispatch(self.isa, Steps { affines, steps });
        let codes = grown(codes, strip.elements.len());
        for run in tiles.runs(codes.len()) {
            let elements = strip.elements.slice(run.elements.clone());
            element_codes(
                self.isa,
                scheme.format,
                elements,
                tiles.columns,
                &steps[run.scales],
                &mut codes[run.elements],
            );
        }
    }
}

fn plain_codes(scheme: IntScheme, values: &[f32], tiles: &Tiles, affines: &[Affine], out: &mut Codes) {
    let code = |(i, v): (usize, &f32)| {
        let affine = affines[tiles.tile_of(i)];
        quantize(scheme.format, *v, 1.0 / affine.scale, affine.zero_point)
    };
    let codes = values.iter().enumerate().map(code);
    match out {
        Codes::Bytes(bytes) => bytes.extend(codes.map(|c| c as u8)),
        Codes::Wide(wide) => wide.extend(codes),
    }
}
