// The CPU matrix library oneDNN. float32 uses its BLAS-like call, which is faster than its matmul primitive
// for plain layouts. bfloat16 has no such call and uses matmul.
//
// oneDNN's generated code (seen with 2.6.3) keeps data more than 128 bytes below the stack pointer, where a
// signal handler overwrites it; this corrupts the heap. So asynchronous signals are blocked during every
// call: a program that links this library may have signal handlers.
#include <omp.h>
#include <signal.h>
#include <dnnl.hpp>

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include <gradtile/core/check.h>
#include <gradtile/core/gemm/gemm.h>
#include <gradtile/core/gemm/internal/gemm_library.h>

namespace gradtile {

const char* cpu_matrix_library() {
    static const std::string name = [] {
        const dnnl_version_t* version = dnnl_version();
        return concat("oneDNN ", version->major, '.', version->minor, '.', version->patch);
    }();
    return name.c_str();
}

namespace cpu {
namespace {

/// While this object exists, the calling thread receives no asynchronous signals. Another thread receives
/// them, or this thread after the destructor. Signals that the thread's own instructions cause are still
/// delivered. Costs two system calls, 0.2 us together.
class SignalsBlocked {
  public:
    SignalsBlocked() {
        sigset_t asynchronous;
        sigfillset(&asynchronous);
        for (const int caused : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT})
            sigdelset(&asynchronous, caused);
        pthread_sigmask(SIG_BLOCK, &asynchronous, &before_);
    }
    ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
    SignalsBlocked(const SignalsBlocked&) = delete;
    SignalsBlocked& operator=(const SignalsBlocked&) = delete;

  private:
    sigset_t before_;
};

/// Restricts OpenMP to one thread, because each of gradtile's threads computes its own block and oneDNN would
/// split every call over OpenMP's threads. The destructor restores the calling thread's setting, because the
/// thread may belong to the user.
class OneOpenMpThread {
  public:
    OneOpenMpThread() : before_(omp_get_max_threads()) {
        if (before_ != 1) omp_set_num_threads(1);
    }
    ~OneOpenMpThread() {
        if (before_ != 1) omp_set_num_threads(before_);
    }
    OneOpenMpThread(const OneOpenMpThread&) = delete;
    OneOpenMpThread& operator=(const OneOpenMpThread&) = delete;

  private:
    int before_;
};

/// A matmul primitive for one block shape, and its memory objects.
struct Matmul {
    dnnl::matmul primitive;
    dnnl::memory a, b, bias, c, scratch;
    std::unordered_map<int, dnnl::memory> arguments;
    std::size_t scratch_bytes;
};

/// Identifies a block's primitive: sizes, leading dimensions, and a number for options and C's type.
using Key = std::array<std::int64_t, 7>;

struct HashKey {
    std::size_t operator()(const Key& key) const {
        std::uint64_t hash = 0xcbf29ce484222325u;
        for (const std::int64_t part : key) hash = (hash ^ static_cast<std::uint64_t>(part)) * 0x100000001b3u;
        return hash ^ (hash >> 29);
    }
};

/// The primitives that one thread has used. A cache per thread needs no lock; oneDNN's own cache shares the
/// machine code between threads.
class MatmulCache {
  public:
    void run(const GemmBlock& block, const bfloat16* a, const bfloat16* b, const float* bias, void* c,
             dnnl::memory::data_type type_of_c) {
        Matmul& matmul = find(block, bias != nullptr, type_of_c);
        if (scratch_.size() < matmul.scratch_bytes) scratch_.resize(matmul.scratch_bytes);
        matmul.a.set_data_handle(const_cast<bfloat16*>(a));
        matmul.b.set_data_handle(const_cast<bfloat16*>(b));
        if (bias != nullptr) matmul.bias.set_data_handle(const_cast<float*>(bias));
        matmul.c.set_data_handle(c);
        matmul.scratch.set_data_handle(scratch_.data());
        matmul.primitive.execute(stream_, matmul.arguments);
    }

  private:
    static constexpr std::size_t capacity = 1024;

    Matmul& find(const GemmBlock& block, bool has_bias, dnnl::memory::data_type type_of_c) {
        const Key key{block.m,
                      block.n,
                      block.k,
                      block.lda,
                      block.ldb,
                      block.ldc,
                      block.trans_a + 2 * block.trans_b + 4 * block.accumulate + 8 * has_bias +
                          16 * static_cast<int>(type_of_c)};
        const auto known = matmuls_.find(key);
        if (known != matmuls_.end()) return *known->second;
        if (matmuls_.size() >= capacity) matmuls_.clear();
        return *(matmuls_[key] = make(block, has_bias, type_of_c));
    }

    std::unique_ptr<Matmul> make(const GemmBlock& block, bool has_bias,
                                 dnnl::memory::data_type type_of_c) const {
        using dnnl::memory;
        const auto plain = [](std::int64_t rows, std::int64_t columns, std::int64_t ld, bool transposed,
                              memory::data_type type) {
            return memory::desc({rows, columns}, type,
                                transposed ? memory::dims{1, ld} : memory::dims{ld, 1});
        };
        const auto a = plain(block.m, block.k, block.lda, block.trans_a, memory::data_type::bf16);
        const auto b = plain(block.k, block.n, block.ldb, block.trans_b, memory::data_type::bf16);
        const auto c = plain(block.m, block.n, block.ldc, false, type_of_c);
        const auto bias = plain(1, block.n, block.n, false, memory::data_type::f32);
        dnnl::primitive_attr attributes;
        attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
        if (block.accumulate) {
            dnnl::post_ops add_to_c;
            add_to_c.append_sum(1.0f);
            attributes.set_post_ops(add_to_c);
        }
#if DNNL_VERSION_MAJOR >= 3
        using Description = dnnl::matmul::primitive_desc;
        const Description description = has_bias ? Description(engine_, a, b, bias, c, attributes)
                                                 : Description(engine_, a, b, c, attributes);
#else
        const dnnl::matmul::primitive_desc description(
            has_bias ? dnnl::matmul::desc(a, b, bias, c) : dnnl::matmul::desc(a, b, c), attributes, engine_);
#endif
        auto matmul = std::make_unique<Matmul>();
        matmul->primitive = dnnl::matmul(description);
        matmul->a = memory(a, engine_, nullptr);
        matmul->b = memory(b, engine_, nullptr);
        matmul->c = memory(c, engine_, nullptr);
        matmul->scratch = memory(description.scratchpad_desc(), engine_, nullptr);
        matmul->scratch_bytes = description.scratchpad_desc().get_size();
        matmul->arguments = {{DNNL_ARG_SRC, matmul->a},
                             {DNNL_ARG_WEIGHTS, matmul->b},
                             {DNNL_ARG_DST, matmul->c},
                             {DNNL_ARG_SCRATCHPAD, matmul->scratch}};
        if (has_bias) {
            matmul->bias = memory(bias, engine_, nullptr);
            matmul->arguments[DNNL_ARG_BIAS] = matmul->bias;
        }
        return matmul;
    }

    dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
    dnnl::stream stream_{engine_};
    std::unordered_map<Key, std::unique_ptr<Matmul>, HashKey> matmuls_;
    std::vector<std::byte> scratch_;
};

void sgemm(const GemmBlock& block, std::int64_t rows, const float* a, const float* b, float* c) {
    const dnnl_status_t status =
        dnnl_sgemm(block.trans_a ? 'T' : 'N', block.trans_b ? 'T' : 'N', rows, block.n, block.k, block.alpha,
                   a, block.lda, b, block.ldb, block.accumulate ? 1.0f : 0.0f, c, block.ldc);
    check(status == dnnl_success, "gemm: oneDNN refused a float32 block ", rows, " x ", block.n, " x ",
          block.k, " with status ", static_cast<int>(status));
}

/// How many rows one call gets. From 16 rows on, oneDNN (2.6.3) copies a transposed b into another order,
/// which takes as long as multiplying it by 4 to 80 rows. Calls with fewer rows read b in place at nearly the
/// same speed per row. So up to 64 rows are divided: 16 rows with n 384, k 1536 take 190 us instead of 1,130,
/// and 32 rows 360 us instead of 1,300.
std::int64_t rows_of_call(const GemmBlock& block) {
    constexpr std::int64_t max_in_place = 15, max_divided = 64;
    if (block.trans_a || !block.trans_b || block.m <= max_in_place || block.m > max_divided) return block.m;
    return ceil_div(block.m, ceil_div(block.m, max_in_place));
}

}  // namespace

void library_gemm(const GemmBlock& block, const float* a, const float* b, float* c) {
    const SignalsBlocked no_signals;
    const OneOpenMpThread one_thread;
    const std::int64_t rows = rows_of_call(block);
    for (std::int64_t row = 0; row < block.m; row += rows)
        sgemm(block, std::min(rows, block.m - row), a + row * block.lda, b, c + row * block.ldc);
}

bool library_has_bfloat16() {
    // Without AVX-512, oneDNN has only a scalar reference loop for bfloat16. With AVX-512 but without its
    // bf16 instructions, oneDNN emulates them, which is slower than converting to float32.
    static const bool has = (static_cast<unsigned>(dnnl::get_effective_cpu_isa()) &
                             static_cast<unsigned>(dnnl::cpu_isa::avx512_core_bf16)) ==
                            static_cast<unsigned>(dnnl::cpu_isa::avx512_core_bf16);
    return has;
}

namespace {
void matmul(const GemmBlock& block, const bfloat16* a, const bfloat16* b, const float* bias, void* c,
            dnnl::memory::data_type type_of_c) {
    // Signals are also blocked while oneDNN creates a primitive, because this runs generated code.
    const SignalsBlocked no_signals;
    const OneOpenMpThread one_thread;
    thread_local MatmulCache cache;
    try {
        cache.run(block, a, b, bias, c, type_of_c);
    } catch (const dnnl::error& failure) {
        throw Error(concat("gemm: oneDNN refused a bfloat16 block ", block.m, " x ", block.n, " x ", block.k,
                           ": ", failure.what()));
    }
}
}  // namespace

void library_gemm(const GemmBlock& block, const bfloat16* a, const bfloat16* b, float* c) {
    matmul(block, a, b, nullptr, c, dnnl::memory::data_type::f32);
}

void library_gemm(const GemmBlock& block, const bfloat16* a, const bfloat16* b, const float* bias,
                  bfloat16* c) {
    matmul(block, a, b, bias, c, dnnl::memory::data_type::bf16);
}

}  // namespace cpu
}  // namespace gradtile
