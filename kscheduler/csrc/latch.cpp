#include "latch.h"

#include <time.h>

#include "sync.h"

namespace ks {

namespace {
constexpr int64_t kPatienceNanoseconds = 30'000'000'000;  // a test that forgets to let go still ends
}

void Latch::nap() {
  timespec pause{0, 20'000};
  nanosleep(&pause, nullptr);
}

void Latch::hold(uint64_t label, bool until_wait) {
  until_wait_.store(until_wait);
  label_.store(label);
}

void Latch::release() { label_.store(kNobody); }

void Latch::stop_here(uint64_t label) {
  held_.fetch_add(1);
  const int64_t deadline = now_ns() + kPatienceNanoseconds;
  while (label_.load(std::memory_order_acquire) == label && now_ns() < deadline) nap();
  held_.fetch_sub(1);
}

}  // namespace ks
