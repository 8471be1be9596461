//! The messages of `onnx-ml.proto` (ONNX 1.22, Apache-2.0): names, types and numbers of their fields, in the order of the
//! specification, in which they are also written. [`message`](super::message) encodes them.

use std::io::{self, Write};

use bytes::Bytes;

use super::message::{
    Enum, EnumOrUnknown, Field, Message, MessageField, OneOf, Source, Unknown, Value, enumeration, message, one_of,
};
use crate::protobuf::{Wire, WireError, tag_size, write_tag};

message! {AttributeProto {
    name: Option<String> = 1;
    ref_attr_name: Option<String> = 21;
    doc_string: Option<String> = 13;
    type_: Option<EnumOrUnknown<AttributeType>> = 20;
    f: Option<f32> = 2;
    i: Option<i64> = 3;
    s: Option<Bytes> = 4;
    t: MessageField<TensorProto> = 5;
    g: MessageField<GraphProto> = 6;
    sparse_tensor: MessageField<SparseTensorProto> = 22;
    tp: MessageField<TypeProto> = 14;
    floats: Vec<f32> = 7;
    ints: Vec<i64> = 8;
    strings: Vec<Bytes> = 9;
    tensors: Vec<TensorProto> = 10;
    graphs: Vec<GraphProto> = 11;
    sparse_tensors: Vec<SparseTensorProto> = 23;
    type_protos: Vec<TypeProto> = 15;
}}

message! {ValueInfoProto {
    name: Option<String> = 1;
    type_: MessageField<TypeProto> = 2;
    doc_string: Option<String> = 3;
    metadata_props: Vec<StringStringEntryProto> = 4;
}}

message! {NodeProto {
    input: Vec<String> = 1;
    output: Vec<String> = 2;
    name: Option<String> = 3;
    op_type: Option<String> = 4;
    domain: Option<String> = 7;
    overload: Option<String> = 8;
    attribute: Vec<AttributeProto> = 5;
    doc_string: Option<String> = 6;
    metadata_props: Vec<StringStringEntryProto> = 9;
    device_configurations: Vec<NodeDeviceConfigurationProto> = 10;
}}

message! {IntIntListEntryProto {
    key: Option<i64> = 1;
    value: Vec<i64> = 2;
}}

message! {NodeDeviceConfigurationProto {
    configuration_id: Option<String> = 1;
    sharding_spec: Vec<ShardingSpecProto> = 2;
    pipeline_stage: Option<i32> = 3;
}}

message! {ShardingSpecProto {
    tensor_name: Option<String> = 1;
    device: Vec<i64> = 2;
    index_to_device_group_map: Vec<IntIntListEntryProto> = 3;
    sharded_dim: Vec<ShardedDimProto> = 4;
}}

message! {ShardedDimProto {
    axis: Option<i64> = 1;
    simple_sharding: Vec<SimpleShardedDimProto> = 2;
}}

message! {SimpleShardedDimProto [dim: ShardedDimension] {
    num_shards: Option<i64> = 3;
}}

message! {TrainingInfoProto {
    initialization: MessageField<GraphProto> = 1;
    algorithm: MessageField<GraphProto> = 2;
    initialization_binding: Vec<StringStringEntryProto> = 3;
    update_binding: Vec<StringStringEntryProto> = 4;
}}

message! {ModelProto {
    ir_version: Option<i64> = 1;
    opset_import: Vec<OperatorSetIdProto> = 8;
    producer_name: Option<String> = 2;
    producer_version: Option<String> = 3;
    domain: Option<String> = 4;
    model_version: Option<i64> = 5;
    doc_string: Option<String> = 6;
    graph: MessageField<GraphProto> = 7;
    metadata_props: Vec<StringStringEntryProto> = 14;
    training_info: Vec<TrainingInfoProto> = 20;
    functions: Vec<FunctionProto> = 25;
    configuration: Vec<DeviceConfigurationProto> = 26;
}}

message! {DeviceConfigurationProto {
    name: Option<String> = 1;
    num_devices: Option<i32> = 2;
    device: Vec<String> = 3;
}}

message! {StringStringEntryProto {
    key: Option<String> = 1;
    value: Option<String> = 2;
}}

message! {TensorAnnotation {
    tensor_name: Option<String> = 1;
    quant_parameter_tensor_names: Vec<StringStringEntryProto> = 2;
}}

message! {GraphProto {
    node: Vec<NodeProto> = 1;
    name: Option<String> = 2;
    initializer: Vec<TensorProto> = 5;
    sparse_initializer: Vec<SparseTensorProto> = 15;
    doc_string: Option<String> = 10;
    input: Vec<ValueInfoProto> = 11;
    output: Vec<ValueInfoProto> = 12;
    value_info: Vec<ValueInfoProto> = 13;
    quantization_annotation: Vec<TensorAnnotation> = 14;
    metadata_props: Vec<StringStringEntryProto> = 16;
}}

message! {TensorProto {
    dims: Vec<i64> = 1;
    data_type: Option<i32> = 2;
    segment: MessageField<Segment> = 3;
    float_data: Vec<f32> = 4 packed;
    int32_data: Vec<i32> = 5 packed;
    string_data: Vec<Bytes> = 6;
    int64_data: Vec<i64> = 7 packed;
    name: Option<String> = 8;
    doc_string: Option<String> = 12;
    raw_data: Option<Bytes> = 9;
    external_data: Vec<StringStringEntryProto> = 13;
    data_location: Option<EnumOrUnknown<DataLocation>> = 14;
    double_data: Vec<f64> = 10 packed;
    uint64_data: Vec<u64> = 11 packed;
    metadata_props: Vec<StringStringEntryProto> = 16;
}}

message! {Segment {
    begin: Option<i64> = 1;
    end: Option<i64> = 2;
}}

message! {SparseTensorProto {
    values: MessageField<TensorProto> = 1;
    indices: MessageField<TensorProto> = 2;
    dims: Vec<i64> = 3;
}}

message! {TensorShapeProto {
    dim: Vec<Dimension> = 1;
}}

message! {Dimension [value: DimensionValue] {
    denotation: Option<String> = 3;
}}

message! {TypeProto [value: TypeValue] {
    denotation: Option<String> = 6;
}}

message! {TensorTypeProto {
    elem_type: Option<i32> = 1;
    shape: MessageField<TensorShapeProto> = 2;
}}

message! {SequenceTypeProto {
    elem_type: MessageField<TypeProto> = 1;
}}

message! {MapTypeProto {
    key_type: Option<i32> = 1;
    value_type: MessageField<TypeProto> = 2;
}}

message! {OptionalTypeProto {
    elem_type: MessageField<TypeProto> = 1;
}}

message! {SparseTensorTypeProto {
    elem_type: Option<i32> = 1;
    shape: MessageField<TensorShapeProto> = 2;
}}

message! {OpaqueTypeProto {
    domain: Option<String> = 1;
    name: Option<String> = 2;
}}

message! {OperatorSetIdProto {
    domain: Option<String> = 1;
    version: Option<i64> = 2;
}}

message! {FunctionProto {
    name: Option<String> = 1;
    input: Vec<String> = 4;
    output: Vec<String> = 5;
    attribute: Vec<String> = 6;
    attribute_proto: Vec<AttributeProto> = 11;
    node: Vec<NodeProto> = 7;
    doc_string: Option<String> = 8;
    opset_import: Vec<OperatorSetIdProto> = 9;
    domain: Option<String> = 10;
    overload: Option<String> = 13;
    value_info: Vec<ValueInfoProto> = 12;
    metadata_props: Vec<StringStringEntryProto> = 14;
}}

enumeration! {AttributeType {
    UNDEFINED = 0,
    FLOAT = 1,
    INT = 2,
    STRING = 3,
    TENSOR = 4,
    GRAPH = 5,
    SPARSE_TENSOR = 11,
    TYPE_PROTO = 13,
    FLOATS = 6,
    INTS = 7,
    STRINGS = 8,
    TENSORS = 9,
    GRAPHS = 10,
    SPARSE_TENSORS = 12,
    TYPE_PROTOS = 14
}}

enumeration! {DataType {
    UNDEFINED = 0,
    FLOAT = 1,
    UINT8 = 2,
    INT8 = 3,
    UINT16 = 4,
    INT16 = 5,
    INT32 = 6,
    INT64 = 7,
    STRING = 8,
    BOOL = 9,
    FLOAT16 = 10,
    DOUBLE = 11,
    UINT32 = 12,
    UINT64 = 13,
    COMPLEX64 = 14,
    COMPLEX128 = 15,
    BFLOAT16 = 16,
    FLOAT8E4M3FN = 17,
    FLOAT8E4M3FNUZ = 18,
    FLOAT8E5M2 = 19,
    FLOAT8E5M2FNUZ = 20,
    UINT4 = 21,
    INT4 = 22,
    FLOAT4E2M1 = 23,
    FLOAT8E8M0 = 24,
    UINT2 = 25,
    INT2 = 26
}}

enumeration! {DataLocation {
    DEFAULT = 0,
    EXTERNAL = 1
}}

one_of! {ShardedDimension {
    DimValue(i64) = 1;
    DimParam(String) = 2;
}}

one_of! {DimensionValue {
    DimValue(i64) = 1;
    DimParam(String) = 2;
}}

one_of! {TypeValue {
    TensorType(TensorTypeProto) = 1;
    SequenceType(SequenceTypeProto) = 4;
    MapType(MapTypeProto) = 5;
    OptionalType(OptionalTypeProto) = 9;
    SparseTensorType(SparseTensorTypeProto) = 8;
    OpaqueType(OpaqueTypeProto) = 7;
}}
