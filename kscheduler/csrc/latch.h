// Test hook: workers stop before tasks of one label until somebody lets go.
//
// A test that holds a task has forced the race that it is about: nothing has to be timed. In
// `until_wait` mode the owner lets go by itself once it waits for a task and has nothing else to run,
// so that a window that forgets to wait shows what was there before.
#pragma once

#include <atomic>
#include <cstdint>

namespace ks {

class Latch {
 public:
  static constexpr uint64_t kNobody = ~uint64_t{0};

  static void hold(uint64_t label, bool until_wait);
  static void release();
  static void nap();
  // Tasks that stand still now.
  static int held() { return held_.load(std::memory_order_acquire); }

  static bool is_wanted(uint64_t label) { return label_.load(std::memory_order_relaxed) == label; }
  static void stop_here(uint64_t label);  // by a worker, before it runs a task
  static void owner_waits() {
    if (label_.load(std::memory_order_relaxed) != kNobody && until_wait_.load()) release();
  }

 private:
  static inline std::atomic<uint64_t> label_{kNobody};
  static inline std::atomic<bool> until_wait_{false};
  static inline std::atomic<int> held_{0};
};

}  // namespace ks
