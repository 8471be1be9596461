//! Algorithms that need data, block by block. Here is what they report.

mod report;

pub use report::*;
