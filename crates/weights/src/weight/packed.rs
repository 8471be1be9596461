//! A matrix that is more than floats in a file, whichever way: codes with scales in tensors of their own, blocks that hold both,
//! or a weight that adapters change. What can be asked of either; how, they know themselves.

use super::{BlockMatrix, CodeMatrix, MergedMatrix};
use crate::band::Band;
use crate::import_error::ImportError;
use crate::parts::ScaleEncoding;
use kvant_container::Dtype;
use kvant_numeric::ggml::GgmlType;
use kvant_numeric::simd::Isa;
use kvant_quant::QuantTensor;
use kvant_quant::scheme::{SchemeError, TensorScheme};

/// A matrix of output and input channels.
#[derive(Clone, Debug)]
pub enum PackedMatrix<'a> {
    /// Codes, scales and zero points in tensors of their own.
    Apart(CodeMatrix<'a>),
    /// Blocks of a GGUF file; plain floats, too, whose rows stand in another order there.
    Blocks(BlockMatrix<'a>),
    /// A weight with what adapters add to it.
    Merged(MergedMatrix<'a>),
}

/// The same of all.
macro_rules! of_each {
    ($self:ident, $matrix:ident => $result:expr) => {
        match $self {
            PackedMatrix::Apart($matrix) => $result,
            PackedMatrix::Blocks($matrix) => $result,
            PackedMatrix::Merged($matrix) => $result,
        }
    };
}

/// The same of either kind of codes, and what holds of a weight that adapters change: no codes stand for its values.
macro_rules! of_either {
    ($self:ident, $matrix:ident => $result:expr, $without:expr) => {
        match $self {
            PackedMatrix::Apart($matrix) => $result,
            PackedMatrix::Blocks($matrix) => $result,
            PackedMatrix::Merged(_) => $without,
        }
    };
}

impl<'a> PackedMatrix<'a> {
    /// Output channels.
    pub fn rows(&self) -> usize {
        of_each!(self, matrix => matrix.rows())
    }

    /// Input channels.
    pub fn columns(&self) -> usize {
        of_each!(self, matrix => matrix.columns())
    }

    /// The name of the tensor that its codes are in.
    pub fn tensor_name(&self) -> Option<&'a str> {
        of_each!(self, matrix => matrix.tensor_name())
    }

    /// Returns whether it is plain floats.
    pub fn is_float(&self) -> bool {
        match self {
            PackedMatrix::Apart(_) => false,
            PackedMatrix::Blocks(matrix) => matrix.is_float(),
            PackedMatrix::Merged(matrix) => matrix.is_float(),
        }
    }

    /// The type of its floats, where it is plain floats.
    pub fn float_type(&self) -> Option<GgmlType> {
        match self {
            PackedMatrix::Apart(_) => None,
            PackedMatrix::Blocks(matrix) => matrix.float_type(),
            PackedMatrix::Merged(matrix) => matrix.float_type(),
        }
    }

    /// The type of its values, where that is its own and not that of the model's floats.
    pub fn own_type(&self) -> Option<Dtype> {
        match self {
            PackedMatrix::Merged(matrix) if matrix.is_float() => Some(matrix.dtype()),
            _ => None,
        }
    }

    /// The values of a band, row-major, appended to `out`: those of codes are `(code - zero point) * scale` in `f32`.
    pub fn read(&self, isa: Isa, band: &Band, out: &mut Vec<f32>) {
        of_each!(self, matrix => matrix.read(isa, band, out));
    }

    /// What the codes are, in the terms of schemes: integers are signed, with a zero point unless zero has the middle code
    /// everywhere and `symmetric` says that this may count. `None` for what no scheme describes.
    ///
    /// `usual` is what [`PackedMatrix::cut`] is for most matrices: it tells groups that are as long as the axis from channels, and
    /// blocks that are as large as the matrix from the whole of it.
    pub fn scheme(&self, symmetric: bool, usual: Option<(usize, usize)>) -> Option<TensorScheme> {
        of_either!(self, matrix => matrix.scheme(symmetric, usual), None)
    }

    /// The nearest scheme where [`PackedMatrix::scheme`] has none.
    pub fn like(&self) -> Option<TensorScheme> {
        match self {
            PackedMatrix::Apart(_) | PackedMatrix::Merged(_) => None,
            PackedMatrix::Blocks(matrix) => matrix.like(),
        }
    }

    /// The reason that no scheme describes its codes, if none does.
    pub fn unlike(&self) -> String {
        match self {
            PackedMatrix::Apart(_) => "no scheme describes its codes".to_owned(),
            PackedMatrix::Merged(_) => "an adapter changes its values, so its codes no longer match".to_owned(),
            PackedMatrix::Blocks(matrix) if matrix.coded().is_some() => {
                format!("minima of its {} blocks are not integer multiples of their scales", matrix.kinds())
            }
            PackedMatrix::Blocks(matrix) => format!("no scheme describes blocks of {}", matrix.kinds()),
        }
    }

    /// Rows and columns that share a scale, where there are several such tiles in a row, or a matrix of them.
    pub fn cut(&self) -> Option<(usize, usize)> {
        of_either!(self, matrix => matrix.cut(), None)
    }

    /// The encoding of scales.
    pub fn scale_encoding(&self) -> ScaleEncoding {
        of_either!(self, matrix => matrix.scale_encoding(), ScaleEncoding::F32)
    }

    /// All scales as they are stored, without that of the tensor.
    pub fn scales(&self, isa: Isa) -> Vec<f32> {
        of_either!(self, matrix => matrix.scales(isa), Vec::new())
    }

    /// Refuses scales that are NaN or infinite: no layout represents what they stand for.
    ///
    /// # Errors
    /// *Invalid*, with the name of the tensor that they are of.
    pub fn refuse_broken_scales(&self, isa: Isa, tensor: &str) -> Result<(), ImportError> {
        let mut scales = self.scales(isa).into_iter().chain(self.global_scale());
        match scales.find(|scale| !scale.is_finite()) {
            None => Ok(()),
            Some(scale) => Err(ImportError::invalid(tensor, format!("a scale of its codes is {scale:e}"))),
        }
    }

    /// Returns whether codes are integers.
    pub fn is_integer(&self) -> bool {
        of_either!(self, matrix => matrix.is_integer(), false)
    }

    /// Returns whether zero has the middle code for all scales.
    pub fn is_symmetric(&self, isa: Isa) -> bool {
        of_either!(self, matrix => matrix.is_symmetric(isa), true)
    }

    /// What is added to codes times their scales, for every scale, where that is what is stored.
    pub fn biases(&self, isa: Isa) -> Option<Vec<f32>> {
        match self {
            PackedMatrix::Apart(matrix) => matrix.biases(isa),
            PackedMatrix::Blocks(_) | PackedMatrix::Merged(_) => None,
        }
    }

    /// How far the code of zero is from the lowest code, for every scale.
    pub fn lowest_to_zero(&self, isa: Isa) -> Vec<u8> {
        of_either!(self, matrix => matrix.lowest_to_zero(isa), Vec::new())
    }

    /// The group of every input channel, where groups are not runs of them.
    pub fn groups(&self) -> Option<&[u32]> {
        match self {
            PackedMatrix::Apart(matrix) => matrix.groups(),
            PackedMatrix::Blocks(_) | PackedMatrix::Merged(_) => None,
        }
    }

    /// The scale of the tensor: what multiplies block scales, or values.
    pub fn global_scale(&self) -> Option<f32> {
        of_either!(self, matrix => matrix.global_scale(), None)
    }

    /// What block scales are divided by, where that is what is stored.
    pub fn divisor(&self) -> Option<f32> {
        match self {
            PackedMatrix::Apart(matrix) => matrix.divisor(),
            PackedMatrix::Blocks(_) | PackedMatrix::Merged(_) => None,
        }
    }

    /// Bytes of codes, scales and zero points.
    pub fn stored_bytes(&self) -> u64 {
        of_each!(self, matrix => matrix.stored_bytes())
    }

    /// A band of the codes in the form of a scheme that stands for the same values: [`PackedMatrix::scheme`], or that of
    /// unsigned codes, whose zero points are higher by half of their range. The band starts on a tile of scales. `memory` may
    /// be used for the codes.
    ///
    /// # Errors
    /// [`SchemeError`] where the scheme is not of such codes.
    pub fn recoded(
        &self,
        isa: Isa,
        band: &Band,
        scheme: TensorScheme,
        memory: Vec<u8>,
    ) -> Result<QuantTensor, SchemeError> {
        match self {
            PackedMatrix::Apart(matrix) => matrix.recoded(isa, band, scheme, memory),
            PackedMatrix::Blocks(matrix) => matrix.recoded(isa, band, scheme),
            PackedMatrix::Merged(_) => Err(SchemeError::Combination { text: scheme.to_string() }),
        }
    }

    /// Gives the pages of its bytes back to the system.
    pub fn release(&self) {
        of_each!(self, matrix => matrix.release());
    }
}
