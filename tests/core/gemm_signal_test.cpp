// Matrix products in a process that receives signals, for example from a user's timer or a profiler.
#include <signal.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>

#include <gtest/gtest.h>

#include <gradtile/core/gemm/gemm.h>
#include <gradtile/core/random.h>
#include <gradtile/core/tensor_ops.h>

namespace gradtile {
namespace {

std::atomic<int> signals_taken{0};

/// Uses as much stack as a user's handler may.
extern "C" void write_over_the_stack(int) {
    volatile char place[4096];
    for (std::size_t i = 0; i < sizeof place; ++i) place[i] = static_cast<char>(0xa5);
    ++signals_taken;
}

struct Product {
    std::int64_t m, n, k;
    bool trans_a, trans_b;
};

/// Shapes in a small model's step: forward, input gradient, weight gradient.
constexpr Product products[] = {{256, 512, 128, false, true},
                                {256, 128, 512, false, false},
                                {128, 512, 256, true, false},
                                {64, 48, 80, true, true}};

Tensor random_matrix(const Context& ctx, std::int64_t rows, std::int64_t columns, DType dtype,
                     std::uint64_t seed) {
    const Tensor x = empty(ctx, {rows, columns}, DType::f32);
    fill_normal(ctx, x, 0.0, 1.0, Seed{seed});
    const Tensor y = empty(ctx, x.shape(), dtype);
    copy(ctx, y, x);
    return y;
}

/// Multiplies for 0.4 s while a signal arrives every 200 us. Returns 0, or a number for the fault.
int multiply_under_signals(DType dtype, DType dtype_of_c, int threads) {
    const Context ctx(Device::cpu(), threads);
    struct Case {
        Tensor a, b, c;
        std::vector<double> expected;
    };
    std::vector<Case> cases;
    for (const Product& p : products) {
        Case test{random_matrix(ctx, p.trans_a ? p.k : p.m, p.trans_a ? p.m : p.k, dtype, 1),
                  random_matrix(ctx, p.trans_b ? p.n : p.k, p.trans_b ? p.k : p.n, dtype, 2),
                  empty(ctx, {p.m, p.n}, dtype_of_c),
                  {}};
        gemm(ctx, test.c, test.a, test.b, {.trans_a = p.trans_a, .trans_b = p.trans_b});
        test.expected = to_host(ctx, test.c);
        cases.push_back(std::move(test));
    }

    struct sigaction action {};
    action.sa_handler = write_over_the_stack;
    action.sa_flags = SA_RESTART;
    sigaction(SIGALRM, &action, nullptr);
    const itimerval often{{0, 200}, {0, 200}};
    setitimer(ITIMER_REAL, &often, nullptr);
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(400);
    // Signals may be late on a loaded machine, so the loop also waits until enough signals have arrived.
    while (std::chrono::steady_clock::now() < end || signals_taken < 200)
        for (std::size_t i = 0; i < cases.size(); ++i) {
            const Product& p = products[i];
            gemm(ctx, cases[i].c, cases[i].a, cases[i].b, {.trans_a = p.trans_a, .trans_b = p.trans_b});
            if (to_host(ctx, cases[i].c) != cases[i].expected) return 3;
        }
    return 0;
}

/// Runs in a separate process, because the fault under test crashes the process.
void expect_products_survive_signals(DType dtype, DType dtype_of_c, int threads) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) _exit(multiply_under_signals(dtype, dtype_of_c, threads));
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_FALSE(WIFSIGNALED(status)) << "ended by signal " << WTERMSIG(status);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0)
        << "products differ: status " << WEXITSTATUS(status);
}

TEST(GemmUnderSignals, Float32IsUnharmedByAUsersTimer) {
    for (const int threads : {1, 2}) expect_products_survive_signals(DType::f32, DType::f32, threads);
}

TEST(GemmUnderSignals, Bfloat16IsUnharmedByAUsersTimer) {
    for (const int threads : {1, 2}) {
        expect_products_survive_signals(DType::bf16, DType::f32, threads);
        expect_products_survive_signals(DType::bf16, DType::bf16, threads);
    }
}

TEST(GemmUnderSignals, RestoresTheCallersSignalMask) {
    const Context ctx(Device::cpu(), 1);
    sigset_t wanted, former, after;
    sigemptyset(&wanted);
    sigaddset(&wanted, SIGUSR2);
    pthread_sigmask(SIG_SETMASK, &wanted, &former);
    for (const DType dtype : {DType::f32, DType::bf16}) {
        const Tensor x = random_matrix(ctx, 32, 32, dtype, 1), c = empty(ctx, {32, 32}, DType::f32);
        gemm(ctx, c, x, x);
        pthread_sigmask(SIG_SETMASK, nullptr, &after);
        for (const int number : {SIGUSR2, SIGALRM, SIGTERM, SIGPROF})
            EXPECT_EQ(sigismember(&after, number), number == SIGUSR2 ? 1 : 0) << number;
    }
    pthread_sigmask(SIG_SETMASK, &former, nullptr);
}

}  // namespace
}  // namespace gradtile
