// Attention over trees, for training.
#include "products.h"
#include "tiles.h"

using namespace tidegate;

namespace {

// x cos + roll(x) sin over the last dimension; the transpose of it where the sines are rolled and the halves' signs exchanged.
Tensor rotated(const Tensor &x, const Tensor &cos, const Tensor &sin) {
  auto f = x.to(at::kFloat);
  return (f * cos + f.roll({x.size(-1) / 2}, {-1}) * sin).to(x.scalar_type());
}

// Queries, keys and values as libtorch's own attention takes them: off the CPU.
struct Split : Function<Split> {
  static variable_list forward(AutogradContext *ctx, Tensor x, optional<Tensor> q_norm, optional<Tensor> k_norm, optional<Tensor> dq_norm,
                               optional<Tensor> dk_norm, Tensor cos, Tensor sin, int64_t b, int64_t t, int64_t heads, int64_t kv, int64_t d,
                               double eps) {
    ctx->save_for_backward({x, q_norm.value_or(Tensor()), k_norm.value_or(Tensor()), cos, sin});
    ctx->saved_data["dq_norm"] = dq_norm;
    ctx->saved_data["dk_norm"] = dk_norm;
    for (auto [name, number] : {std::pair("b", b), {"t", t}, {"heads", heads}, {"kv", kv}, {"d", d}}) ctx->saved_data[name] = number;
    ctx->saved_data["eps"] = eps;
    auto all = x.view({b, t, heads + 2 * kv, d});
    auto part = [&](int64_t from, int64_t n, const optional<Tensor> &w) {
      auto one = all.narrow(2, from, n);
      if (w) one = at::rms_norm(one.to(at::kFloat), {d}, w->to(at::kFloat), eps).to(x.scalar_type());
      return rotated(one, cos.narrow(0, 0, t).unsqueeze(1), sin.narrow(0, 0, t).unsqueeze(1)).transpose(1, 2);
    };
    return {part(0, heads, q_norm), part(heads, kv, k_norm), all.narrow(2, heads + kv, kv).transpose(1, 2).contiguous()};
  }
  static variable_list backward(AutogradContext *ctx, variable_list grads) {
    auto saved = ctx->get_saved_variables();
    auto x = saved[0], cos = saved[3], sin = saved[4];
    auto number = [&](const char *name) { return ctx->saved_data[name].toInt(); };
    auto b = number("b"), t = number("t"), heads = number("heads"), kv = number("kv"), d = number("d");
    auto eps = ctx->saved_data["eps"].toDouble();
    auto dx = at::empty_like(x);
    auto c = cos.narrow(0, 0, t).unsqueeze(1), s = sin.narrow(0, 0, t).unsqueeze(1).roll({d / 2}, {-1});
    auto in = x.view({b, t, heads + 2 * kv, d}), out = dx.view({b, t, heads + 2 * kv, d});
    auto part = [&](const Tensor &g, int64_t from, int64_t n, const Tensor &w, const char *name) {
      auto turned = rotated(g.transpose(1, 2).to(at::kFloat), c, s);
      if (w.defined()) {
        auto f = in.narrow(2, from, n).to(at::kFloat);
        auto r = (f.square().mean(-1, true) + eps).rsqrt();
        if (!ctx->saved_data[name].isNone()) ctx->saved_data[name].toTensor().add_((turned * f * r).reshape({-1, d}).sum(0));
        auto gw = turned * w;
        turned = r * (gw - f * (gw * f).mean(-1, true) * r * r);
      }
      out.narrow(2, from, n).copy_(turned);
    };
    part(grads[0], 0, heads, saved[1], "dq_norm");
    part(grads[1], heads, kv, saved[2], "dk_norm");
    out.narrow(2, heads + kv, kv).copy_(grads[2].transpose(1, 2));
    variable_list all(13);
    all[0] = dx;
    return all;
  }
};

// ---- trees on the CPU

// A tree, and what attention reads of it beside its rows.
struct OfTree {
  Tree tree;
  Heads h;
  const float *cos, *sin;
  float scale() const { return 1.0f / std::sqrt(static_cast<float>(h.d)); }
};

// Room for a thread, which keeps it for the next layer.
template <class E> E *room(std::vector<E> &all, int64_t n) {
  if (all.size() < static_cast<size_t>(n)) all.resize(n);
  return all.data();
}

// f(the type that rows are stored in, the one that products take).
template <class F> void both_and_factors(const Tensor &x, F f) {
  both(x, [&](auto zero) {
    using T = decltype(zero);
    if constexpr (std::is_same_v<T, BFloat16>) {
      if (small_product_here<BFloat16>()) return f(zero, BFloat16());
    }
    f(zero, float());
  });
}

// One tree, and the queries of its key head `head`: x [t, width] to y [t, heads * d], and to logs, where one head's numbers begin `apart`
// behind those of the head before, the logarithm of what each query's weights add up to. Tile by tile, as FlashAttention does (Dao et al. 2022, arXiv 2205.14135), but with a
// whole row of scores at once, 64 floats a key that a tile sees and as many weights, which a thread keeps for the next layer.
template <class T, class E>
void causal_head(const T *x, const T *q_norm, const T *k_norm, const OfTree &s, int64_t head, T *y, float *logs, int64_t apart,
                 const SmallProduct<E> &small_product) {
  auto [heads, kv, d, eps] = s.h;
  auto width = s.h.width(), shared = heads / kv, tiles = s.tree.tiles(), size = TILE * d;
  static thread_local std::vector<E> factors;
  static thread_local std::vector<float> sums;
  auto keys = room(factors, (2 * tiles + 1) * size + tiles * TILE * TILE), values = keys + tiles * size, rows = values + tiles * size,
       weights = rows + size;
  auto scores = room(sums, tiles * TILE * TILE + size + 2 * TILE), acc = scores + tiles * TILE * TILE, totals = acc + size,
       of_tile = totals + TILE;
  for (int64_t tile = 0; tile < tiles; tile++) {
    ready_rows(x + (heads + head) * d, k_norm, s.cos, s.sin, s.tree, rows, width, tile, d, eps);
    right_transposed(rows, keys + tile * size, d);
    copied_rows(x + (heads + kv + head) * d, s.tree, rows, width, tile, d);
    right(rows, values + tile * size, d);
  }
  for (int64_t i = head * shared; i < (head + 1) * shared; i++) {
    for (int64_t tile = 0; tile < tiles; tile++) {
      auto n = s.tree.rows_of(tile);
      auto seen = key_tiles(s.tree, tile);
      ready_rows(x + i * d, q_norm, s.cos, s.sin, s.tree, rows, width, tile, d, eps);
      for (int64_t k = 0; k < seen.count; k++)
        small_product(TILE, TILE, d, d, TILE, TILE, false, rows, keys + seen[k] * size, scores + k * TILE * TILE);
      weigh_tiles(scores, weights, totals, of_tile, s.tree, tile, seen, s.scale());
      for (int64_t k = 0; k < seen.count; k++)
        small_product(TILE, d, TILE, TILE, d, d, k > 0, weights + k * TILE * TILE, values + seen[k] * size, acc);
      over_totals(acc, totals, y + tile * TILE * heads * d + i * d, n, heads * d, d);
      std::copy_n(of_tile, n, logs + i * apart + tile * TILE);
    }
  }
}

// Its gradient: dx [t, width], and what it adds to those of the norms, [2, d].
template <class T, class E>
void causal_head_back(const T *x, const T *q_norm, const T *k_norm, const OfTree &s, int64_t head, const T *y, const float *logs,
                      int64_t apart, const T *dy, T *dx, float *dnorms, const SmallProduct<E> &small_product) {
  auto [heads, kv, d, eps] = s.h;
  auto width = s.h.width(), shared = heads / kv, tiles = s.tree.tiles(), size = TILE * d;
  static thread_local std::vector<E> factors;
  static thread_local std::vector<float> sums;
  auto keys = room(factors, (3 * tiles + 6) * size + 3 * TILE * TILE), keys_t = keys + tiles * size, values = keys_t + tiles * size,
       rows = values + tiles * size, dy_rows = rows + size, queries = dy_rows + size, queries_t = queries + size, dys = queries_t + size,
       dys_t = dys + size, p = dys_t + size, ds = p + TILE * TILE, ds_right = ds + TILE * TILE;
  if constexpr (std::is_same_v<E, float>) ds_right = ds;
  auto dkeys = room(sums, (2 * tiles + 2) * size + 2 * TILE * TILE + 2 * TILE), dvalues = dkeys + tiles * size, dq_t = dvalues + tiles * size,
       dq = dq_t + size, scores = dq + size, dp = scores + TILE * TILE, of_tile = dp + TILE * TILE, sums_dy = of_tile + TILE;
  std::fill_n(dkeys, 2 * tiles * size, 0.0f);
  for (int64_t tile = 0; tile < tiles; tile++) {
    ready_rows(x + (heads + head) * d, k_norm, s.cos, s.sin, s.tree, keys + tile * size, width, tile, d, eps);
    transposed(keys + tile * size, keys_t + tile * size, d);
    copied_rows(x + (heads + kv + head) * d, s.tree, values + tile * size, width, tile, d);
  }
  for (int64_t i = head * shared; i < (head + 1) * shared; i++) {
    for (int64_t tile = 0; tile < tiles; tile++) {
      auto n = s.tree.rows_of(tile);
      auto seen = key_tiles(s.tree, tile);
      auto of_queries = queries_of(s.tree, tile);
      ready_rows(x + i * d, q_norm, s.cos, s.sin, s.tree, rows, width, tile, d, eps);
      right(rows, queries, d);
      right_transposed(rows, queries_t, d);
      copied_rows(dy + i * d, s.tree, dy_rows, heads * d, tile, d);
      right(dy_rows, dys, d);
      right_transposed(dy_rows, dys_t, d);
      auto place = tile * TILE * heads * d + i * d;
      deltas(dy + place, y + place, sums_dy, n, heads * d, d);
      std::fill_n(of_tile, TILE, 0.0f);
      std::copy_n(logs + i * apart + tile * TILE, n, of_tile);
      for (int64_t nth = 0; nth < seen.count; nth++) {
        auto k = seen[nth];
        // All transposed, keys down and queries across, so that no product needs a tile turned.
        small_product(TILE, TILE, d, d, TILE, TILE, false, keys + k * size, queries_t, scores);
        small_product(TILE, TILE, d, d, TILE, TILE, false, values + k * size, dys_t, dp);
        auto masked = all_seen(s.tree, tile, k) ? nullptr : &of_queries;
        weights_back(scores, dp, of_tile, sums_dy, p, ds, ds_right, masked, k * TILE, s.scale());
        small_product(TILE, d, TILE, TILE, d, d, true, p, dys, dvalues + k * size);
        small_product(TILE, d, TILE, TILE, d, d, true, ds, queries, dkeys + k * size);
        small_product(d, TILE, TILE, TILE, TILE, TILE, nth > 0, keys_t + k * size, ds_right, dq_t);
      }
      for (int64_t row = 0; row < n; row++)
        for (int64_t e = 0; e < d; e++) dq[row * d + e] = dq_t[e * TILE + row];
      ready_rows_back(x + i * d, q_norm, s.cos, s.sin, s.tree, dq, dx + i * d, dnorms, width, tile, d, eps);
    }
  }
  for (int64_t tile = 0; tile < tiles; tile++) {
    auto n = s.tree.rows_of(tile);
    ready_rows_back(x + (heads + head) * d, k_norm, s.cos, s.sin, s.tree, dkeys + tile * size, dx + (heads + head) * d, dnorms + d, width,
                    tile, d, eps);
    for (int64_t row = 0; row < n; row++)
      for (int64_t e = 0; e < d; e++) put(dx[(tile * TILE + row) * width + (heads + kv + head) * d + e], dvalues[tile * size + row * d + e]);
  }
}

// f(first, last, item) for a range of the key heads of all trees: item(i) is the head, the tree and the tree's first row. Head after head, so
// that each range has large and small trees.
template <class F> void each_head(const Tensor &bounds, const Tensor &seen, int64_t kv, const F &f) {
  auto trees = bounds.size(0) - 1, all = seen.size(1);
  auto from = data<int64_t>(bounds);
  auto position = data<int32_t>(seen), trunk = position + all, start = trunk + all;
  at::parallel_for(0, trees * kv, 1, [&](int64_t first, int64_t last) {
    f(first, last, [&](int64_t item) {
      auto row = from[item % trees];
      return std::tuple(item / trees, Tree{from[item % trees + 1] - row, position + row, trunk + row, start + row}, row);
    });
  });
}

// Of projections [n, (heads + 2 kv) * d], what each row attends to, [n, heads * d]. Rotated queries and keys are made again on the way
// back: nothing of them is kept. Trees are [bounds[i], bounds[i + 1]) each; `seen` [3, n] is position, trunk and start of their rows.
struct Causal : Function<Causal> {
  static Tensor forward(AutogradContext *ctx, Tensor x, optional<Tensor> q_norm, optional<Tensor> k_norm, optional<Tensor> dq_norm,
                        optional<Tensor> dk_norm, Tensor cos, Tensor sin, Tensor bounds, Tensor seen, int64_t heads, int64_t kv, int64_t d,
                        double eps) {
    check_heads(x, q_norm, k_norm, cos, sin, heads, kv, d);
    auto n = x.size(0);
    TORCH_CHECK(x.is_contiguous() && x.dim() == 2 && x.device().is_cpu(), "projections of shape ", x.sizes());
    TORCH_CHECK(bounds.is_contiguous() && seen.is_contiguous() && seen.size(0) == 3 && seen.size(1) == n, n, " rows of trees of ", seen.sizes());
    auto y = at::empty({n, heads * d}, x.options()), logs = at::empty({heads, n}, at::kFloat);
    Heads h{heads, kv, d, static_cast<float>(eps)};
    both_and_factors(x, [&](auto zero, auto factor) {
      using T = decltype(zero);
      using E = decltype(factor);
      SmallProduct<E> small_product;
      each_head(bounds, seen, kv, [&](int64_t first, int64_t last, auto item) {
        for (int64_t i = first; i < last; i++) {
          auto [head, tree, row] = item(i);
          causal_head<T, E>(data<T>(x) + row * h.width(), data<T>(q_norm), data<T>(k_norm), {tree, h, data<float>(cos), data<float>(sin)},
                            head, y.data_ptr<T>() + row * heads * d, logs.data_ptr<float>() + row, n, small_product);
        }
        small_product.release();
      });
    });
    ctx->save_for_backward({x, q_norm.value_or(Tensor()), k_norm.value_or(Tensor()), cos, sin, y, logs, bounds, seen});
    ctx->saved_data["dq_norm"] = dq_norm;
    ctx->saved_data["dk_norm"] = dk_norm;
    for (auto [name, number] : {std::pair("heads", heads), {"kv", kv}, {"d", d}}) ctx->saved_data[name] = number;
    ctx->saved_data["eps"] = eps;
    return y;
  }
  static variable_list backward(AutogradContext *ctx, variable_list grads) {
    auto saved = ctx->get_saved_variables();
    auto x = saved[0], cos = saved[3], sin = saved[4], y = saved[5], logs = saved[6], dy = grads[0].contiguous();
    auto q_norm = given(saved[1]), k_norm = given(saved[2]);
    auto number = [&](const char *name) { return ctx->saved_data[name].toInt(); };
    auto heads = number("heads"), kv = number("kv"), d = number("d"), n = x.size(0);
    auto dx = at::empty_like(x), sums = partial_sums(2 * d);
    Heads h{heads, kv, d, static_cast<float>(ctx->saved_data["eps"].toDouble())};
    both_and_factors(x, [&](auto zero, auto factor) {
      using T = decltype(zero);
      using E = decltype(factor);
      SmallProduct<E> small_product;
      each_head(saved[7], saved[8], kv, [&](int64_t first, int64_t last, auto item) {
        for (int64_t i = first; i < last; i++) {
          auto [head, tree, row] = item(i);
          auto in = row * h.width(), out = row * heads * d;
          causal_head_back<T, E>(data<T>(x) + in, data<T>(q_norm), data<T>(k_norm), {tree, h, data<float>(cos), data<float>(sin)}, head,
                                 data<T>(y) + out, data<float>(logs) + row, n, data<T>(dy) + out, dx.data_ptr<T>() + in,
                                 sums.data_ptr<float>() + at::get_thread_num() * 2 * d, small_product);
        }
        small_product.release();
      });
    });
    auto add = [&](const char *name, int64_t from) {
      if (!ctx->saved_data[name].isNone()) ctx->saved_data[name].toTensor().add_(sums.sum(0).narrow(0, from, d));
    };
    add("dq_norm", 0);
    add("dk_norm", d);
    variable_list all(13);
    all[0] = dx;
    return all;
  }
};

} // namespace

extern "C" {

// Queries, keys and values of `[b * t]` rows, each `[b, heads, t, d]`.
char *tidegate_split(Tensor **q, Tensor **k, Tensor **v, const Attention *a, int64_t b, int64_t t) {
  return guarded([&] {
    auto all = Split::apply(*a->x, given(a->q_norm), given(a->k_norm), given(a->dq_norm), given(a->dk_norm), *a->cos, *a->sin, b, t,
                            a->heads, a->kv, a->d, a->eps);
    *q = new Tensor(all[0]), *k = new Tensor(all[1]), *v = new Tensor(all[2]);
  });
}

// What each row of some trees attends to, `[n, heads * d]`, on the CPU.
char *tidegate_causal(Tensor **out, const Attention *a, const Tensor *bounds, const Tensor *seen) {
  return guarded([&] {
    *out = new Tensor(Causal::apply(*a->x, given(a->q_norm), given(a->k_norm), given(a->dq_norm), given(a->dk_norm), *a->cos, *a->sin,
                                    *bounds, *seen, a->heads, a->kv, a->d, a->eps));
  });
}
}
