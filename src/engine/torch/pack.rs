//! Micro-batches: which rollouts are computed together, so that prompts are computed once and none is too large.

use std::collections::HashMap;

/// A rollout to be planned: its prompt, and how many tokens follow it in what the model computes.
#[derive(Clone, Copy, Debug)]
pub struct Sequence<'a> {
    pub prompt: &'a [u32],
    pub branch: usize,
}

/// Rollouts that go on from one prompt, which is computed once for all of them: indices into what was planned.
pub type Branches = Vec<usize>;

/// Trees that are computed together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trees {
    /// No two have the same prompt.
    pub trees: Vec<Branches>,
    /// Tokens of all of them.
    pub tokens: usize,
}

impl Trees {
    /// How many rollouts there are.
    pub fn rollouts(&self) -> usize {
        self.trees.iter().map(Vec::len).sum()
    }
}

/// The micro-batches of a batch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Each index once.
    pub micro_batches: Vec<Trees>,
    /// Tokens that are computed.
    pub slots: u64,
}

/// Plans micro-batches of at most `budget` tokens, where what rollouts of one prompt share counts once. The rollouts of a prompt stay
/// together as far as they fit; a rollout longer than the budget gets a micro-batch of its own. A function of its arguments alone:
/// the largest tree first (ties by index), each into the first micro-batch with room for it (first-fit decreasing: Johnson 1973,
/// "Near-optimal bin packing algorithms").
pub fn plan(sequences: &[Sequence], budget: usize) -> Plan {
    // A tree each, with its tokens.
    let mut trees: Vec<(Branches, usize)> = Vec::new();
    let mut of_prompt: HashMap<&[u32], Vec<usize>> = HashMap::new();
    for (i, &Sequence { prompt, branch }) in sequences.iter().enumerate() {
        let begun = of_prompt.entry(prompt).or_default();
        // A later one with the same prompt never fits beside one that this did not fit into.
        match begun.iter().find(|&&at| trees[at].1 + branch <= budget) {
            Some(&at) => {
                trees[at].0.push(i);
                trees[at].1 += branch;
            }
            None => {
                begun.push(trees.len());
                trees.push((vec![i], prompt.len() + branch));
            }
        }
    }
    trees.sort_by_key(|(branches, tokens)| (std::cmp::Reverse(*tokens), branches[0]));
    let mut plan = Plan { slots: trees.iter().map(|(_, tokens)| *tokens as u64).sum(), ..Plan::default() };
    for (branches, tokens) in trees {
        match plan.micro_batches.iter_mut().find(|all| all.tokens + tokens <= budget) {
            Some(all) => {
                all.trees.push(branches);
                all.tokens += tokens;
            }
            None => plan.micro_batches.push(Trees { trees: vec![branches], tokens }),
        }
    }
    plan
}

/// The budget to go on with where `micro_batch` found no memory: what follows its prompts is halved. Less than it took, and no less than
/// the most that one prompt with half of its rollouts takes, or each of these would be computed with a prompt of its own for ever after.
pub fn smaller(micro_batch: &Trees, sequences: impl Fn(usize) -> (usize, usize)) -> usize {
    let half = |branches: &Branches| {
        let (prompts, rests): (Vec<usize>, Vec<usize>) = branches.iter().map(|&i| sequences(i)).unzip();
        prompts.first().copied().unwrap_or(0) + rests.iter().sum::<usize>() / 2
    };
    let least = micro_batch.trees.iter().map(half).max().unwrap_or(0);
    (micro_batch.tokens / 2).max(least).min(micro_batch.tokens.saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of<'a>(all: &[(&'a [u32], usize)]) -> Vec<Sequence<'a>> {
        all.iter().map(|&(prompt, branch)| Sequence { prompt, branch }).collect()
    }

    fn all(plan: &Plan) -> Vec<Vec<Branches>> {
        plan.micro_batches.iter().map(|all| all.trees.clone()).collect()
    }

    #[test]
    fn a_prompt_counts_once_for_all_that_share_it() {
        let (a, b): (&[u32], &[u32]) = (&[1, 2, 3], &[1, 2]);
        let plan = plan(&of(&[(a, 4), (b, 1), (a, 2), (a, 0), (b, 3)]), 100);
        assert_eq!(all(&plan), [vec![vec![0, 2, 3], vec![1, 4]]]);
        assert_eq!((plan.slots, plan.micro_batches[0].tokens, plan.micro_batches[0].rollouts()), (9 + 6, 15, 5));
    }

    #[test]
    fn a_group_over_the_budget_is_parted_and_has_its_prompt_twice() {
        let prompt: &[u32] = &[0; 10];
        let plan = plan(&of(&[(prompt, 5); 5]), 20);
        assert_eq!(all(&plan), [vec![vec![0, 1]], vec![vec![2, 3]], vec![vec![4]]]);
        assert_eq!(plan.slots, 20 + 20 + 15);
    }

    /// Catches parts of a group that meet again in one micro-batch.
    #[test]
    fn a_rollout_goes_where_its_prompt_is() {
        let prompt: &[u32] = &[0];
        assert_eq!(all(&plan(&of(&[(prompt, 60), (prompt, 70), (prompt, 35)]), 100)), [vec![vec![0, 2]], vec![vec![1]]]);
    }

    #[test]
    fn a_sequence_over_the_budget_is_alone() {
        let (a, b, c): (&[u32], &[u32], &[u32]) = (&[1], &[2], &[3]);
        let plan = plan(&of(&[(a, 4), (b, 99), (c, 4)]), 20);
        assert_eq!(all(&plan), [vec![vec![1]], vec![vec![0], vec![2]]]);
        assert_eq!(plan.slots, 110);
    }

    /// Catches a budget that leaves a rollout of a long prompt alone, and one that does not become smaller.
    #[test]
    fn what_follows_the_prompts_is_halved() {
        let of = |trees: &[&[usize]], tokens, lengths: &[(usize, usize)]| {
            let trees = trees.iter().map(|tree| tree.to_vec()).collect();
            smaller(&Trees { trees, tokens }, |i| lengths[i])
        };
        // Eight answers of 20 behind a prompt of 900: four and four.
        assert_eq!(of(&[&[0, 1, 2, 3, 4, 5, 6, 7]], 1060, &[(900, 20); 8]), 980);
        assert_eq!(of(&[&[0], &[1]], 40, &[(5, 15); 2]), 20);
        // Answers of one token, which nothing follows.
        assert_eq!(of(&[&[0, 1]], 9, &[(9, 0); 2]), 8);
    }

    #[test]
    fn nothing_gives_nothing() {
        assert_eq!(plan(&[], 100), Plan::default());
    }

    proptest! {
        /// Catches a rollout that is lost, doubled or put to another's prompt, and a budget that is not kept or not used.
        #[test]
        fn each_once_within_budget(
            drawn in prop::collection::vec((0u32..6, 0usize..80), 0..60),
            budget in 1usize..300,
        ) {
            // Prompts of different lengths, of which one begins another.
            let prompts: Vec<Vec<u32>> = (0..6).map(|n| (0..=4 * n).collect()).collect();
            let sequences: Vec<Sequence> =
                drawn.iter().map(|&(n, branch)| Sequence { prompt: &prompts[n as usize], branch }).collect();
            let plan = plan(&sequences, budget);
            let tokens = |branches: &Branches| {
                sequences[branches[0]].prompt.len() + branches.iter().map(|&i| sequences[i].branch).sum::<usize>()
            };
            let sizes: Vec<usize> = plan.micro_batches.iter().map(|all| all.trees.iter().map(tokens).sum()).collect();
            for (all, &size) in plan.micro_batches.iter().zip(&sizes) {
                prop_assert!(size == all.tokens && (size <= budget || all.rollouts() == 1));
                let prompt = |branches: &Branches| sequences[branches[0]].prompt;
                for (i, branches) in all.trees.iter().enumerate() {
                    prop_assert!(branches.iter().all(|&i| sequences[i].prompt == prompt(branches)));
                    prop_assert!(all.trees[i + 1..].iter().all(|other| prompt(other) != prompt(branches)));
                }
            }
            // No two would fit into one.
            for (i, a) in sizes.iter().enumerate() {
                prop_assert!(sizes[i + 1..].iter().all(|b| a + b > budget));
            }
            prop_assert_eq!(plan.slots, sizes.iter().sum::<usize>() as u64);
            let mut seen: Vec<usize> = all(&plan).concat().concat();
            seen.sort_unstable();
            prop_assert_eq!(seen, (0..sequences.len()).collect::<Vec<_>>());
        }
    }
}
