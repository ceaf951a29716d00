#pragma once
/// Event: a mark in a stream. Another stream can wait for it, and the time between two of them can be
/// measured.
#include <gradtile/core/device.h>

namespace gradtile::cuda {

class Event {
  public:
    explicit Event(Device device);
    ~Event();
    Event(const Event&) = delete;
    Event& operator=(const Event&) = delete;

    /// Sets the mark behind the work enqueued on a stream (cudaStream_t) so far.
    void record(void* stream) const;
    /// Work enqueued on `stream` from now on runs after the work before the mark.
    void wait_in(void* stream) const;
    /// Waits until the device has come to this mark.
    double milliseconds_since(const Event& start) const;

  private:
    void* event_ = nullptr;  // cudaEvent_t
};

}  // namespace gradtile::cuda
