#pragma once
/// INTERNAL. Records one algorithm pass as a Trace.
#include <map>

#include <gradtile/tools/lab/internal/slow_memory.h>
#include <gradtile/tools/lab/trace.h>

namespace gradtile::attention::lab {

class TraceRecorder : public cpu::tiled::MemoryObserver {
  public:
    /// `steps_before` counts the steps in earlier traces. Throws Error when all traces together have more
    /// than `max_steps` steps.
    TraceRecorder(const SlowMemory& slow, std::int64_t steps_before, std::int64_t max_steps)
        : slow_(slow), steps_before_(steps_before), max_steps_(max_steps) {}
    /// Returns the trace. Its member `measurement` is not set.
    Trace take();

    void allocated(const char* name, const void* data, std::size_t offset, std::int64_t rows,
                   std::int64_t columns, std::size_t element_bytes) override;
    void released(std::size_t offset) override;
    void moved(Transfer transfer, const cpu::tiled::SlowRegion& region, const void* fast,
               cpu::tiled::SourceLine where) override;
    void computed(const void* result, IndexRange rows, IndexRange keys,
                  cpu::tiled::SourceLine where) override;
    void updated_statistics(std::int64_t row, double maximum, double sum,
                            cpu::tiled::SourceLine where) override;
    void entered(cpu::tiled::SourceLine caller) override;
    void returned() override { callers_.pop_back(); }

  private:
    struct LiveTile {
        const void* data;
        int index;  ///< index into Trace::tiles
    };
    std::int64_t step_count() const { return static_cast<std::int64_t>(trace_.steps.size()); }
    int line_index(cpu::tiled::SourceLine where);
    int tile_index(const void* data) const;
    int matrix_index(const SlowMemory::Matrix& matrix);
    void add(TraceStep step, cpu::tiled::SourceLine where);

    const SlowMemory& slow_;
    std::int64_t steps_before_, max_steps_;
    Trace trace_;
    std::vector<LiveTile> live_;
    std::map<int, int> matrices_;  ///< maps SlowMemory::Matrix::id to an index into Trace::matrices
    std::vector<int> callers_;
};

}  // namespace gradtile::attention::lab
