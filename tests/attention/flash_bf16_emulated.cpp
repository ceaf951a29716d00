// The bf16 kernels on emulated AMX tiles: tests the AMX code on machines without AMX.
#include "flash_bf16_emulated.h"

#include <gradtile/attention/cpu/bf16/table.h>

#include "tiles_emulated.h"

namespace gradtile::attention::cpu {

constinit const FlashKernels<bfloat16> emulated_bf16_kernels =
    bf16_kernels_on<EmulatedTiles>("emulated-amx-bf16");

}  // namespace gradtile::attention::cpu
