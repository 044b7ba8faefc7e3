// A small model with every role that a parameter can have, and gradients for it.
#pragma once

#include <torchdion/optim.h>

#include "tensors.h"

namespace torchdion {

using torch::optim::OptimizerParamGroup;

struct Model {
  at::Tensor weight = leaf({12, 20}, 1), square = leaf({9, 9}, 2), bias = leaf({7}, 3), experts = leaf({3, 8, 10}, 4),
             vector = leaf({5}, 5);

  static at::Tensor leaf(at::IntArrayRef sizes, uint64_t seed) { return normal(sizes, seed).requires_grad_(); }

  std::vector<at::Tensor> params() const { return {weight, square, bias, experts, vector}; }

  // Matrices and a bias, experts, and a vector under AdamW.
  std::vector<OptimizerParamGroup> groups(const DionOptions& options = DionOptions(0.1).rank_fraction(0.5)) const {
    DionOptions stack = options, adamw = options;
    stack.batch_dims(1).orientation(Orientation::left);
    adamw.algorithm("adamw").lr_multiplier(0.5).rank_fraction(1);  // which AdamW does not have
    std::vector<OptimizerParamGroup> all;
    all.emplace_back(std::vector<at::Tensor>{weight, square, bias}, std::make_unique<DionOptions>(options));
    all.emplace_back(std::vector<at::Tensor>{experts}, std::make_unique<DionOptions>(stack));
    all.emplace_back(std::vector<at::Tensor>{vector}, std::make_unique<DionOptions>(adamw));
    return all;
  }

  void give_gradients(uint64_t seed) const {
    for (at::Tensor& param : params()) param.mutable_grad() = normal(param.sizes(), ++seed * 1000);
  }

  Model clone() const {
    Model copy = *this;
    for (at::Tensor Model::*member : {&Model::weight, &Model::square, &Model::bias, &Model::experts, &Model::vector}) {
      copy.*member = (this->*member).detach().clone().requires_grad_();
    }
    return copy;
  }

  static std::vector<at::Tensor> snapshot(const std::vector<at::Tensor>& tensors) {
    std::vector<at::Tensor> copies;
    for (const at::Tensor& tensor : tensors) copies.push_back(tensor.detach().clone());
    return copies;
  }
};

inline void take_steps(Dion& optimizer, const Model& model, int first, int count) {
  for (int step = first; step < first + count; ++step) {
    model.give_gradients(step);
    optimizer.step();
  }
}

inline void expect_bitwise_equal(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(bitwise_equal(a[i].detach(), b[i].detach())) << "tensor " << i;
}

// what() of the c10::Error that `call` throws: the sentence alone; empty when it throws none.
template <class Call>
std::string message_of(const Call& call) {
  try {
    call();
  } catch (const c10::Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace torchdion
