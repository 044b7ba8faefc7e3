// What differs between the versions of torch that the library is built for, 2.10 and later: each difference is a
// function of one name here, and no other file asks for a version. What a version has is asked of its types, by
// functions whose parameter is a template's: only there may an expression name what a type lacks.
#pragma once

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <vector>

namespace torchdion::torch_versions {

// c10d's collectives on one tensor each have canonical names since 2.15, which deprecates the former ones.

template <class Group>
c10::intrusive_ptr<c10d::Work> all_gather(Group& group, at::Tensor& output, at::Tensor& input) {
  if constexpr (requires { group.all_gather_single(output, input); }) {
    return group.all_gather_single(output, input);
  } else {
    return group._allgather_base(output, input);
  }
}

template <class Group>
c10::intrusive_ptr<c10d::Work> reduce_scatter(Group& group, at::Tensor& output, at::Tensor& input) {
  if constexpr (requires { group.reduce_scatter_single(output, input); }) {
    return group.reduce_scatter_single(output, input);
  } else {
    return group._reduce_scatter_base(output, input);
  }
}

template <class Group>
c10::intrusive_ptr<c10d::Work> all_to_all(Group& group, at::Tensor& output, at::Tensor& input,
                                          std::vector<int64_t>& received, std::vector<int64_t>& sent) {
  if constexpr (requires { group.all_to_all_single(output, input, received, sent); }) {
    return group.all_to_all_single(output, input, received, sent);
  } else {
    return group.alltoall_base(output, input, received, sent);
  }
}

// Of a gradient that is to come. Parameters of older versions have gradients of their own dtype.

template <class Tensor>
at::ScalarType dtype_of_gradient(const Tensor& param) {
  if constexpr (requires { param.grad_dtype(); }) {
    return param.grad_dtype().value_or(param.scalar_type());
  } else {
    return param.scalar_type();
  }
}

}  // namespace torchdion::torch_versions
