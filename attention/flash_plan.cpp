#include <gradtile/attention/internal/flash_plan.h>

#include <gradtile/core/enum_names.h>

namespace gradtile {
template <>
struct EnumNames<attention::Family> {
    using enum attention::Family;
    static constexpr std::array names = {std::pair{naive, std::string_view("naive")},
                                         std::pair{pairwise, std::string_view("pairwise")},
                                         std::pair{f32, std::string_view("f32")},
                                         std::pair{few_f32, std::string_view("f32 few queries")},
                                         std::pair{sm80, std::string_view("sm80")},
                                         std::pair{few_sm80, std::string_view("sm80 few queries")},
                                         std::pair{sm90, std::string_view("sm90")},
                                         std::pair{few_sm90, std::string_view("sm90 few queries")},
                                         std::pair{memory_efficient, std::string_view("memory_efficient")},
                                         std::pair{flash1, std::string_view("flash1")}};
};
template <>
struct EnumNames<attention::DqAddition> {
    using enum attention::DqAddition;
    static constexpr std::array names = {std::pair{in_ring, std::string_view("ring")},
                                         std::pair{by_threads, std::string_view("threads")},
                                         std::pair{in_bulk, std::string_view("bulk")},
                                         std::pair{in_shared_memory, std::string_view("shared")}};
};
}  // namespace gradtile

namespace gradtile::attention {
namespace {

/// How a family computes a pass.
const char* method_text(const FlashPlan& plan) {
    const bool is_forward = plan.pass == Pass::forward;
    switch (plan.family) {
        case Family::naive:
            return "naive: matrix products";
        case Family::pairwise:
            return "float64: pair by pair";
        case Family::few_f32:
        case Family::few_sm80:
        case Family::few_sm90:
            return "few queries";
        case Family::f32:
        case Family::sm80:
            return is_forward ? "long queries: a thread block for each block of rows"
                              : "a thread block for each block of keys";
        case Family::sm90:
            return is_forward ? "long queries: Hopper's asynchronous products and copies"
                              : "Hopper's asynchronous products and copies";
        case Family::memory_efficient:
            return "memory_efficient: a thread block for each block of rows";
        case Family::flash1:
            return "flash1: a thread block for each head, or several for a part of it each";
    }
    throw Error("attention: unknown family of kernels");
}

}  // namespace

std::size_t FlashPlan::scratch_bytes() const {
    std::size_t bytes = 0;
    for (const ScratchTensor& x : scratch)
        bytes += static_cast<std::size_t>(x.shape.elements()) * size_of(x.dtype);
    return bytes;
}

std::ostream& operator<<(std::ostream& out, Family family) {
    return out << name_of(family);
}
std::ostream& operator<<(std::ostream& out, DqAddition addition) {
    return out << name_of(addition);
}

std::ostream& operator<<(std::ostream& out, const FlashPlan& plan) {
    const Tiles& tiles = plan.tiles;
    const Schedule& schedule = plan.schedule;
    out << method_text(plan);
    if (const FewQueriesPlan& few = schedule.few_queries)
        out << ": " << few.rows << " rows of " << few.heads_together << " heads together, " << few.splits
            << " splits of " << few.keys_per_split << " keys, " << few.blocks_per_split * few.splits
            << " thread blocks, at most " << few.concurrent_blocks << " at the same time";
    out << "; head dim " << tiles.head_dim << plan.rules << (plan.is_packed ? ", packed sequences" : "");
    const auto print = [&](const char* name, int number) {
        if (number > 0) out << ", " << name << ' ' << number;
    };
    print("consumers", tiles.consumers);
    print("rows", tiles.rows);
    print("keys", tiles.keys);
    print("stages", tiles.stages);
    print("stages of Q", tiles.q_stages);
    if (tiles.q_in_registers) out << ", Q in registers";
    if (tiles.in_turns) out << (*tiles.in_turns ? ", in turns" : ", not in turns");
    if (schedule.pairs) out << (*schedule.pairs ? ", pairs of row blocks" : ", single row blocks");
    print("heads in a set", schedule.set_heads());
    if (schedule.d_q_addition) out << ", dQ added by " << *schedule.d_q_addition;
    print("slots", schedule.ring_slots);
    if (schedule.launches.size() > 1) print("launches", static_cast<int>(schedule.launches.size()));
    if (plan.pass == Pass::backward) print("splits", schedule.splits);
    out << ", scratch bytes " << plan.scratch_bytes() << "; ";
    if (plan.family == Family::few_sm90) out << "Hopper's asynchronous products and copies, because ";
    if (plan.family == Family::sm80 || plan.family == Family::few_sm80) out << "no Hopper kernels, because ";
    return out << plan.why;
}

}  // namespace gradtile::attention
