//! Attributes of nodes: read with the operator's default, and set.

use kvant_container::onnx::{AttributeProto, AttributeType, Bytes, NodeProto};

/// The attribute of a name.
pub fn attribute<'a>(node: &'a NodeProto, name: &str) -> Option<&'a AttributeProto> {
    node.attribute.iter().find(|a| a.name() == name)
}

/// An integer attribute.
pub fn int_attribute(node: &NodeProto, name: &str) -> Option<i64> {
    attribute(node, name).and_then(|a| a.i)
}

/// A float attribute.
pub fn float_attribute(node: &NodeProto, name: &str) -> Option<f32> {
    attribute(node, name).and_then(|a| a.f)
}

/// A list of integers.
pub fn ints_attribute<'a>(node: &'a NodeProto, name: &str) -> Option<&'a [i64]> {
    attribute(node, name).map(|a| &a.ints[..])
}

/// A string attribute; `None` also where it is no UTF-8.
pub fn string_attribute<'a>(node: &'a NodeProto, name: &str) -> Option<&'a str> {
    attribute(node, name).and_then(|a| std::str::from_utf8(a.s.as_ref()?).ok())
}

/// A value an attribute can be set to.
pub trait AttributeValue {
    /// Writes the value and its type.
    fn put(self, attribute: &mut AttributeProto);
}

impl AttributeValue for i64 {
    fn put(self, attribute: &mut AttributeProto) {
        attribute.i = Some(self);
        attribute.type_ = Some(AttributeType::INT.into());
    }
}

impl AttributeValue for f32 {
    fn put(self, attribute: &mut AttributeProto) {
        attribute.f = Some(self);
        attribute.type_ = Some(AttributeType::FLOAT.into());
    }
}

impl AttributeValue for &[i64] {
    fn put(self, attribute: &mut AttributeProto) {
        attribute.ints = self.to_vec();
        attribute.type_ = Some(AttributeType::INTS.into());
    }
}

impl AttributeValue for &str {
    fn put(self, attribute: &mut AttributeProto) {
        attribute.s = Some(Bytes::copy_from_slice(self.as_bytes()));
        attribute.type_ = Some(AttributeType::STRING.into());
    }
}

/// Sets an attribute, in place of one of the same name.
pub fn set_attribute(node: &mut NodeProto, name: &str, value: impl AttributeValue) {
    let mut made = AttributeProto { name: Some(name.to_owned()), ..AttributeProto::default() };
    value.put(&mut made);
    match node.attribute.iter_mut().find(|a| a.name() == name) {
        Some(old) => *old = made,
        None => node.attribute.push(made),
    }
}

/// Takes an attribute away.
pub fn take_attribute(node: &mut NodeProto, name: &str) -> Option<AttributeProto> {
    let position = node.attribute.iter().position(|a| a.name() == name)?;
    Some(node.attribute.remove(position))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::node;

    #[test]
    fn attributes_are_read_back() {
        let mut conv = node("Conv", "c", &["x", "w"], &["y"]);
        set_attribute(&mut conv, "group", 4i64);
        set_attribute(&mut conv, "group", 8i64);
        set_attribute(&mut conv, "pads", &[1i64, 1, 0, 0][..]);
        set_attribute(&mut conv, "auto_pad", "NOTSET");
        assert_eq!(int_attribute(&conv, "group"), Some(8));
        assert_eq!(ints_attribute(&conv, "pads"), Some(&[1, 1, 0, 0][..]));
        assert_eq!(string_attribute(&conv, "auto_pad"), Some("NOTSET"));
        assert_eq!((float_attribute(&conv, "alpha"), conv.attribute.len()), (None, 3));
    }
}
