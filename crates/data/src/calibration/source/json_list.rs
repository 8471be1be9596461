//! A list of rows in a JSON document, read element by element: memory holds one row for any document size.

use super::super::CalibrationDataError;
use super::super::document::RowSink;
use super::super::files::{DataFile, Reading};
use super::super::stream;
use super::MAX_ROW;
use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Error, Value};
use std::cell::Cell;
use std::fmt;
use std::io::{self, Read};
use std::ops::ControlFlow;
use std::rc::Rc;

/// The position of the list in the document.
pub(super) enum Place {
    /// It is the document.
    Top,
    /// It is a member of the object that is the document.
    Member(String),
}

/// Hands out the rows of a list.
pub(super) fn read(
    file: &DataFile,
    reading: &Reading<'_>,
    place: Place,
    sink: &mut RowSink<'_>,
) -> Result<(), CalibrationDataError> {
    let (metered, left) = Metered::open(file, reading)?;
    let mut json = serde_json::Deserializer::from_reader(metered);
    let mut end = None;
    let rows = Rows { sink, left, end: &mut end };
    let done = match place {
        Place::Top => rows.deserialize(&mut json),
        Place::Member(name) => json.deserialize_map(Member { name, rows }),
    };
    let done = done.and_then(|()| json.end());
    end.unwrap_or_else(|| done.map_err(|error| failure(file, reading, error)))
}

/// Classifies a parse error.
pub(super) fn failure(file: &DataFile, reading: &Reading<'_>, error: Error) -> CalibrationDataError {
    if error.is_io() {
        return stream::failure(file, reading.max_bytes, error.into());
    }
    CalibrationDataError::damaged(&file.path, error)
}

/// A stream that fails if a row is too long.
pub(super) struct Metered<R> {
    stream: R,
    left: Rc<Cell<usize>>,
}

/// The remaining bytes of the current row.
pub(super) type Left = Rc<Cell<usize>>;

impl Metered<()> {
    /// Opens a document without its byte order mark, and returns the rest of its first row.
    pub(super) fn open(
        file: &DataFile,
        reading: &Reading<'_>,
    ) -> Result<(Metered<impl Read + use<>>, Left), CalibrationDataError> {
        let mut stream = stream::open(file, reading.max_bytes)?;
        stream::skip_mark(&mut stream).map_err(|cause| stream::failure(file, reading.max_bytes, cause))?;
        let left = Rc::new(Cell::new(MAX_ROW));
        Ok((Metered { stream, left: left.clone() }, left))
    }
}

impl<R: Read> Read for Metered<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.stream.read(buffer)?;
        let left = self.left.get().checked_sub(read);
        self.left.set(left.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "a row is too large"))?);
        Ok(read)
    }
}

/// Takes the elements of the list.
struct Rows<'a, 's> {
    sink: &'a mut RowSink<'s>,
    left: Left,
    /// The error, if it ended before the list.
    end: &'a mut Option<Result<(), CalibrationDataError>>,
}

impl<'de> DeserializeSeed<'de> for Rows<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, list: D) -> Result<(), D::Error> {
        list.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Rows<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of rows")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        self.left.set(MAX_ROW);
        while let Some(row) = list.next_element::<Value>()? {
            self.left.set(MAX_ROW);
            match (self.sink)(Ok(row)) {
                Ok(ControlFlow::Continue(())) => {}
                enough => {
                    *self.end = Some(enough.map(drop));
                    return Err(A::Error::custom("enough"));
                }
            }
        }
        self.left.set(usize::MAX);
        Ok(())
    }
}

/// Takes the elements of the list that is a member of an object.
struct Member<'a, 's> {
    name: String,
    rows: Rows<'a, 's>,
}

impl<'de> Visitor<'de> for Member<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with a list of rows")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        self.rows.left.set(usize::MAX);
        let (name, mut rows) = (self.name, Some(self.rows));
        while let Some(key) = members.next_key::<String>()? {
            match rows.take_if(|_| key == name) {
                Some(rows) => members.next_value_seed(rows)?,
                None => drop(members.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
    }
}
