//! Input of benchmarks.

/// The same `count` numbers from -1 to 1 in every run.
pub fn values(count: usize) -> Vec<f32> {
    let mut state = 1u32;
    let value = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        f32::from((state >> 16) as i16) / 32768.0
    };
    (0..count).map(value).collect()
}
