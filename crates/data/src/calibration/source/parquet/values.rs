//! Records as JSON values, which is what rows of all formats become. Numbers that are no integers, dates and the like are
//! null: no text is in them.

use ::parquet::record::{Field, Row};
use serde_json::{Map, Value};

/// A row or a group as an object.
pub(super) fn object(row: Row) -> Value {
    Value::Object(row.into_columns().into_iter().map(|(name, field)| (name, value(field))).collect::<Map<_, _>>())
}

fn value(field: Field) -> Value {
    match field {
        Field::Str(text) => text.into(),
        Field::Bytes(bytes) => String::from_utf8(bytes.data().to_vec()).map_or(Value::Null, Value::from),
        Field::Bool(value) => value.into(),
        Field::Byte(value) => value.into(),
        Field::Short(value) => value.into(),
        Field::Int(value) => value.into(),
        Field::Long(value) => value.into(),
        Field::UByte(value) => value.into(),
        Field::UShort(value) => value.into(),
        Field::UInt(value) => value.into(),
        Field::ULong(value) => value.into(),
        Field::Group(group) => object(group),
        Field::ListInternal(list) => list.elements().iter().cloned().map(value).collect(),
        _ => Value::Null,
    }
}
