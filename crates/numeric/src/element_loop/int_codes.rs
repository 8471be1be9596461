//! The loop of integer codes.

use super::{Element, ElementLoop};

/// Converts a value to a code: `clamp(rne(value * inverse_scale) + zero_point, min, max)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AffineStep {
    /// `1 / scale`.
    pub inverse_scale: f32,
    /// The code of zero, within the format's range.
    pub zero_point: i32,
}

/// The loop of [`element_codes`](crate::kernel::element_codes).
pub(crate) struct IntCodes<'a> {
    pub(crate) group: usize,
    pub(crate) steps: &'a [AffineStep],
    pub(crate) min: i32,
    pub(crate) max: i32,
    pub(crate) codes: &'a mut [u8],
}

/// 1.5 * 2^23: adding it to a number of magnitude below 2^22 rounds to an integer, half to even, which is then in the
/// low bits of the mantissa.
const TO_INTEGER: f32 = 12_582_912.0;

impl ElementLoop for IntCodes<'_> {
    #[inline(always)]
    fn run<E: Element>(self, elements: &[E::Stored]) {
        let groups = elements.chunks(self.group).zip(self.codes.chunks_mut(self.group));
        for ((elements, codes), step) in groups.zip(self.steps) {
            // Bounds are integers, so clamping before rounding gives what clamping after would.
            let low = (self.min - step.zero_point) as f32;
            let high = (self.max - step.zero_point) as f32;
            for (code, element) in codes.iter_mut().zip(elements) {
                let value = E::widen(E::bits(*element));
                let clamped = (value * step.inverse_scale).max(low).min(high);
                let rounded = (clamped + TO_INTEGER).to_bits() as i32 - TO_INTEGER.to_bits() as i32;
                *code = (rounded + step.zero_point) as u8;
            }
        }
    }
}
