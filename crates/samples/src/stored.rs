//! Arrays in files: the position of their values and reading a run of them. Not their meaning to a model.

use std::io::{Cursor, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use flate2::read::DeflateDecoder;
use kvant_container::onnx::{Bytes, DataType};
use kvant_container::{Dtype, MappedFile, TensorFile};

use crate::array::{Array, Values, from_bytes};
use crate::error::SampleError;
use crate::npy::{NpyHeader, NpyProblem};
use crate::order::row_major;

/// Deflate makes at most 1032 bytes of one; a file that claims more is a bomb or broken.
const MOST_INFLATED: u64 = 1032;

/// Most bytes of a compressed array in column-major order, which is inflated whole: its rows are scattered over it.
const MOST_SCATTERED: usize = 1 << 28;

/// An array in a file.
#[derive(Debug)]
pub struct Stored {
    /// The file, with the entry in it where there is one, for messages.
    pub place: PathBuf,
    /// The array's name: that of its entry, or of its file.
    pub name: String,
    /// The type of its elements.
    pub data_type: DataType,
    /// The sizes of its axes.
    pub shape: Vec<usize>,
    content: Content,
}

#[derive(Debug)]
enum Content {
    /// The values, mapped.
    Plain(Bytes),
    /// The values in column-major order, mapped.
    ColumnMajor(Bytes),
    /// A compressed `.npy` file, inflated from its start as far as it is read.
    Deflated { compressed: Bytes, reader: Option<ArrayReader> },
}

#[derive(Debug)]
struct ArrayReader {
    inflate: DeflateDecoder<Cursor<Bytes>>,
    /// Number of the next value's byte.
    position: usize,
}

impl Stored {
    /// A `.npy` file of the given (mapped) bytes.
    pub fn npy(place: PathBuf, name: String, bytes: Bytes) -> Result<Self, SampleError> {
        let named = |problem| npy_problem(&place, problem);
        let needed = NpyHeader::needed(&bytes[..bytes.len().min(12)]).map_err(named)?;
        let header = bytes.get(..needed).ok_or_else(|| SampleError::invalid(&place, "the file ends in its header"))?;
        let header = NpyHeader::parse(header).map_err(named)?;
        let end = header.len.checked_add(header.size).filter(|&end| end <= bytes.len());
        let Some(end) = end else {
            let what = format!("{} bytes of values, where its shape needs {}", bytes.len() - header.len, header.size);
            return Err(SampleError::invalid(&place, what));
        };
        let bytes = bytes.slice(header.len..end);
        let content = if header.column_major { Content::ColumnMajor(bytes) } else { Content::Plain(bytes) };
        Ok(Self { place, name, data_type: header.data_type, shape: header.shape, content })
    }

    /// A deflated `.npy` file that claims to be of `inflated` bytes.
    pub fn deflated_npy(place: PathBuf, name: String, compressed: Bytes, inflated: u64) -> Result<Self, SampleError> {
        let named = |problem| npy_problem(&place, problem);
        if inflated / MOST_INFLATED > compressed.len() as u64 {
            let what = format!("{} bytes cannot be {inflated} bytes compressed", compressed.len());
            return Err(SampleError::invalid(&place, what));
        }
        let mut inflate = DeflateDecoder::new(Cursor::new(compressed.clone()));
        let mut start = vec![0; 12];
        let broken = |cause: std::io::Error| SampleError::invalid(&place, format!("broken compressed data: {cause}"));
        inflate.read_exact(&mut start).map_err(broken)?;
        let needed = NpyHeader::needed(&start).map_err(named)?;
        start.resize(needed.max(12), 0);
        inflate.read_exact(&mut start[12..]).map_err(broken)?;
        let header = NpyHeader::parse(&start).map_err(named)?;
        let needed = header.len.saturating_add(header.size);
        if inflated != needed as u64 {
            let what = format!("{inflated} bytes, where its shape needs {needed}");
            return Err(SampleError::invalid(&place, what));
        }
        let content = match header.column_major {
            true if header.size > MOST_SCATTERED => {
                let what = "a compressed array in column-major order of more than 256 MiB; save numpy.ascontiguousarray(array)";
                return Err(SampleError::unsupported(&place, what));
            }
            true => {
                let mut bytes = vec![0; header.size];
                inflate.read_exact(&mut bytes).map_err(broken)?;
                Content::ColumnMajor(Bytes::from(bytes))
            }
            false => Content::Deflated { compressed, reader: Some(ArrayReader { inflate, position: 0 }) },
        };
        Ok(Self { place, name, data_type: header.data_type, shape: header.shape, content })
    }

    /// All tensors of a safetensors file, mapped.
    pub fn safetensors(path: &Path) -> Result<Vec<Self>, SampleError> {
        let file = TensorFile::open(path).map_err(|e| SampleError::invalid(path, e.to_string()))?;
        let file = Arc::new(file);
        (0..file.len()).filter_map(|index| Self::of_safetensors(&file, index).transpose()).collect()
    }

    fn of_safetensors(file: &Arc<TensorFile>, index: usize) -> Result<Option<Self>, SampleError> {
        let Some(view) = file.get(index) else { return Ok(None) };
        let place = entry(file.path(), view.name());
        let data_type = match view.dtype() {
            Dtype::F32 => DataType::FLOAT,
            Dtype::F64 => DataType::DOUBLE,
            Dtype::F16 => DataType::FLOAT16,
            Dtype::BF16 => DataType::BFLOAT16,
            Dtype::I64 => DataType::INT64,
            Dtype::I32 => DataType::INT32,
            Dtype::I16 => DataType::INT16,
            Dtype::I8 => DataType::INT8,
            Dtype::U64 => DataType::UINT64,
            Dtype::U32 => DataType::UINT32,
            Dtype::U16 => DataType::UINT16,
            Dtype::U8 => DataType::UINT8,
            Dtype::BOOL => DataType::BOOL,
            other => return Err(SampleError::unsupported(place, format!("elements of type {other:?}"))),
        };
        let (name, shape) = (view.name().to_owned(), view.shape().to_vec());
        let content = Content::Plain(Bytes::from_owner(Tensor { file: file.clone(), index }));
        Ok(Some(Self { place, name, data_type, shape, content }))
    }

    /// Values `start..start + shape's places`, in that shape. Reading on is cheap; of compressed arrays reading back is not.
    pub fn read(&mut self, start: usize, shape: Vec<usize>) -> Result<Array<'_>, SampleError> {
        let beyond = || SampleError::invalid(&self.place, "values beyond the end");
        let size = size_of_element(self.data_type);
        let count = shape.iter().try_fold(size, |n, &d| n.checked_mul(d)).ok_or_else(beyond)?;
        let start = start.checked_mul(size).ok_or_else(beyond)?;
        let place = &self.place;
        let values = match &mut self.content {
            Content::Plain(bytes) => {
                let bytes = start.checked_add(count).and_then(|end| bytes.get(start..end));
                from_bytes(self.data_type, bytes.ok_or_else(|| SampleError::invalid(place, "values beyond the end"))?)
            }
            Content::ColumnMajor(bytes) => {
                let gathered = row_major(bytes, size, &self.shape, start / size, count / size);
                let bytes = gathered.ok_or_else(|| SampleError::invalid(place, "values beyond the end"))?;
                from_bytes(self.data_type, &bytes).map(Values::into_owned)
            }
            Content::Deflated { compressed, reader } => {
                let bytes = inflated(compressed, reader, start, count);
                let bytes = bytes.map_err(|e| SampleError::invalid(place, format!("broken compressed data: {e}")))?;
                from_bytes(self.data_type, &bytes).map(Values::into_owned)
            }
        };
        let array = values.and_then(|values| Array::new(shape, values));
        array.ok_or_else(|| SampleError::invalid(place, "values that do not fill the shape"))
    }
}

/// A tensor of a mapped safetensors file, which lives as long as this.
struct Tensor {
    file: Arc<TensorFile>,
    index: usize,
}

impl AsRef<[u8]> for Tensor {
    fn as_ref(&self) -> &[u8] {
        self.file.get(self.index).map_or(&[], |view| view.bytes())
    }
}

/// Bytes `start..start + count` of the values of a compressed array.
fn inflated(
    compressed: &Bytes,
    reader: &mut Option<ArrayReader>,
    start: usize,
    count: usize,
) -> std::io::Result<Vec<u8>> {
    let mut current = match reader.take() {
        Some(current) if current.position <= start => current,
        _ => ArrayReader::new(compressed)?,
    };
    current.skip(start - current.position)?;
    let mut bytes = vec![0; count];
    current.inflate.read_exact(&mut bytes)?;
    current.position += count;
    *reader = Some(current);
    Ok(bytes)
}

impl ArrayReader {
    fn new(compressed: &Bytes) -> std::io::Result<Self> {
        let mut inflate = DeflateDecoder::new(Cursor::new(compressed.clone()));
        let mut start = [0; 12];
        inflate.read_exact(&mut start)?;
        // The header was parsed when the file was opened.
        let header = NpyHeader::needed(&start).map_err(|_| std::io::ErrorKind::InvalidData)?;
        let mut reader = Self { inflate, position: 0 };
        reader.skip(header - start.len())?;
        reader.position = 0;
        Ok(reader)
    }

    fn skip(&mut self, bytes: usize) -> std::io::Result<()> {
        let skipped = std::io::copy(&mut self.inflate.by_ref().take(bytes as u64), &mut std::io::sink())?;
        self.position += bytes;
        match skipped == bytes as u64 {
            true => Ok(()),
            false => Err(std::io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

/// Bytes of one element of a type arrays have.
fn size_of_element(data_type: DataType) -> usize {
    kvant_container::onnx::data_type_bits(data_type).map_or(1, |bits| (bits / 8) as usize)
}

/// The bytes of a file, mapped.
pub(crate) fn map(path: &Path) -> Result<Bytes, SampleError> {
    MappedFile::open(path).map(Bytes::from_owner).map_err(|e| SampleError::io(path, e))
}

/// A place in a file, for messages.
pub(crate) fn entry(file: &Path, name: &str) -> PathBuf {
    PathBuf::from(format!("{}[{}]", file.display(), name.escape_debug()))
}

fn npy_problem(place: &Path, problem: NpyProblem) -> SampleError {
    match problem {
        NpyProblem::Invalid(problem) => SampleError::invalid(place, problem),
        NpyProblem::Unsupported(problem) => SampleError::unsupported(place, problem),
    }
}
