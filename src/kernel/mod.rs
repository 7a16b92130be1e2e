//! The kernel: pure maths on slices (floor 0). Knows nothing of tensors, files or operators.
//!
//! Each formula stands once, in plain Rust on detached numbers: the kernel gives a loss and its derivatives, the learner
//! back-propagates them and knows no algorithm's name. Two habits hold in every file:
//!
//! * a mask *selects*, it never multiplies: what stands under a masked token, be it NaN, changes nothing;
//! * a NaN that is not masked stays a NaN, so that it is seen. (`f32::min` and `f32::max` would drop it: here one compares.)
//!
//! | file | what it holds |
//! |---|---|
//! | [`shaping`] | what is made of a reward first: clipping, length, the soft penalty near the limit |
//! | [`advantage`] | advantages of one group from its rewards; reward minus value where there is a critic |
//! | [`gae`] | generalised advantage estimation over one rollout's tokens |
//! | [`whiten`] | a batch's advantages to mean 0 and deviation 1 |
//! | [`ratio`] | importance ratios, bounded and truncated |
//! | [`loss`] | policy and value losses with their derivatives |
//! | [`critic`] | the value loss with a bound, explained variance |
//! | [`aggregation`] | how the tokens' losses become one number |
//! | [`kl`] | the Kullback-Leibler divergence, and estimates of it |
//! | [`mod@reference`] | what it costs to leave a reference policy, in the loss and in the reward |
//! | [`ess`] | effective sample size, mergeable |
//! | [`mean`] | a token-weighted mean, mergeable |
//! | [`standard_error`] | a mean with its standard error |
//! | [`pass_at_k`] | the chance that one of k rollouts solves a prompt, without bias |
//! | [`safeguard`] | which tokens are left out, how far a step goes, which step is not taken |
//! | [`held`] | batches whose gradients wait for more, and what each weighs in the sum |
//! | [`norms`] | norms of the last gradients, and their median |
//! | [`curriculum`] | which prompt comes next, by success rates |
//! | [`divergence`] | what the last steps showed when a policy is being lost |
//! | [`lengths`] | a distribution of response lengths |
//! | [`capacity`] | how fast a layout of accelerators is, and at what lag |

pub mod advantage;
pub mod aggregation;
pub mod capacity;
pub mod critic;
pub mod curriculum;
pub mod divergence;
pub mod ess;
pub mod gae;
pub mod held;
pub mod kl;
pub mod lengths;
pub mod loss;
pub mod mean;
pub mod norms;
pub mod pass_at_k;
pub mod ratio;
pub mod reference;
pub mod safeguard;
pub mod shaping;
pub mod standard_error;
pub mod whiten;
