//! The messages of an ONNX file that vitpcm writes: the part of `onnx.proto3` (IR version 8) that holds a graph of
//! operators with stored weights. Written by hand, so that a build needs no protobuf compiler; the numbers are the
//! format's field numbers. Lists of numbers are not packed, as from ONNX's own library: some readers know no other form.

/// A file: the graph, the version of its operators, and free metadata.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ModelProto {
    /// Version of the format itself.
    #[prost(int64, tag = "1")]
    pub ir_version: i64,
    /// The program that wrote it.
    #[prost(string, tag = "2")]
    pub producer_name: String,
    /// Its version.
    #[prost(string, tag = "3")]
    pub producer_version: String,
    /// For people.
    #[prost(string, tag = "6")]
    pub doc_string: String,
    /// The network.
    #[prost(message, optional, tag = "7")]
    pub graph: Option<GraphProto>,
    /// The sets of operators that it uses.
    #[prost(message, repeated, tag = "8")]
    pub opset_import: Vec<OperatorSetIdProto>,
    /// Free keys and values.
    #[prost(message, repeated, tag = "14")]
    pub metadata_props: Vec<StringStringEntryProto>,
}

/// A set of operators; the standard one has an empty domain.
#[derive(Clone, PartialEq, prost::Message)]
pub struct OperatorSetIdProto {
    /// Whose operators.
    #[prost(string, tag = "1")]
    pub domain: String,
    /// The set's version.
    #[prost(int64, tag = "2")]
    pub version: i64,
}

/// A line of metadata.
#[derive(Clone, PartialEq, prost::Message)]
pub struct StringStringEntryProto {
    /// Its name.
    #[prost(string, tag = "1")]
    pub key: String,
    /// Its content.
    #[prost(string, tag = "2")]
    pub value: String,
}

/// Operators in the order in which they can be run.
#[derive(Clone, PartialEq, prost::Message)]
pub struct GraphProto {
    /// The operators.
    #[prost(message, repeated, tag = "1")]
    pub node: Vec<NodeProto>,
    /// The graph's name.
    #[prost(string, tag = "2")]
    pub name: String,
    /// Stored tensors.
    #[prost(message, repeated, tag = "5")]
    pub initializer: Vec<TensorProto>,
    /// What the caller gives.
    #[prost(message, repeated, tag = "11")]
    pub input: Vec<ValueInfoProto>,
    /// What the caller gets.
    #[prost(message, repeated, tag = "12")]
    pub output: Vec<ValueInfoProto>,
}

/// One operator and the names of its inputs and outputs.
#[derive(Clone, PartialEq, prost::Message)]
pub struct NodeProto {
    /// Names of its inputs; an empty name stands for one that is left out.
    #[prost(string, repeated, tag = "1")]
    pub input: Vec<String>,
    /// Names of its outputs.
    #[prost(string, repeated, tag = "2")]
    pub output: Vec<String>,
    /// Its own name.
    #[prost(string, tag = "3")]
    pub name: String,
    /// The operator.
    #[prost(string, tag = "4")]
    pub op_type: String,
    /// Its settings.
    #[prost(message, repeated, tag = "5")]
    pub attribute: Vec<AttributeProto>,
}

/// A setting of an operator. Which field holds it is what `type` says.
#[derive(Clone, PartialEq, prost::Message)]
pub struct AttributeProto {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// A real number.
    #[prost(float, tag = "2")]
    pub f: f32,
    /// A whole number.
    #[prost(int64, tag = "3")]
    pub i: i64,
    /// A text.
    #[prost(bytes = "vec", tag = "4")]
    pub s: Vec<u8>,
    /// Several whole numbers.
    #[prost(int64, repeated, packed = "false", tag = "8")]
    pub ints: Vec<i64>,
    /// The kind of value.
    #[prost(enumeration = "AttributeType", tag = "20")]
    pub r#type: i32,
}

/// Kinds of settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum AttributeType {
    /// Not said.
    Undefined = 0,
    /// A real number.
    Float = 1,
    /// A whole number.
    Int = 2,
    /// A text.
    String = 3,
    /// Several whole numbers.
    Ints = 7,
}

/// A stored tensor.
#[derive(Clone, PartialEq, prost::Message)]
pub struct TensorProto {
    /// Its shape, outermost dimension first.
    #[prost(int64, repeated, packed = "false", tag = "1")]
    pub dims: Vec<i64>,
    /// The type of its elements.
    #[prost(enumeration = "ElementType", tag = "2")]
    pub data_type: i32,
    /// Its name.
    #[prost(string, tag = "8")]
    pub name: String,
    /// Its elements, row-major and little-endian.
    #[prost(bytes = "vec", tag = "9")]
    pub raw_data: Vec<u8>,
}

/// Types of elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum ElementType {
    /// Not said.
    Undefined = 0,
    /// 32-bit floats.
    F32 = 1,
    /// Bytes without sign.
    U8 = 2,
    /// Bytes with sign.
    I8 = 3,
    /// 64-bit integers.
    I64 = 7,
    /// 16-bit floats.
    F16 = 10,
}

/// Name, type and description of an input or output.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ValueInfoProto {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Its type.
    #[prost(message, optional, tag = "2")]
    pub r#type: Option<TypeProto>,
    /// For people.
    #[prost(string, tag = "3")]
    pub doc_string: String,
}

/// The type of a value: always a tensor.
#[derive(Clone, PartialEq, prost::Message)]
pub struct TypeProto {
    /// The tensor's type.
    #[prost(message, optional, tag = "1")]
    pub tensor_type: Option<TensorTypeProto>,
}

/// The type of a tensor.
#[derive(Clone, PartialEq, prost::Message)]
pub struct TensorTypeProto {
    /// The type of its elements.
    #[prost(enumeration = "ElementType", tag = "1")]
    pub elem_type: i32,
    /// Its shape.
    #[prost(message, optional, tag = "2")]
    pub shape: Option<TensorShapeProto>,
}

/// A shape in which some dimensions may be free.
#[derive(Clone, PartialEq, prost::Message)]
pub struct TensorShapeProto {
    /// The dimensions, outermost first.
    #[prost(message, repeated, tag = "1")]
    pub dim: Vec<DimensionProto>,
}

/// A dimension: a number, or a name for one that the caller chooses.
#[derive(Clone, PartialEq, prost::Message)]
pub struct DimensionProto {
    /// The number; 0 if it is free.
    #[prost(int64, tag = "1")]
    pub dim_value: i64,
    /// The name, empty if it is fixed.
    #[prost(string, tag = "2")]
    pub dim_param: String,
}
