#include <gradtile/tools/report/report_page.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <set>

#include <gradtile/core/check.h>
#include <gradtile/core/text/formatted.h>
#include <gradtile/core/text/json_value.h>

namespace gradtile::cli {
namespace {

using List = std::vector<JsonValue>;
using Points = std::span<const MetricsPoint>;

/// Rounds a number to 7 digits, which suffice for the page. A number that is not finite becomes null. (Unlike
/// strtod(), std::stod() throws for a number as small as 1e-310.)
JsonValue shortened(double x) {
    return std::isfinite(x) ? JsonValue(std::strtod(formatted("%.7g", x).c_str(), nullptr)) : JsonValue();
}

/// Returns the mean over the finite values; NaN if no value is finite.
double mean_of(Points points, double MetricsPoint::*member) {
    double sum = 0.0, count = 0.0;
    for (const MetricsPoint& point : points) {
        if (!std::isfinite(point.*member)) continue;
        sum += point.*member;
        count += 1.0;
    }
    return sum / count;
}

/// Returns one list per member. This is shorter than one object per point, which would repeat the names.
JsonValue columns_of(const std::vector<MetricsPoint>& points, std::size_t group) {
    List steps, tokens, seconds, loss, lr, grad_norm, speed;
    for (std::size_t begin = 0; begin < points.size(); begin += group) {
        const Points part(&points[begin], std::min(group, points.size() - begin));
        steps.emplace_back(part.back().step);
        tokens.push_back(shortened(part.back().tokens));
        seconds.push_back(shortened(part.back().wall_s));
        loss.push_back(shortened(mean_of(part, &MetricsPoint::loss)));
        lr.push_back(shortened(mean_of(part, &MetricsPoint::lr)));
        grad_norm.push_back(shortened(mean_of(part, &MetricsPoint::grad_norm)));
        speed.push_back(shortened(mean_of(part, &MetricsPoint::tokens_per_s)));
    }
    return JsonValue::object({{"step", steps},
                              {"tokens", tokens},
                              {"seconds", seconds},
                              {"loss", loss},
                              {"lr", lr},
                              {"grad_norm", grad_norm},
                              {"tokens_per_s", speed}});
}

JsonValue evaluations_of(const std::vector<MetricsPoint>& points) {
    std::vector<const MetricsPoint*> evaluated;
    for (const MetricsPoint& point : points)
        if (point.val_loss) evaluated.push_back(&point);
    const std::size_t every = evaluated.size() / max_report_points + 1;
    List steps, tokens, seconds, loss;
    for (std::size_t i = 0; i < evaluated.size(); ++i) {
        if (i % every != 0 && i + 1 != evaluated.size()) continue;
        steps.emplace_back(evaluated[i]->step);
        tokens.push_back(shortened(evaluated[i]->tokens));
        seconds.push_back(shortened(evaluated[i]->wall_s));
        loss.push_back(shortened(*evaluated[i]->val_loss));
    }
    return JsonValue::object({{"step", steps}, {"tokens", tokens}, {"seconds", seconds}, {"val_loss", loss}});
}

JsonValue results_of(const RunMetrics& run) {
    const MetricsPoint& last = run.points.back();
    const MetricsPoint* best = nullptr;
    for (const MetricsPoint& point : run.points)
        if (point.val_loss && (best == nullptr || *point.val_loss < *best->val_loss)) best = &point;
    JsonValue results =
        JsonValue::object({{"step", last.step},
                           {"tokens", shortened(last.tokens)},
                           {"seconds", shortened(last.wall_s)},
                           {"loss", shortened(last.loss)},
                           {"tokens_per_s", shortened(mean_of(run.points, &MetricsPoint::tokens_per_s))},
                           {"refused_updates", run.refused_updates}});
    if (best != nullptr) {
        results.set("best_val_loss", shortened(*best->val_loss));
        results.set("best_step", best->step);
    }
    return results;
}

/// At most max_report_samples samples, among them the first and the last.
List samples_of(const RunMetrics& run) {
    const std::size_t count = std::min(run.samples.size(), max_report_samples);
    List samples;
    for (std::size_t i = 0; i < count; ++i) {
        const std::size_t sample = count > 1 ? i * (run.samples.size() - 1) / (count - 1) : 0;
        samples.push_back(
            JsonValue::object({{"step", run.samples[sample].step}, {"text", run.samples[sample].text}}));
    }
    return samples;
}

JsonValue as_json(const RunMetrics& run) {
    const std::size_t group = (run.points.size() + max_report_points - 1) / max_report_points;
    return JsonValue::object({{"name", run.name},
                              {"path", run.path},
                              {"group", group},
                              {"results", results_of(run)},
                              {"steps", columns_of(run.points, group)},
                              {"evaluations", evaluations_of(run.points)},
                              {"samples", samples_of(run)},
                              {"warnings", run.warnings}});
}

/// Returns the settings that are not the same in all runs. Runs with unknown settings are left out.
List differing_settings(const std::vector<RunMetrics>& runs) {
    std::set<std::string> names;
    for (const RunMetrics& run : runs)
        for (const auto& [name, value] : run.settings) names.insert(name);
    for (const char* directory : {"out", "tensorboard"})
        names.erase(directory);  // left out, because every run has its own directories
    List rows;
    for (const std::string& name : names) {
        List values;
        std::set<std::string> different;
        for (const RunMetrics& run : runs) {
            const auto found = run.settings.find(name);
            const bool known = found != run.settings.end();
            values.push_back(known ? JsonValue(found->second) : JsonValue());
            if (!run.settings.empty()) different.insert(known ? '=' + found->second : "");
        }
        if (different.size() > 1) rows.push_back(JsonValue::object({{"name", name}, {"values", values}}));
    }
    return rows;
}

}  // namespace

std::string report_page(const std::vector<RunMetrics>& runs) {
    const auto text = [](const char* name) {
        return text_of(report_page_files(), concat("tools/report/page/", name));
    };
    std::string page(text("page.html"));
    insert_text(page, "style", text("page.css"));
    insert_text(page, "script", concat(text("chart.js"), text("tables.js"), text("controls.js")));
    List list;
    for (const RunMetrics& run : runs) list.push_back(as_json(run));
    insert_text(
        page, "runs",
        json_in_script(JsonValue::object({{"runs", list}, {"settings", differing_settings(runs)}}).dump()));
    return page;
}

}  // namespace gradtile::cli
