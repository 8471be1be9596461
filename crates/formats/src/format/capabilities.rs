//! The capabilities of a checkpoint format, as data.

use kvant_quant::scheme::{FloatScale, FloatScheme, IntScheme, LayerScheme, ScaleType, TensorScheme};

/// The capabilities of a checkpoint format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// The `quant_method` that it writes into config.json, by which the rules of loaders know it.
    pub method: &'static str,
    /// The `quant_method`s that it reads.
    pub reads: &'static [&'static str],
    /// The key of config.json that its loaders read the configuration from, if it is not `quantization_config`; that is written too.
    pub key: Option<&'static str>,
    /// Files beside config.json in which tools wrote the configuration, which is then that of the first method in `reads`.
    pub side_files: &'static [&'static str],
    /// Whether it is written, or only read.
    pub is_written: bool,
    /// Whether weights are described in config.json alone, so that a source without one cannot become it. Otherwise they are described
    /// in the metadata of their files.
    pub needs_config: bool,
    /// Whether its loaders take one file, however large.
    pub one_file: bool,
    /// Whether quantized checkpoints are converted to it.
    pub is_conversion_target: bool,
    /// The type that plain scales of weights have, where the format leaves no choice.
    pub scale: Option<ScaleType>,
    /// Whether it has a list of the group of each input channel (`g_idx`).
    pub act_order: bool,
    /// Whether it can say that activations are quantized.
    pub activations: bool,
    /// Whether it can say that biases are quantized.
    pub biases: bool,
    /// Whether convolutions and embeddings can be codes, of the shape of their weights.
    pub shaped_layers: bool,
    /// Whether only experts that are one tensor are quantized, and everything else is kept.
    pub fused_experts_only: bool,
    /// Whether the order of 4-bit codes in words can be chosen.
    pub nibble_orders: bool,
    /// Whether signed integers are stored with half of their range added, so that loaders see unsigned ones.
    pub offset_codes: bool,
    /// Whether packed integers have the name `weight`, so that code that queries the type of a weight finds integers.
    pub integer_weight: bool,
    /// Whether transformers takes fused experts of some architectures apart before it loads the format.
    pub unfuses_experts: bool,
    /// By which names the configuration calls modules.
    pub module_names: ModuleNames,
    /// The names of unquantized modules in the configuration.
    pub excluded_names: ExcludedNames,
    /// The fields of the configuration that list these modules.
    pub excluded_fields: &'static [&'static str],
    /// Whether its loaders fuse no layers, so that the schemes of those that others fuse may differ.
    pub fuses_nothing: bool,
    /// Whether loaders infer quantized layers from the tensors, not from the configuration.
    pub found_by_tensors: bool,
    /// Whether it can say that the inputs of layers are rotated while the model runs.
    pub input_rotations: bool,
}

/// By which names a configuration calls modules, and tensors are called after them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModuleNames {
    /// Those of the checkpoint's files.
    OnDisk,
    /// Those of a model that transformers has loaded.
    InMemory,
}

/// The names of unquantized modules in a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExcludedNames {
    /// Names, and patterns of a shell.
    Globs,
    /// Names, and regular expressions behind `re:`.
    Expressions,
    /// Parts of names: a module is excluded where its name contains one.
    Parts,
}

impl Capabilities {
    /// A format that is written, read and converted to, stores weights alone, and has no peculiarities.
    pub const fn of_method(method: &'static str, reads: &'static [&'static str]) -> Capabilities {
        Capabilities {
            method,
            reads,
            key: None,
            side_files: &[],
            is_written: true,
            needs_config: true,
            one_file: false,
            is_conversion_target: true,
            scale: None,
            act_order: false,
            activations: false,
            biases: false,
            shaped_layers: false,
            fused_experts_only: false,
            nibble_orders: false,
            offset_codes: false,
            integer_weight: false,
            unfuses_experts: false,
            module_names: ModuleNames::OnDisk,
            excluded_names: ExcludedNames::Globs,
            excluded_fields: &[],
            fuses_nothing: false,
            found_by_tensors: false,
            input_rotations: false,
        }
    }

    /// The scheme used when this one is requested: scales that would have the model's type get the format's before
    /// codes are made, so that codes fit the scales that are stored.
    pub fn fitted(&self, scheme: LayerScheme) -> LayerScheme {
        let Some(scale) = self.scale else { return scheme };
        let weight = match scheme.weight {
            TensorScheme::Int(int) if int.scale == ScaleType::Model => TensorScheme::Int(IntScheme { scale, ..int }),
            TensorScheme::Float(float) if float.scale == FloatScale::Plain(ScaleType::Model) => {
                TensorScheme::Float(FloatScheme { scale: FloatScale::Plain(scale), ..float })
            }
            other => other,
        };
        LayerScheme { weight, ..scheme }
    }
}
