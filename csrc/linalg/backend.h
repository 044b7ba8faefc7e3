// The operations that every kind of device has code of its own for: the functions of these names in the other headers
// of linalg/ look where their operands lie and call them. None is called without entries to work on.
#pragma once

#include "linalg/cholesky_qr.h"
#include "linalg/elementwise.h"
#include "linalg/gemm.h"
#include "linalg/rates.h"
#include "linalg/sketch.h"

namespace torchdion::linalg {

struct Backend {
  void (*upload)(const std::vector<Matrices*>& lists);
  void (*copy_)(const Matrices& A, const Matrices& B, double alpha, const float* left_out);
  void (*clear_)(const Matrices& A, const float* left_out, const float* unchanged);
  void (*accumulate_)(const Matrices& M, const Matrices& G, const GradientRule& rule);
  void (*count_nonfinite)(const Matrices& G, int64_t* found);
  at::Tensor (*device_factors)(const FactorRule& rule, at::TensorOptions options);
  void (*gemm_)(const Matrices& C, const Matrices& A, const Matrices& B, const Factor& alpha, const Factor& beta,
                Precision precision);
  at::Tensor (*column_square_sums)(const Matrices& R);
  void (*column_normalize_)(const Matrices& Q, const Matrices& R, const at::Tensor& square_sums);
  void (*sketch_)(const at::Tensor& out, RandomMatrix random, int64_t row_offset, int64_t col_offset,
                  double standard_deviation);
  void (*round_operand_)(const at::Tensor& P, Precision precision);
  at::Tensor (*gram)(const Matrices& P, const CholeskyPass& pass);
  TriangularInverse (*cholesky_inverse)(at::Tensor gram, CholeskyPass& pass);
  void (*multiply_triangular_)(const Matrices& out, const Matrices& P, const TriangularInverse& factor,
                               Precision precision);
  TriangularInverse (*sketch_qr_inverse)(const at::Tensor& SP, Noise noise, at::ScalarType dtype, Precision precision,
                                         int64_t* in_margin);
  void (*lion_)(const ElementwiseLists& lists, const LionHyperparameters& hyper);
  void (*adamw_)(const ElementwiseLists& lists, const AdamWHyperparameters& hyper);
  bool (*is_capturing)(c10::Device device);  // whether a graph records what is started there
  bool multiplies_in_place;                  // multiply_triangular_
  bool rounds_operands;                      // to what a Precision says
};

// Made of the static functions of a struct Operations.
template <class Operations>
inline constexpr Backend kBackend{
    .upload = Operations::upload,
    .copy_ = Operations::copy_,
    .clear_ = Operations::clear_,
    .accumulate_ = Operations::accumulate_,
    .count_nonfinite = Operations::count_nonfinite,
    .device_factors = Operations::device_factors,
    .gemm_ = Operations::gemm_,
    .column_square_sums = Operations::column_square_sums,
    .column_normalize_ = Operations::column_normalize_,
    .sketch_ = Operations::sketch_,
    .round_operand_ = Operations::round_operand_,
    .gram = Operations::gram,
    .cholesky_inverse = Operations::cholesky_inverse,
    .multiply_triangular_ = Operations::multiply_triangular_,
    .sketch_qr_inverse = Operations::sketch_qr_inverse,
    .lion_ = Operations::lion_,
    .adamw_ = Operations::adamw_,
    .is_capturing = Operations::is_capturing,
    .multiplies_in_place = Operations::multiplies_in_place,
    .rounds_operands = Operations::rounds_operands,
};

// Of the device's type. Throws c10::NotImplementedError where this build has none.
const Backend& backend_of(c10::Device device);
bool has_backend(c10::DeviceType type);

// What products on the device are computed with where this precision is asked for.
Precision precision_on(c10::Device device, Precision precision);

// For tests: another one from now on; returns the one before.
const Backend* exchange_backend(c10::DeviceType type, const Backend* backend);

}  // namespace torchdion::linalg
