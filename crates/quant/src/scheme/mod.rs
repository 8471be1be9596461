//! Schemes: small values that say how tensors and layers are quantized. Not the doing.

mod attention;
mod granularity;
mod layer;
mod preset;
mod scale;
mod tensor;

pub use crate::scheme_error::SchemeError;
pub use attention::{AttentionScheme, KvCacheScheme, MinScale, Rotary};
pub use granularity::{Axis, Granularity};
pub use layer::{ActivationScheme, LayerScheme, Timing};
pub use preset::{Dialect, PRESETS, Preset};
pub use scale::{FloatScale, ScaleType, ZeroPoint};
pub use tensor::{BlockFormat, Cast, EVALUATION_ONLY, FloatScheme, IntScheme, TensorScheme, is_for_evaluation_only};
