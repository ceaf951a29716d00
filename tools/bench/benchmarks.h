#pragma once
/// The `gradtile bench` commands; each add_* declares one.
#include <gradtile/tools/command_line/command_line.h>

namespace gradtile::cli {

using AddBenchmark = void(Command& bench);
AddBenchmark add_bench_attention, add_bench_gemm, add_bench_layers, add_bench_train, add_bench_generate,
    add_bench_checkpoint, add_bench_comm, add_bench_decode, add_bench_few_rows, add_bench_muon,
    add_bench_warps;

/// All benchmarks, in the order of --help.
inline constexpr AddBenchmark* benchmarks[] = {add_bench_attention, add_bench_gemm,     add_bench_layers,
                                               add_bench_train,     add_bench_generate, add_bench_checkpoint,
                                               add_bench_comm,      add_bench_decode,   add_bench_few_rows,
                                               add_bench_muon,      add_bench_warps};

}  // namespace gradtile::cli
