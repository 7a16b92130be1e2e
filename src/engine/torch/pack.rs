//! Micro-batches: which rollouts are computed together, so that little is padding and none is too large.

/// What starting a micro-batch costs, in token slots: below it, padding a shorter rollout is cheaper than parting. Measured at
/// one million weights on one CPU core: 3 ms, 30 slots; an accelerator, which wants large products, has it at some hundreds.
const OVERHEAD: usize = 128;

/// The micro-batches of a batch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Indices into the lengths that were planned, longest first; each index once.
    pub micro_batches: Vec<Vec<usize>>,
    /// Tokens that are computed for their own sake: the sum of the lengths.
    pub useful: u64,
    /// Token slots that are computed, padding included: the sum of `b * t`.
    pub slots: u64,
}

/// Plans right-padded micro-batches `[b, t]` with `b * t <= budget` for sequences of `lengths` tokens. A sequence longer than
/// the budget gets a micro-batch of its own. Sequences are sorted by length (ties by index) and cut where the sum of slots and
/// `OVERHEAD` is least, so the plan is a function of its arguments alone.
pub fn plan(lengths: &[usize], budget: usize) -> Plan {
    let mut order: Vec<usize> = (0..lengths.len()).collect();
    order.sort_by_key(|&i| (std::cmp::Reverse(lengths[i]), i));
    // best[j]: least cost of the first j sequences, and where the last micro-batch of that optimum starts.
    let mut best = vec![(0usize, 0usize)];
    for j in 1..=order.len() {
        let mut least = (usize::MAX, 0);
        for i in (0..j).rev() {
            let slots = (j - i) * lengths[order[i]];
            if j - i > 1 && slots > budget {
                break;
            }
            least = least.min((best[i].0 + slots + OVERHEAD, i));
        }
        best.push(least);
    }
    let mut plan = Plan { useful: lengths.iter().map(|&l| l as u64).sum(), ..Plan::default() };
    let mut end = order.len();
    while end > 0 {
        let start = best[end].1;
        plan.slots += ((end - start) * lengths[order[start]]) as u64;
        plan.micro_batches.push(order[start..end].to_vec());
        end = start;
    }
    plan.micro_batches.reverse();
    plan
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn equal_lengths_fill_the_budget() {
        let plan = plan(&[10; 7], 30);
        assert_eq!(plan.micro_batches.iter().map(Vec::len).max(), Some(3));
        assert_eq!(plan.micro_batches.len(), 3);
        assert_eq!((plan.useful, plan.slots), (70, 70));
    }

    #[test]
    fn a_sequence_over_the_budget_is_alone() {
        let plan = plan(&[5, 100, 5], 20);
        assert_eq!(plan.micro_batches, [vec![1], vec![0, 2]]);
        assert_eq!((plan.useful, plan.slots), (110, 110));
    }

    #[test]
    fn short_and_long_part_where_padding_costs_more_than_starting_again() {
        let lengths = [1000, 10, 1000, 10, 10];
        let parted = plan(&lengths, 8192);
        assert_eq!(parted.micro_batches, [vec![0, 2], vec![1, 3, 4]]);
        assert_eq!((parted.useful, parted.slots), (2030, 2030));
        let together = plan(&[20, 10], 8192);
        assert_eq!(together.micro_batches, [vec![0, 1]]);
        assert_eq!(together.slots, 40);
    }

    #[test]
    fn nothing_gives_nothing() {
        assert_eq!(plan(&[], 100), Plan::default());
    }

    proptest! {
        #[test]
        fn each_once_within_budget_and_in_order(lengths in prop::collection::vec(1usize..200, 0..60), budget in 1usize..1000) {
            let plan = plan(&lengths, budget);
            let mut seen: Vec<usize> = plan.micro_batches.concat();
            let sorted: Vec<usize> = seen.iter().map(|&i| lengths[i]).collect();
            prop_assert!(sorted.is_sorted_by(|a, b| a >= b));
            let slots = |m: &Vec<usize>| m.len() * lengths[m[0]];
            prop_assert!(plan.micro_batches.iter().all(|m| m.len() == 1 || slots(m) <= budget));
            prop_assert_eq!(plan.slots, plan.micro_batches.iter().map(|m| slots(m) as u64).sum::<u64>());
            seen.sort_unstable();
            prop_assert_eq!(seen, (0..lengths.len()).collect::<Vec<_>>());
        }
    }
}
