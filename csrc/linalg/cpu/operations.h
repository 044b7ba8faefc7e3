// The operations of linalg::Backend on the CPU.
#pragma once

#include "linalg/backend.h"

namespace torchdion::linalg::cpu {

struct Operations {
  static void upload(const std::vector<Matrices*>&) {}
  static void copy_(const Matrices& A, const Matrices& B, double alpha, const float* left_out = nullptr);
  static void clear_(const Matrices& A, const float* left_out, const float* unchanged);
  static void accumulate_(const Matrices& M, const Matrices& G, const GradientRule& rule);
  static void count_nonfinite(const Matrices& G, int64_t* found);
  static at::Tensor device_factors(const FactorRule& rule, at::TensorOptions options);
  static void gemm_(const Matrices& C, const Matrices& A, const Matrices& B, const Factor& alpha, const Factor& beta,
                    Precision precision);
  static at::Tensor column_square_sums(const Matrices& R);
  static void column_normalize_(const Matrices& Q, const Matrices& R, const at::Tensor& square_sums);
  static void sketch_(const at::Tensor& out, RandomMatrix random, int64_t row_offset, int64_t col_offset,
                      double standard_deviation);
  static void round_operand_(const at::Tensor&, Precision) {}
  static at::Tensor gram(const Matrices& P, const CholeskyPass& pass);
  static TriangularInverse cholesky_inverse(at::Tensor gram, CholeskyPass& pass);
  static void multiply_triangular_(const Matrices& out, const Matrices& P, const TriangularInverse& factor,
                                   Precision precision);
  static TriangularInverse sketch_qr_inverse(const at::Tensor& SP, Noise noise, at::ScalarType dtype,
                                             Precision precision, int64_t* in_margin);
  static void lion_(const ElementwiseLists& lists, const LionHyperparameters& hyper);
  static void adamw_(const ElementwiseLists& lists, const AdamWHyperparameters& hyper);
  static bool is_capturing(c10::Device) { return false; }
  static constexpr bool multiplies_in_place = true, rounds_operands = false;
};

}  // namespace torchdion::linalg::cpu
