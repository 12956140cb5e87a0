// Prepared launches: a `wp.launch` of a known kernel costs native packing, not 18 us of Python.
//
// The first launch of a kernel goes through Warp. What was learnt there (code, argument layout, what
// each argument is read and written for) is kept per kernel; later launches read the arrays'
// descriptors directly. Anything unusual (another device, a tape, a converted argument, a changed
// module) takes Warp's own way again, which ends in the intercepted `invoke`.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <unordered_map>
#include <vector>

#include "streams_py.h"

namespace ks {

enum class ArgKind : int { kArray, kFloat32, kFloat64, kInt, kBool, kComposite };

struct PreparedArg {
  ArgKind kind;
  uint32_t offset;        // in the kernel's argument structure
  uint32_t bytes;         // of the value; of one element for an array
  uint32_t mode;          // Access mode of an array; 0 for untouched
  int ndim;
  pybind11::object type;  // an array's dtype, a composite's class
};

struct Prepared {
  pybind11::object kernel, hasher, keep;
  uint64_t function = 0;
  std::shared_ptr<LaneCode> lanes;
  int kernel_dim = 1;
  uint64_t max_threads = 0;  // above, Warp checks more
  uint32_t args_bytes = 0;
  uint64_t label = 0;
  std::vector<PreparedArg> args;
};

class Launcher {
 public:
  // `facts`: the objects of Warp that decide whether a launch is an ordinary one.
  explicit Launcher(const pybind11::dict& facts);

  void prepare(const pybind11::object& kernel, const pybind11::dict& entry);
  // Returns a new reference to None after a native submission, or null without an error set if
  // this launch has to take Warp's way.
  PyObject* launch(PyStreams& streams, PyObject* const* args, size_t count, PyObject* names);
  bool is_prepared(const pybind11::object& kernel) const {
    const auto found = prepared_.find(kernel.ptr());
    return found != prepared_.end() && is_current(*found->second);
  }
  uint64_t prepared_launches() const { return prepared_launches_; }
  uint64_t empty_launches() const { return empty_launches_; }

 private:
  bool is_ordinary(PyObject* device) const;
  bool is_current(const Prepared& prepared) const;
  bool is_private(PyObject* array) const;
  bool pack(const Prepared& prepared, PyObject* const* values, char* out,
            std::vector<Access>& accesses, std::vector<void*>& keep) const;

  pybind11::object config_, runtime_, cpu_, array_type_, kernel_type_;
  std::unordered_map<PyObject*, std::shared_ptr<const Prepared>> prepared_;
  uint64_t prepared_launches_ = 0;
  uint64_t empty_launches_ = 0;
};

}  // namespace ks
