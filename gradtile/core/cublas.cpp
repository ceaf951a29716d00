#include <gradtile/core/cublas.h>

#include <dlfcn.h>

#include <map>
#include <memory>
#include <string>

#include <gradtile/core/cuda_check.h>

namespace gradtile::cuda {
namespace {

template <class Function>
void load(void* library, const char* symbol, Function& function) {
    function = reinterpret_cast<Function>(dlsym(library, symbol));
    check(function != nullptr, "cuda: libcublas has no ", symbol);
}

Cublas load_cublas() {
    const std::string name = concat("libcublas.so.", CUDART_VERSION / 1000);
    void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    // A toolkit that the loader's search path does not list.
    if (library == nullptr)
        library = dlopen((GRADTILE_CUDA_LIBRARY_DIR "/" + name).c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) throw Error(concat("cuda: ", name, " cannot be loaded: ", dlerror()));
    Cublas functions{};
    load(library, "cublasCreate_v2", functions.create);
    load(library, "cublasDestroy_v2", functions.destroy);
    load(library, "cublasSetStream_v2", functions.set_stream);
    load(library, "cublasGemmStridedBatchedEx", functions.gemm_strided_batched);
    load(library, "cublasGetStatusString", functions.status_string);
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

void cublas_check(cublasStatus_t status, const char* what) {
    check(status == CUBLAS_STATUS_SUCCESS, what, ": cuBLAS: ", cublas().status_string(status));
}

cublasHandle_t cublas_handle(const Context& ctx) {
    use_device(ctx.device());
    thread_local std::map<int, Handle> handles;  // a handle belongs to one device and one thread at a time
    Handle& handle = handles[ctx.device().index()];
    if (handle == nullptr) {
        cublasHandle_t created = nullptr;
        cublas_check(cublas().create(&created), "gemm");
        handle.reset(created);
    }
    cublas_check(cublas().set_stream(handle.get(), static_cast<cudaStream_t>(ctx.stream())), "gemm");
    return handle.get();
}

}  // namespace gradtile::cuda
