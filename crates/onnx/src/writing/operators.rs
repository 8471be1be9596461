//! Which operators stand for quantization and dequantization in each form, and which opset they need.

use kvant_container::onnx::NodeProto;

use crate::element::{Block, Element};
use crate::error::QuantizeError;
use crate::graph::{node, set_attribute};
use crate::recipe::{Form, Recipe};

/// Domain of ONNX Runtime's own operators.
pub const MICROSOFT: &str = "com.microsoft";
/// Domain of Quark's operators.
pub const QUARK: &str = "com.amd.quark";

/// How an element type is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operators {
    /// `QuantizeLinear` and `DequantizeLinear` of a domain.
    Linear(&'static str),
    /// `ExtendedQuantizeLinear` and `ExtendedDequantizeLinear`.
    Extended,
    /// Cast to the type and back.
    Cast,
    /// One operator that quantizes and dequantizes.
    Block(Block),
}

/// The choices of a run that change how operators are written.
#[derive(Debug, Clone, Copy)]
pub struct Dialect {
    /// The form.
    pub form: Form,
    /// How blocks of BFP16 round halves.
    pub block_rounding: u8,
}

impl Dialect {
    /// That of a recipe.
    pub fn of(recipe: &Recipe) -> Self {
        Self { form: recipe.form, block_rounding: recipe.block_rounding }
    }

    /// The operators of an element type. `stored` tells constants, which need no quantizing operator.
    pub fn operators(&self, element: Element, stored: bool) -> Result<Operators, QuantizeError> {
        use Element::*;
        Ok(match (element, self.form) {
            (Block(block), _) => Operators::Block(block),
            (Float16 | BFloat16, Form::Quark) => Operators::Extended,
            (Float16 | BFloat16, _) => Operators::Cast,
            (Int32 | UInt32, Form::Quark) => Operators::Extended,
            (Int32, _) if stored => Operators::Linear(""),
            (Int32 | UInt32, _) => {
                let form = if self.form == Form::Standard { "standard" } else { "com.microsoft" };
                return Err(QuantizeError::NoOperator { element: element.to_string(), form });
            }
            (Float8E4M3 | Float8E5M2, _) | (_, Form::Standard) => Operators::Linear(""),
            (_, Form::Microsoft | Form::Quark) => Operators::Linear(MICROSOFT),
        })
    }

    /// The lowest standard opset that an element type can be written in.
    pub fn opset(&self, element: Element, per_channel: bool) -> i64 {
        use Element::*;
        let standard = self.operators(element, true).is_ok_and(|operators| operators == Operators::Linear(""));
        match element {
            Int16 | UInt16 | Int4 | UInt4 if standard => 21,
            Float8E4M3 | Float8E5M2 => 19,
            BFloat16 => 13,
            _ if per_channel => 13,
            _ => 10,
        }
    }

    /// The node that quantizes and dequantizes a block format along an axis.
    pub fn block_node(&self, block: Block, name: &str, input: &str, output: &str, axis: i64) -> NodeProto {
        match micro_float(block) {
            Some(element) => micro_node(element, name, input, output, axis),
            None => self.exponent_node(block, name, input, output, axis),
        }
    }

    fn exponent_node(&self, block: Block, name: &str, input: &str, output: &str, axis: i64) -> NodeProto {
        let (method, width, size, rounding) = match block {
            Block::Mx4 => ("to_bfp_prime", 11, 16, 2),
            Block::Mx6 => ("to_bfp_prime", 13, 16, 2),
            Block::Mx9 => ("to_bfp_prime", 16, 16, 2),
            _ => ("to_bfp", 16, 8, i64::from(self.block_rounding)),
        };
        let mut made = quark_node("BFPQuantizeDequantize", name, &[input], output);
        set_attribute(&mut made, "bfp_method", method);
        let numbers = [
            ("axis", axis),
            ("bit_width", width),
            ("block_size", size),
            ("rounding_mode", rounding),
            ("sub_block_size", 2),
            ("sub_block_shift_bits", 1),
            ("convert_to_bfloat_before_bfp", 0),
        ];
        numbers.iter().for_each(|&(key, value)| set_attribute(&mut made, key, value));
        made
    }
}

/// The name of a microscaling element in its operator's attribute.
fn micro_float(block: Block) -> Option<&'static str> {
    Some(match block {
        Block::MxFp4E2M1 => "fp4_e2m1",
        Block::MxFp6E2M3 => "fp6_e2m3",
        Block::MxFp6E3M2 => "fp6_e3m2",
        Block::MxFp8E4M3 => "fp8_e4m3",
        Block::MxFp8E5M2 => "fp8_e5m2",
        Block::MxInt8 => "int8",
        Block::Bfp16 | Block::Mx4 | Block::Mx6 | Block::Mx9 => return None,
    })
}

fn micro_node(element: &str, name: &str, input: &str, output: &str, axis: i64) -> NodeProto {
    let mut made = quark_node("MXQuantizeDequantize", name, &[input], output);
    set_attribute(&mut made, "element_dtype", element);
    [("axis", axis), ("block_size", 32), ("rounding_mode", 2)]
        .iter()
        .for_each(|&(key, value)| set_attribute(&mut made, key, value));
    made
}

/// A node of Quark's domain.
pub fn quark_node(op_type: &str, name: &str, inputs: &[&str], output: &str) -> NodeProto {
    let mut made = node(op_type, name, inputs, &[output]);
    made.domain = Some(QUARK.to_owned());
    made
}

/// A quantizing or dequantizing node with a scale and a zero point.
pub fn linear_node(op: Operators, quantizes: bool, name: &str, inputs: &[&str], output: &str) -> NodeProto {
    let plain = if quantizes { "QuantizeLinear" } else { "DequantizeLinear" };
    match op {
        Operators::Extended => quark_node(&format!("Extended{plain}"), name, inputs, output),
        Operators::Linear(domain) if !domain.is_empty() => {
            let mut made = node(plain, name, inputs, &[output]);
            made.domain = Some(domain.to_owned());
            made
        }
        _ => node(plain, name, inputs, &[output]),
    }
}
