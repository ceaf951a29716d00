#pragma once
/// SIGTERM and SIGUSR1 as requests: a trainer asks between steps, finishes cleanly and saves.

namespace gradtile {

/// While one lives, the first SIGTERM or SIGUSR1 is remembered and a second one of the same kind ends the
/// process at once with the status 128 + its number. (Of the other kind it does not: a launcher passes
/// SIGTERM on as SIGUSR1 to processes that may have been sent SIGTERM, too.) SIGXFSZ is ignored meanwhile: a
/// save beyond the limit on file sizes then fails with an error like one on a full disk. The former handlers
/// come back with the destructor. At most one at a time.
class StopSignals {
  public:
    StopSignals();
    ~StopSignals();
    StopSignals(const StopSignals&) = delete;
    StopSignals& operator=(const StopSignals&) = delete;

    bool requested() const { return signal() != 0; }
    /// The signal that came; 0: none yet.
    int signal() const;
};

}  // namespace gradtile
