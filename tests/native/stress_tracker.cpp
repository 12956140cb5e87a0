// Long random programs through the hazard tracker, compared with all pairs. Exits 1 on a
// difference.
//
//   g++ -std=c++17 -O2 -fsanitize=address,undefined -Ikscheduler/csrc
//   tests/native/stress_tracker.cpp
//   ./a.out [programs] [seed]
//
// Tasks finish in any order that their dependencies allow, with up to 400 in flight.
#include <bitset>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <set>

#include "tracker.h"

namespace {

using ks::Access;

constexpr size_t kTasks = 700;
using Set = std::bitset<kTasks>;

class Program {
 public:
  explicit Program(uint64_t seed) : random_(seed) {
    window_ = 1 + below(400);
    id_step_ = 1 + below(below(2) ? 3 : 60);
    arrays_ = 1 + below(12);
    dense_percent_ = below(101);
    ids_.reserve(kTasks);
  }

  // The index of the first task whose order differs, or kTasks.
  size_t run() {
    uint64_t id = below(1000);
    for (size_t index = 0; index < kTasks; ++index, id += 1 + below(id_step_)) {
      while (in_flight(index) >= window_) finish_some(index);
      if (below(4) == 0) finish_some(index);
      ids_.push_back(id);
      accesses_.push_back(draw_accesses());
      if (!agrees(index) || !query_agrees(index)) return index;
      if (below(500) == 0) start_again(index);
    }
    return kTasks;
  }

 private:
  uint64_t below(uint64_t n) { return random_() % n; }

  Access draw_access() {
    const uint64_t base = 1000 * below(arrays_);
    const uint32_t mode = below(10) < 7 ? ks::kRead : below(2) ? ks::kWrite : ks::kReadWrite;
    if (below(100) < dense_percent_) {
      if (below(3) != 0) return {base, base + 960, mode, 0, 0};
      const uint64_t start = base + 96 * below(10);
      return {start, start + 96 * below(4), mode, 0, 0};
    }
    const uint32_t pitch = below(2) ? 96 : 32;
    const uint32_t width = 1 + static_cast<uint32_t>(below(pitch));
    const uint64_t start = base + below(pitch);
    return {start, start + pitch * below(10) + width, mode, pitch, width};
  }

  std::vector<Access> draw_accesses() {
    std::vector<Access> list(below(6));
    for (Access& a : list) a = draw_access();
    return list;
  }

  bool is_done(uint64_t id) const {
    const auto at = std::lower_bound(ids_.begin(), ids_.end(), id);
    if (at == ids_.end() || *at != id) {
      std::printf("asked about task %llu, which does not exist\n",
                  static_cast<unsigned long long>(id));
      std::exit(1);
    }
    return done_[at - ids_.begin()];
  }

  size_t in_flight(size_t count) const { return count - done_.count(); }

  // Finishes one random task that waits for nothing.
  void finish_some(size_t count) {
    std::vector<size_t> ready;
    for (size_t i = first_live_; i < count; ++i) {
      if (!done_[i] && (after_[i] & ~done_).none()) ready.push_back(i);
    }
    if (ready.empty()) return;
    done_.set(ready[below(ready.size())]);
    while (first_live_ < count && done_[first_live_]) ++first_live_;
  }

  static bool conflict(const std::vector<Access>& a, const std::vector<Access>& b) {
    for (const Access& x : a) {
      for (const Access& y : b) {
        if (ks::conflicts(x, y)) return true;
      }
    }
    return false;
  }

  Set expected(const std::vector<Access>& accesses, size_t count) const {
    Set set;
    for (size_t i = first_live_; i < count; ++i) {
      if (!done_[i] && conflict(accesses_[i], accesses)) set |= after_[i] | Set().set(i);
    }
    return set & ~done_;
  }

  // Everything that the found tasks come after; also fails on a task named twice.
  bool reach(const std::vector<uint64_t>& found, Set& set) const {
    std::set<uint64_t> once;
    for (const uint64_t id : found) {
      if (!once.insert(id).second) return false;
      const size_t i = std::lower_bound(ids_.begin(), ids_.end(), id) - ids_.begin();
      set |= after_[i] | Set().set(i);
    }
    set &= ~done_;
    return true;
  }

  bool agrees(size_t index) {
    std::vector<uint64_t> found;
    tracker_.add(
        ids_[index], accesses_[index].data(), accesses_[index].size(),
        [&](uint64_t id) { return is_done(id); }, found);
    return reach(found, after_[index]) && after_[index] == expected(accesses_[index], index);
  }

  bool query_agrees(size_t index) const {
    const Access access = const_cast<Program*>(this)->draw_access();
    std::vector<uint64_t> found;
    tracker_.query(access, [&](uint64_t id) { return is_done(id); }, found);
    Set set;
    return reach(found, set) && set == expected({access}, index + 1);
  }

  void start_again(size_t index) {
    for (size_t i = 0; i <= index; ++i) done_.set(i);
    first_live_ = index + 1;
    tracker_.clear();
  }

  std::mt19937_64 random_;
  size_t window_, id_step_, arrays_, dense_percent_;
  ks::HazardTracker tracker_;
  std::vector<uint64_t> ids_;
  std::vector<std::vector<Access>> accesses_;
  Set after_[kTasks];
  Set done_;
  size_t first_live_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  const uint64_t programs = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1000;
  const uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : std::random_device()();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  for (uint64_t i = 0; i < programs; ++i) {
    const size_t failed = Program(seed + i).run();
    if (failed == kTasks) continue;
    std::printf("program of seed %llu differs at task %zu\n",
                static_cast<unsigned long long>(seed + i), failed);
    return 1;
  }
  std::printf("%llu programs of %zu tasks agree\n", static_cast<unsigned long long>(programs),
              kTasks);
  return 0;
}
