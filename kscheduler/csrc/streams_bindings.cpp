// Streams for Python: submit calls, wait for what they touch, read what happened.
#include <malloc.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <map>
#include <string>

#include "access_py.h"
#include "streams_py.h"

namespace py = pybind11;

namespace {

using ks::Access;
using ks::LaneCode;
using ks::PyStreams;

uint64_t submit(PyStreams& self, uint64_t function, const py::tuple& args, const py::bytes& blob,
                int blob_args, int check, const std::shared_ptr<LaneCode>& lanes,
                const py::object& accesses, const py::tuple& keep, uint64_t label) {
  std::vector<Access> ranges = ks::accesses_from_python(accesses);
  ks::Streams::Slot& slot = self.open_slot();
  ks::fill_call(slot.call, function, args, blob, blob_args, check, lanes);
  slot.accesses = std::move(ranges);
  slot.label = label;
  for (py::handle object : keep) slot.keep.push_back(object.inc_ref().ptr());
  if (lanes) slot.keep.push_back(py::cast(lanes).release().ptr());
  const uint64_t id = self.streams.commit(slot);
  self.after_commit(id);
  return id;
}

// Frees a block behind the tasks that use it. Returns false if nobody does: the caller frees then.
bool submit_free(PyStreams& self, uint64_t pointer, uint64_t free_function, uint64_t label) {
  const size_t bytes = malloc_usable_size(reinterpret_cast<void*>(pointer));
  const Access block{pointer, pointer + bytes, ks::kReadWrite, 0, 0};
  if (self.streams.is_clear(&block, 1)) return false;
  ks::Streams::Slot& slot = self.open_slot();
  slot.call.function = reinterpret_cast<void*>(free_function);
  slot.call.args[0] = static_cast<int64_t>(pointer);
  slot.accesses.assign(1, block);
  slot.label = label;
  slot.is_cleanup = true;
  self.streams.commit(slot);
  return true;
}

bool wait_for(PyStreams& self, const py::object& accesses) {
  if (self.streams.in_flight() == 0) return false;
  const std::vector<Access> ranges = ks::accesses_from_python(accesses);
  if (self.streams.is_clear(ranges.data(), ranges.size())) return false;
  self.wait([&] {
    for (const Access& access : ranges) self.streams.wait_for(access);
  });
  return true;
}

py::object take_error(PyStreams& self) {
  std::string message;
  uint64_t label = 0;
  if (!self.streams.take_error(message, label)) return py::none();
  return py::make_tuple(message, label);
}

py::list records(const PyStreams& self) {
  py::list out;
  for (const auto& record : self.streams.records()) {
    py::list accesses;
    for (const Access& a : record->accesses)
      accesses.append(py::make_tuple(a.start, a.end, a.mode, a.pitch, a.width));
    out.append(py::make_tuple(record->label, accesses, record->start_ns, record->end_ns,
                              record->lane));
  }
  return out;
}

}  // namespace

void bind_streams(py::module_& m) {
  py::class_<LaneCode, std::shared_ptr<LaneCode>>(m, "LaneCode")
      .def(py::init([](const std::vector<uint64_t>& functions) {
        auto code = std::make_shared<LaneCode>();
        for (const uint64_t f : functions) code->functions.push_back(reinterpret_cast<void*>(f));
        return code;
      }));

  py::class_<PyStreams>(m, "Streams")
      .def(py::init<int, int, size_t>(), py::arg("lanes"), py::arg("size"),
           py::arg("record_limit") = 0)
      .def("submit", &submit, py::arg("function"), py::arg("args"), py::arg("blob") = py::bytes(),
           py::arg("blob_args") = 0, py::arg("check") = 0,
           py::arg("lanes") = std::shared_ptr<LaneCode>(), py::arg("accesses") = py::tuple(),
           py::arg("keep") = py::tuple(), py::arg("label") = 0)
      .def("submit_free", &submit_free)
      .def("wait_for", &wait_for)
      .def("wait_for_task",
           [](PyStreams& self, uint64_t id) { self.wait([&] { self.streams.wait_for_task(id); }); })
      .def("wait_for_all",
           [](PyStreams& self) {
             if (self.streams.in_flight() > 0) self.wait([&] { self.streams.wait_for_all(); });
             self.drop_finished();
           })
      .def("wait_since",
           [](PyStreams& self, uint64_t first) {
             self.wait([&] { self.streams.wait_since(first); });
           })
      .def_property_readonly("next_id",
                             [](const PyStreams& self) { return self.streams.next_id(); })
      .def_property_readonly("in_flight",
                             [](const PyStreams& self) { return self.streams.in_flight(); })
      .def_property_readonly("has_failed",
                             [](const PyStreams& self) { return self.streams.has_failed(); })
      .def("take_error", &take_error)
      .def("records", &records)
      .def("counters",
           [](const PyStreams& self) {
             const ks::StreamCounters c = self.streams.counters();
             py::dict out;
             out["tasks"] = c.tasks;
             out["edges"] = c.edges;
             out["overlapped"] = c.overlapped;
             out["kernel_ns"] = c.kernel_ns;
             out["wait_ns"] = c.wait_ns;
             out["helped_ns"] = c.helped_ns;
             return out;
           })
      .def("add_visible", &PyStreams::add_visible)
      .def("is_visible",
           [](const PyStreams& self, const py::object& accesses) {
             return self.is_visible(ks::accesses_from_python(accesses));
           })
      .def("set_arm", &PyStreams::set_arm)
      .def("set_disarmed", &PyStreams::set_disarmed)
      .def("close", &PyStreams::close);

  m.def("pool_size", [] { return ks::WorkerPool::instance().size(); });
  m.def("shut_down_pool", [] {
    py::gil_scoped_release release;
    ks::WorkerPool::instance().shut_down();
  });
  m.def("set_block_error_function", [](uint64_t function) {
    ks::Call::take_block_error = reinterpret_cast<const char* (*)()>(function);
  });
  m.def("set_tracking", [](bool is_on) { ks::Streams::tracking.store(is_on); });
  m.def("set_fault", [](const std::string& name) {
    static const std::map<std::string, ks::Fault> faults = {
        {"", ks::Fault::kNone},
        {"drop_raw", ks::Fault::kDropRaw},
        {"drop_war", ks::Fault::kDropWar},
        {"short_ranges", ks::Fault::kShortRanges},
    };
    ks::planted_fault.store(faults.at(name));
  });
  m.def("set_jitter_us", [](int us) { ks::Streams::jitter_us.store(us); });
}
