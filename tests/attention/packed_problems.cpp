#include "packed_problems.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <support/sanitized.h>

#include "reference.h"

namespace gradtile::attention::test {
namespace {

std::int64_t sum(const std::vector<std::int32_t>& lengths) {
    return std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
}
/// The index of sequence s's first token.
std::int64_t start(const std::vector<std::int32_t>& lengths, std::size_t s) {
    return std::accumulate(lengths.begin(), lengths.begin() + static_cast<std::ptrdiff_t>(s),
                           std::int64_t{0});
}
Tensor offsets_of(const Context& ctx, const std::vector<std::int32_t>& lengths) {
    std::vector<std::int32_t> offsets{0};
    for (const std::int32_t length : lengths) offsets.push_back(offsets.back() + length);
    return from_host(ctx, offsets, {std::ssize(offsets)});
}

/// Views one sequence's tokens in [tokens, H, D] as [1, length, H, D].
Tensor tokens_of(const Tensor& x, std::int64_t first, std::int64_t length) {
    return x.slice(0, first, length).expand({1, length, x.size(1), x.size(2)});
}

std::int64_t longest(const std::vector<std::int32_t>& lengths) {
    return lengths.empty() ? 0 : std::ranges::max(lengths);
}
std::int64_t own_length(std::int64_t axis, std::int64_t length) {
    return axis == 1 ? 1 : length;
}

/// The part of a bias, or of its gradient, that belongs to sequence s, [1, heads, rows, keys].
Tensor part_of_bias(const PackedProblem& p, const Tensor& bias, std::size_t s) {
    const std::int64_t rows = p.queries[s], keys = p.keys[s];
    if (bias.rank() == 2) {
        const Tensor own = bias.size(1) == 1 ? bias : bias.slice(1, start(p.keys, s), keys);
        return own.expand({1, 1, own.size(0), own.size(1)}).transpose(1, 2);
    }
    const std::int64_t batch = static_cast<std::int64_t>(s) * bias.size(0) / std::ssize(p.queries);
    return bias.slice(0, batch, 1)
        .slice(2, 0, own_length(bias.size(2), rows))
        .slice(3, 0, own_length(bias.size(3), keys));
}
/// The same for a shape.
Shape part_of_bias(const PackedProblem& p, const Shape& bias, std::size_t s) {
    if (bias.rank() == 0) return bias;
    if (bias.rank() == 2) return {1, bias[0], 1, own_length(bias[1], p.keys[s])};
    return {1, bias[1], own_length(bias[2], p.queries[s]), own_length(bias[3], p.keys[s])};
}

/// Concatenates the sequences' results. Tokens that belong to no sequence get zeros, and their LSE is
/// `unused_lse`.
class Assembly {
  public:
    Assembly(const PackedProblem& problem, double unused_lse) : p_(problem) {
        const auto make = [](std::int64_t n, double value = 0) {
            return std::vector<double>(static_cast<std::size_t>(n), value);
        };
        const Problem& each = p_.each;
        all_ = {.o = make(p_.rows() * each.heads * each.d_v),
                .lse = make(each.heads * p_.rows(), unused_lse),
                .d_q = make(p_.rows() * each.heads * each.d_qk),
                .d_k = make(p_.key_count() * each.key_heads * each.d_qk),
                .d_v = make(p_.key_count() * each.key_heads * each.d_v),
                .d_sink = make(each.sink ? each.heads : 0)};
        for (std::size_t n = 0; n < max_biases; ++n)
            if (each.biases[n].rank() > 0) d_biases_[n] = zeros(ctx_, each.biases[n], DType::f64);
    }
    void put(std::size_t s, const Result& part) {
        const Problem& each = p_.each;
        const std::int64_t row = start(p_.queries, s), key = start(p_.keys, s), rows = p_.queries[s];
        const auto copy_to = [](std::vector<double>& to, std::int64_t offset,
                                const std::vector<double>& from) {
            std::copy(from.begin(), from.end(), to.begin() + offset);
        };
        copy_to(all_.o, row * each.heads * each.d_v, part.o);
        copy_to(all_.d_q, row * each.heads * each.d_qk, part.d_q);
        copy_to(all_.d_k, key * each.key_heads * each.d_qk, part.d_k);
        copy_to(all_.d_v, key * each.key_heads * each.d_v, part.d_v);
        for (std::int64_t h = 0; h < each.heads; ++h)
            std::copy_n(part.lse.begin() + h * rows, rows, all_.lse.begin() + h * p_.rows() + row);
        for (std::size_t h = 0; h < all_.d_sink.size(); ++h) all_.d_sink[h] += part.d_sink[h];
        add_bias_gradient(0, s, part.d_bias_0);
        add_bias_gradient(1, s, part.d_bias_1);
    }
    Result take() {
        all_.d_bias_0 = accuracy::numbers_of(ctx_, d_biases_[0]);
        all_.d_bias_1 = accuracy::numbers_of(ctx_, d_biases_[1]);
        return std::move(all_);
    }

  private:
    void add_bias_gradient(std::size_t n, std::size_t s, const std::vector<double>& part) {
        if (!d_biases_[n].defined()) return;
        const Tensor own = part_of_bias(p_, d_biases_[n], s);
        axpy(ctx_, own, 1, from_host(ctx_, part, own.shape(), DType::f64));
    }

    const PackedProblem& p_;
    const Context ctx_{Device::cpu(), 1};
    Result all_;
    std::array<Tensor, max_biases> d_biases_;
};

/// Every broadcast of both forms of a bias: [heads, keys], and [sequences, heads, rows, keys].
void add_bias_forms(std::vector<PackedProblem>& problems, const PackedProblem& base) {
    const std::int64_t count = std::ssize(base.queries), heads = base.each.heads, keys = base.key_count(),
                       longest_rows = longest(base.queries), longest_keys = longest(base.keys);
    for (const auto& biases : std::vector<std::array<Shape, max_biases>>{
             {Shape{heads, keys}},
             {Shape{heads, 1}, Shape{1, keys}},
             {Shape{count, heads, longest_rows + 3, longest_keys + 9}},
             {Shape{count, 1, longest_rows, longest_keys}, Shape{1, 1, longest_rows, longest_keys}},
             {Shape{count, heads, 1, longest_keys}, Shape{1, heads, 1, longest_keys}},
             {Shape{count, 1, longest_rows, 1}, Shape{1, 1, 1, 1}}})
        for (const bool is_causal : {false, true}) {
            PackedProblem p = base;
            p.each.biases = biases;
            p.each.causal = is_causal;
            problems.push_back(p);
        }
    PackedProblem divided = base;
    divided.each.batch_divisor = 2;
    divided.each.biases = {Shape{count / 2, heads, longest_rows, longest_keys}, Shape{heads, keys}};
    problems.push_back(divided);
}

}  // namespace

void use_packed_biases(PackedProblem& p) {
    if (p.each.biases[0].rank() > 0) p.each.biases[0] = {1, p.key_count()};
    if (p.each.biases[1].rank() > 0)
        p.each.biases[1] = {1, p.each.heads, longest(p.queries), longest(p.keys)};
}

std::int64_t PackedProblem::rows() const {
    return sum(queries) + unused_rows;
}
std::int64_t PackedProblem::key_count() const {
    return sum(keys) + unused_keys;
}
Problem PackedProblem::sequence(std::size_t s) const {
    Problem problem = each;
    problem.batch = 1;
    problem.queries = queries[s];
    problem.keys = keys[s];
    problem.first_sample = static_cast<std::int64_t>(s);
    problem.batch_divisor = 1;
    for (Shape& bias : problem.biases) bias = part_of_bias(*this, bias, s);
    return problem;
}

std::ostream& operator<<(std::ostream& out, const PackedProblem& p) {
    out << p.queries.size() << " sequences:";
    for (std::size_t s = 0; s < std::min<std::size_t>(p.queries.size(), 6); ++s)
        out << ' ' << p.queries[s] << 'x' << p.keys[s];
    return out << ", unused " << p.unused_rows << 'x' << p.unused_keys << ", each like " << p.each;
}

PackedInputs PackedInputs::to(const Context& ctx, DType dtype) const {
    return {in.to(ctx, dtype), cumulative_q, cumulative_k};
}
PackedInputs PackedInputs::on(const Context& ctx) const {
    PackedInputs copies = *this;
    for (Tensor* x : {&copies.in.q, &copies.in.k, &copies.in.v, &copies.in.d_o, &copies.cumulative_q,
                      &copies.cumulative_k})
        *x = to_device(ctx, *x);
    for (Tensor* x : copies.in.option_tensors())
        if (x->defined()) *x = to_device(ctx, *x);
    return copies;
}

PackedInputs random_inputs(const Context& ctx, const PackedProblem& p, DType dtype) {
    Problem as_batch = p.each;
    as_batch.batch = 1;
    as_batch.queries = p.rows();
    as_batch.keys = p.key_count();
    PackedInputs packed{accuracy::random_inputs(ctx, as_batch, dtype), offsets_of(ctx, p.queries),
                        offsets_of(ctx, p.keys)};
    for (Tensor* x : {&packed.in.q, &packed.in.k, &packed.in.v, &packed.in.d_o, &packed.in.d_lse})
        if (x->defined()) *x = x->select(0, 0);
    if (p.each.row_ranges.rank() > 0) {
        const std::int64_t longest = p.queries.empty() ? 1 : std::ranges::max(p.queries);
        packed.in.row_ranges =
            random_row_ranges(ctx, {1, p.each.row_ranges[1], as_batch.keys, 4}, longest).select(0, 0);
    }
    return packed;
}

Inputs inputs_of_sequence(const PackedProblem& p, const PackedInputs& packed, std::size_t s) {
    const std::int64_t row = start(p.queries, s), key = start(p.keys, s);
    Inputs in = packed.in;
    if (in.row_ranges.defined())
        in.row_ranges =
            in.row_ranges.slice(1, key, p.keys[s]).expand({1, in.row_ranges.size(0), p.keys[s], 4});
    in.q = tokens_of(in.q, row, p.queries[s]);
    in.d_o = tokens_of(in.d_o, row, p.queries[s]);
    in.k = tokens_of(in.k, key, p.keys[s]);
    in.v = tokens_of(in.v, key, p.keys[s]);
    for (Tensor& bias : in.biases)
        if (bias.defined()) bias = part_of_bias(p, bias, s);
    if (in.d_lse.defined())
        in.d_lse = in.d_lse.slice(1, row, p.queries[s]).expand({1, p.each.heads, p.queries[s]});
    return in;
}

Result run(const Context& ctx, const PackedInputs& packed, Options options) {
    options.cumulative_q = packed.cumulative_q;
    options.cumulative_k = packed.cumulative_k;
    return accuracy::run(ctx, packed.in, options);
}

Result run_each(const Context& ctx, const PackedProblem& problem, const PackedInputs& in,
                Algorithm algorithm) {
    Assembly results(problem, -infinity);
    for (std::size_t s = 0; s < problem.queries.size(); ++s)
        results.put(s, accuracy::run(ctx, inputs_of_sequence(problem, in, s),
                                     problem.sequence(s).options(algorithm)));
    return results.take();
}

Reference float64_reference(const Context& ctx, const PackedProblem& problem, const PackedInputs& in,
                            const Roundoff& roundoff) {
    Assembly value(problem, -infinity), floor(problem, 0), root_mean_square(problem, 0),
        systematic(problem, 0);
    for (std::size_t s = 0; s < problem.queries.size(); ++s) {
        const Reference part = accuracy::float64_reference(ctx, problem.sequence(s),
                                                           inputs_of_sequence(problem, in, s), roundoff);
        value.put(s, part.value);
        floor.put(s, part.floor);
        root_mean_square.put(s, part.root_mean_square);
        systematic.put(s, part.systematic);
    }
    Reference all{.value = value.take(),
                  .floor = floor.take(),
                  .root_mean_square = root_mean_square.take(),
                  .systematic = systematic.take(),
                  .d_q_by_d = {}};
    // A sum over sequences is rounded to the bias's dtype at its end, too.
    const auto add_storage = [&](const Tensor& bias, std::vector<double> Result::*part) {
        if (!bias.defined()) return;
        const double u = roundoff_of(bias.dtype(), Device::cpu()).storage;
        for (std::size_t i = 0; i < (all.floor.*part).size(); ++i)
            (all.floor.*part)[i] += u * std::abs((all.value.*part)[i]);
    };
    add_storage(in.in.biases[0], &Result::d_bias_0);
    add_storage(in.in.biases[1], &Result::d_bias_1);
    return all;
}

std::vector<PackedProblem> packed_problems() {
    const Problem each{.d_qk = 16, .d_v = 24, .heads = 4, .key_heads = 2};
    const std::vector<std::int32_t> queries{70, 0, 5, 131, 1, 9, 0, 64}, keys{70, 8, 0, 70, 1, 140, 0, 65};
    std::vector<PackedProblem> problems;
    const auto add = [&](auto&& change) {
        PackedProblem p{each, queries, keys};
        change(p);
        use_packed_biases(p);
        problems.push_back(std::move(p));
    };
    const auto add_option = [&](auto&& change) { add([&](PackedProblem& p) { change(p.each); }); };
    add_option([](Problem&) {});
    add_option([](Problem& p) { p.causal = true; });
    add_option([](Problem& p) { p.causal = p.top_left = true; });
    add_option([](Problem& p) { p.window = {.left = 20, .right = 7}; });
    add_option([](Problem& p) { p.causal = true, p.window.left = 33; });
    add_option([](Problem& p) { p.causal = p.alibi = true; });
    add_option([](Problem& p) { p.sink = p.d_lse = true; });
    add_option([](Problem& p) { p.d_lse = p.causal = true; });
    add_option([](Problem& p) { p.scale = -0.3; });
    for (const NamedProblem& option : score_option_problems(each))
        add_option([&](Problem& p) { p = option.problem; });
    for (const NamedProblem& option : row_range_problems(each))
        add_option([&](Problem& p) { p = option.problem; });
    add_bias_forms(problems, {each, queries, keys});
    const auto set_all = [](Problem& p) {
        p = score_option_problems(p).back().problem;
        p.causal = true;
        p.window.left = 50;
        p.row_ranges = {1, p.heads};
    };
    add_option(set_all);
    for (const std::int64_t key_heads : {1, 4})
        add_option([&](Problem& p) { p.causal = true, p.key_heads = key_heads; });
    for (const auto& [d_qk, d_v] :
         {std::pair{1, 3}, {33, 8}, {64, 64}, {80, 128}, {160, 160}, {192, 40}, {192, 128}, {256, 256}})
        for (const bool with_options : {false, true})
            add_option([&, d_qk = d_qk, d_v = d_v](Problem& p) {
                p.d_qk = d_qk;
                p.d_v = d_v;
                p.heads = 2;
                p.key_heads = 1;
                p.causal = true;
                if (with_options) set_all(p);
            });
    // One sequence, equal lengths, no sequence, and sequences that are all empty.
    add([](PackedProblem& p) { p.each.causal = true, p.queries = {150}, p.keys = {150}; });
    add([](PackedProblem& p) { p.queries = p.keys = {64, 64, 64}; });
    add([](PackedProblem& p) { p.queries = {}, p.keys = {}, p.unused_rows = 5, p.unused_keys = 7; });
    add([](PackedProblem& p) { p.queries = {0, 0}, p.keys = {0, 0}; });
    add([&](PackedProblem& p) {
        set_all(p.each);
        p.queries = {0, 40};
        p.keys = {40, 0};
    });
    // Many short sequences, with tokens after the last one.
    for (const bool with_options : {false, true})
        add([&](PackedProblem& p) {
            p.each.causal = true;
            if (with_options) set_all(p.each);
            p.queries.clear();
            p.keys.clear();
            for (int s = 0; s < 60; ++s) {
                p.queries.push_back(s * 7 % 5);
                p.keys.push_back(s % 3 == 0 ? s * 5 % 9 : s * 7 % 5);
            }
            p.unused_rows = 37;
            p.unused_keys = 70;
        });
    // Lengths at which kernels choose other blocks.
    if (!gradtile::test::sanitized)
        add([](PackedProblem& p) {
            p.each = {.d_qk = 16, .d_v = 16, .causal = true, .heads = 2, .key_heads = 1, .sink = true};
            p.queries = {600, 3, 1100, 130};
            p.keys = {520, 3, 1100, 257};
            p.unused_rows = 1;
        });
    return problems;
}

}  // namespace gradtile::attention::test
