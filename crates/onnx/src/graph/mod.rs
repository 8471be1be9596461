//! The structure of a graph: producers, consumers, constants, names, attributes and opsets. No meaning of operators.

mod arity;
mod attribute;
pub mod check;
mod edit;
mod error;
mod index;
mod names;
mod node;
mod opset;
mod qdq;
mod sort;

pub use attribute::{
    attribute, float_attribute, int_attribute, ints_attribute, set_attribute, string_attribute, take_attribute,
};
pub use check::check;
pub(crate) use check::function;
pub use edit::Edit;
pub use error::GraphError;
pub use index::Index;
pub(crate) use index::for_each_read;
pub use names::{Names, NodeNames};
pub use node::{bodies, bodies_mut, called, cast_node, domain, for_each_node, is, is_standard, node, positional_input};
pub use opset::{STANDARD_DOMAIN, add_opset, opset};
pub(crate) use qdq::{is_dequantize_linear, is_qdq, is_quantize_linear};
pub use sort::{order, sort};
