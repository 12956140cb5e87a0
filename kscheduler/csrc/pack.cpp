// Packing: a kernel's arguments as the bytes that its compiled code takes, and what they touch.
#include <cstdlib>
#include <cstring>
#include <utility>

#include "launcher.h"
#include "python_names.h"

namespace py = pybind11;

namespace ks {

namespace {

// Field order of warp.types.array_t.
struct ArrayDescriptor {
  uint64_t data;
  uint64_t grad;
  int32_t shape[4];
  int32_t strides[4];
  uint16_t ndim;
  uint16_t flags;
};
static_assert(sizeof(ArrayDescriptor) == 56, "the layout of Warp's array descriptor");

}  // namespace

// The same law as kscheduler.access.strided_access, for at most four dimensions.
static Access strided_access(uint64_t address, const int32_t* shape, const int32_t* strides, int ndim,
                      uint64_t item_bytes, uint32_t mode) {
  struct Dim {
    uint64_t stride, extent;
  } dims[4];
  int count = 0;
  uint64_t start = address, end = address + item_bytes;
  for (int i = 0; i < ndim; ++i) {
    if (shape[i] == 0) return {address, address, mode, 0, 0};
    if (shape[i] == 1 || strides[i] == 0) continue;
    const int64_t reach = static_cast<int64_t>(shape[i] - 1) * strides[i];
    (reach > 0 ? end : start) += reach;
    dims[count++] = {static_cast<uint64_t>(std::abs(static_cast<int64_t>(strides[i]))),
                     static_cast<uint64_t>(shape[i])};
  }
  for (int i = 1; i < count; ++i)
    for (int j = i; j > 0 && dims[j].stride < dims[j - 1].stride; --j)
      std::swap(dims[j], dims[j - 1]);
  uint64_t width = item_bytes;
  for (int i = 0; i < count; ++i) {
    if (dims[i].stride > width) {
      for (int j = i + 1; j < count; ++j)
        if (dims[j].stride % dims[i].stride != 0) return {start, end, mode, 0, 0};
      return {start, end, mode, static_cast<uint32_t>(dims[i].stride),
              static_cast<uint32_t>(width)};
    }
    width += (dims[i].extent - 1) * dims[i].stride;
  }
  return {start, end, mode, 0, 0};
}

// Whether an array's memory is Warp's or PyTorch's own; `intercept.host_memory` decides and marks.
bool Launcher::is_private(PyObject* array) const {
  const Names& n = names();
  for (int depth = 0; depth < 16; ++depth) {
    PyObject* attributes = PyObject_GenericGetDict(array, nullptr);
    if (attributes == nullptr) {
      PyErr_Clear();
      return false;
    }
    Py_DECREF(attributes);  // the array keeps it
    PyObject* deleter = PyDict_GetItemWithError(attributes, n.deleter);
    if (deleter != nullptr && deleter != Py_None) return true;
    if (PyDict_GetItemWithError(attributes, n.private_mark) == Py_True) return true;
    PyObject* source = PyDict_GetItemWithError(attributes, n.source);
    if (source == nullptr || reinterpret_cast<PyObject*>(Py_TYPE(source)) != array_type_.ptr())
      return false;
    array = source;
  }
  return false;
}

bool Launcher::pack(const Prepared& prepared, PyObject* const* values, char* out,
                    std::vector<Access>& accesses, std::vector<void*>& keep) const {
  const Names& n = names();
  size_t index = 0;
  for (const PreparedArg& arg : prepared.args) {
    PyObject* value = values[index++];
    char* to = out + arg.offset;
    switch (arg.kind) {
      case ArgKind::kArray: {
        if (value == Py_None) {
          std::memset(to, 0, sizeof(ArrayDescriptor));
          break;
        }
        if (reinterpret_cast<PyObject*>(Py_TYPE(value)) != array_type_.ptr()) return false;
        if (!attribute_is(value, n.dtype, arg.type.ptr()) || !is_private(value)) return false;
        PyObject* ctype = PyObject_GetAttr(value, n.ctype);
        if (ctype == Py_None || ctype == nullptr) {
          PyErr_Clear();
          Py_XDECREF(ctype);
          ctype = PyObject_CallMethodNoArgs(value, n.make_ctype);
          if (ctype == nullptr) {
            PyErr_Clear();
            return false;
          }
        }
        ArrayDescriptor array;
        std::memcpy(&array, ctypes_bytes(ctype), sizeof array);
        Py_DECREF(ctype);
        if (array.ndim != arg.ndim) return false;
        std::memcpy(to, &array, sizeof array);
        Py_INCREF(value);
        keep.push_back(value);
        if (arg.mode == 0) break;
        const Access access = strided_access(array.data, array.shape, array.strides, array.ndim,
                                             arg.bytes, arg.mode);
        if (!access.empty()) accesses.push_back(access);
        break;
      }
      case ArgKind::kFloat32:
      case ArgKind::kFloat64: {
        // The conversions of ctypes: __float__ and __index__ count, too.
        const double number = PyFloat_AsDouble(value);
        if (number == -1.0 && PyErr_Occurred() != nullptr) {
          PyErr_Clear();
          return false;
        }
        if (arg.kind == ArgKind::kFloat64) {
          std::memcpy(to, &number, 8);
        } else {
          const float narrow = static_cast<float>(number);
          std::memcpy(to, &narrow, 4);
        }
        break;
      }
      case ArgKind::kInt: {
        if (PyFloat_Check(value)) return false;
        const unsigned long long bits = PyLong_AsUnsignedLongLongMask(value);
        if (bits == ~0ULL && PyErr_Occurred() != nullptr) {
          PyErr_Clear();
          return false;
        }
        std::memcpy(to, &bits, arg.bytes);  // little endian, wraps as ctypes does
        break;
      }
      case ArgKind::kBool:
        if (!PyLong_Check(value)) return false;
        *to = PyObject_IsTrue(value) != 0 ? 1 : 0;
        break;
      case ArgKind::kComposite:
        if (reinterpret_cast<PyObject*>(Py_TYPE(value)) != arg.type.ptr()) return false;
        std::memcpy(to, ctypes_bytes(value), arg.bytes);
        break;
    }
  }
  return true;
}

}  // namespace ks
