#pragma once
/// StepRunner: computes training steps and evaluations. All processes abandon a step or an evaluation after
/// the same part of it.
///
/// Each process votes: to stop if RunCallbacks::stop_when asks for it, or that it failed if it cannot read
/// its data. The votes are added up with the losses of a step, or between two parts of it.
#include <memory>
#include <optional>
#include <string>

#include <gradtile/core/cuda/step_graph.h>
#include <gradtile/core/text/message.h>
#include <gradtile/train/config/step_shape.h>
#include <gradtile/train/data/dataset.h>
#include <gradtile/train/replica.h>
#include <gradtile/train/run/run_callbacks.h>
#include <gradtile/train/schedule.h>
#include <gradtile/train/shared_sequences.h>
#include <gradtile/train/step_input.h>
#include <gradtile/train/validation_loss.h>

namespace gradtile {

class OffloadStream;

class StepRunner {
  public:
    /// Allocates everything that a run holds in memory during training. The references must stay valid.
    StepRunner(const Context& ctx, const TrainConfig& config, Dataset dataset,
               std::unique_ptr<Communicator> communicator, ProcessGroup& group, const RunCallbacks& callbacks,
               MessageHandler on_message);

    /// Computes a step, and on a GPU prepares the input of the next one meanwhile if `prepares_next`. Returns
    /// an empty result when the step was dropped; the state is then as before the step. When the report names
    /// a number that was not finite, the optimizer has refused the update. `used` is the used fraction of the
    /// time budget, for runs that have one.
    std::optional<StepReport> run_step(std::int64_t step, bool prepares_next, double used = 0.0);
    /// Forgets the data of the running step, which another process's loss or an exception has ended.
    void drop_input() { input_.restore(data_before_); }
    /// Leaves the other processes after a loss: forgets everything that refers to exchanges with them.
    void disconnect() {
        graph_ = {};
        steps_enqueued_ = capture_next_ = false;
        communicator_->disconnect();
        replica_.parallel.forget_frozen();
    }
    bool evaluates() const { return validation_ != nullptr; }
    /// Returns the mean loss of the validation data after step `step`; an empty result when the evaluation
    /// was abandoned. A callback's exception passes unchanged.
    std::optional<double> evaluate(std::int64_t step);

    /// Forgets an earlier vote to stop, and an earlier failure: the data is read again.
    void start() {
        stopping_ = failed_ = false;
        failure_.clear();
    }
    bool wants_to_stop() const { return callbacks_.stop_when && callbacks_.stop_when(); }
    /// Returns whether a process voted to stop.
    bool is_stopping() const { return stopping_; }
    /// Returns whether a process failed.
    bool has_failed() const { return failed_; }
    /// This process's read error; empty: none.
    const std::string& failure() const { return failure_; }
    /// Returns the micro-steps that the dropped step had done, and forgets them; 0: no step was dropped.
    std::int64_t take_dropped_micro_steps() { return std::exchange(dropped_micro_steps_, 0); }
    /// Returns whether steps are replayed from a captured graph.
    bool replays_graph() const { return graph_.captured(); }

    Communicator& communicator() { return *communicator_; }
    Replica& replica() { return replica_; }
    const Replica& replica() const { return replica_; }
    StepInput& input() { return input_; }
    const StepInput& input() const { return input_; }
    const Schedule& schedule() const { return schedule_; }
    const StepShapes& shapes() const { return shapes_; }
    /// Tokens that all processes have trained on after a step.
    std::int64_t tokens_at(std::int64_t step) const {
        return shapes_.sequences.sum(step) * shared_.groups() * config_.model.context;
    }
    /// Collects the values of a sharded replica in every process, and calls use(). With ZeRO-3 the values are
    /// then released.
    void with_values(const std::function<void()>& use) {
        replica_.parallel.gather_values(*arena_ctx_);
        communicator_->synchronize(*arena_ctx_);
        use();
        replica_.parallel.release_values();
    }
    /// Bytes of the arena for everything that a step or an evaluation allocates.
    std::size_t activation_bytes() const { return activation_bytes_; }
    /// Bytes of host memory for what blocks save for backward; 0 unless the run offloads it.
    std::size_t residual_bytes() const { return residual_bytes_; }

  private:
    enum class Outcome { completed, abandoned };
    Packing packing() const { return packing_of(config_, replica_.model.tokenizer); }
    void plan_arena();
    Outcome compute_step(const Context& ctx, const StepShape& shape);
    Outcome enqueue_step(const Context& ctx, const StepShape& shape);
    void try_to_capture(const Context& ctx, const StepShape& shape);
    void draw_input(std::int64_t step);
    void prepare_input(std::int64_t step);
    void prepare_ahead(std::int64_t step);
    double own_vote() const;
    void count_votes(double sum);
    Outcome vote_on_stopping(const Context& ctx);
    void report_part(const StepPart& part) const;

    const TrainConfig& config_;
    const RunCallbacks& callbacks_;
    MessageHandler on_message_;
    ProcessGroup& group_;
    std::unique_ptr<Communicator> communicator_;
    SharedSequences shared_;
    Replica replica_;
    Schedule schedule_;
    StepShapes shapes_;
    StepInput input_;
    std::unique_ptr<EvaluationData> validation_;  // null without a validation split
    Tensor result_;       // [3] float64: the step's loss, votes to stop, gradient norm
    Tensor host_result_;  // host memory that result_ is copied to
    DataParallel::HeldSlots held_between_steps_;  // by slots of frozen values, after a step
    std::size_t activation_bytes_ = 0, residual_bytes_ = 0;
    std::unique_ptr<Context> arena_ctx_;
    std::shared_ptr<const OffloadStream> offload_;  // null unless the run offloads residuals
    StepGraph graph_;
    StepShape enqueued_shape_;
    // The first step of a shape is not captured, because libraries and tables are initialised in it. The
    // second one is.
    bool steps_enqueued_ = false, capture_next_ = false;

    std::int64_t step_ = 0;                   // the running step
    JsonValue data_before_;                   // state of input_ before that step
    bool stopping_ = false, failed_ = false;  // a process voted to stop, or for a failure
    std::string failure_;
    std::int64_t dropped_micro_steps_ = 0;
};

}  // namespace gradtile
