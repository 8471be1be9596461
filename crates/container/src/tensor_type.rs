//! The types of tensors: numbers, names and the sizes of their blocks. Not what the bytes of a block mean.

use std::fmt;

macro_rules! tensor_types {
    ($($(#[$doc:meta])* $variant:ident = $id:literal, $elements:literal elements in $bytes:literal;)*) => {
        /// The type of a tensor's elements. Elements come in blocks along the fastest dimension.
        ///
        /// Source: `enum ggml_type` of `ggml.h` and `GGML_QUANT_SIZES` of gguf-py.
        #[allow(non_camel_case_types)]
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum TensorType {
            $($(#[$doc])* $variant,)*
        }

        impl TensorType {
            /// Every type, by number.
            pub const ALL: &[TensorType] = &[$(TensorType::$variant),*];

            /// Its number in files.
            pub fn id(self) -> u32 {
                match self { $(Self::$variant => $id),* }
            }

            /// Its name in llama.cpp.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => stringify!($variant)),* }
            }

            /// Elements of a block.
            pub fn block_elements(self) -> usize {
                match self { $(Self::$variant => $elements),* }
            }

            /// Bytes of a block.
            pub fn block_bytes(self) -> usize {
                match self { $(Self::$variant => $bytes),* }
            }
        }
    };
}

tensor_types! {
    /// IEEE binary32.
    F32 = 0, 1 elements in 4;
    /// IEEE binary16.
    F16 = 1, 1 elements in 2;
    /// 4-bit codes and a scale.
    Q4_0 = 2, 32 elements in 18;
    /// 4-bit codes, a scale and a minimum.
    Q4_1 = 3, 32 elements in 20;
    /// 5-bit codes and a scale.
    Q5_0 = 6, 32 elements in 22;
    /// 5-bit codes, a scale and a minimum.
    Q5_1 = 7, 32 elements in 24;
    /// 8-bit codes and a scale.
    Q8_0 = 8, 32 elements in 34;
    /// 8-bit codes, a scale and a sum.
    Q8_1 = 9, 32 elements in 36;
    /// 2-bit codes, scales and minima in blocks of blocks.
    Q2_K = 10, 256 elements in 84;
    /// 3-bit codes and scales in blocks of blocks.
    Q3_K = 11, 256 elements in 110;
    /// 4-bit codes, scales and minima in blocks of blocks.
    Q4_K = 12, 256 elements in 144;
    /// 5-bit codes, scales and minima in blocks of blocks.
    Q5_K = 13, 256 elements in 176;
    /// 6-bit codes and scales in blocks of blocks.
    Q6_K = 14, 256 elements in 210;
    /// 8-bit codes of intermediate results.
    Q8_K = 15, 256 elements in 292;
    /// About 2.06 bits from a codebook.
    IQ2_XXS = 16, 256 elements in 66;
    /// About 2.31 bits from a codebook.
    IQ2_XS = 17, 256 elements in 74;
    /// About 3.06 bits from a codebook.
    IQ3_XXS = 18, 256 elements in 98;
    /// About 1.56 bits from a codebook.
    IQ1_S = 19, 256 elements in 50;
    /// 4-bit codes of unevenly spaced values.
    IQ4_NL = 20, 32 elements in 18;
    /// About 3.44 bits from a codebook.
    IQ3_S = 21, 256 elements in 110;
    /// About 2.56 bits from a codebook.
    IQ2_S = 22, 256 elements in 82;
    /// 4-bit codes of unevenly spaced values, in blocks of blocks.
    IQ4_XS = 23, 256 elements in 136;
    /// Integers of 8 bits.
    I8 = 24, 1 elements in 1;
    /// Integers of 16 bits.
    I16 = 25, 1 elements in 2;
    /// Integers of 32 bits.
    I32 = 26, 1 elements in 4;
    /// Integers of 64 bits.
    I64 = 27, 1 elements in 8;
    /// IEEE binary64.
    F64 = 28, 1 elements in 8;
    /// About 1.75 bits from a codebook.
    IQ1_M = 29, 256 elements in 56;
    /// bfloat16.
    BF16 = 30, 1 elements in 2;
    /// Ternary codes, five to a byte.
    TQ1_0 = 34, 256 elements in 54;
    /// Ternary codes, four to a byte.
    TQ2_0 = 35, 256 elements in 66;
    /// e2m1 codes under a power of two.
    MXFP4 = 39, 32 elements in 17;
    /// e2m1 codes under fp8 scales.
    NVFP4 = 40, 64 elements in 36;
    /// Signs and a scale.
    Q1_0 = 41, 128 elements in 18;
}

impl TensorType {
    /// The type of a number.
    pub fn from_id(id: u32) -> Option<TensorType> {
        Self::ALL.iter().copied().find(|kind| kind.id() == id)
    }

    /// The bytes of a tensor with these dimensions, the slowest first; `None` where the fastest is not a whole number of
    /// blocks, or the size does not exist.
    pub fn byte_len(self, shape: &[usize]) -> Option<u64> {
        let columns = shape.last().copied().unwrap_or(1);
        if !columns.is_multiple_of(self.block_elements()) {
            return None;
        }
        let elements = shape.iter().try_fold(1u64, |product, &dim| product.checked_mul(dim as u64))?;
        (elements / self.block_elements() as u64).checked_mul(self.block_bytes() as u64)
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
