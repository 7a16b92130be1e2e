// What the operations of this folder have in common.
//
// * Products of matrices go to oneDNN: in fp32 too, where libtorch would take MKL, which is half as fast on processors that are not
//   Intel's; and by weights in blocks, laid out once an update, where rows are few.
// * The parts of a layer are one pass over memory each (kernels.h), forward and backward.
// * Gradients of weights are added straight to f32 buffers that the caller owns, and are not rounded before; libtorch sees none of
//   them, whatever type the weights are computed in.
// * Off the CPU everything is made of libtorch's own operations.
//
// The functions of extern "C" are those that ffi.rs wraps. One returns null, or a message that its caller frees.
#pragma once
#include "kernels.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>

namespace tidegate {

using at::Tensor;
using std::optional;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// For tests: whether this thread does on the CPU what it would do on any other device.
inline thread_local bool without_kernels = false;
// For tests: whether it does without libtorch's small products.
inline thread_local bool without_small_products = false;

// Whether the kernels and products of this folder take x.
inline bool on_cpu(const Tensor &x) { return x.device().is_cpu() && !without_kernels; }

// Rows that are worth a thread of their own.
inline int64_t grain(int64_t cost_of_row) { return std::max<int64_t>(1, 16384 / std::max<int64_t>(1, cost_of_row)); }

template <class F> void both(const Tensor &x, F f) {
  if (x.scalar_type() == at::kFloat)
    f(float());
  else if (x.scalar_type() == at::kBFloat16)
    f(BFloat16());
  else
    TORCH_CHECK(false, "computes in fp32 or bf16, not in ", x.scalar_type());
}

template <class T> const T *data(const Tensor &x) { return x.const_data_ptr<T>(); }
template <class T> const T *data(const optional<Tensor> &x) { return x ? x->const_data_ptr<T>() : nullptr; }

// [threads, n] of zeros that sums over rows are taken in.
inline Tensor partial_sums(int64_t n) { return at::zeros({at::get_num_threads(), n}, at::kFloat); }

inline optional<Tensor> given(const Tensor *x) { return x ? optional<Tensor>(*x) : std::nullopt; }
inline optional<Tensor> given(const Tensor &x) { return x.defined() ? optional<Tensor>(x) : std::nullopt; }

// What attention reads by pointers alone.
inline void check_heads(const Tensor &x, const optional<Tensor> &q_norm, const optional<Tensor> &k_norm, const Tensor &cos, const Tensor &sin,
                        int64_t heads, int64_t kv, int64_t d) {
  TORCH_CHECK(d > 0 && d % 2 == 0 && d <= WIDEST_HEAD, "heads of ", d, ": even and at most ", WIDEST_HEAD, " are right");
  TORCH_CHECK(kv > 0 && heads % kv == 0, heads, " heads do not share ", kv, " keys evenly");
  TORCH_CHECK(x.size(-1) == (heads + 2 * kv) * d, "projections of shape ", x.sizes());
  for (const auto &table : {cos, sin})
    TORCH_CHECK(table.is_contiguous() && table.dim() == 2 && table.size(1) == d && table.scalar_type() == at::kFloat && table.sizes() == cos.sizes(),
                "cosines or sines of shape ", table.sizes());
  for (const auto &norm : {q_norm, k_norm})
    TORCH_CHECK(!norm || (norm->is_contiguous() && norm->numel() == d && norm->scalar_type() == x.scalar_type()), "a norm that is not of ", d);
}

// What each of the three kinds of attention reads, as ffi.rs has it. Null where there is no norm, or where it does not learn.
struct Attention {
  const Tensor *x, *q_norm, *k_norm, *dq_norm, *dk_norm, *cos, *sin;
  int64_t heads, kv, d;
  double eps;
};

// Whether a weight with this gradient learns now.
inline bool learns(const Tensor *dw) { return dw != nullptr && at::GradMode::is_enabled(); }

// What is said where not even a message can be had.
inline constexpr char NO_MEMORY[] = "out of memory";

template <class F> char *guarded(F f) {
  try {
    f();
    return nullptr;
  } catch (const std::exception &e) {
    auto said = strdup(e.what());
    return said ? said : const_cast<char *>(NO_MEMORY);
  }
}

} // namespace tidegate
