// gradtile bench: times attention, matrix products, layers, training steps, generation, checkpoints and
// collectives on this machine, compared with its peak rates.
#include <gradtile/tools/bench/benchmarks.h>
#include <gradtile/tools/command_line/commands.h>

namespace gradtile::cli {

void add_bench(CommandLine& program) {
    Command bench = program.add_command(
        "bench",
        "Time attention, matrix products, layers, training steps, generation, checkpoints or collectives");
    for (const auto add : benchmarks) add(bench);
}

}  // namespace gradtile::cli
