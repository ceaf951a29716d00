#include <gradtile/core/gemm/internal/cublas.h>

#include <map>
#include <memory>
#include <string>

#include <gradtile/core/gemm/gemm.h>
#include <gradtile/core/gemm/gemm_algorithms.h>
#include <gradtile/core/gemm/internal/gemm_state.h>
#include <gradtile/core/internal/cuda_check.h>
#include <gradtile/core/shared_library.h>

namespace gradtile {

std::string cuda_matrix_library() {
    cuda::cublas();
    const std::size_t version = cuda::cublas_lt().version();  // 130100 is 13.1.0
    return concat(version / 10000, '.', version / 100 % 100, '.', version % 100);
}

namespace cuda {
namespace {

SharedLibrary library_of_toolkit(const char* stem) {
    const std::string name = concat(stem, ".so.", CUDART_VERSION / 1000);
    // The second path is for a toolkit that is not on the loader's search path.
    return {"cuda",
            {name, GRADTILE_CUDA_LIBRARY_DIR "/" + name},
            concat("apt-get install libcublas-", CUDART_VERSION / 1000, '-', CUDART_VERSION % 1000 / 10,
                   " (from NVIDIA's repository), or use --device cpu")};
}

Cublas load_cublas() {
    const SharedLibrary library = library_of_toolkit("libcublas");
    Cublas functions{};
    library.find("cublasCreate_v2", functions.create);
    library.find("cublasDestroy_v2", functions.destroy);
    library.find("cublasSetStream_v2", functions.set_stream);
    library.find("cublasSetWorkspace_v2", functions.set_workspace);
    library.find("cublasGemmStridedBatchedEx", functions.gemm_strided_batched);
    return functions;
}

CublasLt load_cublas_lt() {
    const SharedLibrary library = library_of_toolkit("libcublasLt");
    CublasLt functions{};
    library.find("cublasLtCreate", functions.create);
    library.find("cublasLtDestroy", functions.destroy);
    library.find("cublasLtGetVersion", functions.version);
    library.find("cublasLtGetStatusString", functions.status_string);
    library.find("cublasLtMatmulDescInit_internal", functions.operation_init);
    library.find("cublasLtMatmulDescSetAttribute", functions.operation_set);
    library.find("cublasLtMatrixLayoutInit_internal", functions.layout_init);
    library.find("cublasLtMatrixLayoutSetAttribute", functions.layout_set);
    library.find("cublasLtMatmulPreferenceInit_internal", functions.preference_init);
    library.find("cublasLtMatmulPreferenceSetAttribute", functions.preference_set);
    library.find("cublasLtMatmulAlgoGetHeuristic", functions.heuristic);
    library.find("cublasLtMatmulAlgoConfigGetAttribute", functions.configuration);
    library.find("cublasLtMatmul", functions.matmul);
    return functions;
}

struct DestroyHandle {
    void operator()(cublasHandle_t handle) const { (void)cublas().destroy(handle); }
};
using Handle = std::unique_ptr<std::remove_pointer_t<cublasHandle_t>, DestroyHandle>;

}  // namespace

const Cublas& cublas() {
    static const Cublas functions = load_cublas();
    return functions;
}

const CublasLt& cublas_lt() {
    static const CublasLt functions = load_cublas_lt();
    return functions;
}

void cublas_check(cublasStatus_t status) {
    check(status == CUBLAS_STATUS_SUCCESS, "gemm: cuBLAS: ", cublas_lt().status_string(status));
}

cudaDataType_t cublas_type(DType type) {
    switch (type) {
        case DType::f64:
            return CUDA_R_64F;
        case DType::f32:
            return CUDA_R_32F;
        case DType::bf16:
            return CUDA_R_16BF;
        case DType::f16:
            return CUDA_R_16F;
        case DType::i32:
            break;
    }
    throw Error("gemm: int32 operands; expected floating-point operands");
}

cublasHandle_t cublas_handle(const Context& ctx) {
    use_device(ctx.device());
    thread_local std::map<int, Handle> handles;  // a handle belongs to one device and one thread at a time
    Handle& handle = handles[ctx.device().index()];
    if (handle == nullptr) {
        const RelaxedCapture relaxed;
        cublasHandle_t created = nullptr;
        cublas_check(cublas().create(&created));
        handle.reset(created);
    }
    cublas_check(cublas().set_stream(handle.get(), static_cast<cudaStream_t>(ctx.stream())));
    // Called after set_stream, because set_stream resets the workspace. With this workspace, cuBLAS allocates
    // no memory, even during a capture.
    cublas_check(cublas().set_workspace(handle.get(), ctx.gemm_state()->workspace(), gemm_workspace_bytes));
    return handle.get();
}

}  // namespace cuda
}  // namespace gradtile
