// Newton–Schulz iterations: the orthonormal factor of a matrix from products alone. Each step applies an odd polynomial
// to all singular values, which brings them towards 1; singular vectors stay.
#pragma once

#include <ATen/core/Tensor.h>
#include <torchdion/options.h>

#include <vector>

namespace torchdion::linalg {

// x → a x + b x³ + c x⁵ of singular values: X → a X + (b A + c A²) X with A = X Xᵀ.
struct Quintic {
  double a, b, c;

  double operator()(double x) const { return x * (a + x * x * (b + x * x * c)); }
};

// The polynomials of Polar Express (arXiv 2505.16932, Algorithm 1), each the best there is for what those before it
// leave of singular values between 10⁻³ and 1: to be applied to matrices that are divided by kPolarExpressSlack times
// their Frobenius norm. All but the last leave room for what rounding adds to the largest singular value, which would
// grow from step to step if it left the range of the next polynomial: 2% suffice for products in BF16, but not for
// polynomials of Gram matrices in BF16, which diverge for some matrices at 2% and for none that was tried at 5%.
inline constexpr double kPolarExpressSlack = 1.02, kHalfGramSlack = 1.08;
std::vector<Quintic> polar_express(int64_t steps, double slack = kPolarExpressSlack);

// Jordan's polynomial (https://kellerjordan.github.io/posts/muon, 2024), for any number of steps: steep at 0, at the
// price of singular values that end between 0.7 and 1.2.
inline constexpr Quintic kJordan{3.4445, -4.7750, 2.0315};

struct NewtonSchulzSteps {
  std::vector<Quintic> polynomials;
  double slack = 1;      // matrices are divided by so many times their Frobenius norm first
  bool on_gram = false;  // see newton_schulz()
};

// What X ([count, m, n] in the dtype to compute in, contiguous or the transpose of what is) becomes after these steps;
// matrices of zeros stay. X is written over. The products are of this precision. `squares`: of X, as look_ahead_()
// returns them; those of FP64 are summed anew.
//
// On the Gram matrix, two or three polynomials at a time are evaluated as matrices of the shorter side alone, functions
// of A = X Xᵀ, and then multiplied by X: two products with X for all of them in place of two for each. In BF16 it ends
// about as close to the polynomials as one by one.
at::Tensor newton_schulz(at::Tensor X, const NewtonSchulzSteps& steps, Precision precision,
                         const at::Tensor& squares = {});

// Floating-point operations for one m×n matrix in this dtype, where symmetric products are computed whole.
int64_t newton_schulz_operations(int64_t m, int64_t n, const NewtonSchulzSteps& steps, at::ScalarType dtype);

// Bytes beside such a matrix.
int64_t newton_schulz_bytes(int64_t m, int64_t n, const NewtonSchulzSteps& steps, at::ScalarType dtype);

// X_i / (slack ‖X_i‖_F) for every matrix of X ([count, m, n], contiguous or the transpose of what is). On CPUs X itself
// is divided, and nothing is returned. GPUs return what it is still to be multiplied by ([count], in the computing
// dtype), and change entries by powers of two alone, where their products would leave the range of FP32. Matrices of
// zeros stay, with a factor of 0.
//
// Squares are summed in FP64, whose range those of FP64 entries must not leave. `squares`: what look_ahead_() has
// summed of X, or undefined.
at::Tensor frobenius_normalize_(const at::Tensor& X, double slack, const at::Tensor& squares = {});

// B_i ← f_i^power (A_i + a I) of square matrices ([count, p, p], contiguous, alike in dtype). B may be A. `factors`:
// [count], in the computing dtype; undefined: 1.
void add_identity_(const at::Tensor& B, const at::Tensor& A, double a, const at::Tensor& factors = {}, int power = 1);

}  // namespace torchdion::linalg
