//! Arrays that go into models and come out of them: a shape and its values, owned or lent. No arithmetic.

mod element;

pub use element::{Element, from_bytes};

use std::borrow::Cow;

use half::{bf16, f16};
use kvant_container::onnx::DataType;

use element::cast;

/// Values of one type, in row-major order; lent where they lie in a mapped file or in an engine's memory.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub enum Values<'a> {
    F32(Cow<'a, [f32]>),
    F64(Cow<'a, [f64]>),
    F16(Cow<'a, [f16]>),
    Bf16(Cow<'a, [bf16]>),
    I64(Cow<'a, [i64]>),
    I32(Cow<'a, [i32]>),
    I16(Cow<'a, [i16]>),
    I8(Cow<'a, [i8]>),
    U64(Cow<'a, [u64]>),
    U32(Cow<'a, [u32]>),
    U16(Cow<'a, [u16]>),
    U8(Cow<'a, [u8]>),
    Bool(Cow<'a, [bool]>),
}

/// Does the same with the values of whichever type.
#[macro_export]
macro_rules! each_type {
    ($values:expr, $name:ident => $body:expr) => {
        match $values {
            $crate::Values::F32($name) => $body,
            $crate::Values::F64($name) => $body,
            $crate::Values::F16($name) => $body,
            $crate::Values::Bf16($name) => $body,
            $crate::Values::I64($name) => $body,
            $crate::Values::I32($name) => $body,
            $crate::Values::I16($name) => $body,
            $crate::Values::I8($name) => $body,
            $crate::Values::U64($name) => $body,
            $crate::Values::U32($name) => $body,
            $crate::Values::U16($name) => $body,
            $crate::Values::U8($name) => $body,
            $crate::Values::Bool($name) => $body,
        }
    };
}

/// An array: a shape and as many values as its elements.
#[derive(Debug, Clone, PartialEq)]
pub struct Array<'a> {
    shape: Vec<usize>,
    values: Values<'a>,
}

impl<'a> Array<'a> {
    /// Puts values into a shape; `None` if they are not as many as the shape's places.
    pub fn new(shape: Vec<usize>, values: Values<'a>) -> Option<Self> {
        let places = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d))?;
        (places == values.len()).then_some(Self { shape, values })
    }

    /// An array of one type, owned or lent; `None` if the values are not as many as the shape's places.
    pub fn of<T: Element>(shape: Vec<usize>, values: impl Into<Cow<'a, [T]>>) -> Option<Self> {
        Self::new(shape, T::values(values.into()))
    }

    /// The sizes of the axes; empty for a scalar.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The values, row-major.
    pub fn values(&self) -> &Values<'a> {
        &self.values
    }

    /// The element type.
    pub fn data_type(&self) -> DataType {
        self.values.data_type()
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Returns whether there are no values.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The values if they are single precision floats.
    pub fn f32s(&self) -> Option<&[f32]> {
        match &self.values {
            Values::F32(values) => Some(values),
            _ => None,
        }
    }

    /// Returns whether the values are floats.
    pub fn is_float(&self) -> bool {
        matches!(self.data_type(), DataType::FLOAT | DataType::DOUBLE | DataType::FLOAT16 | DataType::BFLOAT16)
    }

    /// The values as single precision floats, whatever their type: converted where they are of another.
    pub fn to_f32s(&self) -> Cow<'_, [f32]> {
        match &self.values {
            Values::F32(values) => Cow::Borrowed(&values[..]),
            other => each_type!(other, v => v.iter().map(|x| x.to_float() as f32).collect()),
        }
    }

    /// Images `[n, c, h, w]` as `[n, h, w, c]`; `None` where there are not four axes.
    pub fn channels_last(&self) -> Option<Array<'static>> {
        let &[images, channels, height, width] = &self.shape[..] else { return None };
        let (area, shape) = (height * width, vec![images, height, width, channels]);
        let from = |place: usize| {
            let (image, pixel) = (place / channels / area, place / channels % area);
            (image * channels + place % channels) * area + pixel
        };
        each_type!(&self.values, v => Array::of(shape, (0..v.len()).map(|place| v[from(place)]).collect::<Vec<_>>()))
    }

    /// Position and name of the first non-finite value.
    pub fn first_not_finite(&self) -> Option<(usize, &'static str)> {
        let name = |v: f64| match v {
            v if v.is_nan() => "NaN",
            v if v > 0.0 => "infinity",
            _ => "minus infinity",
        };
        let found = each_type!(&self.values, v => v.iter().enumerate().find(|(_, x)| !x.to_float().is_finite()).map(|(i, x)| (i, x.to_float())));
        found.map(|(position, value)| (position, name(value)))
    }

    /// The largest value of integers; `None` for other types, and without values.
    pub fn largest_integer(&self) -> Option<i128> {
        each_type!(&self.values, v => v.iter().filter_map(|x| x.to_integer()).max())
    }

    /// The same array, lent.
    pub fn view(&self) -> Array<'_> {
        let values = each_type!(&self.values, v => Element::values(Cow::Borrowed(&v[..])));
        Array { shape: self.shape.clone(), values }
    }

    /// The same array, owned.
    pub fn into_owned(self) -> Array<'static> {
        Array { shape: self.shape, values: self.values.into_owned() }
    }

    /// The same values in another shape of as many places; `None` if it has more or less.
    pub fn reshaped(self, shape: Vec<usize>) -> Option<Self> {
        Self::new(shape, self.values)
    }

    /// The same values as another type; `None` where the type cannot hold one of them: a fraction as an integer, an integer
    /// out of range. Floats are rounded to narrower floats.
    pub fn cast(self, to: DataType) -> Option<Self> {
        if self.data_type() == to {
            return Some(self);
        }
        let values = each_type!(&self.values, v => cast(v, to))?;
        Some(Self { shape: self.shape, values })
    }
}

impl Values<'_> {
    /// The same values, owned.
    pub fn into_owned(self) -> Values<'static> {
        each_type!(self, v => Element::values(Cow::Owned(v.into_owned())))
    }

    /// The element type.
    pub fn data_type(&self) -> DataType {
        fn of<T: Element>(_: &[T]) -> DataType {
            T::DATA_TYPE
        }
        each_type!(self, v => of(v))
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        each_type!(self, v => v.len())
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shape_must_match_the_number_of_values() {
        assert!(Array::of(vec![2, 3], vec![0.0f32; 6]).is_some());
        assert!(Array::of(vec![], vec![0u8; 1]).is_some());
        assert!(Array::of(vec![2, 3], vec![0.0f32; 5]).is_none());
        assert!(Array::of(vec![usize::MAX, 2], vec![0u8; 0]).is_none());
    }

    #[test]
    fn first_non_finite_value_is_found() {
        let array = |v: Vec<f32>| Array::of(vec![v.len()], v).unwrap();
        assert_eq!(array(vec![1.0, f32::MAX, -0.0]).first_not_finite(), None);
        assert_eq!(array(vec![1.0, f32::NEG_INFINITY, f32::NAN]).first_not_finite(), Some((1, "minus infinity")));
        let overflown = array(vec![1e6]).cast(DataType::FLOAT16).unwrap();
        assert_eq!(overflown.first_not_finite(), Some((0, "infinity")));
        assert_eq!(Array::of(vec![1], vec![i64::MAX]).unwrap().first_not_finite(), None);
    }

    #[test]
    fn casts_keep_values_or_fail() {
        let array = |v: Vec<i64>| Array::of(vec![v.len()], v).unwrap();
        assert_eq!(array(vec![1, -2]).cast(DataType::INT32), Array::of(vec![2], vec![1i32, -2]));
        assert_eq!(array(vec![1, 300]).cast(DataType::UINT8), None);
        assert_eq!(array(vec![1, 0]).cast(DataType::BOOL), Array::of(vec![2], vec![true, false]));
        assert_eq!(array(vec![3]).cast(DataType::FLOAT), Array::of(vec![1], vec![3.0f32]));
        let halves = Array::of(vec![1], vec![0.5f64]).unwrap();
        assert_eq!(halves.clone().cast(DataType::INT64), None);
        assert_eq!(halves.clone().cast(DataType::FLOAT16), Array::of(vec![1], vec![f16::from_f32(0.5)]));
        assert_eq!(&halves.to_f32s()[..], [0.5]);
    }
}
