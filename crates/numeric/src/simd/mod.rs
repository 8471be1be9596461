//! Compiling one loop for several instruction sets and choosing among them at run time. The `unsafe` of this
//! crate is here: the calls into functions compiled for instructions that have been found on this CPU, and the few kernels
//! that are written by hand; and at the one call of the library for matrix products, in [`crate::linalg`].

#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod columns;
mod dispatch;
mod isa;
mod lanes;
mod lanewise;
#[cfg(target_arch = "aarch64")]
mod neon;
mod prefetch;
mod table;
mod tile;

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(crate) use columns::{Factors, add_rows_by_hand};
pub(crate) use dispatch::dispatch_256;
pub use dispatch::{Loop, dispatch};
pub use isa::Isa;
pub(crate) use lanes::{LANES, add_products};
pub(crate) use lanewise::{
    BY_HAND, Difference, FiniteOr, Greater, Lesser, Product, Quotient, Sum, lanewise, where_less,
};
pub(crate) use prefetch::prefetch;
pub(crate) use table::entries;
pub(crate) use tile::{SIDE, Start, Tile, TileUnit, Tiles};
