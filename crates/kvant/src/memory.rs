//! The available memory of this machine, as far as the system states it in files, and the note about too little memory.

use crate::text::size;
use std::fs;

/// Available bytes, of the machine or of the container that the process runs in; `None` if no file states them.
pub fn available() -> Option<u64> {
    let of_machine = kilobytes(&fs::read_to_string("/proc/meminfo").ok()?, "MemAvailable:")?.checked_mul(1024)?;
    let limit = fs::read_to_string("/sys/fs/cgroup/memory.max").ok();
    let limit = limit.and_then(|limit| limit.trim().parse().ok());
    Some(of_machine.min(limit.unwrap_or(u64::MAX)))
}

/// What the program takes beside its work: stacks, tables, and what allocators keep. One run took 44 MB on Linux where the bands of its
/// plan were 31.5 MB (docs/benchmarks/speed.md); this is that difference, rounded up.
pub const PROGRAM: u64 = 16 << 20;

/// What a run takes at most.
#[derive(Clone, Copy, Debug)]
pub struct PeakMemory {
    /// Bytes of private memory.
    pub bytes: u64,
    /// The threads with which it does.
    pub threads: usize,
}

/// A line of `/proc/meminfo`.
fn kilobytes(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()?.parse().ok()
}

/// The note before a calibrated run that may take `needed` bytes.
pub fn shortage(needed: u64, available: Option<u64>) -> Option<String> {
    let available = available.filter(|available| needed > *available)?;
    Some(format!(
        "this may take {} of memory, and only {} are available: a smaller ‹max-memory› takes less and more passes, rtn and awq keep no \
         Hessians",
        size::bytes(needed),
        size::bytes(available)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo_lines_are_parsed() {
        let text = "MemTotal:       24689412 kB\nMemAvailable:   22000000 kB\n";
        assert_eq!(kilobytes(text, "MemAvailable:"), Some(22_000_000));
        assert_eq!(kilobytes("MemAvailable: much", "MemAvailable:"), None);
        assert_eq!(kilobytes(text, "SwapFree:"), None);
    }

    #[test]
    fn only_a_memory_shortage_is_reported() {
        assert_eq!(shortage(10, Some(10)), None);
        assert_eq!(shortage(10, None), None);
        assert!(shortage(3_000_000_000, Some(2_000_000_000)).unwrap().starts_with("this may take 3.0 GB"));
    }
}
