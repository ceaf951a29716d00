#pragma once
/// The `gradtile bench` commands; each add_* declares one.
#include <gradtile/tools/command_line/command_line.h>

namespace gradtile::cli {

void add_bench_attention(Command& bench);
void add_bench_checkpoint(Command& bench);
void add_bench_comm(Command& bench);
void add_bench_few_rows(Command& bench);
void add_bench_gemm(Command& bench);
void add_bench_generate(Command& bench);
void add_bench_layers(Command& bench);
void add_bench_muon(Command& bench);
void add_bench_train(Command& bench);
void add_bench_warps(Command& bench);

}  // namespace gradtile::cli
