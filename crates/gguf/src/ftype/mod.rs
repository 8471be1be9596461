//! The ftypes of llama.cpp: the type of a tensor by its role and depth. One row per ftype in [`FTYPES`]; how it
//! deviates from its base type is in `rules`. No bytes.
//!
//! Source: `llama_tensor_get_type_impl` and `tensor_type_fallback` of llama.cpp's `src/llama-quant.cpp`, `enum llama_ftype`.

mod rules;

use kvant_container::gguf::TensorType;
use kvant_model::family::{Part, Role};
use std::fmt;
use std::str::FromStr;

/// The name of the algorithm that weighs inputs by how large they are.
pub const IMATRIX: &str = "imatrix";

pub use rules::choose;

/// A named mix.
#[allow(non_camel_case_types)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the table says it: FTYPES")]
pub enum Ftype {
    F32,
    F16,
    BF16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2_K,
    Q2_K_S,
    Q3_K_S,
    Q3_K_M,
    Q3_K_L,
    Q4_K_S,
    Q4_K_M,
    Q5_K_S,
    Q5_K_M,
    Q6_K,
    IQ4_NL,
    IQ4_XS,
    TQ1_0,
    TQ2_0,
    MXFP4_MOE,
}

/// A row of the table of mixes.
pub struct FtypeRow {
    /// The mix.
    pub ftype: Ftype,
    /// Its name in `--scheme`, and llama-quantize's.
    pub name: &'static str,
    /// Another name that llama-quantize takes.
    pub alias: Option<&'static str>,
    /// Its number in `general.file_type`.
    pub file_type: u32,
    /// The type of most tensors.
    pub base: TensorType,
    /// One line for `kvant list schemes`.
    pub about: &'static str,
}

const fn row(ftype: Ftype, name: &'static str, file_type: u32, base: TensorType, about: &'static str) -> FtypeRow {
    FtypeRow { ftype, name, alias: None, file_type, base, about }
}

/// Every mix.
pub static FTYPES: &[FtypeRow] = &[
    row(Ftype::F32, "F32", 0, TensorType::F32, "GGUF: floats of 32 bits"),
    row(Ftype::F16, "F16", 1, TensorType::F16, "GGUF: floats of 16 bits"),
    row(Ftype::BF16, "BF16", 32, TensorType::BF16, "GGUF: bfloat16"),
    row(Ftype::Q4_0, "Q4_0", 2, TensorType::Q4_0, "GGUF: 4 bits, a scale for 32 weights"),
    row(Ftype::Q4_1, "Q4_1", 3, TensorType::Q4_1, "GGUF: 4 bits, a scale and a minimum for 32 weights"),
    row(Ftype::Q5_0, "Q5_0", 8, TensorType::Q5_0, "GGUF: 5 bits, a scale for 32 weights"),
    row(Ftype::Q5_1, "Q5_1", 9, TensorType::Q5_1, "GGUF: 5 bits, a scale and a minimum for 32 weights"),
    row(Ftype::Q8_0, "Q8_0", 7, TensorType::Q8_0, "GGUF: 8 bits, a scale for 32 weights"),
    row(Ftype::Q2_K, "Q2_K", 10, TensorType::Q2_K, "GGUF: 2 bits in blocks of 256, 3 and 4 where it matters most"),
    row(Ftype::Q2_K_S, "Q2_K_S", 21, TensorType::Q2_K, "GGUF: 2 bits in blocks of 256"),
    row(Ftype::Q3_K_S, "Q3_K_S", 11, TensorType::Q3_K, "GGUF: 3 bits in blocks of 256"),
    FtypeRow {
        alias: Some("Q3_K"),
        ..row(
            Ftype::Q3_K_M,
            "Q3_K_M",
            12,
            TensorType::Q3_K,
            "GGUF: 3 bits in blocks of 256, 4 and 5 where it matters most",
        )
    },
    row(Ftype::Q3_K_L, "Q3_K_L", 13, TensorType::Q3_K, "GGUF: 3 bits in blocks of 256, 5 where it matters most"),
    row(Ftype::Q4_K_S, "Q4_K_S", 14, TensorType::Q4_K, "GGUF: 4 bits in blocks of 256"),
    FtypeRow {
        alias: Some("Q4_K"),
        ..row(Ftype::Q4_K_M, "Q4_K_M", 15, TensorType::Q4_K, "GGUF: 4 bits in blocks of 256, 6 where it matters most")
    },
    row(Ftype::Q5_K_S, "Q5_K_S", 16, TensorType::Q5_K, "GGUF: 5 bits in blocks of 256"),
    FtypeRow {
        alias: Some("Q5_K"),
        ..row(Ftype::Q5_K_M, "Q5_K_M", 17, TensorType::Q5_K, "GGUF: 5 bits in blocks of 256, 6 where it matters most")
    },
    row(Ftype::Q6_K, "Q6_K", 18, TensorType::Q6_K, "GGUF: 6 bits in blocks of 256"),
    row(
        Ftype::IQ4_NL,
        "IQ4_NL",
        25,
        TensorType::IQ4_NL,
        "GGUF: 4 bits of unevenly spaced values, 32 weights to a scale",
    ),
    row(Ftype::IQ4_XS, "IQ4_XS", 30, TensorType::IQ4_XS, "GGUF: 4 bits of unevenly spaced values in blocks of 256"),
    row(Ftype::TQ1_0, "TQ1_0", 36, TensorType::TQ1_0, "GGUF: ternary, 1.69 bits"),
    row(Ftype::TQ2_0, "TQ2_0", 37, TensorType::TQ2_0, "GGUF: ternary, 2.06 bits"),
    row(Ftype::MXFP4_MOE, "MXFP4_MOE", 38, TensorType::MXFP4, "GGUF: experts in MXFP4, the rest in 8 bits"),
];

impl Ftype {
    /// The row of the table.
    pub fn row(self) -> &'static FtypeRow {
        FTYPES.iter().find(|row| row.ftype == self).unwrap_or(&FTYPES[0])
    }

    /// Returns whether tensors are stored as floats.
    pub fn is_float(self) -> bool {
        matches!(self, Ftype::F32 | Ftype::F16 | Ftype::BF16)
    }
}

impl fmt::Display for Ftype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.row().name)
    }
}

/// The name is not in the table.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("unknown mix `{0}`")]
pub struct UnknownFtype(pub String);

impl FromStr for Ftype {
    type Err = UnknownFtype;

    /// Takes names in any case, as llama-quantize does.
    fn from_str(text: &str) -> Result<Ftype, UnknownFtype> {
        let is = |name: &str| name.eq_ignore_ascii_case(text);
        let row = FTYPES.iter().find(|row| is(row.name) || row.alias.is_some_and(is));
        row.map(|row| row.ftype).ok_or_else(|| UnknownFtype(text.to_owned()))
    }
}

/// The kind of a tensor for the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Category {
    /// The embedding.
    Embedding,
    /// The language model head.
    Head,
    /// The query projection.
    Query,
    /// The key projection.
    Key,
    /// Values, alone or with queries and keys.
    Value {
        /// Whether it holds queries and keys too.
        fused: bool,
    },
    /// The output projection of attention.
    AttentionOutput,
    /// The up projection, alone or with the gate.
    Up,
    /// The gate projection.
    Gate,
    /// The down projection.
    Down,
    /// Whatever else there is.
    Other,
}

impl Category {
    /// That of a linear layer.
    pub fn of(role: Role, part: Part) -> Category {
        match role {
            Role::Head => Category::Head,
            Role::Query => Category::Query,
            Role::Key => Category::Key,
            Role::Value => Category::Value { fused: false },
            Role::QueryKeyValue => Category::Value { fused: true },
            Role::Output if part == Part::Attention => Category::AttentionOutput,
            Role::Up | Role::GateUp => Category::Up,
            Role::Gate => Category::Gate,
            Role::Down => Category::Down,
            _ => Category::Other,
        }
    }

    /// That of a tensor whose name is all that is known (`tensor_get_category`).
    pub fn of_name(name: &str) -> Category {
        const PARTS: [(&str, Category); 9] = [
            ("attn_qkv.weight", Category::Value { fused: true }),
            ("attn_kv_b.weight", Category::Value { fused: true }),
            ("attn_v.weight", Category::Value { fused: false }),
            ("attn_k.weight", Category::Key),
            ("attn_q.weight", Category::Query),
            ("attn_output.weight", Category::AttentionOutput),
            ("ffn_up", Category::Up),
            ("ffn_gate", Category::Gate),
            ("ffn_down", Category::Down),
        ];
        match name {
            "output.weight" => Category::Head,
            "token_embd.weight" | "per_layer_token_embd.weight" => Category::Embedding,
            _ => PARTS.iter().find(|(part, _)| name.contains(part)).map_or(Category::Other, |(_, category)| *category),
        }
    }
}

/// Returns whether a model is of the shape that llama.cpp calls 70B.
pub fn is_70b(architecture: &str, blocks: usize, heads: usize, groups: usize) -> bool {
    blocks == 80 && matches!(architecture, "llama" | "qwen2") && heads != groups
}

/// Facts about the model for the rules.
#[derive(Clone, Copy, Debug)]
pub struct Model {
    /// Decoder blocks.
    pub blocks: usize,
    /// Routed experts of a block; 0 if there are none.
    pub experts: usize,
    /// Query heads for each key/value head.
    pub heads_per_group: usize,
    /// Tensors of the category [`Category::Value`].
    pub values: usize,
    /// Whether the head is the embedding.
    pub tied: bool,
    /// Whether it is of the shape that llama.cpp calls 70B.
    pub is_70b: bool,
    /// Whether the importance of inputs is known.
    pub has_importance: bool,
}

/// Facts about a tensor for the rules.
#[derive(Clone, Copy, Debug)]
pub struct RuledTensor {
    /// Its kind.
    pub category: Category,
    /// Its position among tensors of the category [`Category::Value`].
    pub value: usize,
    /// Its block.
    pub block: usize,
    /// Whether it holds all experts of a block.
    pub experts: bool,
    /// Input channels.
    pub columns: usize,
}

/// A type that divides the columns: the one that is wanted, or one that is near it.
pub fn fitting(wanted: TensorType, columns: usize) -> TensorType {
    let divides = |kind: TensorType| columns.is_multiple_of(kind.block_elements());
    if divides(wanted) {
        return wanted;
    }
    let near = match wanted {
        TensorType::IQ4_XS => TensorType::IQ4_NL,
        TensorType::Q2_K | TensorType::Q3_K | TensorType::TQ1_0 | TensorType::TQ2_0 => TensorType::Q4_0,
        TensorType::Q4_K => TensorType::Q5_0,
        TensorType::Q5_K => TensorType::Q5_1,
        TensorType::Q6_K => TensorType::Q8_0,
        _ => TensorType::F16,
    };
    if divides(near) { near } else { TensorType::F16 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ftype_names_round_trip_in_any_case() {
        for row in FTYPES {
            assert_eq!(row.name.parse(), Ok(row.ftype));
            assert_eq!(row.name.to_lowercase().parse(), Ok(row.ftype));
            assert_eq!((row.ftype.to_string().as_str(), row.ftype.row().file_type), (row.name, row.file_type));
            assert_eq!(row.ftype.is_float(), row.base.block_elements() == 1);
        }
        assert_eq!("q4_k".parse(), Ok(Ftype::Q4_K_M));
        assert_eq!("Q9".parse::<Ftype>(), Err(UnknownFtype("Q9".into())));
    }

    #[test]
    fn file_types_are_distinct() {
        let mut numbers: Vec<u32> = FTYPES.iter().map(|row| row.file_type).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), FTYPES.len());
    }

    #[test]
    fn columns_not_divisible_by_a_block_use_another_type() {
        assert_eq!(fitting(TensorType::Q4_K, 512), TensorType::Q4_K);
        assert_eq!(fitting(TensorType::Q4_K, 384), TensorType::Q5_0);
        assert_eq!(fitting(TensorType::Q5_K, 384), TensorType::Q5_1);
        assert_eq!(fitting(TensorType::Q6_K, 384), TensorType::Q8_0);
        assert_eq!(fitting(TensorType::Q3_K, 384), TensorType::Q4_0);
        assert_eq!(fitting(TensorType::IQ4_XS, 384), TensorType::IQ4_NL);
        assert_eq!(fitting(TensorType::Q4_0, 100), TensorType::F16);
    }
}
