//! The header of a file, checked before any of it is believed: counts, types, nesting, names, and that tensors lie aligned
//! and apart inside the file. Reads no tensor.

use std::collections::HashSet;
use std::ops::Range;

use super::cursor::Cursor;
use super::value::{Array, Text, Value, ValueType};
use super::{MAGIC, Metadata, TensorType, VERSION};
use crate::error::GgufError;
use crate::limits::{DEFAULT_ALIGNMENT, MAX_GGUF_DIMENSIONS};

/// The most bytes of a header. A vocabulary of a million tokens takes 50 MB.
const MAX_HEADER: usize = 512 << 20;

/// The deepest nesting of arrays.
const MAX_DEPTH: usize = 8;

/// The least version that is read. The first had other sizes of counts.
const LEAST_VERSION: u32 = 2;

/// The fewest bytes of a tensor's description: name, number of dimensions, type and offset.
const LEAST_INFO: usize = 24;

/// The fewest bytes of an entry of metadata: key, type and a byte.
const LEAST_ENTRY: usize = 13;

/// The parsed header.
#[derive(Debug)]
pub(super) struct Header {
    pub version: u32,
    pub alignment: u64,
    pub metadata: Metadata,
    pub tensors: Vec<Entry>,
}

/// A tensor of a header.
#[derive(Debug)]
pub(super) struct Entry {
    pub name: String,
    pub kind: TensorType,
    /// Dimensions, the slowest first.
    pub shape: Vec<usize>,
    /// Its bytes in its part's file.
    pub range: Range<usize>,
    /// The place of the part that has it, of a model in several files.
    pub part: usize,
}

/// A tensor as it is described, before its place in the file is known.
struct Described {
    name: String,
    kind: TensorType,
    shape: Vec<usize>,
    offset: u64,
    len: u64,
}

/// Reads the header of a file.
pub(super) fn parse(bytes: &[u8]) -> Result<Header, GgufError> {
    let cursor = &mut Cursor::new(&bytes[..bytes.len().min(MAX_HEADER)]);
    let parsed = parse_within(cursor, bytes.len());
    match parsed {
        // A file that seems truncated may just be longer than the part that was read.
        Err(GgufError::Truncated { .. } | GgufError::CutShort { .. } | GgufError::Impossible { .. })
            if bytes.len() > MAX_HEADER =>
        {
            Err(GgufError::TooMuchMetadata { limit: MAX_HEADER as u64 })
        }
        parsed => parsed,
    }
}

fn parse_within(cursor: &mut Cursor<'_>, file_len: usize) -> Result<Header, GgufError> {
    if cursor.take(4, "the first bytes").ok() != Some(MAGIC) {
        return Err(GgufError::NotGguf);
    }
    let version = version(cursor.number("the version")?)?;
    let tensors = cursor.count(LEAST_INFO, "the number of tensors")?;
    let entries = cursor.count(LEAST_ENTRY, "the number of metadata entries")?;
    let metadata = metadata(cursor, entries)?;
    let alignment = alignment(&metadata)?;
    let described = (0..tensors).map(|_| describe(cursor)).collect::<Result<Vec<_>, _>>()?;
    refuse_same_names(&described)?;
    let data = (cursor.position() as u64).next_multiple_of(alignment);
    let tensors = described.into_iter().map(|tensor| place(tensor, data, alignment, file_len as u64));
    let tensors = tensors.collect::<Result<Vec<_>, _>>()?;
    refuse_overlaps(&tensors)?;
    Ok(Header { version, alignment, metadata, tensors })
}

fn version(found: u32) -> Result<u32, GgufError> {
    match found {
        LEAST_VERSION..=VERSION => Ok(found),
        other if other.swap_bytes() <= VERSION => Err(GgufError::BigEndian),
        other => Err(GgufError::Version(other)),
    }
}

fn metadata(cursor: &mut Cursor<'_>, count: usize) -> Result<Metadata, GgufError> {
    let (mut entries, mut seen) = (Vec::with_capacity(count), HashSet::with_capacity(count));
    for _ in 0..count {
        let key = cursor.text("a key of the metadata")?;
        let kind = value_type(cursor)?;
        let value = value(cursor, kind)?;
        if !seen.insert(key.clone()) {
            return Err(GgufError::DuplicateKey(key));
        }
        entries.push((key, value));
    }
    Ok(Metadata::of_distinct(entries))
}

fn value_type(cursor: &mut Cursor<'_>) -> Result<ValueType, GgufError> {
    let id = cursor.number("the type of a value")?;
    let what = || "the type of a value".to_owned();
    ValueType::from_id(id).ok_or_else(|| GgufError::Impossible { what: what(), found: id.into() })
}

const VALUE: &str = "a value of the metadata";

fn value(cursor: &mut Cursor<'_>, kind: ValueType) -> Result<Value, GgufError> {
    Ok(match kind {
        ValueType::U8 => Value::U8(cursor.number(VALUE)?),
        ValueType::I8 => Value::I8(cursor.number(VALUE)?),
        ValueType::U16 => Value::U16(cursor.number(VALUE)?),
        ValueType::I16 => Value::I16(cursor.number(VALUE)?),
        ValueType::U32 => Value::U32(cursor.number(VALUE)?),
        ValueType::I32 => Value::I32(cursor.number(VALUE)?),
        ValueType::F32 => Value::F32(cursor.number(VALUE)?),
        ValueType::Bool => Value::Bool(boolean(cursor)?),
        ValueType::String => Value::String(text(cursor)?),
        ValueType::Array => Value::Array(array(cursor, 1)?),
        ValueType::U64 => Value::U64(cursor.number(VALUE)?),
        ValueType::I64 => Value::I64(cursor.number(VALUE)?),
        ValueType::F64 => Value::F64(cursor.number(VALUE)?),
    })
}

fn boolean(cursor: &mut Cursor<'_>) -> Result<bool, GgufError> {
    match cursor.number::<u8>(VALUE)? {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(GgufError::Impossible { what: "a boolean".to_owned(), found: other.into() }),
    }
}

fn text(cursor: &mut Cursor<'_>) -> Result<Text, GgufError> {
    Ok(Text::from_bytes(cursor.string("a string of the metadata")?))
}

/// An array at a depth, beginning with its type and its length.
fn array(cursor: &mut Cursor<'_>, depth: usize) -> Result<Array, GgufError> {
    if depth > MAX_DEPTH {
        return Err(GgufError::Impossible { what: "the nesting of arrays".to_owned(), found: depth as u64 });
    }
    let kind = value_type(cursor)?;
    let count = cursor.count(kind.least_bytes(), "the length of an array")?;
    macro_rules! all {
        ($variant:ident, $read:expr) => {
            Array::$variant((0..count).map(|_| $read).collect::<Result<_, _>>()?)
        };
    }
    Ok(match kind {
        ValueType::U8 => all!(U8, cursor.number(VALUE)),
        ValueType::I8 => all!(I8, cursor.number(VALUE)),
        ValueType::U16 => all!(U16, cursor.number(VALUE)),
        ValueType::I16 => all!(I16, cursor.number(VALUE)),
        ValueType::U32 => all!(U32, cursor.number(VALUE)),
        ValueType::I32 => all!(I32, cursor.number(VALUE)),
        ValueType::F32 => all!(F32, cursor.number(VALUE)),
        ValueType::Bool => all!(Bool, boolean(cursor)),
        ValueType::String => all!(String, text(cursor)),
        ValueType::Array => all!(Array, array(cursor, depth + 1)),
        ValueType::U64 => all!(U64, cursor.number(VALUE)),
        ValueType::I64 => all!(I64, cursor.number(VALUE)),
        ValueType::F64 => all!(F64, cursor.number(VALUE)),
    })
}

/// The alignment, which must be a power of two; the bound keeps sums of offsets within 64 bits.
fn alignment(metadata: &Metadata) -> Result<u64, GgufError> {
    let Some(stated) = metadata.stated_alignment() else { return Ok(DEFAULT_ALIGNMENT) };
    let found = stated.as_u64().unwrap_or(0);
    let sane = found.is_power_of_two() && found <= 1 << 30;
    sane.then_some(found).ok_or(GgufError::Impossible { what: "the alignment".to_owned(), found })
}

fn describe(cursor: &mut Cursor<'_>) -> Result<Described, GgufError> {
    const WHAT: &str = "the description of a tensor";
    let name = cursor.text("the name of a tensor")?;
    let count = cursor.number::<u32>(WHAT)? as usize;
    if count > MAX_GGUF_DIMENSIONS {
        return Err(GgufError::tensor(
            &name,
            format!("it has {count} dimensions, and {MAX_GGUF_DIMENSIONS} are the most"),
        ));
    }
    let dimension = |cursor: &mut Cursor<'_>| {
        let found = cursor.number::<u64>(WHAT)?;
        usize::try_from(found).map_err(|_| GgufError::tensor(&name, format!("it has a dimension of {found}")))
    };
    let mut shape = (0..count).map(|_| dimension(cursor)).collect::<Result<Vec<_>, _>>()?;
    shape.reverse();
    let id = cursor.number(WHAT)?;
    let kind = TensorType::from_id(id).ok_or_else(|| GgufError::TensorType { tensor: name.clone(), id })?;
    let len = kind.byte_len(&shape);
    let len = len.ok_or_else(|| {
        GgufError::tensor(&name, format!("shape {shape:?} is not a multiple of the block size of {kind}"))
    })?;
    let offset = cursor.number(WHAT)?;
    Ok(Described { name, kind, shape, offset, len })
}

fn refuse_same_names(tensors: &[Described]) -> Result<(), GgufError> {
    let mut seen = HashSet::with_capacity(tensors.len());
    let twice = tensors.iter().find(|tensor| !seen.insert(&tensor.name));
    twice.map_or(Ok(()), |tensor| Err(GgufError::DuplicateTensor(tensor.name.clone())))
}

/// Finds a tensor's bytes in the file.
fn place(tensor: Described, data: u64, alignment: u64, file_len: u64) -> Result<Entry, GgufError> {
    let Described { name, kind, shape, offset, len } = tensor;
    if offset % alignment != 0 {
        return Err(GgufError::tensor(&name, format!("its offset {offset} is not a multiple of {alignment}")));
    }
    let begin = data.checked_add(offset);
    let end = begin.and_then(|begin| begin.checked_add(len)).filter(|end| *end <= file_len);
    match begin.zip(end) {
        // Both are within the length of a mapped file.
        Some((begin, end)) => Ok(Entry { name, kind, shape, range: begin as usize..end as usize, part: 0 }),
        // An empty tensor may lie behind the last byte, where padding is left out.
        None if len == 0 => Ok(Entry { name, kind, shape, range: 0..0, part: 0 }),
        None => Err(GgufError::tensor(&name, format!("its {len} bytes at {offset} are not in the file"))),
    }
}

fn refuse_overlaps(tensors: &[Entry]) -> Result<(), GgufError> {
    let mut ordered: Vec<&Entry> = tensors.iter().filter(|tensor| !tensor.range.is_empty()).collect();
    ordered.sort_by_key(|tensor| tensor.range.start);
    let overlap = ordered.windows(2).find(|pair| pair[0].range.end > pair[1].range.start);
    overlap.map_or(Ok(()), |pair| Err(GgufError::tensor(&pair[1].name, format!("it overlaps `{}`", pair[0].name))))
}
