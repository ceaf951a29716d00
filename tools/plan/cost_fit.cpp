#include <gradtile/tools/plan/cost_fit.h>

#include <algorithm>
#include <cmath>
#include <sstream>

#include <gradtile/core/io/file_system.h>
#include <gradtile/core/text/json_reader.h>
#include <gradtile/core/text/json_value.h>
#include <gradtile/core/text/message.h>
#include <gradtile/core/text/with_source.h>

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

double dot(const std::vector<double>& a, const std::vector<double>& b) {
    double sum = 0;
    for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
    return sum;
}

/// Returns each deviation's derivative with respect to each logarithm: columns[constant][measurement].
std::vector<std::vector<double>> derivatives(std::span<const Prepared> measurements,
                                             const std::vector<double>& logs) {
    // Central differences have the truncation error step^2 / 6 times the third derivative, and a rounding
    // error near 1e-16 / step. Both errors are about 1e-11 for a smooth function of order one.
    constexpr double step = 1e-5;
    std::vector<std::vector<double>> columns;
    for (std::size_t i = 0; i < logs.size(); ++i) {
        std::vector<double> below = logs, above = logs;
        below[i] -= step;
        above[i] += step;
        std::vector<double> column = deviations(measurements, above);
        const std::vector<double> subtracted = deviations(measurements, below);
        for (std::size_t row = 0; row < column.size(); ++row)
            column[row] = (column[row] - subtracted[row]) / (2 * step);
        columns.push_back(std::move(column));
    }
    return columns;
}

/// Solves a symmetric positive definite system by elimination with diagonal pivots.
std::vector<double> solve(std::vector<std::vector<double>> matrix, std::vector<double> right) {
    const std::size_t n = right.size();
    for (std::size_t pivot = 0; pivot < n; ++pivot)
        for (std::size_t row = pivot + 1; row < n; ++row) {
            const double factor = matrix[row][pivot] / matrix[pivot][pivot];
            for (std::size_t i = pivot; i < n; ++i) matrix[row][i] -= factor * matrix[pivot][i];
            right[row] -= factor * right[pivot];
        }
    for (std::size_t row = n; row-- > 0;) {
        for (std::size_t i = row + 1; i < n; ++i) right[row] -= matrix[row][i] * right[i];
        right[row] /= matrix[row][row];
    }
    return right;
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
    if (c.zero == 1) text += ", zero 1";
    return text;
}

double predicted_ms(const Measurement& measurement, const CostConstants& constants) {
    return Prepared(measurement).predicted_ms(constants);
}

CostFit fit_constants(std::span<const Measurement> all, const CostConstants& start) {
    std::vector<Prepared> measurements;
    for (const Measurement& m : all)
        if (m.weight > 0) measurements.emplace_back(m);
    CostFit fit;
    std::vector<double> logs = logarithms(start);
    std::vector<double> now = deviations(measurements, logs);
    double damping = 1e-3;
    for (bool moves = true; moves && fit.iterations < 200; ++fit.iterations) {
        const auto columns = derivatives(measurements, logs);
        std::vector<std::size_t> free;  // constants that a measurement depends on
        for (std::size_t i = 0; i < columns.size(); ++i)
            if (dot(columns[i], columns[i]) > 0) free.push_back(i);
        moves = false;
        // More damping makes the step shorter and closer to steepest descent. Increase it until a step
        // improves the fit.
        for (; !moves && damping < 1e12; damping *= 10) {
            std::vector<std::vector<double>> matrix(free.size(), std::vector<double>(free.size()));
            std::vector<double> right(free.size());
            for (std::size_t i = 0; i < free.size(); ++i) {
                for (std::size_t j = 0; j < free.size(); ++j)
                    matrix[i][j] = dot(columns[free[i]], columns[free[j]]) * (i == j ? 1 + damping : 1);
                right[i] = -dot(columns[free[i]], now);
            }
            const std::vector<double> step = solve(std::move(matrix), std::move(right));
            std::vector<double> tried = logs;
            for (std::size_t i = 0; i < free.size(); ++i) tried[free[i]] += std::clamp(step[i], -1.0, 1.0);
            std::vector<double> then = deviations(measurements, tried);
            if (!(dot(then, then) < dot(now, now))) continue;
            logs = std::move(tried);
            now = std::move(then);
            moves = true;
        }
        damping = std::max(damping * 1e-2, 1e-12);
    }
    fit.constants = constants_of(logs);
    const auto columns = derivatives(measurements, logs);
    std::size_t i = 0;
    visit_constants(start, [&](const char* name, double, double, const char*) {
        if (dot(columns[i], columns[i]) == 0) fit.undetermined.emplace_back(name);
        ++i;
    });
    return fit;
}

}  // namespace gradtile
