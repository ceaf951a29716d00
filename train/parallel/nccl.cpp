#include <gradtile/train/parallel/internal/nccl.h>

#include <gradtile/core/check.h>
#include <gradtile/core/shared_library.h>
#include <gradtile/train/parallel/internal/communicator_backend.h>

namespace gradtile {

std::string nccl_version() {
    const int version = cuda::nccl().version;  // 22803 is 2.28.3
    return concat(version / 10000, '.', version / 100 % 100, '.', version % 100);
}

namespace cuda {
namespace {

Nccl load_nccl() {
    // The second name is the build's absolute path, for a library outside the loader's search path.
    const SharedLibrary library("nccl", {"libnccl.so.2", GRADTILE_NCCL_LIBRARY},
                                "apt-get install libnccl2 (from NVIDIA's repository)");
    Nccl functions{};
    library.find("ncclGetUniqueId", functions.get_unique_id);
    library.find("ncclCommInitRank", functions.comm_init_rank);
    library.find("ncclCommAbort", functions.comm_abort);
    library.find("ncclCommGetAsyncError", functions.comm_get_async_error);
    library.find("ncclAllReduce", functions.all_reduce);
    library.find("ncclReduceScatter", functions.reduce_scatter);
    library.find("ncclAllGather", functions.all_gather);
    library.find("ncclBroadcast", functions.broadcast);
    library.find("ncclSend", functions.send);
    library.find("ncclRecv", functions.receive);
    library.find("ncclGroupStart", functions.group_start);
    library.find("ncclGroupEnd", functions.group_end);
    library.find("ncclGetErrorString", functions.error_string);
    decltype(&ncclGetVersion) get_version = nullptr;
    library.find("ncclGetVersion", get_version);
    constexpr int with_symmetric_memory = 22800;
    if (get_version(&functions.version) == ncclSuccess && functions.version >= with_symmetric_memory) {
        library.find("ncclMemAlloc", functions.mem_alloc);
        library.find("ncclMemFree", functions.mem_free);
        library.find("ncclCommWindowRegister", functions.comm_window_register);
        library.find("ncclCommWindowDeregister", functions.comm_window_deregister);
    }
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

}  // namespace cuda
}  // namespace gradtile
