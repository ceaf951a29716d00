#include <gradtile/core/gemm/internal/gemm_lt.h>

#include <algorithm>
#include <bit>
#include <limits>

#include <gradtile/core/gemm/internal/cublas.h>
#include <gradtile/core/gemm/internal/gemm_backend.h>
#include <gradtile/core/gemm/internal/gemm_state.h>

namespace gradtile::cuda {
namespace {

/// The largest power of two up to 256 that divides an address; 256 for a null pointer.
std::int64_t alignment_of(const void* address) {
    return std::int64_t{1} << std::min(8, std::countr_zero(reinterpret_cast<std::uintptr_t>(address)));
}

std::int64_t epilogue_of(const GemmOptions& options, const GemmFusion& fusion) {
    switch (fusion.kind) {
        case GemmFusion::Kind::none:
            break;
        case GemmFusion::Kind::gelu_forward:
            return options.bias.defined() ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
        case GemmFusion::Kind::gelu_backward:
            return CUBLASLT_EPILOGUE_DGELU;
        case GemmFusion::Kind::gated_forward:
            return first_own_epilogue;
        case GemmFusion::Kind::gated_backward:
            return first_own_epilogue + 1;
    }
    return options.bias.defined() ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
}

}  // namespace

bool gemm_lt(const Context& ctx, const Tensor& c, const Tensor& a, const Tensor& b,
             const GemmOptions& options, const GemmFusion& fusion, const GemmAlternatives& alternatives) {
    const Tensor &bias = options.bias, &hidden = fusion.hidden;
    const bool to_tf32 = a.dtype() == DType::f32 && ctx.tf32();
    const GemmProblem problem{
        .library = 0,  // GemmState fills in this member and the next two
        .architecture = 0,
        .multiprocessors = 0,
        .m = c.size(-2),
        .n = c.size(-1),
        .k = a.size(options.trans_a ? -2 : -1),
        .batch = c.rank() > 2 ? c.size(0) : 1,
        .trans_a = options.trans_a,
        .trans_b = options.trans_b,
        .accumulates = options.accumulate,
        .epilogue = epilogue_of(options, fusion),
        .in_type = cublas_type(a.dtype()),
        .out_type = cublas_type(c.dtype()),
        .bias_type = bias.defined() ? cublas_type(bias.dtype()) : 0,
        .compute_type = to_tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F,
        .a_row = row_distance(a),
        .b_row = row_distance(b),
        .c_row = row_distance(c),
        .hidden_row = hidden.defined() ? row_distance(hidden) : 0,
        .a_step = matrix_distance(a),
        .b_step = matrix_distance(b),
        .c_step = matrix_distance(c),
        .a_alignment = alignment_of(a.raw_data()),
        .b_alignment = alignment_of(b.raw_data()),
        .c_alignment = alignment_of(c.raw_data()),
        .bias_alignment = bias.defined() ? alignment_of(bias.raw_data()) : 0,
        .hidden_alignment = hidden.defined() ? alignment_of(hidden.raw_data()) : 0,
    };
    if (problem.batch > std::numeric_limits<std::int32_t>::max()) return false;
    const GemmPointers addresses{.a = a.raw_data(),
                                 .b = b.raw_data(),
                                 .bias = bias.defined() ? bias.raw_data() : nullptr,
                                 .c = c.raw_data(),
                                 .hidden = hidden.defined() ? hidden.raw_data() : nullptr};
    return ctx.gemm_state()->run(ctx, problem, addresses, static_cast<float>(options.alpha), alternatives);
}

}  // namespace gradtile::cuda
