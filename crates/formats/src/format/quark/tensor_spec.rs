//! The 17 fields with which Quark describes the quantization of one tensor. Not their meaning: see the neighbours `read`
//! and `write`.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::borrow::Cow;

/// A word of Quark's vocabulary: borrowed when written, owned when read.
pub(super) type Word = Cow<'static, str>;

/// One tensor's description. Fields are in the order in which transformers writes them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct TensorSpec {
    #[serde(default)]
    pub block_size: Option<[u32; 2]>,
    #[serde(default, alias = "axis")]
    pub ch_axis: Option<i64>,
    pub dtype: Word,
    #[serde(default)]
    pub enable_buffer_reuse: Option<bool>,
    #[serde(default)]
    pub group_size: Option<i64>,
    #[serde(default, alias = "dynamic")]
    pub is_dynamic: Option<bool>,
    #[serde(default)]
    pub is_scale_quant: Option<bool>,
    #[serde(default)]
    pub max_input_numel: Option<u64>,
    #[serde(default)]
    pub mx_element_dtype: Option<Word>,
    #[serde(default)]
    pub observer_cls: Option<Word>,
    #[serde(default)]
    pub qscheme: Option<Word>,
    #[serde(default)]
    pub round_method: Option<Word>,
    #[serde(default)]
    pub scale_calculation_mode: Option<Word>,
    #[serde(default)]
    pub scale_format: Option<Word>,
    #[serde(default)]
    pub scale_type: Option<Word>,
    #[serde(default)]
    pub symmetric: Option<bool>,
    #[serde(default)]
    pub zero_point_type: Option<Word>,
    /// Fields of other versions.
    #[serde(flatten)]
    pub others: Map<String, Value>,
}

impl TensorSpec {
    /// A description that says the dtype, and of everything else what Quark writes where nothing applies.
    pub(super) fn new(dtype: impl Into<Word>) -> TensorSpec {
        TensorSpec {
            block_size: None,
            ch_axis: None,
            dtype: dtype.into(),
            enable_buffer_reuse: Some(false),
            group_size: None,
            is_dynamic: None,
            is_scale_quant: Some(false),
            max_input_numel: Some(4_194_304),
            mx_element_dtype: None,
            observer_cls: None,
            qscheme: None,
            round_method: None,
            scale_calculation_mode: None,
            scale_format: None,
            scale_type: None,
            symmetric: None,
            zero_point_type: Some("int32".into()),
            others: Map::new(),
        }
    }
}
