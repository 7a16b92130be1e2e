//! AdamW over one flat buffer, and the limit on the gradient's norm.

use crate::engine::spec::Learning;
use crate::error::{Error, Result};
use std::ops::Range;
use tch::{Device, Kind, TchError, Tensor, no_grad};

/// Elements that one pass over the CPU's caches covers: five buffers of this size stay in a core's L2.
const CHUNK: i64 = 1 << 16;

/// Elements of one row of a norm.
const ROW: i64 = 1 << 10;

/// AdamW (Loshchilov and Hutter, "Decoupled weight decay regularization", arXiv 1711.05101), in the form and the order of
/// operations of PyTorch's. Weight decay applies to every weight, norms and biases included, as there.
#[derive(Debug)]
pub struct AdamW {
    beta1: f64,
    beta2: f64,
    eps: f64,
    weight_decay: f64,
    /// The first element of the critic's head, which has a rate and a count of updates of its own; the end where there is none.
    head: i64,
    state: State,
    scratch: Tensor,
}

/// What the optimizer remembers between steps: flat buffers `[n]` of f32, in the weights' layout.
#[derive(Debug)]
pub struct State {
    /// Running mean of the gradient, and of its square.
    pub m: Tensor,
    pub v: Tensor,
    /// Updates so far, and those of the critic's head: it may learn before the rest does.
    pub updates: u64,
    pub head_updates: u64,
}

impl State {
    /// A copy, which later steps do not change.
    ///
    /// # Errors
    /// A device without the room.
    pub fn copy(&self) -> Result<State> {
        let copy = |flat: &Tensor| no_grad(|| flat.f_detach_copy()).map_err(engine("optimizer state"));
        let State { updates, head_updates, .. } = *self;
        Ok(State { m: copy(&self.m)?, v: copy(&self.v)?, updates, head_updates })
    }
}

impl AdamW {
    /// An optimizer that has seen nothing, for the weights `flat` (`[n]`, f32).
    ///
    /// # Errors
    /// A device without the room.
    pub fn new(flat: &Tensor, learning: &Learning) -> Result<Self> {
        let zeros = || flat.f_zeros_like().map_err(engine("optimizer state"));
        Ok(AdamW {
            beta1: learning.beta1,
            beta2: learning.beta2,
            eps: learning.eps,
            weight_decay: learning.weight_decay,
            head: flat.size1().map_err(engine("optimizer"))?,
            state: State { m: zeros()?, v: zeros()?, updates: 0, head_updates: 0 },
            scratch: flat
                .f_narrow(0, 0, chunk_of(flat)?)
                .and_then(|chunk| chunk.f_empty_like())
                .map_err(engine("optimizer"))?,
        })
    }

    /// The same for weights whose critic has its head from element `head` to the end.
    #[must_use]
    pub fn with_head(self, head: i64) -> Self {
        AdamW { head, ..self }
    }

    /// One update of `flat` in place by the gradient `grad` (both `[n]`, f32) at learning rate `lr`.
    ///
    /// # Errors
    /// Whatever the device says.
    pub fn step(&mut self, flat: &Tensor, grad: &Tensor, lr: f64) -> Result<()> {
        self.step_parts(flat, grad, [Some(lr); 2])
    }

    /// The same at two learning rates: of all that comes before the critic's head, and of the head. What has none stays as it is to the bit,
    /// moments too.
    ///
    /// # Errors
    /// Whatever the device says.
    pub fn step_parts(&mut self, flat: &Tensor, grad: &Tensor, lr: [Option<f64>; 2]) -> Result<()> {
        let size = flat.size1().map_err(engine("optimizer step"))?;
        let head = self.head.min(size);
        let [rest, of_head] = lr;
        if let Some(lr) = rest {
            self.state.updates += 1;
            self.step_part(flat, grad, 0..head, self.state.updates, lr)?;
        }
        if let Some(lr) = of_head {
            self.state.head_updates += 1;
            self.step_part(flat, grad, head..size, self.state.head_updates, lr)?;
        }
        Ok(())
    }

    fn step_part(&self, flat: &Tensor, grad: &Tensor, part: Range<i64>, updates: u64, lr: f64) -> Result<()> {
        let chunk = chunk_of(flat)?.max(1);
        let Range { mut start, end } = part;
        let update = || {
            while start < end {
                let len = chunk.min(end - start);
                let part = |whole: &Tensor| whole.f_narrow(0, start, len);
                let State { m, v, .. } = &self.state;
                let scratch = self.scratch.f_narrow(0, 0, len)?;
                self.update(part(flat)?, &part(grad)?, [part(m)?, part(v)?, scratch], updates, lr)?;
                start += chunk;
            }
            Ok(())
        };
        no_grad(update).map_err(engine("optimizer step"))
    }

    /// The update number `updates` of some weights, from 1.
    fn update(
        &self,
        mut p: Tensor,
        g: &Tensor,
        [mut m, mut v, mut scratch]: [Tensor; 3],
        updates: u64,
        lr: f64,
    ) -> Result<(), TchError> {
        let updates = updates as f64;
        let (correction1, correction2) = (1.0 - self.beta1.powf(updates), 1.0 - self.beta2.powf(updates));
        if self.weight_decay != 0.0 {
            let _ = p.f_mul_scalar_(1.0 - lr * self.weight_decay)?;
        }
        let _ = m.f_lerp_(g, 1.0 - self.beta1)?;
        let _ = g.f_square_out(&scratch)?;
        let _ = v.f_lerp_(&scratch, 1.0 - self.beta2)?;
        let _ = v.f_sqrt_out(&scratch)?;
        let _ = scratch.f_mul_scalar_(1.0 / correction2.sqrt())?;
        let _ = scratch.f_add_scalar_(self.eps)?;
        let _ = m.f_div_out(&scratch, &scratch)?;
        let _ = scratch.f_mul_scalar_(-lr / correction1)?;
        let _ = p.f_add_(&scratch)?;
        Ok(())
    }

    /// Updates so from the next one on; what it remembers stays.
    pub fn relearn(&mut self, learning: &Learning) {
        let Learning { beta1, beta2, eps, weight_decay, .. } = *learning;
        (self.beta1, self.beta2, self.eps, self.weight_decay) = (beta1, beta2, eps, weight_decay);
    }

    /// For checkpoints.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// The state of an optimizer that is done.
    pub fn into_state(self) -> State {
        self.state
    }

    /// Goes on from a checkpoint's state.
    ///
    /// # Errors
    /// Buffers of another size or kind.
    pub fn restore(&mut self, state: &State) -> Result<()> {
        for (name, from, to) in [("m", &state.m, &mut self.state.m), ("v", &state.v, &mut self.state.v)] {
            if from.size() != to.size() || from.kind() != Kind::Float {
                let found = format!("{:?} of {:?}", from.size(), from.kind());
                return Err(Error::engine(
                    format!("optimizer {name}"),
                    format!("{found}, expected {:?} of Float", to.size()),
                ));
            }
            no_grad(|| to.f_copy_(from)).map_err(engine("optimizer state"))?;
        }
        (self.state.updates, self.state.head_updates) = (state.updates, state.head_updates);
        Ok(())
    }
}

/// Elements that are updated together. The operations are element by element, so parts give the same bits; on a CPU a part stays in
/// the cache.
fn chunk_of(flat: &Tensor) -> Result<i64> {
    let size = flat.size1().map_err(engine("optimizer"))?;
    Ok(if flat.device() == Device::Cpu { size.min(CHUNK) } else { size })
}

/// Scales `grad` in place so that its 2-norm is at most `limit` (0: no limit); returns the norm it had.
///
/// # Errors
/// Whatever the device says.
pub fn clip(grad: &mut Tensor, limit: f64) -> Result<f64> {
    let norm = no_grad(|| norm(grad)).map_err(engine("gradient norm"))?;
    if limit > 0.0 && norm > limit {
        // The small term keeps rounding from leaving the norm above the limit.
        let _ = no_grad(|| grad.f_mul_scalar_(limit / (norm + 1e-6))).map_err(engine("gradient clip"))?;
    }
    Ok(norm)
}

/// The 2-norm: of rows in f32, then of the rows' norms in f64. libtorch's own on a CPU adds up in f32 and was 0.5% off at 32
/// million elements; its f64 one costs more than the whole update.
fn norm(flat: &Tensor) -> Result<f64, TchError> {
    let size = flat.size1()?;
    let whole = size / ROW * ROW;
    let rows = flat.f_narrow(0, 0, whole)?.f_view([-1, ROW])?.f_norm_scalaropt_dim(2, 1, false)?;
    let tail = flat.f_narrow(0, whole, size - whole)?.f_norm()?.f_view([1])?;
    Tensor::f_cat(&[rows, tail], 0)?.f_norm_scalaropt_dtype(2, Kind::Double)?.f_double_value(&[])
}

fn engine(what: &'static str) -> impl Fn(TchError) -> Error {
    move |e| Error::engine(what, e)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEARNING: fn() -> Learning =
        || Learning { beta1: 0.9, beta2: 0.99, eps: 1e-6, weight_decay: 0.1, ..Learning::default() };

    fn values(tensor: &Tensor) -> Vec<f32> {
        Vec::try_from(tensor).unwrap()
    }

    /// Algorithm 2 of arXiv 1711.05101 in f64, one weight at a time.
    fn literal(mut p: f64, gradients: &[f64], lr: f64) -> f64 {
        let (mut m, mut v) = (0.0, 0.0);
        for (i, &g) in gradients.iter().enumerate() {
            let t = i as i32 + 1;
            m = 0.9 * m + 0.1 * g;
            v = 0.99 * v + 0.01 * g * g;
            let (m_hat, v_hat) = (m / (1.0 - 0.9f64.powi(t)), v / (1.0 - 0.99f64.powi(t)));
            p = p - lr * 0.1 * p - lr * m_hat / (v_hat.sqrt() + 1e-6);
        }
        p
    }

    #[test]
    fn first_step_by_hand() {
        // m_hat = g, v_hat = g^2: the step is lr * g / (|g| + eps), after decay by lr * 0.1.
        let p = Tensor::from_slice(&[1.0f32, -2.0, 0.5]);
        let mut adamw = AdamW::new(&p, &LEARNING()).unwrap();
        adamw.step(&p, &Tensor::from_slice(&[0.5f32, -4.0, 0.0]), 0.01).unwrap();
        let expected = [0.999 - 0.01 / (1.0 + 2e-6), -1.998 + 0.01 / (1.0 + 2.5e-7), 0.4995];
        for (p, expected) in values(&p).iter().zip(expected) {
            assert!((f64::from(*p) - expected).abs() < 1e-7, "{p} {expected}");
        }
    }

    #[test]
    fn five_steps_as_the_paper_in_f64_and_across_parts() {
        let size = CHUNK as usize + 3;
        let start = |i: usize| (i as f64 * 0.37).sin();
        let gradient = |i: usize, k: usize| (i as f64 * 0.11 + k as f64).cos() * 10f64.powi(i as i32 % 5 - 3);
        let p = Tensor::from_slice(&(0..size).map(|i| start(i) as f32).collect::<Vec<_>>());
        let mut adamw = AdamW::new(&p, &LEARNING()).unwrap();
        for k in 0..5 {
            let g = Tensor::from_slice(&(0..size).map(|i| gradient(i, k) as f32).collect::<Vec<_>>());
            adamw.step(&p, &g, 0.003).unwrap();
        }
        for (i, p) in values(&p).iter().enumerate().step_by(997).chain([(size - 1, values(&p).last().unwrap())]) {
            let expected = literal(start(i), &(0..5).map(|k| gradient(i, k)).collect::<Vec<_>>(), 0.003);
            assert!((f64::from(*p) - expected).abs() < 2e-6, "{i}: {p} {expected}");
        }
        assert_eq!(adamw.state().updates, 5);
    }

    /// Catches a head that has the rate of the rest, a part that decays or forgets while it waits, and a count of updates that is not
    /// the part's own: the first update of each moves it by its rate.
    #[test]
    fn parts_have_rates_and_counts_of_their_own() {
        let (size, head) = (CHUNK + 40, CHUNK + 16);
        let start = Tensor::arange(size, (Kind::Float, Device::Cpu)).sin();
        let grad = Tensor::arange(size, (Kind::Float, Device::Cpu)).cos();
        let (rest, of_head) =
            (|x: &Tensor| values(&x.narrow(0, 0, head)), |x: &Tensor| values(&x.narrow(0, head, size - head)));
        let p = start.copy();
        let mut adamw = AdamW::new(&p, &LEARNING()).unwrap().with_head(head);
        (0..3).for_each(|_| adamw.step_parts(&p, &grad, [None, Some(0.5)]).unwrap());
        assert_eq!(rest(&p), rest(&start));
        assert_eq!((rest(&adamw.state().m), rest(&adamw.state().v)), (vec![0.0; head as usize], vec![0.0; head as usize]));
        assert_eq!((adamw.state().updates, adamw.state().head_updates), (0, 3));
        adamw.step_parts(&p, &grad, [Some(0.01), Some(0.5)]).unwrap();
        // The rest as alone in its first step, the head as alone in its fourth.
        let (first, fourth) = (start.copy(), start.copy());
        AdamW::new(&first, &LEARNING()).unwrap().step(&first, &grad, 0.01).unwrap();
        let mut alone = AdamW::new(&fourth, &LEARNING()).unwrap();
        (0..4).for_each(|_| alone.step(&fourth, &grad, 0.5).unwrap());
        assert_eq!((rest(&p), of_head(&p)), (rest(&first), of_head(&fourth)));
    }

    #[test]
    fn a_restored_optimizer_goes_on_to_the_same_bits() {
        let start = Tensor::from_slice(&[0.1f32, 0.2, -0.3, 4.0]);
        let gradient = |k: i32| Tensor::from_slice(&[0.3f32, -0.7, 0.001, 1.0]) * f64::from(k);
        let p = start.copy();
        let mut adamw = AdamW::new(&p, &LEARNING()).unwrap();
        (1..4).for_each(|k| adamw.step(&p, &gradient(k), 0.01).unwrap());
        let (q, mut again) = (p.copy(), AdamW::new(&p, &LEARNING()).unwrap());
        again.restore(adamw.state()).unwrap();
        (4..7).for_each(|k| {
            adamw.step(&p, &gradient(k), 0.01).unwrap();
            again.step(&q, &gradient(k), 0.01).unwrap();
        });
        assert_eq!(values(&p), values(&q));
        let other = AdamW::new(&Tensor::from_slice(&[0f32; 2]), &LEARNING()).unwrap();
        assert!(again.restore(other.state()).unwrap_err().to_string().contains("[2]"));
    }

    /// The cosine ends at 0.
    #[test]
    fn a_learning_rate_of_zero_changes_nothing() {
        let p = Tensor::from_slice(&[1.0f32, -2.0]);
        AdamW::new(&p, &LEARNING()).unwrap().step(&p, &Tensor::from_slice(&[0.0f32, 3.0]), 0.0).unwrap();
        assert_eq!(values(&p), [1.0, -2.0]);
    }

    #[test]
    fn clip_scales_only_what_is_too_long() {
        let mut g = Tensor::from_slice(&[3.0f32, 0.0, -4.0]);
        assert_eq!(clip(&mut g, 0.0).unwrap(), 5.0);
        assert_eq!(clip(&mut g, 5.0).unwrap(), 5.0);
        assert_eq!(values(&g), [3.0, 0.0, -4.0]);
        assert_eq!(clip(&mut g, 0.5).unwrap(), 5.0);
        let clipped = values(&g);
        assert!((clipped[0] - 0.3).abs() < 1e-6 && (clipped[2] + 0.4).abs() < 1e-6, "{clipped:?}");
        let norm = clip(&mut g, 0.0).unwrap();
        assert!((0.499999..=0.5).contains(&norm), "{norm}");
    }

    #[test]
    fn the_norm_is_exact_enough_over_many_weights() {
        let size = 1_000_003;
        let expected = (size as f64).sqrt() * 0.1f32 as f64;
        let norm = clip(&mut Tensor::full([size], 0.1, (Kind::Float, Device::Cpu)), 0.0).unwrap();
        assert!((norm / expected - 1.0).abs() < 1e-6, "{norm} {expected}");
    }
}
