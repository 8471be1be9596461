//! A weight with what adapters add to it: the product of two thin matrices, computed band by band when the weight is read. Which
//! tensors those are is found by `kvant_formats::adapter`.

use super::{WeightMatrix, WeightRotation};
use crate::band::Band;
use kvant_container::{Dtype, TensorView};
use kvant_numeric::ComputeDType;
use kvant_numeric::ggml::GgmlType;
use kvant_numeric::simd::{Isa, Loop, dispatch};
use std::ops::Range;

/// A matrix of `rows` output and `columns` input channels.
#[derive(Clone, Debug)]
pub struct MergedMatrix<'a> {
    base: WeightMatrix<'a>,
    stored: Option<StoredBytes<'a>>,
    /// The name of the tensor that it stands for in the file.
    name: Option<&'a str>,
    /// Whether the base is floats.
    is_float: bool,
    /// The type that sums are rounded to: that of the base.
    dtype: Dtype,
    bytes: u64,
    products: Vec<LowRank<'a>>,
}

/// The update of an adapter: `scale * left * right`.
#[derive(Clone, Debug)]
pub struct LowRank<'a> {
    /// Output channels x rank.
    pub left: WeightMatrix<'a>,
    /// Rank x input channels.
    pub right: WeightMatrix<'a>,
    /// What the product is multiplied with.
    pub scale: f32,
}

/// The base of a merged matrix.
pub struct MergedBase<'a> {
    /// Its values.
    pub matrix: WeightMatrix<'a>,
    /// Its bytes, where it is floats that no other matrix reads.
    pub stored: Option<StoredBytes<'a>>,
    /// The name of the tensor that holds it, or its codes.
    pub name: Option<&'a str>,
    /// Whether it is floats.
    pub is_float: bool,
    /// The type that sums are rounded to.
    pub dtype: Dtype,
    /// Its bytes in the source.
    pub bytes: u64,
}

/// The bytes of a matrix in a tensor of floats.
#[derive(Clone, Debug)]
pub struct StoredBytes<'a> {
    /// The tensor.
    pub view: TensorView<'a>,
    /// Which of its bytes.
    pub range: Range<usize>,
}

impl<'a> StoredBytes<'a> {
    /// All bytes of a tensor.
    pub fn whole(view: TensorView<'a>) -> StoredBytes<'a> {
        StoredBytes { view, range: 0..view.bytes().len() }
    }
}

impl<'a> MergedMatrix<'a> {
    /// A base to which nothing is added yet. Its values are rounded to its type.
    pub fn new(base: MergedBase<'a>) -> MergedMatrix<'a> {
        let MergedBase { matrix, stored, name, is_float, dtype, bytes } = base;
        MergedMatrix { base: matrix, stored, name, is_float, dtype, bytes, products: Vec::new() }
    }

    /// Adds a product, whose shape is that of the base.
    pub fn add(&mut self, product: LowRank<'a>) {
        self.products.push(product);
    }

    /// Output channels.
    pub fn rows(&self) -> usize {
        self.base.rows
    }

    /// Input channels.
    pub fn columns(&self) -> usize {
        self.base.columns
    }

    /// The name of the tensor that the base is in.
    pub fn tensor_name(&self) -> Option<&'a str> {
        self.name
    }

    /// Returns whether the base is plain floats.
    pub fn is_float(&self) -> bool {
        self.is_float
    }

    /// The rotation of its base, where that is of a rotated model.
    pub(super) fn rotation(&self) -> Option<&WeightRotation> {
        self.base.rotation()
    }

    /// The type of its values.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// The same in GGUF's terms.
    pub fn float_type(&self) -> Option<GgmlType> {
        match self.dtype {
            _ if !self.is_float => None,
            Dtype::F16 => Some(GgmlType::F16),
            Dtype::BF16 => Some(GgmlType::Bf16),
            _ => Some(GgmlType::F32),
        }
    }

    /// Bytes of the base.
    pub fn stored_bytes(&self) -> u64 {
        self.bytes
    }

    /// The values of a band, row-major, appended to `out`. Every sum is rounded to the type of the base, as PEFT does when it
    /// merges: with several adapters one after the other.
    pub fn read(&self, isa: Isa, band: &Band, out: &mut Vec<f32>) {
        let start = out.len();
        self.base.read(isa, band, out);
        let arithmetic = arithmetic(self.dtype);
        if self.products.is_empty() {
            out[start..].iter_mut().for_each(|value| *value = arithmetic.round(*value));
        }
        for product in &self.products {
            product.add_to(isa, band, arithmetic, &mut out[start..]);
        }
    }

    /// Gives the pages of its bytes back to the system.
    pub fn release(&self) {
        if let Some(StoredBytes { view, range }) = &self.stored {
            view.release_part(range.clone());
        }
    }
}

impl LowRank<'_> {
    fn add_to(&self, isa: Isa, band: &Band, arithmetic: ComputeDType, out: &mut [f32]) {
        let (rank, width) = (self.right.rows, band.columns.len());
        let (mut left, mut right) = (Vec::new(), Vec::new());
        self.left.read(isa, &Band { rows: band.rows.clone(), columns: 0..rank }, &mut left);
        self.right.read(isa, &Band { rows: 0..rank, columns: band.columns.clone() }, &mut right);
        let mut sums = vec![0.0; width];
        for (left, out) in left.chunks(rank.max(1)).zip(out.chunks_mut(width.max(1))) {
            dispatch(isa, AddRow { left, right: &right, scale: self.scale, arithmetic, sums: &mut sums, out });
        }
    }
}

fn arithmetic(dtype: Dtype) -> ComputeDType {
    match dtype {
        Dtype::F16 => ComputeDType::F16,
        Dtype::BF16 => ComputeDType::Bf16,
        _ => ComputeDType::F32,
    }
}

/// One row: sums in the order of the rank, then scaled, added and rounded.
struct AddRow<'a> {
    left: &'a [f32],
    right: &'a [f32],
    scale: f32,
    arithmetic: ComputeDType,
    sums: &'a mut [f32],
    out: &'a mut [f32],
}

impl Loop for AddRow<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let AddRow { left, right, scale, arithmetic, sums, out } = self;
        sums.fill(0.0);
        for (factor, row) in left.iter().zip(right.chunks(out.len().max(1))) {
            sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += factor * value);
        }
        for (value, sum) in out.iter_mut().zip(sums) {
            *value = arithmetic.round(*value + scale * *sum);
        }
    }
}
