// Replay for Python: built once from a recording, run without the GIL.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "calls_py.h"
#include "replay.h"

namespace py = pybind11;

namespace {

using ks::LaneCode;
using ks::Replay;

uint32_t add_call(Replay& self, uint64_t function, const py::tuple& args, const py::bytes& blob,
                  int blob_args, int check, const std::shared_ptr<LaneCode>& lanes, int parent,
                  int side) {
  ks::Call call;
  ks::fill_call(call, function, args, blob, blob_args, check, lanes);
  return self.add_call(std::move(call), parent, side);
}

const int32_t* as_condition(uint64_t pointer) { return reinterpret_cast<const int32_t*>(pointer); }

py::object take_error(Replay& self) {
  std::string message;
  uint32_t node = 0;
  if (!self.take_error(message, node)) return py::none();
  return py::make_tuple(message, node);
}

}  // namespace

void bind_replay(py::module_& m) {
  py::class_<Replay>(m, "Replay")
      .def(py::init<int>(), py::arg("lanes"))
      .def("add_call", &add_call, py::arg("function"), py::arg("args"),
           py::arg("blob") = py::bytes(), py::arg("blob_args") = 0, py::arg("check") = 0,
           py::arg("lanes") = std::shared_ptr<LaneCode>(), py::arg("parent") = Replay::kTop,
           py::arg("side") = 0, py::keep_alive<1, 7>())
      .def("add_loop",
           [](Replay& self, uint64_t condition, int parent, int side) {
             return self.add_loop(as_condition(condition), parent, side);
           })
      .def("add_branch",
           [](Replay& self, uint64_t condition, int parent, int side) {
             return self.add_branch(as_condition(condition), parent, side);
           })
      .def("add_host", &Replay::add_host)
      .def("add_edge", &Replay::add_edge)
      .def("rank", &Replay::rank)
      .def("set_condition",
           [](Replay& self, uint32_t node, uint64_t condition) {
             self.set_condition(node, as_condition(condition));
           })
      .def("begin", &Replay::begin)
      .def("advance", &Replay::advance, py::call_guard<py::gil_scoped_release>())
      .def("complete_host", &Replay::complete_host)
      .def("cancel", &Replay::cancel, py::call_guard<py::gil_scoped_release>())
      .def("patch", &Replay::patch)
      .def("take_error", &take_error)
      .def("durations", &Replay::durations)
      .def("events",
           [](const Replay& self) {
             py::list out;
             for (const ks::ReplayEvent& e : self.events())
               out.append(py::make_tuple(e.node, e.lane, e.start_ns, e.end_ns));
             return out;
           })
      .def_property_readonly("lanes", &Replay::lanes)
      .def_property_readonly("wait_ns", &Replay::wait_ns)
      .def("__len__", &Replay::size);
}
