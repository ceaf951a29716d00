#include <gradtile/core/gemm/internal/gemm_state.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <memory>

#include <gradtile/core/cuda/event.h>
#include <gradtile/core/cuda/internal/cublas.h>
#include <gradtile/core/cuda/internal/cuda_check.h>
#include <gradtile/core/gemm/gemm.h>
#include <gradtile/core/gemm/internal/gemm_backend.h>

namespace gradtile::cuda {
namespace {

constexpr int proposals = 8;  // the heuristic returns at most 8, best estimate first (cuBLASLt 13.1)
/// The number of kinds of products that are timed. A training step has about twenty. Sampling text adds four
/// kinds per token, each used once, so timing all of them would cost more than it saves.
constexpr std::size_t max_timed = 256;

/// Whether the product is valid, but this algorithm or library does not support it.
bool refused(cublasStatus_t status) {
    return status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE ||
           status == CUBLAS_STATUS_ARCH_MISMATCH;
}

bool is_capturing(cudaStream_t stream) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    cuda_check(cudaStreamIsCapturing(stream, &status));
    return status != cudaStreamCaptureStatusNone;
}

}  // namespace

/// A problem as cuBLASLt's descriptors. Row-major c = op(a) op(b) is column-major c^T = op(b)^T op(a)^T, and
/// the memory of a row-major matrix is its transpose in column-major order. So b is passed before a, and M
/// and N are exchanged.
class GemmState::Operation {
  public:
    Operation(const GemmProblem& p, const GemmPointers& pointers, float alpha)
        : problem(p), at(pointers), alpha_(alpha), beta_(p.accumulates != 0 ? 1.0f : 0.0f) {
        const auto compute = static_cast<cublasComputeType_t>(p.compute_type);
        cublas_check(lt_.operation_init(&operation_, sizeof operation_, compute, CUDA_R_32F), "gemm");
        set(CUBLASLT_MATMUL_DESC_TRANSA, p.trans_b != 0 ? CUBLAS_OP_T : CUBLAS_OP_N);
        set(CUBLASLT_MATMUL_DESC_TRANSB, p.trans_a != 0 ? CUBLAS_OP_T : CUBLAS_OP_N);
        set(CUBLASLT_MATMUL_DESC_EPILOGUE, static_cast<cublasLtEpilogue_t>(p.epilogue));
        if (at.bias != nullptr) {
            set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, at.bias);
            set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, static_cast<cudaDataType_t>(p.bias_type));
        }
        if (at.hidden != nullptr) {
            set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, at.hidden);
            set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, p.hidden_row);
        }
        lay_out(a_, p.in_type, p.trans_a != 0 ? p.k : p.m, p.trans_a != 0 ? p.m : p.k, p.a_row, p.a_step);
        lay_out(b_, p.in_type, p.trans_b != 0 ? p.n : p.k, p.trans_b != 0 ? p.k : p.n, p.b_row, p.b_step);
        lay_out(c_, p.out_type, p.m, p.n, p.c_row, p.c_step);
    }

    /// Launches the product. Writes to `result`, which has c's layout; an accumulating product reads c.
    cublasStatus_t launch(cublasLtHandle_t handle, const cublasLtMatmulAlgo_t& algorithm, void* workspace,
                          cudaStream_t stream, void* result) const {
        return lt_.matmul(handle, mutable_(operation_), &alpha_, at.b, mutable_(b_), at.a, mutable_(a_),
                          &beta_, at.c, mutable_(c_), result, mutable_(c_), &algorithm, workspace,
                          gemm_workspace_bytes, stream);
    }

    /// Whether a restored algorithm is valid for this problem and needs no more than the workspace.
    bool accepts(cublasLtHandle_t handle, const cublasLtMatmulAlgo_t& algorithm) const {
        cublasLtMatmulHeuristicResult_t result{};
        const cublasStatus_t status =
            lt_.algorithm_check(handle, mutable_(operation_), mutable_(b_), mutable_(a_), mutable_(c_),
                                mutable_(c_), &algorithm, &result);
        return status == CUBLAS_STATUS_SUCCESS && result.workspaceSize <= gemm_workspace_bytes;
    }

    std::vector<cublasLtMatmulAlgo_t> proposed(cublasLtHandle_t handle) const {
        cublasLtMatmulPreferenceOpaque_t preference;
        cublas_check(lt_.preference_init(&preference, sizeof preference), "gemm");
        const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
            cublas_check(lt_.preference_set(&preference, attribute, &value, sizeof value), "gemm");
        };
        prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{gemm_workspace_bytes});
        // Partial sums over K must not be added in a 16-bit output's type.
        std::uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
        if (problem.out_type == CUDA_R_32F) reductions |= CUBLASLT_REDUCTION_SCHEME_INPLACE;
        prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reductions);
        prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, static_cast<std::uint32_t>(problem.b_alignment));
        prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, static_cast<std::uint32_t>(problem.a_alignment));
        prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, static_cast<std::uint32_t>(problem.c_alignment));
        prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, static_cast<std::uint32_t>(problem.c_alignment));
        cublasLtMatmulHeuristicResult_t results[proposals];
        int found = 0;
        const cublasStatus_t status =
            lt_.heuristic(handle, mutable_(operation_), mutable_(b_), mutable_(a_), mutable_(c_),
                          mutable_(c_), &preference, proposals, results, &found);
        if (refused(status)) return {};
        cublas_check(status, "gemm");
        std::vector<cublasLtMatmulAlgo_t> algorithms;
        for (int i = 0; i < found; ++i)
            if (results[i].state == CUBLAS_STATUS_SUCCESS) algorithms.push_back(results[i].algo);
        return algorithms;
    }

    std::size_t bytes_of_c() const {
        const std::int64_t elements =
            (problem.batch - 1) * problem.c_step + (problem.m - 1) * problem.c_row + problem.n;
        return static_cast<std::size_t>(elements) * (problem.out_type == CUDA_R_32F ? 4 : 2);
    }

    const GemmProblem& problem;
    const GemmPointers& at;

  private:
    template <class Value>
    void set(cublasLtMatmulDescAttributes_t attribute, const Value& value) {
        cublas_check(lt_.operation_set(&operation_, attribute, &value, sizeof value), "gemm");
    }

    /// Describes a row-major matrix.
    void lay_out(cublasLtMatrixLayoutOpaque_t& layout, std::int64_t type, std::int64_t rows,
                 std::int64_t columns, std::int64_t row_distance, std::int64_t step) {
        cublas_check(lt_.layout_init(&layout, sizeof layout, static_cast<cudaDataType_t>(type),
                                     static_cast<std::uint64_t>(columns), static_cast<std::uint64_t>(rows),
                                     row_distance),
                     "gemm");
        if (problem.batch == 1) return;
        const auto batch = static_cast<std::int32_t>(problem.batch);
        cublas_check(lt_.layout_set(&layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch, sizeof batch),
                     "gemm");
        cublas_check(lt_.layout_set(&layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &step, sizeof step),
                     "gemm");
    }

    /// cuBLASLt only reads descriptors, but takes pointers to non-const.
    template <class Opaque>
    static Opaque* mutable_(const Opaque& descriptor) {
        return const_cast<Opaque*>(&descriptor);
    }

    const CublasLt& lt_ = cublas_lt();
    float alpha_, beta_;
    cublasLtMatmulDescOpaque_t operation_;
    cublasLtMatrixLayoutOpaque_t a_, b_, c_;
};

GemmState::GemmState(Device device)
    : device_(device), workspace_(system_allocator(device), gemm_workspace_bytes) {}

GemmState::~GemmState() {
    if (handle_ != nullptr) (void)cublas_lt().destroy(handle_);
}

void GemmState::prepare() {
    if (handle_ != nullptr) return;
    const RelaxedCapture relaxed;
    const auto attribute = [&](cudaDeviceAttr which) {
        int value = 0;
        cuda_check(cudaDeviceGetAttribute(&value, which, device_.index()));
        return value;
    };
    architecture_ =
        10 * attribute(cudaDevAttrComputeCapabilityMajor) + attribute(cudaDevAttrComputeCapabilityMinor);
    multiprocessors_ = attribute(cudaDevAttrMultiProcessorCount);
    library_ = static_cast<std::int64_t>(cublas_lt().version());
    cublas_check(cublas_lt().create(&handle_), "gemm");
}

void GemmState::place(GemmProblem& problem) const {
    problem.library = library_;
    problem.architecture = architecture_;
    problem.multiprocessors = multiprocessors_;
}

/// Sorts the candidates by their time. Returns true when in_steps is faster than all of them. The clock of a
/// GPU falls while it warms up, so the candidates are timed in turns.
bool GemmState::sort_by_time(const Operation& operation, cudaStream_t stream,
                             const std::function<void()>& in_steps,
                             std::vector<cublasLtMatmulAlgo_t>& candidates) {
    // A product that accumulates must change c only once, so its timed launches read c and write to a buffer.
    void* result = operation.at.c;
    std::optional<Buffer> elsewhere;
    if (operation.problem.accumulates != 0) {
        try {
            elsewhere.emplace(system_allocator(device_), operation.bytes_of_c());
        } catch (const OutOfMemory&) {
            return false;  // keeps the heuristic's order
        }
        result = elsewhere->data();
    }
    struct Timing {
        std::optional<cublasLtMatmulAlgo_t> algorithm;  // nullopt if in_steps was fastest
        float milliseconds = 0;
    };
    std::vector<Timing> timings(candidates.begin(), candidates.end());
    if (in_steps) timings.push_back({std::nullopt});

    const Event start(device_), end(device_);
    const auto milliseconds = [&](const Timing& timing, int times) {
        start.record(stream);
        for (int i = 0; i < times; ++i) {
            if (!timing.algorithm) {
                in_steps();
            } else if (operation.launch(handle_, *timing.algorithm, workspace_.data(), stream, result) !=
                       CUBLAS_STATUS_SUCCESS) {
                return std::numeric_limits<float>::infinity();
            }
        }
        end.record(stream);
        return static_cast<float>(end.milliseconds_since(start) / times);
    };
    const auto sort = [&] {
        std::stable_sort(timings.begin(), timings.end(),
                         [](const Timing& x, const Timing& y) { return x.milliseconds < y.milliseconds; });
    };
    for (Timing& timing : timings) {
        (void)milliseconds(timing, 1);  // loads the kernel
        timing.milliseconds = milliseconds(timing, 1);
        // The time of one short launch is mostly launch overhead.
        if (timing.milliseconds < 0.1f) timing.milliseconds = milliseconds(timing, 10);
    }
    sort();
    // Candidates within 30 % of the fastest are timed again, half a millisecond each time, so that the
    // clock's resolution of half a microsecond does not matter.
    const float first = timings.front().milliseconds;
    const int times = std::clamp(static_cast<int>(0.5f / first), 1, 50);
    const auto fast_end = std::find_if(timings.begin(), timings.end(),
                                       [&](const Timing& x) { return x.milliseconds > 1.3f * first; });
    std::for_each(timings.begin(), fast_end, [](Timing& x) { x.milliseconds = 0; });
    constexpr int rounds = 4;
    for (int round = 0; round < rounds; ++round)
        std::for_each(timings.begin(), fast_end,
                      [&](Timing& x) { x.milliseconds += milliseconds(x, times) / rounds; });
    std::for_each(fast_end, timings.end(),
                  [](Timing& x) { x.milliseconds = std::numeric_limits<float>::infinity(); });
    sort();
    ++timed_;

    candidates.clear();
    for (const Timing& timing : timings)
        if (timing.algorithm) candidates.push_back(*timing.algorithm);
    return !timings.front().algorithm;
}

bool GemmState::run(const Context& ctx, GemmProblem problem, const GemmPointers& at, float alpha,
                    const std::function<void()>& in_steps) {
    const std::lock_guard lock(mutex_);
    use_device(device_);
    prepare();
    place(problem);
    const auto stream = static_cast<cudaStream_t>(ctx.stream());
    const Operation operation(problem, at, alpha);
    const auto launched = [&](const cublasLtMatmulAlgo_t& algorithm) {
        const cublasStatus_t status = operation.launch(handle_, algorithm, workspace_.data(), stream, at.c);
        if (refused(status)) return false;
        cublas_check(status, "gemm");
        return true;
    };

    const auto known = chosen_.find(problem);
    if (known != chosen_.end()) {
        if (!known->second) return false;
        const bool unknown_here = restored_.erase(problem) > 0;
        if ((!unknown_here || operation.accepts(handle_, *known->second)) && launched(*known->second))
            return true;
        chosen_.erase(known);
    }
    std::vector<cublasLtMatmulAlgo_t> candidates = operation.proposed(handle_);
    const bool may_time = timed_ < max_timed && !ctx.deterministic() && !is_capturing(stream);
    if (may_time && candidates.size() + (in_steps ? 1 : 0) > 1 && !candidates.empty() &&
        sort_by_time(operation, stream, in_steps, candidates))
        candidates.clear();
    for (const cublasLtMatmulAlgo_t& algorithm : candidates) {
        if (!launched(algorithm)) continue;
        chosen_[problem] = algorithm;
        return true;
    }
    chosen_[problem] = std::nullopt;
    return false;
}

// A product for which cuBLASLt is not used is stored as an algorithm of zeros.

std::vector<GemmAlgorithm> GemmState::algorithms() {
    const std::lock_guard lock(mutex_);
    std::vector<GemmAlgorithm> list;
    for (const auto& [problem, algorithm] : chosen_)
        list.push_back({.problem = std::bit_cast<decltype(GemmAlgorithm::problem)>(problem),
                        .algorithm = std::bit_cast<decltype(GemmAlgorithm::algorithm)>(
                            algorithm.value_or(cublasLtMatmulAlgo_t{}))});
    return list;
}

std::size_t GemmState::restore(std::span<const GemmAlgorithm> algorithms) {
    const std::lock_guard lock(mutex_);
    use_device(device_);
    prepare();
    std::size_t taken = 0;
    for (const auto& [numbers, algorithm] : algorithms) {
        const auto problem = std::bit_cast<GemmProblem>(numbers);
        GemmProblem here = problem;
        place(here);
        if (here != problem) continue;
        ++taken;
        std::optional<cublasLtMatmulAlgo_t>& choice = chosen_[problem];
        choice.reset();
        if (algorithm == decltype(GemmAlgorithm::algorithm){}) continue;
        choice = std::bit_cast<cublasLtMatmulAlgo_t>(algorithm);
        restored_.insert(problem);
    }
    return taken;
}

std::shared_ptr<GemmState> make_gemm_state(Device device) {
    return std::make_shared<GemmState>(device);
}

std::vector<GemmAlgorithm> gemm_algorithms(const Context& ctx) {
    return ctx.gemm_state()->algorithms();
}

std::size_t restore_gemm_algorithms(const Context& ctx, std::span<const GemmAlgorithm> algorithms) {
    return ctx.gemm_state()->restore(algorithms);
}

}  // namespace gradtile::cuda
