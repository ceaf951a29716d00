#pragma once
/// metrics.jsonl: one JSON object a line, flushed as it is written.
///
///     {"step":250,"loss":2.0512,"val_loss":2.1,"lr":0.001,"grad_norm":0.41,"tokens_per_s":61000,"ms":12.6}
///     {"event":"checkpoint","step":250}
///
/// Floats have 9 significant digits; what is not finite is null. A step whose update was refused also has
/// "not_finite", the name of the first tensor that was not.
#include <filesystem>
#include <vector>

#include <gradtile/core/io/file_system.h>
#include <gradtile/train/step_report.h>

namespace gradtile {

/// The losses of a run so far, for the picture.
struct LossHistory {
    struct Point {
        std::int64_t step;
        double loss;
    };
    std::vector<Point> train, validation;

    void add(const StepReport& report);
};

class MetricsFile {
  public:
    /// Opens the file to append, creating it. With `last_step` >= 0 it is first cut back to what a run that
    /// has just saved its checkpoint of that step has written: lines of later steps, a torn last line and
    /// lines that are not JSON or longer than max_line_bytes go, and the checkpoint's event is added if it is
    /// missing. The line of last_step itself goes, too, when the checkpoint was saved before it was written
    /// (Last::unwritten). Throws Error when the file is not one of this user alone (see open_own_file()).
    enum class Last { written, unwritten };
    explicit MetricsFile(const std::filesystem::path& path, std::int64_t last_step = -1,
                         Last last = Last::written);

    /// Throws Error when the line cannot be written; nothing of it is left in the file then.
    void write(const StepReport& report);
    void write_checkpoint_event(std::int64_t step);

    /// The losses that stand in a file; empty when there is none.
    static LossHistory read(const std::filesystem::path& path);
    /// The newest step whose checkpoint the file announces; 0 when it announces none or does not exist.
    static std::int64_t newest_checkpoint(const std::filesystem::path& path);

    static constexpr std::size_t max_line_bytes = std::size_t{64} << 10;

  private:
    void append(const std::string& line);

    std::filesystem::path path_;
    OpenFile file_;
    std::uint64_t size_ = 0;
};

/// The line for a step, without its end.
std::string metrics_line(const StepReport& report);

}  // namespace gradtile
