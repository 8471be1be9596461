//! The tile registers and the product in them.
#![allow(unsafe_code)]

use super::detect::Amx;
use crate::simd::tile::{Start, Tile, terms};
use std::arch::asm;
use std::marker::PhantomData;

/// The tile registers of this thread, configured as eight tiles of 16 rows of 64 bytes.
pub(crate) struct Registers {
    /// They belong to a thread.
    _not_sent: PhantomData<*mut ()>,
}

/// The operand of `ldtilecfg`.
#[repr(C, align(64))]
struct Configuration {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

const EIGHT_TILES: Configuration = Configuration {
    palette: 1,
    start_row: 0,
    reserved: [0; 14],
    row_bytes: [64, 64, 64, 64, 64, 64, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0],
    rows: [16, 16, 16, 16, 16, 16, 16, 16, 0, 0, 0, 0, 0, 0, 0, 0],
};

impl Registers {
    /// Configures them until the value is dropped.
    pub(in crate::simd::tile) fn configure(_proof: Amx) -> Registers {
        // SAFETY: the proof says that this process may use AMX; the operand is the 64 bytes that the instruction reads.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &EIGHT_TILES, options(nostack, readonly)) }
        Registers { _not_sent: PhantomData }
    }

    /// See [`Tiles::multiply`](crate::simd::Tiles::multiply).
    pub(in crate::simd::tile) fn multiply(
        &self,
        a: &[[Tile; 2]],
        b: &[[Tile; 2]],
        start: Start,
        sums: &mut [[Tile; 2]; 2],
    ) {
        let terms = terms(a.len(), b.len());
        if terms == 0 {
            return if start == Start::Zero {
                *sums = [[Tile::ZERO; 2]; 2]
            };
        }
        // SAFETY: a value of `Registers` exists only where the registers are configured. Read are `b.len()` times 2048 bytes
        // from `b` and `terms` as many from `a`, which the slices have; read and written are the 4096 bytes of `sums`.
        // Rust uses no tile registers.
        unsafe {
            asm!(
                "test {from_zero}, {from_zero}",
                "jz 2f",
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                "jmp 3f",
                "2:",
                "tileloadd tmm0, [{sums} + {row}]",
                "tileloadd tmm1, [{sums} + {row} + 1024]",
                "tileloadd tmm2, [{sums} + {row} + 2048]",
                "tileloadd tmm3, [{sums} + {row} + 3072]",
                "3:",
                ".p2align 4",
                "4:",
                "tileloadd tmm6, [{b} + {row}]",
                "tileloadd tmm7, [{b} + {row} + 1024]",
                "add {b}, 2048",
                "mov {term}, {terms}",
                "5:",
                "tileloadd tmm4, [{a} + {row}]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm5, [{a} + {row} + 1024]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "add {a}, 2048",
                "dec {term}",
                "jnz 5b",
                "dec {steps}",
                "jnz 4b",
                "tilestored [{sums} + {row}], tmm0",
                "tilestored [{sums} + {row} + 1024], tmm1",
                "tilestored [{sums} + {row} + 2048], tmm2",
                "tilestored [{sums} + {row} + 3072], tmm3",
                a = inout(reg) a.as_ptr() => _,
                b = inout(reg) b.as_ptr() => _,
                steps = inout(reg) b.len() => _,
                term = out(reg) _,
                terms = in(reg) terms,
                sums = in(reg) sums.as_mut_ptr(),
                from_zero = in(reg) usize::from(start == Start::Zero),
                row = in(reg) 64_usize,
                options(nostack),
            );
        }
    }
}

impl Drop for Registers {
    fn drop(&mut self) {
        // SAFETY: the registers were configured on this thread, so the process may use AMX.
        unsafe { asm!("tilerelease", options(nostack, nomem)) }
    }
}
