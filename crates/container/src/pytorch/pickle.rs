//! A reader of pickles that hold tensors. It runs nothing: names of functions are compared with those that rebuild tensors, and
//! any other name or instruction is an error.
//!
//! Instructions: `pickletools` of CPython. What torch writes: `torch/serialization.py`, `torch/_utils.py`.

use crate::dtype::Dtype;
use crate::error::PytorchError;

/// The most values that a tuple, list or dictionary can be inside of.
const DEEPEST: usize = 64;

/// The most values of a pickle: several for each tensor.
const MOST_VALUES: usize = 1 << 22;

/// A value of a pickle: a position in [`Pickle`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Id(u32);

/// What a pickle can hold here.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    None,
    Bool(bool),
    Int(i64),
    /// An integer of more than 64 bits, little-endian.
    Big(Vec<u8>),
    Float,
    Text(String),
    Tuple(Vec<Id>),
    List(Vec<Id>),
    /// Keys and values, in the order in which they were set.
    Dict(Vec<(Id, Id)>),
    Global(Global),
    Storage(Storage),
    Tensor(Tensor),
}

/// The names of Python that tensors need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Global {
    OrderedDict,
    RebuildTensor,
    RebuildTensorOfDtype,
    RebuildParameter,
    /// A class of storages, all of whose elements have one type.
    TypedStorage(Dtype),
    /// Storages whose tensors state the type.
    UntypedStorage,
    Dtype(Dtype),
}

/// A block of memory that tensors are views of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Storage {
    /// Its name in the file.
    pub key: String,
    /// The type of its elements; `None` for bytes.
    pub dtype: Option<Dtype>,
    /// The number of its elements.
    pub len: u64,
}

/// A view of a storage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Tensor {
    pub storage: Storage,
    pub dtype: Dtype,
    /// The first element.
    pub offset: u64,
    pub shape: Vec<usize>,
    /// Steps in elements.
    pub strides: Vec<u64>,
}

/// A pickle that was read: all of its values, and the one that it is.
#[derive(Debug)]
pub(super) struct Pickle {
    values: Vec<Value>,
    top: Id,
    /// The bytes that it takes.
    pub len: usize,
}

impl Pickle {
    /// Reads the pickle at the start of some bytes.
    pub fn read(bytes: &[u8]) -> Result<Pickle, PytorchError> {
        let mut machine = Machine {
            bytes,
            at: 0,
            values: Vec::new(),
            depths: Vec::new(),
            stack: Vec::new(),
            marks: vec![],
            memo: vec![],
        };
        while machine.step()? == Step::Next {}
        let top = machine.pop()?;
        Ok(Pickle { values: machine.values, top, len: machine.at })
    }

    /// The value that it is.
    pub fn top(&self) -> &Value {
        self.get(self.top)
    }

    /// All storages that it names.
    pub fn storages(&self) -> impl Iterator<Item = &Storage> {
        self.values.iter().filter_map(|value| match value {
            Value::Storage(storage) => Some(storage),
            _ => None,
        })
    }

    /// One of its values.
    pub fn get(&self, id: Id) -> &Value {
        self.values.get(id.0 as usize).unwrap_or(&Value::None)
    }
}

#[derive(PartialEq, Eq)]
enum Step {
    Next,
    Stop,
}

/// The stack machine that pickles are programs of.
struct Machine<'b> {
    bytes: &'b [u8],
    at: usize,
    values: Vec<Value>,
    /// How deep each value is, counted from its innermost parts.
    depths: Vec<usize>,
    stack: Vec<Id>,
    /// Lengths of the stack at marks.
    marks: Vec<usize>,
    memo: Vec<Option<Id>>,
}

impl Machine<'_> {
    fn step(&mut self) -> Result<Step, PytorchError> {
        let at = self.at;
        match self.byte()? {
            0x80 => drop(self.byte()?),  // PROTO
            0x95 => drop(self.take(8)?), // FRAME
            b'.' => return Ok(Step::Stop),
            b'(' => self.marks.push(self.stack.len()),
            b'0' => drop(self.pop()?),
            b'1' => drop(self.since_mark()?),
            b'N' => self.push(Value::None)?,
            0x88 => self.push(Value::Bool(true))?,
            0x89 => self.push(Value::Bool(false))?,
            b'K' => {
                let value = self.byte()?;
                self.push(Value::Int(value.into()))?;
            }
            b'M' => {
                let value = u16::from_le_bytes(self.array()?);
                self.push(Value::Int(value.into()))?;
            }
            b'J' => {
                let value = i32::from_le_bytes(self.array()?);
                self.push(Value::Int(value.into()))?;
            }
            0x8a => {
                let len = self.byte()?;
                let value = integer(self.take(len.into())?);
                self.push(value)?;
            }
            b'G' => {
                self.take(8)?;
                self.push(Value::Float)?;
            }
            b'X' => {
                let len = u32::from_le_bytes(self.array()?);
                self.text(len as usize)?;
            }
            0x8c | b'U' => {
                let len = self.byte()?;
                self.text(len.into())?;
            }
            b'T' => {
                let len = u32::from_le_bytes(self.array()?);
                self.text(len as usize)?;
            }
            b')' => self.push(Value::Tuple(vec![]))?,
            b't' => {
                let parts = self.since_mark()?;
                self.push(Value::Tuple(parts))?;
            }
            count @ 0x85..=0x87 => {
                let start = self.stack.len().checked_sub(usize::from(count - 0x84)).ok_or_else(|| self.broken())?;
                let parts = self.stack.split_off(start);
                self.push(Value::Tuple(parts))?;
            }
            b']' => self.push(Value::List(vec![]))?,
            b'l' => {
                let parts = self.since_mark()?;
                self.push(Value::List(parts))?;
            }
            b'a' => {
                let part = self.pop()?;
                self.append(vec![part])?;
            }
            b'e' => {
                let parts = self.since_mark()?;
                self.append(parts)?;
            }
            b'}' => self.push(Value::Dict(vec![]))?,
            b'd' => {
                let parts = self.since_mark()?;
                self.push(Value::Dict(vec![]))?;
                self.set(&parts)?;
            }
            b's' => {
                let (value, key) = (self.pop()?, self.pop()?);
                self.set(&[key, value])?;
            }
            b'u' => {
                let parts = self.since_mark()?;
                self.set(&parts)?;
            }
            b'q' => {
                let place = self.byte()?;
                self.remember(place.into())?;
            }
            b'r' => {
                let place = u32::from_le_bytes(self.array()?);
                self.remember(place as usize)?;
            }
            0x94 => self.remember(self.memo.len())?,
            b'h' => {
                let place = self.byte()?;
                self.recall(place.into())?;
            }
            b'j' => {
                let place = u32::from_le_bytes(self.array()?);
                self.recall(place as usize)?;
            }
            b'c' => {
                let (module, name) = (self.line()?, self.line()?);
                self.push(Value::Global(global(&module, &name)?))?;
            }
            0x93 => {
                let (name, module) = (self.pop_text()?, self.pop_text()?);
                self.push(Value::Global(global(&module, &name)?))?;
            }
            b'Q' => self.storage()?,
            b'R' => self.call()?,
            b'b' => self.build()?,
            instruction => return Err(PytorchError::Instruction { instruction, at }),
        }
        Ok(Step::Next)
    }

    fn broken(&self) -> PytorchError {
        PytorchError::Pickle { at: self.at }
    }

    fn take(&mut self, len: usize) -> Result<&[u8], PytorchError> {
        let broken = PytorchError::Pickle { at: self.at };
        let end = self.at.checked_add(len).filter(|&end| end <= self.bytes.len()).ok_or(broken)?;
        let taken = &self.bytes[self.at..end];
        self.at = end;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], PytorchError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    fn byte(&mut self) -> Result<u8, PytorchError> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn line(&mut self) -> Result<String, PytorchError> {
        let rest = &self.bytes[self.at..];
        let len = rest.iter().position(|&byte| byte == b'\n').ok_or_else(|| self.broken())?;
        let line = String::from_utf8_lossy(&rest[..len]).into_owned();
        self.at += len + 1;
        Ok(line)
    }

    fn text(&mut self, len: usize) -> Result<(), PytorchError> {
        let broken = self.broken();
        let text = std::str::from_utf8(self.take(len)?).map_err(|_| broken)?.to_owned();
        self.push(Value::Text(text))
    }

    fn push(&mut self, value: Value) -> Result<(), PytorchError> {
        let depth = match &value {
            Value::Tuple(parts) | Value::List(parts) => 1 + self.deepest(parts),
            _ => 0,
        };
        if depth > DEEPEST || self.values.len() == MOST_VALUES {
            return Err(self.broken());
        }
        self.stack.push(Id(self.values.len() as u32));
        self.values.push(value);
        self.depths.push(depth);
        Ok(())
    }

    fn deepest(&self, parts: &[Id]) -> usize {
        parts.iter().filter_map(|part| self.depths.get(part.0 as usize)).max().copied().unwrap_or(0)
    }

    fn pop(&mut self) -> Result<Id, PytorchError> {
        let least = self.marks.last().copied().unwrap_or(0);
        match self.stack.len() > least {
            true => self.stack.pop().ok_or_else(|| self.broken()),
            false => Err(self.broken()),
        }
    }

    fn pop_text(&mut self) -> Result<String, PytorchError> {
        let id = self.pop()?;
        match self.value(id) {
            Value::Text(text) => Ok(text.clone()),
            _ => Err(self.broken()),
        }
    }

    fn value(&self, id: Id) -> &Value {
        &self.values[id.0 as usize]
    }

    fn since_mark(&mut self) -> Result<Vec<Id>, PytorchError> {
        let start = self.marks.pop().filter(|&start| start <= self.stack.len()).ok_or_else(|| self.broken())?;
        Ok(self.stack.split_off(start))
    }

    /// Adds to the list on top.
    fn append(&mut self, parts: Vec<Id>) -> Result<(), PytorchError> {
        self.nest(&parts)?;
        match self.top_value()? {
            Value::List(list) => list.extend(parts),
            _ => return Err(self.broken()),
        }
        Ok(())
    }

    /// Sets keys and values in the dictionary on top.
    fn set(&mut self, parts: &[Id]) -> Result<(), PytorchError> {
        self.nest(parts)?;
        let pairs = parts.chunks_exact(2);
        let is_even = pairs.remainder().is_empty();
        match self.top_value()? {
            Value::Dict(dict) if is_even => dict.extend(pairs.map(|pair| (pair[0], pair[1]))),
            _ => return Err(self.broken()),
        }
        Ok(())
    }

    /// Counts the depth of what is put into the value on top.
    fn nest(&mut self, parts: &[Id]) -> Result<(), PytorchError> {
        let depth = 1 + self.deepest(parts);
        let top = self.stack.last().map(|id| id.0 as usize).ok_or_else(|| self.broken())?;
        self.depths[top] = self.depths[top].max(depth);
        if depth > DEEPEST { Err(self.broken()) } else { Ok(()) }
    }

    fn top_value(&mut self) -> Result<&mut Value, PytorchError> {
        let broken = self.broken();
        let top = self.stack.last().ok_or(broken)?;
        Ok(&mut self.values[top.0 as usize])
    }

    fn remember(&mut self, place: usize) -> Result<(), PytorchError> {
        let top = *self.stack.last().ok_or_else(|| self.broken())?;
        // Writers number their memo from zero without gaps.
        if place > self.memo.len() {
            return Err(self.broken());
        }
        if place == self.memo.len() {
            self.memo.push(None);
        }
        self.memo[place] = Some(top);
        Ok(())
    }

    fn recall(&mut self, place: usize) -> Result<(), PytorchError> {
        let id = self.memo.get(place).copied().flatten().ok_or_else(|| self.broken())?;
        self.stack.push(id);
        Ok(())
    }

    /// `("storage", class, key, device, elements)`, which torch writes for the memory of tensors.
    fn storage(&mut self) -> Result<(), PytorchError> {
        let id = self.pop()?;
        let storage = self.storage_of(id).ok_or_else(|| self.broken())?;
        self.push(Value::Storage(storage))
    }

    fn storage_of(&self, id: Id) -> Option<Storage> {
        let parts = self.parts(id)?;
        // The old format has a sixth part, for storages that are views of others.
        let is_whole = parts.get(5).is_none_or(|part| *self.value(*part) == Value::None);
        let (kind, class, key, len) = (parts.first()?, parts.get(1)?, parts.get(2)?, parts.get(4)?);
        let dtype = match self.value(*class) {
            Value::Global(Global::TypedStorage(dtype)) => Some(*dtype),
            Value::Global(Global::UntypedStorage) => None,
            _ => return None,
        };
        match (self.value(*kind), self.value(*key), self.value(*len)) {
            (Value::Text(kind), Value::Text(key), Value::Int(len)) if kind == "storage" && is_whole => {
                Some(Storage { key: key.clone(), dtype, len: u64::try_from(*len).ok()? })
            }
            _ => None,
        }
    }

    fn parts(&self, id: Id) -> Option<&[Id]> {
        match self.value(id) {
            Value::Tuple(parts) | Value::List(parts) => Some(parts),
            _ => None,
        }
    }

    /// Calls a function with a tuple of arguments, both on the stack.
    fn call(&mut self) -> Result<(), PytorchError> {
        let (arguments, function) = (self.pop()?, self.pop()?);
        let made = self.called(function, arguments).ok_or_else(|| self.broken())?;
        let depth = match &made {
            Value::Dict(pairs) => 1 + pairs.iter().map(|(key, value)| self.deepest(&[*key, *value])).max().unwrap_or(0),
            _ => 0,
        };
        self.push(made)?;
        if let Some(last) = self.depths.last_mut() {
            *last = depth;
        }
        if depth > DEEPEST { Err(self.broken()) } else { Ok(()) }
    }

    fn called(&self, function: Id, arguments: Id) -> Option<Value> {
        let Value::Global(function) = self.value(function) else { return None };
        let arguments = self.parts(arguments)?;
        match function {
            Global::OrderedDict => {
                let pairs = arguments.first().map_or(Some(&[][..]), |pairs| self.parts(*pairs))?;
                let pairs = pairs.iter().map(|pair| match self.parts(*pair)? {
                    [key, value] => Some((*key, *value)),
                    _ => None,
                });
                Some(Value::Dict(pairs.collect::<Option<_>>()?))
            }
            // The tensor that a parameter is.
            Global::RebuildParameter => match self.value(*arguments.first()?) {
                tensor @ Value::Tensor(_) => Some(tensor.clone()),
                _ => None,
            },
            Global::RebuildTensor => self.tensor(arguments, None).map(Value::Tensor),
            Global::RebuildTensorOfDtype => match self.value(*arguments.get(6)?) {
                Value::Global(Global::Dtype(dtype)) => self.tensor(arguments, Some(*dtype)).map(Value::Tensor),
                _ => None,
            },
            Global::TypedStorage(_) | Global::UntypedStorage | Global::Dtype(_) => None,
        }
    }

    /// `(storage, first element, sizes, strides, ...)`.
    fn tensor(&self, arguments: &[Id], dtype: Option<Dtype>) -> Option<Tensor> {
        let [storage, offset, shape, strides, ..] = arguments else { return None };
        let (Value::Storage(storage), Value::Int(offset)) = (self.value(*storage), self.value(*offset)) else {
            return None;
        };
        let sizes = |id: &Id| self.parts(*id)?.iter().map(|part| self.size(*part)).collect::<Option<Vec<u64>>>();
        let shape = sizes(shape)?.into_iter().map(|size| usize::try_from(size).ok()).collect::<Option<Vec<_>>>()?;
        let (strides, offset) = (sizes(strides)?, u64::try_from(*offset).ok()?);
        let dtype = dtype.or(storage.dtype)?;
        (shape.len() == strides.len()).then_some(Tensor { storage: storage.clone(), dtype, offset, shape, strides })
    }

    fn size(&self, id: Id) -> Option<u64> {
        match self.value(id) {
            Value::Int(value) => u64::try_from(*value).ok(),
            _ => None,
        }
    }

    /// Attributes of a dictionary, such as the versions of modules, mean nothing here; nothing else has any.
    fn build(&mut self) -> Result<(), PytorchError> {
        self.pop()?;
        match self.top_value()? {
            Value::Dict(_) => Ok(()),
            _ => Err(self.broken()),
        }
    }
}

/// An integer in two's complement, little-endian; none for no bytes.
fn integer(bytes: &[u8]) -> Value {
    if bytes.len() > 8 {
        return Value::Big(bytes.to_vec());
    }
    let fill = if bytes.last().is_some_and(|last| last & 0x80 != 0) { 0xff } else { 0 };
    let mut wide = [fill; 8];
    wide[..bytes.len()].copy_from_slice(bytes);
    Value::Int(i64::from_le_bytes(wide))
}

/// What a name of Python means.
fn global(module: &str, name: &str) -> Result<Global, PytorchError> {
    let known = match (module, name) {
        ("collections", "OrderedDict") => Some(Global::OrderedDict),
        ("torch._utils", "_rebuild_tensor" | "_rebuild_tensor_v2") => Some(Global::RebuildTensor),
        ("torch._utils", "_rebuild_tensor_v3") => Some(Global::RebuildTensorOfDtype),
        ("torch._utils", "_rebuild_parameter") => Some(Global::RebuildParameter),
        ("torch" | "torch.storage", "UntypedStorage") => Some(Global::UntypedStorage),
        ("torch", name) => match name.strip_suffix("Storage") {
            Some(kind) => storage_dtype(kind).map(Global::TypedStorage),
            None => dtype_named(name).map(Global::Dtype),
        },
        _ => None,
    };
    known.ok_or_else(|| PytorchError::Name { name: format!("{module}.{name}") })
}

fn storage_dtype(kind: &str) -> Option<Dtype> {
    Some(match kind {
        "Double" => Dtype::F64,
        "Float" => Dtype::F32,
        "Half" => Dtype::F16,
        "BFloat16" => Dtype::BF16,
        "Long" => Dtype::I64,
        "Int" => Dtype::I32,
        "Short" => Dtype::I16,
        "Char" => Dtype::I8,
        "Byte" => Dtype::U8,
        "Bool" => Dtype::BOOL,
        _ => return None,
    })
}

fn dtype_named(name: &str) -> Option<Dtype> {
    Some(match name {
        "float64" => Dtype::F64,
        "float32" => Dtype::F32,
        "float16" => Dtype::F16,
        "bfloat16" => Dtype::BF16,
        "float8_e4m3fn" => Dtype::F8_E4M3,
        "float8_e5m2" => Dtype::F8_E5M2,
        "float8_e8m0fnu" => Dtype::F8_E8M0,
        "int64" => Dtype::I64,
        "int32" => Dtype::I32,
        "int16" => Dtype::I16,
        "int8" => Dtype::I8,
        "uint8" => Dtype::U8,
        "uint16" => Dtype::U16,
        "uint32" => Dtype::U32,
        "uint64" => Dtype::U64,
        "bool" => Dtype::BOOL,
        _ => return None,
    })
}
