// Accesses from Python: any sequence (start, end, mode, pitch, width), such as
// kscheduler.access.Access.
#pragma once

#include <pybind11/pybind11.h>

#include <vector>

#include "access.h"

namespace ks {

inline Access access_from_python(pybind11::handle item) {
  const auto fields = pybind11::reinterpret_borrow<pybind11::sequence>(item);
  if (fields.size() < 3)
    throw pybind11::value_error("an access is (start, end, mode[, pitch, width])");
  Access access;
  access.start = fields[0].cast<uint64_t>();
  access.end = fields[1].cast<uint64_t>();
  access.mode = fields[2].cast<uint32_t>();
  if (fields.size() < 5) return access;
  const auto pitch = fields[3].cast<uint64_t>();
  const auto width = fields[4].cast<uint64_t>();
  // Rows too far apart for 32 bits fall back to the whole span, which is sound.
  if (pitch <= UINT32_MAX && width <= UINT32_MAX) {
    access.pitch = static_cast<uint32_t>(pitch);
    access.width = static_cast<uint32_t>(width);
  }
  return access;
}

inline std::vector<Access> accesses_from_python(pybind11::handle items) {
  std::vector<Access> accesses;
  for (pybind11::handle item : items) accesses.push_back(access_from_python(item));
  return accesses;
}

}  // namespace ks
