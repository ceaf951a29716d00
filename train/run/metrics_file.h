#pragma once
/// metrics.jsonl: one JSON object per line, flushed line by line.
///
///     {"step":250,"loss":2.0512,"val_loss":2.1,"lr":0.001,"grad_norm":0.41,"tokens_per_s":61000,"ms":12.6,
///      "tokens":192000,"wall_s":3.21}
///     {"event":"checkpoint","step":250}
///     {"event":"checkpoint_failed","step":500}
///     {"event":"sample","step":250,"prompt":"One day","text":" a fox went to the forest."}
///
/// (The first object is one line in the file.) `tokens` counts from the run's beginning; `wall_s` is the time
/// in seconds that the run has trained; see StepReport. A run with a time budget also has "budget_used".
///
/// Floats have 9 significant digits, budget_used 17; a number that is not finite is null. A step whose update
/// was refused also has "not_finite", which names the first tensor that was not finite.
#include <filesystem>
#include <vector>

#include <gradtile/core/io/file_system.h>
#include <gradtile/train/run/run_callbacks.h>

namespace gradtile {

/// A run's losses so far, for the plot.
struct LossHistory {
    struct Point {
        std::int64_t step;
        double loss;
    };
    std::vector<Point> train, validation;

    /// Replaces the points of this step and of later ones, which a run that returned to an earlier step
    /// trains again.
    void add(const StepReport& report);
};

/// Says whether a metrics file has the line and the checkpoint of the step that a run continues from.
enum class LastStep { written, unwritten, unsaved };

class MetricsFile {
  public:
    /// Opens the file for appending, or creates it. If `last_step` is 0 or more, first restores the state
    /// that the file had when that step's checkpoint was saved: removes later steps' lines, a truncated last
    /// line, and lines that are not JSON or longer than max_line_bytes, and adds the checkpoint's event if it
    /// is missing. LastStep::unwritten means that the checkpoint was saved before last_step's line was
    /// written; that line is then removed, too. LastStep::unsaved means that there is no checkpoint of
    /// last_step: its lines are kept, and no event is added. Throws Error when the file does not belong to
    /// this user alone (see open_own_file()).
    explicit MetricsFile(const std::filesystem::path& path, std::int64_t last_step = -1,
                         LastStep last = LastStep::written);

    /// Throws Error when the line cannot be written; the file then contains nothing from that line.
    void write(const StepReport& report);
    void write_checkpoint_event(std::int64_t step);
    /// Records that this step's save failed, so that a run without checkpoints that is resumed is known to
    /// have lost its steps.
    void write_failed_checkpoint_event(std::int64_t step);
    /// Writes a text from the model; if the text is long, writes only its beginning. Bytes that are not UTF-8
    /// become U+FFFD.
    void write_sample(std::int64_t step, std::string_view prompt, std::string_view text);

    /// Returns the wall time at the last step that the constructor kept; 0 if there is none, or if an older
    /// version wrote the line.
    double wall_s() const { return wall_s_; }

    /// Reads the losses in a file; empty if there is no file.
    static LossHistory read(const std::filesystem::path& path);
    /// Returns those of the names loss and val_loss whose values in a step's line are not finite; empty if
    /// there is no file.
    static std::vector<std::string> losses_not_finite(const std::filesystem::path& path, std::int64_t step);
    /// Returns budget_used of the steps 1, 2, ... Throws Error when the file has no such run: a step is
    /// missing, or a number is not between the one before and 1.
    static std::vector<double> read_clock(const std::filesystem::path& path);
    /// The newest steps whose saves the file records; 0: none, or no file.
    struct NewestSaves {
        std::int64_t announced = 0;  ///< safe on disk
        std::int64_t failed = 0;
    };
    static NewestSaves newest_saves(const std::filesystem::path& path);

    static constexpr std::size_t max_line_bytes = std::size_t{64} << 10;

  private:
    void append(const std::string& line);

    std::filesystem::path path_;
    OpenFile file_;
    std::uint64_t size_ = 0;
    double wall_s_ = 0.0;
};

/// Returns the line for a step, without a line end.
std::string metrics_line(const StepReport& report);

}  // namespace gradtile
