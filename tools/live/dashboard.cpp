#include <gradtile/tools/live/dashboard.h>

#include <algorithm>

#include <gradtile/core/text/formatted.h>

namespace gradtile {
namespace {

constexpr std::size_t max_curve_rows = 4;
constexpr std::size_t min_curve_columns = 8;

/// A line, and its importance: lines with the highest rank are omitted first.
struct RankedLine {
    DashboardLine line;
    int rank;
};

DashboardLine ascii_line(const std::string& text) {
    return {text, text.size()};
}

std::vector<ProgressField> position_fields(const DashboardState& state) {
    const auto step = static_cast<long long>(state.report.step),
               last = static_cast<long long>(last_step_of(state.report, state.options));
    std::vector<ProgressField> fields{{formatted("step %lld/%lld", step, last), 0}};
    if (last > 0)
        fields.push_back(
            {formatted("%.0f%%", 100.0 * static_cast<double>(step) / static_cast<double>(last)), 2});
    if (state.part) {
        // "step 1200/2000  micro-step 3/128": the running step has not ended yet.
        const std::vector<ProgressField> part = progress_fields(*state.part, state.options);
        fields.push_back({part.back().text, 1});
    }
    if (step > 0) {
        fields.push_back({"elapsed " + readable_duration(state.report.wall_s), 4});
        fields.push_back({"ETA " + readable_duration(state.seconds_left), 3});
    }
    return fields;
}

std::string evaluation_text(const char* name, const ProgressEvaluation& evaluation) {
    return formatted("%s %.4f @ %lld", name, evaluation.loss, static_cast<long long>(evaluation.step));
}

std::vector<ProgressField> loss_fields(const DashboardState& state) {
    std::vector<ProgressField> fields{{formatted("loss %.4f", state.report.loss), 0}};
    if (state.evaluation) fields.push_back({evaluation_text("val", *state.evaluation), 1});
    if (state.best && state.best->step != state.evaluation->step)
        fields.push_back({evaluation_text("best", *state.best), 2});
    return fields;
}

std::vector<ProgressField> speed_fields(const DashboardState& state) {
    std::vector<ProgressField> fields{{readable_rate(state.tokens_per_s) + " tokens/s", 0},
                                      {formatted("%.1f ms/step", state.report.ms), 1}};
    const double flops = state.tokens_per_s * state.options.flops_per_token;
    if (flops > 0.0) fields.push_back({formatted("%.0f GFLOP/s", flops / 1e9), 3});
    if (flops > 0.0 && state.options.peak_flops > 0.0)
        fields.push_back({formatted("MFU %.0f%%", 100.0 * flops / state.options.peak_flops), 2});
    return fields;
}

std::vector<ProgressField> other_fields(const DashboardState& state) {
    std::vector<ProgressField> fields;
    if (state.memory) {
        fields.push_back({"memory " + readable_bytes(state.memory->used), 0});
        if (state.memory->total > 0) fields.back().text += " of " + readable_bytes(state.memory->total);
    }
    fields.push_back({formatted("lr %.3g", state.report.lr), 1});
    fields.push_back({formatted("gradient norm %.3g", state.report.grad_norm), 2});
    return fields;
}

/// Returns at most seven characters.
std::string limit_text(double value) {
    const std::string text = formatted("%.4g", value);
    return text.size() <= 7 ? text : formatted("%.1e", value);
}

/// The curve, with its limits' values at the left: "4.2103 |██▅▃▂▁".
std::vector<DashboardLine> curve_lines(const DashboardState& state, std::size_t columns, std::size_t rows,
                                       Glyphs glyphs) {
    if (state.losses.empty() || rows == 0) return {};
    constexpr std::size_t label_columns = 9;
    if (columns < label_columns + min_curve_columns) return {};
    const std::vector<double> values = resampled(state.losses, columns - label_columns);
    const auto [min, max] = std::ranges::minmax(values);
    std::vector<std::string> pictures = sparkline(values, {min, max}, rows, glyphs);
    std::vector<DashboardLine> lines;
    for (std::size_t row = 0; row < rows; ++row) {
        const bool first = row == 0, last = row + 1 == rows;
        const std::string label = first ? limit_text(max) : last ? limit_text(min) : std::string();
        lines.push_back({formatted("%7s |", label.c_str()) + pictures[row], label_columns + values.size()});
    }
    return lines;
}

}  // namespace

std::string readable_bytes(std::size_t bytes) {
    const auto mebibytes = static_cast<double>(bytes) / (1 << 20);
    return mebibytes < 1000.0 ? formatted("%.0f MiB", mebibytes) : formatted("%.1f GiB", mebibytes / 1024.0);
}

std::vector<DashboardLine> dashboard_lines(const DashboardState& state, const TerminalSize& terminal,
                                           Glyphs glyphs) {
    // Some terminals start a new line once the last column is filled. The cursor stays in its own row.
    const std::size_t columns = std::max<std::size_t>(terminal.columns, 2) - 1;
    const std::size_t rows = std::max<std::size_t>(terminal.rows, 2) - 1;
    std::vector<RankedLine> lines;
    const auto add = [&](DashboardLine line, int rank) { lines.push_back({std::move(line), rank}); };

    add(ascii_line(progress_line(position_fields(state), columns)), 0);
    const auto last = static_cast<double>(last_step_of(state.report, state.options));
    const double done = last > 0.0 ? static_cast<double>(state.report.step) / last : 0.0;
    add({progress_bar(done, columns, glyphs), columns}, 3);
    if (state.report.step > 0) {
        add(ascii_line(progress_line(loss_fields(state), columns)), 1);
        constexpr std::size_t lines_of_text = 5;
        const std::size_t curve_rows = std::min(max_curve_rows, rows - std::min(rows, lines_of_text));
        for (DashboardLine& line : curve_lines(state, columns, curve_rows, glyphs)) add(std::move(line), 5);
        if (state.tokens_per_s > 0.0) {  // this process has done a step
            add(ascii_line(progress_line(speed_fields(state), columns)), 2);
            add(ascii_line(progress_line(other_fields(state), columns)), 4);
        }
    }
    while (lines.size() > rows) lines.erase(std::ranges::max_element(lines, {}, &RankedLine::rank));
    std::vector<DashboardLine> result;
    for (RankedLine& ranked : lines) result.push_back(std::move(ranked.line));
    return result;
}

}  // namespace gradtile
