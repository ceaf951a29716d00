#include <gradtile/train/run/metrics_file.h>

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include <gradtile/core/io/durable_file.h>
#include <gradtile/core/text/json_reader.h>
#include <gradtile/core/text/utf8.h>

namespace gradtile {
namespace {

constexpr double max_wall_s = 1e10;  // about 300 years

void append_number(std::string& line, const char* key, double value, int digits = 9) {
    char text[64];
    if (std::isfinite(value)) {
        std::snprintf(text, sizeof text, ",\"%s\":%.*g", key, digits, value);
    } else {
        std::snprintf(text, sizeof text, ",\"%s\":null", key);
    }
    line += text;
}

constexpr const char* checkpoint_event = "checkpoint";
constexpr const char* failed_checkpoint_event = "checkpoint_failed";

std::string event_line(const char* event, std::int64_t step) {
    return concat("{\"event\":\"", event, "\",\"step\":", step, "}");
}

bool is_event(const JsonValue& object, const char* name) {
    const JsonValue* const event = object.find("event");
    return event && *event == name;
}

/// Calls visit(line, object) for every complete line that contains `text` and is a JSON object with a step.
/// The file may have gigabytes, so only one line at a time is in memory.
template <class Visit>
void for_lines(const std::filesystem::path& path, std::string_view text, Visit&& visit) {
    if (symlink_status(path).type() == std::filesystem::file_type::not_found) return;
    TextLines lines(open_own_file(path, O_RDONLY), MetricsFile::max_line_bytes);
    for (std::string_view line; lines.next(line);) {
        if (line.find(text) == std::string_view::npos) continue;
        const JsonValue object = parse_json_or_null(line);
        if (object.contains("step") && object["step"].fits<std::int64_t>()) visit(line, object);
    }
}

/// Writes lines to a file in large pieces.
class LineWriter {
  public:
    explicit LineWriter(const OpenFile& file) : file_(file) {}
    void add(std::string_view line) {
        constexpr std::size_t piece = std::size_t{1} << 20;
        buffer_.append(line) += '\n';
        if (buffer_.size() >= piece) flush();
    }
    /// Returns how many bytes were written so far.
    std::uint64_t flush() {
        file_.write(reinterpret_cast<const std::byte*>(buffer_.data()), buffer_.size(), size_);
        size_ += buffer_.size();
        buffer_.clear();
        return size_;
    }

  private:
    const OpenFile& file_;
    std::string buffer_;
    std::uint64_t size_ = 0;
};

/// Keeps only the lines for steps up to `last_step`. Returns the wall time in the last kept line.
double truncate_to_step(const std::filesystem::path& path, std::int64_t last_step, LastStep last) {
    DurableFile file(path);
    LineWriter kept(file.file());
    double wall_s = 0.0;
    bool has_event = last_step == 0;  // step 0 is the run's start, which has no checkpoint
    for_lines(path, "", [&](std::string_view line, const JsonValue& object) {
        const auto step = object["step"].get<std::int64_t>();
        if (step > last_step) return;
        const bool is_checkpoint = is_event(object, checkpoint_event);
        if (step == last_step && last == LastStep::unwritten && !is_checkpoint) return;
        if (is_checkpoint) has_event |= step == last_step;
        // A user may have edited the line: a wall_s that is no number is ignored, so that the times in later
        // lines stay right.
        if (const JsonValue* const wall = object.find("wall_s"); wall && wall->is_number())
            wall_s = std::clamp(wall->get<double>(), 0.0, max_wall_s);
        kept.add(line);
    });
    if (!has_event && last != LastStep::unsaved) kept.add(event_line(checkpoint_event, last_step));
    file.commit(kept.flush());
    return wall_s;
}

}  // namespace

void LossHistory::add(const StepReport& report) {
    for (std::vector<Point>* points : {&train, &validation})
        while (!points->empty() && points->back().step >= report.step) points->pop_back();
    if (std::isfinite(report.loss)) train.push_back({report.step, report.loss});
    if (report.val_loss && std::isfinite(*report.val_loss))
        validation.push_back({report.step, *report.val_loss});
}

std::string metrics_line(const StepReport& report) {
    std::string line = concat("{\"step\":", report.step);
    append_number(line, "loss", report.loss);
    if (report.val_loss) append_number(line, "val_loss", *report.val_loss);
    append_number(line, "lr", report.lr);
    append_number(line, "grad_norm", report.grad_norm);
    append_number(line, "tokens_per_s", report.tokens_per_s);
    append_number(line, "ms", report.ms);
    line += concat(",\"tokens\":", report.tokens);
    append_number(line, "wall_s", report.wall_s);
    if (report.budget_used) append_number(line, "budget_used", *report.budget_used, 17);
    if (!report.not_finite.empty()) line += ",\"not_finite\":" + JsonValue(report.not_finite).dump();
    return line + '}';
}

MetricsFile::MetricsFile(const std::filesystem::path& path, std::int64_t last_step, LastStep last)
    : path_(path) {
    with_file_name("metrics", path_, [&] {
        if (last_step >= 0) wall_s_ = truncate_to_step(path_, last_step, last);
        file_ = open_own_file(path_, O_CREAT | O_WRONLY);
        size_ = file_.size();
    });
}

void MetricsFile::append(const std::string& line) {
    with_file_name("metrics", path_, [&] {
        const std::string full_line = line + '\n';
        try {
            file_.write(reinterpret_cast<const std::byte*>(full_line.data()), full_line.size(), size_);
        } catch (...) {
            file_.file_system().truncate(file_.descriptor(), size_);  // removes a partial line
            throw;
        }
        size_ += full_line.size();
    });
}

void MetricsFile::write(const StepReport& report) {
    append(metrics_line(report));
}

void MetricsFile::write_checkpoint_event(std::int64_t step) {
    append(event_line(checkpoint_event, step));
    // Writing to a file without a name succeeds, so a user who removed the directory would not notice.
    struct stat status {};
    if (::fstat(file_.descriptor(), &status) == 0 && status.st_nlink == 0)
        throw Error(concat("metrics ", path_.string(), ": was removed during the run; its lines are lost"));
}

void MetricsFile::write_failed_checkpoint_event(std::int64_t step) {
    append(event_line(failed_checkpoint_event, step));
}

void MetricsFile::write_sample(std::int64_t step, std::string_view prompt, std::string_view text) {
    // A character has at most six characters in JSON, so that the line stays below max_line_bytes.
    constexpr std::size_t max_bytes = 8000;
    append(JsonValue::object({{"event", "sample"},
                              {"step", step},
                              {"prompt", replace_invalid_utf8(prompt.substr(0, max_bytes / 8))},
                              {"text", replace_invalid_utf8(text.substr(0, max_bytes))}})
               .dump());
}

LossHistory MetricsFile::read(const std::filesystem::path& path) {
    LossHistory history;
    with_file_name("metrics", path, [&] {
        for_lines(path, "", [&](std::string_view, const JsonValue& object) {
            if (object.contains("event")) return;
            const auto point = [&](const char* key, std::vector<LossHistory::Point>& points) {
                if (object.contains(key) && object[key].is_number())
                    points.push_back({object["step"].get<std::int64_t>(), object[key].get<double>()});
            };
            point("loss", history.train);
            point("val_loss", history.validation);
        });
    });
    return history;
}

std::vector<std::string> MetricsFile::losses_not_finite(const std::filesystem::path& path,
                                                        std::int64_t step) {
    std::vector<std::string> names;
    with_file_name("metrics", path, [&] {
        for_lines(path, "null", [&](std::string_view, const JsonValue& object) {
            if (object.contains("event") || object["step"] != step) return;
            for (const char* const name : {"loss", "val_loss"})
                if (object.contains(name) && object[name].is_null()) names.emplace_back(name);
        });
    });
    return names;
}

std::vector<double> MetricsFile::read_clock(const std::filesystem::path& path) {
    std::vector<double> clock;
    with_file_name("replay-clock", path, [&] {
        open_regular_file(FileSystem::posix(), path, SymbolicLinks::refuse);  // a missing file has no lines
        for_lines(path, "\"budget_used\"", [&](std::string_view, const JsonValue& object) {
            const JsonValue& used = object["budget_used"];
            check(used.is_number() && object["step"].get<std::int64_t>() == std::ssize(clock) + 1 &&
                      used.number() >= (clock.empty() ? 0.0 : clock.back()) && used.number() <= 1.0,
                  "step ", object["step"], " has budget_used ", used, " after ", clock.size(),
                  " steps; expected the next step and a fraction that rises to at most 1");
            clock.push_back(used.number());
        });
        check(!clock.empty(), "no step has budget_used; expected the metrics of a run with a time budget");
    });
    return clock;
}

MetricsFile::NewestSaves MetricsFile::newest_saves(const std::filesystem::path& path) {
    NewestSaves newest;
    with_file_name("metrics", path, [&] {
        for_lines(path, "\"event\"", [&](std::string_view, const JsonValue& object) {
            const auto step = object["step"].get<std::int64_t>();
            if (is_event(object, checkpoint_event)) newest.announced = std::max(newest.announced, step);
            if (is_event(object, failed_checkpoint_event)) newest.failed = std::max(newest.failed, step);
        });
    });
    return newest;
}

}  // namespace gradtile
