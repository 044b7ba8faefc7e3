// What the engine asks of every tensor, whichever algorithm it belongs to. Each throws c10::Error with one sentence.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

#include "algorithms/all.h"
#include "engine/matrix_form.h"

namespace torchdion::engine {

// "capturable=True", as the program writes it.
std::string captured();

// True if a graph captures what the tensor's device is given.
bool is_captured(const at::Tensor& tensor);

// Whether steps compute with it. FP8 is floating-point too, but nothing does.
bool is_computed(at::ScalarType dtype);

// Whether steps count themselves in it.
bool counts_steps(at::ScalarType dtype);

// The parameters are dense floating-point tensors, on devices that this build has kernels for, of which no two elements
// share memory.
void check_parameters(const std::vector<at::Tensor>& X);

// Each tensor has memory that holds all its elements: a resized storage would be read and written beyond its end, and a
// wrapper subclass of Python has none. Zeros without memory, which autograd makes, pass: see materialize().
void check_storage(const std::vector<at::Tensor>& X, const std::vector<at::Tensor>& tensors, const std::string& what);

// Each counter holds one whole number that is not negative and that a step can increment.
void check_steps(const std::vector<at::Tensor>& X, const std::vector<at::Tensor>& steps);

// Each counter is one FP32 number on its parameter's device.
void check_steps_on_devices(const std::vector<at::Tensor>& X, const std::vector<at::Tensor>& steps);

// A state has the tensors of its parameter's algorithm, and none of an algorithm that takes matrices where that one
// takes elements: options that turn a matrix into a vector would lose them.
void check_state_names(const algorithms::Algorithm& algorithm, const std::vector<std::string>& names,
                       at::IntArrayRef sizes, const std::string& name);

// The gradient of the parameter X has its shape, and memory on its device.
void check_gradient(const at::Tensor& X, const at::Tensor& G);
// A state of it is contiguous, with memory there; `what`: "state momentum".
void check_state(const at::Tensor& X, const at::Tensor& state, const std::string& what);
// A state has these sizes.
void check_state_sizes(const at::Tensor& X, at::IntArrayRef sizes, const at::Tensor& state, const std::string& what);
// One real number, as tensors of scalers and schedules hold it.
void check_number(const at::Tensor& tensor, const char* what);
// Factors of these sizes are of the matrices of a parameter of these sizes; `what`: "state Q". whose(): the parameter's
// name, which is looked up only when a sentence needs it.
void check_factor_sizes(const std::function<std::string()>& whose, at::IntArrayRef sizes, at::IntArrayRef factor,
                        MatrixForm form, const std::string& what);

}  // namespace torchdion::engine
