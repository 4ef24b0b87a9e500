//! Puts a graph together, operator by operator. Knows operators and stored numbers, no network: what the operators
//! compute is in the `…_graph` files, how weights are stored in `stored_weights`.

use std::collections::BTreeMap;

use crate::onnx_proto::{
    AttributeProto, AttributeType, DimensionProto, ElementType, GraphProto, NodeProto, TensorProto,
    TensorShapeProto, TensorTypeProto, TypeProto, ValueInfoProto,
};
use crate::stored_weights::WeightNumbers;

/// The result of an operator, an input or a stored tensor, by its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Value(pub(crate) String);

/// A setting of an operator.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Attribute<'a> {
    Int(i64),
    Ints(&'a [i64]),
    Float(f32),
    Text(&'a str),
}

/// A dimension of an input or output.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Dimension<'a> {
    Fixed(usize),
    Free(&'a str),
}

/// A graph under construction.
#[derive(Debug)]
pub(crate) struct GraphBuilder {
    graph: GraphProto,
    /// What the names of operators begin with: the part of the network that they belong to.
    part: String,
    /// Whole numbers that are stored already.
    integers: BTreeMap<(Vec<i64>, bool), Value>,
    /// Single real numbers that are stored already, by their bits.
    single_floats: BTreeMap<u32, Value>,
    pub(crate) numbers: WeightNumbers,
}

impl GraphBuilder {
    pub(crate) fn new(numbers: WeightNumbers) -> Self {
        let graph = GraphProto { name: "vitpcm".to_owned(), ..GraphProto::default() };
        GraphBuilder {
            graph,
            part: String::new(),
            integers: BTreeMap::new(),
            single_floats: BTreeMap::new(),
            numbers,
        }
    }

    pub(crate) fn finish(self) -> GraphProto {
        self.graph
    }

    /// Names the part of the network that the next operators belong to.
    pub(crate) fn begin_part(&mut self, part: &str) {
        part.clone_into(&mut self.part);
    }

    /// Adds an operator with one result.
    pub(crate) fn node(
        &mut self,
        operator: &str,
        inputs: &[&Value],
        attributes: &[(&str, Attribute<'_>)],
    ) -> Value {
        let name = format!("{}/{operator}_{}", self.part, self.graph.node.len());
        self.graph.node.push(NodeProto {
            input: inputs.iter().map(|value| value.0.clone()).collect(),
            output: vec![name.clone()],
            name: name.clone(),
            op_type: operator.to_owned(),
            attribute: attributes.iter().map(|(name, attribute)| encoded(name, *attribute)).collect(),
        });
        Value(name)
    }

    /// Declares an input of f32.
    pub(crate) fn input(&mut self, name: &str, shape: &[Dimension<'_>], description: &str) -> Value {
        self.graph.input.push(declared(name, shape, description));
        Value(name.to_owned())
    }

    /// Declares an output of f32.
    pub(crate) fn output(&mut self, name: &str, value: &Value, shape: &[Dimension<'_>], description: &str) {
        let result = vec![name.to_owned()];
        // The operator's result takes the output's name, which needs an operator of its own: the value may have
        // further readers.
        let node = NodeProto {
            input: vec![value.0.clone()],
            output: result,
            name: format!("output/{name}"),
            op_type: "Identity".to_owned(),
            attribute: Vec::new(),
        };
        self.graph.node.push(node);
        self.graph.output.push(declared(name, shape, description));
    }

    /// Stores a tensor.
    pub(crate) fn store(
        &mut self,
        name: &str,
        data_type: ElementType,
        shape: &[usize],
        raw_data: Vec<u8>,
    ) -> Value {
        let dims = shape.iter().map(|&size| size as i64).collect();
        let tensor = TensorProto { dims, data_type: data_type.into(), name: name.to_owned(), raw_data };
        self.graph.initializer.push(tensor);
        Value(name.to_owned())
    }

    /// Real numbers that are no weights of a layer.
    pub(crate) fn floats(&mut self, values: &[f32], shape: &[usize]) -> Value {
        let name = format!("{}/constant_{}", self.part, self.graph.initializer.len());
        let raw_data = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.store(&name, ElementType::F32, shape, raw_data)
    }

    /// One real number.
    pub(crate) fn float(&mut self, value: f32) -> Value {
        if let Some(known) = self.single_floats.get(&value.to_bits()) {
            return known.clone();
        }
        let name = format!("float_{}", self.single_floats.len());
        let stored = self.store(&name, ElementType::F32, &[], value.to_le_bytes().to_vec());
        self.single_floats.insert(value.to_bits(), stored.clone());
        stored
    }

    /// A list of whole numbers: a shape, or axes.
    pub(crate) fn integers(&mut self, values: &[i64]) -> Value {
        self.stored_integers(values, false)
    }

    /// One whole number.
    pub(crate) fn integer(&mut self, value: i64) -> Value {
        self.stored_integers(&[value], true)
    }

    fn stored_integers(&mut self, values: &[i64], is_single: bool) -> Value {
        let key = (values.to_vec(), is_single);
        if let Some(known) = self.integers.get(&key) {
            return known.clone();
        }
        let name = format!("integers_{}", self.integers.len());
        let raw_data = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let shape = [values.len()];
        let shape = if is_single { &[][..] } else { &shape };
        let value = self.store(&name, ElementType::I64, shape, raw_data);
        self.integers.insert(key, value.clone());
        value
    }

    pub(crate) fn add(&mut self, left: &Value, right: &Value) -> Value {
        self.node("Add", &[left, right], &[])
    }

    pub(crate) fn sub(&mut self, left: &Value, right: &Value) -> Value {
        self.node("Sub", &[left, right], &[])
    }

    pub(crate) fn mul(&mut self, left: &Value, right: &Value) -> Value {
        self.node("Mul", &[left, right], &[])
    }

    pub(crate) fn div(&mut self, left: &Value, right: &Value) -> Value {
        self.node("Div", &[left, right], &[])
    }

    pub(crate) fn matmul(&mut self, left: &Value, right: &Value) -> Value {
        self.node("MatMul", &[left, right], &[])
    }

    pub(crate) fn max(&mut self, left: &Value, right: &Value) -> Value {
        self.node("Max", &[left, right], &[])
    }

    /// Another shape; 0 keeps a dimension, and -1, once, takes what is left.
    pub(crate) fn reshape(&mut self, value: &Value, shape: &[i64]) -> Value {
        let shape = self.integers(shape);
        self.node("Reshape", &[value, &shape], &[])
    }

    pub(crate) fn transpose(&mut self, value: &Value, order: &[i64]) -> Value {
        self.node("Transpose", &[value], &[("perm", Attribute::Ints(order))])
    }

    pub(crate) fn concat(&mut self, values: &[&Value], axis: i64) -> Value {
        self.node("Concat", values, &[("axis", Attribute::Int(axis))])
    }

    pub(crate) fn softmax(&mut self, value: &Value, axis: i64) -> Value {
        self.node("Softmax", &[value], &[("axis", Attribute::Int(axis))])
    }

    /// A part of one axis, from `start` to (not including) `end`.
    pub(crate) fn slice(&mut self, value: &Value, axis: i64, start: i64, end: i64) -> Value {
        let [start, end, axis] = [start, end, axis].map(|number| self.integers(&[number]));
        self.node("Slice", &[value, &start, &end, &axis], &[])
    }

    /// `ReduceMax`, `ReduceSum` or `ReduceMean` over some axes, which keep one element.
    pub(crate) fn reduce(&mut self, operator: &str, value: &Value, axes: &[i64]) -> Value {
        // The axes of a sum became an input in operator set 13, those of the others in 18.
        let axes = self.integers(axes);
        self.node(operator, &[value, &axes], &[("keepdims", Attribute::Int(1))])
    }

    /// A size of a value, as one whole number.
    pub(crate) fn size_of(&mut self, value: &Value, axis: i64) -> Value {
        let shape = self.node("Shape", &[value], &[]);
        let axis = self.integer(axis);
        self.node("Gather", &[&shape, &axis], &[("axis", Attribute::Int(0))])
    }

    pub(crate) fn cast_to_f32(&mut self, value: &Value) -> Value {
        self.node("Cast", &[value], &[("to", Attribute::Int(ElementType::F32 as i64))])
    }
}

fn encoded(name: &str, attribute: Attribute<'_>) -> AttributeProto {
    let named = AttributeProto { name: name.to_owned(), ..AttributeProto::default() };
    match attribute {
        Attribute::Int(i) => AttributeProto { i, r#type: AttributeType::Int.into(), ..named },
        Attribute::Ints(ints) => {
            AttributeProto { ints: ints.to_vec(), r#type: AttributeType::Ints.into(), ..named }
        }
        Attribute::Float(f) => AttributeProto { f, r#type: AttributeType::Float.into(), ..named },
        Attribute::Text(text) => {
            AttributeProto { s: text.as_bytes().to_vec(), r#type: AttributeType::String.into(), ..named }
        }
    }
}

fn declared(name: &str, shape: &[Dimension<'_>], description: &str) -> ValueInfoProto {
    let dimension = |dimension: &Dimension<'_>| match dimension {
        Dimension::Fixed(size) => DimensionProto { dim_value: *size as i64, dim_param: String::new() },
        Dimension::Free(name) => DimensionProto { dim_value: 0, dim_param: (*name).to_owned() },
    };
    let shape = Some(TensorShapeProto { dim: shape.iter().map(dimension).collect() });
    let tensor_type = Some(TensorTypeProto { elem_type: ElementType::F32.into(), shape });
    ValueInfoProto {
        name: name.to_owned(),
        r#type: Some(TypeProto { tensor_type }),
        doc_string: description.to_owned(),
    }
}
