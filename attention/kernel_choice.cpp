// The kernels and schedules that replace the policy's choice in one thread's calls.
#include <gradtile/attention/internal/kernel_choice.h>

#include <ostream>

#include <gradtile/attention/internal/kernel_candidates.h>

namespace gradtile::attention {
namespace {
thread_local KernelChoice forced_choice;
}

const KernelChoice& forced_kernel_choice() {
    return forced_choice;
}

ForcedKernelChoice::ForcedKernelChoice(const KernelChoice& choice) : previous_(forced_choice) {
    forced_choice = choice;
}
ForcedKernelChoice::~ForcedKernelChoice() {
    forced_choice = previous_;
}

std::ostream& operator<<(std::ostream& out, KernelPlan::Kernels kernels) {
    using enum KernelPlan::Kernels;
    switch (kernels) {
        case hopper:
            return out << "hopper";
        case sm_80:
            return out << "sm_80";
        case hopper_few_queries:
            return out << "hopper few queries";
        case few_queries:
            return out << "few queries";
    }
    return out;
}
std::ostream& operator<<(std::ostream& out, KernelPlan::Sums sums) {
    using enum KernelPlan::Sums;
    return out << (sums == in_ring ? "ring" : sums == by_threads ? "threads" : "bulk");
}
std::ostream& operator<<(std::ostream& out, const KernelPlan& plan) {
    out << plan.kernels;
    const auto print = [&](const char* name, const auto& value) {
        if (value) out << ", " << name << ' ' << *value;
    };
    print("consumers", plan.consumers);
    print("rows", plan.rows);
    print("keys", plan.keys);
    print("stages", plan.stages);
    print("stages of Q", plan.q_stages);
    print("in turns", plan.in_turns);
    print("pairs", plan.pairs);
    print("heads in a set", plan.set_heads);
    print("sums of dQ", plan.sums);
    print("slots", plan.slots);
    print("splits", plan.splits);
    return out;
}

}  // namespace gradtile::attention
