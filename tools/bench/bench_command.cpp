// gradtile bench: times attention, matrix products, layers, training steps, generation, checkpoints and
// collectives on this machine, compared with its peak rates.
#include <gradtile/tools/bench/benchmarks.h>
#include <gradtile/tools/command_line/commands.h>

namespace gradtile::cli {

void add_bench(CommandLine& program) {
    Command bench = program.add_command(
        "bench",
        "Time attention, matrix products, layers, training steps, generation, checkpoints or collectives");
    add_bench_attention(bench);
    add_bench_gemm(bench);
    add_bench_layers(bench);
    add_bench_train(bench);
    add_bench_generate(bench);
    add_bench_checkpoint(bench);
    add_bench_comm(bench);
    add_bench_few_rows(bench);
    add_bench_muon(bench);
    add_bench_warps(bench);
}

}  // namespace gradtile::cli
