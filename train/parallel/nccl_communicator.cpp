// Collectives between GPUs, one process each.
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <optional>
#include <string_view>

#include <gradtile/core/cuda/cuda_runtime.h>
#include <gradtile/core/cuda/internal/cuda_check.h>
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

/// "HOST/0000:18:00.0": which GPU of all hosts' this is.
std::string name_of_gpu(Device device) {
    std::array<char, 256> host{};
    if (::gethostname(host.data(), host.size() - 1) != 0) host[0] = '\0';
    std::array<char, 32> bus{};
    cuda_check(cudaDeviceGetPCIBusId(bus.data(), static_cast<int>(bus.size()), device.index()));
    return concat(host.data(), '/', bus.data());
}

/// NCCL itself would say "invalid usage".
void check_gpus_differ(Device device, ProcessGroup& group) {
    const std::vector<std::string> gpus = group.all_gather(name_of_gpu(device));
    for (std::size_t a = 0; a < gpus.size(); ++a)
        for (std::size_t b = a + 1; b < gpus.size(); ++b)
            check(gpus[a] != gpus[b], "nccl: ranks ", a, " and ", b, " were given the same GPU, ", gpus[a],
                  "; expected one each");
}

/// How NCCL is to work. What the user has set stays.
void set_up_nccl(bool deterministic) {
    const auto prefer = [](const char* name, const char* value) { setenv(name, value, /*overwrite=*/0); };
    if (deterministic) {  // the order of sums is fixed by the algorithm, and none is left to the switch
        prefer("NCCL_ALGO", "Ring");
        prefer("NCCL_PROTO", "Simple");
        prefer("NCCL_NVLS_ENABLE", "0");
    }
    // In symmetric memory: copy engines gather, and sums are over sooner on more multiprocessors than NCCL
    // takes by itself.
    prefer("NCCL_CTA_POLICY", "2");
    prefer("NCCL_SYM_CTAS", "32");
}

/// What NCCL's threads have met with, such as a network that broke: nothing else ends a collective's wait
/// then.
ncclResult_t trouble_of(ncclComm_t comm) {
    ncclResult_t trouble = ncclSuccess;
    const ncclResult_t asked = nccl().comm_get_async_error(comm, &trouble);
    return asked == ncclSuccess ? trouble : asked;
}

class NcclCommunicator final : public Communicator {
  public:
    NcclCommunicator(Device device, ProcessGroup& group, ncclComm_t comm)
        : Communicator(group.rank(), group.size()),
          group_(group),
          // An abort, for a destroy waits for peers that may be gone.
          comm_(comm, [](ncclComm_t c) { (void)nccl().comm_abort(c); }),
          inspection_(group.inspect([comm]() -> std::optional<std::string> {
              const ncclResult_t trouble = trouble_of(comm);
              if (trouble == ncclSuccess || trouble == ncclInProgress) return std::nullopt;
              return concat("nccl: ", nccl().error_string(trouble));
          })) {
        if (nccl().has_symmetric_memory()) symmetric_ = std::make_shared<NcclMemory>(device, comm_, group);
    }

    std::shared_ptr<Allocator> symmetric_memory(const Context& ctx) const override {
        return symmetric_ ? symmetric_ : ctx.allocator();
    }

  private:
    void sum(const Context& ctx, const Tensor& x) const override {
        nccl_check(nccl().all_reduce(x.raw_data(), x.raw_data(), count_of(x), nccl_type(x.dtype()), ncclSum,
                                     comm_.get(), stream_of(ctx)),
                   "all-reduce");
    }
    void sum_parts(const Context& ctx, const Tensor& whole, const Tensor& part) const override {
        nccl_check(nccl().reduce_scatter(whole.raw_data(), part.raw_data(), count_of(part),
                                         nccl_type(part.dtype()), ncclSum, comm_.get(), stream_of(ctx)),
                   "reduce-scatter");
    }
    void gather(const Context& ctx, const Tensor& part, const Tensor& whole) const override {
        nccl_check(nccl().all_gather(part.raw_data(), whole.raw_data(), count_of(part),
                                     nccl_type(part.dtype()), comm_.get(), stream_of(ctx)),
                   "all-gather");
    }
    void send_from(const Context& ctx, const Tensor& x, int root) const override {
        nccl_check(nccl().broadcast(x.raw_data(), x.raw_data(), count_of(x), nccl_type(x.dtype()), root,
                                    comm_.get(), stream_of(ctx)),
                   "broadcast");
    }
    void wait_for_all(const Context& ctx) const override {
        const Tensor nothing = zeros(ctx, {1}, DType::i32);
        sum(ctx, nothing);
        const auto waiting = group_.waiting("a barrier");
        synchronize(ctx.device(), ctx.stream());
        nccl_check(trouble_of(comm_.get()), "barrier");
    }

    static std::size_t count_of(const Tensor& x) { return static_cast<std::size_t>(x.elements()); }
    static cudaStream_t stream_of(const Context& ctx) {
        use_device(ctx.device());
        return static_cast<cudaStream_t>(ctx.stream());
    }

    ProcessGroup& group_;
    std::shared_ptr<ncclComm> comm_;
    std::shared_ptr<Allocator> symmetric_;
    ProcessGroup::Inspection inspection_;  // over before the others go
};

}  // namespace

std::unique_ptr<Communicator> make_nccl_communicator(const Context& ctx, ProcessGroup& group) {
    use_device(ctx.device());
    check_gpus_differ(ctx.device(), group);
    set_up_nccl(ctx.deterministic());
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
