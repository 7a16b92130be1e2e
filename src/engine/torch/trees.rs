//! Sequences as the learner computes them: row after row without padding, and what several have in common once.
//!
//! The rollouts of a group begin with the same prompt, and under causal attention what a layer makes of a prompt does not depend on
//! what follows it. So a group is a tree: a trunk that all share, and a branch for each rollout. A row of a branch sees the trunk and
//! its own branch up to itself, and stands at the position that it has in its sequence; gradients of the trunk's rows add up over the
//! branches by themselves. Known for decoding as tree attention (Miao et al. 2023, arXiv 2305.09781) and for shared prefixes
//! (Juravsky et al. 2024, arXiv 2402.05099).

use crate::engine::torch::ffi;
use crate::error::Result;
use tch::{Device, Tensor};

/// A trunk of tokens, and the branches that go on from it; one without tokens is a sequence that ends with the trunk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tree<'a> {
    pub trunk: &'a [u32],
    pub branches: Vec<&'a [u32]>,
}

impl Tree<'_> {
    /// How many rows it has.
    pub fn rows(&self) -> usize {
        self.trunk.len() + self.branches.iter().map(|branch| branch.len()).sum::<usize>()
    }
}

/// Trees as tensors: `n` rows, tree after tree, in each the trunk and then branch after branch.
#[derive(Debug)]
pub struct Trees {
    /// `[n]` i64 ids, on the device.
    tokens: Tensor,
    /// `[trees + 1]` i64 on the CPU: the first row of each, and `n`.
    bounds: Tensor,
    /// `[3, n]` i32 on the CPU: the position of each row; how many rows of its tree's beginning it sees, and from which row on it sees all
    /// up to itself, both counted from the tree's first.
    seen: Tensor,
    longest: i64,
    padded: Option<Padded>,
}

/// The same, for attention that wants whole sequences: `b` of `t` rows, padded on the right.
#[derive(Debug)]
pub struct Padded {
    pub shape: [i64; 2],
    /// `[b * t]`: the row of each place; row 0 for padding, which no row sees.
    pub rows: Tensor,
    /// `[n]`: a place of each row.
    pub places: Tensor,
}

impl Trees {
    /// The rows of `trees`, for `device`.
    ///
    /// # Errors
    /// A device without the room.
    pub fn new(trees: &[Tree], device: Device) -> Result<Trees> {
        let n: usize = trees.iter().map(Tree::rows).sum();
        let (mut tokens, mut bounds, mut seen) = (Vec::with_capacity(n), vec![0i64], vec![0i32; 3 * n]);
        for tree in trees {
            let from = tokens.len();
            tokens.extend(tree.trunk.iter().chain(tree.branches.iter().copied().flatten()).map(|&id| i64::from(id)));
            let trunk = tree.trunk.len();
            // A branch that is alone sees all that is before it: no mask divides it from the trunk.
            let parted = tree.branches.len() > 1;
            let mut start = trunk;
            (0..trunk).for_each(|row| seen[from + row] = row as i32);
            for branch in &tree.branches {
                for row in start..start + branch.len() {
                    seen[from + row] = (trunk + row - start) as i32;
                    if parted {
                        (seen[n + from + row], seen[2 * n + from + row]) = (trunk as i32, start as i32);
                    }
                }
                start += branch.len();
            }
            bounds.push(tokens.len() as i64);
        }
        let longest = seen[..n].iter().max().map_or(0, |last| i64::from(last + 1));
        let tokens = Tensor::f_from_slice(&tokens)?;
        let padded = if ffi::has_kernels_on(device) { None } else { Some(Padded::new(trees, device)?) };
        Ok(Trees {
            tokens: tokens.f_to_device(device)?,
            bounds: Tensor::f_from_slice(&bounds)?,
            seen: Tensor::f_from_slice(&seen)?.f_view([3, n as i64])?,
            longest,
            padded,
        })
    }

    /// `[n]` i64 ids, on the device.
    pub fn tokens(&self) -> &Tensor {
        &self.tokens
    }

    /// How many rows there are.
    pub fn rows(&self) -> i64 {
        self.tokens.numel() as i64
    }

    /// Tokens of the longest sequence.
    pub fn longest(&self) -> i64 {
        self.longest
    }

    /// `[trees + 1]` i64 on the CPU: the first row of each, and `n`.
    pub fn bounds(&self) -> &Tensor {
        &self.bounds
    }

    /// `[3, n]` i32 on the CPU: of each row its position, how many rows of its tree's beginning it sees, and from which row of it on it sees
    /// all up to itself.
    pub fn seen(&self) -> &Tensor {
        &self.seen
    }

    /// Where attention has no kernel for trees.
    pub fn padded(&self) -> Option<&Padded> {
        self.padded.as_ref()
    }
}

/// Rows of `x` by number, where the gradients of one that is taken several times add up in one order: on CUDA `index_select` has none.
///
/// # Errors
/// A number that no row has, or not enough memory.
pub fn rows_of(x: &Tensor, numbers: &Tensor) -> Result<Tensor> {
    Ok(if ffi::has_kernels(x) { x.f_index_select(0, numbers)? } else { x.f_index(&[Some(numbers)])? })
}

impl Padded {
    fn new(trees: &[Tree], device: Device) -> Result<Padded> {
        // The rows of each sequence.
        let mut sequences: Vec<Vec<i64>> = Vec::new();
        let mut from = 0i64;
        for tree in trees {
            let trunk = from..from + tree.trunk.len() as i64;
            let mut next = trunk.end;
            if tree.branches.is_empty() {
                sequences.push(trunk.clone().collect());
            }
            for branch in &tree.branches {
                let end = next + branch.len() as i64;
                sequences.push(trunk.clone().chain(next..end).collect());
                next = end;
            }
            from = next;
        }
        let t = sequences.iter().map(Vec::len).max().unwrap_or(0);
        let (mut rows, mut places) = (vec![0i64; sequences.len() * t], vec![0i64; from as usize]);
        for (i, sequence) in sequences.iter().enumerate() {
            for (j, &row) in sequence.iter().enumerate() {
                rows[i * t + j] = row;
                places[row as usize] = (i * t + j) as i64;
            }
        }
        let there = |all: &[i64]| Ok::<_, crate::error::Error>(Tensor::f_from_slice(all)?.f_to_device(device)?);
        Ok(Padded { shape: [sequences.len() as i64, t as i64], rows: there(&rows)?, places: there(&places)? })
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// Sequences that have nothing in common.
    pub fn sequences(all: &[&[u32]], device: Device) -> Trees {
        let trees: Vec<Tree> = all.iter().map(|trunk| Tree { trunk, branches: Vec::new() }).collect();
        Trees::new(&trees, device).unwrap()
    }

    fn numbers(tensor: &Tensor) -> Vec<i64> {
        Vec::try_from(tensor.to_kind(tch::Kind::Int64).flatten(0, -1)).unwrap()
    }

    /// Catches a position that counts other branches, a branch that sees another, and a lone branch that is held apart.
    #[test]
    fn rows_see_the_trunk_and_their_branch() {
        let trees = [
            Tree { trunk: &[7, 8], branches: vec![&[1, 2, 3], &[], &[4]] },
            Tree { trunk: &[9], branches: vec![&[5, 6]] },
            Tree { trunk: &[10, 11], branches: Vec::new() },
        ];
        let right = ffi::plainly(|| Trees::new(&trees, Device::Cpu).unwrap());
        assert_eq!(numbers(right.tokens()), [7, 8, 1, 2, 3, 4, 9, 5, 6, 10, 11]);
        assert_eq!(numbers(right.bounds()), [0, 6, 9, 11]);
        let [position, shared, start] = [0, 1, 2].map(|i| numbers(&right.seen().get(i)));
        assert_eq!(position, [0, 1, 2, 3, 4, 2, 0, 1, 2, 0, 1]);
        assert_eq!(shared, [0, 0, 2, 2, 2, 2, 0, 0, 0, 0, 0]);
        assert_eq!(start, [0, 0, 2, 2, 2, 5, 0, 0, 0, 0, 0]);
        assert_eq!((right.rows(), right.longest()), (11, 5));
        let padded = right.padded().unwrap();
        assert_eq!(padded.shape, [5, 5]);
        let rows = numbers(&padded.rows);
        assert_eq!(rows[..5], [0, 1, 2, 3, 4]);
        assert_eq!(rows[5..10], [0, 1, 0, 0, 0]);
        assert_eq!(rows[10..15], [0, 1, 5, 0, 0]);
        let places = numbers(&padded.places);
        assert!((0..11).all(|row| rows[places[row] as usize] == row as i64), "{places:?}");
    }
}
