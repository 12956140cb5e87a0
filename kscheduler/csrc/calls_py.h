// Native calls from Python: the arguments of a task, packed once.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <string_view>
#include <vector>

#include "call.h"

namespace ks {

// One copy of a kernel's machine code per lane, for modules that keep state in statics.
struct LaneCode {
  std::vector<void*> functions;
};

inline void fill_call(Call& call, uint64_t function, const pybind11::tuple& args,
                      const pybind11::bytes& blob, int blob_args, int check,
                      const std::shared_ptr<LaneCode>& lanes) {
  const std::string_view bytes = blob;
  call.function = reinterpret_cast<void*>(function);
  call.per_lane = lanes ? &lanes->functions : nullptr;
  call.blob_args = static_cast<uint8_t>(blob_args);
  call.check = static_cast<uint8_t>(check);
  if (args.size() > Call::kMaxArgs) throw pybind11::value_error("a native call takes eight arguments");
  for (size_t i = 0; i < args.size(); ++i) {
    // Pointers do not fit a signed word above 2^63; the bits are what counts.
    const unsigned long long bits = PyLong_AsUnsignedLongLongMask(PyTuple_GET_ITEM(args.ptr(), i));
    if (PyErr_Occurred() != nullptr) throw pybind11::error_already_set();
    call.args[i] = static_cast<int64_t>(bits);
  }
  call.reserve_blob(bytes.size());
  std::memcpy(call.blob_data(), bytes.data(), bytes.size());
}

}  // namespace ks
