#include <gradtile/tools/bench/attention_tuning.h>

#include <algorithm>

#include <gradtile/core/check.h>
#include <gradtile/core/cuda_runtime.h>
#include <gradtile/core/tensor_ops.h>

namespace gradtile::cli {
namespace {

using attention::FlashPlan;

/// Numbers that do not apply to a plan are 0.
Cell number(int value) {
    return value > 0 ? static_cast<double>(value) : no_value;
}
Cell words(const std::optional<bool>& value, const char* yes, const char* no) {
    return !value ? "-" : *value ? yes : no;
}

std::vector<Cell> cells_of(const FlashPlan& plan) {
    const attention::Tiles& tiles = plan.tiles;
    const attention::Schedule& schedule = plan.schedule;
    const attention::FewQueriesPlan& few_queries = schedule.few_queries;
    return {concat(plan.family),
            number(tiles.consumers),
            number(few_queries ? few_queries.rows : tiles.rows),
            number(tiles.keys),
            number(tiles.stages),
            number(tiles.q_stages),
            tiles.q_stages == 0    ? "-"
            : tiles.q_in_registers ? "registers"
                                   : "memory",
            words(tiles.in_turns, "yes", "no"),
            words(schedule.pairs, "pairs", "blocks"),
            number(schedule.set_heads()),
            schedule.d_q_addition ? Cell(concat(*schedule.d_q_addition)) : Cell("-"),
            number(schedule.ring_slots),
            number(few_queries ? few_queries.splits : 0)};
}

}  // namespace

std::vector<Column> tuning_columns() {
    return {{"pass", "pass", Column::Kind::text, 8},
            {"kernels", "kernels", Column::Kind::text, 18},
            {"consumers", "warpgroups", Column::Kind::number, 10},
            {"rows", "rows", Column::Kind::number, 4},
            {"keys", "keys", Column::Kind::number, 4},
            {"stages", "stages", Column::Kind::number, 6},
            {"q_stages", "of Q", Column::Kind::number, 4},
            {"q", "Q", Column::Kind::text, 9},
            {"in_turns", "turns", Column::Kind::text, 5},
            {"tasks", "tasks", Column::Kind::text, 6},
            {"set_heads", "set", Column::Kind::number, 5},
            {"sums", "sums", Column::Kind::text, 7},
            {"slots", "slots", Column::Kind::number, 5},
            {"splits", "splits", Column::Kind::number, 6},
            {"ms", "ms"},
            {"tflops", "TFLOP/s"},
            {"of_policy", "speed", Column::Kind::percent, 7},
            {"of_bound", "of bound", Column::Kind::percent, 8},
            {"choice", "choice", Column::Kind::text, 6}};
}

void tune(const Context& ctx, const TunedPass& pass, const Sampling& sampling, const std::vector<Cell>& shape,
          Table& table) {
    const Context cpu(Device::cpu());
    const auto on_host = [&](const TunedResult& result) {
        const Tensor x = result.tensor(), copy = empty(cpu, x.shape(), x.dtype());
        if (x.elements() == 0) return copy;
        cuda::copy_bytes(copy.raw_data(), x.raw_data(), x.bytes(), ctx.device(), ctx.stream());
        cuda::synchronize(ctx.device(), ctx.stream());
        return copy;
    };
    std::vector<Tensor> expected;
    std::string excess;  // the first result beyond its bound
    std::vector<double> fractions;
    std::vector<std::function<void()>> runs;
    for (const FlashPlan& plan : pass.plans) {
        runs.emplace_back([&] { pass.run(plan.choice); });
        runs.back()();
        double largest = 0;
        for (std::size_t i = 0; i < pass.results.size(); ++i) {
            const TunedResult& result = pass.results[i];
            const Tensor x = on_host(result);
            if (runs.size() == 1) expected.push_back(x);
            const double fraction = attention::fraction_of_bound(cpu, x, expected[i], result.bound);
            if (fraction > 1 && excess.empty())
                excess = concat(pass.name, " by ", plan, ": ", result.name, " differs from the policy's by ",
                                fraction, " times the bound");
            largest = std::max(largest, fraction);
        }
        fractions.push_back(largest);
    }
    const std::vector<double> ms = interleaved_milliseconds(ctx, sampling, runs);
    const auto fastest = static_cast<std::size_t>(std::ranges::min_element(ms) - ms.begin());
    for (std::size_t i = 0; i < ms.size(); ++i) {
        std::vector<Cell> cells = shape;
        cells.emplace_back(pass.name);
        for (const Cell& cell : cells_of(pass.plans[i])) cells.push_back(cell);
        cells.emplace_back(ms[i]);
        cells.emplace_back(1e-9 * pass.flops / ms[i]);
        cells.emplace_back(ms[0] / ms[i]);
        cells.emplace_back(fractions[i]);
        cells.emplace_back(i == 0 ? "policy" : i == fastest ? "fastest" : "");
        table.add(cells);
    }
    check(excess.empty(), "bench attention: ", excess);
}

}  // namespace gradtile::cli
