//! Running a loop that was compiled once per instruction set.
#![allow(unsafe_code)]

use super::isa::{Isa, Level};

/// A loop to be compiled for every instruction set. `run` and all that it calls must be `#[inline(always)]`: code that is
/// not inlined is compiled for the baseline only.
pub trait Loop {
    /// The result of the loop.
    type Output;

    /// The body: plain safe Rust in a shape that the compiler turns into vectors.
    fn run(self) -> Self::Output;
}

/// Runs `body` in its variant for `isa`. All variants compute the same bits: Rust neither reorders nor fuses float
/// operations.
pub fn dispatch<L: Loop>(isa: Isa, body: L) -> L::Output {
    match isa.level() {
        Level::Baseline => body.run(),
        // SAFETY: an `Isa` of this level exists only where all of the variant's features were detected on this CPU.
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => unsafe { run_avx2(body) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => unsafe { run_avx512(body) },
        // NEON is the baseline.
        #[cfg(target_arch = "aarch64")]
        Level::Neon => body.run(),
    }
}

/// [`dispatch`] for long bodies that gain nothing from vectors of more than 256 bits, so that they are not compiled for
/// them.
pub(crate) fn dispatch_256<L: Loop>(isa: Isa, body: L) -> L::Output {
    match isa.level() {
        Level::Baseline => body.run(),
        // SAFETY: an `Isa` of these levels exists only where all features of AVX2's variant were detected on this CPU.
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 | Level::Avx512 => unsafe { run_avx2(body) },
        // NEON is the baseline.
        #[cfg(target_arch = "aarch64")]
        Level::Neon => body.run(),
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,bmi1,bmi2")]
fn run_avx2<L: Loop>(body: L) -> L::Output {
    body.run()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,bmi1,bmi2,avx512f,avx512bw,avx512dq,avx512vl")]
fn run_avx512<L: Loop>(body: L) -> L::Output {
    body.run()
}
