#include "comm/trace.h"

namespace torchdion::comm {

constinit thread_local Trace* active_trace = nullptr;

}  // namespace torchdion::comm
