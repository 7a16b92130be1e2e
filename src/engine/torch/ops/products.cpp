// Products of matrices, and weights in blocks.
#include "products.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <string_view>

namespace tidegate {
namespace {

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

} // namespace

Tensor product(const Tensor &x, const Tensor &w, const optional<Tensor> &b) {
  if (on_cpu(x) && takes(x.scalar_type()) && x.size(0) > 0) return onednn(x.contiguous(), w, b);
  return at::linear(x, w, b);
}

Tensor plain_product_in_float(const Tensor &x, const Tensor &w) {
  if (x.scalar_type() == at::kFloat) return at::mm(x, w.t());
  return x.is_cuda() ? at::mm(x, w.t(), at::kFloat) : at::mm(x.to(at::kFloat), w.to(at::kFloat).t());
}


// C [m, n] = (C +) A [m, k] B [k, n]: for processors of which libtorch has no small product.
CLONES void plain_small_product(int64_t m, int64_t n, int64_t k, int64_t lda, int64_t ldb, int64_t ldc, bool add, const float *a,
                                       const float *b, float *c) {
  constexpr int64_t ROWS = 4;
  int64_t whole = n / 16 * 16;
  for (int64_t i = 0; i < m; i += ROWS) {
    int64_t rows = m - i < ROWS ? m - i : ROWS;
    for (int64_t j = 0; j < whole; j += 16) {
      v16 acc[ROWS] = {};
      if (rows == ROWS) {
        for (int64_t p = 0; p < k; p++) {
          v16 right = load(b + p * ldb + j);
          for (int64_t r = 0; r < ROWS; r++) acc[r] += a[(i + r) * lda + p] * right;
        }
      } else {
        for (int64_t p = 0; p < k; p++)
          for (int64_t r = 0; r < rows; r++) acc[r] += a[(i + r) * lda + p] * load(b + p * ldb + j);
      }
      for (int64_t r = 0; r < rows; r++) {
        float *to = c + (i + r) * ldc + j;
        if (add) acc[r] += load(to);
        std::memcpy(to, &acc[r], sizeof(v16));
      }
    }
    for (int64_t r = 0; r < rows; r++) {
      for (int64_t j = whole; j < n; j++) {
        float sum = add ? c[(i + r) * ldc + j] : 0;
        for (int64_t p = 0; p < k; p++) sum += a[(i + r) * lda + p] * b[p * ldb + j];
        c[(i + r) * ldc + j] = sum;
      }
    }
  }
}

// ---- gradients of weights

namespace {

// Rows that a small product of the gradient adds up over.
constexpr int64_t DEPTH = 256;
// Its rows and columns.
constexpr int64_t SQUARE = 64;

// Two rows as one of pairs: `n` numbers of each. A row that is not there is null, and 0.
INLINE void pair_row(const uint16_t *low, const uint16_t *high, uint32_t *to, int64_t n) {
  if (low && high) {
    for (int64_t j = 0; j < n; j++) to[j] = static_cast<uint32_t>(high[j]) << 16 | low[j];
  } else {
    for (int64_t j = 0; j < n; j++) to[j] = low ? low[j] : 0;
  }
}

// Rows [from, from + DEPTH) and columns [at, at + columns) of x [m, k], as a right factor, with pairs of rows side by side; 0 below the
// last row.
CLONES static void pair_rows(const uint16_t *x, uint32_t *to, int64_t m, int64_t k, int64_t from, int64_t at, int64_t columns) {
  auto row = [&](int64_t p) __attribute__((always_inline)) { return p < m ? x + p * k + at : nullptr; };
  for (int64_t p = 0; p < DEPTH; p += 2) pair_row(row(from + p), row(from + p + 1), to + p / 2 * columns, columns);
}

// Rows [from, from + DEPTH) and columns [at, at + columns) of dy [m, n], transposed: a left factor [columns, DEPTH].
CLONES static void turn_rows(const uint16_t *dy, uint16_t *to, int64_t m, int64_t n, int64_t from, int64_t at, int64_t columns) {
  auto row = [&](int64_t p) __attribute__((always_inline)) { return p < m ? dy + p * n + at : nullptr; };
  uint32_t pairs[16 * SQUARE];
  for (int64_t p = 0; p < DEPTH; p += 32) {
    for (int64_t i = 0; i < 16; i++) pair_row(row(from + p + 2 * i), row(from + p + 2 * i + 1), pairs + i * SQUARE, columns);
    for (int64_t column = 0; column < columns; column += 16) {
      v16 tile[16];
      for (int64_t i = 0; i < 16; i++) std::memcpy(&tile[i], pairs + i * SQUARE + column, sizeof(v16));
      turn(tile);
      for (int64_t i = 0; i < 16 && column + i < columns; i++) std::memcpy(to + (column + i) * DEPTH + p, &tile[i], sizeof(v16));
    }
  }
}

void add_gradient_in_float(const Tensor &dw, const Tensor &dy, const Tensor &x) {
  auto m = dy.size(0), n = dy.size(1), k = x.size(1);
  auto depths = (m + DEPTH - 1) / DEPTH, padded = depths * DEPTH;
  auto strips = (k + SQUARE - 1) / SQUARE;
  TORCH_CHECK(dw.is_contiguous() && dw.scalar_type() == at::kFloat && dw.size(0) == n && dw.size(1) == k && x.size(0) == m, "a gradient of shape ",
              dw.sizes());
  auto bits = [](const Tensor &rows) { return reinterpret_cast<const uint16_t *>(data<BFloat16>(rows)); };
  SmallProduct<BFloat16> small_product;
  auto right = at::empty({padded * k}, x.options());
  // Strip by strip, and in a strip depth by depth.
  at::parallel_for(0, strips, 1, [&](int64_t first, int64_t last) {
    for (int64_t strip = first; strip < last; strip++) {
      int64_t at = strip * SQUARE, columns = std::min(SQUARE, k - at);
      auto to = right.data_ptr<BFloat16>() + at * padded;
      for (int64_t d = 0; d < depths; d++) pair_rows(bits(x), reinterpret_cast<uint32_t *>(to + d * DEPTH * columns), m, k, d * DEPTH, at, columns);
    }
  });
  at::parallel_for(0, (n + SQUARE - 1) / SQUARE, 1, [&](int64_t first, int64_t last) {
    static thread_local std::vector<uint16_t> left;
    left.resize(std::max<size_t>(left.size(), SQUARE * padded));
    for (int64_t block = first; block < last; block++) {
      int64_t of = block * SQUARE, rows = std::min(SQUARE, n - of);
      for (int64_t d = 0; d < depths; d++) turn_rows(bits(dy), left.data() + d * SQUARE * DEPTH, m, n, d * DEPTH, of, rows);
      for (int64_t strip = 0; strip < strips; strip++) {
        int64_t at = strip * SQUARE, columns = std::min(SQUARE, k - at);
        for (int64_t d = 0; d < depths; d++)
          small_product(rows, columns, DEPTH, DEPTH, columns, k, true, reinterpret_cast<BFloat16 *>(left.data()) + d * SQUARE * DEPTH,
                        data<BFloat16>(right) + at * padded + d * DEPTH * columns, dw.data_ptr<float>() + of * k + at);
      }
    }
    small_product.release();
  });
}

} // namespace

void add_gradient(const Tensor &dw, const Tensor &dy, const Tensor &x) {
  if (!on_cpu(dy) || (dy.scalar_type() != at::kFloat && !small_product_here<BFloat16>()))
    dw.add_(plain_product_in_float(dy.t(), x.t()));
  else if (dy.scalar_type() == at::kFloat)
    dw.add_(product(dy.t().contiguous(), x.t()));
  else
    add_gradient_in_float(dw, dy.contiguous(), x.contiguous());
}

// ---- weights in blocks

namespace {

INLINE uint32_t pair_of(float a, float b) {
  BFloat16 low, high;
  put(low, a);
  put(high, b);
  return static_cast<uint32_t>(high.x) << 16 | low.x;
}

// As `put` rounds: the bits of sixteen numbers in bf16, above 16 zeros.
INLINE u32x16 rounded(v16 x) {
  u32x16 bits;
  std::memcpy(&bits, &x, sizeof bits);
  u32x16 up = bits + 0x7fffu + ((bits >> 16) & 1u);
  up = (bits & 0x7fffffffu) > 0x7f800000u ? u32x16{} + 0x7fc00000u : up;
  return up & 0xffff0000u;
}

// [rows, k] to [k, rows].
template <class T> INLINE void block_floats_(const T *from, float *to, int64_t rows, int64_t k) {
  int64_t whole = rows % 16 == 0 ? k / 16 * 16 : 0;
  for (int64_t p = 0; p < whole; p += 16)
    for (int64_t row = 0; row < rows; row += 16) {
      v16 tile[16];
      for (int64_t i = 0; i < 16; i++) tile[i] = load(from + (row + i) * k + p);
      turn(tile);
      for (int64_t i = 0; i < 16; i++) store(to + (p + i) * rows + row, tile[i]);
    }
  for (int64_t p = whole; p < k; p++)
    for (int64_t row = 0; row < rows; row++) to[p * rows + row] = get(from[row * k + p]);
}

// [rows, k] to [k / 2, rows], of pairs in bf16.
template <class T> INLINE void block_pairs_(const T *from, uint32_t *to, int64_t rows, int64_t k) {
  int64_t whole = rows % 16 == 0 ? k / 32 * 32 : 0;
  for (int64_t p = 0; p < whole; p += 32)
    for (int64_t row = 0; row < rows; row += 16) {
      v16 tile[16];
      for (int64_t i = 0; i < 16; i++) {
        v16 a = load(from + (row + i) * k + p), b = load(from + (row + i) * k + p + 16);
        v16 even = PICK(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
        v16 odd = PICK(a, b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
        u32x16 pairs = rounded(even) >> 16 | rounded(odd);
        std::memcpy(&tile[i], &pairs, sizeof pairs);
      }
      turn(tile);
      for (int64_t i = 0; i < 16; i++) std::memcpy(to + (p / 2 + i) * rows + row, &tile[i], sizeof(v16));
    }
  for (int64_t p = whole; p < k; p += 2)
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

#define ARGS(T) (const T *from, float *to, int64_t rows, int64_t k)
BOTH(block_floats, ARGS(float), ARGS(BFloat16), (from, to, rows, k))
#undef ARGS
#define ARGS(T) (const T *from, uint32_t *to, int64_t rows, int64_t k)
BOTH(block_pairs, ARGS(float), ARGS(BFloat16), (from, to, rows, k))
#undef ARGS


// Rows of a weight that one call of oneDNN's small product covers: [k, BLOCK] in f32, pairs of k side by side in bf16. Such products
// of few rows read weights at the speed of memory, and beat those of whole matrices by a tenth to a half (docs/performance.md).
constexpr int64_t BLOCK = 64;
// Rows of the other factor that it covers, so that there are few sizes.
constexpr int64_t ROWS = 64;

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

template <class T> Tensor blocks_product(const Tensor &x, const Tensor &blocks, const optional<Tensor> &bias, const optional<Tensor> &other,
                                         at::ScalarType kind) {
  auto m = x.size(0), k = x.size(1), n = blocks.size(0);
  TORCH_CHECK(x.is_contiguous() && x.scalar_type() == blocks.scalar_type() && blocks.size(1) == k, "factors that do not fit");
  TORCH_CHECK(!bias || (bias->is_contiguous() && bias->numel() == n && bias->scalar_type() == blocks.scalar_type()), "a bias that does not fit");
  TORCH_CHECK(!other || (other->is_contiguous() && other->sizes() == at::IntArrayRef({m, n}) && other->scalar_type() == at::kFloat),
              "a term that does not fit");
  auto y = at::empty({m, n}, x.options().dtype(kind));
  auto plain = kind == at::kFloat && !bias && !other;
  SmallProduct<T> small_product;
  auto share = std::max<int64_t>(1, 131072 / std::max<int64_t>(1, m * BLOCK * k));
  at::parallel_for(0, (n + BLOCK - 1) / BLOCK, share, [&](int64_t first, int64_t last) {
    float scratch[ROWS * BLOCK];
    for (int64_t block = first; block < last; block++) {
      int64_t at = block * BLOCK, width = std::min(BLOCK, n - at);
      auto b = bias ? data<T>(bias) + at : nullptr;
      for (int64_t row = 0; row < m; row += ROWS) {
        int64_t rows = std::min(ROWS, m - row), place = row * n + at;
        auto sums = plain ? y.data_ptr<float>() + place : scratch;
        small_product(rows, width, k, k, width, plain ? n : width, false, data<T>(x) + row * k, data<T>(blocks) + at * k, sums);
        if (plain) continue;
        auto o = other ? data<float>(other) + place : nullptr;
        if (kind == at::kFloat) {
          finish_rows(sums, b, o, y.data_ptr<float>() + place, rows, width, n);
        } else {
          if constexpr (std::is_same_v<T, BFloat16>) finish_rows(sums, b, o, y.data_ptr<BFloat16>() + place, rows, width, n);
        }
      }
    }
    small_product.release();
  });
  return y;
}

} // namespace

bool can_block(const Tensor &w, at::ScalarType kind) {
  if (!on_cpu(w) || w.dim() != 2) return false;
  return kind == at::kFloat ? small_product_here<float>()
                            : kind == at::kBFloat16 && w.size(1) % 2 == 0 && small_product_here<BFloat16>();
}

void block_into(const Tensor &w, const Tensor &to) {
  both(w, [&](auto zero) { block_into<decltype(zero)>(w, to); });
}

Tensor blocks_product(const Tensor &x, const Tensor &blocks, const optional<Tensor> &bias, const optional<Tensor> &other,
                      at::ScalarType kind) {
  Tensor y;
  both(blocks, [&](auto zero) { y = blocks_product<decltype(zero)>(x.contiguous(), blocks, bias, other, kind); });
  return y;
}

} // namespace tidegate

using namespace tidegate;

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
}
