//! Operators of ONNX Runtime (`com.microsoft`) and of AMD Quark (`com.amd.quark`).

use kvant_container::onnx::DataType;

use super::convolution::{conv_shape, global, pool_shape, typed};
use super::elementwise::{dequantize, quantize, same};
use super::product::{gemm, matmul};
use super::selection::gather;
use super::{Row, like, shaped};
use crate::shape::dim::broadcast;
use crate::shape::node::{Known, axis};
use crate::shape::{Dim, ValueType};

pub(super) const ROWS: &[Row] = &[
    ("Attention", attention),
    ("BFPQuantizeDequantize", same),
    ("BiasGelu", same),
    ("BiasSplitGelu", |n| shaped(n, halved(n))),
    ("DequantizeLinear", dequantize),
    ("DynamicQuantizeLSTM", super::recurrent::recurrent),
    ("DynamicQuantizeMatMul", |n| shaped(n, matmul(n, 0, 1))),
    ("ExtendedDequantizeLinear", dequantize),
    ("ExtendedInstanceNormalization", same),
    ("ExtendedQuantizeLinear", quantize),
    ("FastGelu", same),
    ("FusedConv", |n| shaped(n, conv_shape(n))),
    ("FusedGemm", |n| shaped(n, gemm(n))),
    ("FusedMatMul", |n| shaped(n, fused_matmul(n))),
    ("Gelu", same),
    ("GroupNorm", same),
    ("GroupQueryAttention", grouped_attention),
    ("LayerNormalization", same),
    ("MXQuantizeDequantize", same),
    ("MatMulIntegerToFloat", |n| typed(n.data_type(2), matmul(n, 0, 1))),
    ("MatMulNBits", |n| shaped(n, matmul_n_bits(n))),
    ("MultiHeadAttention", multi_head_attention),
    ("QGemm", |n| typed(if n.has(8) { n.data_type(8) } else { DataType::FLOAT }, qgemm(n))),
    ("QLinearAdd", |n| shaped(n, pair(n))),
    ("QLinearAveragePool", |n| shaped(n, pool_shape(n))),
    ("QLinearConcat", qlinear_concat),
    ("QLinearGlobalAveragePool", |n| shaped(n, global(n))),
    ("QLinearLeakyRelu", same),
    ("QLinearMul", |n| shaped(n, pair(n))),
    ("QLinearSigmoid", same),
    ("QLinearSoftmax", same),
    ("QuantizeLinear", quantize),
    ("QuickGelu", same),
    ("RotaryEmbedding", same),
    ("SimplifiedLayerNormalization", same),
    ("SkipGroupNorm", same),
    ("SkipLayerNormalization", skip),
    ("SkipSimplifiedLayerNormalization", skip),
    ("GatherBlockQuantized", |n| typed(n.data_type(2), gather(n))),
];

/// The result, and behind two outputs of training the sum that was normalized.
fn skip(node: &Known<'_>) -> Option<Vec<ValueType>> {
    let (nothing, sum) = (ValueType::default(), like(node, 0));
    Some(vec![sum.clone(), nothing.clone(), nothing, sum])
}

/// The hidden size is that of the bias, a third of it, unless sizes are given.
fn attention(node: &Known<'_>) -> Option<Vec<ValueType>> {
    let [batch, steps, _] = node.shape(0)? else { return None };
    let hidden = match node.list("qkv_hidden_sizes") {
        Some([.., value]) => usize::try_from(*value).map_or(Dim::Unknown, Dim::Known),
        _ => node.dim(1, 1).unwrap_or_default().map(|n| n.checked_div(3)),
    };
    Some(vec![ValueType::new(node.data_type(0), vec![batch.clone(), steps.clone(), hidden])])
}

/// The queries' hidden size: of what is given, or of what holds keys and values too where these are not given apart.
fn grouped_attention(node: &Known<'_>) -> Option<Vec<ValueType>> {
    if node.has(1) {
        return same(node);
    }
    let [batch, steps, width] = node.shape(0)? else { return None };
    let [heads, keys] = ["num_heads", "kv_num_heads"].map(|name| usize::try_from(node.int(name, 0)).unwrap_or(0));
    let all = keys.checked_mul(2)?.checked_add(heads)?;
    let hidden = width.clone().map(|n| n.checked_div(all)?.checked_mul(heads));
    Some(vec![ValueType::new(node.data_type(0), vec![batch.clone(), steps.clone(), hidden])])
}

/// The values' hidden size where they are given apart, with all heads in one dimension.
fn multi_head_attention(node: &Known<'_>) -> Option<Vec<ValueType>> {
    let shape = match (node.shape(0), node.shape(2)) {
        (Some([batch, steps, _]), Some([_, _, hidden])) => vec![batch.clone(), steps.clone(), hidden.clone()],
        _ => return Some(vec![ValueType::any(node.data_type(0))]),
    };
    Some(vec![ValueType::new(node.data_type(0), shape)])
}

fn halved(node: &Known<'_>) -> Option<Vec<Dim>> {
    let [outer @ .., last] = node.shape(0)? else { return None };
    Some([outer, &[last.map(|n| n.checked_div(2))]].concat())
}

fn fused_matmul(node: &Known<'_>) -> Option<Vec<Dim>> {
    let plain = ["transA", "transB", "transBatchA", "transBatchB"].iter().all(|name| node.int(name, 0) == 0);
    if plain {
        return matmul(node, 0, 1);
    }
    let ([outer @ .., a0, a1], [batch @ .., b0, b1]) = (node.shape(0)?, node.shape(1)?) else { return None };
    let rows = if node.int("transA", 0) != 0 { a1 } else { a0 };
    let columns = if node.int("transB", 0) != 0 { b0 } else { b1 };
    let batches = node.int("transBatchA", 0) == 0 && node.int("transBatchB", 0) == 0;
    batches.then(|| [&broadcast(outer, batch)[..], &[rows.clone(), columns.clone()]].concat())
}

fn matmul_n_bits(node: &Known<'_>) -> Option<Vec<Dim>> {
    let [outer @ .., _] = node.shape(0)? else { return None };
    let columns = usize::try_from(node.int("N", -1)).map_or(Dim::Unknown, Dim::Known);
    Some([outer, &[columns]].concat())
}

/// A of input 0 and B of input 3, each with a scale and a zero point behind it.
fn qgemm(node: &Known<'_>) -> Option<Vec<Dim>> {
    let (a, b) = (node.int("transA", 0) != 0, node.int("transB", 0) != 0);
    let dim = |input: usize, axis: i64| node.dim(input, axis).unwrap_or_default();
    Some(vec![dim(0, i64::from(a)), dim(3, i64::from(!b))])
}

/// Two tensors, each with a scale and a zero point behind it.
fn pair(node: &Known<'_>) -> Option<Vec<Dim>> {
    Some(broadcast(node.shape(0)?, node.shape(3)?))
}

/// Scale and zero point of the result, then triples of tensor, scale and zero point.
fn qlinear_concat(node: &Known<'_>) -> Option<Vec<ValueType>> {
    let mut shape = node.shape(2)?.to_vec();
    let at = axis(node.int("axis", 1), shape.len())?;
    for i in (5..node.node.input.len()).step_by(3) {
        let (own, other) = (shape[at].known(), node.dim(i, at as i64)?.known());
        shape[at] = own.zip(other).and_then(|(a, b)| a.checked_add(b)).map_or(Dim::Unknown, Dim::Known);
    }
    typed(node.data_type(1), Some(shape))
}
