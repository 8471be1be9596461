//! The parts of config.json that only models with recurrent token mixers have.

use super::ConfigError;
use super::fields::Fields;

/// The sizes of gated delta nets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaConfig {
    /// Heads of queries and keys.
    pub key_heads: usize,
    /// Heads of values; each key head serves equally many.
    pub value_heads: usize,
    /// Width of a query and of a key.
    pub key_dim: usize,
    /// Width of a value.
    pub value_dim: usize,
    /// Tokens that the convolution sees, the last included.
    pub kernel: usize,
}

impl DeltaConfig {
    pub(super) fn read(fields: Fields<'_, '_>) -> Result<Option<DeltaConfig>, ConfigError> {
        let sizes = [
            fields.size(&["linear_num_key_heads"])?,
            fields.size(&["linear_num_value_heads"])?,
            fields.size(&["linear_key_head_dim"])?,
            fields.size(&["linear_value_head_dim"])?,
            fields.size(&["linear_conv_kernel_dim"])?,
        ];
        let [Some(key_heads), Some(value_heads), Some(key_dim), Some(value_dim), Some(kernel)] = sizes else {
            return Ok(None);
        };
        Ok(Some(DeltaConfig { key_heads, value_heads, key_dim, value_dim, kernel }))
    }

    /// Rows of all queries, or of all keys; `None` beyond what can be counted.
    pub fn keys(&self) -> Option<usize> {
        self.key_heads.checked_mul(self.key_dim)
    }

    /// Rows of all values.
    pub fn values(&self) -> Option<usize> {
        self.value_heads.checked_mul(self.value_dim)
    }

    /// Channels of the convolution: queries, keys and values.
    pub fn channels(&self) -> Option<usize> {
        self.keys()?.checked_mul(2)?.checked_add(self.values()?)
    }
}
