//! The scheme that layers get in common which engines make one of, where their codes in the source are of several kinds: mixes of
//! GGUF give values more bits than queries and keys. Not whether a target holds it.

use super::build::Builder;
use super::source::SourceTensor;
use crate::import::PackedMatrix;
use crate::network::{Siblings, SiblingsId};
use kvant_quant::scheme::{IntScheme, TensorScheme, ZeroPoint};
use std::collections::HashMap;

/// The schemes of groups whose layers differ.
pub(super) type CommonSchemes = HashMap<SiblingsId, TensorScheme>;

impl Builder<'_> {
    /// The widest scheme of every group whose layers differ in what they are nearest to.
    pub(super) fn common_schemes(
        &self,
        nearest_to: impl Fn(&PackedMatrix<'_>) -> Option<TensorScheme>,
    ) -> CommonSchemes {
        let scheme = |tensor: &SourceTensor<'_>| match tensor.packed().filter(|_| tensor.has_codes()) {
            Some([matrix]) => nearest_to(matrix),
            _ => None,
        };
        let of_group = |group: &Siblings| -> Option<(SiblingsId, TensorScheme)> {
            let members = group.members.iter().map(|id| self.network.linear(*id));
            let id = self.network.linear(*group.members.first()?).siblings?;
            let schemes = members.map(|linear| scheme(&self.tensors[linear.weight])).collect::<Option<Vec<_>>>()?;
            let differ = schemes.windows(2).any(|pair| pair[0] != pair[1]);
            let widest = schemes.into_iter().max_by_key(|scheme| (scheme.format().bits(), has_zero_points(*scheme)))?;
            differ.then_some((id, widest))
        };
        self.network.siblings().iter().filter_map(of_group).collect()
    }
}

fn has_zero_points(scheme: TensorScheme) -> bool {
    matches!(scheme, TensorScheme::Int(IntScheme { zero_point, .. }) if zero_point != ZeroPoint::Zero)
}
