// Which dicts may have changed since they were last looked at, without looking into them.
//
// CPython gives a dict a new, globally unique number with each change. Reading it costs one cache
// miss, looking a thousand guarded names up again costs thousands. Only Python 3.11 is known to keep
// the promise for every store to an attribute; elsewhere all dicts count as changed.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <vector>

namespace py = pybind11;

namespace {

struct MappingProxy {  // of Objects/descrobject.c
  PyObject_HEAD
  PyObject* mapping;
};

// The dict behind a namespace: itself, or that of a class. Null for anything else.
PyObject* dict_behind(PyObject* space) {
  if (PyDict_CheckExact(space)) return space;
  if (Py_TYPE(space) != &PyDictProxy_Type) return nullptr;
  PyObject* mapping = reinterpret_cast<MappingProxy*>(space)->mapping;
  return PyDict_CheckExact(mapping) ? mapping : nullptr;
}

class DictVersions {
 public:
  // The spaces must be ones that `has_version` accepts.
  explicit DictVersions(const std::vector<py::object>& spaces) : spaces_(spaces) {
    for (const py::object& space : spaces_) dicts_.push_back(dict_behind(space.ptr()));
    seen_.assign(dicts_.size(), kNever);
    now_ = seen_;
  }

  // Indices of the dicts that may have changed since `accept`.
  std::vector<size_t> changed() {
    std::vector<size_t> found;
    for (size_t i = 0; i < dicts_.size(); ++i) {
      now_[i] = version(dicts_[i]);
      if (now_[i] == kNever || now_[i] != seen_[i]) found.push_back(i);
    }
    return found;
  }

  // What `changed` has just looked at counts as unchanged from now on.
  void accept() { seen_ = now_; }

 private:
  static constexpr uint64_t kNever = 0;

  static uint64_t version(PyObject* dict) {
#if PY_VERSION_HEX < 0x030C0000
    return reinterpret_cast<PyDictObject*>(dict)->ma_version_tag;
#else
    (void)dict;
    return kNever;
#endif
  }

  std::vector<py::object> spaces_;
  std::vector<PyObject*> dicts_;  // owned by the spaces
  std::vector<uint64_t> seen_, now_;
};

}  // namespace

void bind_versions(py::module_& m) {
  py::class_<DictVersions>(m, "DictVersions")
      .def(py::init<const std::vector<py::object>&>())
      .def("changed", &DictVersions::changed)
      .def("accept", &DictVersions::accept);
  m.def("has_version", [](const py::object& space) { return dict_behind(space.ptr()) != nullptr; });
}
