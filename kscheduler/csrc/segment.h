// What the hazard tracker remembers of one byte segment, and how a dense access updates it.
#pragma once

#include <cstdint>
#include <vector>

#include "access.h"

namespace ks::tracked {

using Tag = uint64_t;  // task id + 1; 0 is no task, so that it compares as long done

constexpr uint64_t kNoAddress = ~uint64_t{0};
constexpr uint32_t kNoSpill = 0;
constexpr uint32_t kEnd = ~uint32_t{0};
constexpr unsigned kWords = 3;  // epochs of 64 tasks that are kept as bits

constexpr uint64_t epoch_of(Tag task) { return task / 64; }
constexpr uint64_t bit_of(Tag task) { return uint64_t{1} << (task % 64); }
constexpr uint64_t mask_if(bool yes) { return uint64_t{0} - uint64_t{yes}; }

// One remembered access of a segment; both spans cover the segment, so only the rows can differ.
struct Entry {
  Tag task;
  uint32_t pitch = 0;
  uint32_t width = 0;
  uint32_t phase = 0;

  explicit Entry(Tag dense_task) : task(dense_task) {}
  Entry(Tag task, const Access& a)
      : task(task), pitch(a.pitch), width(a.width), phase(a.pitch ? a.start % a.pitch : 0) {}

  uint64_t gap_to(const Entry& b) const {
    return b.phase >= phase ? b.phase - phase : uint64_t{pitch} - phase + b.phase;
  }
  bool meets(const Entry& b) const {
    if (pitch == 0 || pitch != b.pitch) return true;
    const uint64_t gap = gap_to(b);
    return gap < width || gap + b.width > pitch;
  }
  // Every row of b lies within a row of this one, so whatever meets b meets this one too.
  bool contains(const Entry& b) const {
    if (pitch == 0) return true;
    return pitch == b.pitch && gap_to(b) + b.width <= width;
  }
};

// What does not fit into a segment's cache line: strided accesses, and readers older than the
// bits.
struct Spill {
  std::vector<Entry> writers;
  std::vector<Entry> readers;
};

struct alignas(64) Segment {
  uint64_t start = kNoAddress;
  uint64_t end = kNoAddress;
  Tag writer = 0;                 // the last dense writer; older accesses are implied through it
  uint64_t readers[kWords] = {};  // dense readers since: a bit per task of this epoch and before
  uint64_t epoch = 0;             // of readers[0]
  uint32_t spill = kNoSpill;
  uint32_t next = kEnd;  // slot of the segment to the right
};

// Dependencies as bits, in the same layout as a segment's readers.
struct Marks {
  explicit Marks(Tag self) : self(self), epoch(epoch_of(self)) {}

  void set(Tag task) {
    const uint64_t back = epoch - epoch_of(task);
    for (unsigned k = 0; k < kWords; ++k) words[k] |= bit_of(task) & mask_if(back == k);
  }

  const Tag self;
  const uint64_t epoch;
  uint64_t words[kWords] = {};
};

// A dense access. Reads and writes share a path without branches, which no predictor would guess.
inline void touch(Segment& s, bool writes, Marks& marks) {
  marks.set(s.writer);
  const uint64_t age = marks.epoch - s.epoch;
  const uint64_t m0 = mask_if(age == 0), m1 = mask_if(age == 1), m2 = mask_if(age == 2);
  const uint64_t r0 = s.readers[0] & m0;
  const uint64_t r1 = (s.readers[1] & m0) | (s.readers[0] & m1);
  const uint64_t r2 = (s.readers[2] & m0) | (s.readers[1] & m1) | (s.readers[0] & m2);
  const uint64_t if_writes = mask_if(writes);
  marks.words[0] |= r0 & if_writes;
  marks.words[1] |= r1 & if_writes;
  marks.words[2] |= r2 & if_writes;
  s.writer = writes ? marks.self : s.writer;
  s.readers[0] = (r0 | bit_of(marks.self)) & ~if_writes;
  s.readers[1] = r1 & ~if_writes;
  s.readers[2] = r2 & ~if_writes;
  s.epoch = marks.epoch;
}

}  // namespace ks::tracked
