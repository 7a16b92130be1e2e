// Attention of whole sequences, in tiles: loops over what is between the small products of causal.cpp. All arithmetic is in f32; T is
// what rows are stored in, E what products take: float, or BFloat16, whose right factors have pairs of rows side by side.
#pragma once
#include "kernels.h"

#include <algorithm>

namespace tidegate {

// Queries, and keys, that meet at once.
constexpr int64_t TILE = 64;

// ---- right factors

// Where element (row, column) of a right factor of `width` columns lies.
INLINE float &in_right(float *b, int64_t row, int64_t column, int64_t width) { return b[row * width + column]; }
INLINE BFloat16 &in_right(BFloat16 *b, int64_t row, int64_t column, int64_t width) { return b[row / 2 * 2 * width + 2 * column + row % 2]; }

// Rows [TILE, d] as they are: the right factor [TILE, d].
template <class E> INLINE void right_(const E *rows, E *to, int64_t d) {
  for (int64_t row = 0; row < TILE; row += 2)
    for (int64_t i = 0; i < d; i++) {
      in_right(to, row, i, d) = rows[row * d + i];
      in_right(to, row + 1, i, d) = rows[(row + 1) * d + i];
    }
}

// Rows [TILE, d], transposed: the right factor [d, TILE].
template <class E> INLINE void right_transposed_(const E *rows, E *to, int64_t d) {
  for (int64_t i = 0; i < d; i += 2)
    for (int64_t row = 0; row < TILE; row++) {
      in_right(to, i, row, TILE) = rows[row * d + i];
      in_right(to, i + 1, row, TILE) = rows[row * d + i + 1];
    }
}

// Rows [TILE, d], transposed, as a left factor [d, TILE].
template <class E> INLINE void transposed_(const E *rows, E *to, int64_t d) {
  for (int64_t i = 0; i < d; i++)
    for (int64_t row = 0; row < TILE; row++) to[i * TILE + row] = rows[row * d + i];
}

// ---- rows of one head

// Tokens [from, from + TILE) of a head whose first token's row is `x`, rows being `width` apart: normalised where there is a weight,
// rotated, to `to` [TILE, d]; 0 from the token `t` on.
template <class T, class E>
INLINE void ready_rows_(const T *x, const T *norm, const float *cos, const float *sin, E *to, int64_t width, int64_t from, int64_t t,
                        int64_t d, float eps) {
  int64_t n = t - from < TILE ? t - from : TILE;
  for (int64_t i = 0; i < n; i++) ready_head(x + (from + i) * width, norm, to + i * d, cos + (from + i) * d, sin + (from + i) * d, d, eps);
  std::memset(to + n * d, 0, sizeof(E) * (TILE - n) * d);
}

// The same of rows that are neither normalised nor rotated.
template <class T, class E> INLINE void copied_rows_(const T *x, E *to, int64_t width, int64_t from, int64_t t, int64_t d) {
  int64_t n = t - from < TILE ? t - from : TILE;
  for (int64_t i = 0; i < n; i++)
    for (int64_t e = 0; e < d; e++) put(to[i * d + e], get(x[(from + i) * width + e]));
  std::memset(to + n * d, 0, sizeof(E) * (TILE - n) * d);
}

// The gradient of ready_rows, of `n` tokens: dy [n, d] f32 to dx, rows `width` apart; what it adds to the norm's gradient.
template <class T>
INLINE void ready_rows_back_(const T *x, const T *norm, const float *cos, const float *sin, const float *dy, T *dx, float *dnorm,
                             int64_t width, int64_t from, int64_t n, int64_t d, float eps) {
  for (int64_t i = 0; i < n; i++)
    back_head(x + (from + i) * width, norm, dy + i * d, dx + (from + i) * width, dnorm, cos + (from + i) * d, sin + (from + i) * d, d, eps);
}

// ---- scores

// The scores of TILE queries, one tile of keys after another ([tiles, TILE, TILE]), to e^(scale (score - the row's largest)) in `to`:
// `rows` queries, of which query r sees all tiles but the last, and r + 1 keys of that. Sums of the rows, and the logarithm of the sum of
// e^(scale score), to `sums` and `logs`.
template <class E>
INLINE void weigh_tiles_(const float *scores, E *to, float *sums, float *logs, int64_t tiles, int64_t rows, float scale) {
  std::memset(to, 0, sizeof(E) * tiles * TILE * TILE);
  for (int64_t r = 0; r < rows; r++) {
    float most = scores[((tiles - 1) * TILE + r) * TILE];
    for (int64_t tile = 0; tile < tiles; tile++) {
      const float *row = scores + (tile * TILE + r) * TILE;
      int64_t n = tile + 1 < tiles ? TILE : r + 1;
      for (int64_t j = 0; j < n; j++) most = row[j] > most ? row[j] : most;
    }
    float total = 0;
    for (int64_t tile = 0; tile < tiles; tile++) {
      const float *row = scores + (tile * TILE + r) * TILE;
      E *out = to + (tile * TILE + r) * TILE;
      int64_t n = tile + 1 < tiles ? TILE : r + 1;
      float part = 0;
      for (int64_t j = 0; j < n; j++) {
        float e = exp_(scale * (row[j] - most));
        put(out[j], e);
        part += e;
      }
      total += part;
    }
    sums[r] = total, logs[r] = scale * most + std::log(total);
  }
}

// Sums over the weights' totals: TILE rows of `acc` [TILE, d] to y, rows `width` apart.
template <class T> INLINE void over_totals_(const float *acc, const float *sums, T *y, int64_t rows, int64_t width, int64_t d) {
  for (int64_t r = 0; r < rows; r++) {
    float inverse = 1.0f / sums[r];
    for (int64_t e = 0; e < d; e++) put(y[r * width + e], acc[r * d + e] * inverse);
  }
}

// From scores and gradients of weights, [keys, queries] each, to weights and gradients of scores: `p` and `ds` as left factors, `right`
// (the same as ds) as a right one. Key k of a tile on the diagonal is seen by the queries from k on.
template <class E>
INLINE void weights_back_(const float *scores, const float *dp, const float *logs, const float *deltas, E *p, E *ds, E *right, bool diagonal,
                          float scale) {
  for (int64_t k = 0; k < TILE; k += 2) {
    for (int64_t two = k; two < k + 2; two++) {
      const float *s = scores + two * TILE, *g = dp + two * TILE;
      E *to = p + two * TILE, *dto = ds + two * TILE;
      int64_t first = diagonal ? two : 0;
      for (int64_t q = 0; q < first; q++) put(to[q], 0.0f), put(dto[q], 0.0f);
      for (int64_t q = first; q < TILE; q++) {
        float weight = exp_(scale * s[q] - logs[q]);
        put(to[q], weight);
        put(dto[q], weight * (g[q] - deltas[q]) * scale);
      }
    }
    if (right != ds)
      for (int64_t q = 0; q < TILE; q++) {
        in_right(right, k, q, TILE) = ds[k * TILE + q];
        in_right(right, k + 1, q, TILE) = ds[(k + 1) * TILE + q];
      }
  }
}

// Sums over a row of dy y: what the gradient of a weight is measured from.
template <class T> INLINE void deltas_(const T *dy, const T *y, float *to, int64_t rows, int64_t width, int64_t d) {
  for (int64_t r = 0; r < TILE; r++) {
    float sum = 0;
    if (r < rows)
      for (int64_t e = 0; e < d; e++) sum += get(dy[r * width + e]) * get(y[r * width + e]);
    to[r] = sum;
  }
}

// ---- the versions of each

#define TILES(NAME, ARGUMENTS, CALL) \
  CLONES static void NAME ARGUMENTS { NAME##_ CALL; }
#define OF_E(E)                                                                                                      \
  TILES(right, (const E *rows, E *to, int64_t d), (rows, to, d))                                                     \
  TILES(right_transposed, (const E *rows, E *to, int64_t d), (rows, to, d))                                          \
  TILES(transposed, (const E *rows, E *to, int64_t d), (rows, to, d))                                                \
  TILES(weigh_tiles, (const float *scores, E *to, float *sums, float *logs, int64_t tiles, int64_t rows, float scale), \
        (scores, to, sums, logs, tiles, rows, scale))                                                                \
  TILES(weights_back,                                                                                                \
        (const float *scores, const float *dp, const float *logs, const float *deltas, E *p, E *ds, E *right, bool diagonal, float scale), \
        (scores, dp, logs, deltas, p, ds, right, diagonal, scale))
OF_E(float)
OF_E(BFloat16)
#define OF_T(T)                                                                                                                    \
  TILES(over_totals, (const float *acc, const float *sums, T *y, int64_t rows, int64_t width, int64_t d), (acc, sums, y, rows, width, d)) \
  TILES(deltas, (const T *dy, const T *y, float *to, int64_t rows, int64_t width, int64_t d), (dy, y, to, rows, width, d))         \
  TILES(ready_rows_back,                                                                                                           \
        (const T *x, const T *norm, const float *cos, const float *sin, const float *dy, T *dx, float *dnorm, int64_t width, int64_t from, \
         int64_t n, int64_t d, float eps),                                                                                         \
        (x, norm, cos, sin, dy, dx, dnorm, width, from, n, d, eps))
OF_T(float)
OF_T(BFloat16)
#define OF_T_E(T, E)                                                                                                              \
  TILES(ready_rows,                                                                                                               \
        (const T *x, const T *norm, const float *cos, const float *sin, E *to, int64_t width, int64_t from, int64_t t, int64_t d, float eps), \
        (x, norm, cos, sin, to, width, from, t, d, eps))                                                                          \
  TILES(copied_rows, (const T *x, E *to, int64_t width, int64_t from, int64_t t, int64_t d), (x, to, width, from, t, d))
OF_T_E(float, float)
OF_T_E(BFloat16, float)
OF_T_E(BFloat16, BFloat16)
#undef TILES
#undef OF_E
#undef OF_T
#undef OF_T_E

} // namespace tidegate
