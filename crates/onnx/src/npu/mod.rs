//! Requirements of AMD's NPUs for models with power-of-two scales: scales that shifts can reach, and operators as they compute them.

mod refine;
mod simulate;

pub use refine::refine;
pub use simulate::simulate;
pub(crate) use simulate::simulate_hardware;
