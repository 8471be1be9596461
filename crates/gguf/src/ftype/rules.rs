//! Deviations of ftypes from their base type: more bits for values, down projections and the head, for the first and last blocks
//! above all.

use super::{Category, Ftype, Model, RuledTensor};
use kvant_container::gguf::TensorType::{self, MXFP4, Q3_K, Q4_1, Q4_K, Q5_1, Q5_K, Q6_K, Q8_0};

/// The type that an ftype gives to a tensor, before checking whether its blocks divide the columns.
pub fn choose(ftype: Ftype, model: &Model, subject: &RuledTensor) -> TensorType {
    let base = ftype.row().base;
    if ftype.is_float() {
        return base;
    }
    let is_head = match subject.category {
        Category::Head => true,
        Category::Embedding => model.tied,
        _ => false,
    };
    match subject.category {
        _ if is_head => head(ftype, subject.columns),
        _ if ftype == Ftype::MXFP4_MOE => {
            if subject.experts {
                MXFP4
            } else {
                Q8_0
            }
        }
        Category::Embedding if matches!(ftype, Ftype::TQ1_0 | Ftype::TQ2_0) => Q4_K,
        Category::Value { fused } => value(ftype, model, subject, fused),
        Category::Key if model.experts == 8 => Q8_0,
        Category::Down => down(ftype, model, subject.block),
        Category::AttentionOutput => attention_output(ftype, model),
        _ => base,
    }
}

/// The head decides over all tokens at once: 6 bits at least.
fn head(ftype: Ftype, columns: usize) -> TensorType {
    let base = ftype.row().base;
    let fits = columns.is_multiple_of(base.block_elements());
    if ftype == Ftype::MXFP4_MOE || !fits || base == Q8_0 { Q8_0 } else { Q6_K }
}

/// Blocks at either end, and every third between them.
fn more_bits(block: usize, blocks: usize) -> bool {
    let eighth = blocks / 8;
    block < eighth || block >= 7 * blocks / 8 || (block - eighth) % 3 == 2
}

fn value(ftype: Ftype, model: &Model, subject: &RuledTensor, fused: bool) -> TensorType {
    let (at, shared) = (subject.value, model.heads_per_group >= 4);
    let by_ftype = match ftype {
        Ftype::Q2_K if shared => Q4_K,
        Ftype::Q2_K => Q3_K,
        Ftype::Q2_K_S if shared => Q4_K,
        Ftype::Q3_K_M if at < 2 => Q5_K,
        Ftype::Q3_K_M => Q4_K,
        Ftype::Q3_K_L => Q5_K,
        Ftype::IQ4_NL | Ftype::IQ4_XS if shared => Q5_K,
        Ftype::Q4_K_M | Ftype::Q5_K_M if more_bits(at, model.values) => Q6_K,
        Ftype::Q4_K_S if at < 4 => Q5_K,
        _ => ftype.row().base,
    };
    // Matrices shared by eight heads are small, and so is one matrix beside eight experts.
    match by_ftype {
        _ if model.experts == 8 => Q8_0,
        Q3_K | Q4_K if model.is_70b && !fused => Q5_K,
        kind => kind,
    }
}

fn down(ftype: Ftype, model: &Model, block: usize) -> TensorType {
    let (blocks, base) = (model.blocks, ftype.row().base);
    let first_eighth = block < blocks / 8;
    match ftype {
        Ftype::Q2_K => Q3_K,
        Ftype::Q2_K_S if first_eighth => Q4_K,
        Ftype::Q3_K_M if block < blocks / 16 => Q5_K,
        Ftype::Q3_K_M => Q4_K,
        Ftype::Q3_K_L => Q5_K,
        Ftype::Q4_K_M | Ftype::Q5_K_M if more_bits(block, blocks) => Q6_K,
        Ftype::IQ4_NL | Ftype::IQ4_XS if first_eighth && !model.has_importance => Q5_K,
        Ftype::Q4_K_S if first_eighth => Q5_K,
        Ftype::Q4_0 if first_eighth && model.has_importance => Q4_1,
        Ftype::Q5_0 if first_eighth && model.has_importance => Q5_1,
        _ => base,
    }
}

fn attention_output(ftype: Ftype, model: &Model) -> TensorType {
    match ftype {
        Ftype::Q2_K | Ftype::Q3_K_S | Ftype::Q3_K_M | Ftype::Q4_K_S | Ftype::Q4_K_M | Ftype::IQ4_NL | Ftype::IQ4_XS
            if model.experts == 8 =>
        {
            Q5_K
        }
        _ if model.experts == 8 => ftype.row().base,
        Ftype::Q2_K => Q3_K,
        Ftype::Q3_K_M => Q4_K,
        Ftype::Q3_K_L => Q5_K,
        _ => ftype.row().base,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use TensorType::{Q2_K, Q4_0, Q5_0};

    fn model(blocks: usize) -> Model {
        Model {
            blocks,
            experts: 0,
            heads_per_group: 1,
            values: blocks,
            tied: false,
            is_70b: false,
            has_importance: false,
        }
    }

    fn subject(category: Category, block: usize) -> RuledTensor {
        RuledTensor { category, value: block, block, experts: false, columns: 4096 }
    }

    fn chosen(ftype: Ftype, model: Model, category: Category) -> Vec<TensorType> {
        (0..model.blocks).map(|block| choose(ftype, &model, &subject(category, block))).collect()
    }

    const VALUE: Category = Category::Value { fused: false };

    #[test]
    fn medium_ftype_gives_more_bits_to_half_of_the_blocks() {
        // What llama-quantize does to Llama 2 7B, which has 32 blocks.
        let six: Vec<usize> = (0..32).filter(|block| more_bits(*block, 32)).collect();
        assert_eq!(six, [0, 1, 2, 3, 6, 9, 12, 15, 18, 21, 24, 27, 28, 29, 30, 31]);
        for category in [VALUE, Category::Down] {
            let kinds = chosen(Ftype::Q4_K_M, model(32), category);
            let found: Vec<usize> = (0..32).filter(|block| kinds[*block] == Q6_K).collect();
            assert_eq!(found, six);
            assert!(kinds.iter().all(|kind| matches!(kind, Q4_K | Q6_K)));
        }
        assert!(chosen(Ftype::Q4_K_M, model(32), Category::Query).iter().all(|kind| *kind == Q4_K));
    }

    #[test]
    fn output_head_gets_six_or_eight_bits() {
        let choose_for = |ftype, category, model: Model, columns| {
            choose(ftype, &model, &RuledTensor { columns, ..subject(category, 0) })
        };
        let tied = Model { tied: true, ..model(4) };
        assert_eq!(choose_for(Ftype::Q4_K_M, Category::Head, model(4), 4096), Q6_K);
        assert_eq!(choose_for(Ftype::Q4_0, Category::Head, model(4), 128), Q6_K);
        assert_eq!(choose_for(Ftype::Q4_K_M, Category::Head, model(4), 128), Q8_0);
        assert_eq!(choose_for(Ftype::Q8_0, Category::Head, model(4), 4096), Q8_0);
        assert_eq!(choose_for(Ftype::Q4_K_M, Category::Embedding, model(4), 4096), Q4_K);
        assert_eq!(choose_for(Ftype::Q4_K_M, Category::Embedding, tied, 4096), Q6_K);
        assert_eq!(choose_for(Ftype::F16, Category::Head, tied, 4096), TensorType::F16);
        assert_eq!(choose_for(Ftype::TQ2_0, Category::Embedding, model(4), 4096), Q4_K);
    }

    #[test]
    fn small_tensors_beside_experts_get_eight_bits() {
        let mixtral = Model { experts: 8, ..model(32) };
        for category in [VALUE, Category::Key] {
            assert!(chosen(Ftype::Q2_K, mixtral, category).iter().all(|kind| *kind == Q8_0));
        }
        assert!(chosen(Ftype::Q4_K_M, mixtral, Category::AttentionOutput).iter().all(|kind| *kind == Q5_K));
        let all = RuledTensor { experts: true, ..subject(Category::Up, 0) };
        assert_eq!(choose(Ftype::MXFP4_MOE, &mixtral, &all), MXFP4);
        assert_eq!(choose(Ftype::MXFP4_MOE, &mixtral, &subject(Category::Query, 0)), Q8_0);
    }

    #[test]
    fn importance_and_shared_heads_change_the_type() {
        let shared = Model { heads_per_group: 4, ..model(32) };
        assert!(chosen(Ftype::Q2_K_S, shared, VALUE).iter().all(|kind| *kind == Q4_K));
        assert!(chosen(Ftype::Q2_K_S, model(32), VALUE).iter().all(|kind| *kind == Q2_K));
        let big = Model { is_70b: true, ..shared };
        assert!(chosen(Ftype::Q2_K, big, VALUE).iter().all(|kind| *kind == Q5_K));
        let known = Model { has_importance: true, ..model(32) };
        assert_eq!(chosen(Ftype::Q4_0, known, Category::Down)[..5], [Q4_1, Q4_1, Q4_1, Q4_1, Q4_0]);
        assert_eq!(chosen(Ftype::Q5_0, model(32), Category::Down)[0], Q5_0);
        assert_eq!(chosen(Ftype::IQ4_XS, model(32), Category::Down)[3], Q5_K);
        assert_eq!(chosen(Ftype::IQ4_XS, known, Category::Down)[3], TensorType::IQ4_XS);
        assert_eq!(chosen(Ftype::Q3_K_M, model(32), Category::Down)[..3], [Q5_K, Q5_K, Q4_K]);
    }
}
