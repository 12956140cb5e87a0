// Hazard tracker: which earlier tasks a new task must wait for.
//
// Memory is a set of disjoint byte segments, each with its last dense writer and the accesses since.
// Guarantee: every RAW, WAR and WAW pair is ordered by the returned edges or by a path of them; an
// edge is left out only where a path through a later task implies it (or the earlier task is done).
// A segment whose tasks are all done stays, because the same arrays come back every step.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "access.h"

namespace ks {

class HazardTracker {
 public:
  HazardTracker() : hints_(kHints, 0) {}

  // Ids strictly increase. Appends to `deps` the ids (each once) of the earlier tasks that `id` must
  // wait for and for which is_done(other_id) is false; then remembers the accesses.
  template <class IsDone>
  void add(uint64_t id, const Access* accesses, size_t count, IsDone&& is_done,
           std::vector<uint64_t>& deps) {
    if (starts_.size() > limit_) drop_dead(is_done);
    next_id_ = id + 1;
    Collector<IsDone> found(id, id, is_done, deps);
    for (size_t i = 0; i < count; ++i) {
      const Access& access = accesses[i];
      if (access.empty()) continue;
      if ((access.mode & kWrite) == 0) {
        visit(access, [&](Segment& s) { read(s, access, found); });
      } else if (access.pitch == 0) {
        visit(access, [&](Segment& s) { write_dense(s, found); });
      } else {
        visit(access, [&](Segment& s) { write_strided(s, access, found); });
      }
    }
    found.finish();
  }

  // The same question for one host access, remembering nothing.
  template <class IsDone>
  void query(const Access& access, IsDone&& is_done, std::vector<uint64_t>& deps) const {
    if (access.empty()) return;
    Collector<IsDone> found(kNone, next_id_, is_done, deps);
    const Entry entry(kNone, access);
    const bool writes = (access.mode & kWrite) != 0;
    for (size_t i = first_after(access.start); i < starts_.size() && starts_[i] < access.end; ++i) {
      const Segment& s = segments_[slots_[i]];
      if (s.writer != kNone) found.take(s.writer);
      if (writes) {
        for (uint32_t r = 0; r < s.reader_count; ++r) found.take(s.readers[r]);
      }
      if (!s.spill) continue;
      for (const Entry& other : s.spill->writers) {
        if (entry.meets(other)) found.take(other.id);
      }
      if (!writes) continue;
      for (const Entry& other : s.spill->readers) {
        if (entry.meets(other)) found.take(other.id);
      }
    }
    found.finish();
  }

  void clear() {
    segments_.clear();
    free_.clear();
    starts_.clear();
    slots_.clear();
    limit_ = kDropAbove;
  }

  size_t segment_count() const { return starts_.size(); }

 private:
  static constexpr uint64_t kNone = ~uint64_t{0};
  static constexpr uint32_t kEnd = ~uint32_t{0};
  static constexpr uint32_t kInline = 3;
  static constexpr size_t kHints = 4096;
  static constexpr size_t kDropAbove = 8192;

  // One remembered access of a segment; both spans cover the segment, so only the rows can differ.
  struct Entry {
    uint64_t id;
    uint32_t pitch;
    uint32_t width;
    uint32_t phase;

    Entry(uint64_t task, const Access& a)
        : id(task), pitch(a.pitch), width(a.width), phase(a.pitch ? a.start % a.pitch : 0) {}
    explicit Entry(uint64_t task) : id(task), pitch(0), width(0), phase(0) {}

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

  // What does not fit into a segment's cache line: strided accesses and many readers.
  struct Spill {
    std::vector<Entry> writers;
    std::vector<Entry> readers;
  };

  struct alignas(64) Segment {
    uint64_t start = kNone;
    uint64_t end = kNone;
    uint64_t writer = kNone;  // the last dense writer; all older accesses are implied through it
    std::unique_ptr<Spill> spill;
    uint32_t next = kEnd;  // slot of the segment to the right
    uint32_t reader_count = 0;
    uint64_t readers[kInline] = {kNone, kNone, kNone};  // dense readers since the last dense write
  };

  // Gathers dependencies, each once: a bit set for the recent past, sorting for what is older.
  template <class IsDone>
  class Collector {
   public:
    Collector(uint64_t self, uint64_t base, IsDone& is_done, std::vector<uint64_t>& deps)
        : self(self), base_(base), is_done_(is_done), deps_(deps), first_(deps.size()) {}

    const uint64_t self;

    // Notes the dependency; true if `other` is done and may be forgotten.
    bool take(uint64_t other) {
      const uint64_t back = base_ - other;
      if (back == 0) return false;
      if (back >= kRecent) {
        if (is_done_(other)) return true;
        any_old_ = true;
      } else {
        uint64_t& word = seen_[back / 64];
        const uint64_t bit = uint64_t{1} << (back % 64);
        if (word & bit) return false;
        if (is_done_(other)) return true;
        word |= bit;
      }
      deps_.push_back(other);
      return false;
    }

    bool done(uint64_t other) const { return other != self && is_done_(other); }

    void finish() {
      if (!any_old_) return;
      std::sort(deps_.begin() + first_, deps_.end());
      deps_.erase(std::unique(deps_.begin() + first_, deps_.end()), deps_.end());
    }

   private:
    static constexpr uint64_t kRecent = 256;
    const uint64_t base_;
    IsDone& is_done_;
    std::vector<uint64_t>& deps_;
    const size_t first_;
    uint64_t seen_[kRecent / 64] = {};
    bool any_old_ = false;
  };

  template <class Found>
  void read(Segment& s, const Access& access, Found& found) {
    if (s.writer != kNone && found.take(s.writer)) s.writer = kNone;
    if (s.spill && !s.spill->writers.empty()) {
      const Entry entry(found.self, access);
      keep_if(s.spill->writers, [&](const Entry& w) { return !(entry.meets(w) && found.take(w.id)); });
    }
    if (s.writer == found.self) return;
    if (access.pitch != 0) {
      remember(spill_of(s).readers, Entry(found.self, access), found);
      return;
    }
    if (s.reader_count > 0 && s.readers[s.reader_count - 1] == found.self) return;
    if (s.reader_count == kInline) make_room(s, found);
    s.readers[s.reader_count++] = found.self;
  }

  template <class Found>
  void write_dense(Segment& s, Found& found) {
    if (s.writer != kNone) found.take(s.writer);
    for (uint32_t r = 0; r < s.reader_count; ++r) found.take(s.readers[r]);
    if (s.spill) {
      for (const Entry& w : s.spill->writers) found.take(w.id);
      for (const Entry& r : s.spill->readers) found.take(r.id);
      s.spill->writers.clear();
      s.spill->readers.clear();
    }
    s.writer = found.self;
    s.reader_count = 0;
  }

  template <class Found>
  void write_strided(Segment& s, const Access& access, Found& found) {
    const Entry entry(found.self, access);
    if (s.writer != kNone && found.take(s.writer)) s.writer = kNone;
    uint32_t kept = 0;
    for (uint32_t r = 0; r < s.reader_count; ++r) {
      if (!found.take(s.readers[r])) s.readers[kept++] = s.readers[r];
    }
    s.reader_count = kept;
    Spill& spill = spill_of(s);
    const auto stays = [&](const Entry& other) {
      if (!entry.meets(other)) return true;
      return !found.take(other.id) && !entry.contains(other);
    };
    keep_if(spill.writers, stays);
    keep_if(spill.readers, stays);
    remember(spill.writers, entry, found);
  }

  // Full inline readers either have finished by now or move to the spill, three at a time.
  template <class Found>
  void make_room(Segment& s, Found& found) {
    uint32_t kept = 0;
    if (found.done(s.readers[0])) {
      for (uint32_t r = 1; r < kInline; ++r) {
        if (!found.done(s.readers[r])) s.readers[kept++] = s.readers[r];
      }
    } else {
      Spill& spill = spill_of(s);
      for (const uint64_t reader : s.readers) remember(spill.readers, Entry(reader), found);
    }
    s.reader_count = kept;
  }

  // A full list forgets finished tasks before it grows, so that its size follows the window's.
  template <class Found>
  static void remember(std::vector<Entry>& list, const Entry& entry, Found& found) {
    if (list.size() == list.capacity()) {
      keep_if(list, [&](const Entry& e) { return !found.done(e.id); });
      if (list.size() * 2 >= list.capacity()) list.reserve(std::max<size_t>(8, list.capacity() * 2));
    }
    list.push_back(entry);
  }

  template <class Keep>
  static void keep_if(std::vector<Entry>& list, Keep&& keep) {
    size_t kept = 0;
    for (size_t i = 0; i < list.size(); ++i) {
      if (keep(list[i])) list[kept++] = list[i];
    }
    list.erase(list.begin() + kept, list.end());
  }

  static Spill& spill_of(Segment& s) {
    if (!s.spill) s.spill = std::make_unique<Spill>();
    return *s.spill;
  }

  // Calls body(segment) for segments that together are exactly the span, splitting and filling gaps.
  template <class Body>
  void visit(const Access& access, Body&& body) {
    uint32_t slot = segment_at(access);
    for (;;) {
      if (segments_[slot].end > access.end) split(slot, access.end);
      Segment& s = segments_[slot];
      body(s);
      if (s.end == access.end) return;
      const uint64_t start = s.end;
      const uint32_t next = s.next;
      const uint64_t limit = next == kEnd ? kNone : segments_[next].start;
      slot = limit == start ? next : insert(first_after(start), start, std::min(access.end, limit));
    }
  }

  // The slot of the segment that starts at the access's first byte, made if there is none.
  uint32_t segment_at(const Access& access) {
    uint32_t& hint = hints_[(access.start * 0x9E3779B97F4A7C15u) >> 52];
    if (hint < segments_.size() && segments_[hint].start == access.start) return hint;
    const size_t i = first_after(access.start);
    const uint64_t limit = i == starts_.size() ? kNone : starts_[i];
    uint32_t slot;
    if (limit == access.start) {
      slot = slots_[i];
    } else if (limit < access.start) {
      slot = split(slots_[i], access.start);
    } else {
      slot = insert(i, access.start, std::min(access.end, limit));
    }
    hint = slot;
    return slot;
  }

  // Index of the first segment that ends after `address`.
  size_t first_after(uint64_t address) const {
    size_t i = std::upper_bound(starts_.begin(), starts_.end(), address) - starts_.begin();
    return i > 0 && segments_[slots_[i - 1]].end > address ? i - 1 : i;
  }

  uint32_t insert(size_t index, uint64_t start, uint64_t end) {
    uint32_t slot;
    if (free_.empty()) {
      slot = static_cast<uint32_t>(segments_.size());
      segments_.emplace_back();
    } else {
      slot = free_.back();
      free_.pop_back();
    }
    Segment& s = segments_[slot];
    s.start = start;
    s.end = end;
    s.next = index < slots_.size() ? slots_[index] : kEnd;
    if (index > 0) segments_[slots_[index - 1]].next = slot;
    starts_.insert(starts_.begin() + index, start);
    slots_.insert(slots_.begin() + index, slot);
    return slot;
  }

  // Cuts a segment in two at `address`, both with the same lists; returns the right one.
  uint32_t split(uint32_t left_slot, uint64_t address) {
    const size_t index = first_after(segments_[left_slot].start) + 1;
    const uint32_t right_slot = insert(index, address, segments_[left_slot].end);
    Segment& left = segments_[left_slot];
    Segment& right = segments_[right_slot];
    left.end = address;
    right.writer = left.writer;
    right.reader_count = left.reader_count;
    std::copy(left.readers, left.readers + kInline, right.readers);
    if (left.spill) spill_of(right) = *left.spill;
    return right_slot;
  }

  // Forgets segments on which every task is done; they are made again if they come back.
  template <class IsDone>
  void drop_dead(IsDone& is_done) {
    const auto done = [&](uint64_t id) { return is_done(id); };
    const auto all_done = [&](const std::vector<Entry>& list) {
      return std::all_of(list.begin(), list.end(), [&](const Entry& e) { return is_done(e.id); });
    };
    size_t kept = 0;
    for (size_t i = 0; i < slots_.size(); ++i) {
      Segment& s = segments_[slots_[i]];
      const bool dead = (s.writer == kNone || is_done(s.writer)) &&
                        std::all_of(s.readers, s.readers + s.reader_count, done) &&
                        (!s.spill || (all_done(s.spill->writers) && all_done(s.spill->readers)));
      if (dead) {
        s = Segment();
        free_.push_back(slots_[i]);
      } else {
        starts_[kept] = starts_[i];
        slots_[kept++] = slots_[i];
      }
    }
    starts_.resize(kept);
    slots_.resize(kept);
    for (size_t i = 0; i < kept; ++i) segments_[slots_[i]].next = i + 1 < kept ? slots_[i + 1] : kEnd;
    limit_ = std::max(kDropAbove, 2 * kept);
  }

  std::vector<Segment> segments_;  // by slot; a slot never moves, so hints stay right
  std::vector<uint32_t> free_;
  std::vector<uint64_t> starts_;  // sorted, apart from the segments so that searches and inserts are cheap
  std::vector<uint32_t> slots_;   // the segment of each start
  std::vector<uint32_t> hints_;   // start hash -> slot, verified before use
  size_t limit_ = kDropAbove;
  uint64_t next_id_ = 0;
};

}  // namespace ks
