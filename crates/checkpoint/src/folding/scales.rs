//! Scales as they pass through the operation between two layers. Not their application.

use kvant_model::network::PairPath;

/// The reason that `scales` cannot be used for `width` inputs, if any.
pub(super) fn fault(scales: &[f32], width: usize) -> Option<String> {
    if scales.len() != width {
        return Some(format!("are {} for {width} channels", scales.len()));
    }
    // Reciprocals are used too.
    let usable = |scale: &f32| *scale > 0.0 && scale.is_normal() && scale.recip().is_normal();
    let channel = scales.iter().position(|scale| !usable(scale))?;
    Some(format!("are not positive numbers: channel {channel} has {}", scales[channel]))
}

/// The scales that can be moved: those of the query heads that read one key/value head are made equal, to their maximum.
pub(super) fn passable(through: PairPath, scales: &[f32]) -> Vec<f32> {
    of_consumers(through, &of_source(through, scales), scales.len())
}

/// The scale of each of the `width` channels that consumers read, from those of the source's channels.
pub(super) fn of_consumers(through: PairPath, of_source: &[f32], width: usize) -> Vec<f32> {
    let PairPath::Heads { head_dim, repeat } = through else { return of_source.to_vec() };
    (0..width).map(|at| of_source[at / (head_dim * repeat) * head_dim + at % head_dim]).collect()
}

/// The scale of each channel of the source: with heads, the maximum over those that read it.
pub(super) fn of_source(through: PairPath, scales: &[f32]) -> Vec<f32> {
    let PairPath::Heads { head_dim, repeat } = through else { return scales.to_vec() };
    let shared = scales.chunks((head_dim * repeat).max(1));
    shared.flat_map(|heads| (0..head_dim).map(|j| largest(heads.iter().skip(j).step_by(head_dim)))).collect()
}

fn largest<'s>(scales: impl Iterator<Item = &'s f32>) -> f32 {
    scales.copied().fold(0.0, f32::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_sharing_values_share_scales() {
        let heads = PairPath::Heads { head_dim: 2, repeat: 3 };
        let scales = [1.0, 8.0, 3.0, 2.0, 2.0, 5.0, 9.0, 1.0, 1.0, 1.0, 4.0, 6.0];
        assert_eq!(of_source(heads, &scales), [3.0, 8.0, 9.0, 6.0]);
        let even = passable(heads, &scales);
        assert_eq!(even, [3.0, 8.0, 3.0, 8.0, 3.0, 8.0, 9.0, 6.0, 9.0, 6.0, 9.0, 6.0]);
        assert_eq!(passable(heads, &even), even);
        assert_eq!(passable(PairPath::Norm, &scales), scales);
    }

    #[test]
    fn scales_must_be_positive_and_finite() {
        assert_eq!(fault(&[1.0, 0.5], 2), None);
        assert!(fault(&[1.0], 2).unwrap().contains("1 for 2"));
        for bad in [0.0, -1.0, f32::NAN, f32::INFINITY, 1e-45] {
            assert!(fault(&[1.0, bad], 2).unwrap().contains("channel 1"));
        }
    }
}
