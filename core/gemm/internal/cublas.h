#pragma once
/// cuBLAS and cuBLASLt, loaded at the first product on a GPU. Without them, the program starts and trains on
/// the CPU.
#include <cublasLt.h>
#include <cublas_v2.h>

#include <gradtile/core/context.h>
#include <gradtile/core/dtype.h>

namespace gradtile::cuda {

/// The type of cublasGemmStridedBatchedEx. decltype cannot be used, because the function has C++ overloads.
using CublasGemmStridedBatched = cublasStatus_t (*)(cublasHandle_t, cublasOperation_t, cublasOperation_t,
                                                    int m, int n, int k, const void* alpha, const void* a,
                                                    cudaDataType, int lda, long long a_step, const void* b,
                                                    cudaDataType, int ldb, long long b_step, const void* beta,
                                                    void* c, cudaDataType, int ldc, long long c_step,
                                                    int batch, cublasComputeType_t, cublasGemmAlgo_t);

struct Cublas {
    decltype(&cublasCreate_v2) create;
    decltype(&cublasDestroy_v2) destroy;
    decltype(&cublasSetStream_v2) set_stream;
    decltype(&cublasSetWorkspace_v2) set_workspace;
    CublasGemmStridedBatched gemm_strided_batched;
};
/// Loads cuBLAS. Throws Error when the library cannot be loaded.
const Cublas& cublas();

/// The functions of cuBLASLt. cublasLt.h calls those with _internal in their names from inline functions.
struct CublasLt {
    decltype(&cublasLtCreate) create;
    decltype(&cublasLtDestroy) destroy;
    decltype(&cublasLtGetVersion) version;
    decltype(&cublasLtGetStatusString) status_string;
    decltype(&cublasLtMatmulDescInit_internal) operation_init;
    decltype(&cublasLtMatmulDescSetAttribute) operation_set;
    decltype(&cublasLtMatrixLayoutInit_internal) layout_init;
    decltype(&cublasLtMatrixLayoutSetAttribute) layout_set;
    decltype(&cublasLtMatmulPreferenceInit_internal) preference_init;
    decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set;
    decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic;
    decltype(&cublasLtMatmulAlgoConfigGetAttribute) configuration;
    decltype(&cublasLtMatmul) matmul;
};
/// Loads cuBLASLt. Throws Error when the library cannot be loaded.
const CublasLt& cublas_lt();

/// Returns the calling thread's handle for ctx's device, with ctx's stream and workspace.
cublasHandle_t cublas_handle(const Context& ctx);

/// Throws Error "gemm: cuBLAS: DESCRIPTION" unless the status is success.
void cublas_check(cublasStatus_t status);

/// Returns cuBLAS's enumerator of a dtype. Throws Error for int32.
cudaDataType_t cublas_type(DType type);

}  // namespace gradtile::cuda
