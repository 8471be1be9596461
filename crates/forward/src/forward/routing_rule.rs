//! The choice of experts for one token, by the rule of each family. Scores come from the router; nothing here touches
//! activations.

use super::recurrent::softplus;
use kvant_model::family::Routing;

/// The parameters of a rule besides the scores.
#[derive(Clone, Copy, Debug)]
pub struct RoutingRule<'a> {
    /// The rule.
    pub rule: Routing,
    /// Experts per token.
    pub per_token: usize,
    /// Whether weights are divided by their sum, where the rule leaves that open.
    pub normalise: bool,
    /// The factor on weights.
    pub scale: f32,
    /// Groups of experts, and how many a token may use.
    pub groups: (usize, usize),
    /// The correction of scores for the choice; empty if there is none.
    pub correction: &'a [f32],
    /// The order of the norm by which weights are divided, where the rule divides by one.
    pub norm_order: Option<f32>,
    /// SparseMixer's threshold.
    pub jitter: f32,
    /// The least sum by which weights are divided.
    pub least_sum: f32,
}

/// An expert and its weight.
pub type Choice = (usize, f32);

impl RoutingRule<'_> {
    /// The experts for a token with these scores, best first.
    pub fn choose(&self, logits: &[f32]) -> Vec<Choice> {
        match self.rule {
            Routing::SoftmaxThenTop => divided(self.best(&softmax(logits))),
            Routing::SoftmaxThenTopByNorm => self.divided_by_norm(self.best(&softmax(logits))),
            Routing::SoftmaxThenTopIfNormalised => match self.normalise {
                true => divided(self.best(&softmax(logits))),
                false => self.best(&softmax(logits)),
            },
            Routing::TopThenSoftmax => {
                let (experts, scores): (Vec<_>, Vec<_>) = self.best(logits).into_iter().unzip();
                experts.into_iter().zip(softmax(&scores)).collect()
            }
            Routing::SoftmaxGroups => {
                let scores = softmax(logits);
                let largest = |group: &[f32]| group.iter().copied().fold(0.0, f32::max);
                self.scaled(self.best(&self.in_best_groups(&scores, 0.0, largest)))
            }
            Routing::SigmoidGroups => self.sigmoid_groups(logits),
            Routing::SigmoidTop => {
                let scores: Vec<f32> = logits.iter().map(|z| sigmoid(*z)).collect();
                divided(self.weighted(&scores, self.best(&self.corrected(&scores))))
            }
            Routing::SigmoidTopIfNormalised => {
                let scores: Vec<f32> = logits.iter().map(|z| sigmoid(*z)).collect();
                let mut chosen = self.weighted(&scores, self.best(&self.corrected(&scores)));
                if self.normalise {
                    let sum: f32 = chosen.iter().map(|(_, weight)| weight).sum();
                    chosen.iter_mut().for_each(|(_, weight)| *weight /= sum + 1e-6);
                }
                self.scaled(chosen)
            }
            Routing::SoftmaxCorrected => {
                let scores = softmax(logits);
                let chosen = self.weighted(&scores, self.best(&self.corrected(&scores)));
                let sum: f32 = chosen.iter().map(|(_, weight)| weight).sum();
                chosen.into_iter().map(|(expert, weight)| (expert, weight / sum.max(self.least_sum))).collect()
            }
            Routing::SoftmaxCorrectedScaled => {
                let scores = softmax(logits);
                self.scaled(self.weighted(&scores, self.best(&self.corrected(&scores))))
            }
            Routing::SoftmaxTwoBest => {
                let scores = softmax(logits);
                let chosen = self.best(&self.in_best_groups(&scores, 0.0, two_best));
                self.scaled(if self.normalise { divided(chosen) } else { chosen })
            }
            Routing::RootSoftplusTop => {
                let scores: Vec<f32> = logits.iter().map(|z| root_softplus(*z)).collect();
                self.scaled(divided(self.weighted(&scores, self.best(&self.corrected(&scores)))))
            }
            Routing::TopCorrectedThenSigmoid => {
                let scores: Vec<f32> = logits.iter().map(|z| sigmoid(*z)).collect();
                let chosen = self.weighted(&scores, self.best(&self.corrected(logits)));
                if self.normalise { divided(chosen) } else { chosen }
            }
            // Which of the two it is has been looked up.
            Routing::TopThenSigmoid | Routing::TopThenStated => {
                let chosen = self.best(logits).into_iter().map(|(expert, z)| (expert, sigmoid(z))).collect();
                if self.normalise { divided(chosen) } else { chosen }
            }
            Routing::SparseMixer => self.sparse_mixer(logits),
        }
    }

    /// The experts that a token chooses by itself, weighed by their scores.
    pub fn weigh(&self, logits: &[f32], experts: &[usize]) -> Vec<Choice> {
        let score = |expert: usize| logits.get(expert).copied().map_or(0.0, root_softplus);
        self.scaled(divided(experts.iter().map(|expert| (*expert, score(*expert))).collect()))
    }

    fn sigmoid_groups(&self, logits: &[f32]) -> Vec<Choice> {
        let scores: Vec<f32> = logits.iter().map(|z| sigmoid(*z)).collect();
        let limited = self.in_best_groups(&self.corrected(&scores), f32::NEG_INFINITY, two_best);
        let chosen = self.weighted(&scores, self.best(&limited));
        self.scaled(if self.normalise { divided(chosen) } else { chosen })
    }

    /// The choices, with weights divided by their norm, if by any.
    fn divided_by_norm(&self, mut chosen: Vec<Choice>) -> Vec<Choice> {
        if let Some(order) = self.norm_order {
            let sum: f32 = chosen.iter().map(|(_, weight)| weight.powf(order)).sum();
            let norm = sum.powf(1.0 / order);
            chosen.iter_mut().for_each(|(_, weight)| *weight /= norm);
        }
        chosen
    }

    fn best(&self, scores: &[f32]) -> Vec<Choice> {
        top(scores, self.per_token)
    }

    fn corrected(&self, scores: &[f32]) -> Vec<f32> {
        let corrections = self.correction.iter().copied().chain(std::iter::repeat(0.0));
        scores.iter().zip(corrections).map(|(score, correction)| score + correction).collect()
    }

    /// The chosen experts with their own scores as weights.
    fn weighted(&self, scores: &[f32], chosen: Vec<Choice>) -> Vec<Choice> {
        chosen.into_iter().map(|(expert, _)| (expert, scores[expert])).collect()
    }

    fn scaled(&self, mut chosen: Vec<Choice>) -> Vec<Choice> {
        chosen.iter_mut().for_each(|(_, weight)| *weight *= self.scale);
        chosen
    }

    /// The scores, with `outside` replacing those of groups that are not among the best.
    fn in_best_groups(&self, scores: &[f32], outside: f32, rank: impl Fn(&[f32]) -> f32) -> Vec<f32> {
        let (groups, used) = self.groups;
        let width = scores.len() / groups.max(1);
        let ranks: Vec<f32> = scores.chunks(width.max(1)).map(rank).collect();
        let kept: Vec<usize> = top(&ranks, used).into_iter().map(|(group, _)| group).collect();
        let limited = scores.iter().enumerate();
        limited.map(|(i, score)| if kept.contains(&(i / width.max(1))) { *score } else { outside }).collect()
    }

    /// The best and the second best, each weighed by a softmax over the scores not far below it (arXiv 2409.12136).
    fn sparse_mixer(&self, logits: &[f32]) -> Vec<Choice> {
        let mut rest = logits.to_vec();
        let mut chosen = Vec::new();
        for _ in 0..self.per_token {
            let Some((expert, best)) = top(&rest, 1).pop() else { break };
            let near = rest.iter().zip(logits).map(|(masked, score)| {
                let far = (best - score) / score.abs().max(best) > 2.0 * self.jitter;
                if far { f32::NEG_INFINITY } else { *masked }
            });
            let weights = softmax(&near.collect::<Vec<_>>());
            chosen.push((expert, weights[expert]));
            rest[expert] = f32::NEG_INFINITY;
        }
        chosen
    }
}

/// The sum of the two best scores of a group.
fn two_best(group: &[f32]) -> f32 {
    top(group, 2).into_iter().map(|(_, score)| score).sum()
}

/// The `count` largest scores, largest first; of equals the first.
fn top(scores: &[f32], count: usize) -> Vec<Choice> {
    let mut all: Vec<Choice> = scores.iter().copied().enumerate().collect();
    all.sort_by(|a, b| b.1.total_cmp(&a.1));
    all.truncate(count);
    all
}

fn divided(mut chosen: Vec<Choice>) -> Vec<Choice> {
    let sum: f32 = chosen.iter().map(|(_, weight)| weight).sum();
    chosen.iter_mut().for_each(|(_, weight)| *weight /= sum + 1e-20);
    chosen
}

fn softmax(scores: &[f32]) -> Vec<f32> {
    let largest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let powers: Vec<f32> = scores.iter().map(|z| (z - largest).exp()).collect();
    let sum: f32 = powers.iter().sum();
    powers.into_iter().map(|p| p / sum).collect()
}

/// `sqrt(ln(1 + exp(z)))`.
fn root_softplus(z: f32) -> f32 {
    softplus(z).sqrt()
}

fn sigmoid(z: f32) -> f32 {
    1.0 / (1.0 + (-z).exp())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(rule: Routing) -> RoutingRule<'static> {
        RoutingRule {
            rule,
            per_token: 2,
            normalise: true,
            scale: 1.0,
            groups: (1, 1),
            correction: &[],
            norm_order: None,
            jitter: 0.01,
            least_sum: 1e-12,
        }
    }

    #[test]
    fn weights_are_divided_by_their_norm() {
        let logits = [3f32.ln(), 4f32.ln(), 0.0];
        let of = |norm_order| RoutingRule { norm_order, ..rule(Routing::SoftmaxThenTopByNorm) }.choose(&logits);
        let close = |chosen: Vec<Choice>, expected: [f32; 2]| {
            let weights = chosen.iter().map(|(_, weight)| *weight).zip(expected);
            assert!(experts(&chosen) == [1, 0] && weights.into_iter().all(|(a, b)| (a - b).abs() < 1e-6), "{chosen:?}");
        };
        close(of(None), [0.5, 0.375]);
        close(of(Some(1.0)), [4.0 / 7.0, 3.0 / 7.0]);
        close(of(Some(2.0)), [0.8, 0.6]);
    }

    fn experts(chosen: &[Choice]) -> Vec<usize> {
        chosen.iter().map(|(expert, _)| *expert).collect()
    }

    #[test]
    fn top_k_of_softmax_equals_softmax_of_top_k_when_normalised() {
        let logits = [0.5, 2.0, -1.0, 1.0];
        let (a, b) = (rule(Routing::SoftmaxThenTop).choose(&logits), rule(Routing::TopThenSoftmax).choose(&logits));
        assert_eq!(experts(&a), [1, 3]);
        assert!(a.iter().zip(&b).all(|(a, b)| a.0 == b.0 && (a.1 - b.1).abs() < 1e-6));
        let open = RoutingRule { normalise: false, ..rule(Routing::SoftmaxThenTopIfNormalised) }.choose(&logits);
        assert!(open[0].1 < a[0].1);
    }

    #[test]
    fn group_routing_can_exclude_the_second_best_expert() {
        let logits = [3.0, 0.0, 2.9, 2.8];
        let grouped = RoutingRule { groups: (2, 1), scale: 2.0, ..rule(Routing::SoftmaxGroups) };
        let chosen = grouped.choose(&logits);
        assert_eq!(experts(&chosen), [0, 1]);
        // By the sum of the two best the second group wins.
        let by_two = RoutingRule { groups: (2, 1), ..rule(Routing::SigmoidGroups) };
        assert_eq!(experts(&by_two.choose(&logits)), [2, 3]);
    }

    #[test]
    fn softmax_rules_correct_the_choice_and_limit_the_divisor() {
        let logits = [1.0, 0.5, -1.0, 0.0];
        let scores = softmax(&logits);
        let corrected = RoutingRule { correction: &[0.0, 0.0, 5.0, 0.0], ..rule(Routing::SoftmaxCorrected) };
        let chosen = corrected.choose(&logits);
        assert_eq!(experts(&chosen), [2, 0]);
        assert!((chosen[0].1 - scores[2] / (scores[2] + scores[0])).abs() < 1e-6);
        let open = RoutingRule { rule: Routing::SoftmaxCorrectedScaled, scale: 3.0, ..corrected }.choose(&logits);
        assert_eq!(experts(&open), [2, 0]);
        assert!((open[0].1 - 3.0 * scores[2]).abs() < 1e-6);
        let limited = RoutingRule { least_sum: 2.0, ..corrected }.choose(&logits);
        assert!((limited[0].1 - scores[2] / 2.0).abs() < 1e-6);
        // The second group has the best sum of two.
        let grouped = RoutingRule { groups: (2, 1), scale: 3.0, ..rule(Routing::SoftmaxTwoBest) };
        let chosen = grouped.choose(&[2.0, -9.0, 1.9, 1.8]);
        assert_eq!(experts(&chosen), [2, 3]);
        assert!((chosen.iter().map(|(_, weight)| weight).sum::<f32>() - 3.0).abs() < 1e-5);
    }

    #[test]
    fn sigmoid_of_the_best_is_divided_only_if_asked() {
        let logits = [0.5, 2.0, -1.0, 1.0];
        let open = RoutingRule { normalise: false, ..rule(Routing::TopThenSigmoid) }.choose(&logits);
        assert_eq!((experts(&open), open[0].1), (vec![1, 3], sigmoid(2.0)));
        let divided = rule(Routing::TopThenSigmoid).choose(&logits);
        assert!((divided[0].1 - sigmoid(2.0) / (sigmoid(2.0) + sigmoid(1.0))).abs() < 1e-6);
    }

    #[test]
    fn correction_changes_the_choice_but_not_the_weights() {
        let corrected = RoutingRule { correction: &[0.0, 0.0, 5.0], ..rule(Routing::SigmoidTop) };
        let chosen = corrected.choose(&[1.0, 0.5, -1.0]);
        assert_eq!(experts(&chosen), [2, 0]);
        let (a, b) = (sigmoid(-1.0), sigmoid(1.0));
        assert!((chosen[0].1 - a / (a + b)).abs() < 1e-6);
    }
}
