#pragma once
/// Rings whose ranks are threads of one process.
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include <gradtile/attention/ring_attention.h>
#include <gradtile/core/tensor_ops.h>

namespace gradtile::test {

class ThreadRing final : public attention::Ring {
  public:
    /// The messages to each rank.
    struct Mailboxes {
        explicit Mailboxes(int ranks) : messages(static_cast<std::size_t>(ranks)) {}
        std::mutex mutex;
        std::condition_variable changed;
        std::vector<std::deque<std::vector<double>>> messages;
    };

    ThreadRing(int rank, int size, Mailboxes& mailboxes) : Ring(rank, size), mailboxes_(mailboxes) {}

  private:
    void do_start_shift(const Context& ctx, const Tensor& sent, const Tensor& received) const override {
        // Float64 holds the values of every dtype. Until the shift ends, nobody may read `received`.
        std::vector<double> values = to_host(ctx, sent);
        fill(ctx, received, std::numeric_limits<double>::quiet_NaN());
        const std::lock_guard lock(mailboxes_.mutex);
        mailboxes_.messages[static_cast<std::size_t>((rank() + 1) % size())].push_back(std::move(values));
        mailboxes_.changed.notify_all();
        awaited_.push_back(received);
    }
    void do_finish_shifts(const Context& ctx) const override {
        for (const Tensor& received : awaited_) {
            std::unique_lock lock(mailboxes_.mutex);
            auto& own = mailboxes_.messages[static_cast<std::size_t>(rank())];
            mailboxes_.changed.wait(lock, [&] { return !own.empty(); });
            copy(ctx, received, from_host(ctx, own.front(), received.shape(), received.dtype()));
            own.pop_front();
        }
        awaited_.clear();
    }

    Mailboxes& mailboxes_;
    mutable std::vector<Tensor> awaited_;
};

/// Calls body(ring) on one thread for each rank. Afterwards throws the first rank's error, if there is one. A
/// body must fail on all ranks or on none, else the others wait forever.
inline void on_thread_ring(int ranks, const std::function<void(const attention::Ring& ring)>& body) {
    ThreadRing::Mailboxes mailboxes(ranks);
    std::vector<std::exception_ptr> errors(static_cast<std::size_t>(ranks));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank)
        threads.emplace_back([&, rank] {
            try {
                body(ThreadRing(rank, ranks, mailboxes));
            } catch (...) {
                errors[static_cast<std::size_t>(rank)] = std::current_exception();
            }
        });
    for (std::thread& thread : threads) thread.join();
    for (const std::exception_ptr& error : errors)
        if (error) std::rethrow_exception(error);
}

}  // namespace gradtile::test
