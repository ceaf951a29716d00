// Collectives between processes on CPUs. A ByteTransport moves the bytes. The sums are computed here, in rank
// order, so that results depend neither on the transport nor on the algorithm that an MPI library chooses for
// a message size.
#include <algorithm>
#include <vector>

#include <gradtile/core/tensor_ops.h>
#include <gradtile/train/parallel/internal/byte_transport.h>
#include <gradtile/train/parallel/internal/communicator_backend.h>

namespace gradtile {
namespace {

using cpu::ByteParts;
using cpu::ByteTransport;

/// Upper bound on the bytes in one exchange, over all processes. MPI counts bytes and offsets in int, and a
/// small bound keeps scratch memory small.
constexpr std::int64_t max_exchange_bytes = 32 << 20;

/// n elements divided into one share per process. Shares are equal, but the last shares may be shorter or
/// empty.
struct Shares {
    std::int64_t n, share;
    Shares(std::int64_t n, int processes) : n(n), share(ceil_div(n, processes)) {}
    std::int64_t begin(int r) const { return std::min(n, r * share); }
    std::int64_t length(int r) const { return begin(r + 1) - begin(r); }
};

template <class T>
T rounded_sum(const std::vector<std::byte>& received, std::int64_t stride, std::int64_t i, int processes) {
    const T* const values = reinterpret_cast<const T*>(received.data());
    if constexpr (std::is_integral_v<T>) {
        T sum = 0;
        for (int r = 0; r < processes; ++r) sum += values[r * stride + i];
        return sum;
    } else {
        using Real = Accumulator<T>;
        Real sum = 0;
        for (int r = 0; r < processes; ++r) sum += convert<Real>(values[r * stride + i]);
        return convert<T>(sum);
    }
}

template <class Visit>
void visit_summable(DType dtype, Visit&& visit) {
    if (dtype == DType::i32) {
        visit(TypeTag<std::int32_t>{});
    } else {
        visit_floating(dtype, std::forward<Visit>(visit));
    }
}

/// `processes` neighbouring ranks.
class CpuRing final : public attention::Ring {
  public:
    CpuRing(ProcessGroup& group, ByteTransport& transport, int processes)
        : Ring(group.rank() % processes, processes),
          group_(group),
          transport_(transport),
          first_(group.rank() - rank()) {}

  private:
    void do_start_shift(const Context&, const Tensor& sent, const Tensor& received) const override {
        const auto bytes = static_cast<std::int64_t>(sent.bytes());
        const int next = first_ + (rank() + 1) % size(), previous = first_ + (rank() + size() - 1) % size();
        for (std::int64_t begin = 0; begin < bytes; begin += max_exchange_bytes)
            transport_.start_transfer(sent.raw_data() + begin, next, received.raw_data() + begin, previous,
                                      static_cast<int>(std::min(max_exchange_bytes, bytes - begin)));
    }
    void do_finish_shifts(const Context&) const override {
        const auto waiting = group_.waiting("a shift in a ring");
        transport_.finish_transfers();
    }

    ProcessGroup& group_;
    ByteTransport& transport_;
    int first_;  // the ring's first rank in the group
};

class CpuCommunicator final : public Communicator {
  public:
    CpuCommunicator(ProcessGroup& group, std::unique_ptr<ByteTransport> transport)
        : Communicator(group.rank(), group.size()), group_(group), transport_(std::move(transport)) {}

    bool can_reconnect() const override { return transport_->can_reconnect(); }
    void reconnect() override {
        if (!can_reconnect()) Communicator::reconnect();
        transport_->reconnect();
    }

  private:
    void do_all_reduce(const Context& ctx, const Tensor& x) const override {
        const auto waiting = group_.waiting("an all-reduce");
        const std::int64_t piece = max_exchange_elements(x);
        for (std::int64_t begin = 0; begin < x.elements(); begin += piece) {
            const Tensor part = flat(x).slice(0, begin, std::min(piece, x.elements() - begin));
            const Shares shares(part.elements(), size());
            const Tensor mine = part.slice(0, shares.begin(rank()), shares.length(rank()));
            sum_share(ctx, part, shares, mine);
            gather_shares(part, shares);
        }
    }

    void do_reduce_scatter(const Context& ctx, const Tensor& full, const Tensor& part) const override {
        const auto waiting = group_.waiting("a reduce-scatter");
        // The buffer holds `piece` elements of every process's part at a time, without gaps. Memory plans do
        // not count the buffer.
        const Tensor parts = full.reshape({size(), part.elements()});
        const std::int64_t piece =
            std::min(part.elements(), std::max<std::int64_t>(max_exchange_elements(full) / size(), 1));
        std::vector<std::byte> memory(static_cast<std::size_t>(size() * piece) * size_of(full.dtype()));
        for (std::int64_t begin = 0; begin < part.elements(); begin += piece) {
            const std::int64_t length = std::min(piece, part.elements() - begin);
            const Tensor pieces = Tensor::from_blob(memory.data(), {size(), length}, full.dtype());
            copy(ctx, pieces, parts.slice(1, begin, length));
            sum_share(ctx, flat(pieces), Shares(pieces.elements(), size()),
                      flat(part).slice(0, begin, length));
        }
    }

    void do_all_gather(const Context&, const Tensor& part, const Tensor& full) const override {
        const auto waiting = group_.waiting("an all-gather");
        const Tensor parts = full.reshape({size(), part.elements()});
        const Tensor mine = parts.select(0, rank());
        if (mine.raw_data() != part.raw_data()) std::copy_n(part.raw_data(), part.bytes(), mine.raw_data());
        for (int r = 0; r < size(); ++r) send_bytes(parts.select(0, r), r);
    }

    void do_broadcast(const Context&, const Tensor& x, int root) const override {
        const auto waiting = group_.waiting("a broadcast");
        send_bytes(x, root);
    }

    void do_barrier(const Context&) const override {
        const auto waiting = group_.waiting("a barrier");
        transport_->barrier();
    }

    std::unique_ptr<attention::Ring> make_ring(const Context&, int processes) const override {
        return std::make_unique<CpuRing>(group_, *transport_, processes);
    }

    static Tensor flat(const Tensor& x) { return x.reshape({x.elements()}); }
    static std::int64_t max_exchange_elements(const Tensor& x) {
        return max_exchange_bytes / static_cast<std::int64_t>(size_of(x.dtype()));
    }

    /// `mine` = this process's share of the sum of all processes' x.
    void sum_share(const Context& ctx, const Tensor& x, const Shares& shares, const Tensor& mine) const {
        const auto element = static_cast<std::int64_t>(size_of(x.dtype()));
        ByteParts received_parts;
        for (int r = 0; r < size(); ++r) {
            received_parts.sizes.push_back(static_cast<int>(element * mine.elements()));
            received_parts.offsets.push_back(static_cast<int>(element * mine.elements() * r));
        }
        std::vector<std::byte> received(static_cast<std::size_t>(element * mine.elements() * size()));
        transport_->all_to_all(x.raw_data(), byte_parts(shares, element), received.data(), received_parts);
        visit_summable(x.dtype(), [&]<class T>(TypeTag<T>) {
            parallel_ranges(ctx, mine.elements(), 1 << 14, [&](std::int64_t begin, std::int64_t end) {
                for (std::int64_t i = begin; i < end; ++i)
                    mine.data<T>()[i] = rounded_sum<T>(received, mine.elements(), i, size());
            });
        });
    }

    ByteParts byte_parts(const Shares& shares, std::int64_t element) const {
        ByteParts parts;
        for (int r = 0; r < size(); ++r) {
            parts.sizes.push_back(static_cast<int>(element * shares.length(r)));
            parts.offsets.push_back(static_cast<int>(element * shares.begin(r)));
        }
        return parts;
    }

    void gather_shares(const Tensor& x, const Shares& shares) const {
        transport_->all_gather(x.raw_data(),
                               byte_parts(shares, static_cast<std::int64_t>(size_of(x.dtype()))));
    }

    void send_bytes(const Tensor& x, int root) const {
        const auto bytes = static_cast<std::int64_t>(x.bytes());
        for (std::int64_t begin = 0; begin < bytes; begin += max_exchange_bytes)
            transport_->broadcast(x.raw_data() + begin,
                                  static_cast<int>(std::min(max_exchange_bytes, bytes - begin)), root);
    }

    ProcessGroup& group_;
    std::unique_ptr<ByteTransport> transport_;
};

}  // namespace

std::unique_ptr<Communicator> cpu::make_cpu_communicator(ProcessGroup& group) {
    const std::string& launcher = group.environment().launcher;
    const bool has_mpi = launcher == "mpirun" || launcher == "srun";
    return std::make_unique<CpuCommunicator>(
        group, has_mpi ? make_mpi_transport(group) : make_socket_transport(group));
}

}  // namespace gradtile
