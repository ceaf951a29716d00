#include <gradtile/train/parallel/internal/nccl_connection.h>

#include <poll.h>
#include <unistd.h>

#include <array>
#include <chrono>

#include <gradtile/core/cuda_runtime.h>
#include <gradtile/core/internal/cuda_check.h>
#include <gradtile/core/offload_allocator.h>
#include <gradtile/core/start_thread.h>
#include <gradtile/core/tensor_ops.h>
#include <gradtile/core/text/hexadecimal.h>

namespace gradtile::cuda {
namespace {

// Older versions may crash when a communicator is aborted by another thread than the one that uses it.
constexpr int with_abort_by_threads = 21901;

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

/// Collective: returns an id that rank 0 has drawn.
ncclUniqueId shared_id(ProcessGroup& group) {
    ncclUniqueId id{};
    if (group.is_root()) nccl_check(nccl().get_unique_id(&id), "unique id");
    std::string bytes(id.internal, sizeof id.internal);
    from_hexadecimal(group.broadcast(hexadecimal(std::as_bytes(std::span(bytes)))), bytes);
    bytes.copy(id.internal, sizeof id.internal);
    return id;
}

/// Reports an error in NCCL's own threads, such as a broken network connection. Without this check a
/// collective would wait forever.
ncclResult_t async_error(ncclComm_t comm) {
    ncclResult_t error = ncclSuccess;
    const ncclResult_t asked = nccl().comm_get_async_error(comm, &error);
    return asked == ncclSuccess ? error : asked;
}

}  // namespace

NcclConnection::NcclConnection(const Context& ctx, ProcessGroup& group)
    : device_(ctx.device()), group_(group) {
    if (group.can_regroup() && nccl().version >= with_abort_by_threads)
        interruption_ = empty(ctx.with_allocator(offload_allocator(device_)), {1}, DType::f64);
    connect();
}

/// Aborts the communicator, because ncclCommDestroy would wait for peers that may be gone.
NcclConnection::~NcclConnection() {
    inspection_.reset();
    if (aborting_.joinable()) {
        aborting_.join();
    } else if (comm_ != nullptr) {
        (void)nccl().comm_abort(comm_);
    }
}

void NcclConnection::connect() {
    use_device(device_);
    finish_abort();
    comm_ = nullptr;
    is_lost_ = false;
    set_interruption(0.0);
    const auto interrupts = can_reconnect() ? [this] { interrupt(); } : ProcessGroup::Interrupt();
    inspection_.reset(new ProcessGroup::Inspection(group_.inspect([this] { return fault(); }, interrupts)));
    check_gpus_differ(device_, group_);
    const ncclUniqueId id = shared_id(group_);
    const auto waiting = group_.waiting("the start of NCCL");
    ncclComm_t comm = nullptr;
    const ncclResult_t result = nccl().comm_init_rank(&comm, group_.size(), id, group_.rank());
    if (result != ncclSuccess) fail(result, "start");
    comm_ = comm;
}

void NcclConnection::disconnect() {
    use_device(device_);
    inspection_.reset();  // from here on only this thread interrupts
    interrupt();
    cuda_check(cudaDeviceSynchronize());
}

/// Called by the thread that learns of a loss. An aborted exchange writes garbage, which the step's remaining
/// kernels compute with, up to the update. They see the interruption if they see such garbage, because it is
/// set before; if they do not see it, all sums are right and the update is applied as a whole.
void NcclConnection::interrupt() {
    is_lost_ = true;
    set_interruption(1.0);
    const ncclComm_t comm = comm_;
    if (comm == nullptr || aborting_.joinable()) return;
    // A thread of its own: the call returns only when graphs with exchanges are gone and when all other
    // processes have aborted or ended, which includes one that hangs until the launcher kills it.
    std::packaged_task<void()> abort([this, comm] {
        // The main thread leaves NCCL and then finds is_lost_, or it waits in NCCL for the device, which only
        // the abort frees.
        constexpr auto max_call = std::chrono::seconds(1);
        if (calling_.try_lock_for(max_call)) calling_.unlock();
        (void)cudaSetDevice(device_.index());
        (void)nccl().comm_abort(comm);
    });
    aborted_ = abort.get_future();
    aborting_ = start_thread("the end of NCCL's exchanges", std::move(abort));
}

/// Called when all processes have begun to abort, and those that hung are gone.
void NcclConnection::finish_abort() {
    if (!aborting_.joinable()) return;
    constexpr auto max_wait = std::chrono::seconds(60);
    check(aborted_.wait_for(max_wait) == std::future_status::ready,
          "nccl: the exchanges with a lost process could not be ended within ", max_wait.count(), " s");
    aborting_.join();
}

std::optional<std::string> NcclConnection::fault() const {
    const ncclComm_t comm = comm_;
    if (comm == nullptr) return std::nullopt;
    const ncclResult_t error = async_error(comm);
    if (error == ncclSuccess || error == ncclInProgress) return std::nullopt;
    return concat("nccl: ", nccl().error_string(error));
}

void NcclConnection::fail(ncclResult_t result, const char* what) const {
    // NCCL may notice a broken connection before the group does.
    constexpr int max_report_ms = 2000;
    pollfd loss{group_.loss_descriptor(), POLLIN, 0};
    if (can_reconnect() && (is_lost_ || ::poll(&loss, 1, max_report_ms) > 0)) group_.throw_loss();
    nccl_check(result, what);
    throw Error(concat("nccl: ", what));
}

void NcclConnection::synchronize(void* stream, const char* what) const {
    {
        const auto waiting = group_.waiting(what);
        cuda::synchronize(device_, stream);
    }
    call(what, async_error);
}

void NcclConnection::set_interruption(double value) const {
    if (can_reconnect()) std::atomic_ref(*interruption_.data<double>()).store(value);
}

}  // namespace gradtile::cuda
