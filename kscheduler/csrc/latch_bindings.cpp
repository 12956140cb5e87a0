// The latch for Python tests.
#include "latch.h"

#include <pybind11/pybind11.h>

#include "sync.h"

namespace py = pybind11;

void bind_latch(py::module_& m) {
  using ks::Latch;
  m.def("latch_hold", &Latch::hold, py::arg("label"), py::arg("until_wait"));
  m.def("latch_release", &Latch::release);
  m.def("latch_held", &Latch::held);
  // Whether a task stood still before the time was over.
  m.def("latch_wait_held", [](double seconds) {
    py::gil_scoped_release release;
    const int64_t deadline = ks::now_ns() + static_cast<int64_t>(seconds * 1e9);
    while (Latch::held() == 0 && ks::now_ns() < deadline) ks::Latch::nap();
    return Latch::held() > 0;
  });
}
