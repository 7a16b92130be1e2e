// Attention of trees, in tiles: loops over what is between the small products of causal.cpp. All arithmetic is in f32; T is
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

// ---- which keys a row sees

// The rows of one tree, `t` of them: row r stands at a position of its own, and sees the first `trunk[r]` rows and those from `start[r]`
// to itself. Neither becomes smaller along a tree, and the trunk lies before `start`.
struct Tree {
  int64_t t;
  const int32_t *position, *trunk, *start;
  INLINE int64_t tiles() const { return (t + TILE - 1) / TILE; }
  INLINE int64_t rows_of(int64_t tile) const { return t - tile * TILE < TILE ? t - tile * TILE : TILE; }
};

// The tiles of keys that a tile of queries sees any of: the first `trunk`, and from `from` to its own; `count` in all.
struct KeyTiles {
  int64_t trunk, from, count;
  INLINE int64_t operator[](int64_t i) const { return i < trunk ? i : from + i - trunk; }
};

INLINE KeyTiles key_tiles(const Tree &tree, int64_t tile) {
  int64_t first = tile * TILE, last = first + tree.rows_of(tile) - 1;
  int64_t trunk = (tree.trunk[last] + TILE - 1) / TILE, from = tree.start[first] / TILE;
  from = from < trunk ? trunk : from;
  return {trunk, from, trunk + tile + 1 - from};
}

// Of the keys of a tile that begins at the row `base`, those that a row sees: [0, trunk) and [from, to).
struct KeysSeen {
  int64_t trunk, from, to;
};

INLINE int64_t in_tile(int64_t row, int64_t base) { return row < base ? 0 : row - base < TILE ? row - base : TILE; }
INLINE KeysSeen keys_seen(const Tree &tree, int64_t row, int64_t base) {
  return {in_tile(tree.trunk[row], base), in_tile(tree.start[row], base), in_tile(row + 1, base)};
}

// ---- rows of one head

// The rows of a tile of a head whose first row is `x`, rows being `width` apart: normalised where there is a weight, rotated, to `to`
// [TILE, d]; 0 behind the last.
template <class T, class E>
INLINE void ready_rows_(const T *x, const T *norm, const float *cos, const float *sin, const Tree &tree, E *to, int64_t width, int64_t tile,
                        int64_t d, float eps) {
  int64_t n = tree.rows_of(tile), from = tile * TILE;
  for (int64_t i = 0; i < n; i++) {
    int64_t at = tree.position[from + i] * d;
    ready_head(x + (from + i) * width, norm, to + i * d, cos + at, sin + at, d, eps);
  }
  std::memset(to + n * d, 0, sizeof(E) * (TILE - n) * d);
}

// The same of rows that are neither normalised nor rotated.
template <class T, class E> INLINE void copied_rows_(const T *x, const Tree &tree, E *to, int64_t width, int64_t tile, int64_t d) {
  int64_t n = tree.rows_of(tile), from = tile * TILE;
  for (int64_t i = 0; i < n; i++)
    for (int64_t e = 0; e < d; e++) put(to[i * d + e], get(x[(from + i) * width + e]));
  std::memset(to + n * d, 0, sizeof(E) * (TILE - n) * d);
}

// The gradient of ready_rows: dy [TILE, d] f32 to dx, rows `width` apart; what it adds to the norm's gradient.
template <class T>
INLINE void ready_rows_back_(const T *x, const T *norm, const float *cos, const float *sin, const Tree &tree, const float *dy, T *dx,
                             float *dnorm, int64_t width, int64_t tile, int64_t d, float eps) {
  int64_t n = tree.rows_of(tile), from = tile * TILE;
  for (int64_t i = 0; i < n; i++) {
    int64_t at = tree.position[from + i] * d, row = (from + i) * width;
    back_head(x + row, norm, dy + i * d, dx + row, dnorm, cos + at, sin + at, d, eps);
  }
}

// ---- scores

// The scores of a tile of queries, one of its tiles of keys after another ([tiles, TILE, TILE]), to e^(scale (score - the row's largest))
// in `to`, 0 where a row does not see. Sums of the rows, and the logarithm of the sum of e^(scale score), to `sums` and `logs`.
template <class E>
INLINE void weigh_tiles_(const float *scores, E *to, float *sums, float *logs, const Tree &tree, int64_t tile, const KeyTiles &tiles,
                         float scale) {
  std::memset(to, 0, sizeof(E) * tiles.count * TILE * TILE);
  for (int64_t r = 0, rows = tree.rows_of(tile); r < rows; r++) {
    // It sees itself, and nothing later.
    float most = scores[((tiles.count - 1) * TILE + r) * TILE + r];
    for (int64_t k = 0; k < tiles.count; k++) {
      const float *row = scores + (k * TILE + r) * TILE;
      KeysSeen seen = keys_seen(tree, tile * TILE + r, tiles[k] * TILE);
      for (int64_t j = 0; j < seen.trunk; j++) most = row[j] > most ? row[j] : most;
      for (int64_t j = seen.from; j < seen.to; j++) most = row[j] > most ? row[j] : most;
    }
    float total = 0;
    for (int64_t k = 0; k < tiles.count; k++) {
      const float *row = scores + (k * TILE + r) * TILE;
      E *out = to + (k * TILE + r) * TILE;
      KeysSeen seen = keys_seen(tree, tile * TILE + r, tiles[k] * TILE);
      float part = 0;
      for (int64_t j = 0; j < seen.trunk; j++) {
        float e = exp_(scale * (row[j] - most));
        put(out[j], e);
        part += e;
      }
      for (int64_t j = seen.from; j < seen.to; j++) {
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

// The rows of a tile of queries, for a loop over them: behind the last, rows that see nothing.
struct QueriesOfTile {
  int32_t trunk[TILE], start[TILE], row[TILE];
};

INLINE QueriesOfTile queries_of(const Tree &tree, int64_t tile) {
  QueriesOfTile all;
  int64_t rows = tree.rows_of(tile), from = tile * TILE;
  for (int64_t q = 0; q < TILE; q++) {
    all.trunk[q] = q < rows ? tree.trunk[from + q] : 0;
    all.start[q] = q < rows ? tree.start[from + q] : 0;
    all.row[q] = q < rows ? static_cast<int32_t>(from + q) : -1;
  }
  return all;
}

// Whether each row of the tile of queries sees each key of another.
INLINE bool all_seen(const Tree &tree, int64_t tile, int64_t keys) {
  int64_t first = tile * TILE, last = first + tree.rows_of(tile) - 1, base = keys * TILE;
  return tree.trunk[first] >= base + TILE || (tree.start[last] <= base && first >= base + TILE - 1);
}

// From scores and gradients of weights, [keys, queries] each, to weights and gradients of scores: `p` and `ds` as left factors, `right`
// (the same as ds) as a right one. Keys are those from the row `base` on; `queries` is null where each is seen by all.
template <class E>
INLINE void weights_back_(const float *scores, const float *dp, const float *logs, const float *deltas, E *p, E *ds, E *right,
                          const QueriesOfTile *queries, int64_t base, float scale) {
  float weights[TILE];
  for (int64_t k = 0; k < TILE; k += 2) {
    for (int64_t two = k; two < k + 2; two++) {
      const float *s = scores + two * TILE, *g = dp + two * TILE;
      E *to = p + two * TILE, *dto = ds + two * TILE;
      for (int64_t q = 0; q < TILE; q++) weights[q] = exp_(scale * s[q] - logs[q]);
      if (queries != nullptr) {
        int32_t key = static_cast<int32_t>(base + two);
        for (int64_t q = 0; q < TILE; q++) {
          bool seen = (key < queries->trunk[q]) | ((key >= queries->start[q]) & (key <= queries->row[q]));
          weights[q] = seen ? weights[q] : 0.0f;
        }
      }
      for (int64_t q = 0; q < TILE; q++) {
        put(to[q], weights[q]);
        put(dto[q], weights[q] * (g[q] - deltas[q]) * scale);
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
  TILES(weigh_tiles,                                                                                                 \
        (const float *scores, E *to, float *sums, float *logs, const Tree &tree, int64_t tile, const KeyTiles &tiles, float scale), \
        (scores, to, sums, logs, tree, tile, tiles, scale))                                                          \
  TILES(weights_back,                                                                                                \
        (const float *scores, const float *dp, const float *logs, const float *deltas, E *p, E *ds, E *right,        \
         const QueriesOfTile *queries, int64_t base, float scale),                                                   \
        (scores, dp, logs, deltas, p, ds, right, queries, base, scale))
OF_E(float)
OF_E(BFloat16)
#define OF_T(T)                                                                                                                    \
  TILES(over_totals, (const float *acc, const float *sums, T *y, int64_t rows, int64_t width, int64_t d), (acc, sums, y, rows, width, d)) \
  TILES(deltas, (const T *dy, const T *y, float *to, int64_t rows, int64_t width, int64_t d), (dy, y, to, rows, width, d))         \
  TILES(ready_rows_back,                                                                                                           \
        (const T *x, const T *norm, const float *cos, const float *sin, const Tree &tree, const float *dy, T *dx, float *dnorm,    \
         int64_t width, int64_t tile, int64_t d, float eps),                                                                       \
        (x, norm, cos, sin, tree, dy, dx, dnorm, width, tile, d, eps))
OF_T(float)
OF_T(BFloat16)
#define OF_T_E(T, E)                                                                                                              \
  TILES(ready_rows,                                                                                                               \
        (const T *x, const T *norm, const float *cos, const float *sin, const Tree &tree, E *to, int64_t width, int64_t tile,     \
         int64_t d, float eps),                                                                                                   \
        (x, norm, cos, sin, tree, to, width, tile, d, eps))                                                                       \
  TILES(copied_rows, (const T *x, const Tree &tree, E *to, int64_t width, int64_t tile, int64_t d), (x, tree, to, width, tile, d))
OF_T_E(float, float)
OF_T_E(BFloat16, float)
OF_T_E(BFloat16, BFloat16)
#undef TILES
#undef OF_E
#undef OF_T
#undef OF_T_E

} // namespace tidegate
