#include <gradtile/tools/plan/overlap.h>

#include <algorithm>

#include <gradtile/core/check.h>

namespace gradtile {
namespace {

class Queue {
  public:
    explicit Queue(std::span<const QueuedPiece> pieces) : pieces_(pieces) { begin_piece(); }

    bool done() const { return next_ == pieces_.size(); }
    bool can_run_with(const Queue& other) const {
        return !done() && (!pieces_[next_].after || *pieces_[next_].after < other.next_);
    }
    double left() const { return left_; }
    void advance(double seconds) {
        left_ -= seconds;
        if (left_ > 0) return;
        ++next_;
        begin_piece();
    }

  private:
    void begin_piece() { left_ = done() ? 0 : pieces_[next_].seconds; }
    std::span<const QueuedPiece> pieces_;
    std::size_t next_ = 0;
    double left_ = 0;  // the current piece's remaining seconds, without contention
};

}  // namespace

double overlapped_seconds(std::span<const QueuedPiece> computation, std::span<const QueuedPiece> transfers,
                          double contention) {
    Queue compute(computation), transfer(transfers);
    double now = 0;
    while (!compute.done() || !transfer.done()) {
        const bool computes = compute.can_run_with(transfer), sends = transfer.can_run_with(compute);
        check(computes || sends, "overlap: each queue waits for the other");
        const double slowdown = computes && sends ? 1 + contention : 1;
        // Runs until either piece ends. Exactly 0 seconds of that piece are then left.
        const double compute_end = computes ? compute.left() * slowdown : transfer.left();
        const double transfer_end = sends ? transfer.left() : compute_end;
        const double seconds = std::min(compute_end, transfer_end);
        if (computes) compute.advance(compute_end <= seconds ? compute.left() : seconds / slowdown);
        if (sends) transfer.advance(transfer_end <= seconds ? transfer.left() : seconds);
        now += seconds;
    }
    return now;
}

}  // namespace gradtile
