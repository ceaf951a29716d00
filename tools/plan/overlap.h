#pragma once
/// The run time of two queues that wait for each other's pieces: a GPU's computation and its collectives.
#include <cstddef>
#include <optional>
#include <span>

namespace gradtile {

struct QueuedPiece {
    double seconds = 0;
    std::optional<std::size_t> after = {};  ///< piece of the other queue that must finish first
};

/// Returns the seconds until both queues are done; each queue runs its pieces in order. While a transfer
/// runs, `1 + contention` seconds of computation do the work of one second. Throws Error when the queues wait
/// for each other forever.
double overlapped_seconds(std::span<const QueuedPiece> computation, std::span<const QueuedPiece> transfers,
                          double contention);

}  // namespace gradtile
