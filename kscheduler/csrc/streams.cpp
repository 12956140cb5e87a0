#include "streams.h"

#include <time.h>

#include <algorithm>
#include <random>
#include <utility>

#include "latch.h"

namespace ks {

namespace {

uint64_t ring_mask(size_t size) {
  uint64_t capacity = 4;
  while (capacity < 4 * size) capacity *= 2;
  return capacity - 1;
}

}  // namespace

void pause_randomly(int max_us) {
  thread_local std::minstd_rand random(static_cast<unsigned>(now_ns()));
  const int pause_us = static_cast<int>(random() % static_cast<unsigned>(max_us + 1));
  timespec pause{0, pause_us * 1000L};
  if (pause_us > 0) nanosleep(&pause, nullptr);
}

std::atomic<int32_t>& Streams::expected_ns(uint64_t label) {
  static std::vector<std::atomic<int32_t>> times(kLabels);
  return times[label % kLabels];
}

Streams::Streams(int lanes, int size, size_t record_limit)
    : lanes_(lanes),
      size_(static_cast<size_t>(size)),
      mask_(ring_mask(size_)),
      slots_(mask_ + 1),
      ready_(mask_ + 1),
      record_limit_(record_limit) {
  // Lane 0 is the owner. With one lane the only runner is a worker, so that Python goes on.
  workers_ = WorkerPool::instance().lend(this, std::max(1, lanes_ - 1), 1);
}

Streams::~Streams() { close(); }

void Streams::close() {
  if (closing_.load()) return;
  wait_for_all();
  closing_.store(true, std::memory_order_seq_cst);
  work_gate_.notify();
  WorkerPool::instance().take_back(workers_);
  workers_.clear();
}

template <class Condition>
void Streams::help_until(Condition condition) {
  if (condition()) return;
  const int64_t start = now_ns();
  int64_t helped = 0;
  if (ready_count_.load(std::memory_order_acquire) > 1) work_gate_.notify();
  while (!condition()) {
    if (lanes_ > 1 && ready_count_.load(std::memory_order_acquire) > 0) {
      const int64_t begin = now_ns();
      if (run_one(0)) {
        helped += now_ns() - begin;
        continue;
      }
    }
    Latch::owner_waits();
    done_gate_.wait([&] {
      return condition() || (lanes_ > 1 && ready_count_.load(std::memory_order_acquire) > 0);
    });
  }
  wait_ns_ += now_ns() - start - helped;
  helped_ns_ += helped;
}

void Streams::wait_for_room() {
  help_until([this] {
    const bool is_lapped = next_ - oldest_ > mask_;
    return in_flight() < size_ &&
           (!is_lapped || slot(oldest_).done.load(std::memory_order_acquire));
  });
}

Streams::Slot& Streams::open_slot() {
  Slot& opened = slot(next_);
  opened.accesses.clear();
  opened.call.per_lane = nullptr;
  opened.call.check = Call::kNone;
  opened.call.blob_args = 0;
  opened.is_cleanup = false;
  return opened;
}

uint64_t Streams::commit(Slot& opened) {
  const uint64_t id = next_++;
  opened.id = id;
  opened.pending = 0;
  opened.float_mode = read_float_mode();
  opened.record = nullptr;
  if (records_.size() < record_limit_) {
    records_.push_back(std::make_unique<TaskRecord>());
    opened.record = records_.back().get();
    opened.record->label = opened.label;
    opened.record->accesses = opened.accesses;
  }
  dependencies_.clear();
  if (planted_fault.load(std::memory_order_relaxed) != Fault::kNone) {
    add_faultily(id, opened.accesses);
  } else {
    tracker_.add(id, opened.accesses.data(), opened.accesses.size(),
                 [this](uint64_t other) { return is_done(other); }, dependencies_);
  }
  if (!tracking.load(std::memory_order_relaxed)) dependencies_.clear();
  edges_ += dependencies_.size();
  bool is_ready = false;
  lock_.lock();
  opened.successors.clear();
  opened.is_cancelled = has_failed() && !opened.is_cleanup;
  opened.done.store(false, std::memory_order_relaxed);
  for (const uint64_t other : dependencies_) {
    Slot& before = slot(other);
    if (before.done.load(std::memory_order_relaxed)) continue;
    before.successors.push_back(id);
    ++opened.pending;
  }
  if (opened.pending == 0) {
    ready_[ready_tail_++ & mask_] = id;
    ready_count_.fetch_add(1, std::memory_order_seq_cst);
    is_ready = true;
  }
  lock_.unlock();
  if (is_ready) {
    const int64_t expected = expected_ns(opened.label).load(std::memory_order_relaxed);
    const int64_t waiting = ready_ns_.fetch_add(expected, std::memory_order_relaxed) + expected;
    if (lanes_ == 1 || expected == 0 || waiting >= kWakeNanoseconds ||
        jitter_us.load(std::memory_order_relaxed) > 0 || Latch::is_wanted(opened.label))
      work_gate_.notify();
  }
  return id;
}

void Streams::add_faultily(uint64_t id, std::vector<Access> accesses) {
  const Fault fault = planted_fault.load();
  const auto done = [this](uint64_t other) { return is_done(other); };
  for (Access& access : accesses) {
    const Access seen = seen_through(fault, access);
    tracker_.query(seen, done, dependencies_);
    if (fault == Fault::kShortRanges) access = seen;
  }
  std::vector<uint64_t> unused;
  tracker_.add(id, accesses.data(), accesses.size(), done, unused);
}

bool Streams::run_one(int lane) {
  lock_.lock();
  if (ready_head_ == ready_tail_) {
    lock_.unlock();
    return false;
  }
  Slot& task = slot(ready_[ready_head_++ & mask_]);
  const bool is_last = ready_count_.fetch_sub(1, std::memory_order_seq_cst) == 1;
  lock_.unlock();
  std::atomic<int32_t>& expected = expected_ns(task.label);
  if (is_last) {
    ready_ns_.store(0, std::memory_order_relaxed);  // an estimate: drift ends here
  } else {
    ready_ns_.fetch_sub(expected.load(std::memory_order_relaxed), std::memory_order_relaxed);
  }

  if (const int pause = jitter_us.load(std::memory_order_relaxed); pause > 0) pause_randomly(pause);
  if (lane != 0 && Latch::is_wanted(task.label)) Latch::stop_here(task.label);
  if (running_.fetch_add(1, std::memory_order_relaxed) > 0)
    overlapped_.fetch_add(1, std::memory_order_relaxed);
  const uint32_t mode = read_float_mode();
  if (mode != task.float_mode) write_float_mode(task.float_mode);
  const int64_t start = now_ns();
  std::string error;
  if (!task.is_cancelled) error = task.call.run(lane);
  const int64_t end = now_ns();
  if (mode != task.float_mode) write_float_mode(mode);
  running_.fetch_sub(1, std::memory_order_relaxed);
  if (!task.is_cancelled)
    expected.store(static_cast<int32_t>(std::min<int64_t>(end - start, INT32_MAX)),
                   std::memory_order_relaxed);
  kernel_ns_.fetch_add(end - start, std::memory_order_relaxed);
  if (task.record != nullptr) {
    task.record->start_ns = start;
    task.record->end_ns = end;
    task.record->lane = lane;
  }
  finish(task, std::move(error));
  return true;
}

void Streams::finish(Slot& task, std::string error) {
  int woken = 0;
  int64_t expected = 0;
  lock_.lock();
  const bool cancels = !error.empty() || task.is_cancelled;
  if (!error.empty() && !has_failed()) {
    failed_.store(true, std::memory_order_relaxed);
    error_ = std::move(error);
    error_label_ = task.label;
  }
  for (const uint64_t id : task.successors) {
    Slot& next = slot(id);
    if (cancels && !next.is_cleanup) next.is_cancelled = true;
    if (--next.pending == 0) {
      ready_[ready_tail_++ & mask_] = id;
      expected += expected_ns(next.label).load(std::memory_order_relaxed);
      ++woken;
    }
  }
  if (woken > 0) ready_count_.fetch_add(woken, std::memory_order_seq_cst);
  task.done.store(true, std::memory_order_release);
  done_count_.fetch_add(1, std::memory_order_seq_cst);
  lock_.unlock();
  if (woken > 0) {
    // Whoever finished this one runs the next one.
    const int64_t waiting = ready_ns_.fetch_add(expected, std::memory_order_relaxed) + expected;
    if (woken > 1 || waiting >= kWakeNanoseconds || jitter_us.load(std::memory_order_relaxed) > 0)
      work_gate_.notify();
  }
  done_gate_.notify();
}

void Streams::work(int lane) {
  for (;;) {
    while (run_one(lane)) {
    }
    if (closing_.load(std::memory_order_acquire)) return;
    work_gate_.wait([this] {
      return ready_count_.load(std::memory_order_acquire) > 0 ||
             closing_.load(std::memory_order_acquire);
    });
  }
}

bool Streams::is_clear(const Access* accesses, size_t count) {
  if (in_flight() == 0) return true;
  dependencies_.clear();
  const Fault fault = planted_fault.load(std::memory_order_relaxed);
  for (size_t i = 0; i < count; ++i)
    tracker_.query(seen_through(fault, accesses[i]), [this](uint64_t other) { return is_done(other); }, dependencies_);
  return dependencies_.empty() || !tracking.load(std::memory_order_relaxed);
}

bool Streams::wait_for(const Access& access) {
  if (is_clear(&access, 1)) return false;
  for (const uint64_t id : std::vector<uint64_t>(dependencies_)) wait_for_task(id);
  return true;
}

void Streams::wait_for_task(uint64_t id) {
  help_until([this, id] { return is_done(id); });
}

void Streams::wait_since(uint64_t first) {
  for (uint64_t id = std::max(first, oldest_); id < next_; ++id) wait_for_task(id);
}

void Streams::wait_for_all() {
  help_until([this] { return in_flight() == 0; });
}

void Streams::reap(std::vector<void*>& out) {
  while (oldest_ < next_ && slot(oldest_).done.load(std::memory_order_acquire)) {
    std::vector<void*>& keep = slot(oldest_).keep;
    out.insert(out.end(), keep.begin(), keep.end());
    keep.clear();
    ++oldest_;
  }
}

bool Streams::take_error(std::string& message, uint64_t& label) {
  lock_.lock();
  const bool had_one = has_failed();
  message = std::move(error_);
  label = error_label_;
  failed_.store(false, std::memory_order_relaxed);
  error_.clear();
  lock_.unlock();
  return had_one;
}

StreamCounters Streams::counters() const {
  StreamCounters c;
  c.tasks = next_ - 1;
  c.edges = edges_;
  c.overlapped = overlapped_.load();
  c.kernel_ns = kernel_ns_.load();
  c.wait_ns = wait_ns_;
  c.helped_ns = helped_ns_;
  return c;
}

}  // namespace ks
