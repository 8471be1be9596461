//! Gemma 3: the last hidden states of SigLIP, averaged over squares of patches.
//!
//! Data only; the fields are explained in [`super`].

use super::{ImageReading, Placeholder, ProcessorRows, Projector, TokenKey, TowerRows};
use crate::family::NormKind;

pub(super) const READING: ImageReading = ImageReading {
    name: "gemma3",
    model_types: &["gemma3"],
    tower: "vision_tower",
    described: None,
    rows: TowerRows::Last,
    projector: Projector::Pooled {
        rows: ("mm_tokens_per_image", 256),
        norm: "multi_modal_projector.mm_soft_emb_norm",
        norm_kind: NormKind::RmsUnitOffset,
        matrix: "multi_modal_projector.mm_input_projection_weight",
    },
    further: None,
    placeholder: Placeholder::Framed {
        begin: TokenKey { keys: &["boi_token_id", "boi_token_index"], default: 255_999 },
        token: TokenKey { keys: &["image_token_id", "image_token_index"], default: 262_144 },
        end: TokenKey { keys: &["eoi_token_id", "eoi_token_index"], default: 256_000 },
    },
    processor_rows: ProcessorRows::Length { key: "image_seq_length" },
    positions: None,
    sees_whole_images: true,
};
