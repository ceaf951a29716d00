#include <gradtile/tools/plan/cost_fit.h>

#include <cmath>
#include <sstream>

#include <gradtile/core/io/file_system.h>
#include <gradtile/core/text/json_reader.h>
#include <gradtile/core/text/json_value.h>
#include <gradtile/core/text/message.h>
#include <gradtile/core/text/with_source.h>
#include <gradtile/tools/plan/least_squares.h>

namespace gradtile {
namespace {

bool is_collective(Timed what) {
    switch (what) {
        case Timed::step:
        case Timed::products:
        case Timed::attention:
        case Timed::update:
            return false;
        case Timed::all_reduce:
        case Timed::reduce_scatter:
        case Timed::all_gather:
        case Timed::broadcast:
            return true;
    }
    throw Error("cost fit: unknown measurement");
}

/// Moves the member into `into` and erases it, so that only settings stay in the object.
template <class T>
void take(JsonValue& object, const char* key, T& into, const std::string& where) {
    const JsonValue* const found = object.find(key);
    if (!found) return;
    into = with_source(concat(where, ": ", key), [&] { return found->get<T>(); });
    object.erase(key);
}

Measurement measurement_of(JsonValue object, const std::string& where) {
    check(object.is_object(), where, ": expected an object");
    Measurement m;
    std::string what;
    take(object, "what", what, where);
    check(!what.empty(), where, ": has no 'what'; expected one of ", choices_of<Timed>());
    m.what = enum_named<Timed>(what, where + ": what");
    take(object, "gpus", m.gpus, where);
    take(object, "bytes", m.bytes, where);
    take(object, "ms", m.ms, where);
    if (is_collective(m.what)) {
        double implied = 0;
        std::string dtype;  // bytes cost the same in each
        take(object, "bus_gb_per_s", implied, where);
        take(object, "dtype", dtype, where);
        if (m.bytes < min_fitted_bytes) m.weight = 0;
    }
    take(object, "weight", m.weight, where);
    take(object, "note", m.note, where);
    m.note = printable_name(m.note);
    check(m.gpus >= 1, where, ": gpus: ", m.gpus, "; expected at least 1");
    check(m.ms > 0, where, ": ms: ", m.ms, "; expected more than 0");
    check(m.weight >= 0, where, ": weight: ", m.weight, "; expected 0 or more");
    if (is_collective(m.what)) {
        check(m.gpus >= 2, where, ": gpus: ", m.gpus, "; a collective takes 2 or more");
        check(m.bytes > 0, where, ": bytes: ", m.bytes, "; expected more than 0");
        check(object.size() == 0, where, ": a collective has no settings");
        return m;
    }
    apply_json(m.config, object, where);
    check(m.config.model.vocabulary >= 1, where, ": has no vocabulary");
    try {
        validate(m.config, m.gpus);
    } catch (const Error& error) {
        throw Error(concat(where, ": ", error.what()));
    }
    return m;
}

/// Returns the constants' logarithms, in visit_constants() order.
std::vector<double> logarithms(const CostConstants& constants) {
    std::vector<double> logs;
    visit_constants(constants,
                    [&](const char*, double value, double, const char*) { logs.push_back(std::log(value)); });
    return logs;
}

CostConstants constants_of(const std::vector<double>& logs) {
    CostConstants constants{};
    std::size_t i = 0;
    visit_constants(constants,
                    [&](const char*, double& value, double, const char*) { value = std::exp(logs[i++]); });
    return constants;
}

/// A measurement with the part of its prediction that is independent of the constants.
struct Prepared {
    Measurement measurement;
    ParallelStep step = {};  // empty for a collective

    explicit Prepared(const Measurement& m) : measurement(m) {
        if (!is_collective(m.what)) step = parallel_step(m.config, m.gpus);
    }
    double predicted_ms(const CostConstants& constants) const;
};

double Prepared::predicted_ms(const CostConstants& constants) const {
    const GpuLayout layout(measurement.gpus, measurement.gpus);
    const Links links{.nvlink = constants.nvlink()};
    const Work all = step.work.head +
                     static_cast<double>(step.layers) * (step.work.block_forward + step.work.block_backward);
    const auto alone = [&](const Work& part) {
        return static_cast<double>(step.accumulation_steps) * work_seconds(part, step.dtype, constants);
    };
    double seconds = 0;
    switch (measurement.what) {
        case Timed::step:
            seconds = step_cost(step, constants, layout, links).seconds();
            break;
        case Timed::update:
            seconds = step_cost(step, constants, layout, links).update;
            break;
        case Timed::products:
            seconds = alone({.product_flops = all.product_flops});
            break;
        case Timed::attention:
            seconds = alone({.attention_flops = all.attention_flops});
            break;
        case Timed::all_reduce:
            seconds = all_reduce_seconds(layout, links, measurement.bytes);
            break;
        case Timed::reduce_scatter:
        case Timed::all_gather:
            seconds = scatter_seconds(layout, links, measurement.bytes);
            break;
        case Timed::broadcast:
            seconds = broadcast_seconds(layout, links, measurement.bytes);
            break;
    }
    return 1e3 * seconds;
}

/// Returns the weighted relative deviations.
std::vector<double> deviations(std::span<const Prepared> measurements, const std::vector<double>& logs) {
    const CostConstants constants = constants_of(logs);
    std::vector<double> result;
    for (const Prepared& prepared : measurements) {
        const Measurement& m = prepared.measurement;
        result.push_back(m.weight * (prepared.predicted_ms(constants) / m.ms - 1));
    }
    return result;
}

}  // namespace

std::vector<Measurement> read_measurements(const std::string& path) {
    constexpr std::uint64_t max_bytes = std::uint64_t{64} << 20;
    std::istringstream file(read_text_file(path, max_bytes));
    std::vector<Measurement> measurements;
    std::size_t number = 0;
    for (std::string line; std::getline(file, line);) {
        const std::string where = concat(path, ":", ++number);
        if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
        measurements.push_back(measurement_of(parse_json(line, where), where));
    }
    check(!measurements.empty(), path, ": holds no measurement");
    return measurements;
}

std::string description_of(const Measurement& m) {
    std::string text = concat(m.note, m.note.empty() ? "" : ", ");
    if (is_collective(m.what)) return concat(text, m.bytes / (1 << 20), " MiB");
    const TrainConfig& c = m.config;
    text += concat(c.model.layers, " x ", c.model.width, ", ", c.batch / m.gpus, " x ", c.model.context, " ",
                   name_of(c.dtype));
    if (c.training.recompute != Recompute::none)
        text += concat(", recompute ", name_of(c.training.recompute));
    if (c.accumulation_steps(m.gpus) > 1) text += concat(", in ", c.accumulation_steps(m.gpus));
    if (c.zero > 0) text += concat(", zero ", c.zero);
    return text;
}

double predicted_ms(const Measurement& measurement, const CostConstants& constants) {
    return Prepared(measurement).predicted_ms(constants);
}

CostFit fit_constants(std::span<const Measurement> all, const CostConstants& start) {
    std::vector<Prepared> measurements;
    for (const Measurement& m : all)
        if (m.weight > 0) measurements.emplace_back(m);
    const auto deviations_at = [&](const std::vector<double>& logs) {
        return deviations(measurements, logs);
    };
    const LeastSquares best = least_squares(deviations_at, logarithms(start));
    CostFit fit;
    fit.iterations = best.iterations;
    fit.constants = constants_of(best.point);
    const auto columns = derivatives(deviations_at, best.point);
    std::size_t i = 0;
    visit_constants(start, [&](const char* name, double, double, const char*) {
        if (dot(columns[i], columns[i]) == 0) fit.undetermined.emplace_back(name);
        ++i;
    });
    return fit;
}

}  // namespace gradtile
