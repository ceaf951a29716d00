#include <gradtile/core/check.h>
#include <gradtile/tools/lab/internal/trace_recorder.h>

namespace gradtile::attention::lab {

using cpu::tiled::SlowRegion;
using cpu::tiled::SourceLine;

Trace TraceRecorder::take() {
    released(0);
    return std::move(trace_);
}

void TraceRecorder::allocated(const char* name, const void* data, std::size_t offset, std::int64_t rows,
                              std::int64_t columns, std::size_t element_bytes) {
    live_.push_back({data, static_cast<int>(trace_.tiles.size())});
    trace_.tiles.push_back({.name = name,
                            .offset = static_cast<std::int64_t>(offset),
                            .bytes = rows * columns * static_cast<std::int64_t>(element_bytes),
                            .rows = rows,
                            .columns = columns,
                            .first_step = step_count()});
}

void TraceRecorder::released(std::size_t offset) {
    while (!live_.empty()) {
        TracedTile& tile = trace_.tiles[static_cast<std::size_t>(live_.back().index)];
        if (tile.offset < static_cast<std::int64_t>(offset)) return;
        tile.end_step = step_count();
        live_.pop_back();
    }
}

void TraceRecorder::moved(Transfer transfer, const SlowRegion& region, const void* fast, SourceLine where) {
    const SlowMemory::Matrix& matrix = slow_.matrix_at(region.data);
    const auto first =
        (static_cast<const std::byte*>(region.data) - static_cast<const std::byte*>(matrix.data)) /
        static_cast<std::int64_t>(region.element_bytes);
    const std::int64_t row = first / matrix.columns, column = first % matrix.columns;
    add({.kind = transfer == Transfer::load ? TraceStep::Kind::load : TraceStep::Kind::store,
         .tile = tile_index(fast),
         .matrix = matrix_index(matrix),
         .rows = {row, row + region.rows},
         .columns = {column, column + region.columns}},
        where);
}

void TraceRecorder::computed(const void* result, IndexRange rows, IndexRange keys, SourceLine where) {
    add({.kind = TraceStep::Kind::compute, .tile = tile_index(result), .rows = rows, .columns = keys}, where);
}

/// All rows that one loop updates form one step.
void TraceRecorder::updated_statistics(std::int64_t row, double maximum, double sum, SourceLine where) {
    const bool continues = !trace_.steps.empty() && trace_.steps.back().kind == TraceStep::Kind::statistics &&
                           trace_.steps.back().line == line_index(where);
    if (continues) {
        trace_.steps.back().rows.end = row + 1;
    } else {
        add({.kind = TraceStep::Kind::statistics, .rows = {row, row + 1}}, where);
    }
    trace_.updates.push_back({.step = step_count() - 1, .row = row, .maximum = maximum, .sum = sum});
}

void TraceRecorder::entered(SourceLine caller) {
    callers_.push_back(line_index(caller));
}

void TraceRecorder::add(TraceStep step, SourceLine where) {
    check(steps_before_ + step_count() < max_steps_, "lab: a trace of more than ", max_steps_,
          " steps; give a shorter length or a larger fast memory");
    step.line = line_index(where);
    step.caller = callers_.empty() ? -1 : callers_.back();
    trace_.steps.push_back(step);
}

int TraceRecorder::line_index(SourceLine where) {
    const std::string path = where.file_name();
    std::size_t root = 0;  // where the path relative to the project begins
    for (const std::string_view folder : {"/attention/cpu/", "/tools/lab/"})
        if (const std::size_t found = path.rfind(folder); found != std::string::npos) root = found + 1;
    const TracedLine line{path.substr(root), static_cast<int>(where.line())};
    const auto known = std::find(trace_.lines.begin(), trace_.lines.end(), line);
    const auto index = static_cast<int>(known - trace_.lines.begin());
    if (known == trace_.lines.end()) trace_.lines.push_back(line);
    return index;
}

int TraceRecorder::tile_index(const void* data) const {
    for (auto tile = live_.rbegin(); tile != live_.rend(); ++tile)
        if (tile->data == data) return tile->index;
    throw Error("lab: no matrix of the fast memory has this address");
}

int TraceRecorder::matrix_index(const SlowMemory::Matrix& matrix) {
    const auto [entry, is_new] = matrices_.emplace(matrix.id, static_cast<int>(trace_.matrices.size()));
    if (is_new) trace_.matrices.push_back({matrix.name, matrix.rows, matrix.columns});
    return entry->second;
}

}  // namespace gradtile::attention::lab
