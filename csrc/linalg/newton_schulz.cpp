#include "linalg/newton_schulz.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <span>
#include <utility>

#include "linalg/gemm.h"
#include "linalg/share_out.h"

namespace torchdion::linalg {

namespace {

// Z ← b A + c A², the part of a polynomial beside a.
void polynomial_part_(const Matrices& Z, const Matrices& A, const Quintic& p, Precision precision) {
  addmm_(Z, A, A, A, p.c, p.b, precision, /*symmetric=*/true);
}

// B ← (a + Z) A, of symmetric matrices that commute.
void apply_(const Matrices& B, const Matrices& Z, const Matrices& A, double a, Precision precision) {
  addmm_(B, A, Z, A, 1, a, precision, /*symmetric=*/true);
}

// Matrices as large as A that the iterations need.
int64_t squares_of(const NewtonSchulzSteps& steps) { return steps.on_gram && steps.polynomials.size() > 1 ? 4 : 2; }

// As much memory beside some matrices of X as the iterations on them need.
struct Room {
  at::Tensor next, squares;  // as large as X; as A

  Room(const at::Tensor& X, int64_t count, int64_t of_A)
      : next(empty_like(X, count)), squares(at::empty({of_A, count, X.size(1), X.size(1)}, X.options())) {}

  // With the strides of X.
  static at::Tensor empty_like(const at::Tensor& X, int64_t count) {
    if (X.is_contiguous()) return at::empty({count, X.size(1), X.size(2)}, X.options());
    return at::empty({count, X.size(2), X.size(1)}, X.options()).transpose(1, 2);
  }
};

// X, with at most as many rows as columns, and the first `count` matrices of a room. Its first step multiplies it by
// the factors.
struct Iterate {
  at::Tensor X, next, squares, factors;

  Iterate(at::Tensor given, at::Tensor to_come, const Room& room)
      : X(std::move(given)),
        next(room.next.narrow(0, 0, X.size(0))),
        squares(room.squares.narrow(1, 0, X.size(0))),
        factors(std::move(to_come)) {}

  at::Tensor square(int64_t i) const { return squares.select(0, i); }
  // The Gram matrix of X as it is after its factors.
  void gram(const at::Tensor& A, Precision precision) const {
    const Matrices x(X), to(A);
    addmm_(to, to, x, x.t(), 1, 0, precision, /*symmetric=*/true);
    if (factors.defined()) add_identity_(A, A, 0, factors, 2);
  }
  // X ← (a + Z) X
  void multiply(const Matrices& Z, double a, Precision precision) {
    addmm_(Matrices(next), Matrices(X), Z, Matrices(X), 1, a, precision);
    std::swap(X, next);
  }
  // The same with the factors, which Z has already where it is multiplied alone.
  void multiply_first(const at::Tensor& Z, double a, Precision precision) {
    if (!factors.defined()) return multiply(Matrices(Z), a, precision);
    add_identity_(Z, Z, a, std::exchange(factors, {}));
    multiply(Matrices(Z), 0, precision);
  }
};

void one_by_one(Iterate& iterate, std::span<const Quintic> polynomials, Precision precision) {
  const at::Tensor A = iterate.square(0), Z = iterate.square(1);
  for (const Quintic& p : polynomials) {
    iterate.gram(A, precision);
    polynomial_part_(Matrices(Z), Matrices(A), p, precision);
    iterate.multiply_first(Z, p.a, precision);
  }
}

// The whole group as one matrix Q, a function of A = X Xᵀ, times X.
void all_at_once(Iterate& iterate, std::span<const Quintic> group, Precision precision) {
  const at::Tensor part = iterate.square(1);
  at::Tensor Q = iterate.square(2), other = iterate.square(3);
  const Matrices A(iterate.square(0)), Z(part);
  iterate.gram(iterate.square(0), precision);
  for (std::size_t k = 0; k < group.size(); ++k) {
    if (k > 0) {  // A of the next X
      apply_(Matrices(other), Z, A, group[k - 1].a, precision);
      apply_(A, Z, Matrices(other), group[k - 1].a, precision);
    }
    polynomial_part_(Z, A, group[k], precision);
    if (k == 0) {
      add_identity_(Q, part, group[0].a, std::exchange(iterate.factors, {}));
    } else {
      apply_(Matrices(other), Z, Matrices(Q), group[k].a, precision);
      std::swap(Q, other);
    }
  }
  iterate.multiply(Matrices(Q), 0, precision);
}

bool is_half(at::ScalarType dtype) { return c10::elementSize(dtype) < 4; }

// How many steps are taken at once. Q is as large as the product of the polynomials at 0, the first two of which are
// the steepest, and its rounding weighs on the largest singular values, which it brings to 1. In half precision what A
// loses from step to step may drive the largest singular values out of the range of later polynomials: no group has
// three.
std::size_t size_of_group(at::ScalarType dtype, std::size_t done, std::size_t left) {
  return std::min<std::size_t>(left, is_half(dtype) || done == 0 ? 2 : 3);
}

void iterate_all(Iterate& iterate, const NewtonSchulzSteps& steps, Precision precision) {
  const std::span<const Quintic> polynomials(steps.polynomials);
  std::size_t done = 0;
  while (steps.on_gram && polynomials.size() - done > 1) {
    const std::size_t size = size_of_group(iterate.X.scalar_type(), done, polynomials.size() - done);
    all_at_once(iterate, polynomials.subspan(done, size), precision);
    done += size;
  }
  one_by_one(iterate, polynomials.subspan(done), precision);
}

}  // namespace

at::Tensor newton_schulz(at::Tensor X, const NewtonSchulzSteps& steps, Precision precision, const at::Tensor& squares) {
  if (X.numel() == 0) return X;
  const bool is_tall = X.size(1) > X.size(2);
  if (is_tall) X = X.transpose(1, 2);
  at::Tensor result = X;
  const bool takes_squares = squares.defined() && X.scalar_type() != at::kDouble;
  const int64_t count = X.size(0), numel = X.size(1) * X.size(2);
  const Need of_each{numel * static_cast<int64_t>(X.element_size()),
                     newton_schulz_operations(X.size(1), X.size(2), steps, X.scalar_type())};
  share_out(X.device(), count, of_each, [&](const Share& share) {
    const Room room(X, std::min(share.at_once, share.end - share.begin), squares_of(steps));
    for (int64_t first = share.begin; first < share.end; first += share.at_once) {
      const at::Tensor some = X.narrow(0, first, std::min(share.at_once, share.end - first));
      const at::Tensor own = takes_squares ? squares.narrow(0, first, some.size(0)) : at::Tensor();
      Iterate iterate(some, frobenius_normalize_(some, steps.slack, own), room);
      iterate_all(iterate, steps, precision);
      if (iterate.factors.defined()) some.mul_(iterate.factors.view({-1, 1, 1}));  // of no steps
      if (some.size(0) == count) {
        result = iterate.X;
      } else if (!iterate.X.is_same(some)) {
        some.copy_(iterate.X);
      }
    }
  });
  return is_tall ? result.transpose(1, 2) : result;
}

int64_t newton_schulz_operations(int64_t m, int64_t n, const NewtonSchulzSteps& steps, at::ScalarType dtype) {
  const int64_t p = std::min(m, n), with_X = 2 * p * p * std::max(m, n), of_grams = 2 * p * p * p;
  const std::size_t count = steps.polynomials.size();
  int64_t operations = 0;
  std::size_t done = 0;
  while (done < count) {
    const std::size_t size = steps.on_gram ? size_of_group(dtype, done, count - done) : 1;
    operations += 2 * with_X + (4 * static_cast<int64_t>(size) - 3) * of_grams;
    done += size;
  }
  return operations;
}

int64_t newton_schulz_bytes(int64_t m, int64_t n, const NewtonSchulzSteps& steps, at::ScalarType dtype) {
  const int64_t p = std::min(m, n);
  return (m * n + squares_of(steps) * p * p) * static_cast<int64_t>(c10::elementSize(dtype));
}

}  // namespace torchdion::linalg
