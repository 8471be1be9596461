//! Products of tiles in the tile registers of AMX, on Linux. The instructions are written as `asm!`, which stable Rust takes; its
//! AMX intrinsics are not stable.

mod detect;
mod product;

pub(super) use detect::Amx;
pub(super) use product::Registers;
