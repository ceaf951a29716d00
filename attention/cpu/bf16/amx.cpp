// FlashAttention-2 in bf16 on AMX.
#include <gradtile/attention/cpu/bf16/table.h>
#include <gradtile/attention/cpu/bf16/tiles_amx.h>
#include <gradtile/attention/cpu/selection.h>

namespace gradtile::attention::cpu {

constinit const FlashKernels<bfloat16> amx_bf16_kernels = bf16_kernels_on<AmxTiles>("amx-bf16");

}  // namespace gradtile::attention::cpu
