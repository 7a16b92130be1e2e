//! Micro-batches: which rollouts are computed together, so that prompts are computed once and none is too large.

use std::collections::HashMap;

/// A rollout to be planned: its prompt, and how many tokens follow it in what the model computes.
#[derive(Clone, Copy, Debug)]
pub struct Sequence<'a> {
    pub prompt: &'a [u32],
    pub rest: usize,
}

/// Rollouts that go on from one prompt, which is computed once for all of them: indices into what was planned.
pub type Shared = Vec<usize>;

/// The micro-batches of a batch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Each index once.
    pub micro_batches: Vec<Vec<Shared>>,
    /// Tokens that are computed.
    pub slots: u64,
}

/// Some rollouts that share a prompt, and their tokens.
struct Piece {
    members: Shared,
    tokens: usize,
}

/// Plans micro-batches of at most `budget` tokens, where what rollouts of one prompt share counts once. The rollouts of a prompt stay
/// together as far as they fit; a rollout longer than the budget gets a micro-batch of its own. A function of its arguments alone:
/// the largest first (ties by index), each into the first micro-batch with room for it (Johnson 1973, "Near-optimal bin packing
/// algorithms": at most 11/9 of the fewest).
pub fn plan(sequences: &[Sequence], budget: usize) -> Plan {
    let mut pieces: Vec<Piece> = Vec::new();
    // The last piece of each prompt.
    let mut open: HashMap<&[u32], usize> = HashMap::new();
    for (i, &Sequence { prompt, rest }) in sequences.iter().enumerate() {
        match open.get(prompt) {
            Some(&at) if pieces[at].tokens + rest <= budget => {
                pieces[at].members.push(i);
                pieces[at].tokens += rest;
            }
            _ => {
                open.insert(prompt, pieces.len());
                pieces.push(Piece { members: vec![i], tokens: prompt.len() + rest });
            }
        }
    }
    pieces.sort_by_key(|piece| (std::cmp::Reverse(piece.tokens), piece.members[0]));
    let mut plan = Plan { slots: pieces.iter().map(|piece| piece.tokens as u64).sum(), ..Plan::default() };
    let mut room: Vec<usize> = Vec::new();
    for Piece { members, tokens } in pieces {
        match room.iter().position(|&room| room >= tokens) {
            Some(at) => {
                room[at] -= tokens;
                plan.micro_batches[at].push(members);
            }
            None => {
                room.push(budget.saturating_sub(tokens));
                plan.micro_batches.push(vec![members]);
            }
        }
    }
    plan
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of<'a>(all: &[(&'a [u32], usize)]) -> Vec<Sequence<'a>> {
        all.iter().map(|&(prompt, rest)| Sequence { prompt, rest }).collect()
    }

    #[test]
    fn a_prompt_counts_once_for_all_that_share_it() {
        let (a, b): (&[u32], &[u32]) = (&[1, 2, 3], &[1, 2]);
        let plan = plan(&of(&[(a, 4), (b, 1), (a, 2), (a, 0), (b, 3)]), 100);
        assert_eq!(plan.micro_batches, [vec![vec![0, 2, 3], vec![1, 4]]]);
        assert_eq!(plan.slots, 9 + 6);
    }

    #[test]
    fn a_group_over_the_budget_is_parted_and_has_its_prompt_twice() {
        let prompt: &[u32] = &[0; 10];
        let plan = plan(&of(&[(prompt, 5); 5]), 20);
        assert_eq!(plan.micro_batches, [vec![vec![0, 1]], vec![vec![2, 3]], vec![vec![4]]]);
        assert_eq!(plan.slots, 20 + 20 + 15);
    }

    #[test]
    fn a_sequence_over_the_budget_is_alone() {
        let (a, b, c): (&[u32], &[u32], &[u32]) = (&[1], &[2], &[3]);
        let plan = plan(&of(&[(a, 4), (b, 99), (c, 4)]), 20);
        assert_eq!(plan.micro_batches, [vec![vec![1]], vec![vec![0], vec![2]]]);
        assert_eq!(plan.slots, 110);
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
                drawn.iter().map(|&(n, rest)| Sequence { prompt: &prompts[n as usize], rest }).collect();
            let plan = plan(&sequences, budget);
            let tokens = |shared: &Shared| {
                sequences[shared[0]].prompt.len() + shared.iter().map(|&i| sequences[i].rest).sum::<usize>()
            };
            let sizes: Vec<usize> = plan.micro_batches.iter().map(|m| m.iter().map(tokens).sum()).collect();
            for (micro_batch, &size) in plan.micro_batches.iter().zip(&sizes) {
                prop_assert!(size <= budget || (micro_batch.len() == 1 && micro_batch[0].len() == 1));
                for shared in micro_batch {
                    prop_assert!(shared.iter().all(|&i| sequences[i].prompt == sequences[shared[0]].prompt));
                }
            }
            // No two would fit into one.
            for (i, a) in sizes.iter().enumerate() {
                prop_assert!(sizes[i + 1..].iter().all(|b| a + b > budget));
            }
            prop_assert_eq!(plan.slots, sizes.iter().sum::<usize>() as u64);
            let mut seen: Vec<usize> = plan.micro_batches.concat().concat();
            seen.sort_unstable();
            prop_assert_eq!(seen, (0..sequences.len()).collect::<Vec<_>>());
        }
    }
}
