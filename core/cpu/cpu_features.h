#pragma once
/// Instruction sets that this processor has and the operating system saves; all false where it is not x86-64.
namespace gradtile {

bool cpu_has_avx2_fma();
/// AVX-512 F, BW, DQ and VL: what every server processor with AVX-512 since Skylake has.
bool cpu_has_avx512();
/// Products of bf16 pairs on top of cpu_has_avx512().
bool cpu_has_avx512_bf16();
/// AMX tiles with bf16 products on top of that. Asks the operating system to let this process use them.
bool cpu_has_amx_bf16();

}  // namespace gradtile
