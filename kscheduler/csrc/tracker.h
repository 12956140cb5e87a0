// Hazard tracker: which earlier tasks a new task must wait for.
//
// Memory is a set of disjoint byte segments, each with its last dense writer and the accesses
// since. Guarantee: every RAW, WAR and WAW pair is ordered by the returned edges or by a path of
// them; an edge is left out only where a path through a later task implies it (or the earlier task
// is done). A segment whose tasks are all done stays, because the same arrays come back every step.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "access.h"
#include "segment.h"

namespace ks {

class HazardTracker {
 public:
  HazardTracker() { clear(); }

  // Ids strictly increase. Appends to `deps` the ids (each once) of the earlier tasks that `id`
  // must wait for and for which is_done(other_id) is false; then remembers the accesses.
  template <class IsDone>
  void add(uint64_t id, const Access* accesses, size_t count, IsDone&& is_done,
           std::vector<uint64_t>& deps) {
    const Tag self = id + 1;
    forget_done(is_done);
    if (starts_.size() > limit_) drop_dead();
    Found<IsDone> found(self, low_ ? low_ : self, is_done);
    Marks marks(self);
    for (size_t i = 0; i < count; ++i) {
      const Access& access = accesses[i];
      Segment& s = segments_[hints_[hint_of(access.start)]];
      const bool plain = s.start == access.start && s.end == access.end && access.pitch == 0;
      if (plain && s.spill == kNoSpill && !found.reaches_far()) {
        touch(s, (access.mode & kWrite) != 0, marks);
      } else {
        add_slowly(access, found);
      }
    }
    found.collect(marks, deps);
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
      if (writes) for_each_reader(s, found.self, 0, [&](Tag reader) { found.take(reader); });
      const Spill& spill = spills_[s.spill];
      take_meeting(spill.writers, entry, found);
      if (writes) take_meeting(spill.readers, entry, found);
    }
    found.collect(Marks(found.self), deps);
  }

  void clear() {
    segments_.clear();
    segments_.emplace_back();  // what a hint that knows nothing points to
    hints_.assign(kHints, 0);
    free_.clear();
    spills_.clear();
    spills_.emplace_back();  // kNoSpill: always empty
    free_spills_.clear();
    starts_.clear();
    slots_.clear();
    pending_.clear();
    head_ = 0;
    low_ = 0;
    limit_ = kDropAbove;
  }

  size_t segment_count() const { return starts_.size(); }

 private:
  using Tag = tracked::Tag;
  using Entry = tracked::Entry;
  using Spill = tracked::Spill;
  using Segment = tracked::Segment;
  using Marks = tracked::Marks;

  static constexpr uint32_t kEnd = tracked::kEnd;
  static constexpr uint32_t kNoSpill = tracked::kNoSpill;
  static constexpr uint64_t kNoAddress = tracked::kNoAddress;
  static constexpr unsigned kWords = tracked::kWords;
  static constexpr unsigned kHintShift = 50;
  static constexpr size_t kHints = size_t{1} << (64 - kHintShift);
  static constexpr size_t kDropAbove = 8192;

  // What one call of add() or query() knows and has found.
  template <class IsDone>
  class Found {
   public:
    Found(Tag self, Tag low, IsDone& is_done)
        : self(self), low(low), marks(self), is_done_(is_done) {
      const uint64_t epoch = tracked::epoch_of(self);
      const Tag first_marked = epoch < kWords ? 0 : 64 * (epoch - (kWords - 1));
      far_ = first_marked > low ? first_marked - low : 0;
    }

    const Tag self;
    const Tag low;  // every task before it is done
    Marks marks;

    // Whether a task may be unfinished although it is too old for the bits.
    bool reaches_far() const { return far_ != 0; }
    bool done(Tag task) const { return task < low || is_done_(task - 1); }

    void take(Tag task) {
      if (task - low < far_) old_.push_back(task);
      marks.set(task);
    }

    // Asks once for each task whether it is done.
    void collect(const Marks& more, std::vector<uint64_t>& deps) {
      for (unsigned k = 0; k < kWords && marks.epoch >= k; ++k) {
        const Tag first = 64 * (marks.epoch - k);
        uint64_t word = marks.words[k] | more.words[k];
        if (k == 0) word &= tracked::bit_of(self) - 1;
        if (first + 64 <= low) return;
        if (first < low) word &= ~(tracked::bit_of(low) - 1);
        for (; word != 0; word &= word - 1) {
          const uint64_t id = first + static_cast<uint64_t>(__builtin_ctzll(word)) - 1;
          if (!is_done_(id)) deps.push_back(id);
        }
      }
      if (!old_.empty()) collect_old(deps);
    }

   private:
    void collect_old(std::vector<uint64_t>& deps) {
      std::sort(old_.begin(), old_.end());
      old_.erase(std::unique(old_.begin(), old_.end()), old_.end());
      for (const Tag task : old_) {
        if (!is_done_(task - 1)) deps.push_back(task - 1);
      }
    }

    IsDone& is_done_;
    uint64_t far_;  // tasks in [low, low + far_) are too old for the bits
    std::vector<Tag> old_;
  };

  template <class F>
  [[gnu::noinline]] void add_slowly(const Access& access, F& found) {
    if (access.empty()) return;
    const bool writes = (access.mode & kWrite) != 0;
    visit(access, [&](Segment& s) {
      if (found.reaches_far()) spill_old_readers(s, found);
      if (access.pitch != 0) {
        touch_strided(s, access, writes, found);
        return;
      }
      if (s.spill != kNoSpill) touch_spill(spills_[s.spill], writes, found);
      if (found.reaches_far()) found.take(s.writer);
      touch(s, writes, found.marks);
    });
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
  void touch_strided(Segment& s, const Access& access, bool writes, F& found) {
    const Entry entry(found.self, access);
    Spill& spill = spill_of(s);
    found.take(s.writer);
    take_meeting(spill.writers, entry, found);
    if (!writes) {
      remember(spill.readers, entry, found);
      return;
    }
    for_each_reader(s, found.self, 0, [&](Tag reader) { found.take(reader); });
    take_meeting(spill.readers, entry, found);
    const auto stays = [&](const Entry& e) { return e.task >= found.low && !entry.contains(e); };
    keep_if(spill.writers, stays);
    keep_if(spill.readers, stays);
    remember(spill.writers, entry, found);
  }

  // Calls body(task) for the dense readers of epochs at least `min_age` before that of `self`,
  // which is no earlier than any of them.
  template <class Body>
  static void for_each_reader(const Segment& s, Tag self, uint64_t min_age, Body&& body) {
    const uint64_t age = tracked::epoch_of(self) - s.epoch;
    for (uint64_t k = 0; k < kWords; ++k) {
      if (s.readers[k] == 0 || age + k < min_age) continue;
      const Tag first = 64 * (s.epoch - k);
      for (uint64_t word = s.readers[k]; word != 0; word &= word - 1) {
        body(first + static_cast<uint64_t>(__builtin_ctzll(word)));
      }
    }
  }

  // Moves the readers out that the bits are about to lose while they may still run.
  template <class F>
  void spill_old_readers(Segment& s, F& found) {
    for_each_reader(s, found.self, kWords, [&](Tag reader) {
      if (!found.done(reader)) remember(spill_of(s).readers, Entry(reader), found);
    });
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
      if (list.size() * 2 >= list.capacity())
        list.reserve(std::max<size_t>(8, list.capacity() * 2));
    }
    list.push_back(entry);
  }

  template <class Keep>
  static void keep_if(std::vector<Entry>& list, Keep&& keep) {
    list.erase(std::remove_if(list.begin(), list.end(), [&](const Entry& e) { return !keep(e); }),
               list.end());
  }

  Spill& spill_of(Segment& s) {
    if (s.spill == kNoSpill && free_spills_.empty()) {
      s.spill = static_cast<uint32_t>(spills_.size());
      spills_.emplace_back();
    } else if (s.spill == kNoSpill) {
      s.spill = free_spills_.back();
      free_spills_.pop_back();
    }
    return spills_[s.spill];
  }

  // Calls body(segment) for segments that together are exactly the span, splitting and filling
  // gaps.
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

  static size_t hint_of(uint64_t start) { return (start * 0x9E3779B97F4A7C15u) >> kHintShift; }

  // The slot of the segment that starts at the access's first byte, made if there is none.
  uint32_t segment_at(const Access& access) {
    uint32_t& hint = hints_[hint_of(access.start)];
    if (segments_[hint].start == access.start) return hint;
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
    right.epoch = left.epoch;
    std::copy(left.readers, left.readers + kWords, right.readers);
    if (left.spill != kNoSpill) spill_of(right) = spills_[left.spill];
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
    const auto is_dead = [&](const Segment& s) {
      const auto dead = [&](const Entry& e) { return e.task < low; };
      bool all_dead = s.writer < low;
      for_each_reader(s, newest_, 0, [&](Tag reader) { all_dead &= reader < low; });
      const Spill& spill = spills_[s.spill];
      return all_dead && std::all_of(spill.writers.begin(), spill.writers.end(), dead) &&
             std::all_of(spill.readers.begin(), spill.readers.end(), dead);
    };
    size_t kept = 0;
    for (size_t i = 0; i < slots_.size(); ++i) {
      Segment& s = segments_[slots_[i]];
      if (is_dead(s)) {
        if (s.spill != kNoSpill) {
          spills_[s.spill].writers.clear();
          spills_[s.spill].readers.clear();
          free_spills_.push_back(s.spill);
        }
        s = Segment();
        free_.push_back(slots_[i]);
      } else {
        starts_[kept] = starts_[i];
        slots_[kept++] = slots_[i];
      }
    }
    starts_.resize(kept);
    slots_.resize(kept);
    for (size_t i = 0; i < kept; ++i)
      segments_[slots_[i]].next = i + 1 < kept ? slots_[i + 1] : kEnd;
    limit_ = std::max(kDropAbove, 2 * kept);
  }

  std::vector<Segment> segments_;  // by slot; a slot never moves, so hints stay right
  std::vector<uint32_t> free_;
  std::deque<Spill> spills_;  // by Segment::spill; a deque, so that references stay right
  std::vector<uint32_t> free_spills_;
  std::vector<uint64_t>
      starts_;  // sorted, apart from the segments so that searches and inserts are cheap
  std::vector<uint32_t> slots_;  // the segment of each start
  std::vector<uint32_t> hints_;  // start hash -> slot, verified before use
  size_t limit_ = kDropAbove;
  std::vector<Tag> pending_;  // tasks in order of their ids, done before `head_`
  size_t head_ = 0;
  Tag low_ = 0;  // the oldest task not known to be done, or 0
  Tag newest_ = 0;
};

}  // namespace ks
