// The operations of linalg::Backend on the CPU.
#pragma once

#include "linalg/backend.h"

namespace torchdion::linalg::cpu {

struct Operations {
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
  static decltype(linalg::sketch_) sketch_;
  static decltype(linalg::round_operand_) round_operand_;
  static decltype(linalg::gram) gram;
  static decltype(linalg::cholesky_inverse) cholesky_inverse;
  static decltype(linalg::multiply_triangular_) multiply_triangular_;
  static decltype(linalg::sketch_qr_inverse) sketch_qr_inverse;
  static decltype(linalg::share_out) share_out;
  static decltype(linalg::lion_) lion_;
  static decltype(linalg::adamw_) adamw_;

  // There is no TF32 on CPUs.
  static Precision nearest_precision(Precision asked) {
    return asked == Precision::medium ? Precision::medium : Precision::highest;
  }

  // FP32 operands are rounded as they are read.
  static at::ScalarType factor_dtype(at::ScalarType dtype, Precision) { return dtype; }
  static at::ScalarType sum_dtype(at::ScalarType, Precision) { return at::kDouble; }

  // Parts of a matrix that caches hold are as good as one pass.
  static bool moves_in_one_pass(at::ScalarType, Precision) { return false; }
  static bool move_by_signs_(const SignMove&) { return false; }
  static bool move_by_scaled_(const ScaledMove&) { return false; }

  // What CPUs have nothing to do for.
  static void upload(const std::vector<Matrices*>&) {}
  static bool is_capturing(c10::Device) { return false; }

  static constexpr bool iterates_on_gram = false;  // which computes half of each symmetric product
  static constexpr bool multiplies_in_place = true;
};

}  // namespace torchdion::linalg::cpu
