//! Tensor types of files and their codecs: the same numbers in two crates.

use kvant_container::gguf::TensorType;
use kvant_numeric::ggml::GgmlType;

/// The codec of a type; `None` where there is none.
pub fn of(kind: TensorType) -> Option<GgmlType> {
    GgmlType::ALL.iter().find(|row| row.id == kind.id()).map(|row| row.kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn container_and_numeric_agree_on_block_types() {
        for row in GgmlType::ALL {
            let kind = TensorType::from_id(row.id).unwrap();
            assert_eq!(
                (kind.name(), kind.block_elements(), kind.block_bytes()),
                (row.name, row.block_elements, row.block_bytes)
            );
            assert_eq!(of(kind), Some(row.kind));
        }
        assert_eq!(of(TensorType::I32), None);
    }
}
