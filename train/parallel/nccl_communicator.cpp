// Collectives between GPUs, one process per GPU.
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <optional>
#include <string_view>

#include <gradtile/core/cuda_runtime.h>
#include <gradtile/core/internal/cuda_check.h>
#include <gradtile/core/side_stream.h>
#include <gradtile/train/parallel/internal/communicator_backend.h>
#include <gradtile/train/parallel/internal/nccl.h>
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

std::string hexadecimal(std::string_view bytes) {
    constexpr std::string_view digits = "0123456789abcdef";
    std::string text;
    for (const char c : bytes) {
        const auto byte = static_cast<unsigned char>(c);
        text += {digits[byte >> 4], digits[byte & 15]};
    }
    return text;
}

void from_hexadecimal(const std::string& text, std::string& bytes) {
    check(text.size() == 2 * bytes.size(), "nccl: rank 0 sent an address of ", text.size() / 2,
          " bytes; expected ", bytes.size());
    for (std::size_t i = 0; i < bytes.size(); ++i)
        bytes[i] = static_cast<char>(std::stoi(text.substr(2 * i, 2), nullptr, 16));
}

/// Identifies a GPU among all hosts: "HOST/0000:18:00.0".
std::string gpu_name(Device device) {
    std::array<char, 256> host{};
    if (::gethostname(host.data(), host.size() - 1) != 0) host[0] = '\0';
    std::array<char, 32> bus{};
    cuda_check(cudaDeviceGetPCIBusId(bus.data(), static_cast<int>(bus.size()), device.index()));
    return concat(host.data(), '/', bus.data());
}

/// Names the two ranks; NCCL itself would only report "invalid usage".
void check_gpus_differ(Device device, ProcessGroup& group) {
    const std::vector<std::string> gpus = group.all_gather(gpu_name(device));
    for (std::size_t a = 0; a < gpus.size(); ++a)
        for (std::size_t b = a + 1; b < gpus.size(); ++b)
            check(gpus[a] != gpus[b], "nccl: ranks ", a, " and ", b, " use the same GPU, ", gpus[a],
                  "; expected one GPU per process");
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

/// Reports an error in NCCL's own threads, such as a broken network connection. Without this check a
/// collective would wait forever.
ncclResult_t async_error(ncclComm_t comm) {
    ncclResult_t error = ncclSuccess;
    const ncclResult_t asked = nccl().comm_get_async_error(comm, &error);
    return asked == ncclSuccess ? error : asked;
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
    NcclRing(Device device, int rank, int processes, std::shared_ptr<ncclComm> comm)
        : Ring(rank % processes, processes),
          comm_(std::move(comm)),
          first_(rank - rank % processes),
          transfer_(device) {}

  private:
    void do_start_shift(const Context& ctx, const Tensor& sent, const Tensor& received) const override {
        const cudaStream_t stream = stream_of(transfer_.after(ctx));
        const int next = first_ + (rank() + 1) % size(), previous = first_ + (rank() + size() - 1) % size();
        nccl_check(nccl().group_start(), "start of a shift");
        const ncclResult_t sending =
            nccl().send(sent.raw_data(), count_of(sent), nccl_type(sent.dtype()), next, comm_.get(), stream);
        const ncclResult_t receiving =
            nccl().receive(received.raw_data(), count_of(received), nccl_type(received.dtype()), previous,
                           comm_.get(), stream);
        nccl_check(nccl().group_end(), "shift");  // also after an error, so that no group stays open
        nccl_check(sending, "send");
        nccl_check(receiving, "receive");
    }
    void do_finish_shifts(const Context& ctx) const override { transfer_.join(ctx); }

    std::shared_ptr<ncclComm> comm_;
    int first_;  // the ring's first rank in the group
    SideStream transfer_;
};

class NcclCommunicator final : public Communicator {
  public:
    NcclCommunicator(Device device, ProcessGroup& group, ncclComm_t comm)
        : Communicator(group.rank(), group.size()),
          group_(group),
          // Aborts the communicator, because ncclCommDestroy would wait for peers that may be gone.
          comm_(comm, [](ncclComm_t c) { (void)nccl().comm_abort(c); }),
          inspection_(group.inspect([comm]() -> std::optional<std::string> {
              const ncclResult_t error = async_error(comm);
              if (error == ncclSuccess || error == ncclInProgress) return std::nullopt;
              return concat("nccl: ", nccl().error_string(error));
          })) {
        if (nccl().has_symmetric_memory()) symmetric_ = std::make_shared<NcclMemory>(device, comm_, group);
    }

    std::shared_ptr<Allocator> symmetric_memory(const Context& ctx) const override {
        return symmetric_ ? symmetric_ : ctx.allocator();
    }

  private:
    void do_all_reduce(const Context& ctx, const Tensor& x) const override {
        nccl_check(nccl().all_reduce(x.raw_data(), x.raw_data(), count_of(x), nccl_type(x.dtype()), ncclSum,
                                     comm_.get(), stream_of(ctx)),
                   "all-reduce");
    }
    void do_reduce_scatter(const Context& ctx, const Tensor& full, const Tensor& part) const override {
        nccl_check(nccl().reduce_scatter(full.raw_data(), part.raw_data(), count_of(part),
                                         nccl_type(part.dtype()), ncclSum, comm_.get(), stream_of(ctx)),
                   "reduce-scatter");
    }
    void do_all_gather(const Context& ctx, const Tensor& part, const Tensor& full) const override {
        nccl_check(nccl().all_gather(part.raw_data(), full.raw_data(), count_of(part),
                                     nccl_type(part.dtype()), comm_.get(), stream_of(ctx)),
                   "all-gather");
    }
    void do_broadcast(const Context& ctx, const Tensor& x, int root) const override {
        nccl_check(nccl().broadcast(x.raw_data(), x.raw_data(), count_of(x), nccl_type(x.dtype()), root,
                                    comm_.get(), stream_of(ctx)),
                   "broadcast");
    }
    void do_barrier(const Context& ctx) const override {
        const Tensor nothing = zeros(ctx, {1}, DType::i32);
        do_all_reduce(ctx, nothing);
        const auto waiting = group_.waiting("a barrier");
        synchronize(ctx.device(), ctx.stream());
        nccl_check(async_error(comm_.get()), "barrier");
    }
    std::unique_ptr<attention::Ring> make_ring(const Context& ctx, int processes) const override {
        return std::make_unique<NcclRing>(ctx.device(), rank(), processes, comm_);
    }

    ProcessGroup& group_;
    std::shared_ptr<ncclComm> comm_;
    std::shared_ptr<Allocator> symmetric_;
    ProcessGroup::Inspection inspection_;  // last member: destroyed before comm_, which it reads
};

}  // namespace

std::unique_ptr<Communicator> make_nccl_communicator(const Context& ctx, ProcessGroup& group) {
    use_device(ctx.device());
    check_gpus_differ(ctx.device(), group);
    configure_nccl(ctx.deterministic());
    ncclUniqueId id{};
    if (group.is_root()) nccl_check(nccl().get_unique_id(&id), "unique id");
    std::string bytes(id.internal, sizeof id.internal);
    from_hexadecimal(group.broadcast(hexadecimal(bytes)), bytes);
    bytes.copy(id.internal, sizeof id.internal);
    const auto waiting = group.waiting("the start of NCCL");
    ncclComm_t comm = nullptr;
    nccl_check(nccl().comm_init_rank(&comm, group.size(), id, group.rank()), "start");
    return std::make_unique<NcclCommunicator>(ctx.device(), group, comm);
}

}  // namespace gradtile::cuda
