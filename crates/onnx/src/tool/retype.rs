//! Codes of signed types as unsigned ones and the reverse, and biases of other widths.

mod biases;
mod groups;

use std::fmt;
use std::str::FromStr;

use kvant_container::onnx::{DataType, ModelProto, Spill, TensorProto, data_type, keep, shape, tensor, tensor_bytes};

use super::{ToolError, inlined};
use crate::UnknownWord;
use crate::element::Element;
use crate::writing::lift_constants;
use groups::CodeGroups;

/// The integer types of activations and weights, written as `u8s8`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CodeTypes {
    /// Of what is computed, and of constants beside it in arithmetic.
    pub activation: Element,
    /// Of constants that products multiply with.
    pub weight: Element,
}

/// The types that [`retype`] gives. What is `None` keeps its types.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RetypeRequest {
    /// Types of activations and weights of the same number of bits.
    pub codes: Option<CodeTypes>,
    /// The type of biases: int16 or int32.
    pub bias: Option<Element>,
}

/// The results of [`retype`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Retyped {
    /// Computed tensors whose codes have another type.
    pub activations: usize,
    /// Constants whose codes have another type.
    pub constants: usize,
    /// Biases whose codes have another type.
    pub biases: usize,
    /// Tensors of codes that keep theirs: inputs and outputs of the graph, and what operators read whose types are fixed.
    pub left: Vec<String>,
    /// Tensors of codes that keep theirs as they have another number of bits.
    pub of_other_widths: Vec<String>,
}

/// Changes the types of codes, and not what they stand for: an unsigned code and zero point of `b` bits is the signed one plus `2^(b - 1)`.
/// Biases keep their codes and scales. Large new constants go to `spill`.
///
/// # Errors
/// [`ToolError::NotRetyped`] for codes of a bias that the type does not hold, and for an operator that has no kernel of the types;
/// [`ToolError::NothingToRetype`] for a graph whose types are those asked for.
pub fn retype(model: &mut ModelProto, request: &RetypeRequest, spill: Option<&Spill>) -> Result<Retyped, ToolError> {
    let mut made = inlined(model)?;
    lift_constants(&mut made);
    let mut done = Retyped::default();
    if let Some(types) = request.codes {
        let groups = CodeGroups::of(&made);
        let changes = groups.changes(types)?;
        (done.activations, done.constants) = (changes.activations, changes.constants);
        done.left.clone_from(&changes.left);
        done.of_other_widths.clone_from(&changes.of_other_widths);
        if let Some(graph) = made.graph.as_mut() {
            changes.apply(graph, spill)?;
        }
    }
    if let Some(to) = request.bias {
        done.biases = biases::retype(&mut made, to, spill)?;
    }
    if done.activations + done.constants + done.biases == 0 {
        return Err(ToolError::NothingToRetype { left: done.left.clone() });
    }
    *model = made;
    Ok(done)
}

/// The integer type of a tensor of codes.
fn element_of(data_type: DataType) -> Option<Element> {
    Some(match data_type {
        DataType::INT4 => Element::Int4,
        DataType::UINT4 => Element::UInt4,
        DataType::INT8 => Element::Int8,
        DataType::UINT8 => Element::UInt8,
        DataType::INT16 => Element::Int16,
        DataType::UINT16 => Element::UInt16,
        _ => return None,
    })
}

/// Codes of the other sign: their highest bit changes.
fn of_other_sign(codes: &TensorProto, name: &str, spill: Option<&Spill>) -> Result<TensorProto, ToolError> {
    let element = element_of(data_type(codes)).map_or(Element::UInt8, other_sign);
    let mut bytes = tensor_bytes(codes).map_err(|_| unreadable(codes))?.into_owned();
    let sizes = shape(codes).map_err(|_| unreadable(codes))?;
    match element.integer_bits() {
        Some(4) => {
            bytes.iter_mut().for_each(|byte| *byte ^= 0x88);
            // The upper half of the last byte holds nothing where the number of codes is odd.
            if sizes.iter().product::<usize>() % 2 == 1 {
                bytes.iter_mut().next_back().into_iter().for_each(|byte| *byte &= 0x0f);
            }
        }
        Some(16) => bytes.iter_mut().skip(1).step_by(2).for_each(|byte| *byte ^= 0x80),
        _ => bytes.iter_mut().for_each(|byte| *byte ^= 0x80),
    }
    let to = element.data_type().unwrap_or(DataType::UINT8);
    Ok(tensor(name, to, &sizes, keep(spill, bytes)?))
}

fn unreadable(codes: &TensorProto) -> ToolError {
    ToolError::NotRetyped { name: codes.name().to_owned(), reason: "its contents do not have its shape".to_owned() }
}

/// The type of as many bits and the other sign.
fn other_sign(element: Element) -> Element {
    match element {
        Element::Int4 => Element::UInt4,
        Element::UInt4 => Element::Int4,
        Element::Int8 => Element::UInt8,
        Element::UInt8 => Element::Int8,
        Element::Int16 => Element::UInt16,
        Element::UInt16 => Element::Int16,
        other => other,
    }
}

impl fmt::Display for CodeTypes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for element in [self.activation, self.weight] {
            let sign = if element.is_signed() { 's' } else { 'u' };
            write!(f, "{sign}{}", element.integer_bits().unwrap_or(0))?;
        }
        Ok(())
    }
}

impl FromStr for CodeTypes {
    type Err = UnknownWord;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wanted = text.trim().to_ascii_lowercase();
        let parts: Vec<(&str, Element)> = [
            ("s4", Element::Int4),
            ("u4", Element::UInt4),
            ("s8", Element::Int8),
            ("u8", Element::UInt8),
            ("s16", Element::Int16),
            ("u16", Element::UInt16),
        ]
        .into();
        let of = |start: &str| parts.iter().find(|(name, _)| *name == start).map(|(_, element)| *element);
        let split = (2..wanted.len()).filter(|&at| wanted.is_char_boundary(at)).find_map(|at| {
            let (activation, weight) = wanted.split_at(at);
            Some(Self { activation: of(activation)?, weight: of(weight)? })
        });
        let expected = "a pair of types of activations and weights; write u8s8, s8s8, u8u8, u16s8, s16s8 and the like";
        split.ok_or_else(|| UnknownWord::new(text, expected.to_owned()))
    }
}

#[cfg(test)]
mod tests;
