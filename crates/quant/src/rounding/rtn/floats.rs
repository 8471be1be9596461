//! Round to nearest of floats: the scale of every tile from its largest magnitude or by a search, then codes; and of integers on
//! a grid of floats.

use super::grid::FloatGrid;
use super::{Groups, RoundingError, Rtn, Strip, TensorContext, grown};
use crate::observer::{ObservedValues, ObserverRef};
use crate::parameters::Affine;
use crate::quant_tensor::{Codes, QuantTensor};
use crate::rounding::batch::{Divisors, Scales};
use crate::rounding::tiles::Tiles;
use crate::scheme::{FloatScale, FloatScheme, Granularity, IntScheme, TensorScheme};
use kvant_numeric::ComputeDType;
use kvant_numeric::kernel::{Elements, Scaling, encode_elements};
use kvant_numeric::simd::dispatch;

impl Rtn {
    pub(super) fn append_float(
        &self,
        scheme: FloatScheme,
        strip: Strip<'_>,
        groups: &mut Groups,
        out: &mut QuantTensor,
    ) -> Result<(), RoundingError> {
        let tiles = strip.tiles(scheme.granularity);
        self.find_abs_maxima(strip, &tiles, groups)?;
        let global_scale = scheme.global_scale(self.tensor_amax(&groups.amaxes));
        if scheme.granularity == Granularity::Tensor {
            out.scales.clear();
        }
        let scales = grown(&mut out.scales, tiles.count);
        self.find_scales(scheme, strip, &tiles, &groups.amaxes, global_scale, scales)?;
        groups.divisors.resize(tiles.count, 0.0);
        dispatch(self.isa, Divisors { scales, global_scale, divisors: &mut groups.divisors });
        if let Codes::Bytes(codes) = &mut out.codes {
            self.float_codes(scheme, strip, &tiles, &groups.divisors, grown(codes, strip.elements.len()));
        }
        out.global_scale = global_scale;
        Ok(())
    }

    fn find_scales(
        &self,
        scheme: FloatScheme,
        strip: Strip<'_>,
        tiles: &Tiles,
        amaxes: &[f32],
        global_scale: Option<f32>,
        scales: &mut [f32],
    ) -> Result<(), RoundingError> {
        let (arithmetic, global_scale) = (self.context.arithmetic, global_scale.unwrap_or(1.0));
        if scheme.observer == ObserverRef::MIN_MAX {
            dispatch(self.isa, Scales { scheme, arithmetic, global_scale, amaxes, scales });
            return Ok(());
        }
        if scheme.observer == ObserverRef::SEARCH {
            dispatch(self.isa, Scales { scheme, arithmetic, global_scale, amaxes, scales: &mut *scales });
            let mut affines: Vec<Affine> =
                scales.iter().map(|scale| Affine { scale: *scale, zero_point: 0.0 }).collect();
            self.search(TensorScheme::Float(scheme), Some(global_scale), strip, tiles, &mut affines)?;
            scales.iter_mut().zip(affines).for_each(|(scale, found)| *scale = found.scale);
            return Ok(());
        }
        let values = strip.values(self.isa);
        let grid = FloatGrid { scheme, arithmetic, global_scale };
        for (tile, out) in scales.iter_mut().enumerate() {
            let values = tiles.gather(&values, tile);
            *out = grid.scale(scheme.observer.range(&ObservedValues::values(&values), &grid));
        }
        Ok(())
    }

    fn float_codes(&self, scheme: FloatScheme, strip: Strip<'_>, tiles: &Tiles, divisors: &[f32], codes: &mut [u8]) {
        let scaling = self.scaling(scheme);
        for run in tiles.runs(codes.len()) {
            let elements = strip.elements.slice(run.elements.clone());
            let (divisors, codes) = (&divisors[run.scales], &mut codes[run.elements]);
            encode_elements(self.isa, scheme.format, scaling, elements, tiles.columns, divisors, codes);
        }
    }

    /// How values are brought to their scale.
    pub(in crate::rounding) fn scaling(&self, scheme: FloatScheme) -> Scaling {
        match scheme.scale {
            FloatScale::E8m0(_) => Scaling::PowerOfTwo,
            FloatScale::Plain(scale) if !matches!(scheme.granularity, Granularity::Group { .. }) => {
                Scaling::Divide(scale.arithmetic(self.context.arithmetic))
            }
            _ => Scaling::Divide(ComputeDType::F32),
        }
    }

    pub(super) fn append_progressive(
        &self,
        first: FloatScheme,
        second: IntScheme,
        strip: Strip<'_>,
        groups: &mut Groups,
        out: &mut QuantTensor,
    ) -> Result<(), RoundingError> {
        self.find_abs_maxima(strip, &strip.tiles(first.granularity), groups)?;
        let global_scale = first.scale(self.tensor_amax(&groups.amaxes), self.context.arithmetic, 1.0);
        // The quotient is rounded to the model's type even under an f32 scale, as PyTorch does with a scalar divisor.
        let scaling = Scaling::Divide(self.context.arithmetic);
        let count = strip.elements.len();
        let mut stage = vec![0; count];
        encode_elements(self.isa, first.format, scaling, strip.elements, count.max(1), &[global_scale], &mut stage);
        let on_grid: Vec<f32> = stage.iter().map(|code| first.format.decode(*code)).collect();
        let whole = Rtn { context: TensorContext::new(self.context.arithmetic), ..*self };
        whole.append_int(second, Strip { elements: Elements::Values(&on_grid), ..strip }, groups, out)?;
        out.global_scale = Some(global_scale);
        Ok(())
    }
}
