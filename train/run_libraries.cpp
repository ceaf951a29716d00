#include <gradtile/train/run_libraries.h>

#include <gradtile/core/gemm/gemm.h>
#include <gradtile/core/gemm/gemm_algorithms.h>
#include <gradtile/train/checkpoint/internal/hdf5_library.h>
#include <gradtile/train/data/readers/decompressor.h>
#include <gradtile/train/parallel/internal/communicator_backend.h>
#include <gradtile/train/parallel/internal/mpi.h>
#include <gradtile/train/tokenizers/internal/regex.h>
#include <gradtile/train/tokenizers/internal/unicode.h>

namespace gradtile {
namespace {

std::string hdf5_version() {
    const Hdf5Lock lock;
    unsigned major = 0, minor = 0, release = 0;
    hdf5_check(H5get_libversion(&major, &minor, &release), "read libhdf5's version");
    return concat(major, '.', minor, '.', release);
}

/// For a library that does not state its version.
template <class Use>
std::function<std::string()> without_version(Use use) {
    return [use] {
        use();
        return std::string();
    };
}

}  // namespace

std::vector<RunLibrary> run_libraries() {
    using enum RunLibrary::Need;
    return {
        {"oneDNN/OpenBLAS", "matrix products on the CPU", every_run, [] { return cpu_matrix_library(); }},
        {"HDF5", "checkpoints", every_run, hdf5_version},
        {"PCRE2", "BPE tokenizers", some_runs, without_version([] { Regex("a", "BPE tokenizer"); })},
        {"utf8proc", "normalizers of tokenizers", some_runs,
         without_version([] { require_unicode_library("tokenizer"); })},
        {"zlib", "gzip data", some_runs, without_version([] { gzip_decompressor("gzip data"); })},
        {"zstd", "zstd data", some_runs, without_version([] { zstd_decompressor("zstd data"); })},
        {"MPI", "mpirun on the CPU", some_runs, without_version([] { mpi::functions(); })},
        {"cuBLAS", "matrix products on a GPU", gpu, cuda_matrix_library},
        {"NCCL", "--gpus", several_gpus, nccl_version},
    };
}

}  // namespace gradtile
