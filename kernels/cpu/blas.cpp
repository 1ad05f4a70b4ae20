// SPDX-License-Identifier: MIT
#include "kernels/cpu/blas.hpp"

#include <cblas.h>

#include <mutex>

#include "base/check.hpp"
#include "kernels/products.hpp"

/// Exported by OpenBLAS though no header declares it; a build without threads may lack it.
extern "C" [[gnu::weak]] int blas_thread_shutdown_();

namespace oscar::cpu {
namespace {

CBLAS_TRANSPOSE transpose(const Gemm& shape) { return shape.b == Transpose::kYes ? CblasTrans : CblasNoTrans; }

blasint narrow(std::int64_t value) { return static_cast<blasint>(value); }

}  // namespace

void use_one_blas_thread() {
  static std::once_flag once;
  std::call_once(once, [] {
    openblas_set_num_threads(1);
    // As many threads as the machine has cores began when the library was loaded, and each spins for a while before it
    // sleeps: longer than a whole `oscar pull`.
    if (blas_thread_shutdown_ != nullptr) blas_thread_shutdown_();
  });
}

void gemm(const Gemm& s, const double* a, std::int64_t lda, const double* b, std::int64_t ldb, double* c,
          std::int64_t ldc) {
  if (s.m == 0 || s.n == 0) return;
  use_one_blas_thread();
  cblas_dgemm(CblasRowMajor, CblasNoTrans, transpose(s), narrow(s.m), narrow(s.n), narrow(s.k), s.alpha, a, narrow(lda),
              b, narrow(ldb), s.accumulate ? 1.0 : 0.0, c, narrow(ldc));
}

void gemm(const Gemm& s, const float* a, std::int64_t lda, const float* b, std::int64_t ldb, float* c,
          std::int64_t ldc) {
  if (s.m == 0 || s.n == 0) return;
  use_one_blas_thread();
  cblas_sgemm(CblasRowMajor, CblasNoTrans, transpose(s), narrow(s.m), narrow(s.n), narrow(s.k),
              static_cast<float>(s.alpha), a, narrow(lda), b, narrow(ldb), s.accumulate ? 1.0F : 0.0F, c, narrow(ldc));
}

void add_gram_upper(const double* rows, std::int64_t count, std::int64_t dim, double* gram) {
  use_one_blas_thread();
  cblas_dsyrk(CblasRowMajor, CblasUpper, CblasTrans, narrow(dim), narrow(count), 1.0, rows, narrow(dim), 1.0, gram,
              narrow(dim));
}

}  // namespace oscar::cpu

namespace oscar {

void square_product(std::span<const double> a, bool a_transposed, std::span<const double> b, std::size_t dim,
                    std::span<double> out) {
  OSCAR_CHECK(a.size() == dim * dim && b.size() == a.size() && out.size() == a.size());
  if (dim == 0) return;
  cpu::use_one_blas_thread();
  const auto n = static_cast<blasint>(dim);
  cblas_dgemm(CblasRowMajor, a_transposed ? CblasTrans : CblasNoTrans, CblasNoTrans, n, n, n, 1, a.data(), n, b.data(),
              n, 0, out.data(), n);
}

void row_product(std::span<const float> a, std::span<const float> b, bool b_transposed, std::size_t k,
                 std::span<float> out) {
  OSCAR_CHECK(k > 0 && a.size() % k == 0 && b.size() % k == 0 && out.size() == a.size() / k * (b.size() / k));
  const auto m = static_cast<std::int64_t>(a.size() / k), n = static_cast<std::int64_t>(b.size() / k);
  const auto depth = static_cast<std::int64_t>(k);
  cpu::gemm({m, n, depth, b_transposed ? cpu::Transpose::kYes : cpu::Transpose::kNo}, a.data(), depth, b.data(),
            b_transposed ? depth : n, out.data(), n);
}

}  // namespace oscar
