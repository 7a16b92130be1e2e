// Loops over rows that the operations of this folder are made of. All arithmetic is in f32; T is float or at::BFloat16.
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

template <class T, class G>
INLINE void back_head(const T *x, const T *norm, const G *dy, T *dx, float *dnorm, const float *cos, const float *sin, int64_t d,
                      float eps) {
  if (norm == nullptr) return rotate_head_back(dy, dx, cos, sin, d);
  float turned[WIDEST_HEAD], to[WIDEST_HEAD];
  rotate_head_back(dy, turned, cos, sin, d);
  norm_back_row(x, norm, turned, to, dnorm, d, eps);
  for (int64_t i = 0; i < d; i++) put(dx[i], to[i]);
}

// ---- vectors

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

INLINE void store(float *to, v16 x) { std::memcpy(to, &x, sizeof x); }
INLINE void store(BFloat16 *to, v16 x) {
  for (int i = 0; i < 16; i++) put(to[i], x[i]);
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

// Lanes of two vectors by number, those of B from 16 on.
#if defined(__clang__) || __GNUC__ >= 12
#define PICK(A, B, ...) __builtin_shufflevector(A, B, __VA_ARGS__)
#else
typedef int32_t i32x16 __attribute__((vector_size(64)));
#define PICK(A, B, ...) __builtin_shuffle(A, B, (i32x16){__VA_ARGS__})
#endif

// sum_of each of four, in the same order, to `to`.
INLINE void sums_of(const v16 *x, float *to) {
  v16 two[2], sum;
  for (int i = 0; i < 2; i++)
    two[i] = PICK(x[2 * i], x[2 * i + 1], 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) +
             PICK(x[2 * i], x[2 * i + 1], 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
  sum = PICK(two[0], two[1], 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27) +
        PICK(two[0], two[1], 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
  sum += PICK(sum, sum, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13);
  sum += PICK(sum, sum, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14);
  for (int i = 0; i < 4; i++) to[i] = sum[4 * i];
}

// Sixteen rows to sixteen columns: halves are exchanged between rows 8 apart, quarters between rows 4 apart, and so on.
INLINE void turn(v16 *rows) {
#define EXCHANGE(APART, LOW, HIGH)               \
  for (int i = 0; i < 16; i++)                   \
    if ((i & APART) == 0) {                      \
      v16 a = rows[i], b = rows[i + APART];      \
      rows[i] = PICK(a, b, LOW);                 \
      rows[i + APART] = PICK(a, b, HIGH);        \
    }
#define LANES(...) __VA_ARGS__
  EXCHANGE(8, LANES(0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23),
           LANES(8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31))
  EXCHANGE(4, LANES(0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27),
           LANES(4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31))
  EXCHANGE(2, LANES(0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29),
           LANES(2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31))
  EXCHANGE(1, LANES(0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30),
           LANES(1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31))
#undef EXCHANGE
#undef LANES
}

// ---- the versions of a loop for both types

#define BOTH(NAME, ARGUMENTS_F, ARGUMENTS_B, CALL)        \
  CLONES static void NAME ARGUMENTS_F { NAME##_ CALL; }  \
  CLONES static void NAME ARGUMENTS_B { NAME##_ CALL; }

} // namespace tidegate
