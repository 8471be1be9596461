//! Models of images: what they are given, and what is refused.

use super::models;
use crate::support;
use kvant_container::{Checkpoint, Diagnostic, Dtype, ErrorKind};
use kvant_data::images::{ImageOptions, Images};
use kvant_forward::forward::cpu::Cpu;
use kvant_forward::forward::{Decoder, ForwardError};
use std::path::Path;
use std::sync::Arc;

/// Families of images, with the learned rows of the small models.
const FAMILIES: [(&str, usize); 7] = [
    ("clip_vision", 1),
    ("deit", 2),
    ("dinov2", 1),
    ("dinov2_with_registers", 4),
    ("dinov3_vit", 4),
    ("siglip_vision", 0),
    ("vit", 1),
];

/// Images of 3 channels of 16 x 16 with the values of a function of image and place.
fn images(dir: &Path, count: usize, value: impl Fn(usize, usize) -> f32) -> Arc<Images> {
    let header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({count}, 3, 16, 16), }}");
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.as_bytes());
    for image in 0..count {
        bytes.extend((0..3 * 16 * 16).flat_map(|place| value(image, place).to_le_bytes()));
    }
    let file = dir.join(format!("pixels_{count}.npy"));
    std::fs::write(&file, bytes).unwrap();
    Arc::new(Images::open(&file, dir, [3, 16, 16], ImageOptions::default()).unwrap())
}

fn wave(image: usize, place: usize) -> f32 {
    ((place * 7 + image * 1000) as f32 * 0.37).sin()
}

#[test]
fn images_are_sequences_of_learned_rows_and_patches() {
    for (family, learned) in FAMILIES {
        let dir = models::write(family, Dtype::F32, "");
        let checkpoint = Checkpoint::open(dir.path()).unwrap();
        let mut decoder = Decoder::open_any(&checkpoint).unwrap_or_else(|error| panic!("{family}: {error}"));
        assert_eq!(decoder.image_shape(), Some([3, 16, 16]), "{family}");
        let sequences = decoder.give_images(images(dir.path(), 3, wave)).unwrap();
        let length = learned + 16;
        assert!(sequences.len() == 3 && sequences.iter().all(|tokens| tokens.len() == length), "{family}");
        let run = |tokens: &[u32]| decoder.encode(&Cpu::default(), tokens, length).unwrap().0;
        let all = run(&sequences.concat());
        let width = length * decoder.hidden();
        assert_eq!(all.len(), 3 * width, "{family}");
        // Each image alone has the hidden states that it has among others.
        for (image, tokens) in sequences.iter().enumerate() {
            assert_eq!(run(tokens), all[image * width..(image + 1) * width], "{family}");
        }
        assert_ne!(all[..width], all[width..2 * width], "{family}");
    }
}

#[test]
fn the_first_row_sees_the_last_patch() {
    for (family, _) in FAMILIES {
        let dir = models::write(family, Dtype::F32, "");
        let checkpoint = Checkpoint::open(dir.path()).unwrap();
        let mut decoder = Decoder::open_any(&checkpoint).unwrap();
        let last = 3 * 16 * 16 - 1;
        let sequences = decoder
            .give_images(images(dir.path(), 2, |image, place| wave(0, place) + f32::from(image == 1 && place == last)))
            .unwrap();
        let (hidden, _) = decoder.encode(&Cpu::default(), &sequences.concat(), sequences[0].len()).unwrap();
        let (width, second) = (decoder.hidden(), hidden.len() / 2);
        assert_ne!(hidden[..width], hidden[second..second + width], "{family}");
    }
}

#[test]
fn what_is_no_image_of_the_model_is_refused() {
    let dir = models::write("vit", Dtype::F32, "");
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    let mut decoder = Decoder::open_any(&checkpoint).unwrap();
    let none = decoder.encode(&Cpu::default(), &[0; 17], 17).unwrap_err();
    assert!(matches!(none, ForwardError::NoImages) && none.hint().is_some(), "{none}");
    let sequences = decoder.give_images(images(dir.path(), 2, wave)).unwrap();
    let mut mixed = sequences[0].clone();
    mixed[16] = sequences[1][16];
    let foreign = decoder.encode(&Cpu::default(), &mixed, 17).unwrap_err();
    assert!(matches!(foreign, ForwardError::Token { .. }), "{foreign}");
    let mut beyond = sequences[1].clone();
    beyond[1..].iter_mut().for_each(|token| *token += 16);
    let beyond = decoder.encode(&Cpu::default(), &beyond, 17).unwrap_err();
    assert!(matches!(beyond, ForwardError::Image(_)), "{beyond}");

    let text = models::write("bert", Dtype::F32, "");
    let text = Checkpoint::open(text.path()).unwrap();
    let refused = Decoder::open_any(&text).unwrap().give_images(images(dir.path(), 1, wave)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
    // Positions of another image size.
    let mut fixture = support::Checkpoint::read("vit");
    fixture.config["image_size"] = 32.into();
    let other = models::write_fixture(&fixture, Dtype::F32, "");
    let error = Decoder::open_any(&Checkpoint::open(other.path()).unwrap()).err().unwrap();
    assert!(matches!(error, ForwardError::Shape { .. }) && error.to_string().contains("32x32"), "{error}");
}
