//! What a family computes between its linear layers: activation, residual wiring, positions, attention window, scales
//! and routing. Values that differ per checkpoint (sizes, epsilons, soft-caps, window lengths) are read from
//! `config.json` by [`crate::model_config`]; the rules that use them are here.

use crate::model_config::ModelConfig;

/// The rules of a family's forward pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Math {
    /// The activation of the feed-forward network.
    pub activation: ActivationRule,
    /// How attention and feed-forward join the residual stream.
    pub residual: Residual,
    /// How positions enter.
    pub positions: Positions,
    /// Which positions a token attends to.
    pub window: Window,
    /// The factor on `q k^T`.
    pub attention_scale: AttentionScale,
    /// The factor on the embeddings.
    pub embedding_scale: EmbeddingScale,
    /// The factor on the logits, before any soft-cap.
    pub logit_scale: LogitScale,
    /// The key of config.json with a factor on every branch that joins the residual stream.
    pub residual_multiplier: Option<&'static str>,
    /// Norms of queries and keys, where the family has them.
    pub query_key_norm: QueryKeyNorm,
    /// The boolean of config.json that asks for them, where they are optional.
    pub query_key_norm_if: Option<&'static str>,
}

impl Math {
    /// The rules of LLaMA: SiLU, sequential pre-norm residual, rotary positions on halves, full causal attention.
    pub const LLAMA: Math = Math {
        activation: ActivationRule::Config(Activation::Silu),
        residual: Residual::Sequential,
        positions: Positions::ROTARY,
        window: Window::Full,
        attention_scale: AttentionScale::HeadDim,
        embedding_scale: EmbeddingScale::One,
        logit_scale: LogitScale::One,
        residual_multiplier: None,
        query_key_norm: QueryKeyNorm::PerHead,
        query_key_norm_if: None,
    };

    /// Returns whether the blocks of a model have norms of queries and keys, if those of its family do.
    pub fn has_query_key_norms(&self, config: &ModelConfig) -> bool {
        match self.query_key_norm_if {
            Some(key) => config.flag_or(key, false),
            None => config.flag_or("use_qk_norm", true) && config.flag_or("qk_layernorm", true),
        }
    }
}

/// An activation function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    /// `x * sigmoid(x)`.
    Silu,
    /// `x * Phi(x)`, with the error function.
    Gelu,
    /// GELU by `tanh(sqrt(2/pi) (x + 0.044715 x^3))`.
    GeluTanh,
    /// `x * sigmoid(1.702 x)`.
    QuickGelu,
    /// `max(x, 0)`.
    Relu,
    /// `max(x, 0)^2`.
    ReluSquared,
    /// gpt-oss: `g = min(g, 7)`, `u = clamp(u, -7, 7)`, `h = (u + 1) * g * sigmoid(1.702 g)`.
    ClampedSwiglu,
    /// A function that is not known here.
    Unknown,
}

impl Activation {
    /// The activation that config.json calls `name`.
    pub fn from_config_name(name: &str) -> Activation {
        match name {
            "silu" | "swish" => Activation::Silu,
            "gelu" | "gelu_python" => Activation::Gelu,
            "gelu_new" | "gelu_fast" | "gelu_pytorch_tanh" | "gelu_accurate" => Activation::GeluTanh,
            "quick_gelu" => Activation::QuickGelu,
            "relu" => Activation::Relu,
            "relu2" | "relu_squared" => Activation::ReluSquared,
            _ => Activation::Unknown,
        }
    }

    /// Whether `act(s x) = s act(x)` for every `s > 0`, so that a scale passes through a plain feed-forward network.
    pub fn is_positively_homogeneous(self) -> bool {
        self == Activation::Relu
    }

    /// Returns whether a gated network with this activation is linear in its up projection.
    pub fn is_linear_in_up(self) -> bool {
        self != Activation::ClampedSwiglu
    }
}

/// The origin of the activation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActivationRule {
    /// The one that config.json names, else this one.
    Config(Activation),
    /// This one, regardless of config.json.
    Fixed(Activation),
}

impl ActivationRule {
    /// The activation of a checkpoint.
    pub fn resolve(self, config: &ModelConfig) -> Activation {
        match (self, &config.activation) {
            (ActivationRule::Config(_), Some(name)) => Activation::from_config_name(name),
            (ActivationRule::Config(activation) | ActivationRule::Fixed(activation), _) => activation,
        }
    }
}

/// How the two branches of a block join the residual stream `x`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Residual {
    /// `x += attention(norm(x)); x += mlp(norm(x))`, with the norms that the family has before and after each branch.
    Sequential,
    /// `x += attention(norm(x)) + mlp(norm'(x))`; `norm' = norm` where the block has one norm only.
    Parallel,
    /// `x = norm(x + attention(x)); x = norm(x + mlp(x))`.
    PostNorm,
    /// Parallel if this boolean of config.json is true, otherwise sequential; the second value is the default.
    ParallelIf(&'static str, bool),
    /// Sequential if this boolean of config.json is true, otherwise post-norm; the second value is the default.
    PreNormIf(&'static str, bool),
}

impl Residual {
    /// The wiring of a checkpoint: [`Residual::Sequential`], [`Residual::Parallel`] or [`Residual::PostNorm`].
    pub fn resolve(self, config: &ModelConfig) -> Residual {
        match self {
            Residual::ParallelIf(key, default) if config.flag_or(key, default) => Residual::Parallel,
            Residual::PreNormIf(key, default) if !config.flag_or(key, default) => Residual::PostNorm,
            Residual::ParallelIf(..) | Residual::PreNormIf(..) => Residual::Sequential,
            fixed => fixed,
        }
    }
}

/// How positions enter the model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Positions {
    /// Rotary embedding of queries and keys (arXiv 2104.09864).
    Rotary {
        /// Which components turn together.
        pairing: Pairing,
        /// The part of each head that turns when config.json does not say.
        partial: f32,
        /// The layers that turn.
        layers: RotaryLayers,
    },
    /// A table of learned embeddings, read at `position + offset`.
    Learned {
        /// Rows before that of the first position.
        offset: usize,
    },
}

impl Positions {
    /// Rotary over halves of whole heads in every layer, as in LLaMA.
    pub const ROTARY: Positions = Positions::rotary(Pairing::Halves, 1.0);

    /// Rotary in every layer.
    pub const fn rotary(pairing: Pairing, partial: f32) -> Positions {
        Positions::Rotary { pairing, partial, layers: RotaryLayers::All }
    }
}

/// Which components of a head the rotary embedding turns together, of `d` turning ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pairing {
    /// `i` and `i + d/2` (GPT-NeoX, LLaMA as Hugging Face stores it).
    Halves,
    /// `2i` and `2i + 1` (GPT-J, Cohere, GLM, DeepSeek).
    Neighbours,
}

/// The layers with rotary positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RotaryLayers {
    /// Every layer.
    All,
    /// Only those with sliding-window attention (Cohere 2).
    Sliding,
    /// The same where config.json sets a window, else every layer (EXAONE 4).
    SlidingIfAny,
    /// `no_rope_layers[i] != 0` of config.json, else all but every fourth (SmolLM3).
    Listed,
}

/// Which layers see a sliding window of `sliding_window` positions. Where config.json has `layer_types`, that
/// decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Window {
    /// None: full causal attention.
    Full,
    /// Every layer, where config.json sets a window.
    Every,
    /// All but every `period`-th layer: layer `i` is full if `(i + 1) % period == 0`. `sliding_window_pattern` of
    /// config.json replaces the period.
    Alternating {
        /// One full layer in this many.
        period: usize,
    },
    /// All but every `period`-th layer, beginning with layer 0, which is full (CWM).
    FirstFull {
        /// One full layer in this many.
        period: usize,
    },
    /// If `use_sliding_window`, the layers from `max_window_layers` on (Qwen).
    FromLayer,
}

/// The factor on `q k^T`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttentionScale {
    /// `1 / sqrt(d)` with `d` the width of a query head.
    HeadDim,
    /// `1 / sqrt(c)` with `c` this key of config.json (Gemma 2 and 3).
    InverseRootOf(&'static str),
    /// This key of config.json (Granite).
    Multiplier(&'static str),
    /// 1 (GPT-Neo).
    One,
}

/// The factor on the embeddings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EmbeddingScale {
    /// 1.
    One,
    /// `sqrt(hidden_size)`, rounded to the model's type (Gemma).
    RootHidden,
    /// This key of config.json (Granite).
    Multiplier(&'static str),
}

/// The factor on the logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogitScale {
    /// 1.
    One,
    /// Times this key of config.json (Cohere).
    Multiplier(&'static str),
    /// Divided by this key of config.json (Granite).
    Divisor(&'static str),
}

/// How the norms of queries and keys work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueryKeyNorm {
    /// Over each head, before the rotary embedding (Qwen3, Gemma 3).
    PerHead,
    /// Over each head, after the rotary embedding (Hunyuan).
    PerHeadAfterRotary,
    /// Over all heads at once, before the rotary embedding (OLMo 2).
    AllHeads,
}

/// How a mixture of experts chooses `k = num_experts_per_tok` experts from the router's logits `z`, and weighs them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Routing {
    /// `p = softmax(z)`, the k largest, divided by their sum (Mixtral).
    SoftmaxThenTop,
    /// As [`Routing::SoftmaxThenTop`], divided only if `norm_topk_prob` (Qwen, OLMoE).
    SoftmaxThenTopIfNormalised,
    /// The k largest of `z`, softmax over them (gpt-oss, Granite).
    TopThenSoftmax,
    /// `p = softmax(z)`, optionally limited to the `topk_group` groups of `n_group` with the largest maximum, the k
    /// largest times `routed_scaling_factor` (DeepSeek V2).
    SoftmaxGroups,
    /// `p = sigmoid(z)`; choice by `p` plus a learned correction, limited to the groups with the largest sum of their
    /// two best; weights `p`, divided by their sum if `norm_topk_prob`, times `routed_scaling_factor` (DeepSeek V3).
    SigmoidGroups,
    /// `p = sigmoid(z)`; choice by `p` plus a learned correction; weights `p`, divided by their sum (MiniMax-M2).
    SigmoidTop,
    /// SparseMixer's masked softmax of the best and of the second best (Phi-3.5-MoE, arXiv 2409.12136).
    SparseMixer,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn config(value: serde_json::Value) -> ModelConfig {
        ModelConfig::from_json(&value).unwrap()
    }

    #[test]
    fn activation_comes_from_config_unless_fixed() {
        let relu = config(json!({"activation_function": "relu"}));
        let rule = ActivationRule::Config(Activation::Silu);
        assert_eq!(rule.resolve(&relu), Activation::Relu);
        assert_eq!(rule.resolve(&config(json!({}))), Activation::Silu);
        let fixed = ActivationRule::Fixed(Activation::ClampedSwiglu);
        assert_eq!(fixed.resolve(&relu), Activation::ClampedSwiglu);
    }

    #[test]
    fn residual_follows_its_config_flag_and_default() {
        let parallel = Residual::ParallelIf("use_parallel_residual", true);
        assert_eq!(parallel.resolve(&config(json!({}))), Residual::Parallel);
        let off = config(json!({"use_parallel_residual": false}));
        assert_eq!(parallel.resolve(&off), Residual::Sequential);
        let pre = Residual::PreNormIf("do_layer_norm_before", true);
        assert_eq!(pre.resolve(&config(json!({}))), Residual::Sequential);
        let post = config(json!({"do_layer_norm_before": false}));
        assert_eq!(pre.resolve(&post), Residual::PostNorm);
    }

    #[test]
    fn only_relu_passes_a_scale_through() {
        assert!(Activation::Relu.is_positively_homogeneous());
        for name in ["silu", "gelu", "gelu_new", "relu2", "quick_gelu", "softplus"] {
            let activation = Activation::from_config_name(name);
            assert!(!activation.is_positively_homogeneous(), "{name}");
            assert!(activation.is_linear_in_up(), "{name}");
        }
    }
}
