//! Asking for memory before it is read. Where the architecture has no such instruction in the standard library, nothing.
#![allow(unsafe_code)]

/// Asks for the cache lines of a slice that will be read soon.
#[inline]
pub(crate) fn prefetch<T>(slice: &[T]) {
    #[cfg(target_arch = "x86_64")]
    for line in 0..size_of_val(slice).div_ceil(64) {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        let address = slice.as_ptr().cast::<i8>().wrapping_add(line * 64);
        // SAFETY: prefetching reads nothing and may be given any address.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(address) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = slice;
}
