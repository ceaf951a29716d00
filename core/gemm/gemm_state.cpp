#include <gradtile/core/gemm/internal/gemm_state.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <memory>

#include <gradtile/core/gemm/gemm.h>
#include <gradtile/core/gemm/internal/cublas.h>
#include <gradtile/core/gemm/internal/gemm_backend.h>
#include <gradtile/core/gemm/internal/gemm_candidates.h>
#include <gradtile/core/internal/cuda_check.h>
#include <gradtile/core/side_stream.h>

namespace gradtile::cuda {
namespace {

constexpr int proposals = 8;  // the heuristic returns at most 8, best estimate first (cuBLASLt 13.1)
/// How many kinds of products are timed. A training step has about twenty. Sampling text adds four kinds per
/// token, each used once, so timing all these kinds would cost more than it saves.
constexpr std::size_t max_timed = 256;

/// Whether this status means that the product is valid, but that this algorithm or library does not support
/// it.
bool refused(cublasStatus_t status) {
    return status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE ||
           status == CUBLAS_STATUS_ARCH_MISMATCH;
}

/// Whether the product is large enough that gradtile's kernels, whose tiles are large, may be the fastest.
bool is_large(const GemmProblem& p) {
    constexpr std::int64_t least = std::int64_t{1} << 30;  // about 4 us
    return p.m >= 128 && p.n >= 128 && p.m * p.n >= least / std::max<std::int64_t>(1, p.k);
}

bool is_capturing(cudaStream_t stream) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    cuda_check(cudaStreamIsCapturing(stream, &status));
    return status != cudaStreamCaptureStatusNone;
}

}  // namespace

/// A problem as cuBLASLt's descriptors. Row-major c = op(a) op(b) is column-major c^T = op(b)^T op(a)^T, and
/// a row-major matrix in memory is its transpose in column-major order. So b is passed before a, and M and N
/// are exchanged.
class GemmState::Operation {
  public:
    Operation(const GemmProblem& p, const GemmPointers& pointers, float alpha)
        : problem(p), addresses(pointers), alpha_(alpha), beta_(p.accumulates != 0 ? 1.0f : 0.0f) {
        const auto compute = static_cast<cublasComputeType_t>(p.compute_type);
        cublas_check(lt_.operation_init(&operation_, sizeof operation_, compute, CUDA_R_32F));
        set(CUBLASLT_MATMUL_DESC_TRANSA, p.trans_b != 0 ? CUBLAS_OP_T : CUBLAS_OP_N);
        set(CUBLASLT_MATMUL_DESC_TRANSB, p.trans_a != 0 ? CUBLAS_OP_T : CUBLAS_OP_N);
        set(CUBLASLT_MATMUL_DESC_EPILOGUE, static_cast<cublasLtEpilogue_t>(p.epilogue));
        if (addresses.bias != nullptr) {
            set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, addresses.bias);
            set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, static_cast<cudaDataType_t>(p.bias_type));
        }
        if (addresses.hidden != nullptr) {
            set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, addresses.hidden);
            set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, p.hidden_row);
        }
        lay_out(a_, p.in_type, p.trans_a != 0 ? p.k : p.m, p.trans_a != 0 ? p.m : p.k, p.a_row, p.a_step);
        lay_out(b_, p.in_type, p.trans_b != 0 ? p.n : p.k, p.trans_b != 0 ? p.k : p.n, p.b_row, p.b_step);
        lay_out(c_, p.out_type, p.m, p.n, p.c_row, p.c_step);
    }

    /// Launches the product. Writes to `result`, which has c's layout; an accumulating product reads c.
    cublasStatus_t launch(cublasLtHandle_t handle, const cublasLtMatmulAlgo_t& algorithm, void* workspace,
                          cudaStream_t stream, void* result) const {
        return lt_.matmul(handle, mutable_(operation_), &alpha_, addresses.b, mutable_(b_), addresses.a,
                          mutable_(a_), &beta_, addresses.c, mutable_(c_), result, mutable_(c_), &algorithm,
                          workspace, gemm_workspace_bytes, stream);
    }

    /// Returns the algorithms that cuBLASLt proposes for this problem; the list depends on nothing else.
    std::vector<GemmChoice> proposed(cublasLtHandle_t handle) const {
        cublasLtMatmulPreferenceOpaque_t preference;
        cublas_check(lt_.preference_init(&preference, sizeof preference));
        const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
            cublas_check(lt_.preference_set(&preference, attribute, &value, sizeof value));
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
        cublasLtMatmulHeuristicResult_t results[proposals] = {};
        int found = 0;
        const cublasStatus_t status =
            lt_.heuristic(handle, mutable_(operation_), mutable_(b_), mutable_(a_), mutable_(c_),
                          mutable_(c_), &preference, proposals, results, &found);
        if (refused(status)) return {};
        cublas_check(status);
        std::vector<GemmChoice> choices;
        for (int i = 0; i < found; ++i)
            if (results[i].state == CUBLAS_STATUS_SUCCESS)
                choices.push_back({.by = GemmChoice::By::library,
                                   .algorithm = results[i].algo,
                                   .configuration = configuration(results[i].algo)});
        return choices;
    }

    std::size_t bytes_of_c() const {
        const std::int64_t elements =
            (problem.batch - 1) * problem.c_step + (problem.m - 1) * problem.c_row + problem.n;
        return static_cast<std::size_t>(elements) * (problem.out_type == CUDA_R_32F ? 4 : 2);
    }

    const GemmProblem& problem;
    const GemmPointers& addresses;

  private:
    /// All attributes of an algorithm.
    decltype(GemmChoice::configuration) configuration(const cublasLtMatmulAlgo_t& algorithm) const {
        constexpr std::array attributes{
            CUBLASLT_ALGO_CONFIG_TILE_ID,       CUBLASLT_ALGO_CONFIG_STAGES_ID,
            CUBLASLT_ALGO_CONFIG_SPLITK_NUM,    CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME,
            CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION};
        constexpr std::array short_attributes{CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID,
                                              CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID};
        const auto get = [&](cublasLtMatmulAlgoConfigAttributes_t attribute, auto value) {
            std::size_t written = 0;
            cublas_check(lt_.configuration(&algorithm, attribute, &value, sizeof value, &written));
            return value;
        };
        struct {
            std::int32_t id;
            std::array<std::uint32_t, attributes.size()> numbers;
            std::array<std::uint16_t, short_attributes.size()> short_numbers;
        } all;
        all.id = get(CUBLASLT_ALGO_CONFIG_ID, std::int32_t{0});
        for (std::size_t i = 0; i < attributes.size(); ++i)
            all.numbers[i] = get(attributes[i], std::uint32_t{0});
        for (std::size_t i = 0; i < short_attributes.size(); ++i)
            all.short_numbers[i] = get(short_attributes[i], std::uint16_t{0});
        return std::bit_cast<decltype(GemmChoice::configuration)>(all);
    }
    template <class Value>
    void set(cublasLtMatmulDescAttributes_t attribute, const Value& value) {
        cublas_check(lt_.operation_set(&operation_, attribute, &value, sizeof value));
    }

    /// Describes a row-major matrix.
    void lay_out(cublasLtMatrixLayoutOpaque_t& layout, std::int64_t type, std::int64_t rows,
                 std::int64_t columns, std::int64_t row_distance, std::int64_t step) {
        cublas_check(lt_.layout_init(&layout, sizeof layout, static_cast<cudaDataType_t>(type),
                                     static_cast<std::uint64_t>(columns), static_cast<std::uint64_t>(rows),
                                     row_distance));
        if (problem.batch == 1) return;
        const auto batch = static_cast<std::int32_t>(problem.batch);
        cublas_check(lt_.layout_set(&layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch, sizeof batch));
        cublas_check(
            lt_.layout_set(&layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &step, sizeof step));
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
    cublas_check(cublas_lt().create(&handle_));
}

void GemmState::place(GemmProblem& problem) const {
    problem.library = library_;
    problem.architecture = architecture_;
    problem.multiprocessors = multiprocessors_;
}

/// Gives a restored choice its algorithm. Returns false when the choice may not be used: its configuration
/// comes from a file, and must be that of an algorithm that cuBLASLt proposes for this problem. cuBLASLt then
/// receives only bytes that it made itself, and partial sums are added as the preferences require. launch()
/// checks gradtile's kernel numbers.
bool GemmState::find_algorithm(const Operation* operation, GemmChoice& choice) const {
    if (choice.by != GemmChoice::By::library) return true;
    if (operation == nullptr) return false;
    const std::vector<GemmChoice> choices = operation->proposed(handle_);
    const auto found = std::ranges::find(choices, choice.configuration, &GemmChoice::configuration);
    if (found == choices.end()) return false;
    choice = *found;
    return true;
}

/// Launches a product in the chosen way. Returns false when it is not possible, or when the choice is to
/// compute in steps.
bool GemmState::launch(const Operation* operation, const GemmChoice& choice,
                       const GemmAlternatives& alternatives, cudaStream_t stream, void* result) {
    if (choice.by == GemmChoice::By::kernel) {
        if (std::ranges::find(alternatives.kernels, choice.kernel) == alternatives.kernels.end())
            return false;
        alternatives.run_kernel(choice.kernel);
        return true;
    }
    if (choice.by == GemmChoice::By::steps || operation == nullptr) return false;
    const cublasStatus_t status =
        operation->launch(handle_, choice.algorithm, workspace_.data(), stream, result);
    if (refused(status)) return false;
    cublas_check(status);
    if (alternatives.after_library) alternatives.after_library();
    return true;
}

/// Sorts the candidates by their time. A GPU's clock falls while it warms up, so the candidates are timed in
/// turns.
void GemmState::sort_by_time(const Operation* operation, cudaStream_t stream,
                             const GemmAlternatives& alternatives, std::vector<GemmChoice>& candidates) {
    // A product that accumulates must change c only once, so its timed launches read c and write to a buffer.
    void* result = operation == nullptr ? nullptr : operation->addresses.c;
    std::optional<Buffer> elsewhere;
    if (operation != nullptr && operation->problem.accumulates != 0) {
        try {
            elsewhere.emplace(system_allocator(device_), operation->bytes_of_c());
        } catch (const OutOfMemory&) {
            return;  // keeps the heuristic's order
        }
        result = elsewhere->data();
    }
    struct Timing {
        GemmChoice choice;
        float milliseconds = 0;
    };
    std::vector<Timing> timings;
    for (const GemmChoice& choice : candidates) timings.push_back({choice});

    const Event start(device_), end(device_);
    const auto milliseconds = [&](const Timing& timing, int times) {
        start.record(stream);
        for (int i = 0; i < times; ++i) {
            if (timing.choice.by == GemmChoice::By::steps) {
                alternatives.in_steps();
            } else if (!launch(operation, timing.choice, alternatives, stream, result)) {
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
        // For one short launch, the measured time is mostly launch overhead, so ten launches are timed
        // together.
        if (timing.milliseconds < 0.1f) timing.milliseconds = milliseconds(timing, 10);
    }
    sort();
    // Candidates at most 30 % slower than the fastest are timed again, about half a millisecond each time, so
    // that the clock's 0.5 us resolution does not matter.
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
    for (const Timing& timing : timings) candidates.push_back(timing.choice);
}

bool GemmState::run(const Context& ctx, GemmProblem problem, const GemmPointers& addresses, float alpha,
                    const GemmAlternatives& alternatives) {
    const std::lock_guard lock(mutex_);
    use_device(device_);
    prepare();
    place(problem);
    const auto stream = static_cast<cudaStream_t>(ctx.stream());
    std::optional<Operation> library_operation;  // nullopt: cuBLASLt cannot compute the product
    if (problem.epilogue < first_own_epilogue) library_operation.emplace(problem, addresses, alpha);
    const Operation* const operation = library_operation ? &*library_operation : nullptr;
    const auto launched = [&](const GemmChoice& choice) {
        return launch(operation, choice, alternatives, stream, addresses.c);
    };

    const auto known = chosen_.find(problem);
    if (known != chosen_.end()) {
        GemmChoice& choice = known->second;
        if (choice.by == GemmChoice::By::steps) return false;
        const bool is_restored = restored_.erase(problem) > 0;
        if ((!is_restored || find_algorithm(operation, choice)) && launched(choice)) return true;
        refused_ += is_restored ? 1 : 0;
        chosen_.erase(known);
    }
    std::vector<GemmChoice> candidates;
    if (operation != nullptr) candidates = operation->proposed(handle_);
    const bool may_time = timed_ < max_timed && !ctx.deterministic() && !is_capturing(stream);
    if (may_time) {
        if (alternatives.in_steps) candidates.push_back({.by = GemmChoice::By::steps});
        if (!only_kernel_ && is_large(problem))
            for (const std::uint64_t kernel : alternatives.kernels)
                candidates.push_back({.by = GemmChoice::By::kernel, .kernel = kernel});
        if (candidates.size() > 1) sort_by_time(operation, stream, alternatives, candidates);
    }
    if (only_kernel_ && std::ranges::find(alternatives.kernels, *only_kernel_) != alternatives.kernels.end())
        candidates.assign(1, {.by = GemmChoice::By::kernel, .kernel = *only_kernel_});
    for (const GemmChoice& choice : candidates) {
        const bool in_steps = choice.by == GemmChoice::By::steps;
        if (!in_steps && !launched(choice)) continue;
        chosen_[problem] = choice;
        return !in_steps;
    }
    chosen_[problem] = {};
    return false;
}

void GemmState::restrict_to(std::optional<std::uint64_t> kernel) {
    const std::lock_guard lock(mutex_);
    only_kernel_ = kernel;
    chosen_.clear();
    restored_.clear();
    timed_ = refused_ = 0;
}

namespace {

using Numbers = decltype(GemmAlgorithm::algorithm);

/// In a checkpoint, the first number of a choice is one of these, or 0 for the choice to compute in steps.
/// The kernel's number or the configuration of cuBLASLt's algorithm follows. Earlier versions stored an
/// algorithm as its bytes, which no configuration equals.
constexpr std::uint64_t own_kernel = 0x67726164'74696c65;         // "gradtile"
constexpr std::uint64_t library_algorithm = 0x6375626c'61734c74;  // "cublasLt"

Numbers numbers_of(const GemmChoice& choice) {
    switch (choice.by) {
        case GemmChoice::By::steps:
            return {};
        case GemmChoice::By::kernel:
            return {own_kernel, choice.kernel};
        case GemmChoice::By::library:
            break;
    }
    const auto& [a, b, c, d] = choice.configuration;
    return {library_algorithm, a, b, c, d};
}

GemmChoice choice_of(const Numbers& numbers) {
    if (numbers == Numbers{}) return {};
    if (numbers == Numbers{own_kernel, numbers[1]})
        return {.by = GemmChoice::By::kernel, .kernel = numbers[1]};
    GemmChoice choice{.by = GemmChoice::By::library};
    std::copy_n(numbers.begin() + 1, choice.configuration.size(), choice.configuration.begin());
    if (numbers_of(choice) != numbers) choice.configuration = {};  // that of no algorithm
    return choice;
}

}  // namespace

std::optional<std::uint64_t> own_gemm_kernel(const GemmAlgorithm& choice) {
    const GemmChoice is = choice_of(choice.algorithm);
    return is.by == GemmChoice::By::kernel ? std::optional(is.kernel) : std::nullopt;
}

std::vector<GemmAlgorithm> GemmState::algorithms() {
    const std::lock_guard lock(mutex_);
    std::vector<GemmAlgorithm> list;
    for (const auto& [problem, choice] : chosen_)
        list.push_back({.problem = std::bit_cast<decltype(GemmAlgorithm::problem)>(problem),
                        .algorithm = numbers_of(choice)});
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
        chosen_[problem] = choice_of(algorithm);
        restored_.insert(problem);
    }
    return taken;
}

std::size_t GemmState::refused_choices() {
    const std::lock_guard lock(mutex_);
    return refused_;
}

std::shared_ptr<GemmState> make_gemm_state(Device device) {
    return std::make_shared<GemmState>(device);
}

void restrict_gemm(const Context& ctx, std::optional<std::uint64_t> kernel) {
    ctx.gemm_state()->restrict_to(kernel);
}

std::vector<GemmAlgorithm> gemm_algorithms(const Context& ctx) {
    return ctx.gemm_state()->algorithms();
}

std::size_t restore_gemm_algorithms(const Context& ctx, std::span<const GemmAlgorithm> algorithms) {
    return ctx.gemm_state()->restore(algorithms);
}

std::size_t refused_gemm_algorithms(const Context& ctx) {
    return ctx.gemm_state()->refused_choices();
}

}  // namespace gradtile::cuda
