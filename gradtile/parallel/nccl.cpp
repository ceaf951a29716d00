#include <gradtile/parallel/nccl.h>

#include <dlfcn.h>

#include <gradtile/core/check.h>

namespace gradtile::cuda {
namespace {

template <class Function>
void load(void* library, const char* symbol, Function& function) {
    function = reinterpret_cast<Function>(dlsym(library, symbol));
    check(function != nullptr, "nccl: the installed NCCL has no ", symbol);
}

Nccl load_nccl() {
    void* library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    // One that the loader's search path does not list.
    if (library == nullptr) library = dlopen(GRADTILE_NCCL_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) throw Error(concat("nccl: libnccl.so.2 cannot be loaded: ", dlerror()));
    Nccl functions{};
    load(library, "ncclGetUniqueId", functions.get_unique_id);
    load(library, "ncclCommInitRank", functions.comm_init_rank);
    load(library, "ncclCommAbort", functions.comm_abort);
    load(library, "ncclCommGetAsyncError", functions.comm_get_async_error);
    load(library, "ncclAllReduce", functions.all_reduce);
    load(library, "ncclReduceScatter", functions.reduce_scatter);
    load(library, "ncclAllGather", functions.all_gather);
    load(library, "ncclBroadcast", functions.broadcast);
    load(library, "ncclGetErrorString", functions.error_string);
    return functions;
}

}  // namespace

const Nccl& nccl() {
    static const Nccl functions = load_nccl();
    return functions;
}

void nccl_check(ncclResult_t result, const char* what) {
    check(result == ncclSuccess, "nccl: ", what, ": ", nccl().error_string(result));
}

}  // namespace gradtile::cuda
