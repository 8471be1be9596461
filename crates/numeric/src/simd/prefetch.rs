//! Asking for memory before it is read. Nothing where Rust has no means for it.
#![allow(unsafe_code)]

/// Asks for the cache lines of a slice that will be read soon.
#[inline]
pub(crate) fn prefetch<T>(slice: &[T]) {
    for line in 0..size_of_val(slice).div_ceil(64) {
        prefetch_line(slice.as_ptr().cast::<i8>().wrapping_add(line * 64));
    }
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn prefetch_line(address: *const i8) {
    use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
    // SAFETY: prefetching reads nothing and may be given any address.
    unsafe { _mm_prefetch::<_MM_HINT_T1>(address) }
}

/// Rust has no stable name for the instruction.
#[cfg(target_arch = "aarch64")]
#[inline(always)]
fn prefetch_line(address: *const i8) {
    // SAFETY: prefetching reads nothing and may be given any address.
    unsafe { std::arch::asm!("prfm pldl2keep, [{}]", in(reg) address, options(nostack, preserves_flags, readonly)) }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
#[inline(always)]
fn prefetch_line(_: *const i8) {}
