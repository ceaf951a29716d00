#pragma once
/// A communicator for tests that need two processes but no exchange.
#include <gradtile/train/parallel/communicator.h>

namespace gradtile::test {

/// Process 1 of 2, which receives nothing.
class SilentRing final : public attention::Ring {
  public:
    SilentRing() : Ring(1, 2) {}

  private:
    void do_start_shift(const Context&, const Tensor&, const Tensor&) const override {}
    void do_finish_shifts(const Context&) const override {}
};

/// Process 1 of 2, which exchanges nothing.
class SilentPair : public Communicator {
  public:
    SilentPair() : Communicator(1, 2) {}

  private:
    void do_all_reduce(const Context&, const Tensor&) const override {}
    void do_reduce_scatter(const Context&, const Tensor&, const Tensor&) const override {}
    void do_all_gather(const Context&, const Tensor&, const Tensor&) const override {}
    void do_broadcast(const Context&, const Tensor&, int) const override {}
    void do_barrier(const Context&) const override {}
    std::unique_ptr<attention::Ring> make_ring(const Context&, int) const override {
        return std::make_unique<SilentRing>();
    }
};

}  // namespace gradtile::test
