// Sums with learned factors: checks, allocation, and backend choice.
#include <gradtile/layers/learned_factors.h>

#include <gradtile/core/internal/overlap.h>
#include <gradtile/layers/internal/column_sums_backend.h>
#include <gradtile/layers/internal/weighted_sum_backend.h>

namespace gradtile {
namespace {

std::vector<WeightedTerm> weighted_terms(const std::vector<Parameter>& factors,
                                         const std::vector<Tensor>& terms) {
    check(terms.size() == factors.size(), "weighted_sum: ", terms.size(), " terms; expected ",
          factors.size());
    std::vector<WeightedTerm> weighted;
    for (std::size_t k = 0; k < terms.size(); ++k) {
        const Tensor &x = terms[k], &factor = factors[k].value();
        check(
            x.defined() && x.is_contiguous() && x.shape() == terms[0].shape() && x.dtype() == factor.dtype(),
            "weighted_sum: term ", k, " is ", x, "; expected a contiguous tensor in ", factor.dtype(),
            " like term 0, ", terms[0]);
        weighted.push_back({.x = x, .factor = factor});
    }
    return weighted;
}

/// Sets where backward writes the terms' gradients: dy itself for the first term, `others` for the rest.
void set_gradients(const Context& ctx, std::vector<WeightedTerm>& weighted, const Tensor& dy,
                   std::span<Tensor> others) {
    weighted[0].gradient = dy;
    for (std::size_t k = 1; k < weighted.size(); ++k) {
        Tensor& gradient = others[k - 1];
        weighted[k].adds_to_gradient = gradient.defined();
        if (!gradient.defined()) gradient = empty(ctx, dy.shape(), dy.dtype());
        check(gradient.is_contiguous() && gradient.shape() == dy.shape() && gradient.dtype() == dy.dtype(),
              "weighted_sum: gradient ", gradient, " of term ", k, "; expected one like dy ", dy);
        weighted[k].gradient = gradient;
    }
    for (const WeightedTerm& written : weighted)
        for (const WeightedTerm& term : weighted) {
            check_sharing(ctx, "weighted_sum", {"a gradient", written.gradient}, {{"a term", term.x}});
            if (&term != &written)
                check_sharing(ctx, "weighted_sum", {"a gradient", written.gradient},
                              {{"another gradient", term.gradient}});
        }
}

}  // namespace

WeightedSum::WeightedSum(ParameterStore& parameters, const std::string& name, std::span<const Term> terms) {
    check(!terms.empty() && terms.size() <= max_terms, "weighted_sum ", name, ": ", terms.size(),
          " terms; expected 1 to ", max_terms);
    for (const Term& term : terms)
        factors.push_back(
            parameters.add(name + "." + term.name, {1}, {Init::Kind::constant, term.first_factor}));
}

Tensor WeightedSum::forward(const Context& ctx, const std::vector<Tensor>& terms, Saved& saved) const {
    const std::vector<WeightedTerm> weighted = weighted_terms(factors, terms);
    saved.terms = terms;
    Tensor y = empty(ctx, terms[0].shape(), terms[0].dtype());
    if (y.elements() > 0)
        on_device(ctx, cpu::weighted_sum, cuda::weighted_sum, y, std::span<const WeightedTerm>(weighted));
    return y;
}

Tensor WeightedSum::backward(const Context& ctx, const Tensor& dy, const Saved& saved,
                             std::span<Tensor> others) const {
    std::vector<WeightedTerm> weighted = weighted_terms(factors, saved.terms);
    check(dy.defined() && dy.is_contiguous() && dy.shape() == saved.terms[0].shape() &&
              dy.dtype() == saved.terms[0].dtype(),
          "weighted_sum: dy ", dy, " for terms ", saved.terms[0], "; expected the same, contiguous");
    check(others.size() + 1 == weighted.size(), "weighted_sum: ", others.size(),
          " other gradients; expected ", weighted.size() - 1);
    set_gradients(ctx, weighted, dy, others);
    const bool is_empty = dy.elements() == 0;
    const auto count = std::ssize(weighted);
    const std::int64_t parts =
        (ctx.device().is_cpu() ? cpu::weighted_sum_parts : cuda::weighted_sum_parts)(dy.elements());
    const Tensor partials = empty(ctx, {count, parts, 1}, accumulator_of(dy.dtype()));
    if (!is_empty)
        on_device(ctx, cpu::weighted_sum_backward, cuda::weighted_sum_backward, partials, dy,
                  std::span<const WeightedTerm>(weighted));
    for (std::int64_t k = 0; k < count; ++k) {
        const Parameter& factor = factors[static_cast<std::size_t>(k)];
        if (factor.is_frozen()) continue;
        const GradientTarget target = factor.begin_gradient_write();
        if (is_empty) {
            ready_to_add(ctx, target);
        } else {
            on_device(ctx, cpu::add_parts, cuda::add_parts, target, partials.select(0, k));
        }
    }
    return dy;
}

}  // namespace gradtile
