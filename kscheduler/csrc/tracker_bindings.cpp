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

// None: nothing is ever done. An int n: `other` is done once n later tasks were added. Or a
// callable.
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

// One step of a simulator-like program: a few arrays that everybody reads, many that come and go,
// 70% reads, some slices and some columns. The step repeats, as a simulation does.
std::vector<std::vector<Access>> sample_step(size_t ranges) {
  constexpr size_t kTasks = 512, kArrays = 320, kConstants = 24, kSliced = 32;
  std::mt19937_64 random(7);
  const auto below = [&](uint64_t n) { return random() % n; };
  std::vector<Access> arrays;
  uint64_t address = 1 << 20;
  for (size_t i = 0; i < kArrays; ++i) {
    const uint64_t bytes = 1024 * (4 + 4 * below(64));
    arrays.push_back({address, address + bytes, ks::kRead, 0, 0});
    address += bytes + 512 * below(4);
  }
  std::vector<std::vector<Access>> step(kTasks);
  for (auto& task : step) {
    for (size_t i = 0; i < ranges; ++i) {
      const bool writes = below(10) < 3;
      const bool constant = !writes && below(10) < 3;
      const size_t index = constant ? below(kConstants) : kConstants + below(kArrays - kConstants);
      Access a = arrays[index];
      a.mode = !writes ? ks::kRead : below(2) ? ks::kWrite : ks::kReadWrite;
      const uint64_t shape = index < kArrays - kSliced ? 9 : below(4);
      if (shape < 2) {
        const uint64_t quarter = (a.end - a.start) / 4;
        a.start += quarter * below(4);
        a.end = a.start + quarter;
      } else if (shape == 2) {
        a.pitch = 64;
        a.width = 32;
        a.start += 32 * below(2);
      }
      task.push_back(a);
    }
  }
  return step;
}

// Nanoseconds per task over `tasks` tasks, each done once `window` later ones were added.
double benchmark(size_t tasks, uint64_t window, size_t ranges) {
  if (tasks == 0) throw py::value_error("tasks must be at least 1");
  const auto step = sample_step(ranges);
  HazardTracker tracker;
  std::vector<uint64_t> deps;
  uint64_t id = 0;
  const auto run = [&](size_t count) {
    for (size_t i = 0; i < count; ++i, ++id) {
      const auto& task = step[id % step.size()];
      deps.clear();
      const auto is_done = [current = id, window](uint64_t other) {
        return other + window < current;
      };
      tracker.add(id, task.data(), task.size(), is_done, deps);
    }
  };
  run(4 * step.size());
  const auto begin = std::chrono::steady_clock::now();
  run(tasks);
  const auto elapsed = std::chrono::steady_clock::now() - begin;
  return std::chrono::duration<double, std::nano>(elapsed).count() / static_cast<double>(tasks);
}

}  // namespace

void bind_tracker(py::module_& m) {
  py::class_<PyTracker>(m, "HazardTracker", "Finds the earlier tasks that a new task waits for.")
      .def(py::init<>())
      .def("add", &PyTracker::add, py::arg("id"), py::arg("accesses"),
           py::arg("is_done") = py::none(),
           "Ids of unfinished tasks that `id` must wait for; then remembers its accesses.")
      .def("query", &PyTracker::query, py::arg("access"), py::arg("is_done") = py::none(),
           "Ids of unfinished tasks that a host access must wait for; remembers nothing.")
      .def_static(
          "benchmark", &benchmark, py::arg("tasks"), py::arg("window"), py::arg("ranges"),
          py::call_guard<py::gil_scoped_release>(),
          "Nanoseconds per task on a simulator-like program; a task is done `window` later.")
      .def("clear", &PyTracker::clear, "Forgets everything.")
      .def("segment_count", &PyTracker::segment_count, "Number of byte segments held.");
}
