//! Sequences as the learner computes them: row after row without padding, and what several have in common once.
//!
//! The rollouts of a group begin with the same prompt, and under causal attention what a layer makes of a prompt does not depend on
//! what follows it. So a group is a tree: a trunk that all share, and a branch for each rollout. A row of a branch sees the trunk and
//! its own branch up to itself, and stands at the position that it has in its sequence; gradients of the trunk's rows add up over the
//! branches by themselves. Known for decoding as tree attention (Miao et al. 2023, arXiv 2305.09781) and for shared prefixes
//! (Juravsky et al. 2024, arXiv 2402.05099).

use crate::engine::torch::ffi;
use crate::error::{Error, Result};
use tch::{Device, Kind, Tensor};

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
    /// `[3, n]` i32 on the CPU, of each row: its position; how many rows of the trunk it sees; and from which row on it sees all up to
    /// itself. Rows are counted from the tree's first; neither of the two becomes smaller along a tree.
    seen: Tensor,
    longest: i64,
    /// Where attention has no kernel for trees.
    padded: Option<Vec<Padded>>,
}

/// Some sequences as a whole, for attention that wants them so: `b` of `t` rows, padded on the right.
#[derive(Debug)]
pub struct Padded {
    pub shape: [i64; 2],
    /// `[b * t]`: the row of each place. Padding has any row, which nothing that counts sees.
    pub rows: Tensor,
    /// The rows that are taken from here, and the place of each: all pieces together have each row once.
    pub taken: Tensor,
    pub places: Tensor,
}

impl Trees {
    /// The rows of `trees`, for `device`.
    ///
    /// # Errors
    /// More rows than 2^31, or a device without the room.
    pub fn new(trees: &[Tree], device: Device) -> Result<Trees> {
        let n: usize = trees.iter().map(Tree::rows).sum();
        if i32::try_from(n).is_err() {
            return Err(Error::engine("trees", format!("{n} rows at once, at most {} are possible", i32::MAX)));
        }
        let (mut tokens, mut bounds, mut seen) = (Vec::with_capacity(n), vec![0i64], vec![0i32; 3 * n]);
        for tree in trees {
            let from = tokens.len();
            tokens.extend(tree.trunk.iter().chain(tree.branches.iter().copied().flatten()).map(|&id| i64::from(id)));
            let trunk = tree.trunk.len();
            // A branch that is alone sees all that is before it, as a trunk would: full tiles then need no mask.
            let parted = tree.branches.iter().filter(|branch| !branch.is_empty()).count() > 1;
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
        let padded = if ffi::has_kernels_on(device) { None } else { Some(padded(trees, device)?) };
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

    /// `[trees + 1]` i64 on the CPU: the field of this name.
    pub fn bounds(&self) -> &Tensor {
        &self.bounds
    }

    /// `[3, n]` i32 on the CPU: the field of this name.
    pub fn seen(&self) -> &Tensor {
        &self.seen
    }

    /// Where attention has no kernel for trees.
    pub fn padded(&self) -> Option<&[Padded]> {
        self.padded.as_deref()
    }
}

/// Rows of `x` by number. Gradients of one that is taken several times add up in f32, and in one order: by `index_select` they have none
/// on CUDA.
///
/// # Errors
/// A number that no row has, or not enough memory.
pub fn rows_of(x: &Tensor, numbers: &Tensor) -> Result<Tensor> {
    let kind = x.kind();
    let x = x.f_to_kind(Kind::Float)?;
    let rows = if ffi::has_kernels(&x) { x.f_index_select(0, numbers)? } else { x.f_index(&[Some(numbers)])? };
    Ok(rows.f_to_kind(kind)?)
}

/// The sequences of `trees` in pieces of about one length each: at most a third is padding.
fn padded(trees: &[Tree], device: Device) -> Result<Vec<Padded>> {
    // The rows of each sequence, and how many of them another one gives already.
    let mut sequences: Vec<(Vec<i64>, usize)> = Vec::new();
    let mut from = 0i64;
    for tree in trees {
        let trunk = from..from + tree.trunk.len() as i64;
        let mut next = trunk.end;
        if tree.branches.is_empty() {
            sequences.push((trunk.clone().collect(), 0));
        }
        for (i, branch) in tree.branches.iter().enumerate() {
            let end = next + branch.len() as i64;
            sequences.push((trunk.clone().chain(next..end).collect(), if i == 0 { 0 } else { tree.trunk.len() }));
            next = end;
        }
        from = next;
    }
    sequences.sort_by_key(|(rows, _)| std::cmp::Reverse(rows.len()));
    let mut pieces: Vec<&[(Vec<i64>, usize)]> = Vec::new();
    let (mut begin, mut sum) = (0, 0);
    for (i, (rows, _)) in sequences.iter().enumerate() {
        if i > begin && 2 * (i + 1 - begin) * sequences[begin].0.len() > 3 * (sum + rows.len()) {
            pieces.push(&sequences[begin..i]);
            (begin, sum) = (i, 0);
        }
        sum += rows.len();
    }
    if begin < sequences.len() {
        pieces.push(&sequences[begin..]);
    }
    pieces.into_iter().map(|piece| Padded::new(piece, from, device)).collect()
}

impl Padded {
    /// Of the rows of some sequences, out of `n` in all.
    fn new(sequences: &[(Vec<i64>, usize)], n: i64, device: Device) -> Result<Padded> {
        let t = sequences.iter().map(|(rows, _)| rows.len()).max().unwrap_or(0);
        // All over the rows, since what is taken most often is added up longest.
        let mut rows: Vec<i64> = (0..(sequences.len() * t) as i64).map(|place| place % n).collect();
        let (mut taken, mut places) = (Vec::new(), Vec::new());
        for (i, (sequence, given)) in sequences.iter().enumerate() {
            rows[i * t..][..sequence.len()].copy_from_slice(sequence);
            taken.extend(&sequence[*given..]);
            places.extend((*given..sequence.len()).map(|j| (i * t + j) as i64));
        }
        let there = |all: &[i64]| Ok::<_, Error>(Tensor::f_from_slice(all)?.f_to_device(device)?);
        let shape = [sequences.len() as i64, t as i64];
        Ok(Padded { shape, rows: there(&rows)?, taken: there(&taken)?, places: there(&places)? })
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
        let pieces = right.padded().unwrap();
        assert_eq!(pieces.iter().map(|piece| piece.shape).collect::<Vec<_>>(), [[3, 5], [2, 2]]);
        // The longest first; of those that are as long, the first one.
        let rows = numbers(&pieces[0].rows);
        assert_eq!((&rows[..5], &rows[5..8], &rows[10..13]), (&[0, 1, 2, 3, 4][..], &[0, 1, 5][..], &[6, 7, 8][..]));
        let mut taken = Vec::new();
        for piece in pieces {
            let (rows, of_piece, places) = (numbers(&piece.rows), numbers(&piece.taken), numbers(&piece.places));
            assert!(
                of_piece.iter().zip(&places).all(|(row, place)| rows[*place as usize] == *row),
                "{of_piece:?} {places:?}"
            );
            taken.extend(of_piece);
        }
        let mut once = taken;
        once.sort_unstable();
        assert_eq!(once, (0..11).collect::<Vec<_>>());
    }

    /// Catches a long sequence that all others are padded to.
    #[test]
    fn sequences_are_padded_to_about_their_own_length() {
        let ids = [0u32; 4000];
        let trees = [Tree { trunk: &ids[..10], branches: vec![&ids[..30]; 50] }, Tree { trunk: &ids, branches: Vec::new() }];
        let trees = ffi::plainly(|| Trees::new(&trees, Device::Cpu).unwrap());
        let shapes: Vec<[i64; 2]> = trees.padded().unwrap().iter().map(|piece| piece.shape).collect();
        assert_eq!(shapes, [[1, 4000], [50, 40]]);
    }
}
