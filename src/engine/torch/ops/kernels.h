// Loops over rows that the operations of ops.cpp are made of. All arithmetic is in f32; T is float or at::BFloat16.
//
// Each row is computed by one thread in a fixed order, so results do not depend on how rows are shared out; the exceptions,
// sums over rows, are taken per thread and added in the threads' order.
#pragma once
#include <c10/util/BFloat16.h>

#include <cmath>
#include <cstdint>
#include <cstring>

// Three versions of a function, of which the processor's is chosen when the program starts.
#if defined(__x86_64__) && defined(__linux__) && !defined(TIDEGATE_NO_CLONES)
#define CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define CLONES
#endif
#define INLINE __attribute__((always_inline)) inline

namespace tidegate {

using at::BFloat16;

INLINE float get(float x) { return x; }
INLINE float get(BFloat16 x) {
  uint32_t bits = static_cast<uint32_t>(x.x) << 16;
  float f;
  std::memcpy(&f, &bits, sizeof f);
  return f;
}

INLINE void put(float &to, float x) { to = x; }
// To the nearest, ties to even; what is not a number stays so.
INLINE void put(BFloat16 &to, float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  to.x = static_cast<uint16_t>(x == x ? rounded : 0x7fc0u);
}

// e^x to about 2 units in the last place (Cephes: range reduction by ln 2, a polynomial of degree 6); below -87 it is the
// smallest normal number, not 0.
INLINE float exp_(float x) {
  x = x < -87.3f ? -87.3f : x;
  x = x > 88.3f ? 88.3f : x;
  float n = __builtin_rintf(x * 1.44269504f);
  // Fused, so that the two parts of ln 2 are not put together again.
  float r = __builtin_fmaf(n, -0.693359375f, x);
  r = __builtin_fmaf(n, 2.12194440e-4f, r);
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  int32_t scale = (static_cast<int32_t>(n) + 127) << 23;
  float two_n;
  std::memcpy(&two_n, &scale, sizeof two_n);
  return p * two_n;
}

// ---- x / rms(x) * weight

template <class T> INLINE float inverse_rms(const T *x, int64_t d, float eps) {
  float sum = 0;
  for (int64_t i = 0; i < d; i++) sum += get(x[i]) * get(x[i]);
  return 1.0f / std::sqrt(sum / static_cast<float>(d) + eps);
}

// x is f32 where it is the sum of all layers before, whatever the weights' type.
template <class X, class T> INLINE void norm_rows_(const X *x, const T *w, T *y, int64_t rows, int64_t d, float eps) {
  for (int64_t row = 0; row < rows; row++, x += d, y += d) {
    float r = inverse_rms(x, d, eps);
    for (int64_t i = 0; i < d; i++) put(y[i], get(x[i]) * r * get(w[i]));
  }
}

// dx of one row, and what it adds to dw.
template <class X, class T, class G, class D>
INLINE void norm_back_row(const X *x, const T *w, const G *dy, D *dx, float *dw, int64_t d, float eps) {
  float r = inverse_rms(x, d, eps), dot = 0;
  for (int64_t i = 0; i < d; i++) dot += get(dy[i]) * get(w[i]) * get(x[i]);
  float c = dot * r * r / static_cast<float>(d);
  for (int64_t i = 0; i < d; i++) {
    float g = get(dy[i]);
    dw[i] += g * get(x[i]) * r;
    put(dx[i], r * (g * get(w[i]) - get(x[i]) * c));
  }
}

template <class X, class T>
INLINE void norm_back_rows_(const X *x, const T *w, const T *dy, X *dx, float *dw, int64_t rows, int64_t d, float eps) {
  for (int64_t row = 0; row < rows; row++, x += d, dy += d, dx += d) norm_back_row(x, w, dy, dx, dw, d, eps);
}

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
  for (int64_t row = 0; row < rows; row++, x += 2 * f, dy += f, dx += 2 * f) {
    for (int64_t i = 0; i < f; i++) {
      float gate = get(x[i]), up = get(x[f + i]), g = get(dy[i]);
      float s = 1.0f / (1.0f + exp_(-gate));
      put(dx[i], g * up * s * (1.0f + gate * (1.0f - s)));
      put(dx[f + i], g * gate * s);
    }
  }
}

// ---- rotary embedding of one head: pairs (i, i + d / 2); the sine of the first half carries the minus sign

template <class A, class B> INLINE void rotate_head(const A *x, B *y, const float *cos, const float *sin, int64_t d) {
  int64_t half = d / 2;
  for (int64_t i = 0; i < half; i++) {
    float a = get(x[i]), b = get(x[i + half]);
    put(y[i], a * cos[i] + b * sin[i]);
    put(y[i + half], b * cos[i + half] + a * sin[i + half]);
  }
}

// The transpose of that: what gradients go through.
template <class A, class B> INLINE void rotate_head_back(const A *dy, B *dx, const float *cos, const float *sin, int64_t d) {
  int64_t half = d / 2;
  for (int64_t i = 0; i < half; i++) {
    float a = get(dy[i]), b = get(dy[i + half]);
    put(dx[i], a * cos[i] + b * sin[i + half]);
    put(dx[i + half], b * cos[i + half] + a * sin[i]);
  }
}

// The widest head that scratch space on the stack is for.
constexpr int64_t WIDEST_HEAD = 1024;

// Rotated (and, where there is a weight, normalised) head.
template <class A, class T, class B>
INLINE void ready_head(const A *x, const T *norm, B *y, const float *cos, const float *sin, int64_t d, float eps) {
  if (norm == nullptr) return rotate_head(x, y, cos, sin, d);
  float normal[WIDEST_HEAD];
  float r = inverse_rms(x, d, eps);
  for (int64_t i = 0; i < d; i++) normal[i] = get(x[i]) * r * get(norm[i]);
  rotate_head(normal, y, cos, sin, d);
}

// How the projections of queries, keys and values lie in a row: `heads` queries, `kv` keys, `kv` values of `d` each.
struct Heads {
  int64_t heads, kv, d;
  float eps;
  INLINE int64_t width() const { return (heads + 2 * kv) * d; }
};

// Tokens [from, to) of `[b, t]`: row by row to q [b, heads, t, d], k and v [b, kv, t, d].
template <class T>
INLINE void split_rows_(const T *x, const T *q_norm, const T *k_norm, const float *cos, const float *sin, T *q, T *k, T *v, Heads h,
                        int64_t t, int64_t from, int64_t to) {
  for (int64_t token = from; token < to; token++) {
    int64_t row = token / t, at = token % t, d = h.d;
    const T *in = x + token * h.width();
    const float *c = cos + at * d, *s = sin + at * d;
    for (int64_t i = 0; i < h.heads; i++) ready_head(in + i * d, q_norm, q + ((row * h.heads + i) * t + at) * d, c, s, d, h.eps);
    for (int64_t i = 0; i < h.kv; i++) {
      ready_head(in + (h.heads + i) * d, k_norm, k + ((row * h.kv + i) * t + at) * d, c, s, d, h.eps);
      std::memcpy(v + ((row * h.kv + i) * t + at) * d, in + (h.heads + h.kv + i) * d, sizeof(T) * d);
    }
  }
}

template <class T>
INLINE void back_head(const T *x, const T *norm, const T *dy, T *dx, float *dnorm, const float *cos, const float *sin, int64_t d,
                      float eps) {
  if (norm == nullptr) return rotate_head_back(dy, dx, cos, sin, d);
  float turned[WIDEST_HEAD], to[WIDEST_HEAD];
  rotate_head_back(dy, turned, cos, sin, d);
  norm_back_row(x, norm, turned, to, dnorm, d, eps);
  for (int64_t i = 0; i < d; i++) put(dx[i], to[i]);
}

// The gradient of split_rows: `dnorm` is [2, d], of the queries' norm and the keys'.
template <class T>
INLINE void split_back_rows_(const T *x, const T *q_norm, const T *k_norm, const float *cos, const float *sin, const T *dq, const T *dk,
                             const T *dv, T *dx, float *dnorm, Heads h, int64_t t, int64_t from, int64_t to) {
  for (int64_t token = from; token < to; token++) {
    int64_t row = token / t, at = token % t, d = h.d;
    const T *in = x + token * h.width();
    T *out = dx + token * h.width();
    const float *c = cos + at * d, *s = sin + at * d;
    for (int64_t i = 0; i < h.heads; i++)
      back_head(in + i * d, q_norm, dq + ((row * h.heads + i) * t + at) * d, out + i * d, dnorm, c, s, d, h.eps);
    for (int64_t i = 0; i < h.kv; i++) {
      int64_t j = h.heads + i;
      back_head(in + j * d, k_norm, dk + ((row * h.kv + i) * t + at) * d, out + j * d, dnorm + d, c, s, d, h.eps);
      std::memcpy(out + (j + h.kv) * d, dv + ((row * h.kv + i) * t + at) * d, sizeof(T) * d);
    }
  }
}

// ---- attention of a step over the cache

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

// Sixteen numbers at once, of whatever vectors the processor has.
typedef float v16 __attribute__((vector_size(64)));
typedef float v8 __attribute__((vector_size(32)));
typedef float v4 __attribute__((vector_size(16)));
typedef uint16_t u16x16 __attribute__((vector_size(32)));
typedef uint32_t u32x16 __attribute__((vector_size(64)));

INLINE v16 load(const float *from) {
  v16 x;
  std::memcpy(&x, from, sizeof x);
  return x;
}
INLINE v16 load(const BFloat16 *from) {
  u16x16 half;
  std::memcpy(&half, from, sizeof half);
  u32x16 bits = __builtin_convertvector(half, u32x16) << 16;
  v16 x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

INLINE float sum_of(v16 x) {
  v8 halves[2];
  std::memcpy(halves, &x, sizeof x);
  v8 eight = halves[0] + halves[1];
  v4 quarters[2];
  std::memcpy(quarters, &eight, sizeof eight);
  v4 four = quarters[0] + quarters[1];
  return (four[0] + four[2]) + (four[1] + four[3]);
}

// Products of a query with keys [from, to), D apart.
template <int D, class T> INLINE void scores_of(const float *query, const T *keys, float *scores, int64_t from, int64_t to) {
  v16 q[D / 16];
  for (int e = 0; e < D / 16; e++) q[e] = load(query + 16 * e);
  int64_t j = from;
  // Four at a time: their loads and sums do not wait for each other.
  for (; j + 4 <= to; j += 4) {
    const T *key = keys + j * D;
    v16 s[4] = {};
    for (int e = 0; e < D / 16; e++)
      for (int i = 0; i < 4; i++) s[i] += q[e] * load(key + i * D + 16 * e);
    for (int i = 0; i < 4; i++) scores[j + i] = sum_of(s[i]);
  }
  for (; j < to; j++) {
    v16 s = {};
    for (int e = 0; e < D / 16; e++) s += q[e] * load(keys + j * D + 16 * e);
    scores[j] = sum_of(s);
  }
}

// The sum of n values, each times its weight, over `total`.
template <int D, class T> INLINE void mean_of(const float *weights, const T *values, int64_t n, float total, T *y) {
  constexpr int AT_ONCE = D <= 64 ? 4 : 2;
  v16 acc[AT_ONCE][D / 16] = {};
  int64_t j = 0;
  for (; j + AT_ONCE <= n; j += AT_ONCE)
    for (int i = 0; i < AT_ONCE; i++)
      for (int e = 0; e < D / 16; e++) acc[i][e] += weights[j + i] * load(values + (j + i) * D + 16 * e);
  for (; j < n; j++)
    for (int e = 0; e < D / 16; e++) acc[0][e] += weights[j] * load(values + j * D + 16 * e);
  for (int e = 0; e < D / 16; e++) {
    v16 sum = acc[0][e];
    for (int i = 1; i < AT_ONCE; i++) sum += acc[i][e];
    for (int i = 0; i < 16; i++) put(y[16 * e + i], sum[i] / total);
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

// `tokens` consecutive tokens of one sequence, the first at `position`, and the queries that share one key head: each attends to
// what is in the cache up to its own position. `q` and `y` are its first query's, a token `stride` apart; `scores` has room for
// tokens * queries rows of position + tokens. D is the heads' width, or 0 for any.
template <int D, class T>
INLINE void attend_wide(const float *q, const T *keys, const T *values, T *y, float *scores, int64_t queries, int64_t tokens,
                        int64_t position, int64_t stride, int64_t d) {
  int64_t seen = position + tokens;
  for (int64_t from = 0; from < seen; from += KEYS_AT_ONCE) {
    for (int64_t token = 0; token < tokens; token++) {
      int64_t n = position + token + 1, to = from + KEYS_AT_ONCE < n ? from + KEYS_AT_ONCE : n;
      for (int64_t i = 0; i < queries; i++) {
        const float *query = q + token * stride + i * d;
        float *row = scores + (token * queries + i) * seen;
        if constexpr (D > 0)
          scores_of<D>(query, keys, row, from, to);
        else
          scores_of_any(query, keys, row, d, from, to);
      }
    }
  }
  for (int64_t token = 0; token < tokens; token++) {
    int64_t n = position + token + 1;
    for (int64_t i = 0; i < queries; i++) {
      float *row = scores + (token * queries + i) * seen;
      float total = weigh(row, n);
      T *to = y + token * stride + i * d;
      if constexpr (D > 0)
        mean_of<D>(row, values, n, total, to);
      else
        mean_of_any(row, values, d, n, total, to);
    }
  }
}

template <class T>
INLINE void attend_(const float *q, const T *keys, const T *values, T *y, float *scores, int64_t queries, int64_t tokens, int64_t position,
                    int64_t stride, int64_t d) {
  switch (d) {
  case 32: return attend_wide<32>(q, keys, values, y, scores, queries, tokens, position, stride, d);
  case 64: return attend_wide<64>(q, keys, values, y, scores, queries, tokens, position, stride, d);
  case 128: return attend_wide<128>(q, keys, values, y, scores, queries, tokens, position, stride, d);
  default: return attend_wide<0>(q, keys, values, y, scores, queries, tokens, position, stride, d);
  }
}

// ---- the head: log-probability of the chosen id and entropy, from logits

// Of one row: the largest logit over the temperature, and log of the sum of exponentials above it.
struct Norm {
  float most, log_sum;
};

CLONES static Norm log_normaliser(const float *logits, int64_t vocabulary, float inverse_temperature) {
  float most = logits[0];
  for (int64_t i = 1; i < vocabulary; i++) most = logits[i] > most ? logits[i] : most;
  most *= inverse_temperature;
  double sum = 0;
  for (int64_t from = 0; from < vocabulary; from += 1024) {
    int64_t to = from + 1024 < vocabulary ? from + 1024 : vocabulary;
    float part = 0;
    for (int64_t i = from; i < to; i++) part += exp_(logits[i] * inverse_temperature - most);
    sum += part;
  }
  return {most, static_cast<float>(std::log(sum))};
}

// -sum p log p, nats.
CLONES static float entropy_of(const float *logits, int64_t vocabulary, float inverse_temperature, Norm norm) {
  double sum = 0;
  for (int64_t from = 0; from < vocabulary; from += 1024) {
    int64_t to = from + 1024 < vocabulary ? from + 1024 : vocabulary;
    float part = 0;
    for (int64_t i = from; i < to; i++) {
      float logp = logits[i] * inverse_temperature - norm.most - norm.log_sum;
      part += exp_(logp) * logp;
    }
    sum += part;
  }
  return static_cast<float>(-sum);
}

// d(g_logp * logp[id] + g_entropy * entropy) / d(logits), into `to`. The chosen id's own part is the caller's.
template <class T>
INLINE void head_back_row_(const float *logits, T *to, int64_t vocabulary, float inverse_temperature, Norm norm, float entropy, float g_logp,
                           float g_entropy) {
  for (int64_t i = 0; i < vocabulary; i++) {
    float logp = logits[i] * inverse_temperature - norm.most - norm.log_sum;
    put(to[i], -exp_(logp) * (g_logp + g_entropy * (logp + entropy)) * inverse_temperature);
  }
}

// The first id at which the cumulative probability exceeds u, in order of ids; the last one with a probability where rounding
// leaves the sum below u. Probabilities are added in blocks.
CLONES static int64_t draw_from(const float *logits, int64_t vocabulary, float inverse_temperature, Norm norm, double u) {
  double below = 0;
  int64_t last = 0;
  for (int64_t from = 0; from < vocabulary; from += 256) {
    int64_t to = from + 256 < vocabulary ? from + 256 : vocabulary;
    float part = 0;
    for (int64_t i = from; i < to; i++) part += exp_(logits[i] * inverse_temperature - norm.most - norm.log_sum);
    if (u >= below + part) {
      below += part;
      if (part > 1e-30f) last = to - 1;
      continue;
    }
    for (int64_t i = from; i < to; i++) {
      below += exp_(logits[i] * inverse_temperature - norm.most - norm.log_sum);
      if (u < below) return i;
    }
    return to - 1;
  }
  return last;
}

CLONES static int64_t likeliest(const float *logits, int64_t vocabulary) {
  float most = logits[0];
  for (int64_t i = 1; i < vocabulary; i++) most = logits[i] > most ? logits[i] : most;
  for (int64_t i = 0; i < vocabulary; i++)
    if (logits[i] == most) return i;
  return 0;
}

// ---- weights in blocks

INLINE uint32_t pair_of(float a, float b) {
  BFloat16 low, high;
  put(low, a);
  put(high, b);
  return static_cast<uint32_t>(high.x) << 16 | low.x;
}

// [rows, k] to [k, rows].
template <class T> INLINE void block_floats_(const T *from, float *to, int64_t rows, int64_t k) {
  for (int64_t p = 0; p < k; p++)
    for (int64_t row = 0; row < rows; row++) to[p * rows + row] = get(from[row * k + p]);
}

// [rows, k] to [k / 2, rows], of pairs in bf16.
template <class T> INLINE void block_pairs_(const T *from, uint32_t *to, int64_t rows, int64_t k) {
  for (int64_t p = 0; p < k; p += 2)
    for (int64_t row = 0; row < rows; row++) to[p / 2 * rows + row] = pair_of(get(from[row * k + p]), get(from[row * k + p + 1]));
}

// Sums [m, rows] plus a bias and another's rows, both of which may be missing, into y; y and the other are `stride` wide.
template <class T, class O>
INLINE void finish_rows_(const float *sums, const T *bias, const float *other, O *y, int64_t m, int64_t rows, int64_t stride) {
  for (int64_t i = 0; i < m; i++, sums += rows, y += stride) {
    const float *more = other == nullptr ? nullptr : other + i * stride;
    for (int64_t j = 0; j < rows; j++) {
      float sum = sums[j];
      if (bias != nullptr) sum += get(bias[j]);
      if (more != nullptr) sum += more[j];
      put(y[j], sum);
    }
  }
}

#define FINISH(T, O)                                                                                                                     \
  CLONES static void finish_rows(const float *sums, const T *bias, const float *other, O *y, int64_t m, int64_t rows, int64_t stride) {   \
    finish_rows_(sums, bias, other, y, m, rows, stride);                                                                                  \
  }
FINISH(float, float)
FINISH(BFloat16, float)
FINISH(BFloat16, BFloat16)

// ---- the versions of each for both types

#define BOTH(NAME, ARGUMENTS_F, ARGUMENTS_B, CALL)        \
  CLONES static void NAME ARGUMENTS_F { NAME##_ CALL; }  \
  CLONES static void NAME ARGUMENTS_B { NAME##_ CALL; }

#define ARGS(T) (const T *x, const T *w, T *y, int64_t rows, int64_t d, float eps)
BOTH(norm_rows, ARGS(float), ARGS(BFloat16), (x, w, y, rows, d, eps))
#undef ARGS
CLONES static void norm_rows(const float *x, const BFloat16 *w, BFloat16 *y, int64_t rows, int64_t d, float eps) {
  norm_rows_(x, w, y, rows, d, eps);
}
#define ARGS(T) (const float *x, const T *w, const T *dy, float *dx, float *dw, int64_t rows, int64_t d, float eps)
BOTH(norm_back_rows, ARGS(float), ARGS(BFloat16), (x, w, dy, dx, dw, rows, d, eps))
#undef ARGS
#define ARGS(T) (const T *from, float *to, int64_t rows, int64_t k)
BOTH(block_floats, ARGS(float), ARGS(BFloat16), (from, to, rows, k))
#undef ARGS
#define ARGS(T) (const T *from, uint32_t *to, int64_t rows, int64_t k)
BOTH(block_pairs, ARGS(float), ARGS(BFloat16), (from, to, rows, k))
#undef ARGS
#define ARGS(T) (const T *x, T *y, int64_t rows, int64_t f)
BOTH(swiglu_rows, ARGS(float), ARGS(BFloat16), (x, y, rows, f))
#undef ARGS
#define ARGS(T) (const T *x, const T *dy, T *dx, int64_t rows, int64_t f)
BOTH(swiglu_back_rows, ARGS(float), ARGS(BFloat16), (x, dy, dx, rows, f))
#undef ARGS
#define ARGS(T)                                                                                                                     \
  (const T *x, const T *q_norm, const T *k_norm, const float *cos, const float *sin, T *q, T *k, T *v, Heads h, int64_t t, int64_t from, \
   int64_t to)
BOTH(split_rows, ARGS(float), ARGS(BFloat16), (x, q_norm, k_norm, cos, sin, q, k, v, h, t, from, to))
#undef ARGS
#define ARGS(T)                                                                                                                        \
  (const T *x, const T *q_norm, const T *k_norm, const float *cos, const float *sin, const T *dq, const T *dk, const T *dv, T *dx,         \
   float *dnorm, Heads h, int64_t t, int64_t from, int64_t to)
BOTH(split_back_rows, ARGS(float), ARGS(BFloat16), (x, q_norm, k_norm, cos, sin, dq, dk, dv, dx, dnorm, h, t, from, to))
#undef ARGS
#define ARGS(T)                                                                                                                         \
  (const T *x, const T *q_norm, const T *k_norm, const float *cos, const float *sin, T *keys, T *values, float *q, Heads h, int64_t length, \
   const int64_t *slots, const int64_t *positions, int64_t from, int64_t to)
BOTH(enter_rows, ARGS(float), ARGS(BFloat16), (x, q_norm, k_norm, cos, sin, keys, values, q, h, length, slots, positions, from, to))
#undef ARGS
#define ARGS(T)                                                                                                                       \
  (const float *q, const T *keys, const T *values, T *y, float *scores, int64_t queries, int64_t tokens, int64_t position, int64_t stride, \
   int64_t d)
BOTH(attend, ARGS(float), ARGS(BFloat16), (q, keys, values, y, scores, queries, tokens, position, stride, d))
#undef ARGS
#define ARGS(T)                                                                                                            \
  (const float *logits, T *to, int64_t vocabulary, float inverse_temperature, Norm norm, float entropy, float g_logp, float g_entropy)
BOTH(head_back_row, ARGS(float), ARGS(BFloat16), (logits, to, vocabulary, inverse_temperature, norm, entropy, g_logp, g_entropy))
#undef ARGS

} // namespace tidegate
