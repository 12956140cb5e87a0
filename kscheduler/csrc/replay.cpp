#include "replay.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "streams.h"

namespace ks {

Replay::Replay(int lanes) : lanes_(lanes), events_(lanes) {}

Replay::~Replay() { cancel(); }

uint32_t Replay::add(Kind kind, int parent, int side) {
  const uint32_t index = static_cast<uint32_t>(nodes_.size());
  nodes_.emplace_back();
  Node& node = nodes_.back();
  node.kind = kind;
  node.parent = parent;
  node.side = side;
  (parent == kTop ? top_ : nodes_[parent].bodies[side]).push_back(index);
  return index;
}

uint32_t Replay::add_call(Call call, int parent, int side) {
  const uint32_t index = add(Kind::kCall, parent, side);
  nodes_[index].call = std::move(call);
  return index;
}

uint32_t Replay::add_loop(const int32_t* condition, int parent, int side) {
  const uint32_t index = add(Kind::kLoop, parent, side);
  nodes_[index].condition = condition;
  return index;
}

uint32_t Replay::add_branch(const int32_t* condition, int parent, int side) {
  const uint32_t index = add(Kind::kBranch, parent, side);
  nodes_[index].condition = condition;
  return index;
}

uint32_t Replay::add_host() {
  const uint32_t index = add(Kind::kHost, kTop, 0);
  hosts_.push_back(index);
  return index;
}

void Replay::add_edge(uint32_t before, uint32_t after) {
  if (!Streams::tracking.load(std::memory_order_relaxed)) return;
  nodes_[before].after.push_back(after);
  ++nodes_[after].before;
}

// Paths are measured from the end. A node in a body is followed by what follows its loop.
void Replay::rank_bodies(const std::vector<uint32_t>& body, std::vector<double>& length,
                         double after_parent) {
  for (auto it = body.rbegin(); it != body.rend(); ++it) {
    Node& node = nodes_[*it];
    double longest = after_parent;
    for (const uint32_t next : node.after) longest = std::max(longest, length[next]);
    const double own = runs_ > 0 ? static_cast<double>(total_ns_[*it]) / runs_ : 1000.0;
    length[*it] = longest + own;
    for (const auto& inner : node.bodies) rank_bodies(inner, length, longest);
  }
}

// Copies what a run needs of the nodes to arrays of its own.
void Replay::seal() {
  if (states_.size() == nodes_.size()) return;
  states_.resize(nodes_.size());
  total_ns_.resize(nodes_.size(), 0);
  before_.clear();
  parents_.clear();
  kinds_.clear();
  after_begin_.assign(1, 0);
  after_.clear();
  for (const Node& node : nodes_) {
    before_.push_back(node.before);
    parents_.push_back(node.parent);
    kinds_.push_back(node.kind);
    after_.insert(after_.end(), node.after.begin(), node.after.end());
    after_begin_.push_back(static_cast<uint32_t>(after_.size()));
  }
}

void Replay::rank() {
  seal();
  std::vector<double> length(nodes_.size(), 0.0);
  rank_bodies(top_, length, 0.0);
  by_rank_.resize(nodes_.size());
  std::iota(by_rank_.begin(), by_rank_.end(), 0u);
  // Alone, program order is best: it finds in the cache what was just written.
  if (lanes_ > 1) {
    std::stable_sort(by_rank_.begin(), by_rank_.end(),
                     [&](uint32_t a, uint32_t b) { return length[a] > length[b]; });
  }
  rank_of_.resize(nodes_.size());
  for (uint32_t position = 0; position < by_rank_.size(); ++position)
    rank_of_[by_rank_[position]] = position;
  ready_.assign((nodes_.size() + 63) / 64, 0);
}

int Replay::pop_ready() {
  for (size_t word = 0; word < ready_.size(); ++word) {
    if (ready_[word] == 0) continue;
    const int bit = __builtin_ctzll(ready_[word]);
    ready_[word] &= ready_[word] - 1;
    ready_count_.fetch_sub(1, std::memory_order_seq_cst);
    return static_cast<int>(by_rank_[word * 64 + bit]);
  }
  return -1;
}

void Replay::make_ready(uint32_t index) {
  switch (kinds_[index]) {
    case Kind::kCall: {
      const uint32_t position = rank_of_[index];
      ready_[position / 64] |= uint64_t{1} << (position % 64);
      ready_count_.fetch_add(1, std::memory_order_seq_cst);
      return;
    }
    case Kind::kLoop:
    case Kind::kBranch:
      test(index);
      return;
    case Kind::kHost:
      states_[index].remaining = 1;
      if (next_host_ < hosts_.size() && hosts_[next_host_] == index)
        host_is_ready_.store(true, std::memory_order_seq_cst);
      return;
  }
}

void Replay::test(uint32_t index) {
  Node& node = nodes_[index];
  const bool holds = *static_cast<const volatile int32_t*>(node.condition) != 0;
  const int side = holds ? 0 : 1;
  if (node.kind == Kind::kLoop ? holds : !node.bodies[side].empty()) {
    arm(index, node.kind == Kind::kLoop ? 0 : side);
  } else {
    complete(index);
  }
}

void Replay::arm(uint32_t index, int side) {
  const std::vector<uint32_t>& body = nodes_[index].bodies[side];
  states_[index].remaining = static_cast<uint32_t>(body.size());
  for (const uint32_t inner : body) states_[inner].pending = before_[inner];
  for (const uint32_t inner : body)
    if (before_[inner] == 0) make_ready(inner);
}

void Replay::complete(uint32_t index) {
  for (uint32_t i = after_begin_[index]; i < after_begin_[index + 1]; ++i)
    if (--states_[after_[i]].pending == 0) make_ready(after_[i]);
  const int parent = parents_[index];
  if (parent == kTop) {
    top_remaining_.fetch_sub(1, std::memory_order_seq_cst);
    return;
  }
  if (--states_[parent].remaining > 0) return;
  if (kinds_[parent] == Kind::kLoop) {
    test(static_cast<uint32_t>(parent));
  } else {
    complete(static_cast<uint32_t>(parent));
  }
}

void Replay::begin() {
  if (rank_of_.size() != nodes_.size()) rank();
  float_mode_ = read_float_mode();
  for (auto& lane : events_) lane.clear();
  next_host_ = 0;
  host_is_ready_.store(false);
  is_cancelled_.store(false);
  std::fill(ready_.begin(), ready_.end(), 0);
  ready_count_.store(0);
  top_remaining_.store(static_cast<uint32_t>(top_.size()));
  for (size_t i = 0; i < states_.size(); ++i) states_[i] = {before_[i], 0, 0};
  lock_.lock();
  for (const uint32_t index : top_)
    if (before_[index] == 0) make_ready(index);
  lock_.unlock();
  is_over_.store(false, std::memory_order_seq_cst);
  if (lanes_ > 1 && workers_.empty())
    workers_ = WorkerPool::instance().lend(this, lanes_ - 1, 1);
}

void Replay::execute(uint32_t index, int lane) {
  if (const int pause = Streams::jitter_us.load(std::memory_order_relaxed); pause > 0)
    pause_randomly(pause);
  const int64_t start = now_ns();
  std::string error = nodes_[index].call.run(lane);
  const int64_t end = now_ns();
  states_[index].run_ns += end - start;
  events_[lane].push_back({index, lane, start, end});
  if (!error.empty()) {
    lock_.lock();
    if (!failed_) {
      failed_ = true;
      error_ = std::move(error);
      error_node_ = index;
    }
    lock_.unlock();
  }
}

bool Replay::run_ready(int lane, bool stop_for_host) {
  lock_.lock();
  int index = pop_ready();
  bool has_more = ready_count_.load(std::memory_order_relaxed) > 0;
  lock_.unlock();
  const bool ran = index >= 0;
  while (index >= 0) {
    if (has_more) work_gate_.notify();
    execute(static_cast<uint32_t>(index), lane);
    lock_.lock();
    complete(static_cast<uint32_t>(index));
    const bool is_done = top_remaining_.load(std::memory_order_relaxed) == 0 ||
                         is_cancelled_.load(std::memory_order_relaxed);
    const bool host_waits = host_is_ready_.load(std::memory_order_relaxed);
    index = is_done || (stop_for_host && host_waits) ? -1 : pop_ready();
    has_more = ready_count_.load(std::memory_order_relaxed) > 0;
    lock_.unlock();
    if (lane != 0 && (is_done || host_waits || has_more || index < 0)) owner_gate_.notify();
    if (index < 0 && has_more) work_gate_.notify();
  }
  return ran;
}

void Replay::work(int lane) {
  const uint32_t mode = read_float_mode();
  write_float_mode(float_mode_);
  for (;;) {
    run_ready(lane, false);
    if (is_over_.load(std::memory_order_acquire)) break;
    work_gate_.wait([this] {
      return is_over_.load(std::memory_order_acquire) ||
             (has_ready() && !is_cancelled_.load(std::memory_order_acquire));
    });
  }
  write_float_mode(mode);
}

int64_t Replay::advance() {
  for (;;) {
    if (host_is_ready_.load(std::memory_order_acquire)) {
      host_start_ns_ = now_ns();
      return static_cast<int64_t>(hosts_[next_host_]);
    }
    if (top_remaining_.load(std::memory_order_acquire) == 0) {
      stop();
      return -1;
    }
    if (has_ready() && run_ready(0, true)) continue;
    const int64_t start = now_ns();
    owner_gate_.wait([this] {
      return host_is_ready_.load(std::memory_order_acquire) || has_ready() ||
             top_remaining_.load(std::memory_order_acquire) == 0;
    });
    wait_ns_ += now_ns() - start;
  }
}

void Replay::complete_host(uint32_t index) {
  const int64_t end = now_ns();
  states_[index].run_ns += end - host_start_ns_;
  events_[0].push_back({index, 0, host_start_ns_, end});
  lock_.lock();
  ++next_host_;
  host_is_ready_.store(false, std::memory_order_seq_cst);
  states_[index].remaining = 0;
  complete(index);
  // The next host node may have become ready before it was its turn.
  if (next_host_ < hosts_.size() && states_[hosts_[next_host_]].remaining == 1)
    host_is_ready_.store(true, std::memory_order_seq_cst);
  const bool has_work = ready_count_.load(std::memory_order_relaxed) > 0;
  lock_.unlock();
  if (has_work) work_gate_.notify();
}

// Ends a run: workers leave, durations are added up.
void Replay::stop() {
  is_over_.store(true, std::memory_order_seq_cst);
  work_gate_.notify();
  WorkerPool::instance().take_back(workers_);
  workers_.clear();
  ++runs_;
  for (size_t i = states_.size(); i-- > 0;) {
    total_ns_[i] += states_[i].run_ns;
    if (parents_[i] != kTop) states_[parents_[i]].run_ns += states_[i].run_ns;
  }
}

void Replay::cancel() {
  if (is_over_.load()) return;
  is_cancelled_.store(true, std::memory_order_seq_cst);
  stop();
}

void Replay::patch(uint32_t node, size_t offset, uint64_t value) {
  std::memcpy(nodes_[node].call.blob_data() + offset, &value, sizeof value);
}

bool Replay::take_error(std::string& message, uint32_t& node) {
  lock_.lock();
  const bool had_one = failed_;
  message = std::move(error_);
  node = error_node_;
  failed_ = false;
  error_.clear();
  lock_.unlock();
  return had_one;
}

std::vector<int64_t> Replay::durations() const {
  std::vector<int64_t> mean(nodes_.size(), 0);
  if (runs_ == 0) return mean;
  for (size_t i = 0; i < nodes_.size(); ++i) mean[i] = total_ns_[i] / runs_;
  return mean;
}

std::vector<ReplayEvent> Replay::events() const {
  std::vector<ReplayEvent> all;
  for (const auto& lane : events_) all.insert(all.end(), lane.begin(), lane.end());
  std::sort(all.begin(), all.end(),
            [](const ReplayEvent& a, const ReplayEvent& b) { return a.start_ns < b.start_ns; });
  return all;
}

}  // namespace ks
