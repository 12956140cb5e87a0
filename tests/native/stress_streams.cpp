// Random programs through the streams and the replay, on real threads, compared with program order.
// Built with ThreadSanitizer and with AddressSanitizer. Exits 1 on a difference.
//
//   stress_streams [programs] [seed]
//
// Tasks read and write cells of an array in ways that do not commute, so that a missing edge, a lost
// wake-up or a torn state shows as another result (or as a report of the sanitizer).
#include <cstdio>
#include <cstdlib>
#include <random>
#include <thread>
#include <vector>

#include "replay.h"
#include "streams.h"

namespace {

using ks::Access;

constexpr size_t kCells = 24;

struct Step {
  uint32_t target, first, second;
  int32_t loops = 0;  // > 0: the head of a loop with this many iterations
  int body = 0;       // tasks in the loop's body, which follow
};

// target = 3 * target + first - second, a few times.
int64_t mix(int64_t cells, int64_t target, int64_t first, int64_t second, int64_t, int64_t, int64_t,
            int64_t) {
  auto* x = reinterpret_cast<uint64_t*>(cells);
  for (int i = 0; i < 16; ++i) x[target] = 3 * x[target] + x[first] - x[second] + 1;
  return 1;
}

int64_t count_down(int64_t counter, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t) {
  --*reinterpret_cast<int32_t*>(counter);
  return 1;
}

ks::Call mix_call(uint64_t* cells, const Step& step) {
  ks::Call call;
  call.function = reinterpret_cast<void*>(mix);
  call.args = {reinterpret_cast<int64_t>(cells), step.target, step.first, step.second};
  call.check = ks::Call::kReturnsBool;
  return call;
}

Access cell(const uint64_t* cells, uint32_t index, uint32_t mode) {
  const auto start = reinterpret_cast<uint64_t>(cells + index);
  return {start, start + 8, mode, 0, 0};
}

std::vector<Access> accesses(const uint64_t* cells, const Step& s) {
  return {cell(cells, s.target, ks::kReadWrite), cell(cells, s.first, ks::kRead),
          cell(cells, s.second, ks::kRead)};
}

std::vector<Step> make_program(std::mt19937_64& random, bool with_loops) {
  const auto below = [&](uint64_t n) { return static_cast<uint32_t>(random() % n); };
  const size_t cells = 2 + below(kCells - 2);
  std::vector<Step> program(40 + below(260));
  for (size_t i = 0; i < program.size(); ++i) {
    program[i] = {below(cells), below(cells), below(cells)};
    if (with_loops && below(12) == 0 && i + 5 < program.size()) {
      program[i].body = 1 + static_cast<int>(below(4));
      program[i].loops = static_cast<int32_t>(below(4));
      for (int b = 1; b <= program[i].body; ++b)
        program[i + b] = {below(cells), below(cells), below(cells)};
      i += static_cast<size_t>(program[i].body);
    }
  }
  return program;
}

std::vector<uint64_t> start_cells() {
  std::vector<uint64_t> cells(kCells);
  for (size_t i = 0; i < kCells; ++i) cells[i] = i * 0x9E3779B97F4A7C15ULL;
  return cells;
}

void run_serially(const std::vector<Step>& program, uint64_t* cells) {
  for (size_t i = 0; i < program.size(); ++i) {
    const Step& s = program[i];
    if (s.body == 0) {
      mix(reinterpret_cast<int64_t>(cells), s.target, s.first, s.second, 0, 0, 0, 0);
      continue;
    }
    for (int32_t n = 0; n < s.loops; ++n) {
      for (int b = 1; b <= s.body; ++b) {
        const Step& t = program[i + b];
        mix(reinterpret_cast<int64_t>(cells), t.target, t.first, t.second, 0, 0, 0, 0);
      }
    }
    i += static_cast<size_t>(s.body);
  }
}

void run_streams(const std::vector<Step>& program, uint64_t* cells, int lanes, int size,
                 std::mt19937_64& random) {
  ks::Streams streams(lanes, size, 64);
  std::vector<void*> finished;
  for (const Step& step : program) {
    while (!streams.has_room()) {
      streams.wait_for_room();
      streams.reap(finished);
    }
    ks::Streams::Slot& slot = streams.open_slot();
    slot.call = mix_call(cells, step);
    slot.accesses = accesses(cells, step);
    slot.label = 1;
    streams.commit(slot);
    if (random() % 16 == 0) streams.wait_for(cell(cells, step.first, ks::kRead));
    if (random() % 64 == 0) streams.wait_for_all();
  }
}

// Nodes with the edges of the hazards among them; bodies of loops have their own.
class Graph {
 public:
  Graph(const std::vector<Step>& program, uint64_t* cells, int lanes)
      : program_(program), cells_(cells), counters_(program.size()), replay(lanes) {
    for (size_t i = 0; i < program.size(); ++i) {
      if (program[i].body == 0) {
        add(top_, static_cast<uint32_t>(replay.add_call(mix_call(cells, program[i]), -1, 0)),
            accesses(cells, program[i]));
      } else {
        add_loop(i);
        i += static_cast<size_t>(program[i].body);
      }
    }
  }

  void run() {
    for (size_t i = 0; i < program_.size(); ++i) counters_[i] = program_[i].loops;
    replay.begin();
    replay.advance();
  }

 private:
  struct Scope {
    ks::HazardTracker tracker;
    std::vector<uint32_t> nodes;
  };

  void add(Scope& scope, uint32_t node, const std::vector<Access>& ranges) {
    std::vector<uint64_t> before;
    scope.tracker.add(scope.nodes.size(), ranges.data(), ranges.size(),
                      [](uint64_t) { return false; }, before);
    for (const uint64_t b : before) replay.add_edge(scope.nodes[b], node);
    scope.nodes.push_back(node);
  }

  void add_loop(size_t head) {
    int32_t* counter = &counters_[head];
    const auto at = reinterpret_cast<uint64_t>(counter);
    const Access condition{at, at + 4, ks::kReadWrite, 0, 0};
    const uint32_t loop = replay.add_loop(counter, -1, 0);
    std::vector<Access> all{condition};
    Scope body;
    for (int b = 1; b <= program_[head].body; ++b) {
      const Step& step = program_[head + b];
      const auto own = accesses(cells_, step);
      add(body, replay.add_call(mix_call(cells_, step), static_cast<int>(loop), 0), own);
      all.insert(all.end(), own.begin(), own.end());
    }
    ks::Call down;
    down.function = reinterpret_cast<void*>(count_down);
    down.args[0] = reinterpret_cast<int64_t>(counter);
    add(body, replay.add_call(down, static_cast<int>(loop), 0), {condition});
    add(top_, loop, all);
  }

  const std::vector<Step>& program_;
  uint64_t* cells_;
  std::vector<int32_t> counters_;
  Scope top_;

 public:
  ks::Replay replay;
};

bool check(const char* what, const std::vector<uint64_t>& expected,
           const std::vector<uint64_t>& got, uint64_t seed) {
  if (expected == got) return true;
  std::fprintf(stderr, "%s differs from program order, seed %llu\n", what,
               static_cast<unsigned long long>(seed));
  return false;
}

bool run_one(uint64_t seed) {
  std::mt19937_64 random(seed);
  const int lanes = 1 << random() % 3;
  const int size = 1 << (1 + random() % 7);
  ks::Streams::jitter_us.store(random() % 4 == 0 ? 30 : 0);

  const std::vector<Step> plain = make_program(random, false);
  auto expected = start_cells(), got = start_cells();
  run_serially(plain, expected.data());
  run_streams(plain, got.data(), lanes, size, random);
  if (!check("streams", expected, got, seed)) return false;

  const std::vector<Step> looped = make_program(random, true);
  expected = start_cells();
  got = start_cells();
  Graph graph(looped, got.data(), lanes);
  for (int replay = 0; replay < 3; ++replay) {
    run_serially(looped, expected.data());
    graph.run();
    if (!check("replay", expected, got, seed)) return false;
    graph.replay.rank();
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  const uint64_t programs = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 200;
  const uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
  std::atomic<bool> is_good{true};
  // Two owners at once: windows of several threads share nothing but the pool.
  const auto owner = [&](uint64_t from) {
    for (uint64_t i = 0; i < programs && is_good; ++i)
      if (!run_one(from + i)) is_good = false;
  };
  std::thread other(owner, seed + 1'000'000);
  owner(seed);
  other.join();
  ks::WorkerPool::instance().shut_down();
  if (is_good) std::printf("%llu programs equal program order\n",
                           static_cast<unsigned long long>(2 * programs));
  return is_good ? 0 : 1;
}
