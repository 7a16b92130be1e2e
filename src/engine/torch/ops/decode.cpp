// Attention of a decode step over the cache.
#include "common.h"

#include <vector>

using namespace tidegate;

namespace {

// ---- loops over rows

// One token's keys and values into the cache [slots, kv, length, d], and its queries, rotated and scaled, to `q` [heads, d].
template <class T>
INLINE void enter_row(const T *x, const T *q_norm, const T *k_norm, const float *cos, const float *sin, T *keys, T *values, float *q,
                      Heads h, int64_t length, int64_t slot, int64_t position) {
  int64_t d = h.d;
  const float *c = cos + position * d, *s = sin + position * d;
  float scale = 1.0f / std::sqrt(static_cast<float>(d));
  for (int64_t i = 0; i < h.heads; i++) {
    float *to = q + i * d;
    ready_head(x + i * d, q_norm, to, c, s, d, h.eps);
    for (int64_t e = 0; e < d; e++) to[e] *= scale;
  }
  for (int64_t i = 0; i < h.kv; i++) {
    int64_t place = ((slot * h.kv + i) * length + position) * d;
    ready_head(x + (h.heads + i) * d, k_norm, keys + place, c, s, d, h.eps);
    std::memcpy(values + place, x + (h.heads + h.kv + i) * d, sizeof(T) * d);
  }
}

template <class T>
INLINE void enter_rows_(const T *x, const T *q_norm, const T *k_norm, const float *cos, const float *sin, T *keys, T *values, float *q,
                        Heads h, int64_t length, const int64_t *slots, const int64_t *positions, int64_t from, int64_t to) {
  for (int64_t row = from; row < to; row++)
    enter_row(x + row * h.width(), q_norm, k_norm, cos, sin, keys, values, q + row * h.heads * h.d, h, length, slots[row],
              positions[row]);
}

// Asks for a row's lines of memory before they are wanted: keys and values of all sequences are more than any cache holds.
template <int D, class T> INLINE void ask_for(const T *row) {
  for (int64_t at = 0; at < static_cast<int64_t>(D * sizeof(T)); at += 64) __builtin_prefetch(reinterpret_cast<const char *>(row) + at);
}

// Products of Q queries, D apart, with keys [from, to), D apart; a query's scores are `seen` apart from the next one's.
// `later` are rows that are wanted next.
template <int D, int Q, class T>
INLINE void scores_of(const float *queries, const T *keys, const T *later, float *scores, int64_t seen, int64_t from, int64_t to) {
  int64_t j = from;
  // Four at a time: their loads and sums do not wait for each other.
  for (; j + 4 <= to; j += 4) {
    const T *key = keys + j * D;
    for (int i = 0; i < 4; i++) ask_for<D>(later + (j + i) * D);
    v16 s[Q][4] = {};
    for (int e = 0; e < D; e += 16)
      for (int i = 0; i < 4; i++) {
        v16 k = load(key + i * D + e);
        for (int q = 0; q < Q; q++) s[q][i] += load(queries + q * D + e) * k;
      }
    for (int q = 0; q < Q; q++) sums_of(s[q], scores + q * seen + j);
  }
  for (; j < to; j++) {
    for (int q = 0; q < Q; q++) {
      v16 s = {};
      for (int e = 0; e < D; e += 16) s += load(queries + q * D + e) * load(keys + j * D + e);
      scores[q * seen + j] = sum_of(s);
    }
  }
}

// For each of Q queries the sum of n values, each times its weight, over its total; to y, D apart.
template <int D, int Q, class T>
INLINE void means_of(const float *weights, int64_t seen, const T *values, const T *later, int64_t n, const float *totals, T *y) {
  // So many sums at once as do not wait for each other and fit into the registers.
  constexpr int AT_ONCE = Q * D <= 32 ? 8 : Q * D <= 64 ? 4 : Q * D <= 128 ? 2 : 1;
  v16 acc[AT_ONCE][Q][D / 16] = {};
  int64_t j = 0;
  for (; j + AT_ONCE <= n; j += AT_ONCE)
    for (int i = 0; i < AT_ONCE; i++) {
      ask_for<D>(later + (j + i) * D);
      for (int e = 0; e < D / 16; e++) {
        v16 value = load(values + (j + i) * D + 16 * e);
        for (int q = 0; q < Q; q++) acc[i][q][e] += weights[q * seen + j + i] * value;
      }
    }
  for (; j < n; j++)
    for (int e = 0; e < D / 16; e++)
      for (int q = 0; q < Q; q++) acc[0][q][e] += weights[q * seen + j] * load(values + j * D + 16 * e);
  for (int q = 0; q < Q; q++)
    for (int e = 0; e < D / 16; e++) {
      v16 sum = acc[0][q][e];
      for (int i = 1; i < AT_ONCE; i++) sum += acc[i][q][e];
      store(y + q * D + 16 * e, sum / totals[q]);
    }
}

// The same for heads of any width.
template <class T> INLINE void scores_of_any(const float *query, const T *keys, float *scores, int64_t d, int64_t from, int64_t to) {
  for (int64_t j = from; j < to; j++) {
    float dot = 0;
    for (int64_t e = 0; e < d; e++) dot += query[e] * get(keys[j * d + e]);
    scores[j] = dot;
  }
}
template <class T> INLINE void mean_of_any(const float *weights, const T *values, int64_t d, int64_t n, float total, T *y) {
  float acc[WIDEST_HEAD] = {};
  for (int64_t j = 0; j < n; j++)
    for (int64_t e = 0; e < d; e++) acc[e] += weights[j] * get(values[j * d + e]);
  for (int64_t e = 0; e < d; e++) put(y[e], acc[e] / total);
}

// Scores to weights, e^(score - the largest); their sum.
INLINE float weigh(float *scores, int64_t n) {
  float most = scores[0], total = 0;
  for (int64_t j = 1; j < n; j++) most = scores[j] > most ? scores[j] : most;
  for (int64_t j = 0; j < n; j++) {
    scores[j] = exp_(scores[j] - most);
    total += scores[j];
  }
  return total;
}

// Keys that are read for all queries of a piece before the next ones: about what the first cache holds.
constexpr int64_t KEYS_AT_ONCE = 128;

// Queries that a loop takes at once: of three all sums of a head of 64 stay in the registers.
constexpr int64_t QUERIES_AT_ONCE = 3;

// f(first query, how many, a constant): all of them, some at a time.
template <class F> INLINE void in_few(int64_t queries, F f) {
  int64_t i = 0;
  // Of four, two and two.
  for (; queries - i >= QUERIES_AT_ONCE && queries - i != 4; i += 3) f(i, std::integral_constant<int, 3>());
  for (; queries - i >= 2; i += 2) f(i, std::integral_constant<int, 2>());
  for (; i < queries; i++) f(i, std::integral_constant<int, 1>());
}

// `tokens` consecutive tokens of one sequence, the first at `position`, and the queries that share one key head: each attends to
// what is in the cache up to its own position. `q` and `y` are its first query's, a token `stride` apart; `scores` has room for
// tokens * queries rows of position + tokens. `next` are the keys that are wanted after these. D is the heads' width, or 0 for any.
template <int D, class T>
INLINE void attend_wide(const float *q, const T *keys, const T *values, const T *next, T *y, float *scores, int64_t queries,
                        int64_t tokens, int64_t position, int64_t stride, int64_t d) {
  int64_t seen = position + tokens;
  for (int64_t from = 0; from < seen; from += KEYS_AT_ONCE) {
    for (int64_t token = 0; token < tokens; token++) {
      int64_t n = position + token + 1, to = from + KEYS_AT_ONCE < n ? from + KEYS_AT_ONCE : n;
      in_few(queries, [&](int64_t i, auto few) __attribute__((always_inline)) {
        const float *query = q + token * stride + i * d;
        float *row = scores + (token * queries + i) * seen;
        if constexpr (D > 0) {
          scores_of<D, few()>(query, keys, values, row, seen, from, to);
        } else {
          for (int one = 0; one < few(); one++) scores_of_any(query + one * d, keys, row + one * seen, d, from, to);
        }
      });
    }
  }
  for (int64_t token = 0; token < tokens; token++) {
    int64_t n = position + token + 1;
    in_few(queries, [&](int64_t i, auto few) __attribute__((always_inline)) {
      float *row = scores + (token * queries + i) * seen;
      float totals[QUERIES_AT_ONCE];
      for (int one = 0; one < few(); one++) totals[one] = weigh(row + one * seen, n);
      T *to = y + token * stride + i * d;
      if constexpr (D > 0) {
        means_of<D, few()>(row, seen, values, next, n, totals, to);
      } else {
        for (int one = 0; one < few(); one++) mean_of_any(row + one * seen, values, d, n, totals[one], to + one * d);
      }
    });
  }
}

template <class T>
INLINE void attend_(const float *q, const T *keys, const T *values, const T *next, T *y, float *scores, int64_t queries, int64_t tokens,
                    int64_t position, int64_t stride, int64_t d) {
  switch (d) {
  case 32: return attend_wide<32>(q, keys, values, next, y, scores, queries, tokens, position, stride, d);
  case 64: return attend_wide<64>(q, keys, values, next, y, scores, queries, tokens, position, stride, d);
  case 128: return attend_wide<128>(q, keys, values, next, y, scores, queries, tokens, position, stride, d);
  default: return attend_wide<0>(q, keys, values, next, y, scores, queries, tokens, position, stride, d);
  }
}

#define ARGS(T)                                                                                                                         \
  (const T *x, const T *q_norm, const T *k_norm, const float *cos, const float *sin, T *keys, T *values, float *q, Heads h, int64_t length, \
   const int64_t *slots, const int64_t *positions, int64_t from, int64_t to)
BOTH(enter_rows, ARGS(float), ARGS(BFloat16), (x, q_norm, k_norm, cos, sin, keys, values, q, h, length, slots, positions, from, to))
#undef ARGS
#define ARGS(T)                                                                                                                       \
  (const float *q, const T *keys, const T *values, const T *next, T *y, float *scores, int64_t queries, int64_t tokens, int64_t position,  \
   int64_t stride, int64_t d)
BOTH(attend, ARGS(float), ARGS(BFloat16), (q, keys, values, next, y, scores, queries, tokens, position, stride, d))
#undef ARGS

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
  auto place_of = [&](int64_t item) {
    item = std::min(item, items - 1);
    return (slot[all[item / h.kv].row] * h.kv + item % h.kv) * length * h.d;
  };
  auto threads = cost < 32768 ? 1 : std::min<int64_t>(at::get_num_threads(), items);
  at::parallel_for(0, threads, 1, [&](int64_t from, int64_t to) {
    static thread_local std::vector<float> scores;
    for (int64_t thread = from; thread < to; thread++) {
      for (int64_t item = thread; item < items; item += threads) {
        auto run = all[item / h.kv];
        auto head = item % h.kv, at = position[run.row];
        scores.resize(std::max<size_t>(scores.size(), run.tokens * shared * (at + run.tokens)));
        auto place = place_of(item);
        auto offset = run.row * width + head * shared * h.d;
        attend(data<float>(q) + offset, data<T>(keys) + place, data<T>(values) + place, data<T>(keys) + place_of(item + threads),
               y.data_ptr<T>() + offset, scores.data(), shared, run.tokens, at, width, h.d);
      }
    }
  });
}

} // namespace

extern "C" {

// Enters the keys and values of `slots.size(0)` rows into the cache and attends: `[rows of x, heads * d]`, on the CPU.
char *tidegate_attend(Tensor **out, const Attention *a, const Tensor *keys, const Tensor *values, const Tensor *slots,
                      const Tensor *positions) {
  return guarded([&] {
    const auto &x = *a->x;
    auto q_norm = given(a->q_norm), k_norm = given(a->k_norm);
    check_heads(x, q_norm, k_norm, *a->cos, *a->sin, a->heads, a->kv, a->d);
    TORCH_CHECK(x.is_contiguous() && keys->is_contiguous() && values->is_contiguous(), "tensors with gaps");
    auto rows = slots->size(0);
    auto y = at::empty({x.size(0), a->heads * a->d}, x.options());
    if (rows < x.size(0)) y.narrow(0, rows, x.size(0) - rows).zero_();
    Heads h{a->heads, a->kv, a->d, static_cast<float>(a->eps)};
    both(x, [&](auto zero) {
      using T = decltype(zero);
      attend_all<T>(x, data<T>(q_norm), data<T>(k_norm), *a->cos, *a->sin, *keys, *values, *slots, *positions, h, y);
    });
    *out = new Tensor(y);
  });
}
}
