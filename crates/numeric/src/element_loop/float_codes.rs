//! The loop of codes of small floats.

use super::{Element, ElementLoop};
use crate::arithmetic::{ComputeDType, round_to_bf16, round_to_f16};
use crate::format::{Encoder, MiniFloat};

/// How a value is brought to its scale before it is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scaling {
    /// `value * (1 / scale)`, exact for powers of two: what MX formats need, and faster.
    PowerOfTwo,
    /// `value / scale`, and the quotient rounded to the given precision, as a tool does that divides in the model's type.
    Divide(ComputeDType),
}

/// The loop of [`encode_elements`](crate::kernel::encode_elements).
pub(crate) struct FloatCodes<'a> {
    pub(crate) format: MiniFloat,
    pub(crate) scaling: Scaling,
    pub(crate) group: usize,
    pub(crate) scales: &'a [f32],
    pub(crate) codes: &'a mut [u8],
}

impl ElementLoop for FloatCodes<'_> {
    #[inline(always)]
    fn run<E: Element>(self, elements: &[E::Stored]) {
        match self.scaling {
            Scaling::PowerOfTwo => self.each::<E>(elements, |value, _, inverse| value * inverse),
            Scaling::Divide(ComputeDType::F32) => self.each::<E>(elements, |value, scale, _| value / scale),
            Scaling::Divide(ComputeDType::Bf16) => {
                self.each::<E>(elements, |value, scale, _| round_to_bf16(value / scale));
            }
            Scaling::Divide(ComputeDType::F16) => {
                self.each::<E>(elements, |value, scale, _| round_to_f16(value / scale));
            }
        }
    }
}

impl FloatCodes<'_> {
    /// `scaled` gets a value, its scale and the scale's reciprocal.
    #[inline(always)]
    fn each<E: Element>(self, elements: &[E::Stored], scaled: impl Fn(f32, f32, f32) -> f32) {
        let encoder = Encoder::new(self.format);
        let groups = elements.chunks(self.group).zip(self.codes.chunks_mut(self.group));
        for ((elements, codes), scale) in groups.zip(self.scales) {
            let inverse = 1.0 / *scale;
            for (code, element) in codes.iter_mut().zip(elements) {
                let value = E::widen(E::bits(*element));
                *code = encoder.encode(scaled(value, *scale, inverse));
            }
        }
    }
}
