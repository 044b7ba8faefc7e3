#include "linalg/operators.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <c10/core/Allocator.h>

#include <algorithm>
#include <set>

#include "linalg/recorder.h"

namespace torchdion::linalg {

namespace {

thread_local bool are_recorded = false;
thread_local c10::DeviceType recorded_type = c10::kCUDA;

// What an expanded tensor repeats counts once.
int64_t bytes_of(const at::Tensor& tensor) {
  int64_t numel = 1;
  for (int64_t d = 0; d < tensor.dim(); ++d) numel *= tensor.stride(d) == 0 ? 1 : tensor.size(d);
  return numel * static_cast<int64_t>(tensor.element_size());
}

// Calls use(tensor) for each that has a place in memory.
template <class Values, class Use>
void each_tensor(const Values& values, const Use& use) {
  const auto use_dense = [&](const at::Tensor& tensor) {
    if (tensor.defined() && tensor.layout() == at::kStrided) use(tensor);
  };
  for (const c10::IValue& value : values) {
    if (value.isTensor()) use_dense(value.toTensor());
    if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) use_dense(tensor);
    }
  }
}

// An operator that is running.
struct Running final : at::ObserverContext {
  std::string name;
  Running* caller = nullptr;
  bool launches = false, is_part = false;     // of one that launches
  bool on_device = false, elsewhere = false;  // where its tensors lie
  int64_t bytes = 0;                          // read and written on the device

  void add(const at::Tensor& tensor, bool counts) {
    const bool is_recorded = tensor.device().type() == recorded_type;
    (is_recorded ? on_device : elsewhere) = true;
    if (is_recorded && counts) bytes += bytes_of(tensor);
  }
};

thread_local Running* innermost = nullptr;

// The first argument of these is only written.
bool overwrites(const std::string& name) {
  static const std::set<std::string> all{"aten::fill_", "aten::zero_", "aten::copy_"};
  return all.count(name) > 0;
}

bool copies(const std::string& name) { return name == "aten::copy_" || name == "aten::_to_copy"; }

// Neither a view nor memory that nobody has written.
bool launches(const c10::FunctionSchema& schema) {
  if (schema.name().rfind("aten::empty", 0) == 0 || schema.name().rfind("aten::new_empty", 0) == 0) return false;
  const auto writes = [](const c10::Argument& argument) {
    return argument.alias_info() && argument.alias_info()->isWrite();
  };
  const auto is_alias = [](const c10::Argument& result) { return result.alias_info() != nullptr; };
  return std::any_of(schema.arguments().begin(), schema.arguments().end(), writes) ||
         std::none_of(schema.returns().begin(), schema.returns().end(), is_alias);
}

std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function) {
  auto running = std::make_unique<Running>();
  running->caller = innermost;
  innermost = running.get();
  const std::optional<c10::FunctionSchema> schema = function.operator_schema();
  running->launches = schema && launches(*schema);
  running->is_part = running->caller && (running->caller->is_part || running->caller->launches);
  if (!running->launches || running->is_part) return running;
  running->name = schema->name();
  bool is_read = !overwrites(running->name);
  each_tensor(function.inputs(), [&](const at::Tensor& tensor) {
    running->add(tensor, is_read);
    is_read = true;
  });
  return running;
}

void end(const at::RecordFunction& function, at::ObserverContext* context) {
  auto& running = static_cast<Running&>(*context);
  innermost = running.caller;
  if (!running.launches || running.is_part) return;
  each_tensor(function.outputs(), [&](const at::Tensor& tensor) { running.add(tensor, true); });
  if (!running.on_device) return;
  const bool crosses = running.elsewhere && copies(running.name);
  record({.name = running.name + (crosses ? " between devices" : ""), .work = {running.bytes}});
}

struct ReportedAllocations final : c10::MemoryReportingInfoBase {
  void reportMemoryUsage(void*, int64_t bytes, std::size_t, std::size_t, c10::Device device) override {
    if (device.type() == recorded_type) record_allocation(bytes);
  }
  bool memoryProfilingEnabled() const override { return true; }
};

}  // namespace

RecordedOperators::RecordedOperators(c10::DeviceType type) {
  TORCH_CHECK_VALUE(!are_recorded || type == recorded_type, "torchdion: launches on ", recorded_type,
                    " are recorded here already, and those on ", type, " cannot be at the same time");
  if (are_recorded) return;
  const auto kind = c10::DebugInfoKind::PROFILER_STATE;
  TORCH_CHECK_VALUE(!c10::ThreadLocalDebugInfo::get(kind),
                    "torchdion: launches cannot be recorded while torch's profiler is on");
  are_recorded = true;
  recorded_type = type;
  allocations_ = std::make_unique<c10::DebugInfoGuard>(kind, std::make_shared<ReportedAllocations>());
  handle_ = at::addThreadLocalCallback(
      at::RecordFunctionCallback(begin, end).needsInputs(true).needsOutputs(true).scopes({at::RecordScope::FUNCTION}));
}

RecordedOperators::~RecordedOperators() {
  if (handle_ == at::INVALID_CALLBACK_HANDLE) return;
  at::removeCallback(handle_);
  are_recorded = false;
}

}  // namespace torchdion::linalg
