//! The one home of unsafe code: loading libtorch's CUDA half at run time, and the operations of `ops/`.
//!
//! An operation that learns takes the place where the gradient of a weight is added up, a [`Weight`]; without one, or under
//! `no_grad`, it has no gradient. Weights are `[out, in]`, rows `[n, ..]` without gaps.
#![allow(unsafe_code)]

use crate::engine::torch::trees::Trees;
use crate::error::{Error, Result};
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
use std::error::Error as _;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::{null, null_mut};
use tch::{Device, Kind, Tensor};

/// Loads `libtorch_cuda.so` for as long as the process lives. To be called before libtorch is first used: it looks for CUDA
/// once. The linker drops the library because no symbol of it is used, and a start on the CPU is the faster for it; once loaded,
/// it registers itself with libtorch.
///
/// # Errors
/// A library that is not there, or lacks NVIDIA's.
pub fn load_cuda() -> Result<()> {
    const NAME: &str = "libtorch_cuda.so";
    // SAFETY: loading runs the library's initialisers. They are libtorch's own, of the build that this program is linked with
    // (the same rpath finds both), and an ordinary `import torch` runs them in the same way. No symbol is taken from it.
    let library = unsafe { Library::open(Some(NAME), RTLD_NOW | RTLD_GLOBAL) }.map_err(|e| {
        // The loader's own words, which name the library that is not there, are the error's source.
        let why = e.source().map_or_else(|| e.to_string(), ToString::to_string);
        Error::engine(NAME, format!("{why}; a CUDA device needs libtorch with all of its own dependencies"))
    })?;
    // Never unloaded: libtorch keeps pointers into it.
    std::mem::forget(library);
    Ok(())
}

/// Keeps memory that is given back, for the next step to take: tensors come and go a thousand times a second, and the larger ones
/// would be fresh pages from the system each time, which cost up to a fifth of a training step to clear. To be called before threads
/// are made. Does nothing where the C library is not glibc.
pub fn keep_memory() {
    #[cfg(target_env = "gnu")]
    {
        unsafe extern "C" {
            fn mallopt(parameter: c_int, value: c_int) -> c_int;
        }
        // Of malloc.h: one arena for all threads, since those of threads are bounded and what does not fit is mapped anew; nothing that is
        // mapped for itself (older versions take no threshold above 32 MiB, and this one all); and the top of the heap stays.
        const ARENA_MAX: c_int = -8;
        const MMAP_MAX: c_int = -4;
        const TRIM_THRESHOLD: c_int = -1;
        for (parameter, value) in [(ARENA_MAX, 1), (MMAP_MAX, 0), (TRIM_THRESHOLD, c_int::MAX)] {
            // SAFETY: sets a number of the allocator's, under its own lock; a value that it does not take is ignored.
            unsafe { mallopt(parameter, value) };
        }
    }
}

/// Weights in the type that is computed in, and where their gradient is added up.
#[derive(Debug)]
pub struct Weight {
    pub value: Tensor,
    /// f32, of the same shape; None where nothing is learnt.
    pub gradient: Option<Tensor>,
}

/// How the projections of queries, keys and values lie in a row: `heads` queries, `kv_heads` keys, as many values, of
/// `head_dim` each.
#[derive(Clone, Copy, Debug)]
pub struct Heads {
    pub heads: i64,
    pub kv_heads: i64,
    pub head_dim: i64,
    /// Added to the mean square under a head's norm.
    pub eps: f64,
}

/// What queries and keys go through before they meet.
#[derive(Debug)]
pub struct Positional<'a> {
    pub q_norm: Option<&'a Weight>,
    pub k_norm: Option<&'a Weight>,
    /// `[positions, head_dim]` f32: cosines, and sines of which the first half carries the minus sign.
    pub cos: &'a Tensor,
    pub sin: &'a Tensor,
}

/// A tensor of libtorch's, as C++ sees it.
type Raw = *const c_void;
/// Null, or a message to be freed.
type Message = *mut c_char;

/// What each of the three kinds of attention reads, as `ops/common.h` has it. Null where there is no norm, or where it does not learn.
#[repr(C)]
struct Attention {
    x: Raw,
    q_norm: Raw,
    k_norm: Raw,
    dq_norm: Raw,
    dk_norm: Raw,
    cos: Raw,
    sin: Raw,
    heads: i64,
    kv_heads: i64,
    head_dim: i64,
    eps: f64,
}

impl Attention {
    /// Of the projections `x`, `[rows, (heads + 2 kv_heads) head_dim]`, with positions below `length`.
    fn new(x: &Tensor, at: &Positional, heads: Heads, length: i64) -> Result<Attention> {
        let Heads { heads, kv_heads, head_dim, eps } = heads;
        fits(x.size2()?.1 == (heads + 2 * kv_heads) * head_dim && at.cos.size2()?.0 >= length, "projections", x)?;
        let (q_norm, k_norm) = (value_of(at.q_norm), value_of(at.k_norm));
        let (dq_norm, dk_norm) = (gradient_of(at.q_norm), gradient_of(at.k_norm));
        let (x, cos, sin) = (raw(x), raw(at.cos), raw(at.sin));
        Ok(Attention { x, q_norm, k_norm, dq_norm, dk_norm, cos, sin, heads, kv_heads, head_dim, eps })
    }
}

unsafe extern "C" {
    fn tidegate_block(out: *mut *mut c_void, w: Raw, kind: i8) -> Message;
    fn tidegate_block_again(w: Raw, blocks: Raw) -> Message;
    fn tidegate_blocks_linear(out: *mut *mut c_void, x: Raw, blocks: Raw, b: Raw, other: Raw, in_float: bool) -> Message;
    fn tidegate_linear(out: *mut *mut c_void, x: Raw, w: Raw, b: Raw, dw: Raw, db: Raw) -> Message;
    fn tidegate_embedding(out: *mut *mut c_void, w: Raw, ids: Raw, dw: Raw) -> Message;
    fn tidegate_rms_norm(out: *mut *mut c_void, x: Raw, w: Raw, dw: Raw, eps: f64) -> Message;
    fn tidegate_swiglu(out: *mut *mut c_void, x: Raw) -> Message;
    fn tidegate_split(
        q: *mut *mut c_void,
        k: *mut *mut c_void,
        v: *mut *mut c_void,
        attention: *const Attention,
        b: i64,
        t: i64,
    ) -> Message;
    fn tidegate_causal(out: *mut *mut c_void, attention: *const Attention, bounds: Raw, seen: Raw) -> Message;
    fn tidegate_head(out: *mut *mut c_void, hidden: Raw, w: Raw, dw: Raw, ids: Raw, temperature: f64) -> Message;
    fn tidegate_attend(
        out: *mut *mut c_void,
        attention: *const Attention,
        keys: Raw,
        values: Raw,
        slots: Raw,
        positions: Raw,
    ) -> Message;
    fn tidegate_logits(out: *mut *mut c_void, hidden: Raw, w: Raw) -> Message;
    fn tidegate_choose(logits: Raw, draws: *const f64, temperature: f64, ids: *mut i64, logps: *mut f32) -> Message;
    fn tidegate_free(message: Message);
    fn tidegate_begin_thread();
    #[cfg(test)]
    fn tidegate_threads() -> i64;
    #[cfg(test)]
    fn tidegate_plain(on: bool);
    #[cfg(test)]
    fn tidegate_without_small_products(on: bool);
}

/// Whether the operations of `ops/` have kernels of their own for `x`; of all others libtorch's are put together.
pub fn has_kernels(x: &Tensor) -> bool {
    has_kernels_on(x.device())
}

/// Whether tensors on `device` have kernels of `ops/`.
pub fn has_kernels_on(device: Device) -> bool {
    #[cfg(test)]
    if PLAIN.get() {
        return false;
    }
    device == Device::Cpu
}

#[cfg(test)]
thread_local! {
    static PLAIN: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Does `f` on the CPU with the operations of other devices.
#[cfg(test)]
pub fn plainly<T>(f: impl FnOnce() -> T) -> T {
    // SAFETY: sets a variable of this thread.
    while_set(f, |on| {
        PLAIN.set(on);
        unsafe { tidegate_plain(on) };
    })
}

/// Does `f` as on a processor of which libtorch has no small products; as far as this thread does it.
#[cfg(test)]
pub fn without_small_products<T>(f: impl FnOnce() -> T) -> T {
    // SAFETY: sets a variable of this thread.
    while_set(f, |on| unsafe { tidegate_without_small_products(on) })
}

/// To be called on each thread before its number of threads is set: the first loop of `ops/` there would undo it.
pub fn begin_thread() {
    // SAFETY: sets numbers of this thread.
    unsafe { tidegate_begin_thread() }
}

/// How many threads take part in a loop of `ops/`.
#[cfg(test)]
pub fn threads_of_a_loop() -> i64 {
    // SAFETY: counts, and touches nothing else.
    unsafe { tidegate_threads() }
}

#[cfg(test)]
fn while_set<T>(f: impl FnOnce() -> T, set: fn(bool)) -> T {
    struct Back(fn(bool));
    impl Drop for Back {
        fn drop(&mut self) {
            (self.0)(false);
        }
    }
    let _back = Back(set);
    set(true);
    f()
}

fn raw(tensor: &Tensor) -> Raw {
    tensor.as_ptr().cast()
}

fn raw_or_null(tensor: Option<&Tensor>) -> Raw {
    tensor.map_or(null(), raw)
}

fn value_of(weight: Option<&Weight>) -> Raw {
    raw_or_null(weight.map(|weight| &weight.value))
}

fn gradient_of(weight: Option<&Weight>) -> Raw {
    raw_or_null(weight.and_then(|weight| weight.gradient.as_ref()))
}

/// The error in a message, in its first line: a backtrace of C++ follows.
fn said(message: Message) -> Result<()> {
    if message.is_null() {
        return Ok(());
    }
    // SAFETY: a message that is not null is a C string of the allocator that `tidegate_free` gives back to, and ours alone.
    let text = unsafe { CStr::from_ptr(message) }.to_string_lossy().into_owned();
    unsafe { tidegate_free(message) };
    Err(Error::engine("libtorch", text.lines().next().unwrap_or_default()))
}

/// The tensors that a call makes.
fn made<const N: usize>(call: impl FnOnce([*mut *mut c_void; N]) -> Message) -> Result<[Tensor; N]> {
    let mut out = [null_mut::<c_void>(); N];
    let places = out.each_mut().map(std::ptr::from_mut);
    said(call(places))?;
    // SAFETY: a call without a message has set every place to a new tensor, which is ours.
    Ok(out.map(|tensor| unsafe { Tensor::from_ptr(tensor.cast()) }))
}

fn one([tensor]: [Tensor; 1]) -> Tensor {
    tensor
}

// SAFETY of all calls below: each passes pointers to tensors, or slices of the stated length, that live until it returns; the C++
// side keeps counted references where it keeps any, checks shapes by libtorch's own operations, and turns every exception into a
// message. What its loops rely on beyond that (no gaps, places inside the cache) is checked before the call, here or there.

/// A weight laid out for products of few rows, in a type of its own.
#[derive(Debug)]
pub struct Blocks(Tensor);

impl Blocks {
    /// Lays `weight` (`[out, in]`, on the CPU) out in fp32 or bf16; None where there is no such product.
    ///
    /// # Errors
    /// Not enough memory.
    pub fn of(weight: &Tensor, kind: Kind) -> Result<Option<Blocks>> {
        // libtorch's numbers of types.
        let kind = match kind {
            Kind::Float => 6,
            Kind::BFloat16 => 15,
            _ => return Ok(None),
        };
        let mut out = null_mut();
        said(unsafe { tidegate_block(&raw mut out, raw(weight), kind) })?;
        // SAFETY: without a message it is null or a new tensor, which is ours.
        Ok((!out.is_null()).then(|| Blocks(unsafe { Tensor::from_ptr(out.cast()) })))
    }

    /// Lays another weight of the same shape out, in the same memory.
    ///
    /// # Errors
    /// A weight of another shape.
    pub fn again(&mut self, weight: &Tensor) -> Result<()> {
        said(unsafe { tidegate_block_again(raw(weight), raw(&self.0)) })
    }

    /// `x w^T + b`, rounded once; `+ other` (f32) where there is another, in f32. No gradients.
    ///
    /// # Errors
    /// Shapes or types that do not fit, or not enough memory.
    pub fn linear(&self, x: &Tensor, bias: Option<&Weight>, other: Option<&Tensor>) -> Result<Tensor> {
        let (b, other) = (value_of(bias), raw_or_null(other));
        made(|[out]| unsafe { tidegate_blocks_linear(out, raw(x), raw(&self.0), b, other, false) }).map(one)
    }

    /// `x w^T` in f32, whatever the weight's type.
    ///
    /// # Errors
    /// As [`linear`](Blocks::linear).
    pub fn linear_in_float(&self, x: &Tensor) -> Result<Tensor> {
        made(|[out]| unsafe { tidegate_blocks_linear(out, raw(x), raw(&self.0), null(), null(), true) }).map(one)
    }
}

/// `x w^T + b`.
///
/// # Errors
/// Shapes or types that do not fit, or not enough memory; so for all that follow.
pub fn linear(x: &Tensor, weight: &Weight, bias: Option<&Weight>) -> Result<Tensor> {
    let (w, dw) = (value_of(Some(weight)), gradient_of(Some(weight)));
    made(|[out]| unsafe { tidegate_linear(out, raw(x), w, value_of(bias), dw, gradient_of(bias)) }).map(one)
}

/// `[n, V]` f32 of hidden states `[n, d]` and the output head `[V, d]`. No gradients.
///
/// # Errors
/// As [`linear`].
pub fn logits(hidden: &Tensor, weight: &Weight) -> Result<Tensor> {
    made(|[out]| unsafe { tidegate_logits(out, raw(hidden), raw(&weight.value)) }).map(one)
}

/// In f32, the rows of `ids`, in the shape of `ids` and one dimension more.
///
/// # Errors
/// As [`linear`]; an id outside the vocabulary.
pub fn embedding(weight: &Weight, ids: &Tensor) -> Result<Tensor> {
    made(|[out]| unsafe { tidegate_embedding(out, raw(&weight.value), raw(ids), gradient_of(Some(weight))) }).map(one)
}

/// `x / rms(x) * w` over the last dimension, computed in f32 and in the type of `w`; one that learns takes f32 (Zhang & Sennrich 2019, arXiv 1910.07467).
///
/// # Errors
/// As [`linear`].
pub fn rms_norm(x: &Tensor, weight: &Weight, eps: f64) -> Result<Tensor> {
    made(|[out]| unsafe { tidegate_rms_norm(out, raw(x), raw(&weight.value), gradient_of(Some(weight)), eps) }).map(one)
}

/// `silu(gate) * up` of rows that are gate, then up (Shazeer 2020, arXiv 2002.05202).
///
/// # Errors
/// As [`linear`].
pub fn swiglu(x: &Tensor) -> Result<Tensor> {
    made(|[out]| unsafe { tidegate_swiglu(out, raw(x)) }).map(one)
}

/// On the CPU: what each row of `trees` attends to, `[n, heads * head_dim]`, of the projections `x` (`[n, (heads + 2 kv_heads) head_dim]`:
/// queries, keys, values): normalised where there are norms, rotated, and scaled by the root of `head_dim`.
///
/// # Errors
/// As [`linear`].
pub fn causal(x: &Tensor, at: &Positional, heads: Heads, trees: &Trees) -> Result<Tensor> {
    let attention = Attention::new(x, at, heads, trees.longest())?;
    fits(x.device() == Device::Cpu && x.size2()?.0 == trees.rows(), "projections", x)?;
    made(|[y]| unsafe { tidegate_causal(y, &raw const attention, raw(trees.bounds()), raw(trees.seen())) }).map(one)
}

/// Off the CPU: queries `[b, heads, t, head_dim]`, keys and values `[b, kv_heads, t, head_dim]` of projections as [`causal`] takes, of `b`
/// sequences at positions 0..t: normalised and rotated.
///
/// # Errors
/// As [`linear`].
pub fn split(x: &Tensor, at: &Positional, heads: Heads, [b, t]: [i64; 2]) -> Result<[Tensor; 3]> {
    let attention = Attention::new(x, at, heads, t)?;
    fits(x.size2()?.0 == b * t, "projections", x)?;
    made(|[q, k, v]| unsafe { tidegate_split(q, k, v, &raw const attention, b, t) })
}

/// `[n, 2]` f32: the log-probability of each of `ids` (`[n]`) and the entropy, in nats, of the distributions that the head `[V, d]`
/// gives the hidden states `[n, d]` at a temperature above 0. No more than a bounded piece of the logits exists at once.
///
/// # Errors
/// As [`linear`].
pub fn head(hidden: &Tensor, weight: &Weight, ids: &Tensor, temperature: f64) -> Result<Tensor> {
    // One that is undefined has no device, and autograd asks for it.
    let none = Tensor::f_from_slice::<f32>(&[])?;
    let dw = weight.gradient.as_ref().unwrap_or(&none);
    made(|[out]| unsafe { tidegate_head(out, raw(hidden), raw(&weight.value), raw(dw), raw(ids), temperature) }).map(one)
}

/// Where the rows of a decode step belong. Rows of one sequence stand in order.
#[derive(Debug)]
pub struct Places {
    /// `[n]` i64 on the CPU, both.
    slots: Tensor,
    positions: Tensor,
    /// One more than the largest of each; 0 where there are none.
    ends: [i64; 2],
}

impl Places {
    /// The slot of each row, and its position there.
    ///
    /// # Errors
    /// A place below 0, or not as many of one as of the other.
    pub fn new(slots: &[i64], positions: &[i64]) -> Result<Places> {
        let ends = [slots, positions].map(|all| all.iter().max().map_or(0, |last| last + 1));
        let places = Places { slots: Tensor::f_from_slice(slots)?, positions: Tensor::f_from_slice(positions)?, ends };
        let right = slots.len() == positions.len() && slots.iter().chain(positions).all(|&place| place >= 0);
        fits(right, "places", &places.slots).map(|()| places)
    }

    /// `[n]` i64 on the CPU.
    pub fn slots(&self) -> &Tensor {
        &self.slots
    }

    /// `[n]` i64 on the CPU.
    pub fn positions(&self) -> &Tensor {
        &self.positions
    }

    /// Whether `rows` rows hold all of them, in a cache of so many slots of so many positions.
    pub fn fit(&self, rows: i64, slots: i64, length: i64) -> bool {
        self.slots.numel() as i64 <= rows && self.ends[0] <= slots && self.ends[1] <= length
    }
}

/// On the CPU: puts keys and values of the first `n` rows of `x` (projections, as [`causal`]) into the cache (`[slots, kv_heads, length,
/// head_dim]` each) and attends: each row to its sequence up to itself. `[rows of x, heads * head_dim]`; rows without a place are 0.
///
/// # Errors
/// As [`linear`]; a place outside the cache.
pub fn attend(x: &Tensor, at: &Positional, heads: Heads, cache: [&Tensor; 2], places: &Places) -> Result<Tensor> {
    let [keys, values] = cache;
    let (slots, kv_heads, length, head_dim) = keys.size4()?;
    let attention = Attention::new(x, at, heads, length)?;
    let same = keys.size() == values.size() && keys.kind() == x.kind() && values.kind() == x.kind();
    fits(same && kv_heads == heads.kv_heads && head_dim == heads.head_dim, "projections", x)?;
    fits(places.fit(x.size2()?.0, slots, length), "places", &places.slots)?;
    let (keys, values, slots, positions) = (raw(keys), raw(values), raw(&places.slots), raw(&places.positions));
    made(|[out]| unsafe { tidegate_attend(out, &raw const attention, keys, values, slots, positions) }).map(one)
}

/// One id a row of `logits` (`[n, V]` f32), and its log-probability: by inverting the cumulative distribution, in order of ids, of
/// logits over `temperature` at each of the `n` uniform `draws`; where the temperature is 0 the first of the likeliest, at
/// temperature 1.
///
/// # Errors
/// As [`linear`].
pub fn choose(logits: &Tensor, draws: &[f64], temperature: f64) -> Result<Vec<(u32, f32)>> {
    let n = draws.len();
    fits(logits.size2()?.0 == n as i64 && logits.kind() == Kind::Float, "logits", logits)?;
    let (mut ids, mut logps) = (vec![0i64; n], vec![0f32; n]);
    said(unsafe { tidegate_choose(raw(logits), draws.as_ptr(), temperature, ids.as_mut_ptr(), logps.as_mut_ptr()) })?;
    Ok(ids.into_iter().map(|id| id as u32).zip(logps).collect())
}

/// Does `f` with the bytes of a tensor on the CPU, where they lie.
///
/// # Errors
/// A tensor with gaps, or on another device.
pub fn with_bytes<T>(tensor: &Tensor, f: impl FnOnce(&[u8]) -> T) -> Result<T> {
    fits(tensor.device() == Device::Cpu && tensor.is_contiguous(), "bytes", tensor)?;
    let length = tensor.numel() * tensor.kind().elt_size_in_bytes();
    if length == 0 {
        return Ok(f(&[]));
    }
    // SAFETY: a tensor without gaps has so many bytes from its first element on, and it lives until `f` returns. Nothing writes to them
    // meanwhile: a tensor is not shared between threads, and `f` is given no tensor.
    Ok(f(unsafe { std::slice::from_raw_parts(tensor.data_ptr().cast::<u8>(), length) }))
}

/// Refuses what does not fit.
///
/// # Errors
/// `what`, with the tensor's shape.
pub fn fits(fits: bool, what: &str, tensor: &Tensor) -> Result<()> {
    let found = || Error::engine(what, format!("{:?} of {:?} does not fit", tensor.size(), tensor.kind()));
    if fits { Ok(()) } else { Err(found()) }
}

#[cfg(test)]
mod tests;
