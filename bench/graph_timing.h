#pragma once
/// Times calls on a GPU in CUDA graphs, so that launches by the host take no part.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include <gradtile/core/cuda/step_graph.h>
#include <gradtile/core/event.h>

namespace gradtile::bench {

/// Median microseconds of call(i): seven times, a graph of call(0) to call(calls - 1) runs twice, and the
/// second run is timed.
inline double graph_microseconds(const Context& ctx, std::int64_t calls,
                                 const std::function<void(std::int64_t)>& call) {
    const auto all = [&] {
        for (std::int64_t i = 0; i < calls; ++i) call(i);
    };
    all();
    StepGraph graph;
    graph.capture(ctx, all);
    std::vector<double> times;
    for (int run = 0; run < 7; ++run) {
        const cuda::Event begin(ctx.device()), end(ctx.device());
        graph.replay(ctx);
        begin.record(ctx.stream());
        graph.replay(ctx);
        end.record(ctx.stream());
        times.push_back(1e3 * end.milliseconds_since(begin) / static_cast<double>(calls));
    }
    std::ranges::nth_element(times, times.begin() + 3);
    return times[3];
}

}  // namespace gradtile::bench
