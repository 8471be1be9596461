//! ONNX Runtime's calibration table for execution providers, which read it as a table of FlatBuffers: a vector of tables, each with two
//! strings, the name of an activation and the decimal digits of its largest magnitude.
//!
//! All offsets are relative: a `u32` at the beginning leads to the root table; a table begins with the distance back to its list of fields,
//! which has the place of each field in the table; a field leads on to a vector or a string, both of which begin with their length.

use super::error::Problem;
use super::onnxruntime::of_magnitude;
use super::tensorrt::magnitude;
use super::{Contents, RangeTable};

/// Bytes of an offset.
const WORD: usize = 4;

/// A table at a place of a file.
#[derive(Clone, Copy)]
struct Table<'b> {
    bytes: &'b [u8],
    at: usize,
}

/// The word at a place; `None` beyond the end.
fn word(bytes: &[u8], at: usize) -> Option<usize> {
    let word = bytes.get(at..at.checked_add(WORD)?)?;
    Some(u32::from_le_bytes(word.try_into().ok()?) as usize)
}

fn half_word(bytes: &[u8], at: usize) -> Option<usize> {
    let half = bytes.get(at..at.checked_add(2)?)?;
    Some(u16::from_le_bytes(half.try_into().ok()?).into())
}

/// Where the offset at a place leads.
fn follow(bytes: &[u8], at: usize) -> Option<usize> {
    at.checked_add(word(bytes, at)?)
}

impl<'b> Table<'b> {
    /// The place that a field leads to.
    fn field(self, field: usize) -> Option<usize> {
        let Table { bytes, at } = self;
        let back = word(bytes, at)? as u32 as i32;
        let fields = usize::try_from(i64::try_from(at).ok()? - i64::from(back)).ok()?;
        let entry = WORD + 2 * field;
        // Fields at the end of the list may be left out.
        half_word(bytes, fields).filter(|&length| entry + 2 <= length)?;
        let place = half_word(bytes, fields.checked_add(entry)?).filter(|&place| place > 0)?;
        follow(bytes, at.checked_add(place)?)
    }

    fn string(self, field: usize) -> Option<&'b str> {
        let at = self.field(field)?;
        let from = at.checked_add(WORD)?;
        std::str::from_utf8(self.bytes.get(from..from.checked_add(word(self.bytes, at)?)?)?).ok()
    }
}

/// The names and numbers of a table; `None` if the bytes are none.
fn entries(bytes: &[u8]) -> Option<Vec<(&str, &str)>> {
    let root = Table { bytes, at: follow(bytes, 0)? };
    let vector = root.field(0)?;
    let count = word(bytes, vector)?;
    let first = vector.checked_add(WORD)?;
    bytes.get(first..first.checked_add(count.checked_mul(WORD)?)?)?;
    // Entries that share their strings could be much longer together than the file.
    let mut length = 0;
    let entry = |at: usize| {
        let table = Table { bytes, at: follow(bytes, first + at * WORD)? };
        let (name, number) = (table.string(0)?, table.string(1)?);
        length += name.len() + number.len();
        (length <= bytes.len()).then_some((name, number))
    };
    (0..count).map(entry).collect()
}

pub(super) fn is_of(contents: &Contents<'_>) -> bool {
    entries(contents.binary()).is_some_and(|entries| !entries.is_empty())
}

pub(super) fn read(contents: &Contents<'_>) -> Result<RangeTable, Problem> {
    let entry = |(name, number): (&str, &str)| {
        let magnitude = number.trim().parse();
        let magnitude =
            magnitude.map_err(|_| Problem::of(name, format!("`{}` is not a number", number.escape_debug())))?;
        Ok((name.to_owned(), of_magnitude(name, magnitude)?))
    };
    entries(contents.binary()).into_iter().flatten().map(entry).collect()
}

pub(super) fn write(table: &RangeTable) -> Result<Vec<u8>, Problem> {
    let entries = table.iter().filter_map(|(name, tensor)| Some((name.as_str(), format!("{:?}", magnitude(tensor)?))));
    let entries: Vec<(&str, String)> = entries.collect();
    let (count, mut bytes) = (entries.len(), Vec::new());
    // The offset of the root table behind its list of fields; the list: its length, the table's, one field; the table.
    put(&mut bytes, &[12]);
    put_halves(&mut bytes, &[6, 8, 4, 0]);
    put(&mut bytes, &[8, WORD]);
    // The vector, whose tables follow behind the list of their two fields.
    put(&mut bytes, &[count]);
    let (fields, first) = (bytes.len() + count * WORD, bytes.len() + count * WORD + 8);
    let size = 3 * WORD;
    for at in 0..count {
        let place = first + at * size - bytes.len();
        put(&mut bytes, &[place]);
    }
    put_halves(&mut bytes, &[8, 12, 4, 8]);
    let mut string = first + count * size;
    for (at, (name, number)) in entries.iter().enumerate() {
        let table = first + at * size;
        put(&mut bytes, &[table - fields, string - (table + WORD)]);
        string += stored(name);
        put(&mut bytes, &[string - (table + 2 * WORD)]);
        string += stored(number);
    }
    if u32::try_from(string).is_err() {
        return Err(Problem::Invalid("its tensors do not fit into 4 GB".to_owned()));
    }
    for text in entries.iter().flat_map(|(name, number)| [*name, number.as_str()]) {
        put(&mut bytes, &[text.len()]);
        bytes.extend_from_slice(text.as_bytes());
        bytes.resize(bytes.len() + stored(text) - WORD - text.len(), 0);
    }
    Ok(bytes)
}

/// Bytes of a string: its length, its bytes, a zero and what aligns the next one.
fn stored(text: &str) -> usize {
    WORD + (text.len() + 1).next_multiple_of(WORD)
}

/// Appends words, all of which are below the length of the file.
fn put(bytes: &mut Vec<u8>, words: &[usize]) {
    words.iter().for_each(|&word| bytes.extend_from_slice(&(word as u32).to_le_bytes()));
}

fn put_halves(bytes: &mut Vec<u8>, halves: &[u16]) {
    halves.iter().for_each(|half| bytes.extend_from_slice(&half.to_le_bytes()));
}
