//! Places for the boxes of a directed graph: in layers from top to bottom, so that lines go down and few of them cross.
//!
//! The steps are those of Sugiyama, Tagawa and Toda (1981): layers by longest paths, places that hold lines which cross layers, an order
//! within each layer by the mean place of neighbours, and coordinates as near as possible to the mean of neighbours without overlap.

use std::collections::{BTreeMap, BTreeSet};

/// Space between boxes of a layer.
const BESIDE: f64 = 28.0;
/// Space between layers, which lines cross.
const BETWEEN: f64 = 44.0;
/// The width kept free for a line that crosses a layer.
const LINE: f64 = 10.0;
/// Passes over the layers for their order, and for coordinates.
const PASSES: usize = 12;

/// A box to be placed.
#[derive(Clone, Copy, Debug)]
pub(super) struct BoxSize {
    pub width: f64,
    pub height: f64,
}

/// Where a box is: its left upper corner.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Corner {
    pub x: f64,
    pub y: f64,
}

/// A line from a box to another, through these points.
#[derive(Clone, Debug)]
pub(super) struct Route {
    /// Points from top to bottom. Between the second and the third, fourth and fifth and so on it goes straight down.
    pub points: Vec<(f64, f64)>,
}

/// A drawing.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    pub boxes: Vec<Corner>,
    pub routes: Vec<Route>,
    pub width: f64,
    pub height: f64,
}

/// A place in a layer: that of a box, or that of a line which crosses the layer.
#[derive(Clone, Copy, Debug)]
struct Place {
    width: f64,
    /// The middle.
    x: f64,
    is_line: bool,
}

struct Layers {
    /// Boxes first, then lines.
    places: Vec<Place>,
    layer_of: Vec<usize>,
    layers: Vec<Vec<usize>>,
    above: Vec<Vec<usize>>,
    below: Vec<Vec<usize>>,
    /// The places of lines by their box and layer: lines from one box share them.
    lines: BTreeMap<(usize, usize), usize>,
}

/// Places boxes and routes the edges between them. Edges must not form circles; those that are given twice are drawn once.
pub(super) fn place(boxes: &[BoxSize], edges: &[(usize, usize)]) -> Layout {
    let edges: BTreeSet<(usize, usize)> = edges.iter().copied().collect();
    let mut layers = Layers::of(boxes, &edges);
    layers.order();
    layers.coordinates();
    layers.drawn(boxes, &edges)
}

/// The layer of each box: one below the lowest box above it. What nothing is above stands next to what it leads to.
fn layers_of(count: usize, edges: &BTreeSet<(usize, usize)>) -> Vec<usize> {
    let mut layer: Vec<usize> = vec![0; count];
    // Longest paths: as many passes as there are layers.
    for _ in 0..count {
        let mut is_same = true;
        for &(from, to) in edges {
            if layer[to] <= layer[from] {
                layer[to] = layer[from] + 1;
                is_same = false;
            }
        }
        if is_same {
            break;
        }
    }
    for at in 0..count {
        let nearest = edges.iter().filter(|(from, _)| *from == at).map(|(_, to)| layer[*to]).min();
        if let Some(nearest) = nearest.filter(|_| edges.iter().all(|(_, to)| *to != at)) {
            layer[at] = nearest.saturating_sub(1);
        }
    }
    layer
}

impl Layers {
    fn of(boxes: &[BoxSize], edges: &BTreeSet<(usize, usize)>) -> Layers {
        let layer_of = layers_of(boxes.len(), edges);
        let count = layer_of.iter().max().map_or(0, |last| last + 1);
        let mut made = Layers {
            places: boxes.iter().map(|size| Place { width: size.width, x: 0.0, is_line: false }).collect(),
            layers: vec![Vec::new(); count],
            above: vec![Vec::new(); boxes.len()],
            below: vec![Vec::new(); boxes.len()],
            lines: BTreeMap::new(),
            layer_of,
        };
        (0..boxes.len()).for_each(|at| made.layers[made.layer_of[at]].push(at));
        for &(from, to) in edges {
            let mut last = from;
            for layer in made.layer_of[from] + 1..made.layer_of[to] {
                last = made.line(from, last, layer);
            }
            made.connect(last, to);
        }
        made
    }

    /// The place of the lines of a box in a layer.
    fn line(&mut self, of: usize, last: usize, layer: usize) -> usize {
        if let Some(&place) = self.lines.get(&(of, layer)) {
            return place;
        }
        let place = self.places.len();
        self.places.push(Place { width: LINE, x: 0.0, is_line: true });
        self.layer_of.push(layer);
        self.layers[layer].push(place);
        self.above.push(Vec::new());
        self.below.push(Vec::new());
        self.lines.insert((of, layer), place);
        self.connect(last, place);
        place
    }

    fn connect(&mut self, from: usize, to: usize) {
        self.below[from].push(to);
        self.above[to].push(from);
    }

    /// Orders each layer by the mean place of neighbours, downwards and upwards in turns.
    fn order(&mut self) {
        for pass in 0..PASSES {
            let is_down = pass % 2 == 0;
            let count = self.layers.len();
            for step in 0..count {
                let layer = if is_down { step } else { count - 1 - step };
                self.spread(layer);
                let neighbours = if is_down { &self.above } else { &self.below };
                let mean =
                    |at: &usize| mean(neighbours[*at].iter().map(|&n| self.places[n].x)).unwrap_or(self.places[*at].x);
                let mut sorted: Vec<(f64, usize)> = self.layers[layer].iter().map(|at| (mean(at), *at)).collect();
                sorted.sort_by(|a, b| a.0.total_cmp(&b.0));
                self.layers[layer] = sorted.into_iter().map(|(_, at)| at).collect();
                self.spread(layer);
            }
        }
    }

    /// Puts the places of a layer side by side around zero.
    fn spread(&mut self, layer: usize) {
        let width: f64 = self.layers[layer].iter().map(|&at| self.places[at].width + BESIDE).sum();
        let mut left = -width / 2.0;
        for &at in &self.layers[layer] {
            let place = &mut self.places[at];
            place.x = left + (place.width + BESIDE) / 2.0;
            left += place.width + BESIDE;
        }
    }

    /// Moves places towards the mean of their neighbours, in the order that they have.
    fn coordinates(&mut self) {
        for pass in 0..2 * PASSES {
            let is_down = pass % 2 == 0;
            let count = self.layers.len();
            for step in 0..count {
                let layer = if is_down { step } else { count - 1 - step };
                let neighbours = if is_down { &self.above } else { &self.below };
                let wanted: Vec<f64> = self.layers[layer]
                    .iter()
                    .map(|&at| mean(neighbours[at].iter().map(|&n| self.places[n].x)).unwrap_or(self.places[at].x))
                    .collect();
                let found = self.apart(layer, &wanted);
                for (&at, x) in self.layers[layer].iter().zip(found) {
                    self.places[at].x = x;
                }
            }
        }
    }

    /// The middles nearest to the wanted ones, in squares, that leave room for all places of a layer. Lines count more, so that they stay
    /// straight. This is isotonic regression: neighbours that are too near form blocks, each at its weighted mean.
    fn apart(&self, layer: usize, wanted: &[f64]) -> Vec<f64> {
        struct Block {
            sum: f64,
            weight: f64,
            count: usize,
        }
        let places: Vec<&Place> = self.layers[layer].iter().map(|&at| &self.places[at]).collect();
        // Less what stands to the left of each, places may be equal but not in another order.
        let mut offsets = Vec::with_capacity(places.len());
        let mut offset = 0.0_f64;
        for (at, place) in places.iter().enumerate() {
            if at > 0 {
                offset += (places[at - 1].width + place.width) / 2.0 + BESIDE;
            }
            offsets.push(offset);
        }
        let mut blocks: Vec<Block> = Vec::new();
        for (at, place) in places.iter().enumerate() {
            let weight = if place.is_line { 4.0 } else { 1.0 };
            blocks.push(Block { sum: weight * (wanted[at] - offsets[at]), weight, count: 1 });
            while let [.., before, last] = &mut blocks[..] {
                if before.sum / before.weight <= last.sum / last.weight {
                    break;
                }
                before.sum += last.sum;
                before.weight += last.weight;
                before.count += last.count;
                blocks.pop();
            }
        }
        let middles = blocks.iter().flat_map(|block| std::iter::repeat_n(block.sum / block.weight, block.count));
        middles.zip(offsets).map(|(middle, offset)| middle + offset).collect()
    }

    fn drawn(&self, boxes: &[BoxSize], edges: &BTreeSet<(usize, usize)>) -> Layout {
        let height_of = |layer: &Vec<usize>| {
            layer.iter().filter(|&&at| at < boxes.len()).map(|&at| boxes[at].height).fold(LINE, f64::max)
        };
        let heights: Vec<f64> = self.layers.iter().map(height_of).collect();
        let mut tops = Vec::with_capacity(heights.len());
        let mut top = 0.0_f64;
        for height in &heights {
            tops.push(top);
            top += height + BETWEEN;
        }
        let left = self.places.iter().map(|place| place.x - place.width / 2.0).fold(f64::MAX, f64::min);
        let right = self.places.iter().map(|place| place.x + place.width / 2.0).fold(f64::MIN, f64::max);
        let x = |at: usize| self.places[at].x - left;
        let corner = |at: usize| {
            let layer = self.layer_of[at];
            Corner { x: x(at) - boxes[at].width / 2.0, y: tops[layer] + (heights[layer] - boxes[at].height) / 2.0 }
        };
        let corners: Vec<Corner> = (0..boxes.len()).map(corner).collect();
        let entries = self.entries(boxes, edges);
        let route = |&(from, to): &(usize, usize)| {
            let mut points = vec![(x(from), corners[from].y + boxes[from].height)];
            for layer in self.layer_of[from] + 1..self.layer_of[to] {
                if let Some(&line) = self.lines.get(&(from, layer)) {
                    points.push((x(line), tops[layer]));
                    points.push((x(line), tops[layer] + heights[layer]));
                }
            }
            points.push((x(to) + entries.get(&(from, to)).copied().unwrap_or(0.0), corners[to].y));
            Route { points }
        };
        Layout {
            routes: edges.iter().map(route).collect(),
            boxes: corners,
            width: (right - left).max(0.0),
            height: (top - BETWEEN).max(0.0),
        }
    }

    /// Where each edge ends on the box below it, off its middle: side by side, in the order in which edges come.
    fn entries(&self, boxes: &[BoxSize], edges: &BTreeSet<(usize, usize)>) -> BTreeMap<(usize, usize), f64> {
        let mut entries = BTreeMap::new();
        for (to, size) in boxes.iter().enumerate() {
            let last = |from: usize| {
                let above = self.layer_of[to].saturating_sub(1);
                self.lines.get(&(from, above)).copied().unwrap_or(from)
            };
            let mut from: Vec<usize> = edges.iter().filter(|(_, end)| *end == to).map(|(from, _)| *from).collect();
            from.sort_by(|&a, &b| self.places[last(a)].x.total_cmp(&self.places[last(b)].x));
            let step = size.width / (from.len() as f64 + 1.0);
            for (at, &from) in from.iter().enumerate() {
                entries.insert((from, to), step * (at as f64 + 1.0) - size.width / 2.0);
            }
        }
        entries
    }
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0), |(sum, count), value| (sum + value, count + 1));
    (count > 0).then(|| sum / f64::from(count))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Boxes of several sizes and edges between them, some of which cross layers.
    fn example() -> (Vec<BoxSize>, Vec<(usize, usize)>) {
        let boxes = (0..24)
            .map(|at| BoxSize { width: 60.0 + 17.0 * f64::from(at % 7), height: 20.0 + 9.0 * f64::from(at % 4) });
        let edges = (0..23usize).flat_map(|at| [(at, at + 1), (at / 3, at + 1)]).filter(|(from, to)| from < to);
        (boxes.collect(), edges.collect())
    }

    #[test]
    fn boxes_do_not_overlap_and_lines_go_down_beside_them() {
        let (sizes, edges) = example();
        let layout = place(&sizes, &edges);
        let area = |at: usize| {
            let corner = layout.boxes[at];
            (corner.x, corner.y, corner.x + sizes[at].width, corner.y + sizes[at].height)
        };
        for at in 0..sizes.len() {
            let (left, top, right, bottom) = area(at);
            assert!(left > -1e-6 && top > -1e-6 && right < layout.width + 1e-6 && bottom < layout.height + 1e-6);
            for other in 0..at {
                let (l, t, r, b) = area(other);
                assert!(right <= l || r <= left || bottom <= t || b <= top, "{at} {other}");
            }
        }
        for Route { points } in &layout.routes {
            assert!(points.windows(2).all(|pair| pair[0].1 < pair[1].1), "{points:?}");
            for straight in points[1..points.len() - 1].chunks_exact(2) {
                let crosses = |at: &usize| {
                    let (left, top, right, bottom) = area(*at);
                    let (x, start, end) = (straight[0].0, straight[0].1, straight[1].1);
                    left < x && x < right && start < bottom && top < end
                };
                assert!((0..sizes.len()).all(|at| !crosses(&at)), "{points:?}");
            }
        }
        assert_eq!(layout.routes.len(), edges.iter().collect::<BTreeSet<_>>().len());
    }

    #[test]
    fn chain_is_a_straight_line() {
        let sizes = [30.0, 80.0, 50.0].map(|width| BoxSize { width, height: 20.0 });
        let layout = place(&sizes, &[(0, 1), (1, 2)]);
        let middles: Vec<f64> = (0..3).map(|at| layout.boxes[at].x + sizes[at].width / 2.0).collect();
        assert!(middles.iter().all(|middle| (middle - 40.0).abs() < 1e-6), "{middles:?}");
        assert_eq!((layout.width, layout.height), (80.0, 3.0 * 20.0 + 2.0 * BETWEEN));
    }

    #[test]
    fn nothing_has_no_size() {
        let layout = place(&[], &[]);
        assert_eq!((layout.width, layout.height, layout.boxes.len()), (0.0, 0.0, 0));
    }
}
