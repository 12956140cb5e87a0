// Tells a Python function of each Python call on this thread, but for code that it does not want.
//
// A profile function written in Python would be called for every call and return, of C functions,
// too: half a million times in a simulator's step.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string>
#include <unordered_set>
#include <vector>

namespace py = pybind11;

namespace {

struct CallHook {
  py::object function;  // (frame) -> whether it wants to hear of this code again
  std::unordered_set<PyCodeObject*> ignored;
};

// What is told to `function` when it is called: C functions and methods, by code that is not ignored,
// and Python functions, by anybody.
struct Watched {
  py::object function;
  std::unordered_set<PyObject*> callables;
  std::unordered_set<PyObject*> codes;
  PyTypeObject* type = nullptr;  // of the objects whose methods these are:
  std::unordered_set<std::string> methods;
  std::unordered_set<PyObject*> owners;  // or whose methods of themselves: classes

  bool wants(PyObject* called) const {
    if (callables.count(called) != 0) return true;
    if (type == nullptr || !PyCFunction_Check(called)) return false;
    PyObject* self = PyCFunction_GET_SELF(called);
    if (self == nullptr || (Py_TYPE(self) != type && owners.count(self) == 0)) return false;
    return methods.count(reinterpret_cast<PyCFunctionObject*>(called)->m_ml->ml_name) != 0;
  }
};
thread_local Watched* t_watched = nullptr;

int tell(PyObject* called) {
  PyObject* told = PyObject_CallOneArg(t_watched->function.ptr(), called);
  Py_XDECREF(told);
  return told == nullptr ? -1 : 0;
}

int on_event(PyObject* capsule, PyFrameObject* frame, int what, PyObject* called) {
  const bool is_watched =
      what == PyTrace_C_CALL && t_watched != nullptr && t_watched->wants(called);
  if (what != PyTrace_CALL && !is_watched) return 0;
  auto* hook = static_cast<CallHook*>(PyCapsule_GetPointer(capsule, nullptr));
  PyCodeObject* code = PyFrame_GetCode(frame);
  Py_DECREF(code);  // the frame keeps it
  if (what == PyTrace_CALL && t_watched != nullptr &&
      t_watched->codes.count(reinterpret_cast<PyObject*>(code)) != 0 &&
      tell(reinterpret_cast<PyObject*>(code)) != 0)
    return -1;
  if (hook->ignored.count(code) != 0) return 0;
  if (is_watched) return tell(called);
  PyObject* wanted = PyObject_CallOneArg(hook->function.ptr(), reinterpret_cast<PyObject*>(frame));
  if (wanted == nullptr) return -1;
  if (wanted == Py_False) {
    Py_INCREF(code);  // its address must not become another's
    hook->ignored.insert(code);
  }
  Py_DECREF(wanted);
  return 0;
}

void destroy(PyObject* capsule) {
  auto* hook = static_cast<CallHook*>(PyCapsule_GetPointer(capsule, nullptr));
  for (PyCodeObject* code : hook->ignored) Py_DECREF(code);
  delete hook;
}

#if PY_VERSION_HEX < 0x030C0000
struct InterpreterFrame {  // begins so in Python 3.11
  PyObject* function;
};
struct Frame {
  PyObject_HEAD
  PyObject* back;
  InterpreterFrame* inner;
};
#endif

// The function object whose call a frame is; None where the interpreter does not tell.
py::object frame_function(const py::object& frame) {
#if PY_VERSION_HEX < 0x030C0000
  PyObject* function = reinterpret_cast<Frame*>(frame.ptr())->inner->function;
  PyCodeObject* code = PyFrame_GetCode(reinterpret_cast<PyFrameObject*>(frame.ptr()));
  Py_DECREF(code);
  if (function != nullptr && PyFunction_Check(function) &&
      PyFunction_GET_CODE(function) == reinterpret_cast<PyObject*>(code))
    return py::reinterpret_borrow<py::object>(function);
#endif
  return py::none();
}

}  // namespace

void bind_call_hook(py::module_& m) {
  m.def("set_call_hook", [](const py::object& function) {
    if (function.is_none()) {
      PyEval_SetProfile(nullptr, nullptr);
      return;
    }
    const auto capsule = py::reinterpret_steal<py::object>(
        PyCapsule_New(new CallHook{function, {}}, nullptr, &destroy));
    PyEval_SetProfile(&on_event, capsule.ptr());
  });
  m.def("frame_function", &frame_function);
  // Empty callables: watch nothing. All that is passed has to outlive the watch.
  m.def("set_watched_calls",
        [](const py::list& callables, const py::object& function, const py::list& codes,
           const py::object& type, const std::vector<std::string>& methods,
           const py::list& owners) {
          delete t_watched;
          t_watched = nullptr;
          if (callables.empty()) return;
          t_watched = new Watched{function, {}, {}, nullptr, {}, {}};
          for (py::handle owner : owners) t_watched->owners.insert(owner.ptr());
          for (py::handle callable : callables) t_watched->callables.insert(callable.ptr());
          for (py::handle code : codes) t_watched->codes.insert(code.ptr());
          if (!type.is_none()) t_watched->type = reinterpret_cast<PyTypeObject*>(type.ptr());
          t_watched->methods.insert(methods.begin(), methods.end());
        },
        py::arg("callables"), py::arg("function"), py::arg("codes") = py::list(),
        py::arg("type") = py::none(), py::arg("methods") = std::vector<std::string>(),
        py::arg("owners") = py::list());
}
