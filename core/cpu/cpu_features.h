#pragma once
/// Whether instruction sets can be used: the processor has them and the operating system saves their
/// registers. Every function returns false on processors of another architecture.
namespace gradtile {

/// AVX2, FMA and F16C. Every processor with AVX2 also has the other two, but a virtual machine may hide them.
bool cpu_has_avx2_fma();
/// AVX-512 F, BW, DQ and VL, which every server processor with AVX-512 since Skylake has.
bool cpu_has_avx512();
/// cpu_has_avx512(), and products of bf16 pairs.
bool cpu_has_avx512_bf16();
/// cpu_has_avx512_bf16(), and AMX tiles with bf16 products. Asks the operating system for permission to use
/// AMX in this process.
bool cpu_has_amx_bf16();
/// NEON with FMA, which every aarch64 processor has.
bool cpu_has_neon();
/// cpu_has_neon(), and products of bf16 pairs (BFDOT), which processors have since Armv8.6: Graviton 3,
/// Grace.
bool cpu_has_neon_bf16();

}  // namespace gradtile
