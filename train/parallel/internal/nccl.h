#pragma once
/// NCCL, loaded at first use: runs on one GPU or on the CPU do not need the library.
#include <cstddef>

#include <nccl.h>

namespace gradtile::cuda {

struct Nccl {
    int version;  ///< NCCL's encoding: 22803 is 2.28.3
    decltype(&ncclGetUniqueId) get_unique_id;
    decltype(&ncclCommInitRank) comm_init_rank;
    decltype(&ncclCommAbort) comm_abort;
    decltype(&ncclCommGetAsyncError) comm_get_async_error;
    decltype(&ncclAllReduce) all_reduce;
    decltype(&ncclReduceScatter) reduce_scatter;
    decltype(&ncclAllGather) all_gather;
    decltype(&ncclBroadcast) broadcast;
    decltype(&ncclSend) send;
    decltype(&ncclRecv) receive;
    decltype(&ncclGroupStart) group_start;
    decltype(&ncclGroupEnd) group_end;
    decltype(&ncclGetErrorString) error_string;

    // The functions for symmetric memory, which are null before NCCL 2.28. The types are spelled out because
    // the header may be older.
    ncclResult_t (*mem_alloc)(void** data, std::size_t bytes);
    ncclResult_t (*mem_free)(void* data);
    ncclResult_t (*comm_window_register)(ncclComm_t comm, void* data, std::size_t bytes, void** window,
                                         int flags);
    ncclResult_t (*comm_window_deregister)(ncclComm_t comm, void* window);
    bool has_symmetric_memory() const { return comm_window_deregister != nullptr; }
};
/// Throws Error when the library cannot be loaded.
const Nccl& nccl();

/// Throws Error with NCCL's message unless the result is ncclSuccess.
void nccl_check(ncclResult_t result, const char* what);

}  // namespace gradtile::cuda
