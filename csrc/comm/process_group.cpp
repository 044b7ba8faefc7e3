#include <torchdion/process_group.h>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "one_sentence.h"

namespace torchdion {

c10::intrusive_ptr<c10d::ProcessGroup> gloo_group(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                                  const GlooOptions& options) try {
  using Gloo = c10d::ProcessGroupGloo;
  TORCH_CHECK_VALUE(store, "torchdion::gloo_group: the store must be one, got null");
  TORCH_CHECK_VALUE(size >= 1 && rank >= 0 && rank < size,
                    "torchdion::gloo_group: rank must be in [0, size), got rank ", rank, " of size ", size);
  TORCH_CHECK_VALUE(options.timeout.count() > 0, "torchdion::gloo_group: timeout must be positive, got ",
                    options.timeout.count(), " ms");
  const c10::intrusive_ptr<Gloo::Options> of_gloo = Gloo::Options::create(options.timeout);
  of_gloo->devices.push_back(options.hostname.empty() ? Gloo::createDefaultDevice()
                                                      : Gloo::createDeviceForHostname(options.hostname));
  auto group = c10::make_intrusive<c10d::ProcessGroup>(store, rank, size);
  group->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::GLOO,
                    c10::make_intrusive<Gloo>(store, rank, size, of_gloo));
  group->setDefaultBackend(c10d::ProcessGroup::BackendType::GLOO);
  if (!options.name.empty()) {
    group->setGroupName(options.name);
    c10d::register_process_group(options.name, group);
  }
  return group;
} catch (const c10::ValueError&) {
  rethrow_in_one_sentence();
} catch (const std::exception& error) {
  throw c10::DistBackendError(
      c10::str("torchdion::gloo_group: rank ", rank, " of ", size, " cannot join: ", sentence_of(error)), nullptr);
}

}  // namespace torchdion
