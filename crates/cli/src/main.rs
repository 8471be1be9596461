//! The binary `kvant`: the command line of [`kvant_cli`].

use std::process::ExitCode;

/// The system's allocator retains more freed memory between live blocks: a fifth of a calibrated run's memory.
#[cfg(feature = "mimalloc")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    kvant_cli::run(std::env::args_os().skip(1)).into()
}
