//! Why a QuantizeLinear or DequantizeLinear stays.

use std::fmt;

use kvant_container::onnx::{DataType, data_type_name};

/// Why no kernel absorbs a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FusionProblem {
    /// An input of the graph is quantized, or an output dequantized: floats come in and go out.
    End,
    /// The operator has no kernel for codes.
    NoKernel {
        /// The operator.
        operator: String,
    },
    /// The kernel needs codes for all inputs.
    FloatInput {
        /// The input that is in float.
        input: String,
    },
    /// The kernel gives codes, and the output is not quantized.
    FloatOutput,
    /// The output is quantized and something reads it in float too, or it is quantized more than once.
    SharedOutput {
        /// How many readers the output has.
        readers: usize,
    },
    /// The types of codes differ.
    Types {
        /// The types, in the order of inputs and output.
        types: Vec<DataType>,
    },
    /// int8 data that stay int8, because several nodes read what is quantized or a zero point is left out; kernels on x86 take uint8.
    SignedData,
    /// Codes of a width that the kernel does not have.
    Width {
        /// Their type.
        data_type: DataType,
    },
    /// Moving codes needs the same constant scale and zero point before and behind.
    Parameters,
    /// A Relu or Clip before QuantizeLinear cuts values that the codes can hold.
    Clamp {
        /// The node.
        node: String,
    },
    /// The bias is not int32 codes, or is added in float.
    Bias,
    /// Codes go into codes of another scale.
    Requantized,
    /// A body of If, Loop or Scan reads it.
    Body,
}

impl FusionProblem {
    /// Returns whether it only says that the graph has floats at its ends.
    pub fn is_end(&self) -> bool {
        *self == Self::End
    }

    /// A short name, for programs.
    pub fn name(&self) -> &'static str {
        match self {
            Self::End => "end",
            Self::NoKernel { .. } => "no-kernel",
            Self::FloatInput { .. } => "float-input",
            Self::FloatOutput => "float-output",
            Self::SharedOutput { .. } => "shared-output",
            Self::Types { .. } => "types",
            Self::SignedData => "signed-data",
            Self::Width { .. } => "width",
            Self::Parameters => "parameters",
            Self::Clamp { .. } => "clamp",
            Self::Bias => "bias",
            Self::Requantized => "requantized",
            Self::Body => "body",
        }
    }
}

impl fmt::Display for FusionProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::End => f.write_str("the graph has floats at this end"),
            Self::NoKernel { operator } => write!(f, "{} has no kernel for codes", operator.escape_debug()),
            Self::FloatInput { input } => write!(f, "its input `{}` is in float", input.escape_debug()),
            Self::FloatOutput => f.write_str("its output is not quantized"),
            Self::SharedOutput { readers } => {
                write!(f, "its output has {readers} readers: only one, which quantizes it, can be fused")
            }
            Self::Types { types } => {
                let names: Vec<String> = types.iter().map(|data_type| data_type_name(*data_type)).collect();
                write!(f, "its codes have different types: {}", names.join(", "))
            }
            Self::SignedData => {
                f.write_str("its int8 data cannot become uint8, which kernels on x86 need: several nodes read them, or there is no zero point")
            }
            Self::Width { data_type } => write!(f, "its kernel does not take {}", data_type_name(*data_type)),
            Self::Parameters => f.write_str("scale and zero point before and behind it are not the same constants"),
            Self::Clamp { node } => write!(f, "`{}` cuts values that the codes behind it can hold", node.escape_debug()),
            Self::Bias => f.write_str("its bias is not int32 codes"),
            Self::Requantized => f.write_str("codes go into codes of another scale"),
            Self::Body => f.write_str("a body of If, Loop or Scan reads it"),
        }
    }
}
