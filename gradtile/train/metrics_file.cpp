#include <gradtile/train/metrics_file.h>

#include <fcntl.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <span>

#include <nlohmann/json.hpp>

#include <gradtile/core/json_value.h>
#include <gradtile/train/durable_file.h>

namespace gradtile {
namespace {

using nlohmann::json;

void append_number(std::string& line, const char* key, double value) {
    char text[64];
    if (std::isfinite(value)) {
        std::snprintf(text, sizeof text, ",\"%s\":%.9g", key, value);
    } else {
        std::snprintf(text, sizeof text, ",\"%s\":null", key);
    }
    line += text;
}

std::string checkpoint_line(std::int64_t step) {
    return concat("{\"event\":\"checkpoint\",\"step\":", step, "}");
}

/// Calls visit(line, object) for every whole line that is a JSON object with a step.
template <class Visit>
void for_lines(const std::filesystem::path& path, Visit&& visit) {
    if (!exists(path)) return;
    std::ifstream file(path);
    check(file.good(), path, ": cannot be opened");
    std::string line;
    while (std::getline(file, line) && !file.eof()) {  // eof: a last line without its end is torn
        const json object = *JsonValue::parse(line).value_or(JsonValue());
        if (object.is_object() && object.contains("step") && object["step"].is_number_integer())
            visit(line, object);
    }
    check(!file.bad(), path, ": cannot be read");
}

/// Replaces the file by those of its lines that belong to steps up to `last_step`.
void cut_back(const std::filesystem::path& path, std::int64_t last_step) {
    std::string kept;
    bool has_event = last_step == 0;  // step 0 is the start, not a checkpoint
    for_lines(path, [&](const std::string& line, const json& object) {
        const auto step = object["step"].get<std::int64_t>();
        if (step > last_step) return;
        if (object.contains("event")) has_event |= step == last_step;
        kept += line + '\n';
    });
    if (!has_event) kept += checkpoint_line(last_step) + '\n';
    DurableFile file(path);
    file.file().write(reinterpret_cast<const std::byte*>(kept.data()), kept.size(), 0);
    file.commit(kept.size());
}

}  // namespace

void LossHistory::add(const StepReport& report) {
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
    if (!report.not_finite.empty()) line += ",\"not_finite\":" + json_text(report.not_finite);
    return line + '}';
}

MetricsFile::MetricsFile(const std::filesystem::path& path, std::int64_t last_step) : path_(path) {
    with_file_name("metrics", path_, [&] {
        if (last_step >= 0) cut_back(path_, last_step);
        file_ = OpenFile(FileSystem::posix(), path_, O_CREAT | O_WRONLY);
        size_ = file_.size();
    });
}

void MetricsFile::append(const std::string& line) {
    with_file_name("metrics", path_, [&] {
        const std::string whole = line + '\n';
        try {
            file_.write(reinterpret_cast<const std::byte*>(whole.data()), whole.size(), size_);
        } catch (...) {
            file_.file_system().truncate(file_.descriptor(), size_);  // half a line would spoil the file
            throw;
        }
        size_ += whole.size();
    });
}

void MetricsFile::write(const StepReport& report) {
    append(metrics_line(report));
}

void MetricsFile::write_checkpoint_event(std::int64_t step) {
    append(checkpoint_line(step));
}

LossHistory MetricsFile::read(const std::filesystem::path& path) {
    LossHistory history;
    for_lines(path, [&](const std::string&, const json& object) {
        if (object.contains("event")) return;
        const auto point = [&](const char* key, std::vector<LossHistory::Point>& points) {
            if (object.contains(key) && object[key].is_number())
                points.push_back({object["step"].get<std::int64_t>(), object[key].get<double>()});
        };
        point("loss", history.train);
        point("val_loss", history.validation);
    });
    return history;
}

}  // namespace gradtile
