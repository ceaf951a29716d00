#include <gradtile/train/checkpoint/snapshot_writer.h>

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include <gradtile/core/os/internal/operating_system.h>
#include <gradtile/core/start_thread.h>
#include <gradtile/core/text/message.h>
#include <gradtile/train/checkpoint/tensor_bytes.h>

namespace gradtile {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
}

constexpr std::uint64_t kAlignment = 64;
// The bytes that a thread copies at once: enough for an efficient copy, and few enough to divide the work
// evenly.
constexpr std::int64_t kPieceBytes = std::int64_t{4} << 20;

std::uint64_t staged_bytes(const Tensor& x) {
    return (x.bytes() + kAlignment - 1) / kAlignment * kAlignment;
}

/// Calls visit(live tensors, staged tensors) for each tensor group.
template <class Visit>
void visit_tensors(const Checkpoint& live, Checkpoint& staged, Visit&& visit) {
    visit(live.params, staged.params);
    visit(live.master, staged.master);
    visit(live.optimizer, staged.optimizer);
}

std::uint64_t total_bytes(const Checkpoint& live) {
    std::uint64_t bytes = kAlignment;  // never 0
    for (const NamedTensors* tensors : {&live.params, &live.master, &live.optimizer})
        for (const auto& [name, x] : *tensors) bytes += staged_bytes(x);
    return bytes;
}
/// Constants are not copied.
std::uint64_t staged_bytes(const Checkpoint& live) {
    std::uint64_t bytes = total_bytes(live);
    for (const std::string& name : live.constant_params) bytes -= staged_bytes(live.params.at(name));
    return bytes;
}

}  // namespace

struct SnapshotWriter::Plan {
    /// Elements [begin, end) of a host tensor and their place in staging memory.
    struct HostPiece {
        const Tensor* from;
        std::int64_t begin, end;
        std::byte* to;
    };

    Checkpoint staged;
    std::vector<HostPiece> on_host;
    std::vector<SnapshotPart> on_device;
    std::uint64_t device_bytes = 0;  // bytes of staging memory up to the last GPU part's end
};

struct SnapshotWriter::RunningSave {
    Job job;
    std::atomic<bool> ended{false};
    std::thread thread = {};
};

SnapshotWriter::SnapshotWriter(CheckpointDirectory directory, const Context& ctx, FirstCopy first_copy)
    : directory_(std::move(directory)),
      ctx_(ctx),
      first_copy_(first_copy),
      on_device_(ctx.device().is_cuda() ? std::make_unique<DeviceSnapshot>(ctx) : nullptr),
      process_(::getpid()) {}

SnapshotWriter::~SnapshotWriter() {
    wait();
}

bool SnapshotWriter::is_in_forked_child() const {
    return process_ != ::getpid();
}

void SnapshotWriter::wait() {
    if (!running_) return;
    if (is_in_forked_child()) {
        // The thread is missing in a forked child and may have stopped anywhere, so nothing of it is used.
        static_cast<void>(running_.release());
        return;
    }
    running_->thread.join();
    end_save();
}

void SnapshotWriter::end_save() {
    reports_.push_back(std::move(running_->job.report));
    running_.reset();
}

std::vector<SaveReport> SnapshotWriter::poll() {
    if (running_ && running_->ended) wait();
    return std::exchange(reports_, {});
}

void SnapshotWriter::grow_staging(std::uint64_t bytes) {
    if (staging_ && staging_->bytes() >= bytes) return;
    staging_.reset();  // frees the old buffer before the new one is allocated
    // A kernel writes the first copy, which pageable memory does not allow.
    staging_ = std::make_shared<Buffer>(
        first_copy_ == FirstCopy::host ? transfer_allocator(ctx_.device()) : staging_allocator(ctx_.device()),
        static_cast<std::size_t>(bytes));
    if (ctx_.device().is_cuda()) return;  // page-locked memory is already mapped
    // Requests larger pages, which make the first access several times faster. The call is only a hint.
    constexpr std::uintptr_t kPage = 4096;
    const auto begin = (reinterpret_cast<std::uintptr_t>(staging_->data()) + kPage - 1) / kPage * kPage;
    const auto end = reinterpret_cast<std::uintptr_t>(staging_->data() + bytes) / kPage * kPage;
    if (end > begin) os::request_huge_pages(reinterpret_cast<std::byte*>(begin), end - begin);
}

std::byte* SnapshotWriter::host_of_first_copy() const {
    return first_copy_ == FirstCopy::host ? staging_->data() : nullptr;
}

void SnapshotWriter::reserve(const Checkpoint& like) {
    wait();
    if (ctx_.device().is_cuda()) {
        const Plan plan = plan_staging(like);  // allocates what host_of_first_copy() returns
        on_device_->reserve(plan.on_device, host_of_first_copy());
        return;
    }
    grow_staging(staged_bytes(like));
    const auto bytes = static_cast<std::int64_t>(staging_->bytes());
    parallel_ranges(ctx_, bytes, kPieceBytes, [&](std::int64_t begin, std::int64_t end) {
        std::memset(staging_->data() + begin, 0, static_cast<std::size_t>(end - begin));
    });
}

SnapshotWriter::Plan SnapshotWriter::plan_staging(const Checkpoint& live) {
    grow_staging(staged_bytes(live));
    Plan plan;
    Checkpoint& staged = plan.staged;
    std::byte* free = staging_->data();
    const auto add_host_pieces = [&](const Tensor& x) {
        const auto element = static_cast<std::int64_t>(size_of(x.dtype()));
        const std::int64_t grain = kPieceBytes / element;
        for (std::int64_t begin = 0; begin < x.elements(); begin += grain)
            plan.on_host.push_back(
                {&x, begin, std::min(begin + grain, x.elements()), free + begin * element});
    };
    const auto add_device_part = [&](const std::string& name, const Tensor& x) {
        check(on_device_ != nullptr, name, ": is on ", x.device(), "; this writer saves from the cpu");
        check(x.is_contiguous(), name, ": ", x, " is not contiguous");
        const auto offset = static_cast<std::uint64_t>(free - staging_->data());
        plan.on_device.push_back({x.raw_data(), offset, x.bytes()});
        plan.device_bytes = offset + x.bytes();
    };
    visit_tensors(live, staged, [&](const NamedTensors& tensors, NamedTensors& copies) {
        for (const auto& [name, x] : tensors) {
            if (!x.defined()) {
                copies.emplace(name, x);  // write_checkpoint() refuses this tensor and names it
                continue;
            }
            if (&tensors == &live.params && live.constant_params.contains(name)) {
                check(x.device().is_cpu(), name, ": a constant on ", x.device(), "; expected the cpu");
                copies.emplace(name, x);
                continue;
            }
            copies.emplace_hint(
                copies.end(), name,
                Tensor(staging_, free, Device::cpu(), x.dtype(), x.shape(), contiguous_strides(x.shape())));
            if (x.device().is_cpu()) {
                add_host_pieces(x);
            } else {
                add_device_part(name, x);
            }
            free += staged_bytes(x);
        }
    });
    staged.step = live.step;
    staged.config = live.config;
    staged.data = live.data;
    staged.rng = live.rng;
    staged.meta = live.meta;
    staged.tokenizer = live.tokenizer;
    staged.part = live.part;
    return plan;
}

void SnapshotWriter::save(const Checkpoint& live, bool best) {
    wait();
    const auto begin = Clock::now();
    SaveReport report = report_of(live, best);
    try {
        Plan plan = plan_staging(live);
        check(plan.on_host.empty() || plan.on_device.empty(), "its tensors are on two devices");
        if (!plan.on_device.empty()) on_device_->take(plan.on_device, host_of_first_copy());
        parallel_for(ctx_, std::ssize(plan.on_host), [&](std::int64_t i) {
            const Plan::HostPiece& piece = plan.on_host[static_cast<std::size_t>(i)];
            copy_row_major(*piece.from, piece.begin, piece.end, piece.to);
        });
        report.copy_seconds = seconds_since(begin);
        start_writing({std::move(plan.staged), plan.device_bytes, report});
    } catch (const std::exception& error) {  // out of memory
        report.message = concat("checkpoint ", report.path.string(), ": ", message_of(error));
        reports_.push_back(report);
    }
}

void SnapshotWriter::save_in_place(Checkpoint checkpoint, bool best) {
    wait();
    SaveReport report = report_of(checkpoint, best);
    start_writing({std::move(checkpoint), 0, std::move(report)});
}

SaveReport SnapshotWriter::report_of(const Checkpoint& checkpoint, bool best) const {
    SaveReport report;
    report.best = best;
    report.step = checkpoint.step;
    report.path = directory_.path_of(checkpoint);
    report.bytes = total_bytes(checkpoint);
    return report;
}

void SnapshotWriter::start_writing(Job job) {
    running_ = std::make_unique<RunningSave>(std::move(job));
    RunningSave& save = *running_;
    try {
        save.thread = start_thread("writing a checkpoint", [this, &save] {
            write(save.job);
            save.ended = true;
        });
    } catch (const Error& error) {
        SaveReport& report = save.job.report;
        report.message = concat("checkpoint ", report.path.string(), ": ", error.what());
        end_save();
    }
}

void SnapshotWriter::write(Job& job) const {
    const auto begin = Clock::now();
    try {
        if (job.device_bytes > 0) {
            on_device_->download(staging_->data(), job.device_bytes);
            job.report.copy_seconds = std::max(job.report.copy_seconds, on_device_->seconds_on_stream());
        }
        const CheckpointDirectory::Saved saved = directory_.save(job.checkpoint, job.report.best);
        job.report.saved = true;
        job.report.is_best = saved.is_best;
        job.report.message = saved.problem;
    } catch (const std::exception& error) {
        job.report.message = message_of(error);
    }
    job.report.write_seconds = seconds_since(begin);
}

}  // namespace gradtile
