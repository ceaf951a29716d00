// Collectives between GPUs, one process per GPU.
#include <cstdlib>

#include <gradtile/core/internal/cuda_check.h>
#include <gradtile/core/side_stream.h>
#include <gradtile/train/parallel/internal/communicator_backend.h>
#include <gradtile/train/parallel/internal/nccl_connection.h>
#include <gradtile/train/parallel/internal/nccl_memory.h>

namespace gradtile::cuda {
namespace {

ncclDataType_t nccl_type(DType type) {
    switch (type) {
        case DType::f64:
            return ncclFloat64;
        case DType::f32:
            return ncclFloat32;
        case DType::bf16:
            return ncclBfloat16;
        case DType::f16:
            return ncclFloat16;
        case DType::i32:
            return ncclInt32;
    }
    throw Error("nccl: an unknown dtype");
}

/// Sets NCCL's environment variables; those that the user has set stay.
void configure_nccl(bool deterministic) {
    const auto set_default = [](const char* name, const char* value) {
        setenv(name, value, /*overwrite=*/0);
    };
    if (deterministic) {  // one algorithm fixes the summation order; NVLS would let the NVLink switch add
        set_default("NCCL_ALGO", "Ring");
        set_default("NCCL_PROTO", "Simple");
        set_default("NCCL_NVLS_ENABLE", "0");
    }
    // Settings for symmetric memory: gathers use the copy engines (policy 2). Sums are faster with 32 thread
    // blocks than with NCCL's default, which is fewer.
    set_default("NCCL_CTA_POLICY", "2");
    set_default("NCCL_SYM_CTAS", "32");
}

std::size_t count_of(const Tensor& x) {
    return static_cast<std::size_t>(x.elements());
}
cudaStream_t stream_of(const Context& ctx) {
    use_device(ctx.device());
    return static_cast<cudaStream_t>(ctx.stream());
}

/// `processes` neighbouring ranks. Shifts run on a stream of the ring's own, beside attention.
class NcclRing final : public attention::Ring {
  public:
    NcclRing(Device device, int rank, int processes, std::shared_ptr<const NcclConnection> connection)
        : Ring(rank % processes, processes),
          connection_(std::move(connection)),
          first_(rank - rank % processes),
          transfer_(device) {}

  private:
    void do_start_shift(const Context& ctx, const Tensor& sent, const Tensor& received) const override {
        const cudaStream_t stream = stream_of(transfer_.after(ctx));
        const int next = first_ + (rank() + 1) % size(), previous = first_ + (rank() + size() - 1) % size();
        connection_->call("shift", [&](ncclComm_t comm) {
            const ncclResult_t started = nccl().group_start();
            if (started != ncclSuccess) return started;
            const ncclResult_t sending =
                nccl().send(sent.raw_data(), count_of(sent), nccl_type(sent.dtype()), next, comm, stream);
            const ncclResult_t receiving = nccl().receive(
                received.raw_data(), count_of(received), nccl_type(received.dtype()), previous, comm, stream);
            const ncclResult_t ended =
                nccl().group_end();  // also after an error, so that no group stays open
            return sending != ncclSuccess ? sending : receiving != ncclSuccess ? receiving : ended;
        });
    }
    void do_finish_shifts(const Context& ctx) const override { transfer_.join(ctx); }

    std::shared_ptr<const NcclConnection> connection_;
    int first_;  // the ring's first rank in the group
    SideStream transfer_;
};

class NcclCommunicator final : public Communicator {
  public:
    NcclCommunicator(const Context& ctx, ProcessGroup& group)
        : Communicator(group.rank(), group.size()),
          connection_(std::make_shared<NcclConnection>(ctx, group)) {
        // A kernel that exchanges in symmetric memory cannot be aborted (NCCL 2.28 to 2.30).
        if (nccl().has_symmetric_memory() && !can_reconnect())
            symmetric_ = std::make_shared<NcclMemory>(ctx.device(), connection_, group);
    }

    bool can_reconnect() const override { return connection_->can_reconnect(); }
    void disconnect() override { connection_->disconnect(); }
    void reconnect() override {
        if (!can_reconnect()) Communicator::reconnect();
        connection_->connect();
    }
    void synchronize(const Context& ctx) const override {
        connection_->synchronize(ctx.stream(), "the end of an exchange");
    }
    Tensor interruption() const override { return connection_->interruption(); }
    std::shared_ptr<Allocator> symmetric_memory(const Context& ctx) const override {
        return symmetric_ ? symmetric_ : ctx.allocator();
    }

  private:
    void do_all_reduce(const Context& ctx, const Tensor& x) const override {
        connection_->call("all-reduce", [&](ncclComm_t comm) {
            return nccl().all_reduce(x.raw_data(), x.raw_data(), count_of(x), nccl_type(x.dtype()), ncclSum,
                                     comm, stream_of(ctx));
        });
    }
    void do_reduce_scatter(const Context& ctx, const Tensor& full, const Tensor& part) const override {
        connection_->call("reduce-scatter", [&](ncclComm_t comm) {
            return nccl().reduce_scatter(full.raw_data(), part.raw_data(), count_of(part),
                                         nccl_type(part.dtype()), ncclSum, comm, stream_of(ctx));
        });
    }
    void do_all_gather(const Context& ctx, const Tensor& part, const Tensor& full) const override {
        connection_->call("all-gather", [&](ncclComm_t comm) {
            return nccl().all_gather(part.raw_data(), full.raw_data(), count_of(part),
                                     nccl_type(part.dtype()), comm, stream_of(ctx));
        });
    }
    void do_broadcast(const Context& ctx, const Tensor& x, int root) const override {
        connection_->call("broadcast", [&](ncclComm_t comm) {
            return nccl().broadcast(x.raw_data(), x.raw_data(), count_of(x), nccl_type(x.dtype()), root, comm,
                                    stream_of(ctx));
        });
    }
    void do_barrier(const Context& ctx) const override {
        const Tensor nothing = zeros(ctx, {1}, DType::i32);
        do_all_reduce(ctx, nothing);
        connection_->synchronize(ctx.stream(), "a barrier");
    }
    std::unique_ptr<attention::Ring> make_ring(const Context& ctx, int processes) const override {
        return std::make_unique<NcclRing>(ctx.device(), rank(), processes, connection_);
    }

    std::shared_ptr<NcclConnection> connection_;
    std::shared_ptr<Allocator> symmetric_;
};

}  // namespace

std::unique_ptr<Communicator> make_nccl_communicator(const Context& ctx, ProcessGroup& group) {
    configure_nccl(ctx.deterministic());
    return std::make_unique<NcclCommunicator>(ctx, group);
}

}  // namespace gradtile::cuda
