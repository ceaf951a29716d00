#pragma once
/// RunClock: how much of its time budget a run has used. Rank 0's clock counts, and every process gets its
/// answer, so that all have one learning rate and end after the same step.
#include <cstdint>
#include <vector>

#include <gradtile/train/config/train_config.h>
#include <gradtile/train/parallel/process_group.h>

namespace gradtile {

class RunClock {
  public:
    /// Reads the clock of config.replay_clock, if there is one, in rank 0. Throws Error when it cannot be
    /// read.
    RunClock(const TrainConfig& config, ProcessGroup& group);

    double budget_seconds() const { return budget_seconds_; }
    /// The used fraction of the budget, after the newest step that was counted.
    double used() const { return used_; }
    /// Continues a run that had used this fraction.
    void resume(double used) { used_ = used; }

    /// What rank 0 knows after a step.
    struct Times {
        double run_seconds = 0.0;         ///< so far: training, evaluation and saving in all parts of the run
        double step_seconds = 0.0;        ///< this step
        double evaluation_seconds = 0.0;  ///< the newest evaluation; 0: unknown
        double steps_in_evaluation = 0.0;  ///< an evaluation's operations divided by a step's
        double save_seconds = 0.0;         ///< a save
    };
    /// Collective: counts step `step`. Returns whether it is the last one: with evaluation and save, a
    /// further step would end farther from the budget's end. A process's first step does not end a run that
    /// has time left, because it is often far slower than the others. A replayed run ends where the other run
    /// ended.
    bool count(std::int64_t step, const Times& times);

  private:
    ProcessGroup& group_;
    double budget_seconds_;
    std::vector<double> replayed_;  // rank 0: used() after each step; empty: the clock runs
    double used_ = 0.0;
    double shortest_step_seconds_ = 0.0;  // of this process; 0: none was counted
};

}  // namespace gradtile
