#pragma once
/// Event: a mark in a stream. Another stream can wait for an event, and the time between two events can be
/// measured.
#include <gradtile/core/allocator.h>

namespace gradtile::cuda {

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

}  // namespace gradtile::cuda
