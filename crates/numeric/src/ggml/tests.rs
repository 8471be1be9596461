//! What holds for every type of the table.

use super::*;

/// Values of mixed magnitudes, without end or repetition.
pub(super) fn values(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_769) | 1;
    let mut uniform = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / 16_777_216.0 - 0.5
    };
    (0..count).map(|_| (uniform() + uniform() + uniform() + uniform()) * 0.04).collect()
}

/// Quantized and back.
pub(super) fn round_trip(isa: Isa, kind: GgmlType, values: &[f32], importance: Option<&[f32]>) -> (Vec<u8>, Vec<f32>) {
    let columns = importance.map_or(values.len(), <[f32]>::len);
    let rows = values.len() / columns;
    let mut bytes = vec![0; rows * kind.row_bytes(columns).unwrap()];
    quantize(isa, kind, columns, values, importance, &mut bytes);
    let mut back = vec![f32::NAN; values.len()];
    dequantize(isa, kind, &bytes, &mut back);
    (bytes, back)
}

#[test]
fn rows_stand_in_the_order_of_the_variants_and_names_and_ids_are_unique() {
    for (i, row) in GgmlType::ALL.iter().enumerate() {
        assert_eq!(row.kind as usize, i);
        assert_eq!(row.name.parse(), Ok(row.kind));
        assert_eq!(row.name.to_lowercase().parse(), Ok(row.kind));
        assert_eq!(row.kind.to_string(), row.name);
        assert_eq!(GgmlType::from_id(row.id), Some(row.kind));
        assert!(GgmlType::ALL.iter().filter(|other| other.id == row.id || other.name == row.name).count() == 1);
    }
    assert_eq!(GgmlType::from_id(4), None);
    assert_eq!("Q4_2".parse::<GgmlType>(), Err(UnknownGgmlType("Q4_2".to_owned())));
}

#[test]
fn rows_are_whole_blocks() {
    for row in GgmlType::ALL {
        assert_eq!(row.kind.row_bytes(row.block_elements * 3), Some(row.block_bytes * 3));
        assert_eq!(row.kind.row_bytes(0), Some(0));
        if row.block_elements > 1 {
            assert_eq!(row.kind.row_bytes(row.block_elements + 1), None);
        }
    }
    assert_eq!(GgmlType::F32.row_bytes(usize::MAX), None);
}

#[test]
fn every_isa_makes_the_same_bytes_and_values() {
    let data = values(3 * 1024, 7);
    let importance: Vec<f32> = values(1024, 8).iter().map(|v| v * v).collect();
    for row in GgmlType::ALL {
        for weights in [None, Some(&importance[..])] {
            let expected = round_trip(Isa::BASELINE, row.kind, &data, weights);
            for isa in Isa::available() {
                assert!(round_trip(isa, row.kind, &data, weights) == expected, "{} on {}", row.name, isa.name());
            }
        }
    }
}
