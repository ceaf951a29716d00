#include <gradtile/core/cublas.h>

#include <dlfcn.h>

#include <map>
#include <memory>
#include <string>

#include <gradtile/core/cuda_check.h>
#include <gradtile/core/gemm.h>
#include <gradtile/core/gemm_state.h>

namespace gradtile::cuda {
namespace {

void* open_library(const char* stem) {
    const std::string name = concat(stem, ".so.", CUDART_VERSION / 1000);
    void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    // A toolkit that the loader's search path does not list.
    if (library == nullptr)
        library = dlopen((GRADTILE_CUDA_LIBRARY_DIR "/" + name).c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) throw Error(concat("cuda: ", name, " cannot be loaded: ", dlerror()));
    return library;
}

template <class Function>
void load(void* library, const char* symbol, Function& function) {
    function = reinterpret_cast<Function>(dlsym(library, symbol));
    check(function != nullptr, "cuda: the installed cuBLAS has no ", symbol);
}

Cublas load_cublas() {
    void* const library = open_library("libcublas");
    Cublas functions{};
    load(library, "cublasCreate_v2", functions.create);
    load(library, "cublasDestroy_v2", functions.destroy);
    load(library, "cublasSetStream_v2", functions.set_stream);
    load(library, "cublasSetWorkspace_v2", functions.set_workspace);
    load(library, "cublasGemmStridedBatchedEx", functions.gemm_strided_batched);
    return functions;
}

CublasLt load_cublas_lt() {
    void* const library = open_library("libcublasLt");
    CublasLt functions{};
    load(library, "cublasLtCreate", functions.create);
    load(library, "cublasLtDestroy", functions.destroy);
    load(library, "cublasLtGetVersion", functions.version);
    load(library, "cublasLtGetStatusString", functions.status_string);
    load(library, "cublasLtMatmulDescInit_internal", functions.operation_init);
    load(library, "cublasLtMatmulDescSetAttribute", functions.operation_set);
    load(library, "cublasLtMatrixLayoutInit_internal", functions.layout_init);
    load(library, "cublasLtMatrixLayoutSetAttribute", functions.layout_set);
    load(library, "cublasLtMatmulPreferenceInit_internal", functions.preference_init);
    load(library, "cublasLtMatmulPreferenceSetAttribute", functions.preference_set);
    load(library, "cublasLtMatmulAlgoGetHeuristic", functions.heuristic);
    load(library, "cublasLtMatmulAlgoCheck", functions.algorithm_check);
    load(library, "cublasLtMatmul", functions.matmul);
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

void cublas_check(cublasStatus_t status, const char* what) {
    check(status == CUBLAS_STATUS_SUCCESS, what, ": cuBLAS: ", cublas_lt().status_string(status));
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
    throw Error("gemm: int32 operands");
}

cublasHandle_t cublas_handle(const Context& ctx) {
    use_device(ctx.device());
    thread_local std::map<int, Handle> handles;  // a handle belongs to one device and one thread at a time
    Handle& handle = handles[ctx.device().index()];
    if (handle == nullptr) {
        const RelaxedCapture relaxed;
        cublasHandle_t created = nullptr;
        cublas_check(cublas().create(&created), "gemm");
        handle.reset(created);
    }
    cublas_check(cublas().set_stream(handle.get(), static_cast<cudaStream_t>(ctx.stream())), "gemm");
    // After the stream, whose setting resets it. With memory of ours cuBLAS allocates none, captured or not.
    cublas_check(cublas().set_workspace(handle.get(), ctx.gemm_state()->workspace(), gemm_workspace_bytes),
                 "gemm");
    return handle.get();
}

}  // namespace gradtile::cuda
