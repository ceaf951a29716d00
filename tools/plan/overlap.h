#pragma once
/// The run time for two queues that wait for each other's pieces: a GPU's computation and its collectives.
#include <cstddef>
#include <optional>
#include <span>

namespace gradtile {

struct QueuedPiece {
    double seconds = 0;
    std::optional<std::size_t> after = {};  ///< the other queue's piece that must finish first
};

/// Returns the seconds until both queues are done; each queue runs its pieces in order. While a transfer
/// runs, the computation needs `1 + contention` seconds for one second's work. Throws Error when the queues
/// wait for each other forever.
double overlapped_seconds(std::span<const QueuedPiece> computation, std::span<const QueuedPiece> transfers,
                          double contention);

}  // namespace gradtile
