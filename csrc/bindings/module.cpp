// The module, and what it records of steps.
#include "bindings/bindings.h"
#include "comm/trace.h"
#include "linalg/backend.h"
#include "linalg/memory.h"
#include "linalg/operators.h"
#include "linalg/recorder.h"

namespace torchdion::bindings {

std::string& front() {
  thread_local std::string called = "torchdion";
  return called;
}

namespace {

// Records for its lifetime what the steps of this thread do.
struct Tracing {
  comm::Trace trace;
  Tracing() { comm::active_trace = &trace; }
  ~Tracing() { comm::active_trace = nullptr; }
};

// The events of run(), in order.
py::list trace_of(const py::function& run) {
  const Tracing tracing;
  run();
  py::list events;
  for (const comm::Event& event : tracing.trace.events) {
    events.append(py::dict(py::arg("what") = event.what, py::arg("task") = event.task, py::arg("axis") = event.axis,
                           py::arg("kind") = event.kind, py::arg("elements") = event.elements));
  }
  return events;
}

py::dict as_python(const linalg::Launches& each) {
  py::dict row(py::arg("name") = each.name, py::arg("launches") = each.count,
               py::arg("blocks") = each.count * each.blocks, py::arg("threads") = each.threads,
               py::arg("bytes") = each.count * each.work.bytes,
               py::arg("operations") = each.count * each.work.operations);
  const linalg::ProductShape& product = each.product;
  if (product.count == 0) return row;
  row["m"] = product.m;
  row["n"] = product.n;
  row["k"] = product.k;
  row["count"] = product.count;
  row["given"] = product.by_pointers ? "pointers" : "stack";
  return row;
}

// What step() asks of devices of the type: launches, and then what it allocates there.
py::list launches_of(const py::function& step, const std::string& device_type) {
  const linalg::Recorder recorder;
  {
    const linalg::RecordedOperators operators(c10::Device(device_type).type());
    step();
  }
  py::list rows;
  for (const linalg::Launches& each : recorder.launches()) rows.append(as_python(each));
  const linalg::Allocations& all = recorder.allocations();
  rows.append(py::dict(py::arg("name") = "allocation", py::arg("count") = all.count, py::arg("bytes") = all.bytes,
                       py::arg("peak_bytes") = all.peak));
  return rows;
}

}  // namespace

}  // namespace torchdion::bindings

PYBIND11_MODULE(_C, m) {
  using namespace torchdion;
  using namespace torchdion::bindings;
  m.doc() = "torchdion's C++ engine";
  bind_options(m);
  bind_layout(m);
  bind_states(m);
  bind_core(m);
  bind_others(m);
  bind_routing(m);
  m.def("trace_of", &trace_of, py::arg("run"));
  m.def("launches_of", &launches_of, py::arg("step"), py::arg("device_type") = "cuda");
  m.def("has_memory", &linalg::has_memory);
  m.def("has_kernels_for", [](const std::string& type) { return linalg::has_backend(c10::Device(type).type()); });
  m.def(
      "front",
      [](const std::optional<std::string>& called) { return called ? std::exchange(front(), *called) : front(); },
      py::arg("called") = py::none());
}
