// Axes and layouts.
#include <torchdion/layout.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "bindings/bindings.h"
#include "comm/line.h"

namespace torchdion::bindings {

void bind_layout(py::module_& m) {
  const auto counted = [](const Traffic& traffic) {
    return py::dict(py::arg("calls") = traffic.calls, py::arg("elements") = traffic.elements,
                    py::arg("bytes") = traffic.bytes);
  };
  py::class_<Axis>(m, "Axis")
      .def(py::init<>())
      .def(py::init([](c10::intrusive_ptr<c10d::ProcessGroup> group, std::string name, std::vector<int> chunks,
                       std::vector<int> pieces, bool real_when_alone) {
             return Axis(std::move(group), {std::move(name), std::move(chunks), std::move(pieces), real_when_alone});
           }),
           py::arg("group"), py::kw_only(), py::arg("name") = "", py::arg("chunks") = std::vector<int>(),
           py::arg("pieces") = std::vector<int>(), py::arg("real_when_alone") = false)
      .def_readonly("rank", &Axis::rank)
      .def_readonly("size", &Axis::size)
      .def_property_readonly("name", &Axis::name)
      .def_property_readonly("absent", &Axis::absent)
      .def_property_readonly(
          "group",
          [](const Axis& self) { return self.absent() ? c10::intrusive_ptr<c10d::ProcessGroup>() : self.line->group; })
      .def("set_in_flight_group", &Axis::set_in_flight_group, py::arg("group"), py::call_guard<PythonWords>())
      .def("piece",
           [](const Axis& self, int64_t length) {
             const Piece piece = self.piece(length);
             return std::pair(piece.begin, piece.size);
           })
      .def("traffic", [counted](const Axis& self) {
        const AxisTraffic traffic = self.traffic();
        return py::dict(
            py::arg("all_reduce") = counted(traffic.all_reduce),
            py::arg("reduce_scatter") = counted(traffic.reduce_scatter),
            py::arg("all_to_all") = counted(traffic.all_to_all), py::arg("all_gather") = counted(traffic.all_gather),
            py::arg("completion") = counted(traffic.completion), py::arg("agreement") = counted(traffic.agreement));
      });
  py::class_<Layout>(m, "Layout")
      .def(py::init<Axis, Axis, Axis, Axis, Axis, std::vector<int64_t>, bool>(), py::kw_only(),
           py::arg("rows") = Axis(), py::arg("cols") = Axis(), py::arg("replicas") = Axis(), py::arg("copies") = Axis(),
           py::arg("batch") = Axis(), py::arg("sizes") = std::vector<int64_t>(), py::arg("has_averaged_copies") = false)
      .def_readonly("rows", &Layout::rows)
      .def_readonly("cols", &Layout::cols)
      .def_readonly("replicas", &Layout::replicas)
      .def_readonly("copies", &Layout::copies)
      .def_readonly("batch", &Layout::batch)
      .def_readonly("sizes", &Layout::sizes)
      .def_readonly("has_averaged_copies", &Layout::has_averaged_copies)
      .def_property_readonly("is_local", &Layout::is_local);
}

}  // namespace torchdion::bindings
