#pragma once
/// SideStream: a second stream for work that runs concurrently with a context's stream, and the
/// synchronisation between both streams. On the CPU, every call finishes its work before it returns, so
/// nothing needs to synchronise. Event: a mark in a stream.
#include <memory>
#include <optional>

#include <gradtile/core/context.h>

namespace gradtile {
namespace cuda {

/// Another stream can wait for an event, and the time between two events can be measured.
class Event {
  public:
    explicit Event(Device device);
    ~Event();
    Event(const Event&) = delete;
    Event& operator=(const Event&) = delete;

    /// Marks the end of the work that is enqueued on a stream (cudaStream_t) so far.
    void record(void* stream) const;
    /// Work that is enqueued on `stream` later waits for the work before the mark.
    void wait_in(void* stream) const;
    /// Waits until the device has reached this mark. Returns the time since `start`.
    double milliseconds_since(const Event& start) const;

  private:
    void* event_ = nullptr;  // cudaEvent_t
};

}  // namespace cuda

class SideStream {
  public:
    /// On a GPU, the side stream has the higher priority, because its work is short or the main stream waits
    /// for it.
    explicit SideStream(Device device);

    /// Returns ctx with the side stream. Work enqueued on the returned context runs after the work that is
    /// already on ctx's stream, and concurrently with later work on ctx's stream. The returned context must
    /// not run matrix products, because they would share a workspace. Arena memory that its work uses must
    /// not be freed before join().
    Context after(const Context& ctx) const;
    /// Makes later work on ctx's stream wait for all work on the side stream.
    void join(const Context& ctx) const;

  private:
    std::shared_ptr<void> stream_;  // cudaStream_t
    std::optional<cuda::Event> forked_, done_;
};

}  // namespace gradtile
