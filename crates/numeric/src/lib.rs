//! Numbers and loops: number formats, rounding, packing, and the kernels that do them fast.
//!
//! This crate knows no files, no models and no schemes. Every operation exists twice: as a scalar function on one
//! value, which is the specification, and as a kernel over slices ([`kernel`]), which is compiled for several
//! instruction sets, chosen at run time, and tested bit for bit against the specification.
//!
//! ```
//! use kvant_numeric::format::{Int, MiniFloat};
//!
//! // The integers of four bits, and the 4-bit float of OCP MX.
//! assert_eq!((Int::INT4.min(), Int::INT4.max()), (-8, 7));
//! assert_eq!(MiniFloat::E2M1.max(), 6.0);
//!
//! // A value becomes a code, a code becomes a value.
//! let code = MiniFloat::E2M1.encode(2.6);
//! assert_eq!(MiniFloat::E2M1.decode(code), 3.0);
//! ```

pub mod arithmetic;
mod element_loop;
pub mod format;
pub mod ggml;
pub mod kernel;
pub mod linalg;
pub mod pack;
pub mod parts;
pub mod simd;

pub use arithmetic::ComputeDType;
pub use format::DType;
