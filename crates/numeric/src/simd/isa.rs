//! The instruction sets that kernels are compiled for. Not their choice per kernel: all kernels use the best there is.

use std::sync::OnceLock;

/// An instruction set. A value other than [`Isa::BASELINE`] exists only after the CPU was checked for it, so holding
/// one proves that its instructions may be executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Isa(Level);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    Baseline,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "aarch64")]
    Neon,
}

impl Isa {
    /// What the compiler makes for the baseline of the architecture: SSE2 on x86-64, NEON on aarch64.
    pub const BASELINE: Isa = Isa(Level::Baseline);

    /// The best instruction set of this CPU, found once.
    pub fn best() -> Isa {
        static BEST: OnceLock<Isa> = OnceLock::new();
        *BEST.get_or_init(|| Self::available().last().copied().unwrap_or(Self::BASELINE))
    }

    /// Every instruction set of this CPU, slowest first, but for those that `KVANT_DISABLE_AVX512` and `KVANT_DISABLE_AVX2` switch off,
    /// if these variables of the environment are set to anything but nothing or 0. What needs AVX-512 is off with it, and AVX-512 with AVX2.
    /// `KVANT_DISABLE_NEON` switches off kernels that were written by hand for NEON, and what needs extensions of it.
    pub fn available() -> Vec<Isa> {
        let mut found = vec![Self::BASELINE];
        found.extend(detect());
        found
    }

    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self.0 {
            Level::Baseline => "baseline",
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => "avx512",
            #[cfg(target_arch = "aarch64")]
            Level::Neon => "neon",
        }
    }

    pub(super) fn level(self) -> Level {
        self.0
    }
}

#[cfg(target_arch = "x86_64")]
fn detect() -> Vec<Isa> {
    use std::arch::is_x86_feature_detected as has;
    let avx2 = !is_switched_off("KVANT_DISABLE_AVX2") && has!("avx2") && has!("fma") && has!("bmi1") && has!("bmi2");
    let avx512 = avx2
        && !is_switched_off("KVANT_DISABLE_AVX512")
        && has!("avx512f")
        && has!("avx512bw")
        && has!("avx512dq")
        && has!("avx512vl");
    let levels = [(avx2, Level::Avx2), (avx512, Level::Avx512)];
    levels.into_iter().filter(|(found, _)| *found).map(|(_, level)| Isa(level)).collect()
}

/// Every aarch64 processor has NEON. The level distinguishes kernels that were written by hand; loops are compiled once.
#[cfg(target_arch = "aarch64")]
fn detect() -> Vec<Isa> {
    if is_switched_off("KVANT_DISABLE_NEON") { Vec::new() } else { vec![Isa(Level::Neon)] }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn detect() -> Vec<Isa> {
    Vec::new()
}

/// Returns whether an environment variable disables a feature.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(super) fn is_switched_off(variable: &str) -> bool {
    std::env::var_os(variable).is_some_and(|value| !value.is_empty() && value != "0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn baseline_isa_comes_first_and_best_last() {
        let available = Isa::available();
        assert_eq!(available.first(), Some(&Isa::BASELINE));
        assert_eq!(available.last(), Some(&Isa::best()));
    }
}
