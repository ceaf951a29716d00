#pragma once
/// Trainer: a run from its settings (or its directory) to its last checkpoint.
///
/// `step` counts optimizer steps from 1. Each sees `batch` windows in micro-batches; its loss is the mean
/// over all their targets. A step whose loss or gradient norm is not finite changes no weight but counts as a
/// step: its data is gone by and the schedule moves on; after max_bad_steps of them in a row training stops.
///
/// A run that was stopped and resumed equals one that was not, to the bit: weights, metrics (but for times)
/// and samples, at any number of threads; on a GPU with config.model.deterministic. Without it a run goes on
/// with the matrix algorithms it had, and equals to rounding (docs/design.md says where to the bit).
///
/// On a GPU the host waits for the device once a step, at its end, after it has prepared the next step's
/// data; from the second step on a step is one captured graph (config.cuda_graph).
#include <functional>
#include <map>
#include <memory>

#include <gradtile/core/cuda/step_graph.h>
#include <gradtile/core/text/message.h>
#include <gradtile/layers/transformer/memory_plan.h>
#include <gradtile/train/checkpoint/snapshot_writer.h>
#include <gradtile/train/metrics_file.h>
#include <gradtile/train/optimizers/global_norm.h>
#include <gradtile/train/replica.h>
#include <gradtile/train/run_directory.h>
#include <gradtile/train/schedule.h>
#include <gradtile/train/step_input.h>
#include <gradtile/train/step_report.h>
#include <gradtile/train/train_config.h>

namespace gradtile {

/// What may change when a run goes on; everything else is as the run was made.
struct Resume {
    std::filesystem::path directory;
    std::optional<std::int64_t> steps = {};  ///< a new end; the schedule's horizon stays
    std::optional<std::int64_t> save_every = {};
    std::optional<std::int64_t> threads = {};
    std::optional<DeviceChoice> device = {};
    std::optional<std::int64_t> zero = {};
    std::optional<std::string> data = {};      ///< where the same data lies now
    std::optional<std::string> val_data = {};  ///< likewise; only of a run that has validation data
    /// Goes on from what is there when the newest announced checkpoint is not; see find_resume_point().
    bool restart = false;
};

struct RunSummary {
    enum class Reason { finished, stop_after, requested };
    Reason reason = Reason::finished;
    std::int64_t step = 0;  ///< the last one done
    bool saved = false;     ///< the state of that step is safe on disk; true in ranks that save nothing
    /// Micro-steps done and micro-steps in all of a step that was dropped to stop; 0: no step was dropped.
    std::int64_t dropped_micro_steps = 0, dropped_of = 0;
    bool evaluation_left = false;         ///< that of the last step, to stop: a resumed run begins with it
    std::filesystem::path checkpoint;     ///< the newest safe one; empty: none
    std::optional<double> val_loss;       ///< newest
    std::optional<double> best_val_loss;  ///< lowest, that of best.h5
    std::int64_t bad_steps = 0;           ///< steps whose update was refused, since the run was made
};

struct Dataset;

class Trainer {
  public:
    /// A new run in config.out; an empty `out` means one without a directory, which saves nothing. Throws
    /// Error, one line, on anything that is wrong with settings, data, memory or the directory.
    ///
    /// With a group of several processes each makes a Trainer of the same settings and calls the same
    /// functions. They share a step's batch and end with the same weights; only rank 0 reads and writes the
    /// run's directory, and speaks through on_message.
    ///
    /// Purpose::plan only looks: memory_plan() is what the run would hold, and config.out is left alone.
    enum class Purpose { train, plan };
    explicit Trainer(TrainConfig config, MessageHandler on_message = print_message,
                     std::shared_ptr<ProcessGroup> group = std::make_shared<ProcessGroup>(),
                     Purpose purpose = Purpose::train);
    /// Goes on from the newest sound checkpoint; damaged newer ones are named through on_message. A run that
    /// was killed before its first checkpoint begins again. find_resume_point() says what is refused; until
    /// the run can go on, nothing in its directory changes. The directory of a finished run stays as it is.
    explicit Trainer(const Resume& resume, MessageHandler on_message = print_message,
                     std::shared_ptr<ProcessGroup> group = std::make_shared<ProcessGroup>());
    ~Trainer();
    Trainer(const Trainer&) = delete;
    Trainer& operator=(const Trainer&) = delete;

    /// Called before the data of a step is read, on a GPU while the step before is under way. An exception
    /// that it throws is treated as one of the data's.
    void on_prepare(std::function<void(std::int64_t step)> callback) { on_prepare_ = std::move(callback); }
    /// Called after every step.
    void on_step(std::function<void(const StepReport&)> callback) { on_step_ = std::move(callback); }
    /// Called while a step or an evaluation is under way, after each of its parts that the host waits for.
    void on_part(std::function<void(const StepPart&)> callback) { on_part_ = std::move(callback); }
    /// Asked before each step, on the CPU between its micro-steps, and between the batches of an evaluation;
    /// once it says true the run drops the step under way (the weights are those of the step before, and its
    /// data is drawn again), saves the last whole one and returns. A step on a GPU, or of one micro-step, is
    /// finished. An evaluation that was left is made first when the run is resumed, so the run equals one
    /// that was never stopped. Several processes stop together when one of them has said so.
    void stop_when(std::function<bool()> stop) { stop_when_ = std::move(stop); }

    /// Trains up to the last step, or until step number `stop_after` is done (0: no such step). Saves at the
    /// end; a save that fails is told through on_message and does not stop training. Throws Error after
    /// max_bad_steps refused updates in a row, naming what was not finite and the last good checkpoint; and
    /// when a step's or an evaluation's data cannot be read, in every process, once the last whole step is
    /// saved.
    RunSummary run(std::int64_t stop_after = 0);

    const LanguageModel& model() const { return replica_->model; }
    const Optimizer& optimizer() const { return *replica_->optimizer; }
    /// Whether steps are replayed from a captured graph by now.
    bool replays_graph() const { return graph_.captured(); }
    /// As the run was made; model.vocabulary is known.
    const TrainConfig& config() const { return config_; }
    /// Where the run ends: config().steps unless a resume moved it.
    std::int64_t last_step() const { return end_; }
    /// Steps done.
    std::int64_t step() const { return step_; }
    /// Nothing is left to do, an evaluation included.
    bool is_finished() const { return step_ >= end_ && !to_evaluate_; }
    const MemoryPlan& memory_plan() const { return plan_; }
    std::int64_t train_tokens() const { return train_tokens_; }
    std::int64_t validation_tokens() const { return validation_tokens_; }
    /// Lines that say what the data is: see Dataset::description; and how much of a larger vocabulary it
    /// uses.
    const std::vector<std::string>& data_description() const { return data_description_; }
    /// See Dataset::source_nll.
    std::optional<double> source_nll() const { return source_nll_; }

  private:
    struct Validation;

    void build(const std::optional<Tokenizer>& tokenizer, const JsonValue& made_with = {});
    void allocate(const Context& ctx, Dataset dataset);
    void plan_arena();
    void prepare_saves(const std::filesystem::path& checkpoints);
    void open_directory(RunDirectory directory, bool resumed);
    void restore(const Checkpoint& checkpoint, const std::string& source);
    void restore_algorithms(const Checkpoint& checkpoint, const std::string& source);
    Checkpoint snapshot();

    /// Whether a step or evaluation was completed, or left by all processes after the same part.
    enum class Part { done, left };
    Part compute_step(const Context& ctx);
    Part enqueue_step(const Context& ctx);
    void try_to_capture(const Context& ctx);
    RunSummary::Reason train_until(std::int64_t stop_after);
    std::optional<StepReport> train_step();
    void draw_input(std::int64_t step);
    void prepare_input(std::int64_t step);
    void prepare_ahead(std::int64_t step);
    void finish_step(StepReport report, std::int64_t stop_after);
    bool wants_to_stop() const { return stop_when_ && stop_when_(); }
    double own_vote() const;
    void count_votes(double sum);
    Part vote_to_leave(const Context& ctx);
    void tell_part(StepPart::Kind kind, std::int64_t done, std::int64_t all) const;
    void handle_bad_step(StepReport& report);
    Part evaluate_into(StepReport& report, bool& best);
    void record(const StepReport& report);
    void save(bool best);
    void save_last_whole_step();
    [[noreturn]] void end_with_failure();
    void hear_of_saves();
    void draw_picture();
    [[noreturn]] void give_up(const StepReport& report);

    TrainConfig config_;
    MessageHandler on_message_;
    std::function<void(const StepReport&)> on_step_;
    std::function<void(std::int64_t)> on_prepare_;
    std::function<void(const StepPart&)> on_part_;
    std::function<bool()> stop_when_;

    std::shared_ptr<ProcessGroup> group_;
    std::unique_ptr<Communicator> communicator_;
    std::unique_ptr<Replica> replica_;
    std::unique_ptr<StepInput> input_;
    std::unique_ptr<Validation> validation_;  // none without a validation split
    Schedule schedule_;
    Tensor result_;       // [3] float64, of the step: loss, votes to stop, gradient norm
    Tensor host_result_;  // the same where the host reads it
    std::unique_ptr<Context> arena_ctx_;
    StepGraph graph_;
    // The first step runs as it is (libraries and tables are set up there), the second one is captured.
    bool steps_enqueued_ = false, capture_next_ = false;
    MemoryPlan plan_;

    std::unique_ptr<RunDirectory> directory_;  // before what writes into it
    std::unique_ptr<MetricsFile> metrics_;
    std::unique_ptr<SnapshotWriter> writer_;
    std::string identity_;  // of the run; empty for one made before there were identities
    LossHistory history_;
    bool metrics_failing_ = false;

    std::int64_t train_tokens_ = 0, validation_tokens_ = 0;
    std::optional<double> source_nll_;
    JsonValue data_content_;  // see Dataset::content
    std::vector<std::string> data_description_;
    std::int64_t end_ = 0;
    std::int64_t step_ = 0;
    bool leaving_ = false, failed_ = false;  // voted by whichever process: to stop, because of `failure_`
    std::string failure_;                    // of this process's data
    std::int64_t dropped_micro_steps_ = 0;
    std::optional<StepReport> to_evaluate_;  // of step_, whose evaluation was left
    std::int64_t saved_step_ = 0;            // newest that is safe
    std::int64_t given_to_save_ = -1;        // newest that was handed to the writer, or resumed from
    std::filesystem::path saved_path_;
    std::int64_t bad_steps_ = 0, bad_steps_in_a_row_ = 0;
    std::optional<double> val_loss_, best_val_loss_;
    std::optional<double> best_saved_val_loss_;      // of best.h5
    std::map<std::int64_t, double> best_under_way_;  // of saves, by step, that are to become it
};

}  // namespace gradtile
