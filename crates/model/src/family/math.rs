//! What a family computes between its linear layers: activation, residual wiring, positions, attention window, scales
//! and routing. Values that differ per checkpoint (sizes, epsilons, soft-caps, window lengths) are read from
//! `config.json` by [`crate::model_config`]; the rules that use them are here.

use super::description::Text;
use super::leaked::leaked;
use crate::model_config::ModelConfig;
use serde::{Deserialize, Serialize};

/// The rules of a family's forward pass.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
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
    #[serde(deserialize_with = "leaked", default)]
    pub residual_multiplier: Option<Text>,
    /// Whether config.json has factors on what enters, passes and leaves the branches of a block (Falcon-H1): `attention_in_multiplier`,
    /// `key_multiplier`, `attention_out_multiplier`, `ssm_in_multiplier`, `ssm_multipliers` (of what the first layer of a state-space layer
    /// gives: gate, `x`, `b`, `c`, steps), `ssm_out_multiplier`, `mlp_multipliers` (of the gate and of the output). Each is 1 where absent.
    pub branch_multipliers: bool,
    /// Norms of queries and keys, where the family has them.
    pub query_key_norm: QueryKeyNorm,
    /// The boolean of config.json that asks for them, where they are optional.
    #[serde(deserialize_with = "leaked", default)]
    pub query_key_norm_if: Option<Text>,
    /// The factor on queries that depends on their position.
    pub query_scale: QueryScale,
    /// Whether `alpha` of dynamic rotary embeddings stretches their base.
    pub rotary_alpha: bool,
    /// Whether sliding layers have twice the key heads and sinks, and others no sinks (MiMo-V2).
    pub sliding_has_more: bool,
    /// Whether layers with full attention have heads of a width and number of their own (Gemma 4): those of `per_layer_config`, else
    /// `global_head_dim` and, where keys are values, `num_global_key_value_heads`.
    pub full_heads: bool,
    /// Whether the last `num_kv_shared_layers` blocks of config.json attend to the keys and values of the last block of their type before
    /// them (Gemma 3n and 4).
    pub shares_keys: bool,
    /// Whether values are normalised, without weights, as keys are with theirs.
    pub value_norm: bool,
    /// The factor on values: a key of config.json, and its value where that is absent; null is 1.
    #[serde(deserialize_with = "leaked", default)]
    pub value_scale: Option<(Text, f64)>,
    /// Whether blocks with a recurrent mixer have norms before their branches only, and others behind them only (OLMo Hybrid).
    pub norms_by_mixer: bool,
    /// Whether the first block has no norm before attention, as that of the embeddings stands there (ModernBERT).
    #[serde(default)]
    pub first_norm_is_absent: bool,
    /// What chooses the keys that a token attends to, in blocks that have such an indexer.
    #[serde(default)]
    pub indexer: Option<Indexer>,
    /// Whether a block has one key head, whose keys are values, and a token attends to those of a window and to entries made of the tokens
    /// before, all of them or those with the largest scores, as the type of the block says (DeepSeek V4). Queries come from a latent and are
    /// normalised, the last components of queries, keys and entries turn, those of outputs turn back, and outputs of groups of heads have a
    /// latent each. Rotary embeddings of blocks with entries are others than those of blocks without.
    #[serde(default)]
    pub compressed_keys: bool,
    /// Whether there are `hc_mult` residual streams `h_i`, all of them the embeddings at first. Each branch reads `x = sum_i (s_i + e) h_i` and
    /// gives `y`, with which `h_k := 2 s'_k y + sum_j M_jk h_j`. `s` and `s'` are sigmoids and `M` is doubly stochastic, all of what learned
    /// factors of the streams of the token give; so is the sum that the last norm reads (hyper-connections, arXiv 2409.19606).
    #[serde(default)]
    pub hyper_connections: bool,
    /// Whether norms are RMS norms where config.json states `rms_norm_eps`, whatever the family's formula.
    pub rms_norm_if_stated: bool,
    /// Whether queries, keys and values are clipped to `clip_qkv` of config.json.
    pub clips: bool,
    /// Whether the weight of an expert multiplies its input; its output otherwise.
    pub weighs_expert_inputs: bool,
    /// Whether routed and shared experts are averaged unless `shared_expert_combination_strategy` of config.json is `sum`.
    pub averages_shared_experts: bool,
    /// Where the gates on the outputs of attention's heads come from.
    pub head_gate: HeadGate,
    /// The boolean of config.json that says whether there are such gates, where they are optional; true where absent.
    #[serde(deserialize_with = "leaked", default)]
    pub head_gate_if: Option<Text>,
    /// The boolean of config.json that says whether there are norms behind branches, likewise.
    #[serde(deserialize_with = "leaked", default)]
    pub output_norms_if: Option<Text>,
    /// The key of config.json that says that feed-forward networks are gated, where those of other models of the family are not: a boolean, or
    /// a text that begins with `gated-` (T5).
    #[serde(deserialize_with = "leaked", default)]
    pub gated_if: Option<Text>,
    /// Parameters of a block that multiply what attention and what the feed-forward network give, channel by channel, before it joins the
    /// stream (LayerScale, arXiv 2103.17239): the ends of their names.
    #[serde(deserialize_with = "leaked", default)]
    pub layer_scales: Option<(Text, Text)>,
    /// Whether the norm on the output of the feed-forward network is in blocks with experts only (A.X K1).
    #[serde(default)]
    pub only_experts_have_output_norm: bool,
    /// Whether a layer of the checkpoint is two blocks, each with attention and a dense network, whose number `{}` stands for in their
    /// paths, and experts that read what the first network reads and join the stream behind the second (LongCat Flash, arXiv 2509.01322).
    #[serde(default)]
    pub shortcut_experts: bool,
    /// Whether queries and the latent of keys and values are multiplied by the root of the hidden size over the width of their latents.
    #[serde(default)]
    pub scales_latents: bool,
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
        branch_multipliers: false,
        query_key_norm: QueryKeyNorm::PerHead,
        query_key_norm_if: None,
        query_scale: QueryScale::One,
        rotary_alpha: false,
        sliding_has_more: false,
        full_heads: false,
        shares_keys: false,
        value_norm: false,
        value_scale: None,
        norms_by_mixer: false,
        first_norm_is_absent: false,
        indexer: None,
        compressed_keys: false,
        hyper_connections: false,
        rms_norm_if_stated: false,
        clips: false,
        weighs_expert_inputs: false,
        averages_shared_experts: false,
        head_gate: HeadGate::OwnLayer,
        head_gate_if: None,
        output_norms_if: None,
        gated_if: None,
        layer_scales: None,
        only_experts_have_output_norm: false,
        shortcut_experts: false,
        scales_latents: false,
    };

    /// Returns whether the feed-forward networks of a model are gated; `None` where those of all models of its family are alike.
    pub fn is_gated(&self, config: &ModelConfig) -> Option<bool> {
        let key = self.gated_if?;
        Some(config.flag_or(key, false) || config.text(key).is_some_and(|text| text.starts_with("gated-")))
    }

    /// Returns whether the blocks of a model have norms of queries and keys, if those of its family do.
    pub fn has_query_key_norms(&self, config: &ModelConfig) -> bool {
        match self.query_key_norm_if {
            Some(key) => config.flag_or(key, false),
            None => config.flag_or("use_qk_norm", true) && config.flag_or("qk_layernorm", true),
        }
    }
}

/// An activation function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
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
    /// xIELU (arXiv 2411.13010) with learned `a_p = softplus(alpha_p)` and `a_n = beta + softplus(alpha_n)`:
    /// `a_p x^2 + beta x` for `x > 0`, else `a_n (exp(min(x, eps)) - 1 - x) + beta x`.
    Xielu,
    /// gpt-oss: `g = min(g, 7)`, `u = clamp(u, -7, 7)`, `h = (u + 1) * g * sigmoid(1.702 g)`.
    ClampedSwiglu,
    /// DeepSeek V4: `g = min(g, 10)`, `u = clamp(u, -10, 10)`, `h = g sigmoid(g) u`.
    LimitedSilu,
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
            "xielu" => Activation::Xielu,
            _ => Activation::Unknown,
        }
    }

    /// Whether `act(s x) = s act(x)` for every `s > 0`, so that a scale passes through a plain feed-forward network.
    pub fn is_positively_homogeneous(self) -> bool {
        self == Activation::Relu
    }

    /// Returns whether a gated network with this activation is linear in its up projection.
    pub fn is_linear_in_up(self) -> bool {
        !matches!(self, Activation::ClampedSwiglu | Activation::LimitedSilu)
    }
}

/// The origin of the activation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ActivationRule {
    /// The one that config.json names, else this one.
    Config(Activation),
    /// This one, regardless of config.json.
    Fixed(Activation),
    /// SiLU if this boolean of config.json is true, else the one that config.json names, else this one (DINOv2).
    SiluIf(#[serde(deserialize_with = "leaked")] Text, Activation),
}

impl ActivationRule {
    /// The activation of a checkpoint.
    pub fn resolve(self, config: &ModelConfig) -> Activation {
        match (self, &config.activation) {
            (ActivationRule::SiluIf(key, _), _) if config.flag_or(key, false) => Activation::Silu,
            (ActivationRule::Config(_) | ActivationRule::SiluIf(..), Some(name)) => Activation::from_config_name(name),
            (
                ActivationRule::Config(activation)
                | ActivationRule::Fixed(activation)
                | ActivationRule::SiluIf(_, activation),
                _,
            ) => activation,
        }
    }
}

/// How the two branches of a block join the residual stream `x`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Residual {
    /// `x += attention(norm(x)); x += mlp(norm(x))`, with the norms that the family has before and after each branch.
    Sequential,
    /// `x += attention(norm(x)) + mlp(norm'(x))`; `norm' = norm` where the block has one norm only.
    Parallel,
    /// `x = norm(x + attention(x)); x = norm(x + mlp(x))`.
    PostNorm,
    /// `x = norm(x); x = a x + b attention(x); x = norm(x); x = a' x + b' mlp(x)`: the residuals are what the norms give. The factors are
    /// `full_attn_alpha_factor` and `full_attn_beta_factor` of config.json, or in blocks with a recurrent mixer `linear_attn_alpha_factor`
    /// and `linear_attn_beta_factor`, then `mlp_alpha_factor` and `mlp_beta_factor`. Each is 1 where absent (MiniMax-Text-01, arXiv
    /// 2501.08313).
    OfNorm,
    /// `x += branch(norm(x))`: a block has one branch, a token mixer or a feed-forward network (Nemotron-H).
    Single,
    /// Parallel if this boolean of config.json is true, otherwise sequential; the second value is the default.
    ParallelIf(#[serde(deserialize_with = "leaked")] Text, bool),
    /// Parallel if any of these booleans of config.json is true, each with its default; otherwise sequential.
    ParallelIfAny(#[serde(deserialize_with = "leaked")] &'static [(Text, bool)]),
    /// Sequential if this boolean of config.json is true, otherwise post-norm; the second value is the default.
    PreNormIf(#[serde(deserialize_with = "leaked")] Text, bool),
}

impl Residual {
    /// The wiring of a checkpoint: [`Residual::Sequential`], [`Residual::Parallel`], [`Residual::PostNorm`], [`Residual::OfNorm`] or
    /// [`Residual::Single`].
    pub fn resolve(self, config: &ModelConfig) -> Residual {
        match self {
            Residual::ParallelIf(key, default) if config.flag_or(key, default) => Residual::Parallel,
            Residual::PreNormIf(key, default) if !config.flag_or(key, default) => Residual::PostNorm,
            Residual::ParallelIfAny(keys) if keys.iter().any(|(key, default)| config.flag_or(key, *default)) => {
                Residual::Parallel
            }
            Residual::ParallelIf(..) | Residual::ParallelIfAny(_) | Residual::PreNormIf(..) => Residual::Sequential,
            fixed => fixed,
        }
    }

    /// Returns whether blocks of a parallel model may have one norm for both branches although others of the family have two.
    pub fn may_share_norm(self) -> bool {
        matches!(self, Residual::ParallelIf(_, false) | Residual::ParallelIfAny(_))
    }
}

/// How positions enter the model.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
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
    /// The same if this boolean of config.json is true, else none; the second value is the default (DeBERTa).
    LearnedIf(#[serde(deserialize_with = "leaked")] Text, bool),
    /// The same, read behind the row of the padding token `pad_token_id`: a token at position `p` among those that are no padding has row
    /// `p + 1` behind it (RoBERTa). The padding token of MPNet is always 1.
    LearnedBehindPadding {
        /// The padding token if config.json states none.
        padding: usize,
        /// Whether config.json is not asked.
        is_fixed: bool,
    },
    /// Sines, then cosines, of the position behind `offset` at as many frequencies, `10000^(-i / (n - 1))` for `i` of `n`: no tensor. The row
    /// of `pad_token_id` is 0 (XGLM).
    Sinusoidal {
        /// What is added to a position.
        offset: usize,
        /// The padding token if config.json is silent.
        padding: usize,
    },
    /// Sines, then cosines, of the position at as many frequencies, `10000^(-2i / d)` of `d` components: no tensor (Marian).
    SinusoidalOfWidth,
    /// Rotary over halves of whole heads if `position_embedding_type` of config.json is `rotary`, else learned behind padding (ESM).
    RotaryOrLearned,
    /// Biases on scores.
    Alibi(Alibi),
    /// The same if this boolean of config.json is true, else rotary over halves of whole heads.
    AlibiIf(#[serde(deserialize_with = "leaked")] Text, Alibi),
    /// Rotary over halves of whole heads if this key of config.json names `rope`, else none.
    RotaryIfNamed(#[serde(deserialize_with = "leaked")] Text),
    /// Rotary over halves of whole heads if config.json states a base, else none (OLMo Hybrid).
    RotaryIfTheta,
    /// Rotary over halves of whole heads, by the place of a patch in its image; learned rows do not turn (DINOv3). Of `d` components, the
    /// first `d/4` angles are `2 pi y` times the frequencies `theta^(-4i/d)`, the next `d/4` the same with `x`; `y` and `x` are those of the
    /// patch's middle, from -1 to 1 along the height and the width.
    RotaryOfPatches,
    /// Rotary over halves of whole heads, by the row and column of a patch in an image of any size (Qwen2-VL): of `d` components, the first `d/4`
    /// angles are the row times the frequencies `theta^(-4i/d)`, the next `d/4` the same with the column.
    RotaryOfGrid,
    /// None: the order of tokens enters through recurrent mixers and the causal mask.
    None,
}

/// Biases on scores that grow with the key's position `j` (ALiBi, arXiv 2108.12409): `b = m_h j` for head `h` of `n`. Slopes are
/// `m_h = 2^(-8 h / n)` for `h = 1..=n` where `n` is a power of two; otherwise those of the power below, then every second one of
/// the power above.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Alibi {
    /// Whether slopes, positions and biases are rounded to bfloat16 whatever the model's type (Falcon).
    pub rounded: bool,
    /// Whether the factor on `q k^T` is on biases as well (Falcon).
    pub scaled: bool,
}

impl Positions {
    /// Rotary over halves of whole heads in every layer, as in LLaMA.
    pub const ROTARY: Positions = Positions::rotary(Pairing::Halves, 1.0);

    /// The positions of a checkpoint: none of [`Positions::LearnedIf`], [`Positions::RotaryOrLearned`], [`Positions::AlibiIf`], [`Positions::RotaryIfNamed`] and [`Positions::RotaryIfTheta`].
    pub fn resolve(self, config: &ModelConfig) -> Positions {
        match self {
            Positions::AlibiIf(key, alibi) if config.flag_or(key, false) => Positions::Alibi(alibi),
            Positions::LearnedIf(key, default) if config.flag_or(key, default) => Positions::Learned { offset: 0 },
            Positions::LearnedIf(..) => Positions::None,
            Positions::RotaryIfNamed(key) if config.text(key) != Some("rope") => Positions::None,
            Positions::RotaryOrLearned if config.text("position_embedding_type") != Some("rotary") => {
                Positions::LearnedBehindPadding { padding: 1, is_fixed: false }
            }
            Positions::RotaryOrLearned => Positions::ROTARY,
            Positions::RotaryIfTheta if config.rope.main.theta.is_none() => Positions::None,
            Positions::AlibiIf(..) | Positions::RotaryIfNamed(_) | Positions::RotaryIfTheta => Positions::ROTARY,
            fixed => fixed,
        }
    }

    /// Rotary in every layer.
    pub const fn rotary(pairing: Pairing, partial: f32) -> Positions {
        Positions::Rotary { pairing, partial, layers: RotaryLayers::All }
    }
}

/// Which components of a head the rotary embedding turns together, of `d` turning ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pairing {
    /// `i` and `i + d/2` (GPT-NeoX, LLaMA as Hugging Face stores it).
    Halves,
    /// `i + d/2` and `i`: halves that turn backwards (nanochat).
    SwappedHalves,
    /// `2i` and `2i + 1` (GPT-J, Cohere, GLM, DeepSeek).
    Neighbours,
}

/// The layers with rotary positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RotaryLayers {
    /// Every layer.
    All,
    /// Only those with sliding-window attention (Cohere 2).
    Sliding,
    /// The same where config.json sets a window, else every layer (EXAONE 4).
    SlidingIfAny,
    /// Those with sliding-window attention; where `prefix_dense_sliding_window_pattern` of config.json is 1 or absent, dense ones too
    /// (Cohere 2 MoE).
    SlidingOrDense,
    /// `no_rope_layers[i] != 0` of config.json, else all but every fourth (SmolLM3).
    Listed,
}

/// Which layers see a sliding window of `sliding_window` positions. Where config.json has `layer_types`, that
/// decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
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
    /// All but layer 0 and every `period`-th: layer `i` is full if `i = 0` or `(i + 1) % period == 0` (MiMo-V2).
    FirstAndEvery {
        /// One full layer in this many.
        period: usize,
    },
    /// All but every `period`-th layer, beginning with layer 0, which is full (CWM).
    FirstFull {
        /// One full layer in this many.
        period: usize,
    },
    /// Chunks of `attention_chunk_size` positions instead of windows, in the layers with rotary embedding (Llama 4).
    Chunks,
    /// All but every `global_attn_every_n_layers`-th, beginning with layer 0, which is full; every third if config.json does not say
    /// (ModernBERT).
    AllButEveryNth,
    /// If `use_sliding_window`, the layers from `max_window_layers` on (Qwen).
    FromLayer,
}

/// The factor on `q k^T`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AttentionScale {
    /// `1 / sqrt(d)` with `d` the width of a query head.
    HeadDim,
    /// `1 / sqrt(c)` with `c` this key of config.json (Gemma 2 and 3).
    InverseRootOf(#[serde(deserialize_with = "leaked")] Text),
    /// This key of config.json (Granite).
    Multiplier(#[serde(deserialize_with = "leaked")] Text),
    /// This key of `attn_config` in config.json, else [`AttentionScale::HeadDim`] (MPT).
    StatedForAttention(#[serde(deserialize_with = "leaked")] Text),
    /// 1 (GPT-Neo).
    One,
}

/// The factor on the embeddings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EmbeddingScale {
    /// 1.
    One,
    /// `sqrt(hidden_size)`, rounded to the model's type (Gemma).
    RootHidden,
    /// The same if this boolean of config.json is true, else 1 (AFMoE).
    RootHiddenIf(#[serde(deserialize_with = "leaked")] Text),
    /// This key of config.json (Granite).
    Multiplier(#[serde(deserialize_with = "leaked")] Text),
}

/// The factor on queries at position `p`, after norms and rotary embedding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum QueryScale {
    /// 1.
    One,
    /// `1 + beta ln(1 + floor(p / n))` with `llama_4_scaling_beta` and `original_max_position_embeddings` of the rotary embedding's
    /// parameters (Ministral 3).
    RotaryParameters,
    /// In layers without rotary embedding, if `attn_temperature_tuning`: `1 + attn_scale ln(1 + floor((p + 1) / floor_scale))`
    /// (Llama 4).
    UnturnedLayers,
}

/// The factor on the logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LogitScale {
    /// 1.
    One,
    /// Times this key of config.json (Cohere).
    Multiplier(#[serde(deserialize_with = "leaked")] Text),
    /// Divided by this key of config.json (Granite).
    Divisor(#[serde(deserialize_with = "leaked")] Text),
    /// Divided by the root of the hidden size, before the output head (umT5).
    InverseRootHidden,
    /// The same if this boolean of config.json is true, or where it is absent this one, or where both are (T5).
    InverseRootHiddenIf(#[serde(deserialize_with = "leaked")] Text, #[serde(deserialize_with = "leaked")] Text),
}

/// How the norms of queries and keys work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum QueryKeyNorm {
    /// Over each head, before the rotary embedding (Qwen3, Gemma 3).
    PerHead,
    /// Over each head, after the rotary embedding (Hunyuan).
    PerHeadAfterRotary,
    /// Over all heads at once, before the rotary embedding (OLMo 2).
    AllHeads,
    /// Over each head, without weights, after the rotary embedding of those layers that have one, if `use_qk_norm` (Llama 4, nanochat).
    PlainAfterRotary,
}

/// Where the gates on the outputs of attention's heads come from. Before the output projection, every component is multiplied by the
/// sigmoid of its gate, or by another function of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HeadGate {
    /// From a layer of their own, of the role [`Role::HeadGate`](super::Role::HeadGate); without one there are none.
    OwnLayer,
    /// From the query projection: per head the query, then as many gates (Qwen3-Next).
    WithQueries,
    /// From a layer of their own, one gate for each head (Ling 3).
    OfHeads,
    /// From a layer of their own, with the softplus of a gate in place of its sigmoid: one gate for each head if `gating` of config.json is
    /// absent, true or `per-head`, else one for each component (Laguna).
    Softplus,
}

impl HeadGate {
    /// How many times the rows of a query the query projection has.
    pub fn query_parts(self) -> usize {
        match self {
            HeadGate::OwnLayer | HeadGate::OfHeads | HeadGate::Softplus => 1,
            HeadGate::WithQueries => 2,
        }
    }
}

/// How an indexer chooses the keys that a token attends to, and what turns together in its heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Indexer {
    /// The `index_topk` keys with the largest `sum_h w_h relu(q_h k)`, for all heads (DeepSeek V3.2). Queries come from the query latent.
    Keys(Pairing),
    /// For each head `h` of the indexer the `index_topk_blocks` blocks of `index_block_size` keys with the largest `q_h k`, of which as many
    /// heads of attention see as there are for each; those that the token and `index_local_blocks - 1` blocks before it are in come first
    /// (MiniMax M3). Queries come from the hidden state, and are normalised as keys are.
    Blocks(Pairing),
}

/// How a mixture of experts chooses `k = num_experts_per_tok` experts from the router's logits `z`, and weighs them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Routing {
    /// `p = softmax(z)`, the k largest, divided by their sum (Mixtral).
    SoftmaxThenTop,
    /// As [`Routing::SoftmaxThenTop`], divided by their `p`-norm with `p` the `moe_normalize_expert_weights` of config.json, by none if that
    /// is null (DBRX).
    SoftmaxThenTopByNorm,
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
    /// The same, weights divided by their sum and 1e-6 if `norm_topk_prob`, times `routed_scaling_factor` (LFM2).
    SigmoidTopIfNormalised,
    /// `p = softmax(z)`; choice by `p` plus a learned correction; weights `p`, divided by their sum, which counts as `moe_norm_min` if it
    /// is less (ERNIE 4.5).
    SoftmaxCorrected,
    /// `p = softmax(z)`; choice by `p` plus a learned correction; weights `p`, times `routed_scaling_factor` (LongCat Flash).
    SoftmaxCorrectedScaled,
    /// `p = softmax(z)`, limited to the groups with the largest sum of their two best; weights `p`, divided by their sum if
    /// `norm_topk_prob`, times `routed_scaling_factor` (Mistral 4).
    SoftmaxTwoBest,
    /// `p = sqrt(ln(1 + exp(z)))`; choice by `p` plus a learned correction, in some blocks by a table with experts for each token; weights `p`,
    /// divided by their sum, times `routed_scaling_factor` (DeepSeek V4).
    RootSoftplusTop,
    /// Choice by `z` plus a learned correction; weights the sigmoid of `z`, divided by their sum if `norm_topk_prob` (Kolibri 1).
    TopCorrectedThenSigmoid,
    /// The k largest of `z`, sigmoid of them, divided by their sum if `norm_topk_prob` (Llama 4).
    TopThenSigmoid,
    /// [`Routing::TopThenSoftmax`] or [`Routing::TopThenSigmoid`], as `expert_selection_fn` of config.json says (Cohere 2 MoE).
    TopThenStated,
    /// SparseMixer's masked softmax of the best and of the second best (Phi-3.5-MoE, arXiv 2409.12136).
    SparseMixer,
}

impl std::fmt::Display for Routing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Routing::SoftmaxThenTop => "the softmax of all experts, always normalised",
            Routing::SoftmaxThenTopByNorm => "the softmax of all experts, divided by a norm",
            Routing::SoftmaxThenTopIfNormalised => "the softmax of all experts",
            Routing::TopThenSoftmax => "the softmax of the chosen experts",
            Routing::SoftmaxGroups => "the softmax of all experts and the best of each group",
            Routing::SigmoidGroups => "the corrected sigmoid of each expert and the two best of each group",
            Routing::SigmoidTop => "the corrected sigmoid of each expert",
            Routing::SigmoidTopIfNormalised => "the corrected sigmoid of each expert, scaled",
            Routing::SoftmaxCorrected => "the corrected softmax of all experts",
            Routing::SoftmaxCorrectedScaled => "the corrected softmax of all experts, scaled",
            Routing::SoftmaxTwoBest => "the softmax of all experts and the two best of each group",
            Routing::RootSoftplusTop => "the corrected root of the softplus of each expert",
            Routing::TopCorrectedThenSigmoid => "the sigmoid of the experts with the largest corrected scores",
            Routing::TopThenSigmoid => "the sigmoid of the chosen experts",
            Routing::TopThenStated => "the function that config.json states",
            Routing::SparseMixer => "SparseMixer",
        })
    }
}

impl Routing {
    /// The rule of a checkpoint: not [`Routing::TopThenStated`]. `None` if config.json names an unknown one.
    pub fn resolve(self, config: &ModelConfig) -> Option<Routing> {
        match (self, config.text("expert_selection_fn")) {
            (Routing::TopThenStated, None | Some("softmax")) => Some(Routing::TopThenSoftmax),
            (Routing::TopThenStated, Some("sigmoid")) => Some(Routing::TopThenSigmoid),
            (Routing::TopThenStated, Some(_)) => None,
            (fixed, _) => Some(fixed),
        }
    }

    /// Whether weights are divided by their sum where the rule leaves that open and config.json is silent.
    pub fn normalises_by_default(self) -> bool {
        use Routing::{SigmoidGroups, SigmoidTopIfNormalised, SoftmaxTwoBest, TopThenStated};
        matches!(self, SigmoidGroups | SigmoidTopIfNormalised | SoftmaxTwoBest | TopThenStated)
    }
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
