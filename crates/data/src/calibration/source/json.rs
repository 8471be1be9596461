//! `.json`: a list of rows, an object that holds one list of rows, a single row, or after all a row on each line. Decides
//! which; the lists themselves are read in [`super::json_list`].

use super::super::CalibrationDataError;
use super::super::document::RowSink;
use super::super::files::{DataFile, Reading};
use super::super::stream;
use super::json_list::{self, Left, Metered, Place};
use super::{MAX_ROW, json_lines};
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use std::fmt;
use std::io::{BufReader, Read};

/// Hands out the rows with their fields.
pub(in super::super) fn rows(
    file: &DataFile,
    reading: &Reading<'_>,
    sink: &mut RowSink<'_>,
) -> Result<(), CalibrationDataError> {
    if json_lines::has_several(file, reading)? {
        return json_lines::rows(file, reading, sink);
    }
    if first_byte(file, reading)? != Some(b'{') {
        return json_list::read(file, reading, Place::Top, sink);
    }
    match list_of_rows(file, reading)? {
        Some(name) => json_list::read(file, reading, Place::Member(name), sink),
        None => {
            let mut json = serde_json::Deserializer::from_reader(Metered::open(file, reading)?.0);
            let row = Value::deserialize(&mut json).map_err(|error| json_list::failure(file, reading, error))?;
            sink(Ok(row)).map(drop)
        }
    }
}

/// The first byte that is no white space.
fn first_byte(file: &DataFile, reading: &Reading<'_>) -> Result<Option<u8>, CalibrationDataError> {
    let (document, left) = Metered::open(file, reading)?;
    left.set(usize::MAX);
    let first = BufReader::new(document).bytes().find(|byte| !matches!(byte, Ok(b' ' | b'\t' | b'\r' | b'\n')));
    first.transpose().map_err(|cause| stream::failure(file, reading.max_bytes, cause))
}

/// The member of an object that is the list of rows; `None` where the object is itself a row.
fn list_of_rows(file: &DataFile, reading: &Reading<'_>) -> Result<Option<String>, CalibrationDataError> {
    let (document, left) = Metered::open(file, reading)?;
    let mut json = serde_json::Deserializer::from_reader(document);
    let found = json.deserialize_map(Survey { left, reading }).and_then(|found| json.end().map(|()| found));
    let Members { lists, is_row } = found.map_err(|error| json_list::failure(file, reading, error))?;
    match <[String; 1]>::try_from(lists) {
        _ if is_row => Ok(None),
        Ok([name]) => Ok(Some(name)),
        Err(lists) => {
            let message = format!("an object with {} lists, where one should hold the rows", lists.len());
            Err(CalibrationDataError::damaged(&file.path, message))
        }
    }
}

/// The members of an object.
struct Members {
    /// The names of the members that are lists.
    lists: Vec<String>,
    /// Whether a member has a name that a field of a row has.
    is_row: bool,
}

/// Looks at the members of an object without keeping them.
struct Survey<'a> {
    left: Left,
    reading: &'a Reading<'a>,
}

impl<'de> Visitor<'de> for Survey<'_> {
    type Value = Members;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Members, A::Error> {
        let mut found = Members { lists: Vec::new(), is_row: false };
        while let Some(name) = members.next_key::<String>()? {
            self.left.set(usize::MAX);
            let IsList(is_list) = members.next_value()?;
            found.is_row |= self.reading.marks_row(&name);
            found.lists.extend(is_list.then_some(name));
            self.left.set(MAX_ROW);
        }
        Ok(found)
    }
}

/// Whether a value is a list.
struct IsList(bool);

impl<'de> Deserialize<'de> for IsList {
    fn deserialize<D: Deserializer<'de>>(value: D) -> Result<IsList, D::Error> {
        value.deserialize_any(AnyValue)
    }
}

/// Passes over a value of any type.
struct AnyValue;

impl<'de> Visitor<'de> for AnyValue {
    type Value = IsList;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<IsList, E> {
        Ok(IsList(false))
    }

    fn visit_bool<E>(self, _: bool) -> Result<IsList, E> {
        Ok(IsList(false))
    }

    fn visit_i64<E>(self, _: i64) -> Result<IsList, E> {
        Ok(IsList(false))
    }

    fn visit_u64<E>(self, _: u64) -> Result<IsList, E> {
        Ok(IsList(false))
    }

    fn visit_f64<E>(self, _: f64) -> Result<IsList, E> {
        Ok(IsList(false))
    }

    fn visit_str<E>(self, _: &str) -> Result<IsList, E> {
        Ok(IsList(false))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<IsList, A::Error> {
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(IsList(true))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<IsList, A::Error> {
        while members.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(IsList(false))
    }
}
