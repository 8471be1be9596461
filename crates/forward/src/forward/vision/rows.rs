//! The rows of images that a decoder has been given, in memory up to a budget and in a temporary file beyond it.

use super::super::error::ForwardError;
use super::super::layout::ImageSpan;
use super::super::streams::Streams;
use kvant_data::images::TextImages;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Rows of the stream for images.
#[derive(Clone, Debug)]
pub(in super::super) struct ImageRows {
    images: Arc<TextImages>,
    /// Where the rows of an image are kept.
    places: Arc<BTreeMap<usize, usize>>,
    kept: Arc<Mutex<Streams>>,
    sees_whole: bool,
}

impl ImageRows {
    /// Those of these images, of so many elements each, of which none is there yet.
    pub(super) fn new(
        images: Arc<TextImages>,
        wanted: &[usize],
        elements: usize,
        budget: u64,
        sees_whole: bool,
    ) -> Result<ImageRows, ForwardError> {
        let kept = Streams::new(&vec![elements; wanted.len()], budget)?;
        let places = wanted.iter().enumerate().map(|(place, image)| (*image, place)).collect();
        Ok(ImageRows { images, places: Arc::new(places), kept: Arc::new(Mutex::new(kept)), sees_whole })
    }

    /// Keeps the rows of the image at a place.
    pub(super) fn put(&self, place: usize, rows: Vec<f32>) -> Result<(), ForwardError> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).put(place, rows)
    }

    /// The rows of an image.
    pub(in super::super) fn rows(&self, image: usize) -> Result<Vec<f32>, ForwardError> {
        let place = self.places.get(&image).ok_or(ForwardError::NoImages)?;
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).copy(*place)
    }

    /// The images in a sequence.
    pub(in super::super) fn spans(&self, sequence: &[u32]) -> Vec<ImageSpan> {
        let places = self.images.places(sequence).into_iter();
        places.map(|(image, rows)| ImageSpan { rows, image }).collect()
    }

    /// Whether tokens of an image see all of it.
    pub(in super::super) fn sees_whole(&self) -> bool {
        self.sees_whole
    }
}
