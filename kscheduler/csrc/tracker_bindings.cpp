// The tracker for tests, graphs and benchmarks; streams use it from C++.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <chrono>
#include <random>
#include <stdexcept>

#include "access_py.h"
#include "tracker.h"

namespace py = pybind11;

namespace {

using ks::Access;
using ks::HazardTracker;

// None: nothing is ever done. An int n: `other` is done once n later tasks were added. Or a callable.
class DonePolicy {
 public:
  explicit DonePolicy(const py::object& policy) {
    if (policy.is_none()) return;
    if (py::isinstance<py::int_>(policy)) {
      window_ = policy.cast<uint64_t>();
    } else {
      callable_ = policy;
    }
  }
  bool operator()(uint64_t other, uint64_t current) const {
    if (callable_) return callable_(other).cast<bool>();
    return window_ != 0 && other + window_ < current;
  }

 private:
  uint64_t window_ = 0;
  py::object callable_;
};

class PyTracker {
 public:
  std::vector<uint64_t> add(uint64_t id, const py::object& accesses, const py::object& is_done) {
    if (started_ && id <= last_) throw py::value_error("task ids must strictly increase");
    const std::vector<Access> list = ks::accesses_from_python(accesses);
    const DonePolicy policy(is_done);
    std::vector<uint64_t> deps;
    tracker_.add(
        id, list.data(), list.size(), [&](uint64_t other) { return policy(other, id); }, deps);
    started_ = true;
    last_ = id;
    return deps;
  }

  std::vector<uint64_t> query(const py::object& access, const py::object& is_done) const {
    const DonePolicy policy(is_done);
    std::vector<uint64_t> deps;
    const uint64_t now = last_ + 1;
    tracker_.query(
        ks::access_from_python(access), [&](uint64_t other) { return policy(other, now); }, deps);
    return deps;
  }

  void clear() { tracker_.clear(); }
  size_t segment_count() const { return tracker_.segment_count(); }

 private:
  HazardTracker tracker_;
  uint64_t last_ = 0;
  bool started_ = false;
};

}  // namespace

void bind_tracker(py::module_& m) {
  py::class_<PyTracker>(m, "HazardTracker", "Finds the earlier tasks that a new task waits for.")
      .def(py::init<>())
      .def("add", &PyTracker::add, py::arg("id"), py::arg("accesses"), py::arg("is_done") = py::none(),
           "Ids of unfinished tasks that `id` must wait for; then remembers its accesses.")
      .def("query", &PyTracker::query, py::arg("access"), py::arg("is_done") = py::none(),
           "Ids of unfinished tasks that a host access must wait for; remembers nothing.")
      .def("clear", &PyTracker::clear, "Forgets everything.")
      .def("segment_count", &PyTracker::segment_count, "Number of byte segments held.");
}
