// The sliding window on CPU threads.
//
// One thread, the owner, submits tasks in program order. A task starts as soon as every earlier task
// that it conflicts with is done; at most `size` tasks are in flight and at most `lanes` run at once.
// Lane 0 is the owner, which helps while it waits; with one lane a single worker runs everything.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "access.h"
#include "call.h"
#include "fault.h"
#include "pool.h"
#include "sync.h"
#include "tracker.h"

namespace ks {

// What the report needs of a finished task.
struct TaskRecord {
  uint64_t label = 0;  // chosen by the submitter
  std::vector<Access> accesses;
  int64_t start_ns = 0;
  int64_t end_ns = 0;
  int lane = 0;
};

struct StreamCounters {
  uint64_t tasks = 0;
  uint64_t edges = 0;
  uint64_t overlapped = 0;  // tasks that started while another one ran
  int64_t kernel_ns = 0;
  int64_t wait_ns = 0;    // owner waiting, minus what it ran itself meanwhile
  int64_t helped_ns = 0;  // owner running tasks while it waited
};

class Streams final : public Team {
 public:
  Streams(int lanes, int size, size_t record_limit);
  ~Streams() override;
  Streams(const Streams&) = delete;
  Streams& operator=(const Streams&) = delete;

  // The next task, to be filled in and then committed.
  struct Slot {
    Call call;
    std::vector<Access> accesses;
    std::vector<void*> keep;  // objects that must live until the task is done
    uint64_t label = 0;
    bool is_cleanup = false;  // runs even if what it waits for has failed

   private:
    friend class Streams;
    bool is_cancelled = false;
    uint64_t id = 0;
    std::atomic<bool> done{true};
    uint32_t pending = 0;
    uint32_t float_mode = 0;
    std::vector<uint64_t> successors;
    TaskRecord* record = nullptr;
  };
  // Ids are positions in a ring: a task that has not been reaped must not be lapped.
  bool has_room() const { return in_flight() < size_ && next_ - oldest_ <= mask_; }
  void wait_for_room();  // until there is room, or would be after `reap`
  Slot& open_slot();
  uint64_t commit(Slot& slot);

  // Waits until no task in flight conflicts with `access`. Returns whether it had to wait.
  bool wait_for(const Access& access);
  // The same for many accesses at once; `is_clear` only asks.
  bool is_clear(const Access* accesses, size_t count);
  void wait_for_task(uint64_t id);
  void wait_since(uint64_t first);  // for that task and all later ones
  void wait_for_all();
  uint64_t next_id() const { return next_; }
  size_t in_flight() const { return next_ - 1 - done_count_.load(std::memory_order_acquire); }

  // Moves the kept objects of finished tasks to `out`. Owner only.
  void reap(std::vector<void*>& out);
  // A task that has failed cancels those that depend on it and all that are submitted before the
  // error is taken; independent ones go on.
  bool has_failed() const { return failed_.load(std::memory_order_relaxed); }
  // The first error of a task since the last call, and its label; empty if none.
  bool take_error(std::string& message, uint64_t& label);

  void work(int lane) override;
  void close();

  StreamCounters counters() const;
  const std::vector<std::unique_ptr<TaskRecord>>& records() const { return records_; }
  int lanes() const { return lanes_; }
  int code_lanes() const { return lanes_ + 1; }

  // Run times by label, as last seen. A worker is woken for enough work only: a wake-up costs more
  // than most small kernels, and the owner runs what is left when it waits.
  static constexpr uint64_t kLabels = 1 << 14;
  static constexpr int64_t kWakeNanoseconds = 25'000;
  static std::atomic<int32_t>& expected_ns(uint64_t label);

  // Test hooks: all tasks independent; a random pause of up to this many microseconds before each,
  // for which every task also wakes a worker.
  static inline std::atomic<bool> tracking{true};
  static inline std::atomic<int> jitter_us{0};

 private:
  Slot& slot(uint64_t id) { return slots_[id & mask_]; }
  bool is_done(uint64_t id) {
    return id < oldest_ || slot(id).done.load(std::memory_order_acquire);
  }
  template <class Condition>
  void help_until(Condition condition);
  void add_faultily(uint64_t id, std::vector<Access> accesses);
  bool run_one(int lane);
  void finish(Slot& slot, std::string error);

  const int lanes_;
  const size_t size_;
  const uint64_t mask_;
  std::vector<Slot> slots_;
  HazardTracker tracker_;
  uint64_t next_ = 1;    // id of the next task
  uint64_t oldest_ = 1;  // every smaller id is done and reaped
  std::vector<uint64_t> dependencies_;

  SpinLock lock_;
  std::vector<uint64_t> ready_;  // ring of ids, as large as slots_
  uint64_t ready_head_ = 0, ready_tail_ = 0;
  std::atomic<int> ready_count_{0};
  std::atomic<int64_t> ready_ns_{0};  // expected run time of the ready tasks
  std::atomic<uint64_t> done_count_{0};
  std::atomic<int> running_{0};
  std::atomic<uint64_t> overlapped_{0};
  std::atomic<int64_t> kernel_ns_{0};
  std::atomic<bool> closing_{false};
  std::atomic<bool> failed_{false};
  std::string error_;
  uint64_t error_label_ = 0;

  Gate work_gate_;  // workers wait for ready tasks
  Gate done_gate_;  // the owner waits for finished ones
  std::vector<Worker*> workers_;
  uint64_t edges_ = 0;
  int64_t wait_ns_ = 0;
  int64_t helped_ns_ = 0;
  size_t record_limit_;
  std::vector<std::unique_ptr<TaskRecord>> records_;
};

// A pause for the stress tests: reaches orders that a quiet machine never shows.
void pause_randomly(int max_us);

}  // namespace ks
