// The pybind11 table: what the Python front calls.
#include <pybind11/functional.h>
#include <torch/csrc/utils/pybind.h>
#include <torchdion/layout.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "comm/pieces.h"
#include "comm/trace.h"
#include "engine/agreement.h"
#include "engine/shapes.h"
#include "engine/state.h"
#include "engine/step.h"
#include "engine/traffic.h"
#include "engine/words.h"
#include "linalg/backend.h"
#include "linalg/memory.h"
#include "linalg/operators.h"
#include "linalg/recorder.h"

namespace py = pybind11;
using namespace torchdion;

namespace {

using Tensors = std::vector<at::Tensor>;

// Of every call that the engine may refuse.
struct PythonWords {
  engine::Speaking python{{"torchdion.Dion", "capturable=True", "nonfinite='raise'",
                           [](c10::ScalarType type) { return std::string(c10::getDtypeNames(type).first); }}};
};

void bind_hyperparameters(py::module_& m) {
  py::enum_<Orientation>(m, "Orientation").value("right", Orientation::right).value("left", Orientation::left);
  py::enum_<Orthonormalize>(m, "Orthonormalize")
      .value("auto", Orthonormalize::automatic)
      .value("rcqr", Orthonormalize::rcqr)
      .value("cholesky_qr", Orthonormalize::cholesky_qr)
      .value("qr", Orthonormalize::qr);
  py::enum_<Nonfinite>(m, "Nonfinite")
      .value("propagate", Nonfinite::propagate)
      .value("zero", Nonfinite::zero)
      .value("skip_step", Nonfinite::skip_step)
      .value("raise", Nonfinite::raise);
  py::enum_<Precision>(m, "Precision")
      .value("highest", Precision::highest)
      .value("high", Precision::high)
      .value("medium", Precision::medium);
  py::class_<DionHyperparameters>(m, "DionHyperparameters")
      .def(py::init<double, double, double, bool, Orthonormalize, double, int64_t, Precision>(), py::kw_only(),
           py::arg("lr"), py::arg("mu"), py::arg("weight_decay"), py::arg("maximize"), py::arg("orthonormalize"),
           py::arg("rcqr_oversample"), py::arg("seed"), py::arg("precision") = Precision::high);
  py::class_<LionHyperparameters>(m, "LionHyperparameters")
      .def(py::init<double, double, double, double, bool>(), py::kw_only(), py::arg("lr"), py::arg("beta1"),
           py::arg("beta2"), py::arg("weight_decay"), py::arg("maximize"));
  py::class_<AdamWHyperparameters>(m, "AdamWHyperparameters")
      .def(py::init<double, double, double, double, double, bool>(), py::kw_only(), py::arg("lr"), py::arg("beta1"),
           py::arg("beta2"), py::arg("weight_decay"), py::arg("epsilon"), py::arg("maximize"));
}

void bind_layout(py::module_& m) {
  const auto counted = [](const Traffic& traffic) {
    return py::dict(py::arg("calls") = traffic.calls, py::arg("elements") = traffic.elements,
                    py::arg("bytes") = traffic.bytes);
  };
  py::class_<Axis>(m, "Axis")
      .def(py::init<>())
      .def(py::init([](c10::intrusive_ptr<c10d::ProcessGroup> group, std::string name, std::vector<int> chunks,
                       std::vector<int> places, bool real_when_alone) {
             return Axis(std::move(group), {std::move(name), std::move(chunks), std::move(places), real_when_alone});
           }),
           py::arg("group"), py::kw_only(), py::arg("name") = "", py::arg("chunks") = std::vector<int>(),
           py::arg("places") = std::vector<int>(), py::arg("real_when_alone") = false)
      .def_readonly("rank", &Axis::rank)
      .def_readonly("size", &Axis::size)
      .def_property_readonly("name", &Axis::name)
      .def_property_readonly("absent", &Axis::absent)
      .def(
          "piece",
          [](const Axis& self, int64_t length, std::optional<int> rank) {
            const Piece piece = self.piece(length, rank.value_or(self.rank));
            return std::pair(piece.begin, piece.size);
          },
          py::arg("length"), py::arg("rank") = py::none())
      .def("traffic", [counted](const Axis& self) {
        const AxisTraffic traffic = self.traffic();
        return py::dict(py::arg("all_reduce") = counted(traffic.all_reduce),
                        py::arg("reduce_scatter") = counted(traffic.reduce_scatter),
                        py::arg("all_gather") = counted(traffic.all_gather),
                        py::arg("completion") = counted(traffic.completion),
                        py::arg("agreement") = counted(traffic.agreement));
      });
  py::class_<Layout>(m, "Layout")
      .def(py::init([](Axis rows, Axis cols, Axis replicas, Axis batch, std::vector<int64_t> sizes,
                       bool has_averaged_copies) {
             return Layout{std::move(rows),  std::move(cols),  std::move(replicas),
                           std::move(batch), std::move(sizes), has_averaged_copies};
           }),
           py::kw_only(), py::arg("rows") = Axis(), py::arg("cols") = Axis(), py::arg("replicas") = Axis(),
           py::arg("batch") = Axis(), py::arg("sizes") = std::vector<int64_t>(), py::arg("has_averaged_copies") = false)
      .def_readonly("rows", &Layout::rows)
      .def_readonly("cols", &Layout::cols)
      .def_readonly("replicas", &Layout::replicas)
      .def_readonly("batch", &Layout::batch)
      .def_readonly("sizes", &Layout::sizes)
      .def_readonly("has_averaged_copies", &Layout::has_averaged_copies)
      .def_property_readonly("is_local", &Layout::is_local);
}

py::object as_python(const engine::Count& count) {
  if (count.on_devices.empty()) return py::cast(count.known);
  at::Tensor sum = count.on_devices.front();
  for (std::size_t i = 1; i < count.on_devices.size(); ++i) {
    sum = sum.add(count.on_devices[i].to(sum.device(), /*non_blocking=*/true));
  }
  return py::cast(count.known == 0 ? sum : sum.add(count.known));
}

void bind_engine(py::module_& m) {
  py::class_<linalg::Multipliers>(m, "Multipliers")
      .def(py::init([](std::optional<at::Tensor> lr, std::optional<at::Tensor> weight_decay) {
             return linalg::Multipliers{lr.value_or(at::Tensor()), weight_decay.value_or(at::Tensor())};
           }),
           py::arg("lr") = py::none(), py::arg("weight_decay") = py::none());
  py::class_<engine::Groups>(m, "Groups")
      .def(py::init([](bool capturable) {
             engine::Groups groups;
             groups.capturable = capturable;
             return groups;
           }),
           py::arg("capturable") = false)
      .def("add_dion",
           [](engine::Groups& self, Tensors X, Tensors G, Tensors M, Tensors Q, Tensors steps,
              DionHyperparameters hyper, int64_t batch_dims, int64_t blocks, bool fan_in_first, Orientation orientation,
              std::vector<Layout> layouts, std::vector<std::vector<int64_t>> whole_Q, linalg::Multipliers multipliers,
              bool skip_zero_gradients) {
             self.dion.push_back({std::move(X),
                                  std::move(G),
                                  std::move(M),
                                  std::move(Q),
                                  std::move(steps),
                                  hyper,
                                  {batch_dims, blocks, fan_in_first},
                                  orientation,
                                  std::move(layouts),
                                  std::move(whole_Q),
                                  std::move(multipliers),
                                  skip_zero_gradients});
           })
      .def("add_lion",
           [](engine::Groups& self, Tensors X, Tensors G, Tensors M, Tensors steps, LionHyperparameters hyper,
              std::vector<Layout> layouts, linalg::Multipliers multipliers) {
             self.lion.push_back({std::move(X), std::move(G), std::move(M), std::move(steps), hyper, std::move(layouts),
                                  std::move(multipliers)});
           })
      .def("add_adamw", [](engine::Groups& self, Tensors X, Tensors G, Tensors M, Tensors V, Tensors steps,
                           AdamWHyperparameters hyper, std::vector<Layout> layouts, linalg::Multipliers multipliers) {
        self.adamw.push_back({std::move(X), std::move(G), std::move(M), std::move(V), std::move(steps), hyper,
                              std::move(layouts), std::move(multipliers)});
      });
  py::class_<engine::Report>(m, "Report")
      .def_property_readonly("skipped",
                             [](const engine::Report& report) -> py::object {
                               if (!report.left_out.defined()) return py::cast(report.skipped);
                               return py::cast(report.left_out);
                             })
      .def_property_readonly("nonfinite", [](const engine::Report& report) { return as_python(report.nonfinite); })
      .def_property_readonly("without_signal",
                             [](const engine::Report& report) { return as_python(report.without_signal); })
      .def_property_readonly("in_margin", [](const engine::Report& report) { return as_python(report.in_margin); })
      .def_readonly("batches", &engine::Report::batches)
      .def_readonly("workspace_bytes", &engine::Report::workspace_bytes)
      .def_readonly("expected_traffic", &engine::Report::expected_traffic);
  py::class_<engine::Step>(m, "Step")
      .def(py::init([](engine::Groups groups, Nonfinite nonfinite, std::optional<at::Tensor> grad_scale,
                       std::optional<at::Tensor> found_inf) {
             engine::GradientScaling scaling{grad_scale.value_or(at::Tensor()), found_inf.value_or(at::Tensor())};
             return std::make_unique<engine::Step>(std::move(groups), nonfinite, std::move(scaling));
           }),
           py::arg("groups"), py::arg("nonfinite"), py::arg("grad_scale") = py::none(),
           py::arg("found_inf") = py::none(), py::call_guard<PythonWords>())
      .def("run", &engine::Step::run, py::call_guard<py::gil_scoped_release, PythonWords>())
      .def_property_readonly("wrote", &engine::Step::wrote)
      .def_property_readonly("batches", &engine::Step::batches)
      .def_property_readonly("completed", &engine::Step::completed);
}

// What the steps of this thread did, in order.
comm::Trace trace;

void bind_trace(py::module_& m) {
  m.def("start_trace", [] {
    trace = {};
    comm::active_trace = &trace;
  });
  m.def("take_trace", [] {
    comm::active_trace = nullptr;
    py::list events;
    for (const comm::Event& event : trace.events) {
      events.append(py::dict(py::arg("what") = event.what, py::arg("task") = event.task, py::arg("axis") = event.axis,
                             py::arg("kind") = event.kind, py::arg("elements") = event.elements));
    }
    return events;
  });
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

void bind_agreement(py::module_& m) {
  py::enum_<engine::Operation>(m, "Operation")
      .value("step", engine::Operation::step)
      .value("resize_rank", engine::Operation::resize_rank)
      .value("synchronize_for_checkpoint", engine::Operation::synchronize_for_checkpoint)
      .value("check_replicas", engine::Operation::check_replicas)
      .value("synchronize_replicas", engine::Operation::synchronize_replicas);
  py::class_<engine::Claim>(m, "Claim")
      .def(py::init([](std::string name, std::vector<std::pair<std::string, std::string>> properties,
                       std::vector<Axis> axes, bool is_parameter, std::optional<at::ScalarType> gradient,
                       std::vector<Axis> shared) {
             return engine::Claim{std::move(name), std::move(properties), std::move(axes), is_parameter,
                                  gradient,        std::move(shared)};
           }),
           py::arg("name"), py::arg("properties"), py::arg("axes"), py::kw_only(), py::arg("is_parameter") = true,
           py::arg("gradient") = py::none(), py::arg("shared") = std::vector<Axis>());
  m.def("agree", &engine::agree, py::arg("operation"), py::arg("refuses"), py::arg("claims"),
        py::arg("provide") = py::none(), py::call_guard<py::gil_scoped_release, PythonWords>());
}

void bind_traffic(py::module_& m) {
  m.def("compresses", &engine::compresses, py::arg("m"), py::arg("n"), py::arg("r"), py::arg("layout"));
  m.def(
      "traffic",
      [](int64_t rows, int64_t cols, int64_t r, const Layout& layout, Orientation orientation,
         Orthonormalize orthonormalize, double rcqr_oversample, at::ScalarType dtype, int64_t count, int64_t dealt) {
        const bool right = orientation == Orientation::right;
        const engine::MatrixBatch batch{
            count, right ? cols : rows, right ? rows : cols, r, orthonormalize, rcqr_oversample, dtype, dealt};
        const engine::MatrixTraffic sent =
            engine::traffic(batch, right ? layout.t() : layout, engine::compresses(rows, cols, r, layout));
        return py::dict(py::arg("rows") = right ? sent.cols : sent.rows,
                        py::arg("cols") = right ? sent.rows : sent.cols, py::arg("replicas") = sent.replicas);
      },
      py::arg("m"), py::arg("n"), py::arg("r"), py::arg("layout"), py::kw_only(),
      py::arg("orientation") = Orientation::right, py::arg("orthonormalize") = Orthonormalize::automatic,
      py::arg("rcqr_oversample") = 1.25, py::arg("dtype") = at::kFloat, py::arg("count") = 1, py::arg("dealt") = 0);
}

}  // namespace

PYBIND11_MODULE(_C, m) {
  m.doc() = "torchdion's C++ engine";
  bind_hyperparameters(m);
  bind_layout(m);
  bind_engine(m);
  bind_agreement(m);
  bind_trace(m);
  bind_traffic(m);
  m.def("launches_of", &launches_of, py::arg("step"), py::arg("device_type") = "cuda");
  m.def("has_memory", &linalg::has_memory);
  m.def("has_kernels_for", [](const std::string& type) { return linalg::has_backend(c10::Device(type).type()); });
  m.def(
      "matrix_sizes",
      [](std::vector<int64_t> sizes, int64_t batch_dims, int64_t blocks, bool fan_in_first) {
        return engine::matrix_sizes(sizes, {batch_dims, blocks, fan_in_first});
      },
      py::call_guard<PythonWords>());
  m.def("rank_of", &engine::rank_of);
  m.def(
      "start_of_Q",
      [](std::vector<int64_t> sizes, int64_t batch_dims, int64_t blocks, bool fan_in_first, Orientation orientation,
         double rank_fraction, int64_t rank_multiple_of, int64_t seed, int64_t parameter, at::ScalarType dtype,
         c10::Device device, const Layout& layout) {
        const engine::QStart start{orientation, rank_fraction, rank_multiple_of, seed, parameter};
        const at::TensorOptions options = at::TensorOptions(dtype).device(device);
        return engine::start_of_Q(sizes, {batch_dims, blocks, fan_in_first}, start, options, layout);
      },
      py::call_guard<py::gil_scoped_release, PythonWords>());
  m.def("resized_Q", &engine::resized_Q, py::arg("Q"), py::arg("r"), py::arg("seed"), py::arg("parameter"),
        py::call_guard<py::gil_scoped_release, PythonWords>());
  m.def("gather_pieces", &comm::gather_pieces, py::arg("piece"), py::arg("dim"), py::arg("length"), py::arg("axis"),
        py::call_guard<py::gil_scoped_release, PythonWords>());
}
