// The parts of a layer but attention.
#include "products.h"

#include <atomic>

using namespace tidegate;

namespace {

// ---- loops over rows

// x is f32 where it is the sum of all layers before, whatever the weights' type.
template <class X, class T> INLINE void norm_rows_(const X *x, const T *w, T *y, int64_t rows, int64_t d, float eps) {
  for (int64_t row = 0; row < rows; row++, x += d, y += d) {
    float r = inverse_rms(x, d, eps);
    for (int64_t i = 0; i < d; i++) put(y[i], get(x[i]) * r * get(w[i]));
  }
}

template <class X, class T>
INLINE void norm_back_rows_(const X *x, const T *w, const T *dy, X *dx, float *dw, int64_t rows, int64_t d, float eps) {
  for (int64_t row = 0; row < rows; row++, x += d, dy += d, dx += d) norm_back_row(x, w, dy, dx, dw, d, eps);
}

#define ARGS(T) (const T *x, const T *w, T *y, int64_t rows, int64_t d, float eps)
BOTH(norm_rows, ARGS(float), ARGS(BFloat16), (x, w, y, rows, d, eps))
#undef ARGS
CLONES static void norm_rows(const float *x, const BFloat16 *w, BFloat16 *y, int64_t rows, int64_t d, float eps) {
  norm_rows_(x, w, y, rows, d, eps);
}
#define ARGS(T) (const float *x, const T *w, const T *dy, float *dx, float *dw, int64_t rows, int64_t d, float eps)
BOTH(norm_back_rows, ARGS(float), ARGS(BFloat16), (x, w, dy, dx, dw, rows, d, eps))
#undef ARGS

// ---- silu(gate) * up, where a row is gate then up

template <class T> INLINE void swiglu_rows_(const T *x, T *y, int64_t rows, int64_t f) {
  for (int64_t row = 0; row < rows; row++, x += 2 * f, y += f) {
    for (int64_t i = 0; i < f; i++) {
      float gate = get(x[i]);
      put(y[i], gate / (1.0f + exp_(-gate)) * get(x[f + i]));
    }
  }
}

template <class T> INLINE void swiglu_back_rows_(const T *x, const T *dy, T *dx, int64_t rows, int64_t f) {
  // What a piece gives is held apart from what it is read from: only then does the compiler take them for vectors.
  constexpr int64_t PIECE = 64;
  float dgates[PIECE], dups[PIECE];
  for (int64_t row = 0; row < rows; row++, x += 2 * f, dy += f, dx += 2 * f) {
    for (int64_t from = 0; from < f; from += PIECE) {
      int64_t n = f - from < PIECE ? f - from : PIECE;
      for (int64_t i = 0; i < n; i++) {
        float gate = get(x[from + i]), up = get(x[f + from + i]), g = get(dy[from + i]);
        float s = 1.0f / (1.0f + exp_(-gate));
        dgates[i] = g * up * s * (1.0f + gate * (1.0f - s));
        dups[i] = g * gate * s;
      }
      for (int64_t i = 0; i < n; i++) put(dx[from + i], dgates[i]);
      for (int64_t i = 0; i < n; i++) put(dx[f + from + i], dups[i]);
    }
  }
}

#define ARGS(T) (const T *x, T *y, int64_t rows, int64_t f)
BOTH(swiglu_rows, ARGS(float), ARGS(BFloat16), (x, y, rows, f))
#undef ARGS
#define ARGS(T) (const T *x, const T *dy, T *dx, int64_t rows, int64_t f)
BOTH(swiglu_back_rows, ARGS(float), ARGS(BFloat16), (x, dy, dx, rows, f))
#undef ARGS

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
  TORCH_CHECK(x.is_contiguous() && w.is_contiguous() && w.numel() == d, "rows of ", d, " under a norm of ", w.numel());
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
  TORCH_CHECK(x.is_contiguous() && x.dim() == 2 && x.size(-1) % 2 == 0, "gates and ups of shape ", x.sizes());
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

} // namespace

extern "C" {

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

void tidegate_plain(bool on) { without_kernels = on; }

void tidegate_without_small_products(bool on) { without_small_products = on; }

// Takes the number of threads that libtorch has for a new thread, as the first loop of this folder on it would: headers have a mark of
// their own for that in each program, and one that is met later would undo what was set meanwhile.
void tidegate_begin_thread() { at::internal::lazy_init_num_threads(); }

// For tests: how many threads take part in a loop of this folder.
int64_t tidegate_threads() {
  std::atomic<int64_t> threads{0};
  at::parallel_for(0, at::get_num_threads(), 1, [&](int64_t, int64_t) { threads++; });
  return threads;
}

void tidegate_free(char *message) {
  if (message != NO_MEMORY) free(message);
}
}
