// Products of matrices.
#pragma once
#include "common.h"

#include <ATen/native/CPUBlas.h>

#include <vector>

namespace tidegate {

// x [m, k] times the transpose of w [n, k], which may be a view of any strides.
Tensor product(const Tensor &x, const Tensor &w, const optional<Tensor> &b = std::nullopt);

// x [m, k] times the transpose of w [n, k], in f32: bf16 is summed in f32 and never rounded.
Tensor plain_product_in_float(const Tensor &x, const Tensor &w);

// Adds the product of dy [m, n] transposed and x [m, k] to the gradient dw [n, k], f32; sums are f32 whatever the factors are.
void add_gradient(const Tensor &dw, const Tensor &dy, const Tensor &x);

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
  return here && !without_small_products;
}

// For processors of which libtorch has no small product.
void plain_small_product(int64_t m, int64_t n, int64_t k, int64_t lda, int64_t ldb, int64_t ldc, bool add, const float *a, const float *b, float *c);

// C [m, n] = (C +) A [m, k] B [k, n], with sums in f32; in bf16 B has pairs of rows side by side, and k is even. Each size is prepared when it
// is first met, and kept: there must be few.
template <class E> struct SmallProduct {
  // Asked by the thread that shares the work out.
  bool here = small_product_here<E>();

  void operator()(int64_t m, int64_t n, int64_t k, int64_t lda, int64_t ldb, int64_t ldc, bool add, const E *a, const E *b, float *c) const {
    if constexpr (std::is_same_v<E, float>) {
      if (!here) return plain_small_product(m, n, k, lda, ldb, ldc, add, a, b, c);
    }
    at::native::cpublas::brgemm(m, n, k, lda, ldb, ldc, add, a, b, c, std::is_same_v<E, BFloat16>);
  }

  // By each thread that is done.
  void release() const {
    if (here) at::native::cpublas::brgemm_release(std::is_same_v<E, BFloat16>);
  }
};

// Whether w can be laid out in blocks of this type.
bool can_block(const Tensor &w, at::ScalarType kind);

// w [n, k] in f32 or bf16, into `to` of the same size in f32 or bf16, block after block: one pass.
void block_into(const Tensor &w, const Tensor &to);

// x [m, k] times the transpose of `blocks` [n, k], plus a bias [n] and `other` [m, n] in f32; sums are f32, and rounded once if `kind`
// is bf16.
Tensor blocks_product(const Tensor &x, const Tensor &blocks, const optional<Tensor> &bias, const optional<Tensor> &other,
                      at::ScalarType kind);

} // namespace tidegate
