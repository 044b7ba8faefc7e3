// What the engine asks of every tensor, whichever algorithm it belongs to. Each throws c10::Error with one sentence.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "engine/matrix_form.h"

namespace torchdion::engine {

// Whether steps compute with it. FP8 is floating-point too, but nothing does.
bool is_computed(at::ScalarType dtype);

// The parameters are dense floating-point tensors, on devices that this build has kernels for, of which no two elements
// share memory.
void check_parameters(const std::vector<at::Tensor>& X);

// Each tensor has memory that holds all its elements: a resized storage would be read and written beyond its end, and a
// wrapper subclass of Python has none. Zeros without memory, which autograd makes, pass: see materialize().
void check_storage(const std::vector<at::Tensor>& X, const std::vector<at::Tensor>& tensors, const char* what);

// Each counter holds one whole number that is not negative and that a step can increment.
void check_steps(const std::vector<at::Tensor>& X, const std::vector<at::Tensor>& steps);

// Each counter is one FP32 number on its parameter's device.
void check_steps_on_devices(const std::vector<at::Tensor>& X, const std::vector<at::Tensor>& steps);

// The gradient, or a state, of the parameter X has its shape; a Q of these sizes is one of its matrices.
void check_gradient(const at::Tensor& X, const at::Tensor& G);
void check_Q_sizes(const at::Tensor& X, at::IntArrayRef sizes, at::IntArrayRef Q, MatrixForm form);
void check_Q_memory(const at::Tensor& X, const at::Tensor& Q);
void check_elementwise_state(const at::Tensor& X, const at::Tensor& state, const char* what);

}  // namespace torchdion::engine
