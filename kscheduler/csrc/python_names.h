// Attribute names and ctypes bytes: what the launcher reads of Warp's Python objects.
#pragma once

#include <Python.h>

#include <cstring>

namespace ks {

// Where an instance of a ctypes structure keeps its bytes; `check_ctypes_layout` proves it.
inline char* ctypes_bytes(PyObject* object) {
  char* bytes;
  std::memcpy(&bytes, reinterpret_cast<char*>(object) + sizeof(PyObject), sizeof bytes);
  return bytes;
}

// Interned once; attribute look-ups by interned names are pointer comparisons.
struct Names {
  PyObject* kernel = PyUnicode_InternFromString("kernel");
  PyObject* dim = PyUnicode_InternFromString("dim");
  PyObject* inputs = PyUnicode_InternFromString("inputs");
  PyObject* outputs = PyUnicode_InternFromString("outputs");
  PyObject* device = PyUnicode_InternFromString("device");
  PyObject* block_dim = PyUnicode_InternFromString("block_dim");
  PyObject* max_blocks = PyUnicode_InternFromString("max_blocks");
  PyObject* record_tape = PyUnicode_InternFromString("record_tape");
  PyObject* module = PyUnicode_InternFromString("module");
  PyObject* hashers = PyUnicode_InternFromString("hashers");
  PyObject* dtype = PyUnicode_InternFromString("dtype");
  PyObject* ctype = PyUnicode_InternFromString("ctype");
  PyObject* make_ctype = PyUnicode_InternFromString("__ctype__");
  PyObject* tape = PyUnicode_InternFromString("tape");
  PyObject* capture = PyUnicode_InternFromString("_apic_capture");
  PyObject* default_device = PyUnicode_InternFromString("default_device");
  PyObject* enable_cpu_blocks = PyUnicode_InternFromString("enable_cpu_blocks");
  PyObject* print_launches = PyUnicode_InternFromString("print_launches");
  PyObject* verify = PyUnicode_InternFromString("verify_autograd_array_access");
  PyObject* access_mode = PyUnicode_InternFromString("launch_array_access_mode");
  PyObject* uses_warp_abi = PyUnicode_InternFromString("uses_warp_entry_point_abi");
  PyObject* deleter = PyUnicode_InternFromString("deleter");
  PyObject* source = PyUnicode_InternFromString("_ref");
  PyObject* private_mark = PyUnicode_InternFromString("_kscheduler_is_private");
  PyObject* one = PyLong_FromLong(1);
};

inline const Names& names() {
  static const Names* const all = new Names();
  return *all;
}

inline bool attribute_is(PyObject* object, PyObject* name, PyObject* expected) {
  PyObject* value = PyObject_GetAttr(object, name);
  if (value == nullptr) {
    PyErr_Clear();
    return false;
  }
  const bool is_same = value == expected;
  Py_DECREF(value);
  return is_same;
}

}  // namespace ks
