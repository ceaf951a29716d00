#pragma once
/// DeviceSnapshot: a copy of tensors on a GPU that the stream which changes them waits for only as long as a
/// copy inside the device's memory takes; the way to the host goes beside it.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <gradtile/core/context.h>

namespace gradtile {

/// One stretch of device memory and where it stands in the snapshot.
struct SnapshotPart {
    const std::byte* from;
    std::uint64_t at;  ///< byte of the snapshot; a multiple of 16
    std::uint64_t bytes;
    bool operator==(const SnapshotPart&) const = default;
};

/// take() is called by the thread that trains; download() by any, and before the next take().
class DeviceSnapshot {
  public:
    /// Of tensors that ctx's stream changes.
    explicit DeviceSnapshot(const Context& ctx);
    ~DeviceSnapshot();
    DeviceSnapshot(const DeviceSnapshot&) = delete;
    DeviceSnapshot& operator=(const DeviceSnapshot&) = delete;

    /// Gets everything that take() of the same parts would otherwise get first.
    void reserve(const std::vector<SnapshotPart>& parts);
    /// Enqueues the copy inside the device on the stream and returns.
    void take(const std::vector<SnapshotPart>& parts);
    /// Waits for the copy and brings the snapshot to the host, on a stream of its own.
    void download(std::byte* to, std::uint64_t bytes);
    /// How long the copy inside the device took; known after download().
    double seconds_on_stream() const;

  private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace gradtile
