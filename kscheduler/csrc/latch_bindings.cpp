// The latch for Python tests.
#include "latch.h"

#include <pybind11/pybind11.h>
#include <time.h>

#include "sync.h"

namespace py = pybind11;

namespace ks {

namespace {
constexpr int64_t kPatienceNanoseconds = 30'000'000'000;  // a test that forgets to let go still ends

void nap() {
  timespec pause{0, 20'000};
  nanosleep(&pause, nullptr);
}
}  // namespace

void Latch::hold(uint64_t label, bool until_wait) {
  until_wait_.store(until_wait);
  label_.store(label);
}

void Latch::release() { label_.store(kNobody); }

void Latch::stop_here(uint64_t label) {
  held_.fetch_add(1);
  const int64_t deadline = now_ns() + kPatienceNanoseconds;
  while (label_.load(std::memory_order_acquire) == label && now_ns() < deadline) nap();
  held_.fetch_sub(1);
}

}  // namespace ks

void bind_latch(py::module_& m) {
  using ks::Latch;
  m.def("latch_hold", &Latch::hold, py::arg("label"), py::arg("until_wait"));
  m.def("latch_release", &Latch::release);
  m.def("latch_held", &Latch::held);
  // Whether a task stood still before the time was over.
  m.def("latch_wait_held", [](double seconds) {
    py::gil_scoped_release release;
    const int64_t deadline = ks::now_ns() + static_cast<int64_t>(seconds * 1e9);
    while (Latch::held() == 0 && ks::now_ns() < deadline) ks::nap();
    return Latch::held() > 0;
  });
}
