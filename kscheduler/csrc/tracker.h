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
    const Tag self = id + 1;
    forget_done(is_done);
    if (starts_.size() > limit_) drop_dead();
    Found<IsDone> found(self, low_ ? low_ : self, is_done);
    for (size_t i = 0; i < count; ++i) {
      const Access& access = accesses[i];
      if (access.empty()) continue;
      const bool writes = (access.mode & kWrite) != 0;
      if (access.pitch == 0) {
        visit(access, [&](Segment& s) { touch_dense(s, writes, found); });
      } else if (writes) {
        visit(access, [&](Segment& s) { write_strided(s, access, found); });
      } else {
        visit(access, [&](Segment& s) { read_strided(s, access, found); });
      }
    }
    found.collect(deps);
    pending_.push_back(self);
    if (low_ == 0) low_ = self;
    newest_ = self;
  }

  // The same question for one host access, remembering nothing.
  template <class IsDone>
  void query(const Access& access, IsDone&& is_done, std::vector<uint64_t>& deps) const {
    if (access.empty()) return;
    Found<IsDone> found(newest_ + 1, low_ ? low_ : newest_ + 1, is_done);
    const Entry entry(found.self, access);
    const bool writes = (access.mode & kWrite) != 0;
    for (size_t i = first_after(access.start); i < starts_.size() && starts_[i] < access.end; ++i) {
      const Segment& s = segments_[slots_[i]];
      found.take(s.writer);
      if (writes) s.readers.for_each(0, [&](Tag reader) { found.take(reader); });
      if (s.spill) take_meeting(s.spill->writers, entry, found);
      if (s.spill && writes) take_meeting(s.spill->readers, entry, found);
    }
    found.collect(deps);
  }

  void clear() {
    segments_.clear();
    free_.clear();
    starts_.clear();
    slots_.clear();
    pending_.clear();
    head_ = 0;
    low_ = 0;
    limit_ = kDropAbove;
  }

  size_t segment_count() const { return starts_.size(); }

 private:
  using Tag = uint64_t;  // task id + 1; 0 is no task, so that it compares as long done
  __extension__ using Bits = unsigned __int128;

  static constexpr uint64_t kNoAddress = ~uint64_t{0};
  static constexpr uint32_t kEnd = ~uint32_t{0};
  static constexpr uint64_t kRecent = 128;
  static constexpr size_t kHints = 4096;
  static constexpr size_t kDropAbove = 8192;

  static Bits shift_left(Bits bits, uint64_t by) { return by < kRecent ? bits << by : 0; }

  // The recent readers of a segment as a bit set: bit k is task `newest - k`.
  struct Readers {
    Tag newest = 0;
    uint64_t low = 0;
    uint64_t high = 0;

    Bits bits() const { return Bits{high} << 64 | low; }
    // Bit k of the result is task `self - 1 - k`.
    Bits before(Tag self) const {
      const uint64_t age = self - newest;
      return age == 0 ? bits() >> 1 : shift_left(bits(), age - 1);
    }
    // Calls body(task) for the readers at least `age` older than the newest one.
    template <class Body>
    void for_each(uint64_t age, Body&& body) const {
      for (Bits rest = age < kRecent ? bits() >> age : 0; rest != 0; rest >>= 1, ++age) {
        if (rest & 1) body(newest - age);
      }
    }
    void set(Tag self, Bits bits) {
      newest = self;
      low = static_cast<uint64_t>(bits);
      high = static_cast<uint64_t>(bits >> 64);
    }
  };

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

  // What does not fit into a segment's cache line: strided accesses, readers older than `Readers`.
  struct Spill {
    std::vector<Entry> writers;
    std::vector<Entry> readers;
  };

  struct alignas(64) Segment {
    uint64_t start = kNoAddress;
    uint64_t end = kNoAddress;
    Tag writer = 0;   // the last dense writer; whatever came before is implied through it
    Readers readers;  // dense reads since then
    std::unique_ptr<Spill> spill;
    uint32_t next = kEnd;  // slot of the segment to the right
  };

  // Gathers dependencies as bits first, and asks once for each whether it is done.
  template <class IsDone>
  class Found {
   public:
    Found(Tag self, Tag low, IsDone& is_done)
        : self(self),
          low(low),
          is_done_(is_done),
          far_(self - low > kRecent ? self - low - kRecent : 0) {}

    const Tag self;
    const Tag low;  // every task before it is done

    void take(Tag task) {
      if (task - low < far_) old_.push_back(task);
      const uint64_t back = self - 1 - task;
      seen_low_ |= uint64_t{back < 64} << (back & 63);
      seen_high_ |= uint64_t{back - 64 < 64} << (back & 63);
    }
    void take(Bits before) {
      seen_low_ |= static_cast<uint64_t>(before);
      seen_high_ |= static_cast<uint64_t>(before >> 64);
    }

    bool done(Tag task) const { return task < low || is_done_(task - 1); }

    void collect(std::vector<uint64_t>& deps) {
      const Bits alive = shift_left(1, self - low) - 1;
      collect_word(seen_low_ & static_cast<uint64_t>(alive), self - 2, deps);
      collect_word(seen_high_ & static_cast<uint64_t>(alive >> 64), self - 66, deps);
      if (old_.empty()) return;
      std::sort(old_.begin(), old_.end());
      old_.erase(std::unique(old_.begin(), old_.end()), old_.end());
      for (const Tag task : old_) {
        if (!is_done_(task - 1)) deps.push_back(task - 1);
      }
    }

   private:
    void collect_word(uint64_t word, uint64_t first_id, std::vector<uint64_t>& deps) const {
      for (; word != 0; word &= word - 1) {
        const uint64_t id = first_id - static_cast<uint64_t>(__builtin_ctzll(word));
        if (!is_done_(id)) deps.push_back(id);
      }
    }

    IsDone& is_done_;
    const uint64_t far_;  // tasks in [low, low + far_) are too old for the bits
    uint64_t seen_low_ = 0;
    uint64_t seen_high_ = 0;
    std::vector<Tag> old_;
  };

  // Reads and writes share one path without branches on the mode, which no predictor would guess.
  template <class F>
  static void touch_dense(Segment& s, bool writes, F& found) {
    if (found.self - found.low >= kRecent) spill_old_readers(s, found);
    if (s.spill) touch_spill(*s.spill, writes, found);
    found.take(s.writer);
    const Bits before = s.readers.before(found.self);
    const Bits if_writes = Bits{0} - Bits{writes};
    found.take(before & if_writes);
    s.writer = writes ? found.self : s.writer;
    s.readers.set(found.self, (before << 1 | 1) & ~if_writes);
  }

  template <class F>
  static void touch_spill(Spill& spill, bool writes, F& found) {
    for (const Entry& w : spill.writers) found.take(w.task);
    if (!writes) return;
    for (const Entry& r : spill.readers) found.take(r.task);
    spill.writers.clear();
    spill.readers.clear();
  }

  template <class F>
  static void read_strided(Segment& s, const Access& access, F& found) {
    const Entry entry(found.self, access);
    found.take(s.writer);
    Spill& spill = spill_of(s);
    take_meeting(spill.writers, entry, found);
    remember(spill.readers, entry, found);
  }

  template <class F>
  static void write_strided(Segment& s, const Access& access, F& found) {
    if (found.self - found.low >= kRecent) spill_old_readers(s, found);
    const Entry entry(found.self, access);
    found.take(s.writer);
    found.take(s.readers.before(found.self));
    Spill& spill = spill_of(s);
    take_meeting(spill.writers, entry, found);
    take_meeting(spill.readers, entry, found);
    const auto stays = [&](const Entry& e) { return e.task >= found.low && !entry.contains(e); };
    keep_if(spill.writers, stays);
    keep_if(spill.readers, stays);
    remember(spill.writers, entry, found);
  }

  // Moves the readers out that the next shift of the bits would lose while they may still run.
  template <class F>
  static void spill_old_readers(Segment& s, F& found) {
    Readers& readers = s.readers;
    const Tag oldest_kept = found.self - kRecent + 1;
    const uint64_t age = readers.newest < oldest_kept ? 0 : readers.newest - oldest_kept + 1;
    if (age >= kRecent || readers.bits() >> age == 0) return;
    readers.for_each(age, [&](Tag reader) {
      if (!found.done(reader)) remember(spill_of(s).readers, Entry(reader), found);
    });
    readers.set(readers.newest, readers.bits() & (shift_left(1, age) - 1));
  }

  template <class F>
  static void take_meeting(const std::vector<Entry>& list, const Entry& entry, F& found) {
    for (const Entry& other : list) {
      if (entry.meets(other)) found.take(other.task);
    }
  }

  // A full list forgets finished tasks before it grows, so that its size follows the window's.
  template <class F>
  static void remember(std::vector<Entry>& list, const Entry& entry, F& found) {
    if (list.size() == list.capacity()) {
      keep_if(list, [&](const Entry& e) { return e.task == found.self || !found.done(e.task); });
      if (list.size() * 2 >= list.capacity()) list.reserve(std::max<size_t>(8, list.capacity() * 2));
    }
    list.push_back(entry);
  }

  template <class Keep>
  static void keep_if(std::vector<Entry>& list, Keep&& keep) {
    list.erase(std::remove_if(list.begin(), list.end(), [&](const Entry& e) { return !keep(e); }),
               list.end());
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
      const uint64_t limit = next == kEnd ? kNoAddress : segments_[next].start;
      slot = limit == start ? next : insert(first_after(start), start, std::min(access.end, limit));
    }
  }

  // The slot of the segment that starts at the access's first byte, made if there is none.
  uint32_t segment_at(const Access& access) {
    uint32_t& hint = hints_[(access.start * 0x9E3779B97F4A7C15u) >> 52];
    if (hint < segments_.size() && segments_[hint].start == access.start) return hint;
    const size_t i = first_after(access.start);
    const uint64_t limit = i == starts_.size() ? kNoAddress : starts_[i];
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
    right.readers = left.readers;
    if (left.spill) spill_of(right) = *left.spill;
    return right_slot;
  }

  // Moves `low_` past the tasks that are done, in order of their ids.
  template <class IsDone>
  void forget_done(IsDone& is_done) {
    while (head_ < pending_.size() && is_done(pending_[head_] - 1)) ++head_;
    if (head_ * 2 > pending_.size() && head_ > 1024) {
      pending_.erase(pending_.begin(), pending_.begin() + static_cast<std::ptrdiff_t>(head_));
      head_ = 0;
    }
    low_ = head_ < pending_.size() ? pending_[head_] : 0;
  }

  // Forgets segments whose tasks are all done; they are made again if they come back.
  void drop_dead() {
    const Tag low = low_ ? low_ : newest_ + 1;
    const auto dead = [&](const Entry& e) { return e.task < low; };
    const auto all_dead = [&](const std::vector<Entry>& list) {
      return std::all_of(list.begin(), list.end(), dead);
    };
    size_t kept = 0;
    for (size_t i = 0; i < slots_.size(); ++i) {
      Segment& s = segments_[slots_[i]];
      if (s.writer < low && s.readers.newest < low &&
          (!s.spill || (all_dead(s.spill->writers) && all_dead(s.spill->readers)))) {
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
  std::vector<Tag> pending_;  // tasks in order of their ids, done before `head_`
  size_t head_ = 0;
  Tag low_ = 0;  // the oldest task not known to be done, or 0
  Tag newest_ = 0;
};

}  // namespace ks
