//! The rows of images that a decoder has been given, in memory up to a budget and in a temporary file beyond it.

use super::super::error::ForwardError;
use super::super::layout::{ImageSpan, SequenceLayout};
use super::super::streams::Streams;
use super::axes;
use kvant_data::images::TextImages;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Rows of the stream for images, and further rows that join it behind the first blocks.
#[derive(Clone, Debug)]
pub(in super::super) struct ImageRows {
    images: Arc<TextImages>,
    /// Where the rows of an image are kept.
    places: Arc<BTreeMap<usize, usize>>,
    kept: Arc<Mutex<Streams>>,
    further: usize,
    /// The axis of each angle, where tokens turn by their place in an image.
    axes: Option<Arc<Vec<usize>>>,
    sees_whole: bool,
}

/// What rows of images are of, beside the images.
pub(super) struct RowsKind {
    /// Elements of a row.
    pub(super) width: usize,
    /// Further rows of each row of an image.
    pub(super) further: usize,
    /// The axis of each angle, where tokens turn by their place in an image.
    pub(super) axes: Option<Vec<usize>>,
    /// Whether tokens of an image see all of it.
    pub(super) sees_whole: bool,
}

impl ImageRows {
    /// Those of these images, of which none is there yet.
    pub(super) fn new(
        images: Arc<TextImages>,
        wanted: &[usize],
        kind: RowsKind,
        budget: u64,
    ) -> Result<ImageRows, ForwardError> {
        let elements = wanted.iter().flat_map(|image| {
            let elements = images.rows_of(*image) * kind.width;
            std::iter::repeat_n(elements, 1 + kind.further)
        });
        let kept = Streams::new(&elements.collect::<Vec<_>>(), budget)?;
        let places = wanted.iter().enumerate().map(|(place, image)| (*image, place)).collect();
        Ok(ImageRows {
            images,
            places: Arc::new(places),
            kept: Arc::new(Mutex::new(kept)),
            further: kind.further,
            axes: kind.axes.map(Arc::new),
            sees_whole: kind.sees_whole,
        })
    }

    /// Keeps the rows of the image at a place.
    pub(super) fn put(&self, place: usize, rows: Vec<f32>) -> Result<(), ForwardError> {
        self.put_at(place * (1 + self.further), rows)
    }

    /// Keeps the rows of the image at a place that join the stream behind block `index`.
    pub(super) fn put_further(&self, place: usize, index: usize, rows: Vec<f32>) -> Result<(), ForwardError> {
        self.put_at(place * (1 + self.further) + 1 + index, rows)
    }

    fn put_at(&self, at: usize, rows: Vec<f32>) -> Result<(), ForwardError> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).put(at, rows)
    }

    /// The rows of an image.
    pub(in super::super) fn rows(&self, image: usize) -> Result<Vec<f32>, ForwardError> {
        self.kept_at(image, 0)
    }

    /// The rows of an image that join the stream behind block `index`.
    pub(in super::super) fn further_rows(&self, image: usize, index: usize) -> Result<Vec<f32>, ForwardError> {
        self.kept_at(image, 1 + index)
    }

    fn kept_at(&self, image: usize, part: usize) -> Result<Vec<f32>, ForwardError> {
        let place = self.places.get(&image).ok_or(ForwardError::NoImages)?;
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).copy(place * (1 + self.further) + part)
    }

    /// Blocks behind which further rows join the stream.
    pub(in super::super) fn further(&self) -> usize {
        self.further
    }

    /// The images in a sequence.
    pub(in super::super) fn spans(&self, sequence: &[u32]) -> Vec<ImageSpan> {
        let places = self.images.places(sequence).into_iter();
        places.map(|(image, rows)| ImageSpan { rows, image, grid: self.images.grid(image) }).collect()
    }

    /// The time, row and column of each token of a sequence with images, and the axis of each angle; `None` where these are text, or tokens turn by
    /// their position alone.
    pub(in super::super) fn places(&self, layout: SequenceLayout<'_>) -> Option<(Vec<[usize; 3]>, &[usize])> {
        let axes = self.axes.as_deref().filter(|_| !layout.images.is_empty())?;
        Some((axes::places(layout), axes))
    }

    /// Whether tokens of an image see all of it.
    pub(in super::super) fn sees_whole(&self) -> bool {
        self.sees_whole
    }
}
