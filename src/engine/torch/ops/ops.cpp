// What libtorch has no binding, no fused form or no fast form for, as C functions that ffi.rs wraps.
//
// * Products of matrices go to oneDNN: in fp32 too, where libtorch would take MKL, which is half as fast on processors that are not
//   Intel's; and by weights in blocks, laid out once an update, where rows are few.
// * The parts of a layer are one pass over memory each (kernels.h), forward and backward.
// * Gradients of weights are added straight to f32 buffers that the caller owns; libtorch sees none of them, whatever type the
//   weights are computed in.
// * Off the CPU everything is made of libtorch's own operations.
//
// A function returns null, or a message that its caller frees.
#include "kernels.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/CPUBlas.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>
#include <string_view>
#include <vector>

using at::Tensor;
using std::optional;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;
using namespace tidegate;

namespace {

// ---- products

using Pointwise = Tensor(const Tensor &, const Tensor &, const optional<Tensor> &, std::string_view, c10::List<optional<at::Scalar>>,
                         optional<std::string_view>);
Tensor onednn(const Tensor &x, const Tensor &w, const optional<Tensor> &b) {
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("mkldnn::_linear_pointwise", "").typed<Pointwise>();
  return op.call(x, w, b, "none", c10::List<optional<at::Scalar>>(), "");
}

// Whether oneDNN multiplies this type on this processor.
bool takes(at::ScalarType type) {
  static const bool bf16 = [] {
    try {
      auto one = at::ones({16, 16}, at::kBFloat16);
      onednn(one, one, std::nullopt);
      return true;
    } catch (const std::exception &) {
      return false;
    }
  }();
  return type == at::kFloat || (type == at::kBFloat16 && bf16);
}

// For tests: whether this thread does on the CPU what it would do on any other device.
thread_local bool without_kernels = false;

// Whether the kernels and products of this file take x.
bool on_cpu(const Tensor &x) { return x.device().is_cpu() && !without_kernels; }

// x [m, k] times the transpose of w [n, k], which may be a view of any strides.
Tensor product(const Tensor &x, const Tensor &w, const optional<Tensor> &b = std::nullopt) {
  if (on_cpu(x) && takes(x.scalar_type()) && x.size(0) > 0) return onednn(x.contiguous(), w, b);
  return at::linear(x, w, b);
}

// x [m, k] times the transpose of w [n, k], in f32: bf16 is summed in f32 and never rounded.
Tensor plain_product_in_float(const Tensor &x, const Tensor &w) {
  if (x.scalar_type() == at::kFloat) return at::mm(x, w.t());
  return x.is_cuda() ? at::mm(x, w.t(), at::kFloat) : at::mm(x.to(at::kFloat), w.to(at::kFloat).t());
}

// Adds the product of dy [m, n] transposed and x [m, k] to the gradient dw [n, k].
void add_gradient(const Tensor &dw, const Tensor &dy, const Tensor &x) {
  dw.add_(on_cpu(dy) ? product(dy.t().contiguous(), x.t()) : plain_product_in_float(dy.t(), x.t()));
}

// ---- rows shared out among threads

// Rows that are worth a thread of their own.
int64_t grain(int64_t cost_of_row) { return std::max<int64_t>(1, 16384 / std::max<int64_t>(1, cost_of_row)); }

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
Tensor partial_sums(int64_t n) { return at::zeros({at::get_num_threads(), n}, at::kFloat); }

// ---- the autograd functions

struct Linear : Function<Linear> {
  static Tensor forward(AutogradContext *ctx, Tensor x, Tensor w, optional<Tensor> b, Tensor dw, optional<Tensor> db) {
    ctx->save_for_backward({x, w});
    ctx->saved_data["dw"] = dw;
    ctx->saved_data["db"] = db;
    return product(x, w, b);
  }
  static variable_list backward(AutogradContext *ctx, variable_list grads) {
    auto saved = ctx->get_saved_variables();
    auto dy = grads[0].contiguous();
    auto dx = ctx->needs_input_grad(0) ? product(dy, saved[1].t()) : Tensor();
    add_gradient(ctx->saved_data["dw"].toTensor(), dy, saved[0]);
    if (!ctx->saved_data["db"].isNone()) ctx->saved_data["db"].toTensor().add_(dy.sum(0, false, at::kFloat));
    return {dx, Tensor(), Tensor(), Tensor(), Tensor()};
  }
};

struct Embedding : Function<Embedding> {
  static Tensor forward(AutogradContext *ctx, Tensor w, Tensor ids, Tensor dw) {
    ctx->save_for_backward({ids});
    ctx->saved_data["dw"] = dw;
    return at::embedding(w, ids).to(at::kFloat);
  }
  static variable_list backward(AutogradContext *ctx, variable_list grads) {
    auto dw = ctx->saved_data["dw"].toTensor(), ids = ctx->get_saved_variables()[0], dy = grads[0];
    // Of the two, index_add_ is the faster one on the CPU, and index_put_ the one whose sums have one order on CUDA.
    if (on_cpu(dw))
      dw.index_add_(0, ids, dy);
    else
      dw.index_put_({ids}, dy, true);
    return {Tensor(), Tensor(), Tensor()};
  }
};

Tensor norm(const Tensor &x, const Tensor &w, double eps) {
  auto d = x.size(-1);
  if (!on_cpu(x)) {
    auto f = x.to(at::kFloat);
    return at::rms_norm(f, {d}, w.to(at::kFloat), eps).to(w.scalar_type());
  }
  auto y = at::empty(x.sizes(), w.options());
  auto rows = [&](auto from_x, auto zero) {
    using X = decltype(from_x);
    using T = decltype(zero);
    at::parallel_for(0, x.numel() / d, grain(d), [&](int64_t from, int64_t to) {
      norm_rows(data<X>(x) + from * d, data<T>(w), y.data_ptr<T>() + from * d, to - from, d, static_cast<float>(eps));
    });
  };
  both(w, [&](auto zero) {
    if (x.scalar_type() == at::kFloat)
      rows(float(), zero);
    else
      rows(zero, zero);
  });
  return y;
}

struct RmsNorm : Function<RmsNorm> {
  static Tensor forward(AutogradContext *ctx, Tensor x, Tensor w, Tensor dw, double eps) {
    ctx->save_for_backward({x, w});
    ctx->saved_data["dw"] = dw;
    ctx->saved_data["eps"] = eps;
    return norm(x, w, eps);
  }
  static variable_list backward(AutogradContext *ctx, variable_list grads) {
    auto saved = ctx->get_saved_variables();
    auto x = saved[0], w = saved[1], dy = grads[0].contiguous();
    auto dw = ctx->saved_data["dw"].toTensor();
    auto eps = ctx->saved_data["eps"].toDouble();
    auto d = x.size(-1);
    if (!on_cpu(x)) {
      auto g = dy.to(at::kFloat) * w, r = (x.square().mean(-1, true) + eps).rsqrt();
      dw.add_((dy * x * r).reshape({-1, d}).sum(0));
      return {r * (g - x * (g * x).mean(-1, true) * r * r), Tensor(), Tensor(), Tensor()};
    }
    auto dx = at::empty_like(x), sums = partial_sums(d);
    both(w, [&](auto zero) {
      using T = decltype(zero);
      at::parallel_for(0, x.numel() / d, grain(d), [&](int64_t from, int64_t to) {
        norm_back_rows(data<float>(x) + from * d, data<T>(w), data<T>(dy) + from * d, dx.data_ptr<float>() + from * d,
                       sums.data_ptr<float>() + at::get_thread_num() * d, to - from, d, static_cast<float>(eps));
      });
    });
    dw.add_(sums.sum(0));
    return {dx, Tensor(), Tensor(), Tensor()};
  }
};

Tensor swiglu(const Tensor &x) {
  auto f = x.size(-1) / 2;
  if (!on_cpu(x)) return at::silu(x.narrow(-1, 0, f)) * x.narrow(-1, f, f);
  auto y = at::empty({x.size(0), f}, x.options());
  both(x, [&](auto zero) {
    using T = decltype(zero);
    at::parallel_for(0, x.size(0), grain(8 * f), [&](int64_t from, int64_t to) {
      swiglu_rows(data<T>(x) + from * 2 * f, y.data_ptr<T>() + from * f, to - from, f);
    });
  });
  return y;
}

struct Swiglu : Function<Swiglu> {
  static Tensor forward(AutogradContext *ctx, Tensor x) {
    ctx->save_for_backward({x});
    return swiglu(x);
  }
  static variable_list backward(AutogradContext *ctx, variable_list grads) {
    auto x = ctx->get_saved_variables()[0], dy = grads[0].contiguous();
    auto f = x.size(-1) / 2;
    if (!on_cpu(x)) {
      auto gate = x.narrow(-1, 0, f), up = x.narrow(-1, f, f);
      return {at::cat({at::silu_backward(dy * up, gate), dy * at::silu(gate)}, -1)};
    }
    auto dx = at::empty_like(x);
    both(x, [&](auto zero) {
      using T = decltype(zero);
      at::parallel_for(0, x.size(0), grain(16 * f), [&](int64_t from, int64_t to) {
        swiglu_back_rows(data<T>(x) + from * 2 * f, data<T>(dy) + from * f, dx.data_ptr<T>() + from * 2 * f, to - from, f);
      });
    });
    return {dx};
  }
};

// x cos + roll(x) sin over the last dimension; the transpose of it where the sines are rolled and the halves' signs exchanged.
Tensor rotated(const Tensor &x, const Tensor &cos, const Tensor &sin) {
  auto f = x.to(at::kFloat);
  return (f * cos + f.roll({x.size(-1) / 2}, {-1}) * sin).to(x.scalar_type());
}

struct Split : Function<Split> {
  static variable_list forward(AutogradContext *ctx, Tensor x, optional<Tensor> q_norm, optional<Tensor> k_norm, optional<Tensor> dq_norm,
                               optional<Tensor> dk_norm, Tensor cos, Tensor sin, int64_t b, int64_t t, int64_t heads, int64_t kv, int64_t d,
                               double eps) {
    TORCH_CHECK(d <= WIDEST_HEAD, "heads of ", d, " are wider than ", WIDEST_HEAD);
    ctx->save_for_backward({x, q_norm.value_or(Tensor()), k_norm.value_or(Tensor()), cos, sin});
    ctx->saved_data["dq_norm"] = dq_norm;
    ctx->saved_data["dk_norm"] = dk_norm;
    for (auto [name, number] : {std::pair("b", b), {"t", t}, {"heads", heads}, {"kv", kv}, {"d", d}}) ctx->saved_data[name] = number;
    ctx->saved_data["eps"] = eps;
    if (!on_cpu(x)) {
      auto all = x.view({b, t, heads + 2 * kv, d});
      auto part = [&](int64_t from, int64_t n, const optional<Tensor> &w) {
        auto one = all.narrow(2, from, n);
        return rotated(w ? norm(one, *w, eps) : one, cos.narrow(0, 0, t).unsqueeze(1), sin.narrow(0, 0, t).unsqueeze(1)).transpose(1, 2);
      };
      return {part(0, heads, q_norm), part(heads, kv, k_norm), all.narrow(2, heads + kv, kv).transpose(1, 2).contiguous()};
    }
    auto q = at::empty({b, heads, t, d}, x.options()), k = at::empty({b, kv, t, d}, x.options()), v = at::empty_like(k);
    Heads h{heads, kv, d, static_cast<float>(eps)};
    both(x, [&](auto zero) {
      using T = decltype(zero);
      at::parallel_for(0, b * t, grain(h.width()), [&](int64_t from, int64_t to) {
        split_rows(data<T>(x), data<T>(q_norm), data<T>(k_norm), data<float>(cos), data<float>(sin), q.data_ptr<T>(), k.data_ptr<T>(),
                   v.data_ptr<T>(), h, t, from, to);
      });
    });
    return {q, k, v};
  }
  static variable_list backward(AutogradContext *ctx, variable_list grads) {
    auto saved = ctx->get_saved_variables();
    auto x = saved[0], cos = saved[3], sin = saved[4];
    auto given = [](const Tensor &w) { return w.defined() ? optional<Tensor>(w) : std::nullopt; };
    auto q_norm = given(saved[1]), k_norm = given(saved[2]);
    auto number = [&](const char *name) { return ctx->saved_data[name].toInt(); };
    auto b = number("b"), t = number("t"), heads = number("heads"), kv = number("kv"), d = number("d");
    auto eps = ctx->saved_data["eps"].toDouble();
    auto add = [&](const char *name, const Tensor &dw) {
      if (!ctx->saved_data[name].isNone()) ctx->saved_data[name].toTensor().add_(dw);
    };
    auto dx = at::empty_like(x);
    if (!on_cpu(x)) {
      auto c = cos.narrow(0, 0, t).unsqueeze(1), s = sin.narrow(0, 0, t).unsqueeze(1).roll({d / 2}, {-1});
      auto in = x.view({b, t, heads + 2 * kv, d}), out = dx.view({b, t, heads + 2 * kv, d});
      auto part = [&](const Tensor &g, int64_t from, int64_t n, const optional<Tensor> &w, const char *name) {
        auto turned = rotated(g.transpose(1, 2).to(at::kFloat), c, s);
        if (w) {
          auto f = in.narrow(2, from, n).to(at::kFloat);
          auto r = (f.square().mean(-1, true) + eps).rsqrt();
          add(name, (turned * f * r).reshape({-1, d}).sum(0));
          auto gw = turned * *w;
          turned = r * (gw - f * (gw * f).mean(-1, true) * r * r);
        }
        out.narrow(2, from, n).copy_(turned);
      };
      part(grads[0], 0, heads, q_norm, "dq_norm");
      part(grads[1], heads, kv, k_norm, "dk_norm");
      out.narrow(2, heads + kv, kv).copy_(grads[2].transpose(1, 2));
    } else {
      auto dq = grads[0].contiguous(), dk = grads[1].contiguous(), dv = grads[2].contiguous(), sums = partial_sums(2 * d);
      Heads h{heads, kv, d, static_cast<float>(eps)};
      both(x, [&](auto zero) {
        using T = decltype(zero);
        at::parallel_for(0, b * t, grain(h.width()), [&](int64_t from, int64_t to) {
          split_back_rows(data<T>(x), data<T>(q_norm), data<T>(k_norm), data<float>(cos), data<float>(sin), data<T>(dq), data<T>(dk),
                          data<T>(dv), dx.data_ptr<T>(), sums.data_ptr<float>() + at::get_thread_num() * 2 * d, h, t, from, to);
        });
      });
      auto sum = sums.sum(0);
      add("dq_norm", sum.narrow(0, 0, d));
      add("dk_norm", sum.narrow(0, d, d));
    }
    variable_list all(13);
    all[0] = dx;
    return all;
  }
};

// ---- products with weights in blocks

// Rows of a weight that one call of oneDNN's small product covers: [k, BLOCK] in f32, pairs of k side by side in bf16. Such products
// of few rows read weights at the speed of memory, and beat those of whole matrices by a tenth to a half (docs/performance.md).
constexpr int64_t BLOCK = 64;

// Whether this processor has the small product of this type, which libtorch gives no other sign of.
template <class T> bool small_product_here() {
  static const bool here = [] {
    std::vector<T> ones(32 * 32, T(1.0f));
    std::vector<float> sums(32 * 32);
    try {
      at::native::cpublas::brgemm(32, 32, 32, 32, 32, 32, false, ones.data(), ones.data(), sums.data(), std::is_same_v<T, BFloat16>);
      at::native::cpublas::brgemm_release();
      return sums[0] == 32.0f;
    } catch (const std::exception &) {
      return false;
    }
  }();
  return here;
}

bool can_block(const Tensor &w, at::ScalarType kind) {
  if (!on_cpu(w) || w.dim() != 2) return false;
  return kind == at::kFloat ? small_product_here<float>()
                            : kind == at::kBFloat16 && w.size(1) % 2 == 0 && small_product_here<BFloat16>();
}

// w [n, k] in f32 or bf16, into `to` of the same size in f32 or bf16, block after block: one pass.
template <class From> void block_into(const Tensor &w, const Tensor &to) {
  auto n = w.size(0), k = w.size(1);
  auto from = data<From>(w);
  at::parallel_for(0, (n + BLOCK - 1) / BLOCK, std::max<int64_t>(1, 32768 / (BLOCK * k)), [&](int64_t first, int64_t last) {
    for (int64_t block = first; block < last; block++) {
      int64_t at = block * BLOCK, rows = std::min(BLOCK, n - at);
      if (to.scalar_type() == at::kFloat)
        block_floats(from + at * k, to.data_ptr<float>() + at * k, rows, k);
      else
        block_pairs(from + at * k, reinterpret_cast<uint32_t *>(to.data_ptr<BFloat16>() + at * k), rows, k);
    }
  });
}

void block_into(const Tensor &w, const Tensor &to) {
  both(w, [&](auto zero) { block_into<decltype(zero)>(w, to); });
}

// x [m, k] times the transpose of `blocks` [n, k], plus a bias [n] and `other` [m, n] in f32; sums are f32, and rounded once if `kind`
// is bf16.
template <class T> Tensor blocks_product(const Tensor &x, const Tensor &blocks, const optional<Tensor> &bias, const optional<Tensor> &other,
                                         at::ScalarType kind) {
  auto m = x.size(0), k = x.size(1), n = blocks.size(0);
  TORCH_CHECK(x.is_contiguous() && x.scalar_type() == blocks.scalar_type() && blocks.size(1) == k, "factors that do not fit");
  auto y = at::empty({m, n}, x.options().dtype(kind));
  auto plain = kind == at::kFloat && !bias && !other;
  at::parallel_for(0, (n + BLOCK - 1) / BLOCK, std::max<int64_t>(1, 131072 / std::max<int64_t>(1, m * BLOCK * k)), [&](int64_t first, int64_t last) {
    static thread_local std::vector<float> scratch;
    if (!plain) scratch.resize(std::max<size_t>(scratch.size(), m * BLOCK));
    for (int64_t block = first; block < last; block++) {
      int64_t at = block * BLOCK, rows = std::min(BLOCK, n - at);
      auto sums = plain ? y.data_ptr<float>() + at : scratch.data();
      at::native::cpublas::brgemm(m, rows, k, k, rows, plain ? n : rows, false, data<T>(x), data<T>(blocks) + at * k, sums,
                                  std::is_same_v<T, BFloat16>);
      if (plain) continue;
      auto b = bias ? data<T>(bias) + at : nullptr;
      auto o = other ? data<float>(other) + at : nullptr;
      if (kind == at::kFloat) {
        finish_rows(sums, b, o, y.data_ptr<float>() + at, m, rows, n);
      } else {
        if constexpr (std::is_same_v<T, BFloat16>) finish_rows(sums, b, o, y.data_ptr<BFloat16>() + at, m, rows, n);
      }
    }
    at::native::cpublas::brgemm_release();
  });
  return y;
}

Tensor blocks_product(const Tensor &x, const Tensor &blocks, const optional<Tensor> &bias, const optional<Tensor> &other,
                      at::ScalarType kind) {
  Tensor y;
  both(blocks, [&](auto zero) { y = blocks_product<decltype(zero)>(x.contiguous(), blocks, bias, other, kind); });
  return y;
}

// ---- the output head

Tensor logits_in_float(const Tensor &x, const Tensor &w, const optional<Tensor> &blocks) {
  if (blocks) return blocks_product(x, *blocks, std::nullopt, std::nullopt, at::kFloat);
  return on_cpu(x) ? product(x, w).to(at::kFloat) : plain_product_in_float(x, w);
}

struct Head : Function<Head> {
  // Rows whose logits are there at once. Off the CPU a piece is larger: the gradient of the head is gone over once a piece.
  static int64_t chunk(const Tensor &w) { return std::max<int64_t>(16, (int64_t(1) << (on_cpu(w) ? 24 : 27)) / w.size(0)); }

  static Tensor forward(AutogradContext *ctx, Tensor hidden, Tensor w, Tensor dw, Tensor ids, double temperature) {
    auto n = hidden.size(0), v = w.size(0), rows = chunk(w);
    auto out = at::empty({n, 2}, hidden.options().dtype(at::kFloat));
    auto norms = at::empty({n, 2}, at::kFloat);
    // What one chunk covers is kept for the way back; of more, logits are computed again there.
    // A product in bf16 would round the logits.
    optional<Tensor> blocks;
    if (w.scalar_type() == at::kBFloat16 && can_block(w, at::kBFloat16)) block_into(w, blocks.emplace(at::empty_like(w)));
    Tensor kept;
    for (int64_t from = 0; from < n; from += rows) {
      auto m = std::min(rows, n - from);
      auto logits = logits_in_float(hidden.narrow(0, from, m), w, blocks);
      auto chosen = ids.narrow(0, from, m);
      if (!on_cpu(hidden)) {
        auto logp = at::log_softmax(logits / temperature, -1);
        out.narrow(0, from, m).select(1, 0).copy_(logp.gather(1, chosen.unsqueeze(1)).squeeze(1));
        out.narrow(0, from, m).select(1, 1).copy_((logp.exp() * logp).sum(-1).neg());
      } else {
        auto said = out.data_ptr<float>() + 2 * from;
        auto of = norms.data_ptr<float>() + 2 * from;
        auto inverse = static_cast<float>(1.0 / temperature);
        at::parallel_for(0, m, grain(16 * v), [&](int64_t first, int64_t last) {
          for (int64_t row = first; row < last; row++) {
            auto l = data<float>(logits) + row * v;
            auto norm = log_normaliser(l, v, inverse);
            said[2 * row] = l[data<int64_t>(chosen)[row]] * inverse - norm.most - norm.log_sum;
            said[2 * row + 1] = entropy_of(l, v, inverse, norm);
            of[2 * row] = norm.most, of[2 * row + 1] = norm.log_sum;
          }
        });
      }
      if (n <= rows) kept = logits;
    }
    ctx->save_for_backward({hidden, w, ids, norms, kept});
    ctx->saved_data["dw"] = dw;
    ctx->saved_data["blocks"] = blocks;
    ctx->saved_data["out"] = out.detach();
    ctx->saved_data["temperature"] = temperature;
    return out;
  }

  static variable_list backward(AutogradContext *ctx, variable_list grads) {
    auto saved = ctx->get_saved_variables();
    auto hidden = saved[0], w = saved[1], ids = saved[2], norms = saved[3], kept = saved[4];
    auto g = grads[0].contiguous(), dw = ctx->saved_data["dw"].toTensor(), out = ctx->saved_data["out"].toTensor();
    auto blocks = ctx->saved_data["blocks"].isNone() ? std::nullopt : optional<Tensor>(ctx->saved_data["blocks"].toTensor());
    auto temperature = ctx->saved_data["temperature"].toDouble();
    auto n = hidden.size(0), v = w.size(0), rows = chunk(w);
    auto dx = at::zeros_like(hidden);
    for (int64_t from = 0; from < n; from += rows) {
      auto m = std::min(rows, n - from);
      auto h = hidden.narrow(0, from, m), gs = g.narrow(0, from, m), chosen = ids.narrow(0, from, m), said = out.narrow(0, from, m);
      auto logits = kept.defined() ? kept : logits_in_float(h, w, blocks);
      Tensor dl;
      if (!on_cpu(hidden)) {
        auto logp = at::log_softmax(logits / temperature, -1);
        auto g0 = gs.select(1, 0).unsqueeze(1), g1 = gs.select(1, 1).unsqueeze(1);
        dl = logp.exp() * (g0 + g1 * (logp + said.select(1, 1).unsqueeze(1))) * (-1.0 / temperature);
        dl.scatter_add_(1, chosen.unsqueeze(1), g0 / temperature);
        dl = dl.to(w.scalar_type());
      } else {
        dl = w.scalar_type() == at::kFloat ? logits : at::empty({m, v}, w.options());
        auto inverse = static_cast<float>(1.0 / temperature);
        both(w, [&](auto zero) {
          using T = decltype(zero);
          at::parallel_for(0, m, grain(8 * v), [&](int64_t first, int64_t last) {
            for (int64_t row = first; row < last; row++) {
              auto of = norms.data_ptr<float>() + 2 * (from + row);
              auto coefficients = data<float>(gs) + 2 * row;
              auto to = dl.data_ptr<T>() + row * v;
              head_back_row(data<float>(logits) + row * v, to, v, inverse, Norm{of[0], of[1]}, data<float>(said)[2 * row + 1], coefficients[0],
                            coefficients[1]);
              auto id = data<int64_t>(chosen)[row];
              put(to[id], get(to[id]) + coefficients[0] * inverse);
            }
          });
        });
      }
      dx.narrow(0, from, m).copy_(product(dl, w.t()));
      add_gradient(dw, dl, h);
    }
    return {dx, Tensor(), Tensor(), Tensor(), Tensor()};
  }
};

// ---- a step over the cache

// Tokens of one sequence that stand side by side in a step are attended to together, up to so many.
constexpr int64_t TOGETHER = 8;

struct Run {
  int64_t row, tokens;
};

std::vector<Run> runs(const int64_t *slots, const int64_t *positions, int64_t rows) {
  std::vector<Run> all;
  for (int64_t row = 0; row < rows; row++) {
    bool same = !all.empty() && all.back().tokens < TOGETHER && row > 0 && slots[row] == slots[row - 1] &&
                positions[row] == positions[row - 1] + 1;
    if (same)
      all.back().tokens++;
    else
      all.push_back({row, 1});
  }
  return all;
}

template <class T>
void attend_all(const Tensor &x, const T *q_norm, const T *k_norm, const Tensor &cos, const Tensor &sin, const Tensor &keys,
                const Tensor &values, const Tensor &slots, const Tensor &positions, const Heads &h, const Tensor &y) {
  auto rows = slots.size(0), length = keys.size(2), width = h.heads * h.d, shared = h.heads / h.kv;
  auto slot = data<int64_t>(slots), position = data<int64_t>(positions);
  auto q = at::empty({rows, width}, at::kFloat);
  at::parallel_for(0, rows, grain(4 * h.width()), [&](int64_t from, int64_t to) {
    enter_rows(data<T>(x), q_norm, k_norm, data<float>(cos), data<float>(sin), keys.data_ptr<T>(), values.data_ptr<T>(), q.data_ptr<float>(), h,
               length, slot, position, from, to);
  });
  auto all = runs(slot, position, rows);
  auto items = static_cast<int64_t>(all.size()) * h.kv;
  // Every thread takes each so manieth item: neighbours are of one sequence and cost alike.
  int64_t cost = 0;
  for (auto run : all) cost += run.tokens * (position[run.row] + run.tokens) * width;
  auto threads = cost < 32768 ? 1 : std::min<int64_t>(at::get_num_threads(), items);
  at::parallel_for(0, threads, 1, [&](int64_t from, int64_t to) {
    static thread_local std::vector<float> scores;
    for (int64_t thread = from; thread < to; thread++) {
      for (int64_t item = thread; item < items; item += threads) {
        auto run = all[item / h.kv];
        auto head = item % h.kv, at = position[run.row];
        scores.resize(std::max<size_t>(scores.size(), run.tokens * shared * (at + run.tokens)));
        auto place = (slot[run.row] * h.kv + head) * length * h.d;
        auto offset = run.row * width + head * shared * h.d;
        attend(data<float>(q) + offset, data<T>(keys) + place, data<T>(values) + place, y.data_ptr<T>() + offset, scores.data(), shared,
               run.tokens, at, width, h.d);
      }
    }
  });
}

// ---- the boundary

template <class F> char *guarded(F f) {
  try {
    f();
    return nullptr;
  } catch (const std::exception &e) {
    return strdup(e.what());
  }
}

optional<Tensor> given(const Tensor *x) { return x ? optional<Tensor>(*x) : std::nullopt; }

bool learns(const Tensor *dw) { return dw != nullptr && at::GradMode::is_enabled(); }

} // namespace

extern "C" {

// w [n, k] in blocks of `kind`, or null where there is no small product of it.
char *tidegate_block(Tensor **out, const Tensor *w, int8_t kind) {
  return guarded([&] {
    auto to = static_cast<at::ScalarType>(kind);
    if (!can_block(*w, to)) return;
    *out = new Tensor(at::empty(w->sizes(), w->options().dtype(to)));
    block_into(w->contiguous(), **out);
  });
}

// The same into blocks that are there.
char *tidegate_block_again(const Tensor *w, const Tensor *blocks) {
  return guarded([&] {
    TORCH_CHECK(w->sizes() == blocks->sizes() && on_cpu(*w), "weights of another shape");
    block_into(w->contiguous(), *blocks);
  });
}

// x w^T + b + other with w in blocks, without gradients; in f32 where `in_float` or there is another, else in w's type.
char *tidegate_blocks_linear(Tensor **out, const Tensor *x, const Tensor *blocks, const Tensor *b, const Tensor *other, bool in_float) {
  return guarded([&] {
    auto kind = in_float || other ? at::kFloat : blocks->scalar_type();
    *out = new Tensor(blocks_product(*x, *blocks, given(b), given(other), kind));
  });
}

char *tidegate_linear(Tensor **out, const Tensor *x, const Tensor *w, const Tensor *b, const Tensor *dw, const Tensor *db) {
  return guarded([&] {
    *out = new Tensor(learns(dw) ? Linear::apply(*x, *w, given(b), *dw, given(db)) : product(*x, *w, given(b)));
  });
}

char *tidegate_embedding(Tensor **out, const Tensor *w, const Tensor *ids, const Tensor *dw) {
  return guarded([&] { *out = new Tensor(learns(dw) ? Embedding::apply(*w, *ids, *dw) : at::embedding(*w, *ids).to(at::kFloat)); });
}

char *tidegate_rms_norm(Tensor **out, const Tensor *x, const Tensor *w, const Tensor *dw, double eps) {
  return guarded([&] { *out = new Tensor(learns(dw) ? RmsNorm::apply(*x, *w, *dw, eps) : norm(*x, *w, eps)); });
}

char *tidegate_swiglu(Tensor **out, const Tensor *x) {
  return guarded([&] { *out = new Tensor(at::GradMode::is_enabled() ? Swiglu::apply(*x) : swiglu(*x)); });
}

// Queries, keys and values of `[b * t]` rows, each `[b, heads, t, d]`.
char *tidegate_split(Tensor **q, Tensor **k, Tensor **v, const Tensor *x, const Tensor *q_norm, const Tensor *k_norm, const Tensor *dq_norm,
                     const Tensor *dk_norm, const Tensor *cos, const Tensor *sin, int64_t b, int64_t t, int64_t heads, int64_t kv, int64_t d,
                     double eps) {
  return guarded([&] {
    auto all =
        Split::apply(*x, given(q_norm), given(k_norm), given(dq_norm), given(dk_norm), *cos, *sin, b, t, heads, kv, d, eps);
    *q = new Tensor(all[0]), *k = new Tensor(all[1]), *v = new Tensor(all[2]);
  });
}

// `[n, 2]` f32: log-probability of each id, and entropy.
char *tidegate_head(Tensor **out, const Tensor *hidden, const Tensor *w, const Tensor *dw, const Tensor *ids, double temperature) {
  return guarded([&] { *out = new Tensor(Head::apply(*hidden, *w, *dw, *ids, temperature)); });
}

// `[n, V]` f32 by a head that is not in blocks.
char *tidegate_logits(Tensor **out, const Tensor *hidden, const Tensor *w) {
  return guarded([&] { *out = new Tensor(logits_in_float(*hidden, *w, std::nullopt)); });
}

// Enters the keys and values of `slots.size(0)` rows into the cache and attends: `[rows of x, heads * d]`, on the CPU.
char *tidegate_attend(Tensor **out, const Tensor *x, const Tensor *q_norm, const Tensor *k_norm, const Tensor *cos, const Tensor *sin,
                      const Tensor *keys, const Tensor *values, const Tensor *slots, const Tensor *positions, int64_t heads, double eps) {
  return guarded([&] {
    auto kv = keys->size(1), d = keys->size(3);
    TORCH_CHECK(d <= WIDEST_HEAD, "heads of ", d, " are wider than ", WIDEST_HEAD);
    TORCH_CHECK(x->is_contiguous() && keys->is_contiguous() && values->is_contiguous(), "tensors with gaps");
    auto rows = slots->size(0);
    auto y = at::empty({x->size(0), heads * d}, x->options());
    if (rows < x->size(0)) y.narrow(0, rows, x->size(0) - rows).zero_();
    Heads h{heads, kv, d, static_cast<float>(eps)};
    both(*x, [&](auto zero) {
      using T = decltype(zero);
      attend_all<T>(*x, data<T>(given(q_norm)), data<T>(given(k_norm)), *cos, *sin, *keys, *values, *slots, *positions, h, y);
    });
    *out = new Tensor(y);
  });
}

// Chooses an id a row of logits `[rows, V]` by the uniform draws; the likeliest where the temperature is 0.
char *tidegate_choose(const Tensor *logits, const double *draws, double temperature, int64_t *ids, float *logps) {
  return guarded([&] {
    auto rows = logits->size(0), v = logits->size(1);
    auto inverse = temperature == 0 ? 1.0 : 1.0 / temperature;
    if (!on_cpu(*logits)) {
      auto logp = at::log_softmax(*logits * inverse, -1);
      // Does not wait for what is under way there: memory that is not pinned is staged before the copy returns.
      auto us = at::from_blob(const_cast<double *>(draws), {rows, 1}, at::kDouble).to(logits->device(), at::kDouble, true);
      auto chosen = temperature == 0 ? logp.argmax(-1, true)
                                     : at::searchsorted(logp.to(at::kDouble).exp().cumsum(-1), us, false, true).clamp_max(v - 1);
      auto said = at::cat({chosen.to(at::kDouble), logp.gather(1, chosen).to(at::kDouble)}, 1).cpu();
      for (int64_t row = 0; row < rows; row++) {
        ids[row] = static_cast<int64_t>(data<double>(said)[2 * row]);
        logps[row] = static_cast<float>(data<double>(said)[2 * row + 1]);
      }
      return;
    }
    auto all = logits->contiguous();
    at::parallel_for(0, rows, grain(16 * v), [&](int64_t from, int64_t to) {
      for (int64_t row = from; row < to; row++) {
        auto l = data<float>(all) + row * v;
        auto norm = log_normaliser(l, v, static_cast<float>(inverse));
        ids[row] = temperature == 0 ? likeliest(l, v) : draw_from(l, v, static_cast<float>(inverse), norm, draws[row]);
        logps[row] = l[ids[row]] * static_cast<float>(inverse) - norm.most - norm.log_sum;
      }
    });
  });
}

void tidegate_plain(bool on) { without_kernels = on; }

void tidegate_free(char *message) { free(message); }
}
