#pragma once
/// RunRecorder: records the steps, samples and checkpoints of a run in its directory, and calls the callbacks
/// that show them. Without a directory, and in ranks other than 0, it only calls callbacks, and writes the
/// rank's parts of checkpoints, if there are any.
#include <chrono>
#include <map>
#include <memory>
#include <optional>

#include <gradtile/core/text/message.h>
#include <gradtile/train/checkpoint/snapshot_writer.h>
#include <gradtile/train/run/metrics_file.h>
#include <gradtile/train/run/run_callbacks.h>
#include <gradtile/train/run/run_directory.h>
#include <gradtile/train/run/shared_save.h>

namespace gradtile {

/// The places that a run writes to; the directory is declared first, because the others write into it.
struct RunOutput {
    std::unique_ptr<RunDirectory> directory = {};
    std::unique_ptr<MetricsFile> metrics = {};
    std::unique_ptr<SnapshotWriter> writer = {};
    std::unique_ptr<SharedSave> shared = {};  ///< if every rank writes a part of a checkpoint
};

class RunRecorder {
  public:
    /// The reference must stay valid.
    RunRecorder(const RunCallbacks& callbacks, MessageHandler on_message)
        : callbacks_(callbacks),
          on_message_(on_message),
          metrics_failures_(on_message),
          sample_failures_(std::move(on_message)) {}

    void open(RunOutput output);
    /// Returns null for a run without a directory, and in ranks other than 0.
    RunDirectory* directory() const { return output_.directory.get(); }
    /// Returns whether this process was forked from the one that called open(). Only that one may write.
    bool is_in_forked_child() const { return output_.writer && output_.writer->is_in_forked_child(); }
    bool writes_metrics() const { return output_.metrics != nullptr; }

    /// Starts the clock of wall_s(), which continues a resumed run's count.
    void start_clock() { start_ = std::chrono::steady_clock::now(); }
    double seconds_since_start() const;
    double wall_s() const { return wall_s_before_ + seconds_since_start(); }
    /// A resumed run has trained for at least this time, whatever its metrics say.
    void resume_clock(double wall_s) { wall_s_before_ = wall_s; }
    /// Starts the clock of a run that has returned to an earlier step.
    void restart_clock();
    /// Adds the seconds since start_clock() to those before, and returns the sum.
    double stop_clock() { return wall_s_before_ = wall_s(); }

    /// Writes the line of a step and shows it. Sets report.wall_s.
    void record(StepReport report);
    void write_sample(std::int64_t step, std::string_view prompt, const LanguageModel& model);

    /// Removes the metrics of later steps than `step`, which are trained again; see MetricsFile.
    void return_to(std::int64_t step, LastStep last);
    /// The state of `step` is that of a file, from which the run was resumed.
    void resume_from(std::int64_t step, std::filesystem::path file);
    /// Lets the newest step be saved again.
    void forget_saves() { saved_step_ = submitted_step_ = -1; }
    /// Returns whether the state of this step was passed to save(), or resumed from.
    bool was_submitted(std::int64_t step) const { return submitted_step_ == step; }
    /// How long the newest save took; 0: none has ended.
    double save_seconds() const { return save_seconds_; }
    /// Starts to save a step. `is_in_host_memory`: the tensors may be written without a copy, and do not
    /// change before wait_for_saves().
    void save(Checkpoint checkpoint, bool best, bool is_in_host_memory);
    bool saves_parts() const { return output_.shared != nullptr; }
    // With parts, the following functions are collective.
    /// Starts to save a step in parts; see SharedSave::start().
    void save_part(Checkpoint part, Checkpoint main, std::vector<TensorInfo> tensors, bool best);
    void wait_for_saves();
    /// Not collective: see SharedSave::abandon(). The metrics do not call such a save failed: no disk was at
    /// fault.
    void abandon_parts();
    /// Reports the saves that ended.
    void report_saves();
    /// Calls on_save.
    void announce_save() const;
    /// Returns whether the state of this step is safe on disk.
    bool is_saved(std::int64_t step) const { return saved_step_ == step && !saved_path_.empty(); }
    /// Whether the metrics lack a line about the newest save, because the file was removed or not writable.
    bool lacks_line_of_save() const { return lacks_line_of_save_; }
    /// The newest checkpoint that is safe on disk; empty: none.
    const std::filesystem::path& saved_path() const { return saved_path_; }

    /// The lowest validation loss, that of best.h5. Only rank 0 knows whether best.h5 was written, so the
    /// other ranks set its value before they compare with it.
    const std::optional<double>& best_val_loss() const { return best_val_loss_; }
    void set_best_val_loss(std::optional<double> loss) { best_val_loss_ = loss; }
    /// Sets the loss that a resumed run's best.h5 has.
    void resume_best_val_loss(std::optional<double> loss) { best_val_loss_ = best_saved_val_loss_ = loss; }

  private:
    void note_submitted(std::int64_t step, bool best);
    void settle_best(const SaveReport& report);

    const RunCallbacks& callbacks_;
    MessageHandler on_message_;
    RunOutput output_;
    FailureReporter metrics_failures_, sample_failures_;
    double wall_s_before_ = 0.0;  // seconds of training before start_
    std::chrono::steady_clock::time_point start_;
    std::int64_t saved_step_ = 0;  // newest step that is safe on disk
    std::filesystem::path saved_path_;
    bool lacks_line_of_save_ = false;
    std::int64_t submitted_step_ = -1;
    double save_seconds_ = 0.0;
    std::optional<double> best_val_loss_, best_saved_val_loss_;  // of all steps; of best.h5
    std::map<std::int64_t, double> pending_best_losses_;         // of running saves for best.h5, by step
};

}  // namespace gradtile
