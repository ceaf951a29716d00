#pragma once
/// DeviceSnapshot: a copy of tensors on a GPU. The training stream waits only for a copy within the device's
/// memory; the transfer to the host runs on another stream. A device without room for this copy writes it to
/// the host at once, and the training stream waits for the bus.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <gradtile/core/context.h>

namespace gradtile {

/// A device memory range and its place in the snapshot.
struct SnapshotPart {
    const std::byte* from;
    std::uint64_t offset;  ///< offset in the snapshot; a multiple of 16
    std::uint64_t bytes;
    bool operator==(const SnapshotPart&) const = default;
};

/// The training thread calls take(). Any thread may call download(), but only before the next take().
class DeviceSnapshot {
  public:
    /// Makes snapshots of tensors that the work on ctx's stream changes.
    explicit DeviceSnapshot(const Context& ctx);
    ~DeviceSnapshot();
    DeviceSnapshot(const DeviceSnapshot&) = delete;
    DeviceSnapshot& operator=(const DeviceSnapshot&) = delete;

    /// Allocates the memory that take() needs for the same arguments, so that the first take() allocates
    /// nothing.
    void reserve(const std::vector<SnapshotPart>& parts, std::byte* host = nullptr);
    /// Enqueues the copy on the stream and returns: a copy within the device, or to `host`, page-locked
    /// memory.
    void take(const std::vector<SnapshotPart>& parts, std::byte* host = nullptr);
    /// Waits for the copy. If it is on the device, transfers it to the host on a separate stream.
    void download(std::byte* to, std::uint64_t bytes);
    /// Returns how long the copy took; valid after download().
    double seconds_on_stream() const;

  private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace gradtile
