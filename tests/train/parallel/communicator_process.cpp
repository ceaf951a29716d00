// Compares every collective's results with values that each process computes alone. This program is one rank;
// communicator_test.cpp starts it. On GPUs it is started by hand: communicator_process cuda, with RANK and
// WORLD_SIZE set. Wrong results are printed; the exit code is their number, at most 100.
#include <unistd.h>

#include <cmath>
#include <iostream>
#include <optional>

#include <gradtile/core/tensor_ops.h>
#include <gradtile/train/parallel/communicator.h>

using namespace gradtile;

namespace {

/// Small integers, so that every sum is exact in every dtype.
double element(int rank, std::int64_t i) {
    return static_cast<double>((i * 7 + rank * 3) % 5);
}
double sum_of_elements(int size, std::int64_t i) {
    double sum = 0.0;
    for (int rank = 0; rank < size; ++rank) sum += element(rank, i);
    return sum;
}

class Checks {
  public:
    Checks(const Context& ctx, const Communicator& communicator) : ctx_(ctx), communicator_(communicator) {}

    void check_all(DType dtype, std::int64_t n) {
        const int rank = communicator_.rank(), size = communicator_.size();
        const Tensor x = own_values(dtype, n);
        communicator_.all_reduce(ctx_, x);
        expect(x, "all_reduce", [&](std::int64_t i) { return sum_of_elements(size, i); });

        const Tensor full = own_values(dtype, n * size), part = zeros(ctx_, {n}, dtype);
        communicator_.reduce_scatter(ctx_, full, part);
        expect(part, "reduce_scatter", [&](std::int64_t i) { return sum_of_elements(size, rank * n + i); });
        const Tensor in_place_full = own_values(dtype, n * size);
        communicator_.reduce_scatter(ctx_, in_place_full, in_place_full.slice(0, rank * n, n));
        expect(in_place_full.slice(0, rank * n, n), "reduce_scatter in context",
               [&](std::int64_t i) { return sum_of_elements(size, rank * n + i); });

        const auto from_owner = [&](std::int64_t i) { return element(static_cast<int>(i / n), i % n); };
        const Tensor gathered = zeros(ctx_, {n * size}, dtype);
        communicator_.all_gather(ctx_, own_values(dtype, n), gathered);
        expect(gathered, "all_gather", from_owner);
        const Tensor gathered_in_place = zeros(ctx_, {n * size}, dtype);
        copy(ctx_, gathered_in_place.slice(0, rank * n, n), own_values(dtype, n));
        communicator_.all_gather(ctx_, gathered_in_place.slice(0, rank * n, n), gathered_in_place);
        expect(gathered_in_place, "all_gather in context", from_owner);

        for (int root = 0; root < size; ++root) {
            const Tensor y = own_values(dtype, n);
            communicator_.broadcast(ctx_, y, root);
            expect(y, "broadcast", [&](std::int64_t i) { return element(root, i); });
        }
    }
    /// Checks each collective on more bytes than one MPI call exchanges (max_exchange_bytes).
    void check_several_calls() {
        constexpr std::int64_t one_call = (32 << 20) / sizeof(float);
        const int rank = communicator_.rank(), size = communicator_.size();
        const std::int64_t n = one_call + 1000, part_length = ceil_div(n, std::int64_t{size});
        const Tensor x = own_values(DType::f32, n);
        communicator_.all_reduce(ctx_, x);
        expect(x, "all_reduce", [&](std::int64_t i) { return sum_of_elements(size, i); });

        const Tensor full = own_values(DType::f32, part_length * size),
                     part = zeros(ctx_, {part_length}, DType::f32);
        communicator_.reduce_scatter(ctx_, full, part);
        expect(part, "reduce_scatter",
               [&](std::int64_t i) { return sum_of_elements(size, rank * part_length + i); });

        const Tensor gathered = zeros(ctx_, {part_length * size}, DType::f32);
        communicator_.all_gather(ctx_, own_values(DType::f32, part_length), gathered);
        expect(gathered, "all_gather",
               [&](std::int64_t i) { return element(static_cast<int>(i / part_length), i % part_length); });

        const Tensor y = own_values(DType::f32, n);
        communicator_.broadcast(ctx_, y, size - 1);
        expect(y, "broadcast", [&](std::int64_t i) { return element(size - 1, i); });
    }
    /// Checks the ring of `processes` neighbours: two shifts under way, then the next one with what arrived.
    void check_ring(int processes, std::int64_t n) {
        const auto ring = communicator_.ring(ctx_, processes);
        const int rank = communicator_.rank(), first = rank - rank % processes;
        const auto origin = [&](int shifts) {
            return first + (rank - first + shifts * (processes - 1)) % processes;
        };
        const Tensor sent = own_values(DType::f32, n), other = own_values(DType::bf16, 3),
                     received = zeros(ctx_, {n}, DType::f32), other_received = zeros(ctx_, {3}, DType::bf16);
        ring->start_shift(ctx_, sent, received);
        ring->start_shift(ctx_, other, other_received);
        ring->finish_shifts(ctx_);
        const auto values_of = [](int origin_rank) {
            return [=](std::int64_t i) { return element(origin_rank, i); };
        };
        expect(received, "shift", values_of(origin(1)));
        expect(other_received, "second shift", values_of(origin(1)));
        ring->start_shift(ctx_, received, sent);
        ring->finish_shifts(ctx_);
        expect(sent, "next shift", values_of(origin(2)));
        if (ring->rank() == rank - first && ring->size() == processes) return;
        std::cout << "rank " << rank << ": rank " << ring->rank() << " of " << ring->size() << " in a ring\n";
        ++wrong_results_;
    }
    int wrong_results() const { return wrong_results_; }

  private:
    Tensor own_values(DType dtype, std::int64_t n) const {
        std::vector<std::int32_t> values;
        for (std::int64_t i = 0; i < n; ++i)
            values.push_back(static_cast<std::int32_t>(element(communicator_.rank(), i)));
        return cast(ctx_, from_host(ctx_, values, {n}), dtype);
    }
    template <class Expected>
    void expect(const Tensor& x, const char* what, Expected&& expected) {
        const std::vector<double> values = to_host(ctx_, x);
        for (std::size_t i = 0; i < values.size(); ++i) {
            const double expected_value = expected(static_cast<std::int64_t>(i));
            if (values[i] == expected_value) continue;
            std::cout << "rank " << communicator_.rank() << ": " << what << " of " << x << ": element " << i
                      << " is " << values[i] << ", not " << expected_value << '\n';
            if (wrong_results_ < 100) ++wrong_results_;
            return;
        }
    }

    Context ctx_;
    const Communicator& communicator_;
    int wrong_results_ = 0;
};

/// Counts the ranks whose sums differ from this rank's. The addends cause rounding, so the addition order
/// matters.
int differences(const Context& ctx, const Communicator& communicator, ProcessGroup& group) {
    std::vector<double> values;
    for (int i = 0; i < 10'000; ++i) values.push_back(std::sin(1.0 + i + 17.0 * communicator.rank()));
    const Tensor x = from_host(ctx, values, {std::ssize(values)}, DType::f32);
    communicator.all_reduce(ctx, x);
    const std::vector<double> sums = to_host(ctx, x);
    const std::string own_values(reinterpret_cast<const char*>(sums.data()), sums.size() * sizeof(double));
    std::string hexadecimal;
    for (const char c : own_values)
        hexadecimal += concat(static_cast<int>(static_cast<unsigned char>(c)), ' ');
    int wrong_results = 0;
    for (const std::string& other : group.all_gather(hexadecimal)) wrong_results += other != hexadecimal;
    if (wrong_results > 0) std::cout << "rank " << group.rank() << ": sums differ between ranks\n";
    return wrong_results;
}

/// Rank 0 prints the bits of sums whose addends cause rounding.
void print_sums(const Context& ctx, const Communicator& communicator) {
    std::vector<double> values;
    for (int i = 0; i < 1000; ++i) values.push_back(std::sin(1.0 + i + 17.0 * communicator.rank()));
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
        const Tensor x = cast(ctx, from_host(ctx, values, {std::ssize(values)}, DType::f64), dtype);
        communicator.all_reduce(ctx, x);
        if (communicator.rank() != 0) continue;
        std::cout << std::hexfloat;
        for (const double sum : to_host(ctx, x)) std::cout << sum << '\n';
    }
}

/// Rank 1 leaves a ring of two without a word. The other one must end with the line that names it.
void lose_a_neighbour(const Context& ctx, std::optional<ProcessGroup>& group) {
    {
        const auto communicator = make_communicator(ctx, *group);
        const auto ring = communicator->ring(ctx, 2);
        const Tensor sent = zeros(ctx, {1 << 20}, DType::f32), received = empty_like(ctx, sent);
        for (int shift = 0; shift < (group->is_root() ? 2 : 1); ++shift) {
            ring->start_shift(ctx, sent, received);
            ring->finish_shifts(ctx);
        }
    }
    group.reset();
    for (;;) pause();  // until mpirun ends this process
}

}  // namespace

int main(int argc, char** argv) {
    try {
        const RankEnvironment environment = read_rank_environment();
        std::optional<ProcessGroup> connected;
        ProcessGroup& group = connected.emplace(
            environment, ProcessGroupOptions{.timeout = 60.0, .on_loss = [](const std::string& line) {
                                                 std::cerr << line << std::endl;
                                                 std::_Exit(101);
                                             }});
        const bool on_gpu = argc > 1 && std::string(argv[1]) == "cuda";
        const Context ctx = Context(on_gpu ? Device::cuda(environment.local_rank) : Device::cpu(), 1)
                                .with_deterministic(true);
        if (argc > 1 && std::string(argv[1]) == "lost") lose_a_neighbour(ctx, connected);
        int wrong_results = 0;
        if (argc > 1 && std::string(argv[1]) == "sums") {
            print_sums(ctx, *make_communicator(ctx, group));
        } else {
            const auto communicator = make_communicator(ctx, group);
            const auto symmetric = communicator->symmetric_memory(ctx);
            std::vector<Context> contexts = {ctx};
            // Uses one arena, because each symmetric-memory allocation is a collective call.
            if (symmetric != ctx.allocator())
                contexts.push_back(ctx.with_allocator(
                    std::make_shared<Arena>(ctx.device(), std::size_t{1} << 30, symmetric)));
            for (const Context& context : contexts) {
                Checks checks(context, *communicator);
                for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16, DType::i32})
                    for (const std::int64_t n : {1, 3, 1000, 100'003}) checks.check_all(dtype, n);
                // A call's part of the values depends on their number only, so two and three ranks show a
                // wrong one.
                const bool has_long_values = on_gpu || group.size() <= 3;
                if (has_long_values) checks.check_several_calls();
                std::vector<std::int64_t> lengths = {1, 1000};
                if (has_long_values) lengths.push_back((32 << 20) / sizeof(float) + 1000);
                for (int processes = 1; processes <= group.size(); ++processes)
                    if (group.size() % processes == 0)
                        for (const std::int64_t n : lengths) checks.check_ring(processes, n);
                wrong_results += checks.wrong_results() + differences(context, *communicator, group);
            }
            communicator->barrier(ctx);
        }
        group.leave();
        return wrong_results;
    } catch (const std::exception& error) {
        std::cerr << error.what() << '\n';
        return 102;
    }
}
