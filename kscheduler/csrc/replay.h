// A recorded program: a graph of native calls that runs again without Python.
//
// Nodes are added once, in program order; edges say "b after a" and never leave one body. A loop or
// branch node owns bodies of nodes: a loop reads its condition from memory and starts its body again
// until it is zero. Ready nodes start in the order of their rank, the longest remaining path first.
// Host nodes (torch ops, Python callables) are handed back to the caller, in program order.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "call.h"
#include "pool.h"
#include "sync.h"

namespace ks {

struct ReplayEvent {
  uint32_t node;
  int lane;
  int64_t start_ns;
  int64_t end_ns;
};

class Replay final : public Team {
 public:
  enum class Kind : uint8_t { kCall, kLoop, kBranch, kHost };
  static constexpr int kTop = -1;

  explicit Replay(int lanes);
  ~Replay() override;
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;

  // Builds the graph. `parent` is a loop or branch node, or kTop; `side` is 0, or 1 for "else".
  uint32_t add_call(Call call, int parent, int side);
  uint32_t add_loop(const int32_t* condition, int parent, int side);
  uint32_t add_branch(const int32_t* condition, int parent, int side);
  // What a loop or branch tests from the next replay on.
  void set_condition(uint32_t node, const int32_t* condition) { nodes_[node].condition = condition; }
  uint32_t add_host();
  void add_edge(uint32_t before, uint32_t after);
  // Orders ready nodes by the longest path to the end, from the durations measured so far.
  void rank();

  // One run: `begin`, then `advance` until it returns -1; each host node it returns is run by the
  // caller and reported with `complete_host`. A caller that cannot go on calls `cancel`.
  void begin();
  int64_t advance();
  void complete_host(uint32_t node);
  void cancel();

  // Overwrites 8 bytes of a node's arguments (an input array that moved).
  void patch(uint32_t node, size_t offset, uint64_t value);
  bool take_error(std::string& message, uint32_t& node);

  void work(int lane) override;

  // Measured nanoseconds per run of each node; a loop counts all its iterations.
  std::vector<int64_t> durations() const;
  // When each node of the last run ran, by start.
  std::vector<ReplayEvent> events() const;
  size_t size() const { return nodes_.size(); }
  int lanes() const { return lanes_; }
  int64_t wait_ns() const { return wait_ns_; }

 private:
  struct Node {
    Kind kind = Kind::kCall;
    int parent = kTop;
    int side = 0;
    Call call;
    const int32_t* condition = nullptr;
    std::vector<uint32_t> bodies[2];
    std::vector<uint32_t> after;
    uint32_t before = 0;  // number of predecessors
  };
  // What a run looks at, apart from the nodes: kernels leave little of them in the cache.
  struct State {
    uint32_t pending = 0;    // predecessors that have not run; guarded by lock_
    uint32_t remaining = 0;  // nodes of the body that have not run; guarded by lock_
    int64_t run_ns = 0;      // written by whoever runs the node
  };

  uint32_t add(Kind kind, int parent, int side);
  bool has_ready() const { return ready_count_.load(std::memory_order_acquire) > 0; }
  int pop_ready();
  void make_ready(uint32_t index);
  void test(uint32_t index);
  void arm(uint32_t index, int side);
  void complete(uint32_t index);
  // Runs ready nodes on `lane` until there are none. Returns whether it ran any.
  bool run_ready(int lane, bool stop_for_host);
  void execute(uint32_t index, int lane);
  void seal();
  void rank_bodies(const std::vector<uint32_t>& body, std::vector<double>& length,
                   double after_parent);
  void stop();

  const int lanes_;
  std::vector<Node> nodes_;
  std::vector<State> states_;
  std::vector<uint32_t> before_;       // node -> number of predecessors
  std::vector<int> parents_;           // node -> parent
  std::vector<Kind> kinds_;
  std::vector<uint32_t> after_begin_;  // node -> where its successors start in after_
  std::vector<uint32_t> after_;
  std::vector<int64_t> total_ns_;
  int64_t runs_ = 0;
  std::vector<uint32_t> top_;
  std::vector<uint32_t> hosts_;
  std::vector<uint32_t> rank_of_;   // node -> position, 0 is the most urgent
  std::vector<uint32_t> by_rank_;
  std::vector<Worker*> workers_;

  SpinLock lock_;
  std::vector<uint64_t> ready_;  // one bit per rank
  std::atomic<int> ready_count_{0};
  std::atomic<uint32_t> top_remaining_{0};
  std::atomic<bool> host_is_ready_{false};
  std::atomic<bool> is_over_{true};
  std::atomic<bool> is_cancelled_{false};
  size_t next_host_ = 0;
  uint32_t float_mode_ = 0;
  bool failed_ = false;
  std::string error_;
  uint32_t error_node_ = 0;
  int64_t host_start_ns_ = 0;
  std::vector<std::vector<ReplayEvent>> events_;  // per lane
  int64_t wait_ns_ = 0;
  Gate work_gate_;
  Gate owner_gate_;
};

}  // namespace ks
