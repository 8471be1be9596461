use super::*;
use crate::random::SplitMix64;

/// All selections of some groups.
fn every(groups: &[Vec<Choice>]) -> Vec<Selection> {
    let mut all = vec![Selection { choices: Vec::new(), bytes: 0, loss: 0.0 }];
    for choices in groups {
        let with = |selection: &Selection| {
            let Selection { choices: before, bytes, loss } = selection.clone();
            choices.iter().enumerate().map(move |(index, choice)| Selection {
                choices: before.iter().copied().chain([index]).collect(),
                bytes: bytes + choice.bytes,
                loss: loss + choice.loss,
            })
        };
        all = all.iter().flat_map(with).collect();
    }
    all
}

/// Groups with up to four choices, of sizes and losses that have nothing to do with each other.
fn random_groups(random: &mut SplitMix64, most: usize) -> Vec<Vec<Choice>> {
    let mut below = |limit: u64| random.below(limit);
    let count = 1 + below(most as u64);
    (0..count)
        .map(|_| (0..1 + below(4)).map(|_| Choice { bytes: below(50), loss: below(1000) as f64 / 8.0 }).collect())
        .collect()
}

#[test]
fn least_loss_within_bytes_equals_brute_force() {
    let mut random = SplitMix64::new(7);
    for _ in 0..300 {
        let groups = random_groups(&mut random, 8);
        let (front, all) = (Front::new(&groups), every(&groups));
        assert!(front.is_exact());
        for bytes in 0..=all.iter().map(|one| one.bytes).max().unwrap_or(0) {
            let expected = all.iter().filter(|one| one.bytes <= bytes).map(|one| one.loss).min_by(f64::total_cmp);
            let found = front.within_bytes(bytes);
            assert_eq!(found.as_ref().map(|one| one.loss), expected, "{groups:?} {bytes}");
            assert!(found.is_none_or(|one| one.bytes <= bytes && all.contains(&one)));
        }
    }
}

#[test]
fn fewest_bytes_within_loss_equal_brute_force() {
    let mut random = SplitMix64::new(11);
    for _ in 0..300 {
        let groups = random_groups(&mut random, 8);
        let (front, all) = (Front::new(&groups), every(&groups));
        for loss in all.iter().map(|one| one.loss).step_by(7).chain([-1.0, 0.0]) {
            let expected = all.iter().filter(|one| one.loss <= loss).map(|one| one.bytes).min();
            let found = front.within_loss(loss);
            assert_eq!(found.as_ref().map(|one| one.bytes), expected, "{groups:?} {loss}");
            assert!(found.is_none_or(|one| one.loss <= loss && all.contains(&one)));
        }
    }
}

#[test]
fn points_rise_in_bytes_and_fall_in_loss() {
    let mut random = SplitMix64::new(3);
    let front = Front::new(&random_groups(&mut random, 8));
    let points: Vec<(u64, f64)> = front.points().collect();
    assert!(points.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 > pair[1].1));
    assert_eq!(front.smallest().map(|one| one.bytes), points.first().map(|point| point.0));
    assert_eq!(front.best().map(|one| one.loss), points.last().map(|point| point.1));
}

#[test]
fn thinned_fronts_are_close_to_exact_ones() {
    let mut random = SplitMix64::new(5);
    let mut below = |limit: u64| random.below(limit);
    let groups: Vec<Vec<Choice>> = (0..60)
        .map(|_| {
            let weight = 1 + below(1000);
            let loss = 1.0 + below(1000) as f64;
            [(3, 1.0), (4, 0.25), (8, 0.001)]
                .map(|(bits, part)| Choice { bytes: weight * bits, loss: loss * part })
                .to_vec()
        })
        .collect();
    let (exact, thin) = (Front::with_most(&groups, 1 << 20), Front::with_most(&groups, 500));
    assert!(exact.is_exact() && !thin.is_exact());
    let sizes: Vec<u64> = exact.points().map(|point| point.0).step_by(997).collect();
    for bytes in sizes {
        let (best, found) = (exact.within_bytes(bytes).unwrap(), thin.within_bytes(bytes).unwrap());
        assert!(found.bytes <= bytes && found.loss <= best.loss * 1.05 + 1e-9, "{} {}", found.loss, best.loss);
    }
}

#[test]
fn groups_without_finite_choices_have_no_selection() {
    let broken = vec![Choice { bytes: 1, loss: f64::NAN }];
    let fine = vec![Choice { bytes: 1, loss: 1.0 }];
    for groups in [vec![fine.clone(), broken], vec![fine, Vec::new()], Vec::new()] {
        let front = Front::new(&groups);
        assert!(front.within_bytes(u64::MAX).is_none() && front.within_loss(f64::MAX).is_none());
        assert!(front.smallest().is_none() && front.best().is_none());
    }
}
