// Worker threads, kept between windows and lent to one team at a time.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "sync.h"

namespace ks {

// What a worker does while it is lent: `work` returns when the team has nothing left for it.
class Team {
 public:
  virtual ~Team() = default;
  virtual void work(int lane) = 0;
};

struct Worker;

class WorkerPool {
 public:
  static WorkerPool& instance();

  // Lends `count` workers to `team` as lanes first_lane, first_lane + 1, ...
  std::vector<Worker*> lend(Team* team, int count, int first_lane);
  // Takes them back: those that have not started are withdrawn, the others are waited for.
  void take_back(const std::vector<Worker*>& workers);
  // Threads alive now.
  int size();
  // Ends and joins all idle threads (process exit, tests).
  void shut_down();

 private:
  WorkerPool() = default;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Worker>> all_;
  std::vector<Worker*> idle_;
};

}  // namespace ks
