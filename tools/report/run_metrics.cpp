#include <gradtile/tools/report/run_metrics.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include <gradtile/core/io/file_system.h>
#include <gradtile/core/text/json_reader.h>
#include <gradtile/core/text/message.h>
#include <gradtile/train/run/metrics_file.h>

namespace gradtile::cli {
namespace {

constexpr double unknown = std::numeric_limits<double>::quiet_NaN();

double number_of(const JsonValue& object, const char* key) {
    const JsonValue* const found = object.find(key);
    return found && found->is_number() ? found->number() : unknown;
}

/// The largest step that is accepted. Double precision cannot represent all larger integers.
constexpr std::int64_t max_step = std::int64_t{1} << 53;

std::optional<MetricsPoint> point_of(const JsonValue& object) {
    const JsonValue *const step = object.find("step"), *const loss = object.find("loss");
    if (!step || !step->fits<std::int64_t>() || !loss || !(loss->is_number() || loss->is_null()))
        return std::nullopt;
    MetricsPoint point{.step = step->get<std::int64_t>(),
                       .tokens = number_of(object, "tokens"),
                       .wall_s = number_of(object, "wall_s"),
                       .loss = number_of(object, "loss"),
                       .lr = number_of(object, "lr"),
                       .grad_norm = number_of(object, "grad_norm"),
                       .tokens_per_s = number_of(object, "tokens_per_s"),
                       .refused = object.contains("not_finite")};
    if (point.step < 1 || point.step > max_step) return std::nullopt;
    if (const double val_loss = number_of(object, "val_loss"); !std::isnan(val_loss))
        point.val_loss = val_loss;
    return point;
}

std::optional<MetricsSample> sample_of(const JsonValue& event) {
    const auto is = [&](const char* key, auto holds) {
        const JsonValue* const found = event.find(key);
        return found && holds(*found);
    };
    const auto is_text = [](const JsonValue& value) { return value.is_string(); };
    if (event["event"] != "sample" || !is("prompt", is_text) || !is("text", is_text) ||
        !is("step", [](const JsonValue& value) { return value.fits<std::int64_t>(); }))
        return std::nullopt;
    const PrintableOptions options{.max_characters = 4000, .multiline = true};
    return MetricsSample{
        .step = event["step"].get<std::int64_t>(),
        .text = printable(event["prompt"].get<std::string>() + event["text"].get<std::string>(), options)};
}

/// Like a step, a sample replaces the samples for the same and later steps, which an earlier process wrote.
void add_sample(std::vector<MetricsSample>& samples, MetricsSample sample) {
    while (!samples.empty() && samples.back().step >= sample.step) samples.pop_back();
    samples.push_back(std::move(sample));
}

std::map<std::string, std::string> settings_in(const std::filesystem::path& file) {
    constexpr std::uint64_t max_bytes = std::uint64_t{1} << 20;
    const std::string text = read_text_file(file, max_bytes);  // its errors name the file
    const std::string source = concat("settings ", file.string());
    const JsonValue object = parse_json(text, source);
    check(object.is_object(), source, ": expected an object");
    std::map<std::string, std::string> settings;
    for (const auto& [name, value] : object.items())
        settings[printable_name(name)] = printable(value.is_string() ? value.text() : value.dump());
    return settings;
}

double setting(const RunMetrics& run, const char* name) {
    const auto found = run.settings.find(name);
    return found == run.settings.end() ? unknown : std::strtod(found->second.c_str(), nullptr);
}

/// Reads the lines of a file. Returns, for each point, the seconds up to the point, summed from ms; files
/// without wall_s need them.
std::vector<double> read_lines(RunMetrics& run, const std::filesystem::path& file) {
    std::int64_t number = 0, bad = 0, first_bad = 0;
    std::vector<double> seconds;
    OpenFile opened = open_regular_file(FileSystem::posix(), file);
    const std::uint64_t size = opened.size();
    std::byte last{'\n'};
    if (size > 0) opened.read(&last, 1, size - 1);
    TextLines lines(std::move(opened), MetricsFile::max_line_bytes);
    for (std::string_view line; lines.next(line);) {
        ++number;
        const JsonValue object = parse_json_or_null(line);
        if (object.contains("event")) {
            if (auto sample = sample_of(object)) add_sample(run.samples, std::move(*sample));
            continue;
        }
        const std::optional<MetricsPoint> point = point_of(object);
        if (!point) {
            if (bad++ == 0) first_bad = number;
            continue;
        }
        while (!run.points.empty() && run.points.back().step >= point->step) {
            run.points.pop_back();
            seconds.pop_back();
        }
        const double ms = number_of(object, "ms");
        seconds.push_back((seconds.empty() ? 0.0 : seconds.back()) + (ms > 0.0 ? ms / 1e3 : 0.0));
        run.points.push_back(*point);
    }
    // A path need not be UTF-8, but the page is.
    const std::string name = printable(file.string());
    if (bad > 0)
        run.warnings.push_back(concat(name, ": ", bad,
                                      bad == 1 ? " line is not a step and is left out: line "
                                               : " lines are not steps and are left out, the first is line ",
                                      first_bad));
    if (last != std::byte{'\n'})
        run.warnings.push_back(concat(name, ": the last line is truncated and is left out"));
    return seconds;
}

}  // namespace

RunMetrics read_run_metrics(const std::filesystem::path& run) {
    const bool is_run = is_directory(run);
    const std::filesystem::path file = is_run ? run / "metrics.jsonl" : run;
    const std::filesystem::path directory = std::filesystem::absolute(is_run ? run / "" : run).parent_path();
    RunMetrics metrics{.name = printable_name(directory.lexically_normal().filename().string()),
                       .path = printable(run.string())};
    try {
        metrics.settings = settings_in(directory / "config.json");
    } catch (const Error& error) {
        metrics.warnings.push_back(printable(error.what()));
    }
    const std::vector<double> seconds =
        with_file_name("metrics", file, [&] { return read_lines(metrics, file); });
    check(!metrics.points.empty(), "metrics ", file.string(), ": has no step",
          metrics.warnings.empty() ? "" : concat(" (", metrics.warnings.back(), ")"));
    metrics.refused_updates = std::ranges::count(metrics.points, true, &MetricsPoint::refused);
    const double tokens_per_step = setting(metrics, "batch") * setting(metrics, "context");
    for (std::size_t i = 0; i < metrics.points.size(); ++i) {
        MetricsPoint& point = metrics.points[i];
        if (std::isnan(point.wall_s)) point.wall_s = seconds[i];
        if (std::isnan(point.tokens)) point.tokens = tokens_per_step * static_cast<double>(point.step);
    }
    return metrics;
}

}  // namespace gradtile::cli
