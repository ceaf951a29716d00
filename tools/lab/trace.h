#pragma once
/// Recorded runs of the lab's attention algorithms, for `gradtile lab --html`. The checked memory that counts
/// loads and stores also records them. Each record contains the source line that caused it.
#include <cstdint>
#include <string>
#include <vector>

#include <gradtile/attention/mask.h>
#include <gradtile/tools/lab/lab.h>

namespace gradtile::attention::lab {

/// A matrix in slow memory.
struct TracedMatrix {
    std::string name;  ///< Q, K, V, O, S, ...
    std::int64_t rows = 0, columns = 0;
};

/// A matrix in fast memory. It exists during the steps [first_step, end_step).
struct TracedTile {
    std::string name;
    std::int64_t offset = 0, bytes = 0;  ///< place in the fast memory, in bytes
    std::int64_t rows = 0, columns = 0;
    std::int64_t first_step = 0, end_step = 0;
};

/// A line of the algorithms' sources.
struct TracedLine {
    std::string file;  ///< path in the repository, for example attention/cpu/tiled/flash1.h
    int line = 0;      ///< counted from 1
    friend bool operator==(const TracedLine&, const TracedLine&) = default;
};

struct TraceStep {
    enum class Kind {
        load,       ///< the `matrix` block (`rows`, `columns`) is copied to `tile`
        store,      ///< `tile` is copied to the `matrix` block (`rows`, `columns`)
        compute,    ///< `tile` is computed from the pairs (query `rows`, key `columns`); both may be empty
        statistics  ///< running maxima and sums are updated for some rows: see RowUpdate
    };
    Kind kind = Kind::load;
    int line = 0;     ///< index into Trace::lines
    int caller = -1;  ///< the line that called the operation to which `line` belongs; -1: none
    int tile = -1, matrix = -1;
    IndexRange rows{}, columns{};
};

/// The running maximum and sum of one softmax row after a step.
struct RowUpdate {
    std::int64_t step = 0, row = 0;
    double maximum = 0, sum = 0;
};

/// One pass of one algorithm.
struct Trace {
    Measurement measurement;
    std::vector<TracedMatrix> matrices;
    std::vector<TracedTile> tiles;
    std::vector<TracedLine> lines;
    std::vector<TraceStep> steps;
    std::vector<RowUpdate> updates;  ///< in step order
};

/// Runs the same algorithms as measure_attention() and records their steps. Throws Error if the passes have
/// more than `max_steps` steps together.
std::vector<Trace> trace_attention(const Setup& setup, std::int64_t max_steps);

}  // namespace gradtile::attention::lab
