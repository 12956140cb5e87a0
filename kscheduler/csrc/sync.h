// Waiting: every wait spins for at most 50 microseconds and then sleeps, so that an idle window
// costs no core and a busy one pays no system call.
#pragma once

#include <sched.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace ks {

constexpr int64_t kSpinNanoseconds = 50'000;

inline int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

inline void relax() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Guards a few dozen instructions. A holder that lost its core gets it back through the yield.
class SpinLock {
 public:
  void lock() {
    for (int spins = 0; taken_.exchange(true, std::memory_order_acquire); ++spins) {
      for (; taken_.load(std::memory_order_relaxed); ++spins) {
        if (spins < 128) {
          relax();
        } else {
          sched_yield();
        }
      }
    }
  }
  void unlock() { taken_.store(false, std::memory_order_release); }

 private:
  std::atomic<bool> taken_{false};
};

// Sleep until a condition over atomics holds. Whoever changes the condition calls `notify` after.
class Gate {
 public:
  template <class Condition>
  void wait(Condition condition) {
    const int64_t deadline = now_ns() + kSpinNanoseconds;
    do {
      for (int i = 0; i < 32; ++i) {
        if (condition()) return;
        relax();
      }
    } while (now_ns() < deadline);
    std::unique_lock<std::mutex> lock(mutex_);
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    while (!condition()) wake_.wait(lock);
    sleepers_.fetch_sub(1, std::memory_order_seq_cst);
  }

  // The read-modify-write orders this call against the sleeper's: either the sleeper is seen here,
  // or the sleeper sees the new condition.
  void notify() {
    if (sleepers_.fetch_add(0, std::memory_order_seq_cst) == 0) return;
    { std::lock_guard<std::mutex> lock(mutex_); }
    wake_.notify_all();
  }

 private:
  std::atomic<int> sleepers_{0};
  std::mutex mutex_;
  std::condition_variable wake_;
};

}  // namespace ks
