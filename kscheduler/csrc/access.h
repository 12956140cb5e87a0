// Accesses in the native core: the same law as kscheduler/access.py.
#pragma once

#include <cstdint>

namespace ks {

enum Mode : uint32_t { kRead = 1, kWrite = 2, kReadWrite = 3 };

// Half-open byte range; with pitch != 0, rows of `width` bytes that lie `pitch` bytes apart.
struct Access {
  uint64_t start = 0;
  uint64_t end = 0;
  uint32_t mode = 0;
  uint32_t pitch = 0;
  uint32_t width = 0;

  bool empty() const { return start >= end; }
};

// May say yes for ranges that share no byte, never no for ranges that share one.
inline bool overlaps(const Access& a, const Access& b) {
  if (a.start >= b.end || b.start >= a.end || a.empty() || b.empty()) return false;
  if (a.pitch == 0 || a.pitch != b.pitch) return true;
  const uint64_t pitch = a.pitch;
  const uint64_t gap = b.start >= a.start ? (b.start - a.start) % pitch
                                          : (pitch - (a.start - b.start) % pitch) % pitch;
  return gap < a.width || gap + b.width > pitch;
}

inline bool conflicts(const Access& a, const Access& b) {
  return ((a.mode | b.mode) & kWrite) != 0 && overlaps(a, b);
}

}  // namespace ks
