// The operations of linalg::Backend on CUDA.
#pragma once

#include "linalg/backend.h"
#include "linalg/cuda/block.h"
#include "linalg/factor_dtypes.h"

namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE {

struct Operations {
  static decltype(linalg::upload) upload;
  static decltype(linalg::copy_) copy_;
  static decltype(linalg::clear_) clear_;
  static decltype(linalg::accumulate_) accumulate_;
  static decltype(linalg::look_ahead_) look_ahead_;
  static decltype(linalg::axpby_) axpby_;
  static decltype(linalg::row_sums) row_sums;
  static decltype(linalg::accumulate_row_sums_) accumulate_row_sums_;
  static decltype(linalg::choose_rows) choose_rows;
  static decltype(linalg::take_rows_) take_rows_;
  static decltype(linalg::decay_rows_) decay_rows_;
  static decltype(linalg::row_factors_) row_factors_;
  static decltype(linalg::keep_norms) keep_norms;
  static decltype(linalg::frobenius_normalize_) frobenius_normalize_;
  static decltype(linalg::add_identity_) add_identity_;
  static decltype(linalg::count_nonfinite) count_nonfinite;
  static decltype(linalg::device_factors) device_factors;
  static decltype(linalg::top_k) top_k;
  static decltype(linalg::gemm_) gemm_;
  static decltype(linalg::addmm_) addmm_;
  static decltype(linalg::column_square_sums) column_square_sums;
  static decltype(linalg::column_normalize_) column_normalize_;
  static decltype(linalg::residual_scales) residual_scales;
  static decltype(linalg::take_signs_) take_signs_;
  static decltype(linalg::move_by_signs_) move_by_signs_;
  static decltype(linalg::move_by_scaled_) move_by_scaled_;
  static decltype(linalg::sketch_) sketch_;
  static decltype(linalg::round_operand_) round_operand_;
  static decltype(linalg::gram) gram;
  static decltype(linalg::cholesky_inverse) cholesky_inverse;
  static decltype(linalg::multiply_triangular_) multiply_triangular_;
  static decltype(linalg::sketch_qr_inverse) sketch_qr_inverse;
  static decltype(linalg::share_out) share_out;
  static decltype(linalg::lion_) lion_;
  static decltype(linalg::adamw_) adamw_;
  static Precision nearest_precision(Precision asked) { return asked; }
  static at::ScalarType factor_dtype(at::ScalarType dtype, Precision precision) {
    return factor_dtype_on_gpu(dtype, precision);
  }
  static at::ScalarType sum_dtype(at::ScalarType dtype, Precision precision) {
    return sum_dtype_on_gpu(dtype, precision);
  }
  static bool moves_in_one_pass(at::ScalarType factors, Precision precision) {
    return is_rounded_on_gpu(factors, precision);
  }
  static bool is_capturing(c10::Device device);

  static constexpr bool iterates_on_gram = true;
  static constexpr bool multiplies_in_place = false;
};

}  // namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE
