// `wp.launch` for Python: the native way where the thread's window knows the kernel.
#include <pybind11/pybind11.h>

#include "launcher.h"
#include "python_names.h"

namespace py = pybind11;

namespace {

// The window that this thread has open, if its launches may take the native way.
struct Active {
  ks::Launcher* launcher = nullptr;
  ks::PyStreams* streams = nullptr;
};
thread_local Active t_active;
PyObject* g_original_launch = nullptr;

PyObject* launch(PyObject*, PyObject* const* args, Py_ssize_t count, PyObject* keywords) {
  if (t_active.launcher != nullptr) {
    PyObject* done = nullptr;
    try {
      done = t_active.launcher->launch(*t_active.streams, args, static_cast<size_t>(count),
                                       keywords);
    } catch (py::error_already_set& error) {
      error.restore();
    }
    if (done != nullptr || PyErr_Occurred() != nullptr) return done;
  }
  return PyObject_Vectorcall(g_original_launch, args, static_cast<size_t>(count), keywords);
}

PyMethodDef g_launch_def = {
    "launch", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(launch)),
    METH_FASTCALL | METH_KEYWORDS, "wp.launch, natively where the kernel is known."};

}  // namespace

void bind_launcher(py::module_& m) {
  py::class_<ks::Launcher>(m, "Launcher")
      .def(py::init<const py::dict&>())
      .def("prepare", &ks::Launcher::prepare)
      .def("is_prepared", &ks::Launcher::is_prepared)
      .def_property_readonly("prepared_launches", &ks::Launcher::prepared_launches)
      .def_property_readonly("empty_launches", &ks::Launcher::empty_launches);
  m.attr("launch") = py::reinterpret_steal<py::object>(PyCFunction_NewEx(&g_launch_def, nullptr, nullptr));
  m.def("set_original_launch", [](const py::object& original) {
    Py_XDECREF(g_original_launch);
    g_original_launch = original.inc_ref().ptr();
  });
  // Whoever activates keeps both alive until it deactivates.
  m.def("activate_launcher", [](ks::Launcher* launcher, ks::PyStreams* streams) {
    t_active = {launcher, streams};
  }, py::arg("launcher").none(true), py::arg("streams").none(true));
  m.def("has_ctypes_layout", [](py::object structure, uint64_t address) {
    return reinterpret_cast<uint64_t>(ks::ctypes_bytes(structure.ptr())) == address;
  });
}
