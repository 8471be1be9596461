//! Messages of protobuf: the types of fields, how each is read from a shared buffer and written, and the macros that define a
//! message from a list of fields.
//!
//! Fields that a message does not know are kept and written behind the others.

use std::io::{self, Write};

use bytes::Bytes;

use crate::protobuf::{Fields, Kind, Wire, WireError, tag_size, varint_size, write_tag, write_varint};

/// Messages within messages that are read.
const DEEPEST: u32 = 100;

/// The source of a message.
#[derive(Clone, Copy)]
pub struct Source<'a> {
    /// The buffer that contains its bytes, with which contents are shared.
    whole: &'a Bytes,
    depth: u32,
}

/// A message.
pub trait Message: Default + 'static {
    /// One without fields.
    fn empty() -> &'static Self;
    /// Takes a field, or says that it knows none of that number and kind.
    fn take(&mut self, number: u32, wire: Wire<'_>, source: Source<'_>) -> Result<bool, WireError>;
    /// Storage for unknown fields.
    fn unknown(&mut self) -> &mut Unknown;
    /// Bytes of the message.
    fn message_size(&self) -> u64;
    /// Writes the message.
    fn write_message(&self, out: &mut dyn Write) -> io::Result<()>;

    /// Reads the message from bytes that are a part of a source.
    fn read_message(bytes: &[u8], source: Source<'_>) -> Result<Self, WireError> {
        let (mut message, mut fields) = (Self::default(), Fields(bytes));
        while let Some((number, wire)) = fields.next()? {
            if !message.take(number, wire, source)? {
                message.unknown().0.push((number, Contents::of(wire, source)));
            }
        }
        Ok(message)
    }

    /// Reads the message, which is all of the bytes.
    fn parse(bytes: &Bytes) -> Result<Self, WireError> {
        Self::read_message(bytes, Source { whole: bytes, depth: 0 })
    }
}

/// Fields that a message does not know, as they came.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Unknown(Vec<(u32, Contents)>);

#[derive(Clone, Debug, PartialEq)]
enum Contents {
    Varint(u64),
    Fixed64([u8; 8]),
    Bytes(Bytes),
    Fixed32([u8; 4]),
}

impl Contents {
    fn of(wire: Wire<'_>, source: Source<'_>) -> Contents {
        match wire {
            Wire::Varint(value) => Contents::Varint(value),
            Wire::Fixed64(value) => Contents::Fixed64(value),
            Wire::Bytes(value) => Contents::Bytes(source.whole.slice_ref(value)),
            Wire::Fixed32(value) => Contents::Fixed32(value),
        }
    }

    fn wire(&self) -> Wire<'_> {
        match self {
            Contents::Varint(value) => Wire::Varint(*value),
            Contents::Fixed64(value) => Wire::Fixed64(*value),
            Contents::Bytes(value) => Wire::Bytes(value),
            Contents::Fixed32(value) => Wire::Fixed32(*value),
        }
    }
}

impl Unknown {
    pub(super) fn size(&self) -> u64 {
        self.0.iter().map(|(number, contents)| tag_size(*number) + contents.wire().size()).sum()
    }

    pub(super) fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        self.0.iter().try_for_each(|(number, contents)| {
            write_tag(*number, contents.wire().kind(), out)?;
            contents.wire().write(out)
        })
    }
}

/// What a field holds, or several times.
pub trait Value: Sized {
    /// Its storage.
    const KIND: Kind;
    /// Reads it; `None` where it is of another kind.
    fn read(wire: Wire<'_>, source: Source<'_>) -> Result<Option<Self>, WireError>;
    /// Bytes behind the tag.
    fn size(&self) -> u64;
    /// Writes it without a tag.
    fn write(&self, out: &mut dyn Write) -> io::Result<()>;
}

/// A number or bytes, converted from and to its encoding in a message.
macro_rules! value {
    ($type:ty $(where $enum:ident)?, $kind:ident, $read:expr, $wire:expr) => {
        impl $(<$enum: Enum>)? Value for $type {
            const KIND: Kind = Kind::$kind;

            fn read(wire: Wire<'_>, source: Source<'_>) -> Result<Option<Self>, WireError> {
                let Wire::$kind(value) = wire else { return Ok(None) };
                let read: fn(_, Source<'_>) -> Result<Self, WireError> = $read;
                read(value, source).map(Some)
            }

            fn size(&self) -> u64 {
                let wire: fn(&Self) -> Wire<'_> = $wire;
                wire(self).size()
            }

            fn write(&self, out: &mut dyn Write) -> io::Result<()> {
                let wire: fn(&Self) -> Wire<'_> = $wire;
                wire(self).write(out)
            }
        }
    };
}

value!(u64, Varint, |value, _| Ok(value), |value| Wire::Varint(*value));
value!(i64, Varint, |value: u64, _| Ok(value as i64), |value| Wire::Varint(*value as u64));
value!(i32, Varint, |value: u64, _| narrow(value), |value| Wire::Varint(i64::from(*value) as u64));
value!(f32, Fixed32, |value, _| Ok(f32::from_le_bytes(value)), |value| Wire::Fixed32(value.to_le_bytes()));
value!(f64, Fixed64, |value, _| Ok(f64::from_le_bytes(value)), |value| Wire::Fixed64(value.to_le_bytes()));
value!(Bytes, Bytes, |value: &[u8], source| Ok(source.whole.slice_ref(value)), |value| Wire::Bytes(value));
value!(String, Bytes, |value: &[u8], _| text(value), |value| Wire::Bytes(value.as_bytes()));
value!(
    EnumOrUnknown<E> where E, Varint,
    |value: u64, _| narrow(value).map(Self::from_i32),
    |value| Wire::Varint(i64::from(value.number) as u64)
);

fn narrow(value: u64) -> Result<i32, WireError> {
    i32::try_from(value as i64).map_err(|_| WireError::TooLarge(value as i64))
}

fn text(bytes: &[u8]) -> Result<String, WireError> {
    String::from_utf8(bytes.to_vec()).map_err(|_| WireError::Utf8)
}

impl<M: Message> Value for M {
    const KIND: Kind = Kind::Bytes;

    fn read(wire: Wire<'_>, source: Source<'_>) -> Result<Option<M>, WireError> {
        let Wire::Bytes(bytes) = wire else { return Ok(None) };
        let depth = source.depth + 1;
        if depth > DEEPEST {
            Err(WireError::Depth)
        } else {
            M::read_message(bytes, Source { depth, ..source }).map(Some)
        }
    }

    fn size(&self) -> u64 {
        let size = self.message_size();
        varint_size(size) + size
    }

    fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        write_varint(self.message_size(), out)?;
        self.write_message(out)
    }
}

/// A field.
pub trait Field {
    /// Its borrowed form.
    type Seen<'a>
    where
        Self: 'a;
    /// The value, or the default of an absent one.
    fn seen(&self) -> Self::Seen<'_>;
    /// Takes a value, or says that it is of another kind.
    fn take(&mut self, wire: Wire<'_>, source: Source<'_>) -> Result<bool, WireError>;
    /// Bytes with tags.
    fn size(&self, number: u32, packed: bool) -> u64;
    /// Writes it with tags.
    fn write(&self, number: u32, packed: bool, out: &mut dyn Write) -> io::Result<()>;
}

/// The borrowed form of a value that may be absent.
pub trait Optional: Value {
    /// The value, or a borrow of it.
    type Seen<'a>
    where
        Self: 'a;
    /// The value; zero, nothing or the first of an enumeration where there is none.
    fn seen(value: Option<&Self>) -> Self::Seen<'_>;
}

macro_rules! optional_number {
    ($($type:ty),*) => { $(impl Optional for $type {
        type Seen<'a> = $type;

        fn seen(value: Option<&$type>) -> $type {
            value.copied().unwrap_or_default()
        }
    })* };
}
optional_number!(f32, i32, i64);

impl Optional for String {
    type Seen<'a> = &'a str;

    fn seen(value: Option<&String>) -> &str {
        value.map(String::as_str).unwrap_or_default()
    }
}

impl Optional for Bytes {
    type Seen<'a> = &'a [u8];

    fn seen(value: Option<&Bytes>) -> &[u8] {
        value.map(|bytes| &**bytes).unwrap_or_default()
    }
}

impl<E: Enum> Optional for EnumOrUnknown<E> {
    type Seen<'a>
        = E
    where
        E: 'a;

    fn seen(value: Option<&Self>) -> E {
        value.map(Self::enum_value_or_default).unwrap_or_default()
    }
}

impl<T: Optional> Field for Option<T> {
    type Seen<'a>
        = T::Seen<'a>
    where
        T: 'a;

    fn seen(&self) -> T::Seen<'_> {
        T::seen(self.as_ref())
    }

    fn take(&mut self, wire: Wire<'_>, source: Source<'_>) -> Result<bool, WireError> {
        let value = T::read(wire, source)?;
        let is_taken = value.is_some();
        *self = value.or_else(|| self.take());
        Ok(is_taken)
    }

    fn size(&self, number: u32, _packed: bool) -> u64 {
        self.as_ref().map_or(0, |value| tag_size(number) + value.size())
    }

    fn write(&self, number: u32, _packed: bool, out: &mut dyn Write) -> io::Result<()> {
        self.as_ref().map_or(Ok(()), |value| write_value(number, value, out))
    }
}

impl<M: Message> Field for MessageField<M> {
    type Seen<'a>
        = Option<&'a M>
    where
        M: 'a;

    fn seen(&self) -> Option<&M> {
        self.as_ref()
    }

    fn take(&mut self, wire: Wire<'_>, source: Source<'_>) -> Result<bool, WireError> {
        let value = M::read(wire, source)?;
        let is_taken = value.is_some();
        self.0 = value.map(Box::new).or_else(|| self.0.take());
        Ok(is_taken)
    }

    fn size(&self, number: u32, _packed: bool) -> u64 {
        self.as_ref().map_or(0, |value| tag_size(number) + value.size())
    }

    fn write(&self, number: u32, _packed: bool, out: &mut dyn Write) -> io::Result<()> {
        self.as_ref().map_or(Ok(()), |value| write_value(number, value, out))
    }
}

impl<T: Value> Field for Vec<T> {
    type Seen<'a>
        = &'a [T]
    where
        T: 'a;

    fn seen(&self) -> &[T] {
        self
    }

    /// Numbers come one by one or many at a time, however they are to be written.
    fn take(&mut self, wire: Wire<'_>, source: Source<'_>) -> Result<bool, WireError> {
        if let Some(value) = T::read(wire, source)? {
            self.push(value);
            return Ok(true);
        }
        let (Wire::Bytes(mut bytes), true) = (wire, T::KIND != Kind::Bytes) else { return Ok(false) };
        while !bytes.is_empty() {
            self.extend(T::read(Wire::take(T::KIND, &mut bytes)?, source)?);
        }
        Ok(true)
    }

    fn size(&self, number: u32, packed: bool) -> u64 {
        let values: u64 = self.iter().map(Value::size).sum();
        match packed {
            _ if self.is_empty() => 0,
            true => tag_size(number) + varint_size(values) + values,
            false => self.len() as u64 * tag_size(number) + values,
        }
    }

    fn write(&self, number: u32, packed: bool, out: &mut dyn Write) -> io::Result<()> {
        if !packed || self.is_empty() {
            return self.iter().try_for_each(|value| write_value(number, value, out));
        }
        write_tag(number, Kind::Bytes, out)?;
        write_varint(self.iter().map(Value::size).sum(), out)?;
        self.iter().try_for_each(|value| value.write(out))
    }
}

fn write_value<T: Value>(number: u32, value: &T, out: &mut dyn Write) -> io::Result<()> {
    write_tag(number, T::KIND, out)?;
    value.write(out)
}

/// One of several fields, of which the last one counts.
pub trait OneOf: Sized {
    /// Reads the value of a number and kind that are known.
    fn read(number: u32, wire: Wire<'_>, source: Source<'_>) -> Result<Option<Self>, WireError>;
    /// Bytes with the tag.
    fn size(&self) -> u64;
    /// Writes it with its tag.
    fn write(&self, out: &mut dyn Write) -> io::Result<()>;
}

/// A message that may be absent.
#[derive(Clone, Debug, PartialEq)]
pub struct MessageField<T>(Option<Box<T>>);

impl<T> MessageField<T> {
    /// A message.
    pub fn some(message: T) -> MessageField<T> {
        MessageField(Some(Box::new(message)))
    }

    /// No message.
    pub fn none() -> MessageField<T> {
        MessageField(None)
    }

    /// Returns whether there is one.
    pub fn is_some(&self) -> bool {
        self.0.is_some()
    }

    /// Returns whether there is none.
    pub fn is_none(&self) -> bool {
        self.0.is_none()
    }

    /// The message.
    pub fn as_ref(&self) -> Option<&T> {
        self.0.as_deref()
    }

    /// The message, to be changed.
    pub fn as_mut(&mut self) -> Option<&mut T> {
        self.0.as_deref_mut()
    }

    /// The message, without its place.
    pub fn into_option(self) -> Option<T> {
        self.0.map(|message| *message)
    }

    /// The message, of whose place nothing is left.
    pub fn take(&mut self) -> Option<T> {
        self.0.take().map(|message| *message)
    }

    /// The message, or none, after another.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.as_ref().into_iter()
    }
}

impl<T> From<Option<T>> for MessageField<T> {
    fn from(message: Option<T>) -> MessageField<T> {
        MessageField(message.map(Box::new))
    }
}

impl<'a, T> IntoIterator for &'a MessageField<T> {
    type Item = &'a T;
    type IntoIter = std::option::IntoIter<&'a T>;

    fn into_iter(self) -> Self::IntoIter {
        self.as_ref().into_iter()
    }
}

/// An absent message reads as one without fields.
impl<M: Message> std::ops::Deref for MessageField<M> {
    type Target = M;

    fn deref(&self) -> &M {
        match self.as_ref() {
            Some(message) => message,
            None => M::empty(),
        }
    }
}

impl<T> Default for MessageField<T> {
    fn default() -> MessageField<T> {
        MessageField(None)
    }
}

/// A value of an enumeration, or a number that it does not know.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct EnumOrUnknown<E> {
    number: i32,
    of: std::marker::PhantomData<E>,
}

/// An enumeration.
pub trait Enum: Copy + Default {
    /// The value of that number.
    fn of(number: i32) -> Option<Self>;
    /// Its number.
    fn number(self) -> i32;
}

impl<E> EnumOrUnknown<E> {
    /// The value of that number, whether it is known or not.
    pub const fn from_i32(number: i32) -> EnumOrUnknown<E> {
        EnumOrUnknown { number, of: std::marker::PhantomData }
    }
}

impl<E: Enum> EnumOrUnknown<E> {
    /// The value.
    ///
    /// # Errors
    /// The number, where it is not known.
    pub fn enum_value(&self) -> Result<E, i32> {
        E::of(self.number).ok_or(self.number)
    }

    /// The value, or another where it is not known.
    pub fn enum_value_or(&self, other: E) -> E {
        E::of(self.number).unwrap_or(other)
    }

    /// The value, or the enumeration's first where it is not known.
    pub fn enum_value_or_default(&self) -> E {
        self.enum_value_or(E::default())
    }
}

impl<E: Enum> From<E> for EnumOrUnknown<E> {
    fn from(value: E) -> EnumOrUnknown<E> {
        EnumOrUnknown::from_i32(value.number())
    }
}

impl<E: Enum + std::fmt::Debug> std::fmt::Debug for EnumOrUnknown<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.enum_value() {
            Ok(value) => value.fmt(f),
            Err(number) => number.fmt(f),
        }
    }
}

/// A message: its fields, which are written in this order, then the one of several in brackets.
macro_rules! message {
    ($(#[$doc:meta])* $name:ident $([$one:ident: $of:ty])? { $($field:ident: $type:ty = $number:literal $($packed:ident)?;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq)]
        pub struct $name {
            $(pub $field: $type,)*
            $(pub $one: Option<$of>,)?
            pub unknown: Unknown,
        }

        impl $name {
            $(pub fn $field(&self) -> <$type as Field>::Seen<'_> {
                Field::seen(&self.$field)
            })*
        }

        impl Message for $name {
            fn empty() -> &'static Self {
                static EMPTY: std::sync::LazyLock<$name> = std::sync::LazyLock::new($name::default);
                &EMPTY
            }

            fn take(&mut self, number: u32, wire: Wire<'_>, source: Source<'_>) -> Result<bool, WireError> {
                match number {
                    $($number => Field::take(&mut self.$field, wire, source),)*
                    _ => {
                        $(if let Some(value) = <$of as OneOf>::read(number, wire, source)? {
                            self.$one = Some(value);
                            return Ok(true);
                        })?
                        Ok(false)
                    }
                }
            }

            fn unknown(&mut self) -> &mut Unknown {
                &mut self.unknown
            }

            fn message_size(&self) -> u64 {
                let size = self.unknown.size();
                $(let size = size + Field::size(&self.$field, $number, message!(packed $($packed)?));)*
                $(let size = size + self.$one.as_ref().map_or(0, OneOf::size);)?
                size
            }

            fn write_message(&self, out: &mut dyn Write) -> io::Result<()> {
                $(Field::write(&self.$field, $number, message!(packed $($packed)?), out)?;)*
                $(self.$one.as_ref().map_or(Ok(()), |value| OneOf::write(value, out))?;)?
                self.unknown.write(out)
            }
        }
    };
    (packed) => { false };
    (packed packed) => { true };
}

/// One of several fields.
macro_rules! one_of {
    ($(#[$doc:meta])* $name:ident { $($variant:ident($type:ty) = $number:literal;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq)]
        pub enum $name {
            $($variant($type),)*
        }

        impl OneOf for $name {
            fn read(number: u32, wire: Wire<'_>, source: Source<'_>) -> Result<Option<Self>, WireError> {
                Ok(match number {
                    $($number => <$type as Value>::read(wire, source)?.map($name::$variant),)*
                    _ => None,
                })
            }

            fn size(&self) -> u64 {
                match self {
                    $($name::$variant(value) => tag_size($number) + Value::size(value),)*
                }
            }

            fn write(&self, out: &mut dyn Write) -> io::Result<()> {
                match self {
                    $($name::$variant(value) => {
                        write_tag($number, <$type as Value>::KIND, out)?;
                        Value::write(value, out)
                    })*
                }
            }
        }
    };
}

/// An enumeration, whose first value stands for an absent one.
macro_rules! enumeration {
    ($(#[$doc:meta])* $name:ident { $first:ident = 0, $($value:ident = $number:literal),* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        pub enum $name {
            #[default]
            $first = 0,
            $($value = $number,)*
        }

        impl Enum for $name {
            fn of(number: i32) -> Option<Self> {
                Some(match number {
                    0 => $name::$first,
                    $($number => $name::$value,)*
                    _ => return None,
                })
            }

            fn number(self) -> i32 {
                self as i32
            }
        }
    };
}

pub(super) use {enumeration, message, one_of};

#[cfg(test)]
mod tests {
    use super::super::proto::{AttributeProto, AttributeType, Dimension, DimensionValue, NodeProto, TensorProto};
    use super::*;

    fn read<M: Message>(bytes: &[u8]) -> Result<M, WireError> {
        M::parse(&Bytes::copy_from_slice(bytes))
    }

    fn written(message: &impl Message) -> Vec<u8> {
        let mut bytes = Vec::new();
        message.write_message(&mut bytes).unwrap();
        assert_eq!(bytes.len() as u64, message.message_size());
        bytes
    }

    #[test]
    fn repeated_numbers_are_read_packed_or_single_and_written_as_specified() {
        // `dims = 1` is written one by one, `int32_data = 5` packed.
        let single = [0x08, 3, 0x08, 0xac, 0x02, 0x28, 7, 0x28, 1];
        let packed = [0x0a, 3, 3, 0xac, 0x02, 0x2a, 2, 7, 1];
        let tensor: TensorProto = read(&single).unwrap();
        assert_eq!((&tensor.dims[..], &tensor.int32_data[..]), (&[3, 300][..], &[7, 1][..]));
        assert_eq!(read::<TensorProto>(&packed).unwrap(), tensor);
        assert_eq!(written(&tensor), [&single[..5], &packed[5..]].concat());
    }

    #[test]
    fn negative_varints_take_ten_bytes() {
        let attribute = AttributeProto { i: Some(-2), f: Some(-0.5), ints: vec![-1, 1], ..AttributeProto::default() };
        let bytes = written(&attribute);
        assert_eq!(bytes.len(), 5 + 11 + 11 + 2);
        assert_eq!(read::<AttributeProto>(&bytes).unwrap(), attribute);
        assert_eq!(read::<TensorProto>(&[0x10, 0x80, 0x80, 0x80, 0x80, 0x10]), Err(WireError::TooLarge(1 << 32)));
    }

    #[test]
    fn unknown_fields_are_written_after_known_ones() {
        // Number 100 twice, and a `name = 3` that is a number.
        let unknown = [0xa2, 0x06, 2, b'a', b'b', 0x18, 5, 0xa5, 0x06, 1, 2, 3, 4];
        let known = [0x1a, 1, b'n'];
        let node: NodeProto = read(&[&unknown[..], &known].concat()).unwrap();
        assert_eq!(node.name(), "n");
        assert_eq!(written(&node), [&known[..], &unknown].concat());
    }

    #[test]
    fn last_of_repeated_oneof_fields_wins() {
        let dimension: Dimension = read(&[0x08, 4, 0x12, 1, b'n', 0x1a, 1, b'd']).unwrap();
        assert_eq!(dimension.value, Some(DimensionValue::DimParam("n".to_owned())));
        assert_eq!(written(&dimension), [0x1a, 1, b'd', 0x12, 1, b'n'], "behind the others");
    }

    #[test]
    fn unknown_enum_numbers_are_kept() {
        let attribute: AttributeProto = read(&[0xa0, 0x01, 99]).unwrap();
        assert_eq!(attribute.type_(), AttributeType::UNDEFINED);
        assert_eq!(attribute.type_.unwrap().enum_value(), Err(99));
        assert_eq!(written(&attribute), [0xa0, 0x01, 99]);
    }

    #[test]
    fn deeply_nested_messages_are_refused() {
        // A graph in an attribute of a node of a graph, `g = 6`, `attribute = 5`, `node = 1`.
        let nested = |levels: usize| {
            (0..levels).fold(Vec::new(), |inner: Vec<u8>, level| {
                let tag = [0x0a, 0x32, 0x2a][level % 3];
                let mut bytes = vec![tag];
                write_varint(inner.len() as u64, &mut bytes).unwrap();
                [bytes, inner].concat()
            })
        };
        assert!(read::<NodeProto>(&nested(99)).is_ok());
        assert_eq!(read::<NodeProto>(&nested(102)), Err(WireError::Depth));
        assert_eq!(read::<NodeProto>(&[0x1a, 1, 0xff]), Err(WireError::Utf8));
        assert_eq!(read::<NodeProto>(&[0x1a, 2, b'n']), Err(WireError::Truncated));
    }
}
