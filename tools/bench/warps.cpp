// gradtile bench warps: split K against split Q, and two thread-block orders, as variants of one attention
// kernel. TFLOP/s: 4 B H S^2 D, half that with a causal mask. Shared-memory bytes: what the warps load and
// store without a mask, by the formula of tools/lab/warp_partition.h.
#include <iostream>

#include <gradtile/core/enum_names.h>
#include <gradtile/core/tensor_ops.h>
#include <gradtile/tools/bench/benchmarks.h>
#include <gradtile/tools/bench/measure.h>
#include <gradtile/tools/command_line/devices.h>
#include <gradtile/tools/command_line/table.h>
#include <gradtile/tools/command_line/usage_error.h>
#include <gradtile/tools/lab/warp_partition.h>

namespace gradtile {
template <>
struct EnumNames<attention::lab::WarpPartition> {
    using enum attention::lab::WarpPartition;
    static constexpr std::array names = {std::pair{split_q, std::string_view("split-q")},
                                         std::pair{split_k, std::string_view("split-k")}};
};
template <>
struct EnumNames<attention::lab::GridOrder> {
    using enum attention::lab::GridOrder;
    static constexpr std::array names = {std::pair{blocks_fastest, std::string_view("blocks-fastest")},
                                         std::pair{heads_fastest, std::string_view("heads-fastest")}};
};
}  // namespace gradtile

namespace gradtile::cli {
namespace {

using attention::lab::GridOrder;
using attention::lab::SharedTraffic;
using attention::lab::WarpPartition;

struct Flags {
    std::int64_t batch = 4, heads = 16, length = 4096, head_dim = 64, runs = 9;
    DeviceChoice device = DeviceChoice::automatic;
    bool causal = false, json = false;
};

/// The Nsight Compute command that measures these kernels.
constexpr const char* ncu_command =
    "ncu --kernel-name partitioned_forward_kernel --metrics "
    "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum,l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st."
    "sum,"
    "lts__t_sectors_srcunit_tex_lookup_hit.sum,lts__t_sectors_srcunit_tex.sum,dram__bytes_read.sum "
    "gradtile bench warps --runs 1";

struct Tensors {
    Tensor q, k, v, o, lse;

    Tensors(const Context& ctx, const Flags& flags) {
        const RandomNumbers numbers(ctx);
        const Shape shape{flags.batch, flags.length, flags.heads, flags.head_dim};
        q = numbers(ctx, shape, DType::bf16);
        k = numbers(ctx, shape, DType::bf16);
        v = numbers(ctx, shape, DType::bf16);
        o = empty(ctx, shape, DType::bf16);
        lse = empty(ctx, {flags.batch, flags.heads, flags.length}, DType::f32);
    }
};

int bench_warps(const Flags& flags) {
    check_flag("--batch", flags.batch, {1, 4096});
    check_flag("--heads", flags.heads, {1, 4096});
    check_flag("--length", flags.length, {1, 1 << 20});
    check_usage(flags.head_dim == 64 || flags.head_dim == 128, "--head-dim: ", flags.head_dim,
                "; expected 64 or 128");
    check_flag("--runs", flags.runs, runs_range);
    const Device device = resolve_device(flags.device);
    check_usage(device.is_cuda(), "--device: ", device, "; the kernels of bench warps run on cuda");
    const Context plain(device);
    const Context ctx =
        with_arena_for(plain, "bench warps", [&](const Context& dry) { Tensors(dry, flags); });
    const Tensors x(ctx, flags);
    Table table({{"partition", "warps", Column::Kind::text, 8},
                 {"order", "thread blocks", Column::Kind::text, 15},
                 {"ms", "ms"},
                 {"tflops", "TFLOP/s"},
                 {"shared_load_mb", "shared loads MB", Column::Kind::number, 16},
                 {"shared_store_mb", "shared stores MB", Column::Kind::number, 16}},
                flags.json);
    const auto number = [](std::int64_t value) { return static_cast<double>(value); };
    const double pairs = number(flags.length) * number(flags.length) / (flags.causal ? 2 : 1),
                 flops = 4 * number(flags.batch * flags.heads * flags.head_dim) * pairs;
    for (const auto& [partition, partition_name] : EnumNames<WarpPartition>::names)
        for (const auto& [order, order_name] : EnumNames<GridOrder>::names) {
            const double ms =
                median_milliseconds(ctx, {.runs = flags.runs}, [&, partition = partition, order = order] {
                    attention::lab::partitioned_forward(ctx, partition, order, x.q, x.k, x.v, flags.causal,
                                                        x.o, x.lse);
                });
            const SharedTraffic traffic = attention::lab::shared_traffic(
                partition, flags.batch * flags.heads, flags.length, flags.length, flags.head_dim);
            table.add({std::string(partition_name), std::string(order_name), ms, 1e-9 * flops / ms,
                       1e-6 * number(traffic.loads), 1e-6 * number(traffic.stores)});
        }
    if (!flags.json) std::cout << "Counted by the GPU: " << ncu_command << '\n';
    return 0;
}

}  // namespace

void add_bench_warps(Command& bench) {
    Command command = bench.add_command(
        "warps",
        "Time FlashAttention's split K against FlashAttention-2's split Q, and two orders of thread blocks");
    const auto flags = std::make_shared<Flags>();
    command.add_value("--batch", flags->batch, "sequences");
    command.add_value("--heads", flags->heads, "heads");
    command.add_value("--length", flags->length, "queries and keys per sequence");
    command.add_value("--head-dim", flags->head_dim, "width of a head: 64 or 128");
    command.add_switch("--causal", flags->causal, "mask keys after the query");
    add_device_flag(command, flags->device);
    command.add_value("--runs", flags->runs, "number of timings; their median is reported");
    command.add_switch("--json", flags->json, "print one JSON object per row");
    command.set_action([flags] { return bench_warps(*flags); });
}

}  // namespace gradtile::cli
