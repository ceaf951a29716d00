#pragma once
/// Trainer: a run from its settings (or its directory) to its last checkpoint.
///
/// `step` counts optimizer steps from 1. A step processes `batch` windows in micro-batches; its loss is the
/// mean over all their targets. A step whose loss or gradient norm is not finite changes no weight but counts
/// as a step: its data is consumed and the schedule advances. Training stops after max_bad_steps such steps
/// in a row.
///
/// A run that was stopped and resumed equals an uninterrupted run to the bit: weights, metrics (except times)
/// and samples, for any thread count. On a GPU this needs config.training.deterministic; otherwise the
/// resumed run uses the same matrix algorithms and agrees to rounding (docs/design.md lists the exceptions).
///
/// A run with config.time_budget ends when training, evaluation and saving have used it up, and its learning
/// rates follow the clock of rank 0, so another run has other results. config.replay_clock names a run whose
/// clock is used again; then the results are equal as above.
///
/// A Trainer writes metrics and checkpoints. Everything else that a run may show or write is added through
/// its callbacks (on_step() and the following).
///
/// On a GPU the host waits for the device once per step, at its end, after it has prepared the next step's
/// data. From the second step of a StepShape on, a step is one captured graph (config.cuda_graph).
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>

#include <gradtile/core/text/message.h>
#include <gradtile/layers/transformer/memory_plan.h>
#include <gradtile/train/checkpoint/checkpoint.h>
#include <gradtile/train/config/train_config.h>
#include <gradtile/train/data/dataset.h>
#include <gradtile/train/model/language_model.h>
#include <gradtile/train/optimizers/optimizer.h>
#include <gradtile/train/parallel/communicator.h>
#include <gradtile/train/run/run_callbacks.h>

namespace gradtile {

/// Returns how a run with these settings reads its data.
DatasetOptions dataset_options(const TrainConfig& config);

/// How a run is resumed.
struct ResumeOptions {
    /// New values by setting name, for settings that may change (OnResume); all others stay as they were.
    /// "steps" is a new last step, not before the last one done; the schedule's horizon does not change.
    /// "data" and "val-data" are new paths of the same data; "val-data" only for a run with separate
    /// validation data.
    JsonValue changes = JsonValue::object();
    /// Resumes from an older checkpoint when the newest announced one is missing; see find_resume_point().
    bool restart = false;
};

struct RunSummary {
    enum class Reason { finished, stop_after, requested };
    Reason reason = Reason::finished;
    std::int64_t step = 0;  ///< the last step done
    /// That step's state is safe on disk, and the metrics say so; true in ranks other than 0.
    bool saved = false;
    /// If a step was dropped to stop: the micro-steps that it had done, and all its micro-steps. 0: no step
    /// was dropped.
    std::int64_t dropped_micro_steps = 0, micro_steps_of_dropped = 0;
    /// The last step is not evaluated yet; a resumed run begins with this evaluation.
    bool evaluation_pending = false;
    std::filesystem::path checkpoint;     ///< the newest checkpoint that is safe on disk; empty: none
    std::optional<double> val_loss;       ///< newest validation loss
    std::optional<double> best_val_loss;  ///< lowest validation loss, which is best.h5's
    std::optional<double> loss;           ///< training loss in the last step that this process recorded
    std::int64_t tokens = 0;              ///< tokens trained on since the run was created
    double wall_s = 0.0;  ///< see StepReport::wall_s; rank 0 alone adds the time before a resume
    /// Tokens per second in this run() call, including evaluation and saving; 0: no step was done.
    double tokens_per_s = 0.0;
    std::int64_t bad_steps = 0;  ///< refused updates since the run was created
};

class RunClock;
class RunDirectory;
class RunRecorder;
struct RunOutput;
class StepRunner;
struct CommonState;
struct HeldState;
struct Start;
enum class LastStep;

class Trainer {
  public:
    /// Starts a new run in config.out. A run with an empty `out` has no directory and saves nothing. Throws
    /// Error, one line, when settings, data, memory or the directory are invalid.
    ///
    /// Each process in a group creates a Trainer with the same settings and calls the same functions. The
    /// processes share each step's batch and end with the same weights. Only rank 0 reads and writes the
    /// run's directory and calls on_message; with config.checkpoint_parts all ranks write parts of
    /// checkpoints.
    ///
    /// With Purpose::plan nothing is written to config.out, and memory_plan() returns the memory that the run
    /// would need.
    ///
    /// `stories` recognises texts that are divided between stories; see DatasetOptions.
    enum class Purpose { train, plan };
    explicit Trainer(TrainConfig config, MessageHandler on_message = print_message,
                     std::shared_ptr<ProcessGroup> group = std::make_shared<ProcessGroup>(),
                     Purpose purpose = Purpose::train, StoryParser stories = {});
    /// Resumes the run in `directory` from the newest sound checkpoint. Newer damaged checkpoints are named
    /// through on_message. A run that was killed before its first checkpoint starts again.
    /// find_resume_point() lists what is refused. The directory does not change before all checks have
    /// passed, and does not change at all if the run is finished.
    explicit Trainer(const std::filesystem::path& directory, const ResumeOptions& options = {},
                     MessageHandler on_message = print_message,
                     std::shared_ptr<ProcessGroup> group = std::make_shared<ProcessGroup>(),
                     StoryParser stories = {});
    /// Takes the place of a process that was lost while the others were in run(), which ProcessGroup has
    /// connected with them. The settings and the state come from another process's memory, and the data is
    /// read again. Rank 0 also takes over the run's directory. Call run() next.
    struct Replacement {};
    explicit Trainer(Replacement replacement, MessageHandler on_message = print_message,
                     std::shared_ptr<ProcessGroup> group = std::make_shared<ProcessGroup>(),
                     StoryParser stories = {});
    /// Removes a new run's directory if the run has not begun: run() was never called. In a forked child the
    /// directory stays, because it is the parent's.
    ~Trainer();
    Trainer(const Trainer&) = delete;
    Trainer& operator=(const Trainer&) = delete;

    /// `callback` is called before the data of a step is read, on a GPU while the previous step runs. An
    /// exception from `callback` is treated like a read error of the data.
    void on_prepare(std::function<void(std::int64_t step)> callback) {
        callbacks_.on_prepare = std::move(callback);
    }
    // Each of the following adds a callback; callbacks of one kind are called in the order of their addition.
    // Exceptions from on_step(), on_part(), on_save() and stop_when() leave run() unchanged. If a step or an
    // evaluation was under way, it is dropped, and the next call of run() begins with it. An empty function
    // is not called.
    /// Called after every step, and after its evaluation.
    void on_step(std::function<void(const StepReport&)> callback) {
        if (callback) callbacks_.on_step.push_back(std::move(callback));
    }
    /// Called during a step or an evaluation, after each of its parts that the host waits for.
    void on_part(std::function<void(const StepPart&)> callback) {
        if (callback) callbacks_.on_part.push_back(std::move(callback));
    }
    /// Called after every config().sample_every steps and after the last step, in rank 0 of a run with a
    /// directory. Returns the text that metrics.jsonl shows as the model's, a continuation of
    /// config().sample_prompt. Without this callback run() refuses sample_every > 0.
    void on_sample(std::function<std::string(const LanguageModel&)> callback) {
        callbacks_.on_sample = std::move(callback);
    }
    /// Called when a checkpoint is safe on disk, and before run() returns or throws: everything that
    /// on_step() has reported may be written.
    void on_save(std::function<void()> callback) {
        if (callback) callbacks_.on_save.push_back(std::move(callback));
    }
    /// `stop` is called before each step, between the micro-steps of a step on the CPU, and between the
    /// batches of an evaluation. Once it returns true, the run drops the current step, saves the previous one
    /// and returns. The dropped step has changed no weights, and its data is drawn again. A step on a GPU, or
    /// with one micro-step, is completed instead. An evaluation that was abandoned is the first work of the
    /// resumed run, so the run equals an uninterrupted one. Several processes stop together once `stop` is
    /// true in one of them.
    void stop_when(std::function<bool()> stop) { callbacks_.stop_when = std::move(stop); }

    /// Trains up to the last step, or until step number `stop_after` is done (0: no such step). Saves at the
    /// end. A failed save is reported through on_message and does not stop training. Throws Error after
    /// max_bad_steps refused updates in a row, naming what was not finite and the last good checkpoint. If
    /// one process cannot read data for a step or an evaluation, all processes save the last complete step
    /// and throw Error; without a group, the next call reads the data again.
    ///
    /// When another process is lost, run() throws RankLost, or continues if the group and the communicator
    /// can replace the process (can_regroup(), can_reconnect()). All processes take the newest state that the
    /// remaining ones have in memory; at most the step that was under way is computed again. With config.zero
    /// and without shard_copies a lost process takes its shard with it: all processes then return to the
    /// newest checkpoint, or to the run's start. The results equal those of an undisturbed run to the bit.
    /// This holds until the last step is saved.
    ///
    /// Throws Error in a child that was forked after the Trainer was made, if the run has a directory: only
    /// the process that made the Trainer writes there. A run without a directory works in the child on the
    /// CPU, with one thread, unless it reads its data ahead (config.stream_buffer).
    RunSummary run(std::int64_t stop_after = 0);

    /// With config.zero 3 and several processes, and with offload weights, parameters (with adapters: the
    /// frozen ones) have values only while on_sample() runs.
    const LanguageModel& model() const;
    /// Null for a run without a directory, and in ranks other than 0.
    const RunDirectory* directory() const;
    /// As in run.json; empty if an older version, which wrote none, began the run.
    const std::string& identity() const { return identity_; }
    /// The file that a resumed run's settings come from: a checkpoint, or config.json before the first one.
    /// Empty for a new run.
    const std::string& resumed_from() const { return resumed_from_; }
    const Optimizer& optimizer() const;
    /// Returns whether steps are now replayed from a captured graph.
    bool replays_graph() const;
    /// The settings of the run, in which model.vocabulary is known.
    const TrainConfig& config() const { return config_; }
    /// The run's last step: config().steps unless a resume changed it. Unknown (no step reaches it) until a
    /// time budget is used up.
    std::int64_t last_step() const { return end_; }
    /// How many steps are done.
    std::int64_t step() const { return step_; }
    /// True if no step and no evaluation is left to do.
    bool is_finished() const { return step_ >= end_ && !pending_evaluation_; }
    const MemoryPlan& memory_plan() const { return plan_; }
    /// 0 if their number is not known: config().stream_buffer is not 0.
    std::int64_t train_tokens() const { return train_tokens_; }
    std::int64_t validation_tokens() const { return validation_tokens_; }
    /// Lines that describe the data (see Dataset::description) and, if the model's vocabulary is larger than
    /// the data's, how many ids the data needs.
    const std::vector<std::string>& data_description() const { return data_description_; }
    /// See Dataset::source_loss.
    const std::optional<SourceLoss>& source_loss() const { return source_loss_; }

  private:
    void build(const std::optional<Tokenizer>& tokenizer, const JsonValue& expected_content = {});
    void choose_document_token(const Dataset& dataset);
    void name_first_tokenizer();
    Packing packing_of_data(const Dataset& dataset) const;
    bool saves_parts() const;
    void count_parts(const Checkpoint& part);
    RunOutput prepare_saves(const std::filesystem::path& checkpoints);
    void start_in_directory();
    Start read_first_weights() const;
    void take_first_weights(const Start& start);
    void resume_in_directory(std::optional<RunDirectory> directory, std::int64_t last_step, LastStep last);
    void restore(const Checkpoint& checkpoint, const std::string& source);
    void restore_position(const Checkpoint& checkpoint, const std::string& source);
    void restore_record(const Checkpoint& checkpoint);
    void restore_algorithms(const Checkpoint& checkpoint, const std::string& source);
    void report_refused_algorithms();
    void choose_settings(const Context& ctx, const Packing& packing, std::size_t budget);
    void check_sampling() const;
    void keep_imported_text(const Checkpoint& start, const std::string& source);
    Checkpoint snapshot();
    Checkpoint snapshot_without_tensors() const;
    Checkpoint part_of_snapshot() const;
    Checkpoint position() const;
    void describe(Checkpoint& checkpoint) const;

    bool survives_losses() const;
    RunSummary::Reason train_and_save(std::int64_t stop_after);
    RunSummary::Reason train_in_spite_of_losses(std::int64_t stop_after);
    void regroup(const RankLost& loss);
    HeldState held_state() const;
    CommonState find_common_state();
    struct Recorded {
        std::int64_t step;
        LastStep last;
    };
    Recorded take_state(const CommonState& common, const Start& start, const RunDirectory* directory);
    Checkpoint shared_position() const;
    Start share_position(const CommonState& common) const;
    void keep_shard_copies();
    void restore_shared(const Start& start);
    void return_to_checkpoint(const RunDirectory* directory);
    void return_to_start();
    RunSummary::Reason train_until(std::int64_t stop_after);
    std::optional<StepReport> train_step();
    void finish_step(StepReport report, std::int64_t stop_after);
    void record_finished(std::int64_t stop_after);
    void conclude_step(StepReport report, bool best, std::int64_t stop_after);
    void count_time(StepReport& report);
    bool evaluate_into(StepReport& report, bool& best);
    void handle_bad_step(const StepReport& report);
    [[noreturn]] void stop_after_bad_steps(const StepReport& report);
    [[noreturn]] void report_data_failure();
    void write_sample();
    void save(bool best);

    TrainConfig config_;
    MessageHandler on_message_;
    RunCallbacks callbacks_;
    StoryParser stories_;
    std::shared_ptr<ProcessGroup> group_;
    // The recorder's saves read the runner's tensors, so it is destroyed first.
    std::unique_ptr<StepRunner> runner_;
    std::unique_ptr<RunRecorder> recorder_;
    std::unique_ptr<RunClock> clock_;  // null: the run has no time budget
    std::string algorithms_source_;  // the checkpoint of the restored matrix algorithms, until one is refused
    MemoryPlan plan_;

    std::string identity_, resumed_from_;
    bool begun_ = false;  // run() was called
    std::int64_t train_tokens_ = 0, validation_tokens_ = 0;
    std::optional<SourceLoss> source_loss_;
    JsonValue data_content_;                        // see Dataset::content
    std::string data_facts_;                        // equal in all processes
    std::shared_ptr<const DocumentStream> stream_;  // null: config_.stream_buffer is 0
    std::vector<std::string> data_description_;

    std::uint64_t save_bytes_ = 0;     // of a checkpoint with its parts; 0: nothing is saved
    double evaluation_seconds_ = 0.0;  // of the newest evaluation; 0: none

    Checkpoint first_position_;  // of the run's start
    std::int64_t end_ = 0;
    std::int64_t step_ = 0;
    std::optional<StepReport> pending_evaluation_;  // report of step_ if its evaluation was abandoned
    // The report of step_: before it is evaluated, and from then on. Both are empty before the first step.
    std::optional<StepReport> unfinished_, finished_;
    std::int64_t recorded_step_ = -1;        // the newest step that this process has recorded
    std::optional<Checkpoint> before_step_;  // with shard copies: the position before the newest step
    std::vector<HeldState> held_;            // what the processes had when they met after a loss
    bool has_state_ = true;                  // false while the tensors are replaced by others
    std::int64_t first_step_ = 0;            // the step at which the recorder's clock was started
    std::int64_t bad_steps_ = 0, bad_steps_in_a_row_ = 0;
    std::optional<double> loss_, val_loss_;  // of the newest step and evaluation
};

}  // namespace gradtile
