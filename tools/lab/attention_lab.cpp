// Runs the lab's attention algorithms, counted or recorded.
#include <chrono>
#include <cmath>
#include <functional>
#include <optional>

#include <gradtile/attention/attention.h>
#include <gradtile/attention/cpu/tiled/flash1.h>
#include <gradtile/attention/cpu/tiled/memory_efficient.h>
#include <gradtile/core/random.h>
#include <gradtile/core/tensor_ops.h>
#include <gradtile/tools/lab/internal/flash2.h>
#include <gradtile/tools/lab/internal/naive.h>
#include <gradtile/tools/lab/internal/trace_recorder.h>
#include <gradtile/tools/lab/lab.h>
#include <gradtile/tools/lab/trace.h>

namespace gradtile::attention::lab {
namespace {

using Numbers = std::vector<float>;

/// The inputs, and the results in float64.
struct Inputs {
    Numbers q, k, v, d_o;
    std::vector<double> o, d_q, d_k, d_v;

    explicit Inputs(const Setup& setup) {
        const Context ctx(Device::cpu(), 1);
        const Shape shape{1, setup.length, 1, setup.head_dim};
        std::uint64_t seed = 1;
        std::vector<Tensor> inputs;
        for (Numbers* x : {&q, &k, &v, &d_o}) {
            const Tensor single = randn(ctx, shape, DType::f32, Seed{seed++});
            x->assign(single.data<float>(), single.data<float>() + setup.length * setup.head_dim);
            inputs.push_back(cast(ctx, single, DType::f64));
        }
        Saved saved;
        o = to_host(ctx, forward(ctx, inputs[0], inputs[1], inputs[2], {}, saved));
        const Gradients gradients = backward(ctx, inputs[3], {}, saved);
        d_q = to_host(ctx, gradients.q);
        d_k = to_host(ctx, gradients.k);
        d_v = to_host(ctx, gradients.v);
    }
};

double largest_error(const Numbers& x, const std::vector<double>& expected) {
    double largest = 0;
    for (std::size_t i = 0; i < x.size(); ++i)
        largest = std::max(largest, std::abs(static_cast<double>(x[i]) - expected[i]));
    return largest;
}

/// Returns memory_efficient's block sizes: the operator's block sizes, or smaller ones for short lengths. A
/// block's element count grows as N, so that memory is linear. The paper proposes sqrt(N) keys per block.
BlockSizes memory_efficient_blocks_of(const Setup& setup) {
    const auto root = static_cast<std::int64_t>(std::ceil(std::sqrt(static_cast<double>(setup.length))));
    return {.rows = std::min({memory_efficient_blocks.rows, 2 * root, setup.length}),
            .keys = std::min({memory_efficient_blocks.keys, 4 * root, setup.length})};
}

/// Traces for several passes. Together they may have at most max_steps steps.
struct Recording {
    std::int64_t max_steps;
    std::int64_t steps = 0;
    std::vector<Trace> traces = {};
};

/// Runs one algorithm: the forward pass, then the backward pass. The class's members are the matrices in slow
/// memory.
class Run {
  public:
    /// `recording` receives one trace per pass, unless it is null.
    Run(const Setup& setup, const Inputs& inputs, std::string name, Recording* recording)
        : setup_(setup),
          inputs_(inputs),
          name_(std::move(name)),
          recording_(recording),
          fast_bytes_(static_cast<std::size_t>(setup.fast_memory)),
          fast_elements_(fast_bytes_),
          geometry_{.d_qk = setup.head_dim,
                    .d_v = setup.head_dim,
                    .scale = 1 / std::sqrt(static_cast<double>(setup.head_dim)),
                    .mask = {.queries = setup.length, .keys = setup.length}},
          q_(matrix("Q", inputs.q)),
          k_(matrix("K", inputs.k)),
          v_(matrix("V", inputs.v)) {}

    void measure(std::vector<Measurement>& results) {
        if (name_ == "naive") return measure_naive(results);
        if (name_ == "memory_efficient") return measure_memory_efficient(results);
        name_ == "flash1" ? measure_flash1(results) : measure_flash2(results);
    }

  private:
    using Matrix = SlowTensor<float>;
    using MatrixPointer = std::unique_ptr<Matrix>;

    MatrixPointer matrix(const char* name, std::int64_t rows, std::int64_t columns) {
        return std::make_unique<Matrix>(slow_, rows, columns, name);
    }
    MatrixPointer matrix(const char* name) { return matrix(name, setup_.length, setup_.head_dim); }
    MatrixPointer matrix(const char* name, const Numbers& numbers) {
        MatrixPointer x = matrix(name);
        x->assign(numbers.data());
        return x;
    }
    MatrixPointer row_numbers(const char* name) { return matrix(name, setup_.length, 1); }
    static SlowMatrix<float> view(const MatrixPointer& x) { return x ? x->matrix() : SlowMatrix<float>(); }

    ForwardHead<float> forward_head() {
        return {.geometry = geometry_,
                .rule = {},
                .q = view(q_),
                .k = view(k_),
                .v = view(v_),
                .o = view(o_),
                .lse = view(lse_),
                .lse_remainder = {},
                .row_max = view(row_max_),
                .row_sum = view(row_sum_)};
    }
    QueryHead<float> query_head() {
        return {.rule = {},
                .q = view(q_),
                .o = view(o_),
                .d_o = view(d_o_),
                .lse = view(lse_),
                .lse_remainder = {},
                .d_lse = {},
                .row_max = view(row_max_),
                .row_sum = view(row_sum_),
                .delta = view(delta_),
                .d_q = view(d_q_)};
    }

    /// Counts the matrix products, each with 2 N^2 d FLOP. Forward: Q K^T and P V. Backward: dV, dP, dQ and
    /// dK. All algorithms except naive, which keeps P, also compute Q K^T again.
    double products(const std::string& pass) const {
        if (pass == "forward") return 2;
        return name_ == "naive" ? 4 : 5;
    }
    /// Counts and times one pass.
    Measurement count(const char* pass, BlockSizes blocks, const std::function<void(FastMemory&)>& work) {
        std::optional<TraceRecorder> recorder;
        if (recording_ != nullptr) recorder.emplace(slow_, recording_->steps, recording_->max_steps);
        FastMemory fast(fast_elements_.data(), fast_bytes_, recorder ? &*recorder : nullptr);
        const auto begin = std::chrono::steady_clock::now();
        work(fast);
        const std::chrono::duration<double, std::milli> elapsed = std::chrono::steady_clock::now() - begin;
        if (recorder) {
            recording_->traces.push_back(recorder->take());
            recording_->steps += static_cast<std::int64_t>(recording_->traces.back().steps.size());
        }
        const double n = static_cast<double>(setup_.length), d = static_cast<double>(setup_.head_dim);
        const double m = static_cast<double>(setup_.fast_memory) / sizeof(float);
        const bool is_flash = name_.starts_with("flash");
        return {.name = name_,
                .pass = pass,
                .block_rows = blocks.rows,
                .block_keys = blocks.keys,
                .loads = fast.traffic().loads,
                .stores = fast.traffic().stores,
                .slow_bytes = fast.traffic().bytes,
                .formula_bytes = sizeof(float) * (is_flash ? n * n * d * d / m : n * d + n * n),
                .flops = products(pass) * 2 * n * n * d,
                .peak_bytes = slow_.peak_bytes(),
                .peak_fast_bytes = static_cast<std::int64_t>(fast.peak_bytes()),
                .ms = elapsed.count()};
    }
    void count_forward(std::vector<Measurement>& results, BlockSizes blocks,
                       const std::function<void(const ForwardHead<float>&, FastMemory&)>& work) {
        const ForwardHead<float> head = forward_head();
        Measurement& result =
            results.emplace_back(count("forward", blocks, [&](FastMemory& fast) { work(head, fast); }));
        result.error = largest_error(o_->elements(), inputs_.o);
    }
    void count_backward(std::vector<Measurement>& results, BlockSizes blocks,
                        const std::function<void(const BackwardHead<float>&, FastMemory&)>& work) {
        d_o_ = matrix("dO", inputs_.d_o);
        d_q_ = matrix("dQ");
        d_k_ = matrix("dK");
        d_v_ = matrix("dV");
        const QueryHead<float> head = query_head();
        const BackwardHead<float> heads{.geometry = geometry_,
                                        .k = view(k_),
                                        .v = view(v_),
                                        .d_k = view(d_k_),
                                        .d_v = view(d_v_),
                                        .query_heads = {&head, 1}};
        slow_.reset_peak();
        Measurement& result =
            results.emplace_back(count("backward", blocks, [&](FastMemory& fast) { work(heads, fast); }));
        result.error = std::max({largest_error(d_q_->elements(), inputs_.d_q),
                                 largest_error(d_k_->elements(), inputs_.d_k),
                                 largest_error(d_v_->elements(), inputs_.d_v)});
    }

    void make_statistics() {
        lse_ = row_numbers("LSE");
        row_max_ = row_numbers("m");
        row_sum_ = row_numbers("l");
    }

    void measure_naive(std::vector<Measurement>& results) {
        o_ = matrix("O");
        const MatrixPointer p = matrix("P", setup_.length, setup_.length);
        const BlockSizes all{setup_.length, setup_.length};
        count_forward(results, all, [&](const ForwardHead<float>& head, FastMemory& fast) {
            naive_forward(head, view(p), fast, slow_);
        });
        o_.reset();  // D is the row sum of P * dP
        count_backward(results, all, [&](const BackwardHead<float>& heads, FastMemory& fast) {
            naive_backward(heads, view(p), fast, slow_);
        });
    }

    void measure_memory_efficient(std::vector<Measurement>& results) {
        const BlockSizes blocks = memory_efficient_blocks_of(setup_);
        o_ = matrix("O");
        make_statistics();
        const MatrixPointer s = matrix("S", blocks.rows, blocks.keys);
        MatrixPointer rescale = matrix("rescale", blocks.rows, 1);
        count_forward(results, blocks, [&](const ForwardHead<float>& head, FastMemory& fast) {
            memory_efficient_forward(head, blocks, BlockMatrices<float>{view(s), {}, view(rescale)}, fast);
        });
        for (MatrixPointer* x : {&row_max_, &row_sum_, &rescale}) x->reset();
        const MatrixPointer d_p = matrix("dP", blocks.rows, blocks.keys);
        delta_ = row_numbers("D");
        count_backward(results, blocks, [&](const BackwardHead<float>& heads, FastMemory& fast) {
            memory_efficient_backward(heads, blocks, BlockMatrices<float>{view(s), view(d_p), {}}, fast);
        });
    }

    void measure_flash1(std::vector<Measurement>& results) {
        o_ = matrix("O");
        make_statistics();
        BlockSizes blocks = flash1_blocks<float, FlashForwardTiles<float>>(geometry_, fast_bytes_);
        count_forward(results, blocks, [&](const ForwardHead<float>& head, FastMemory& fast) {
            flash1_forward(head, blocks, fast);
        });
        lse_.reset();
        blocks = flash1_blocks<float, Flash1BackwardTiles<float>>(geometry_, fast_bytes_);
        count_backward(results, blocks, [&](const BackwardHead<float>& heads, FastMemory& fast) {
            flash1_backward(heads, blocks, fast);
        });
    }

    void measure_flash2(std::vector<Measurement>& results) {
        o_ = matrix("O");
        lse_ = row_numbers("LSE");
        BlockSizes blocks = flash2_forward_blocks<float>(geometry_, fast_bytes_);
        count_forward(results, blocks, [&](const ForwardHead<float>& head, FastMemory& fast) {
            flash2_forward(head, blocks, fast);
        });
        delta_ = row_numbers("D");
        blocks = flash1_blocks<float, Flash2BackwardTiles<float>>(geometry_, fast_bytes_);
        count_backward(results, blocks, [&](const BackwardHead<float>& heads, FastMemory& fast) {
            flash2_backward(heads, blocks, fast);
        });
    }

    const Setup& setup_;
    const Inputs& inputs_;
    std::string name_;
    Recording* recording_;
    std::size_t fast_bytes_;
    std::vector<std::byte> fast_elements_;
    Geometry geometry_;
    SlowMemory slow_;
    MatrixPointer q_, k_, v_, o_, d_o_, d_q_, d_k_, d_v_;
    MatrixPointer lse_, row_max_, row_sum_, delta_;  // one number per row
};

}  // namespace

std::int64_t smallest_fast_memory(std::int64_t head_dim) {
    const Geometry g{.d_qk = head_dim, .d_v = head_dim, .scale = 1, .mask = {.queries = 1, .keys = 1}};
    // memory_efficient holds block rows in fast memory: P, dP, three scratch rows and two bias rows.
    const std::int64_t rows_of_a_block =
        8 * memory_efficient_blocks.keys * static_cast<std::int64_t>(sizeof(float));
    const std::size_t one_pair =
        fast_bytes([&](FastMemory& fast) { Flash1BackwardTiles<float>(fast, g, {.rows = 1, .keys = 1}); });
    return std::max(rows_of_a_block, static_cast<std::int64_t>(one_pair));
}

namespace {

std::vector<Measurement> run_algorithms(const Setup& setup, Recording* recording) {
    check(setup.length >= 1 && setup.head_dim >= 1, "lab: length ", setup.length, ", head_dim ",
          setup.head_dim, "; expected at least 1");
    check(setup.fast_memory >= smallest_fast_memory(setup.head_dim), "lab: a fast memory of ",
          setup.fast_memory, " bytes; expected at least ", smallest_fast_memory(setup.head_dim),
          " for head_dim ", setup.head_dim);
    const Inputs inputs(setup);
    std::vector<Measurement> results;
    for (const char* name : {"naive", "memory_efficient", "flash1", "flash2"})
        Run(setup, inputs, name, recording).measure(results);
    return results;
}

}  // namespace

std::vector<Measurement> measure_attention(const Setup& setup) {
    return run_algorithms(setup, nullptr);
}

std::vector<Trace> trace_attention(const Setup& setup, std::int64_t max_steps) {
    Recording recording{max_steps};
    const std::vector<Measurement> measurements = run_algorithms(setup, &recording);
    for (std::size_t i = 0; i < measurements.size(); ++i) recording.traces[i].measurement = measurements[i];
    return std::move(recording.traces);
}

}  // namespace gradtile::attention::lab
