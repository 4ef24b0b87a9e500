//! A reader for the pickles of PyTorch state dicts. It builds data and calls nothing: the few globals that such pickles
//! need are represented as values, and any other is an error that names it.
//!
//! Tuples and dicts live in arenas, because a pickle may refer to a dict before it is filled or within itself, and may
//! nest tuples a million deep. Every opcode creates at most one value, so memory stays proportional to the pickle's
//! length.

use std::rc::Rc;

use super::limits::limit;
use crate::error::{Fault, Parsed};

/// A state dict takes about 170 bytes per tensor, so this allows 12,000 tensors. A byte of pickle may take a hundred
/// bytes of memory.
pub(super) const MAX_PICKLE_LENGTH: usize = 2 << 20;

/// A value that a pickle may hold.
#[derive(Debug, Clone)]
pub(super) enum Value {
    None,
    Int(i64),
    /// Floats, byte strings, namespaces: found in checkpoints but not needed.
    Inert,
    Str(Rc<str>),
    /// The contents of lists are not needed.
    List,
    Tuple(usize),
    Dict(usize),
    Global(Global),
    Storage(Rc<Storage>),
    Tensor(Rc<StoredTensor>),
}

/// The Python names that a pickle may refer to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Global {
    OrderedDict,
    RebuildTensor,
    RebuildParameter,
    Storage(StorageType),
    /// The command line in DINO's full checkpoints; kept as an inert value.
    Namespace,
}

/// The element types of PyTorch's storages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StorageType {
    Double,
    Float,
    Half,
    BFloat16,
    Long,
    Int,
    Short,
    Char,
    Byte,
    Bool,
}

impl Global {
    fn parse(module: &str, name: &str) -> Parsed<Self> {
        let global = match (module, name) {
            ("collections", "OrderedDict") => Global::OrderedDict,
            ("torch._utils", "_rebuild_tensor_v2") => Global::RebuildTensor,
            ("torch._utils", "_rebuild_parameter") => Global::RebuildParameter,
            ("argparse", "Namespace") => Global::Namespace,
            ("torch", storage) => Global::Storage(match storage {
                "DoubleStorage" => StorageType::Double,
                "FloatStorage" => StorageType::Float,
                "HalfStorage" => StorageType::Half,
                "BFloat16Storage" => StorageType::BFloat16,
                "LongStorage" => StorageType::Long,
                "IntStorage" => StorageType::Int,
                "ShortStorage" => StorageType::Short,
                "CharStorage" => StorageType::Char,
                "ByteStorage" => StorageType::Byte,
                "BoolStorage" => StorageType::Bool,
                _ => return Err(Fault::ForbiddenPickle(format!("{module}.{name}"))),
            }),
            _ => return Err(Fault::ForbiddenPickle(format!("{module}.{name}"))),
        };
        Ok(global)
    }
}

/// A storage: one file of the archive.
#[derive(Debug)]
pub(super) struct Storage {
    pub(super) storage_type: StorageType,
    /// The name of its file below `data/`.
    pub(super) key: Rc<str>,
}

/// A tensor: a view of a storage. Counts and offsets are in elements, not yet checked against the storage.
#[derive(Debug)]
pub(super) struct StoredTensor {
    pub(super) storage: Rc<Storage>,
    pub(super) offset: usize,
    pub(super) shape: Vec<usize>,
    pub(super) strides: Vec<usize>,
}

/// A parsed pickle: its last value, and the containers it refers to.
#[derive(Debug)]
pub(super) struct Unpickled {
    pub(super) root: Value,
    dicts: Vec<Vec<(Value, Value)>>,
}

impl Unpickled {
    /// The items of a dict whose keys are strings, in order; other keys are skipped.
    pub(super) fn items(&self, dict: usize) -> impl Iterator<Item = (&str, &Value)> {
        self.dicts[dict].iter().filter_map(|(key, value)| match key {
            Value::Str(key) => Some((&**key, value)),
            _ => None,
        })
    }
}

/// Reads a pickle of protocol 2 to 5.
pub(super) fn read(bytes: &[u8]) -> Parsed<Unpickled> {
    if bytes.len() as u64 > limit(MAX_PICKLE_LENGTH as u64) {
        return Err(
            format!("a pickle of {} bytes; state dicts stay below {MAX_PICKLE_LENGTH}", bytes.len()).into()
        );
    }
    Machine { rest: bytes, ..Machine::default() }.run()
}

/// The pickle machine: the remaining input, a stack with marks, and a memo.
#[derive(Default)]
struct Machine<'a> {
    rest: &'a [u8],
    stack: Vec<Value>,
    marks: Vec<usize>,
    memo: std::collections::HashMap<u32, Value>,
    tuples: Vec<Vec<Value>>,
    dicts: Vec<Vec<(Value, Value)>>,
}

impl<'a> Machine<'a> {
    fn run(mut self) -> Parsed<Unpickled> {
        loop {
            let opcode = self.take(1)?[0];
            match opcode {
                b'.' => {
                    let root = self.pop()?;
                    return Ok(Unpickled { root, dicts: self.dicts });
                }
                0x80 => {
                    let protocol = self.take(1)?[0];
                    if !(2..=5).contains(&protocol) {
                        return Err(format!("pickle protocol {protocol}; expected 2 to 5").into());
                    }
                }
                0x95 => drop(self.take(8)?), // FRAME: a length that only helps buffering
                b'(' => self.marks.push(self.stack.len()),
                b'0' => drop(self.pop()?),
                b'1' => drop(self.pop_to_mark()?),
                b'N' => self.stack.push(Value::None),
                0x88 => self.stack.push(Value::Int(1)),
                0x89 => self.stack.push(Value::Int(0)),
                b'J' => {
                    let value = i32::from_le_bytes(self.take_array()?);
                    self.stack.push(Value::Int(value.into()));
                }
                b'K' => {
                    let value = self.take(1)?[0];
                    self.stack.push(Value::Int(value.into()));
                }
                b'M' => {
                    let value = u16::from_le_bytes(self.take_array()?);
                    self.stack.push(Value::Int(value.into()));
                }
                0x8a => self.long()?,
                b'G' => {
                    self.take(8)?;
                    self.stack.push(Value::Inert);
                }
                b'X' => {
                    let length = u32::from_le_bytes(self.take_array()?) as usize;
                    self.string(length)?;
                }
                0x8c => {
                    let length = self.take(1)?[0].into();
                    self.string(length)?;
                }
                b'U' | b'C' => {
                    let length = self.take(1)?[0].into();
                    self.take(length)?;
                    self.stack.push(Value::Inert);
                }
                b'T' | b'B' => {
                    let length = u32::from_le_bytes(self.take_array()?) as usize;
                    self.take(length)?;
                    self.stack.push(Value::Inert);
                }
                b')' => self.new_tuple(Vec::new()),
                b't' => {
                    let items = self.pop_to_mark()?;
                    self.new_tuple(items);
                }
                0x85..=0x87 => {
                    let length = usize::from(opcode - 0x84);
                    let start =
                        self.stack.len().checked_sub(length).ok_or("the pickle's stack runs empty")?;
                    let items = self.stack.split_off(start);
                    self.new_tuple(items);
                }
                b']' => self.stack.push(Value::List),
                b'a' => {
                    self.pop()?;
                    self.expect_top(|value| matches!(value, Value::List))?;
                }
                b'e' => {
                    self.pop_to_mark()?;
                    self.expect_top(|value| matches!(value, Value::List))?;
                }
                b'}' => self.new_dict(),
                b's' => {
                    let value = self.pop()?;
                    let key = self.pop()?;
                    self.top_dict()?.push((key, value));
                }
                b'u' => {
                    let items = self.pop_to_mark()?;
                    let dict = self.top_dict()?;
                    let mut items = items.into_iter();
                    while let (Some(key), Some(value)) = (items.next(), items.next()) {
                        dict.push((key, value));
                    }
                }
                b'c' => {
                    let module = self.line()?;
                    let name = self.line()?;
                    self.stack.push(Value::Global(Global::parse(&module, &name)?));
                }
                0x93 => match (self.pop()?, self.pop()?) {
                    (Value::Str(name), Value::Str(module)) => {
                        self.stack.push(Value::Global(Global::parse(&module, &name)?));
                    }
                    _ => return Err("the pickle names a global by something other than strings".into()),
                },
                b'R' => self.reduce()?,
                0x81 => self.new_object()?,
                b'b' => {
                    // The state of an OrderedDict (module versions) or of a namespace: not needed.
                    self.pop()?;
                    self.expect_top(|value| matches!(value, Value::Dict(_) | Value::Inert))?;
                }
                b'Q' => self.persistent_id()?,
                b'q' => {
                    let key = self.take(1)?[0].into();
                    self.put(key)?;
                }
                b'r' => {
                    let key = u32::from_le_bytes(self.take_array()?);
                    self.put(key)?;
                }
                0x94 => {
                    let key = self.memo.len() as u32;
                    self.put(key)?;
                }
                b'h' => {
                    let key = self.take(1)?[0].into();
                    self.get(key)?;
                }
                b'j' => {
                    let key = u32::from_le_bytes(self.take_array()?);
                    self.get(key)?;
                }
                other => {
                    return Err(format!("pickle opcode {other:#04x}, which no plain state dict needs").into());
                }
            }
        }
    }

    /// `REDUCE`, the opcode for calls: supports only rebuilding tensors and empty dicts.
    fn reduce(&mut self) -> Parsed<()> {
        let arguments = self.pop()?;
        let callee = self.pop()?;
        let Value::Tuple(arguments) = arguments else {
            return Err("the pickle calls something with arguments that are no tuple".into());
        };
        match (callee, self.tuples[arguments].as_slice()) {
            (Value::Global(Global::OrderedDict), []) => self.new_dict(),
            (Value::Global(Global::RebuildTensor), [Value::Storage(storage), offset, shape, strides, ..]) => {
                let tensor = StoredTensor {
                    storage: storage.clone(),
                    offset: count(offset)?,
                    shape: self.counts(shape)?,
                    strides: self.counts(strides)?,
                };
                if tensor.shape.len() != tensor.strides.len() {
                    return Err("a pickled tensor has another number of strides than of dimensions".into());
                }
                self.stack.push(Value::Tensor(Rc::new(tensor)));
            }
            (Value::Global(Global::RebuildParameter), [Value::Tensor(tensor), ..]) => {
                let tensor = tensor.clone();
                self.stack.push(Value::Tensor(tensor));
            }
            (Value::Global(global), _) => {
                return Err(
                    format!("the pickle calls {global:?} with arguments that no state dict has").into()
                );
            }
            _ => return Err("the pickle calls something that is no function".into()),
        }
        Ok(())
    }

    fn new_object(&mut self) -> Parsed<()> {
        self.pop()?;
        match self.pop()? {
            Value::Global(Global::Namespace) => self.stack.push(Value::Inert),
            Value::Global(Global::OrderedDict) => self.new_dict(),
            _ => return Err("the pickle creates an object of a class that no state dict has".into()),
        }
        Ok(())
    }

    /// `('storage', type, key, device, number of elements)`
    fn persistent_id(&mut self) -> Parsed<()> {
        let id = self.pop()?;
        if let Value::Tuple(items) = &id
            && let [Value::Str(kind), Value::Global(Global::Storage(storage_type)), Value::Str(key), ..] =
                self.tuples[*items].as_slice()
            && &**kind == "storage"
        {
            let storage = Storage { storage_type: *storage_type, key: key.clone() };
            self.stack.push(Value::Storage(Rc::new(storage)));
            return Ok(());
        }
        Err("the pickle refers to something outside of it that is no tensor storage".into())
    }

    fn long(&mut self) -> Parsed<()> {
        let length = usize::from(self.take(1)?[0]);
        let bytes = self.take(length)?;
        if length > 8 {
            self.stack.push(Value::Inert);
            return Ok(());
        }
        let negative = bytes.last().is_some_and(|byte| byte & 0x80 != 0);
        let mut wide = [if negative { 0xff } else { 0 }; 8];
        wide[..length].copy_from_slice(bytes);
        self.stack.push(Value::Int(i64::from_le_bytes(wide)));
        Ok(())
    }

    fn string(&mut self, length: usize) -> Parsed<()> {
        let text =
            std::str::from_utf8(self.take(length)?).map_err(|_| "the pickle holds text that is not UTF-8")?;
        self.stack.push(Value::Str(text.into()));
        Ok(())
    }

    fn line(&mut self) -> Parsed<String> {
        let length = self.rest.iter().position(|&byte| byte == b'\n').ok_or("the pickle is truncated")?;
        let line = String::from_utf8_lossy(&self.rest[..length]).into_owned();
        self.rest = &self.rest[length + 1..];
        Ok(line)
    }

    fn new_tuple(&mut self, items: Vec<Value>) {
        self.stack.push(Value::Tuple(self.tuples.len()));
        self.tuples.push(items);
    }

    fn new_dict(&mut self) {
        self.stack.push(Value::Dict(self.dicts.len()));
        self.dicts.push(Vec::new());
    }

    fn top_dict(&mut self) -> Parsed<&mut Vec<(Value, Value)>> {
        match self.stack.last() {
            Some(Value::Dict(dict)) => Ok(&mut self.dicts[*dict]),
            _ => Err("the pickle sets an item of something that is no dict".into()),
        }
    }

    fn expect_top(&self, fits: impl Fn(&Value) -> bool) -> Parsed<()> {
        match self.stack.last() {
            Some(value) if fits(value) => Ok(()),
            _ => Err("the pickle changes a value of a type that no state dict has".into()),
        }
    }

    fn put(&mut self, key: u32) -> Parsed<()> {
        let value = self.stack.last().ok_or("the pickle's stack runs empty")?.clone();
        self.memo.insert(key, value);
        Ok(())
    }

    fn get(&mut self, key: u32) -> Parsed<()> {
        let value = self.memo.get(&key).ok_or("the pickle refers to a value it never stored")?.clone();
        self.stack.push(value);
        Ok(())
    }

    fn pop(&mut self) -> Parsed<Value> {
        if self.marks.last().is_some_and(|&mark| mark >= self.stack.len()) {
            return Err("the pickle takes a mark for a value".into());
        }
        self.stack.pop().ok_or_else(|| "the pickle's stack runs empty".into())
    }

    fn pop_to_mark(&mut self) -> Parsed<Vec<Value>> {
        let mark = self.marks.pop().ok_or("the pickle lacks a mark")?;
        if mark > self.stack.len() {
            return Err("the pickle's stack runs empty".into());
        }
        Ok(self.stack.split_off(mark))
    }

    fn counts(&self, value: &Value) -> Parsed<Vec<usize>> {
        match value {
            Value::Tuple(items) => self.tuples[*items].iter().map(count).collect(),
            _ => Err("a pickled tensor has a shape that is no tuple".into()),
        }
    }

    fn take(&mut self, length: usize) -> Parsed<&'a [u8]> {
        if length > self.rest.len() {
            return Err("the pickle is truncated".into());
        }
        let (taken, rest) = self.rest.split_at(length);
        self.rest = rest;
        Ok(taken)
    }

    fn take_array<const N: usize>(&mut self) -> Parsed<[u8; N]> {
        Ok(self.take(N)?.try_into().unwrap())
    }
}

fn count(value: &Value) -> Parsed<usize> {
    match value {
        Value::Int(n) => usize::try_from(*n).map_err(|_| "a pickled tensor has a negative length".into()),
        _ => Err("a pickled tensor has a length that is no number".into()),
    }
}
