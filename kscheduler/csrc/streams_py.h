// The window as Python holds it: Streams plus the Python objects that its tasks keep alive.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <string>
#include <vector>

#include "calls_py.h"
#include "streams.h"

namespace ks {

class PyStreams {
 public:
  PyStreams(int lanes, int size, size_t record_limit) : streams(lanes, size, record_limit) {}
  ~PyStreams() { close(); }

  void close() {
    {
      pybind11::gil_scoped_release release;
      streams.close();
    }
    drop_finished();
  }

  // Waits for a free slot; with the GIL held on entry and exit.
  Streams::Slot& open_slot() {
    drop_finished();
    while (!streams.has_room()) {
      {
        pybind11::gil_scoped_release release;
        streams.wait_for_room();
      }
      drop_finished();
    }
    return streams.open_slot();
  }

  // Gives up the objects of finished tasks. A destructor may submit tasks (a deferred free), so the
  // list is detached first.
  void drop_finished() {
    streams.reap(finished_);
    if (finished_.empty()) return;
    std::vector<void*> dropped;
    dropped.swap(finished_);
    for (void* object : dropped) Py_DECREF(static_cast<PyObject*>(object));
  }

  // Torch ops have to be looked at while a task is in flight. `arm` (a callable that returns whether
  // it worked) sees to that; where it cannot, the task is waited for at once.
  void set_arm(pybind11::object arm) { arm_ = std::move(arm); }
  void set_disarmed() { is_armed_ = false; }
  void after_commit(uint64_t id) {
    if (is_armed_ || arm_.is_none()) return;
    is_armed_ = arm_().cast<bool>();
    if (!is_armed_) wait([&] { streams.wait_for_task(id); });
  }

  // Memory that the host can look at without a call: its tasks run at once.
  void add_visible(uint64_t start, uint64_t end) {
    for (const Access& known : visible_)
      if (known.start <= start && end <= known.end) return;
    if (start < end) visible_.push_back({start, end, kReadWrite, 0, 0});
  }
  bool is_visible(const std::vector<Access>& accesses) const {
    for (const Access& known : visible_)
      for (const Access& access : accesses)
        if (access.start < known.end && known.start < access.end) return true;
    return false;
  }

  template <class Wait>
  void wait(Wait wait) {
    {
      pybind11::gil_scoped_release release;
      wait();
    }
    drop_finished();
  }

  Streams streams;

 private:
  std::vector<void*> finished_;
  std::vector<Access> visible_;
  pybind11::object arm_ = pybind11::none();
  bool is_armed_ = false;
};

}  // namespace ks
