//! The inputs of a step: a mix of the quantized and the float model's, drawn for each sample of each step.
//!
//! Source: the option `drop_ratio` of AMD Quark; Wei et al., QDrop: Randomly Dropping Quantization for Extremely Low-bit
//! Post-Training Quantization, arXiv 2203.05740.

use kvant_quant::random::{self, SplitMix64};
use kvant_quant::reconstruction::InputMix;

use crate::data::Array;

/// The input of a draw. `None` if the models' inputs differ in shape or are not floats: the quantized model's is used then.
pub(super) fn mixed(mix: InputMix, quantized: &Array<'_>, float: &Array<'_>, draw: u64) -> Option<Array<'static>> {
    let (from, to) = (float.f32s()?, quantized.f32s()?);
    if float.shape() != quantized.shape() {
        return None;
    }
    let mut random = SplitMix64::new(random::mix(mix.seed, [draw, 0, 0]));
    let ratio = f64::from(mix.ratio);
    let mixed = to.iter().zip(from).map(|(&q, &f)| if random.uniform() < ratio { q } else { f });
    Array::of(quantized.shape().to_vec(), mixed.collect::<Vec<f32>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mix_ratio_decides_the_share_of_quantized_elements() {
        let array = |value: f32| Array::of(vec![10, 100], vec![value; 1000]).unwrap();
        let ones = |ratio: f32, draw: u64| {
            let mix = InputMix::new(ratio, 7).unwrap();
            let mixed = mixed(mix, &array(1.0), &array(0.0), draw).unwrap();
            mixed.f32s().unwrap().to_vec()
        };
        assert_eq!(InputMix::new(1.0, 7), None);
        assert_eq!(ones(0.0, 3).iter().sum::<f32>(), 0.0);
        assert!((ones(0.3, 3).iter().sum::<f32>() - 300.0).abs() < 60.0);
        // The same draw is the same mixture, another one is another.
        assert_eq!(ones(0.5, 3), ones(0.5, 3));
        assert_ne!(ones(0.5, 3), ones(0.5, 4));
        let other = Array::of(vec![1000], vec![0.0; 1000]).unwrap();
        assert!(mixed(InputMix::new(0.5, 7).unwrap(), &array(1.0), &other, 0).is_none());
    }
}
