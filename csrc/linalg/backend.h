// The operations that every kind of device has code of its own for: the functions of these names in the other headers
// of linalg/ look where their operands lie and call them. None is called without entries to work on.
#pragma once

#include <bit>

#include "linalg/accumulate.h"
#include "linalg/axpby.h"
#include "linalg/column_normalize.h"
#include "linalg/copy.h"
#include "linalg/elementwise.h"
#include "linalg/gemm.h"
#include "linalg/newton_schulz.h"
#include "linalg/rates.h"
#include "linalg/residual.h"
#include "linalg/rows.h"
#include "linalg/share_out.h"
#include "linalg/sketch.h"
#include "linalg/top_k.h"
#include "linalg/triangular_inverse.h"

namespace torchdion::linalg {

// The code of one kind of device, as static functions of a struct Operations. Its signature is that of the function by
// which an operation is called: none is written twice.
template <class Operations>
struct Table {
  decltype(linalg::upload)* upload = Operations::upload;
  decltype(linalg::copy_)* copy_ = Operations::copy_;
  decltype(linalg::clear_)* clear_ = Operations::clear_;
  decltype(linalg::accumulate_)* accumulate_ = Operations::accumulate_;
  decltype(linalg::look_ahead_)* look_ahead_ = Operations::look_ahead_;
  decltype(linalg::axpby_)* axpby_ = Operations::axpby_;
  decltype(linalg::row_sums)* row_sums = Operations::row_sums;
  decltype(linalg::accumulate_row_sums_)* accumulate_row_sums_ = Operations::accumulate_row_sums_;
  decltype(linalg::choose_rows)* choose_rows = Operations::choose_rows;
  decltype(linalg::take_rows_)* take_rows_ = Operations::take_rows_;
  decltype(linalg::decay_rows_)* decay_rows_ = Operations::decay_rows_;
  decltype(linalg::row_factors_)* row_factors_ = Operations::row_factors_;
  decltype(linalg::keep_norms)* keep_norms = Operations::keep_norms;
  decltype(linalg::frobenius_normalize_)* frobenius_normalize_ = Operations::frobenius_normalize_;
  decltype(linalg::add_identity_)* add_identity_ = Operations::add_identity_;
  decltype(linalg::count_nonfinite)* count_nonfinite = Operations::count_nonfinite;
  decltype(linalg::device_factors)* device_factors = Operations::device_factors;
  decltype(linalg::top_k)* top_k = Operations::top_k;
  decltype(linalg::gemm_)* gemm_ = Operations::gemm_;
  decltype(linalg::addmm_)* addmm_ = Operations::addmm_;
  decltype(linalg::column_square_sums)* column_square_sums = Operations::column_square_sums;
  decltype(linalg::column_normalize_)* column_normalize_ = Operations::column_normalize_;
  decltype(linalg::residual_scales)* residual_scales = Operations::residual_scales;
  decltype(linalg::take_signs_)* take_signs_ = Operations::take_signs_;
  decltype(linalg::move_by_signs_)* move_by_signs_ = Operations::move_by_signs_;
  decltype(linalg::move_by_scaled_)* move_by_scaled_ = Operations::move_by_scaled_;
  decltype(linalg::sketch_)* sketch_ = Operations::sketch_;
  decltype(linalg::round_operand_)* round_operand_ = Operations::round_operand_;
  decltype(linalg::gram)* gram = Operations::gram;
  decltype(linalg::cholesky_inverse)* cholesky_inverse = Operations::cholesky_inverse;
  decltype(linalg::multiply_triangular_)* multiply_triangular_ = Operations::multiply_triangular_;
  decltype(linalg::sketch_qr_inverse)* sketch_qr_inverse = Operations::sketch_qr_inverse;
  decltype(linalg::share_out)* share_out = Operations::share_out;
  decltype(linalg::lion_)* lion_ = Operations::lion_;
  decltype(linalg::adamw_)* adamw_ = Operations::adamw_;
  Precision (*nearest_precision)(Precision asked) = Operations::nearest_precision;  // of those that the device has
  // What P is stored in for its products, and what its Gram matrices and sketches are summed in.
  at::ScalarType (*factor_dtype)(at::ScalarType dtype, Precision precision) = Operations::factor_dtype;
  at::ScalarType (*sum_dtype)(at::ScalarType dtype, Precision precision) = Operations::sum_dtype;
  bool (*moves_in_one_pass)(at::ScalarType factors, Precision precision) = Operations::moves_in_one_pass;
  bool iterates_on_gram = Operations::iterates_on_gram;                 // newton_schulz()
  bool (*is_capturing)(c10::Device device) = Operations::is_capturing;  // whether a graph records what is started there
  bool multiplies_in_place = Operations::multiplies_in_place;           // multiply_triangular_
};

// Of any kind of device: tables are of one shape.
using Backend = Table<void>;

template <class Operations>
const Backend& backend_made_of() {
  static const Backend backend = std::bit_cast<Backend>(Table<Operations>());
  return backend;
}

// Of the device's type. Throws c10::NotImplementedError where this build has none.
const Backend& backend_of(c10::Device device);
bool has_backend(c10::DeviceType type);

// What products on the device are computed with where this precision is asked for.
Precision precision_on(c10::Device device, Precision precision);

// What P, of this dtype, is stored in on its device for products of this precision. Where this build has no kernels, as
// for Meta tensors, what a GPU stores.
at::ScalarType factor_dtype(c10::Device device, at::ScalarType dtype, Precision precision);

// What its Gram matrix is summed in.
at::ScalarType sum_dtype(c10::Device device, at::ScalarType dtype, Precision precision);

// Whether the device moves weights by a residual in one pass over them (residual.h), by P and R of this dtype and
// products of this precision. Where this build has no kernels, whether a GPU does.
bool moves_in_one_pass(c10::Device device, at::ScalarType factors, Precision precision);

// Whether Newton–Schulz iterations on Gram matrices are faster on the device where they have fewer operations. Where
// this build has no kernels, whether they are on a GPU.
bool iterates_on_gram(c10::Device device);

// For tests: another one from now on; returns the one before.
const Backend* exchange_backend(c10::DeviceType type, const Backend* backend);

}  // namespace torchdion::linalg
