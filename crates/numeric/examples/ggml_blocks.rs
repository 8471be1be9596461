//! Blocks of a tensor type of GGUF, made and read, for comparison with other tools.
//!
//! ```text
//! ggml_blocks quantize TYPE COLUMNS VALUES OUT [IMPORTANCE]
//! ggml_blocks dequantize TYPE BLOCKS OUT
//! ```
//!
//! Files hold nothing but numbers: values and importance `f32` in little-endian order, blocks as GGUF has them.

use kvant_numeric::ggml::{self, GgmlType};
use kvant_numeric::simd::Isa;
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["quantize", kind, columns, values, out] => quantize(kind, columns, values, out, None),
        ["quantize", kind, columns, values, out, importance] => quantize(kind, columns, values, out, Some(importance)),
        ["dequantize", kind, blocks, out] => dequantize(kind, blocks, out),
        _ => {
            Err("usage: ggml_blocks quantize TYPE COLUMNS VALUES OUT [IMPORTANCE] | dequantize TYPE BLOCKS OUT".into())
        }
    }
}

fn quantize(
    kind: &str,
    columns: &str,
    values: &str,
    out: &str,
    importance: Option<&str>,
) -> Result<(), Box<dyn Error>> {
    let (kind, columns): (GgmlType, usize) = (kind.parse()?, columns.parse()?);
    let (values, importance) = (read_floats(values)?, importance.map(read_floats).transpose()?);
    let row = kind.row_bytes(columns).filter(|_| columns > 0).ok_or("a row is no whole number of blocks")?;
    let mut blocks = vec![0; values.len() / columns * row];
    ggml::quantize(Isa::best(), kind, columns, &values, importance.as_deref(), &mut blocks);
    Ok(std::fs::write(out, blocks)?)
}

fn dequantize(kind: &str, blocks: &str, out: &str) -> Result<(), Box<dyn Error>> {
    let kind: GgmlType = kind.parse()?;
    let blocks = std::fs::read(blocks)?;
    let mut values = vec![0.0; blocks.len() / kind.block_bytes() * kind.block_elements()];
    ggml::dequantize(Isa::best(), kind, &blocks, &mut values);
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    Ok(std::fs::write(out, bytes)?)
}

fn read_floats(path: &str) -> Result<Vec<f32>, Box<dyn Error>> {
    let bytes = std::fs::read(path)?;
    Ok(bytes.as_chunks().0.iter().map(|word| f32::from_le_bytes(*word)).collect())
}
