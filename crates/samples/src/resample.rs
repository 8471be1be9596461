//! Resizing of pictures with a filter that widens with the reduction, in the fixed-point arithmetic of Pillow's `Image.resize`: weights are
//! multiples of `2^-22`, and every pass rounds to bytes. Rows are resized before columns, as torchvision does, and Pillow before version 13.
//! torchvision, with which image processors of transformers 5 resize, has weights of 16 bits, so that values differ by one level at most:
//! [`resample_as_torch`] has them too.

/// The kernel that weighs the pixels around a point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Filter {
    /// The pixel at the point.
    Nearest,
    /// `1` within half a pixel.
    Box,
    /// `1 - |x|`.
    Bilinear,
    /// The window of Hamming, one pixel to either side.
    Hamming,
    /// The cubic of Keys with `a = -1/2`.
    Bicubic,
    /// `sinc(x) sinc(x / 3)`.
    Lanczos,
}

impl Filter {
    /// The filter of a number of `PIL.Image.Resampling`, which configurations state.
    pub fn from_number(number: u64) -> Option<Filter> {
        Some(match number {
            0 => Filter::Nearest,
            1 => Filter::Lanczos,
            2 => Filter::Bilinear,
            3 => Filter::Bicubic,
            4 => Filter::Box,
            5 => Filter::Hamming,
            _ => return None,
        })
    }

    /// The pixels to either side that it reads.
    fn support(self) -> f64 {
        match self {
            Filter::Nearest | Filter::Box => 0.5,
            Filter::Bilinear | Filter::Hamming => 1.0,
            Filter::Bicubic => 2.0,
            Filter::Lanczos => 3.0,
        }
    }

    fn weight(self, x: f64) -> f64 {
        let sinc = |x: f64| if x == 0.0 { 1.0 } else { (x * std::f64::consts::PI).sin() / (x * std::f64::consts::PI) };
        let far = x.abs();
        match self {
            Filter::Nearest | Filter::Box => f64::from(x > -0.5 && x <= 0.5),
            Filter::Bilinear => (1.0 - far).max(0.0),
            Filter::Hamming if far < 1.0 => sinc(far) * (0.54 + 0.46 * (far * std::f64::consts::PI).cos()),
            Filter::Bicubic if far < 1.0 => ((1.5 * far) - 2.5) * far * far + 1.0,
            Filter::Bicubic if far < 2.0 => (((far - 5.0) * far + 8.0) * far - 4.0) * -0.5,
            Filter::Lanczos if (-3.0..3.0).contains(&x) => sinc(x) * sinc(x / 3.0),
            _ => 0.0,
        }
    }
}

/// Bits of a weight behind the point: bytes, and two bits for sums of negative weights, leave as many of 32.
const BITS: u32 = 32 - 8 - 2;

/// The weights of one output: those of consecutive inputs from `first` on.
struct Window {
    first: usize,
    /// Their sum is 1.
    weights: Vec<f64>,
}

impl Window {
    /// The weights as multiples of `2^-bits`.
    fn fixed(&self, bits: u32) -> Vec<i64> {
        let fixed = |weight: &f64| {
            let weight = weight * f64::from(1 << bits);
            (if weight < 0.0 { weight - 0.5 } else { weight + 0.5 }) as i64
        };
        self.weights.iter().map(fixed).collect()
    }
}

/// The windows of `to` outputs over `from` inputs.
fn windows(filter: Filter, from: usize, to: usize) -> Vec<Window> {
    let scale = from as f64 / to as f64;
    let widened = scale.max(1.0);
    let support = filter.support() * widened;
    let window = |out: usize| {
        let center = (out as f64 + 0.5) * scale;
        let first = ((center - support + 0.5) as i64).max(0) as usize;
        let last = (((center + support + 0.5) as i64).max(0) as usize).min(from);
        let weights: Vec<f64> = (first..last).map(|at| filter.weight((at as f64 - center + 0.5) / widened)).collect();
        let sum: f64 = weights.iter().sum();
        let share = |weight: f64| if sum == 0.0 { weight } else { weight / sum };
        Window { first, weights: weights.into_iter().map(share).collect() }
    };
    (0..to).map(window).collect()
}

/// The bits of weights behind the point with which the largest is below `2^15`, as torch's `interpolate` chooses them for bytes
/// (`_compute_index_ranges_int16_weights` of `UpSampleKernel.cpp`).
fn bits_of_torch(windows: &[Window]) -> u32 {
    let largest = windows.iter().flat_map(|window| &window.weights).fold(0.0f64, |most, weight| most.max(*weight));
    (0..BITS).find(|bits| 0.5 + largest * f64::from(2 << bits) >= f64::from(1 << 15)).unwrap_or(BITS)
}

/// Pixels of three bytes in rows of `width`, resized.
pub fn resample(pixels: &[u8], from: (usize, usize), to: (usize, usize), filter: Filter) -> Vec<u8> {
    resampled(pixels, from, to, filter, |_| BITS)
}

/// The same in torchvision's arithmetic, for bytes with antialiasing.
pub fn resample_as_torch(pixels: &[u8], from: (usize, usize), to: (usize, usize), filter: Filter) -> Vec<u8> {
    resampled(pixels, from, to, filter, bits_of_torch)
}

fn resampled(
    pixels: &[u8],
    from: (usize, usize),
    to: (usize, usize),
    filter: Filter,
    bits: impl Fn(&[Window]) -> u32,
) -> Vec<u8> {
    resized(pixels, from, to, filter, |windows| {
        let bits = bits(&windows);
        let windows: Vec<(usize, Vec<i64>)> = windows.iter().map(|window| (window.first, window.fixed(bits))).collect();
        move |at, pixel: &dyn Fn(usize) -> [u8; 3]| {
            let (first, weights) = &windows[at];
            let mut sums = [(1i64 << bits) >> 1; 3];
            for (at, weight) in (*first..).zip(weights) {
                sums.iter_mut().zip(pixel(at)).for_each(|(sum, value)| *sum += weight * i64::from(value));
            }
            sums.map(|sum| (sum >> bits).clamp(0, 255) as u8)
        }
    })
}

/// The same of floats, which are not rounded: with weights and sums in `f64`.
pub fn resample_floats(pixels: &[f32], from: (usize, usize), to: (usize, usize), filter: Filter) -> Vec<f32> {
    resized(pixels, from, to, filter, |windows| {
        move |at, pixel: &dyn Fn(usize) -> [f32; 3]| {
            let Window { first, weights } = &windows[at];
            let mut sums = [0.0f64; 3];
            for (at, weight) in (*first..).zip(weights) {
                sums.iter_mut().zip(pixel(at)).for_each(|(sum, value)| *sum += weight * f64::from(value));
            }
            sums.map(|sum| sum as f32)
        }
    })
}

/// Pixels resized, first along rows, then along columns. `summed` makes, of windows, what gives the output of a window from the pixels that
/// it reads.
fn resized<T: Copy, F: Fn(usize, &dyn Fn(usize) -> [T; 3]) -> [T; 3]>(
    pixels: &[T],
    (width, height): (usize, usize),
    to: (usize, usize),
    filter: Filter,
    summed: impl Fn(Vec<Window>) -> F,
) -> Vec<T> {
    if filter == Filter::Nearest {
        return nearest(pixels, (width, height), to);
    }
    let pixel_of = |row: &[T], at: usize| [row[3 * at], row[3 * at + 1], row[3 * at + 2]];
    let narrowed = match to.0 == width {
        true => pixels.to_vec(),
        false => {
            let sum = summed(windows(filter, width, to.0));
            let mut out = Vec::with_capacity(3 * to.0 * height);
            for row in pixels.chunks_exact(3 * width.max(1)) {
                (0..to.0).for_each(|x| out.extend(sum(x, &|at| pixel_of(row, at))));
            }
            out
        }
    };
    if to.1 == height {
        return narrowed;
    }
    let sum = summed(windows(filter, height, to.1));
    let mut out = Vec::with_capacity(3 * to.0 * to.1);
    for y in 0..to.1 {
        (0..to.0).for_each(|x| out.extend(sum(y, &|at| pixel_of(&narrowed, at * to.0 + x))));
    }
    out
}

fn nearest<T: Copy>(pixels: &[T], (width, height): (usize, usize), to: (usize, usize)) -> Vec<T> {
    let source = |out: usize, from: usize, to: usize| {
        (((out as f64 + 0.5) * (from as f64 / to as f64)) as usize).min(from.saturating_sub(1))
    };
    let columns: Vec<usize> = (0..to.0).map(|x| source(x, width, to.0)).collect();
    let rows = (0..to.1).map(|y| source(y, height, to.1));
    let pixel = |y: usize, x: usize| &pixels[3 * (y * width + x)..3 * (y * width + x) + 3];
    rows.flat_map(|y| columns.iter().flat_map(move |x| pixel(y, *x)).copied().collect::<Vec<T>>()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Filter; 6] =
        [Filter::Nearest, Filter::Box, Filter::Bilinear, Filter::Hamming, Filter::Bicubic, Filter::Lanczos];

    #[test]
    fn one_colour_stays_itself_at_every_size() {
        let pixels: Vec<u8> = [7u8, 130, 255].repeat(5 * 4);
        for filter in ALL {
            for to in [(5, 4), (3, 9), (11, 2), (1, 1)] {
                let out = resample(&pixels, (5, 4), to, filter);
                assert_eq!(out, [7u8, 130, 255].repeat(to.0 * to.1), "{filter:?} {to:?}");
            }
        }
    }

    #[test]
    fn halving_averages_and_doubling_interpolates() {
        let grey = |row: &[u8]| row.iter().flat_map(|v| [*v; 3]).collect::<Vec<u8>>();
        assert_eq!(resample(&grey(&[0, 10, 20, 31]), (4, 1), (2, 1), Filter::Box), grey(&[5, 26]));
        // Of Pillow: Image.fromarray(a).resize((4, 1), 2) of a row 0, 100.
        assert_eq!(resample(&grey(&[0, 100]), (2, 1), (4, 1), Filter::Bilinear), grey(&[0, 25, 75, 100]));
        assert_eq!(resample(&grey(&[0, 100]), (2, 1), (4, 1), Filter::Nearest), grey(&[0, 0, 100, 100]));
    }

    #[test]
    fn weights_of_torch_have_16_bits() {
        // Of torchvision: resize(tensor, [1, 5], BICUBIC, antialias=True) of rows of 7 and 3 pixels.
        let row = |values: &[u8]| values.iter().flat_map(|v| [*v; 3]).collect::<Vec<u8>>();
        let of = |values: &[u8]| {
            let out = resample_as_torch(&row(values), (values.len(), 1), (5, 1), Filter::Bicubic);
            out.iter().step_by(3).copied().collect::<Vec<u8>>()
        };
        assert_eq!(of(&[3, 250, 17, 99, 181, 64, 5]), [87, 123, 93, 136, 16]);
        assert_eq!(of(&[13, 251, 40]), [0, 106, 251, 125, 24]);
        assert_eq!(bits_of_torch(&windows(Filter::Box, 4, 2)), 15);
    }

    #[test]
    fn filters_have_the_numbers_of_pillow() {
        assert_eq!(
            [0, 2, 3].map(Filter::from_number),
            [Some(Filter::Nearest), Some(Filter::Bilinear), Some(Filter::Bicubic)]
        );
        assert_eq!(Filter::from_number(6), None);
    }
}
