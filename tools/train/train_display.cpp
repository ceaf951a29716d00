#include <gradtile/tools/train/train_display.h>

#include <unistd.h>

#include <iostream>

#include <gradtile/core/cuda_runtime.h>
#include <gradtile/core/os/internal/operating_system.h>
#include <gradtile/core/text/message.h>
#include <gradtile/tools/launch/launcher.h>
#include <gradtile/train/run/metrics_file.h>
#include <gradtile/train/run/run_directory.h>

namespace gradtile::cli {
namespace {

/// Returns the memory that this process uses, and the machine's total memory.
MemoryUse process_memory() {
    const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    return {os::resident_bytes(), static_cast<std::size_t>(::sysconf(_SC_PHYS_PAGES)) * page};
}

MemoryUse memory_of(Device device) {
    if (device.is_cpu()) return process_memory();
    const cuda::DeviceMemory memory = cuda::device_memory(device);
    return {memory.total_bytes - memory.free_bytes, memory.total_bytes};
}

}  // namespace

TrainDisplay::TrainDisplay(DisplayKind kind) : kind_(kind) {
    if (kind_ != DisplayKind::dashboard) return;
    if (can_rewrite_lines(stdout)) {
        continued_.emplace();
    } else {
        kind_ = DisplayKind::lines;
    }
}

void TrainDisplay::message(const std::string& text) {
    const auto print = [&] { print_message(text); };
    if (dashboard_) {
        dashboard_->print_above(print);
    } else {
        print();
    }
}

std::unique_ptr<LiveDisplay> TrainDisplay::make_dashboard(const Trainer& trainer,
                                                          const ProgressOptions& options) const {
    LiveOptions live{.progress = options, .glyphs = glyphs_of_locale(), .has_launcher = has_launcher()};
    if (!trainer.config().out.empty())
        live.history = MetricsFile::read(std::filesystem::path(trainer.config().out) / "metrics.jsonl");
    live.memory = [device = trainer.model().ctx.device()] { return memory_of(device); };
    return std::make_unique<LiveDisplay>(stdout, std::move(live), *continued_);
}

template <class Shown>
std::shared_ptr<void> TrainDisplay::follow(std::unique_ptr<Shown>& shown, Trainer& trainer) {
    trainer.on_step([&shown](const StepReport& report) {
        if (shown) (*shown)(report);
    });
    trainer.on_part([&shown](const StepPart& part) {
        if (shown) (*shown)(part);
    });
    return {nullptr, [&shown](void*) { shown.reset(); }};
}

std::shared_ptr<void> TrainDisplay::show(Trainer& trainer, const ProgressOptions& options) {
    std::cout << std::flush;
    switch (kind_) {
        case DisplayKind::nothing:
            return nullptr;
        case DisplayKind::lines:
            lines_ = std::make_unique<Progress>(stdout, options);
            return follow(lines_, trainer);
        case DisplayKind::dashboard:
            dashboard_ = make_dashboard(trainer, options);
            return follow(dashboard_, trainer);
    }
    throw Error("display: unknown kind");
}

}  // namespace gradtile::cli
