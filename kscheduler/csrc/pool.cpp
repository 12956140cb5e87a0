#include "pool.h"

#include <pthread.h>

#include <stdexcept>

namespace ks {

namespace {
constexpr size_t kStackBytes = 8u << 20;  // Warp's tile kernels put 256 KiB on the stack
}

struct Worker {
  enum State : int { kIdle, kOffered, kWorking, kEnding };
  std::atomic<int> state{kIdle};
  Team* team = nullptr;
  int lane = 0;
  Gate inbox;   // the worker waits here for an offer
  Gate outbox;  // the pool waits here for the worker to come back
  pthread_t thread{};

  void loop() {
    for (;;) {
      inbox.wait([this] {
        const int now = state.load(std::memory_order_acquire);
        return now == kOffered || now == kEnding;
      });
      int expected = kOffered;
      if (state.compare_exchange_strong(expected, kWorking, std::memory_order_acq_rel)) {
        team->work(lane);
        state.store(kIdle, std::memory_order_release);
        outbox.notify();
      } else if (expected == kEnding) {
        return;
      }
    }
  }
};

namespace {

void* worker_main(void* worker) {
#if defined(__linux__)
  pthread_setname_np(pthread_self(), "kscheduler");
#endif
  static_cast<Worker*>(worker)->loop();
  return nullptr;
}

void start(Worker* worker) {
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, kStackBytes);
  const int failed = pthread_create(&worker->thread, &attributes, worker_main, worker);
  pthread_attr_destroy(&attributes);
  if (failed != 0) throw std::runtime_error("cannot start a worker thread");
}

WorkerPool* g_pool = nullptr;

// The threads do not exist in a forked child: it starts over with an empty pool.
void forget_after_fork() { g_pool = nullptr; }

}  // namespace

WorkerPool& WorkerPool::instance() {
  static std::mutex mutex;
  std::lock_guard<std::mutex> lock(mutex);
  if (g_pool == nullptr) {
    static bool registered = false;
    if (!registered) pthread_atfork(nullptr, nullptr, forget_after_fork);
    registered = true;
    g_pool = new WorkerPool();
  }
  return *g_pool;
}

std::vector<Worker*> WorkerPool::lend(Team* team, int count, int first_lane) {
  std::vector<Worker*> lent;
  lent.reserve(count);
  std::lock_guard<std::mutex> lock(mutex_);
  for (int i = 0; i < count; ++i) {
    if (idle_.empty()) {
      auto worker = std::make_unique<Worker>();
      start(worker.get());
      idle_.push_back(worker.get());
      all_.push_back(std::move(worker));
    }
    Worker* worker = idle_.back();
    idle_.pop_back();
    worker->team = team;
    worker->lane = first_lane + i;
    worker->state.store(Worker::kOffered, std::memory_order_release);
    worker->inbox.notify();
    lent.push_back(worker);
  }
  return lent;
}

void WorkerPool::take_back(const std::vector<Worker*>& workers) {
  for (Worker* worker : workers) {
    int expected = Worker::kOffered;
    if (!worker->state.compare_exchange_strong(expected, Worker::kIdle,
                                               std::memory_order_acq_rel)) {
      worker->outbox.wait(
          [worker] { return worker->state.load(std::memory_order_acquire) == Worker::kIdle; });
    }
  }
  std::lock_guard<std::mutex> lock(mutex_);
  for (Worker* worker : workers) idle_.push_back(worker);
}

int WorkerPool::size() {
  std::lock_guard<std::mutex> lock(mutex_);
  return static_cast<int>(all_.size());
}

void WorkerPool::shut_down() {
  std::lock_guard<std::mutex> lock(mutex_);
  for (Worker* worker : idle_) {
    worker->state.store(Worker::kEnding, std::memory_order_release);
    worker->inbox.notify();
    pthread_join(worker->thread, nullptr);
  }
  for (Worker* worker : idle_) {
    for (auto it = all_.begin(); it != all_.end(); ++it) {
      if (it->get() == worker) {
        all_.erase(it);
        break;
      }
    }
  }
  idle_.clear();
}

}  // namespace ks
