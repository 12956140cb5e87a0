// Planted faults, for the tests of the tests: what the tracker may be made to overlook.
#pragma once

#include <atomic>

#include "access.h"

namespace ks {

enum class Fault : int { kNone, kDropRaw, kDropWar, kShortRanges };

inline std::atomic<Fault> planted_fault{Fault::kNone};

// What a faulty tracker takes an access for when it looks for earlier tasks; empty: it does not.
inline Access seen_through(Fault fault, Access access) {
  switch (fault) {
    case Fault::kNone:
      break;
    case Fault::kDropRaw:
      if ((access.mode & kWrite) == 0) return {};
      access.mode = kWrite;
      break;
    case Fault::kDropWar:
      access.mode = kRead;
      break;
    case Fault::kShortRanges:
      if (access.end - access.start > 4) access.end -= 4;
      break;
  }
  return access;
}

}  // namespace ks
