// gradtile bench comm: time and bandwidth of collectives between a run's processes.
#include <algorithm>
#include <iostream>

#include <gradtile/tools/bench/benchmarks.h>
#include <gradtile/tools/bench/measure.h>
#include <gradtile/tools/command_line/table.h>
#include <gradtile/tools/command_line/usage_error.h>
#include <gradtile/tools/launch/group_member.h>
#include <gradtile/tools/plan/collective_cost.h>
#include <gradtile/train/config/train_config.h>
#include <gradtile/train/parallel/communicator.h>

namespace gradtile::cli {
namespace {

struct Flags {
    GroupFlags group;
    DeviceChoice device = DeviceChoice::automatic;
    std::vector<TrainDType> dtypes{TrainDType::f32};
    std::vector<std::int64_t> bytes;  // sizes to measure; empty: 64 KiB to 1 GiB
    std::int64_t runs = 9;
    bool json = false;
};

std::vector<std::int64_t> sizes_of(const Flags& flags) {
    if (!flags.bytes.empty()) return flags.bytes;
    std::vector<std::int64_t> sizes;
    for (std::int64_t size = 64 << 10; size <= 1 << 30; size *= 4) sizes.push_back(size);
    return sizes;
}

void check_flags(const Flags& flags) {
    for (const std::int64_t size : flags.bytes) check_flag("--bytes", size, {1, double{1LL << 40}});
    check_flag("--runs", flags.runs, runs_range);
}

/// A collective over `full`; `part` is this process's slice.
struct Collective {
    const char* name;
    std::function<void(const Context& ctx, const Tensor& full, const Tensor& part)> work;
    /// The bytes that each process sends.
    std::function<double(const GpuLayout& layout, double bytes)> bytes_on_wire;
};

std::vector<Collective> collectives_of(const Communicator& communicator) {
    const auto scatter_bytes = [](const GpuLayout& layout, double bytes) {
        return scatter_wire_bytes(layout, bytes).total();
    };
    return {
        {"all_reduce",
         [&](const Context& ctx, const Tensor& full, const Tensor&) { communicator.all_reduce(ctx, full); },
         [](const GpuLayout& layout, double bytes) { return all_reduce_wire_bytes(layout, bytes).total(); }},
        {"reduce_scatter",
         [&](const Context& ctx, const Tensor& full, const Tensor& part) {
             communicator.reduce_scatter(ctx, full, part);
         },
         scatter_bytes},
        {"all_gather",
         [&](const Context& ctx, const Tensor& full, const Tensor& part) {
             communicator.all_gather(ctx, part, full);
         },
         scatter_bytes},
        {"broadcast",
         [&](const Context& ctx, const Tensor& full, const Tensor&) { communicator.broadcast(ctx, full); },
         [](const GpuLayout&, double bytes) { return bytes; }}};
}

/// Median time per call. `repeats` is the same in every process: a process with fewer repetitions would leave
/// the others waiting.
double median_over_runs(const Context& ctx, const Communicator& communicator, std::int64_t runs,
                        std::int64_t repeats, const std::function<void()>& collective) {
    collective();  // the first call opens the connections
    std::vector<double> samples;
    for (std::int64_t run = 0; run < runs; ++run) {
        communicator.barrier(ctx);
        samples.push_back(milliseconds(ctx, Clock::wall,
                                       [&] {
                                           for (std::int64_t i = 0; i < repeats; ++i) collective();
                                       }) /
                          static_cast<double>(repeats));
    }
    return std::max(median(std::move(samples)), 1e-6);
}

/// The slowest process counts: a broadcast's root may finish before the others.
double max_over_processes(ProcessGroup& group, double value) {
    for (const std::string& text : group.all_gather(concat(value))) value = std::max(value, std::stod(text));
    return value;
}

/// Measures every collective and size. `table` is null in ranks other than 0.
void measure(const Flags& flags, const Context& ctx, const Communicator& communicator, ProcessGroup& group,
             DType dtype, Table* table) {
    const GpuLayout layout(group.size(), group.size());
    const auto element = static_cast<std::int64_t>(size_of(dtype));
    for (const Collective& collective : collectives_of(communicator))
        for (const std::int64_t size : sizes_of(flags)) {
            const std::int64_t in_part = std::max<std::int64_t>(1, size / element / group.size());
            const Tensor full = zeros(ctx.with_allocator(communicator.symmetric_memory(ctx)),
                                      {in_part * group.size()}, dtype);
            const Tensor part = full.slice(0, group.rank() * in_part, in_part);
            const std::int64_t repeats = std::clamp<std::int64_t>((64 << 20) / size, 1, 20);
            const double own_ms = median_over_runs(ctx, communicator, flags.runs, repeats,
                                                   [&] { collective.work(ctx, full, part); });
            const double ms = max_over_processes(group, own_ms);
            const auto bytes = static_cast<double>(full.bytes());
            if (table != nullptr)
                table->add({name_of(dtype), collective.name, group.size(), bytes, ms,
                            1e-6 * collective.bytes_on_wire(layout, bytes) / ms});
        }
}

/// Every process measures; rank 0 prints.
int bench_comm(const Flags& flags, const Context& ctx, const Communicator& communicator,
               ProcessGroup& group) {
    check(!group.is_alone(),
          "bench comm: 1 process; expected several: give --gpus N or --processes N, or start it with mpirun, "
          "srun or torchrun");
    if (group.is_root() && !flags.json)
        std::cout << group.size() << " processes on " << (ctx.device().is_cpu() ? "cpu" : "GPUs")
                  << "; bus bandwidth: bytes that each process sends per second" << std::endl;
    Table table({{"dtype", "dtype", Column::Kind::text, 9},
                 {"what", "collective", Column::Kind::text, 15},
                 {"gpus", "processes", Column::Kind::number, 9},
                 {"bytes", "bytes", Column::Kind::number, 11},
                 {"ms", "ms"},
                 {"bus_gb_per_s", "bus GB/s"}},
                flags.json);
    for (const TrainDType dtype : flags.dtypes)
        measure(flags, ctx, communicator, group, storage_dtype(dtype), group.is_root() ? &table : nullptr);
    return 0;
}

}  // namespace

void add_bench_comm(Command& bench) {
    Command command = bench.add_command("comm", "Time collectives between the processes of a run");
    const auto flags = std::make_shared<Flags>();
    add_group_flags(command, "time", flags->group);
    command.add_value("--device", flags->device, "device of the tensors");
    command.add_row_values("--dtype", flags->dtypes, "type of the tensors (default: f32)");
    command.add_row_values("--bytes", flags->bytes,
                           "sizes of the whole tensors (default: 65536 to 1073741824)");
    command.add_value("--runs", flags->runs, "number of timings; their median is reported");
    command.add_switch("--json", flags->json,
                       "print one JSON object per row, the input of `gradtile plan --fit`");
    command.set_action([flags] {
        check_flags(*flags);
        if (flags->group.launches()) return launch(make_launch(flags->group, flags->device, "--gpus"));
        // Declared outside the lambda, because its destructor may wait for other processes.
        std::unique_ptr<Communicator> communicator;
        return run_in_group(flags->group.timeout, nullptr, [&](const std::shared_ptr<ProcessGroup>& group) {
            const Context ctx(resolve_device(flags->device, group->environment().local_rank), 1);
            communicator = make_communicator(ctx, *group);
            return bench_comm(*flags, ctx, *communicator, *group);
        });
    });
}

}  // namespace gradtile::cli
