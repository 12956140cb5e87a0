// Tells a Python function of each Python call on this thread, but for code that it does not want.
//
// A profile function written in Python would be called for every call and return, of C functions,
// too: half a million times in a simulator's step.
#include <pybind11/pybind11.h>

#include <unordered_set>

namespace py = pybind11;

namespace {

struct CallHook {
  py::object function;  // (frame) -> whether it wants to hear of this code again
  std::unordered_set<PyCodeObject*> ignored;
};

// C functions whose calls from code that is not ignored are told to `function`.
struct Watched {
  py::object function;
  std::unordered_set<PyObject*> callables;
};
thread_local Watched* t_watched = nullptr;

int on_event(PyObject* capsule, PyFrameObject* frame, int what, PyObject* called) {
  const bool is_watched =
      what == PyTrace_C_CALL && t_watched != nullptr && t_watched->callables.count(called) != 0;
  if (what != PyTrace_CALL && !is_watched) return 0;
  auto* hook = static_cast<CallHook*>(PyCapsule_GetPointer(capsule, nullptr));
  PyCodeObject* code = PyFrame_GetCode(frame);
  Py_DECREF(code);  // the frame keeps it
  if (hook->ignored.count(code) != 0) return 0;
  if (is_watched) {
    PyObject* told = PyObject_CallOneArg(t_watched->function.ptr(), called);
    Py_XDECREF(told);
    return told == nullptr ? -1 : 0;
  }
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
  // Empty callables: watch nothing.
  m.def("set_watched_calls", [](const py::list& callables, const py::object& function) {
    delete t_watched;
    t_watched = nullptr;
    if (callables.empty()) return;
    t_watched = new Watched{function, {}};
    for (py::handle callable : callables) t_watched->callables.insert(callable.ptr());
  });
}
