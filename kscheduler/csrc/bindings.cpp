// The Python face of the native core. Each part binds itself in its own file.
#include <pybind11/pybind11.h>

namespace py = pybind11;

void bind_tracker(py::module_& m);
void bind_streams(py::module_& m);
void bind_replay(py::module_& m);
void bind_launcher(py::module_& m);
void bind_latch(py::module_& m);
void bind_call_hook(py::module_& m);
void bind_versions(py::module_& m);

PYBIND11_MODULE(_core, m) {
  m.doc() = "Native core of kscheduler: hazard tracker, CPU streams, CPU replay.";
  bind_tracker(m);
  bind_streams(m);
  bind_replay(m);
  bind_launcher(m);
  bind_latch(m);
  bind_call_hook(m);
  bind_versions(m);
}
