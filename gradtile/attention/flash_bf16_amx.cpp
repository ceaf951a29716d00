// FlashAttention-2 in bf16 on AMX.
#include <gradtile/attention/flash_bf16_table.h>
#include <gradtile/attention/flash_select_cpu.h>
#include <gradtile/attention/tiles_amx.h>

namespace gradtile::attention::cpu {

constinit const FlashKernels<bfloat16> amx_bf16_kernels = bf16_kernels_on<AmxTiles>("amx-bf16");

}  // namespace gradtile::attention::cpu
