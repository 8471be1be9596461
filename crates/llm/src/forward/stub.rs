//! stub
use super::*;
use std::ops::ControlFlow;
#[derive(Clone, Copy, Default)]
pub struct Variation<'v, 'a> { pub overlay: Option<&'v Overlay<'a>>, pub tap: Option<&'v dyn Tap>, pub until: Option<Depth>, pub routing: Option<&'v Routing> }
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Depth { AttentionInput, QueryLatent, KeyValueLatent, Heads, FeedForward, Hidden }
#[derive(Default)]
pub struct Routing;
impl Routing { pub fn record() -> Routing { Routing } pub fn replay(self) -> Routing { self } }
pub struct Runner<'r, 'a> { d: &'r Decoder<'a>, o: &'r dyn Ops }
impl<'r, 'a> Runner<'r, 'a> {
    pub fn new(d: &'r Decoder<'a>, o: &'r dyn Ops) -> Self { Runner { d, o } }
    pub fn embed(&self, _v: Variation<'_, 'a>, _t: &[u32], _l: usize) -> Result<Vec<f32>, ForwardError> { Ok(vec![]) }
    pub fn block(&self, _v: Variation<'_, 'a>, _b: usize, _l: usize, _x: &mut Vec<f32>) -> ControlFlow<()> { ControlFlow::Continue(()) }
    pub fn attention(&self, _v: Variation<'_, 'a>, _b: usize, _l: usize, _x: &[f32]) -> Vec<f32> { vec![] }
    pub fn feed_forward(&self, _v: Variation<'_, 'a>, _b: usize, _l: usize, _x: &[f32]) -> Vec<f32> { vec![] }
    pub fn linear(&self, _v: Variation<'_, 'a>, _l: &Projection, _x: &[f32]) -> Vec<f32> { vec![] }
    pub fn hidden(&self, _v: Variation<'_, 'a>, _l: usize, _x: &[f32]) -> Vec<f32> { vec![] }
}
