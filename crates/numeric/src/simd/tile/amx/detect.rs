//! Whether this process may use AMX: the CPU has it, the system permits it, and it is not disabled.
#![allow(unsafe_code)]

use crate::simd::Isa;
use crate::simd::isa::is_switched_off;
use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count};
use std::sync::OnceLock;

/// The proof that this process may use AMX for bfloat16, and AVX-512.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Amx(());

impl Amx {
    /// The proof, if there is one. Found once.
    pub(in crate::simd::tile) fn get() -> Option<Amx> {
        static FOUND: OnceLock<bool> = OnceLock::new();
        let is_off = || is_switched_off("KVANT_DISABLE_AMX");
        let found = *FOUND.get_or_init(|| !is_off() && Isa::best().avx512().is_some() && in_cpu() && permitted());
        found.then_some(Amx(()))
    }
}

/// AMX-BF16 and AMX-TILE are bits 22 and 24 of register D in leaf 7.
fn in_cpu() -> bool {
    const BITS: u32 = 1 << 22 | 1 << 24;
    // Newer compilers know that every x86-64 has the instruction, and these functions as safe.
    #[allow(unused_unsafe)]
    // SAFETY: as just said; leaf 7 is read where leaf 0 says that it is there.
    let features = unsafe { if __cpuid(0).eax >= 7 { __cpuid_count(7, 0).edx } else { 0 } };
    features & BITS == BITS
}

/// Asks Linux for the use of tile data by this process, which holds for all its threads.
fn permitted() -> bool {
    const ARCH_PRCTL: i64 = 158;
    const REQUEST_PERMISSION: i64 = 0x1023;
    const TILE_DATA: i64 = 18;
    let answer: i64;
    // SAFETY: the call reads and writes no memory of ours; the kernel changes rax, rcx and r11 alone.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") ARCH_PRCTL => answer,
            in("rdi") REQUEST_PERMISSION,
            in("rsi") TILE_DATA,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    answer == 0
}
