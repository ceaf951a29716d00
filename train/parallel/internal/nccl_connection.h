#pragma once
/// NcclConnection: NCCL's communicator of a group, which another thread can abort when a process is lost, and
/// which is then replaced. A collective whose peer is lost never ends otherwise, neither on the GPU nor for
/// the thread that waits for it.
#include <atomic>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include <gradtile/core/tensor.h>
#include <gradtile/train/parallel/internal/nccl.h>
#include <gradtile/train/parallel/process_group.h>

namespace gradtile::cuda {

class NcclConnection {
  public:
    /// Collective: connects the group's processes. The group must outlive the connection. Throws Error when
    /// two processes use the same GPU.
    NcclConnection(const Context& ctx, ProcessGroup& group);
    ~NcclConnection();
    NcclConnection(const NcclConnection&) = delete;
    NcclConnection& operator=(const NcclConnection&) = delete;

    /// Whether the group's new processes can be connected after a loss.
    bool can_reconnect() const { return interruption_.defined(); }
    /// Ends all exchanges and waits for the device. Graphs with exchanges must be gone: NCCL waits for them.
    void disconnect();
    /// Collective, after ProcessGroup::regroup().
    void connect();

    /// Calls use(comm), a call of NCCL. Throws RankLost instead once a process is lost.
    template <class Use>
    void call(const char* what, const Use& use) const {
        std::unique_lock calling(calling_);
        if (is_lost_) {
            calling.unlock();
            group_.throw_loss();
        }
        const ncclResult_t result = use(comm_.load());
        calling.unlock();
        if (result != ncclSuccess) fail(result, what);
    }
    /// Waits for the work on a stream. Throws RankLost if a process is lost: exchanges may then have written
    /// anything.
    void synchronize(void* stream, const char* what) const;
    /// Becomes 1 before exchanges are aborted (ClipOptions::interruption); undefined unless can_reconnect().
    const Tensor& interruption() const { return interruption_; }
    ncclComm_t comm() const { return comm_; }

  private:
    void interrupt();
    void finish_abort();
    std::optional<std::string> fault() const;
    [[noreturn]] void fail(ncclResult_t result, const char* what) const;
    void set_interruption(double value) const;

    Device device_;
    ProcessGroup& group_;
    Tensor interruption_;
    std::atomic<ncclComm_t> comm_ = nullptr;
    std::atomic<bool> is_lost_ = false;
    mutable std::timed_mutex calling_;  // held while the main thread is in a call of NCCL
    std::thread aborting_;
    std::future<void> aborted_;  // by that thread
    std::unique_ptr<ProcessGroup::Inspection> inspection_;
};

}  // namespace gradtile::cuda
