// Rotary positions in config.json, as transformers' modeling_rope_utils.py reads them.
#include <algorithm>
#include <cmath>

#include <gradtile/core/check.h>
#include <gradtile/tools/formats/families/decoder_members.h>

namespace gradtile {
namespace {

constexpr const char *scaling_name = "rope_scaling", *parameters_name = "rope_parameters";

bool has_original_context(RopeKind kind) {
    return kind == RopeKind::llama3 || kind == RopeKind::yarn || kind == RopeKind::longrope;
}

/// Reads or writes the members of rope_scaling that its kind uses; others are ignored, as in transformers.
void map_scaling(ConfigMembers& m, RopeScaling& s, std::int64_t context) {
    m.map<RopeKind>({"rope_type", "type"}, s.kind,
                    {{"default", RopeKind::none},
                     {"linear", RopeKind::linear},
                     {"dynamic", RopeKind::dynamic},
                     {"llama3", RopeKind::llama3},
                     {"yarn", RopeKind::yarn},
                     {"longrope", RopeKind::longrope},
                     {"su", RopeKind::longrope}});  // longrope's first name
    if (s.kind == RopeKind::none) return;
    const auto ratio = [&] { return static_cast<double>(context) / static_cast<double>(s.original_context); };
    if (has_original_context(s.kind)) {
        m.map("original_max_position_embeddings", s.original_context);
    } else if (m.reads()) {
        s.original_context = s.kind == RopeKind::dynamic ? context : 0;
    }
    if (m.reads() && !m.has("factor")) {
        check(s.kind == RopeKind::longrope, m.source(),
              ": has no factor; expected the factor by which the context is extended");
        s.factor = s.original_context > 0 ? std::max(1.0, ratio()) : 1.0;
    }
    if (m.reads() || s.kind != RopeKind::longrope || s.factor != ratio()) m.map("factor", s.factor);
    if (s.kind == RopeKind::llama3) {
        m.map("low_freq_factor", s.low_factor);
        m.map("high_freq_factor", s.high_factor);
    }
    if (s.kind == RopeKind::yarn) {
        m.map("beta_fast", s.beta_fast);
        m.map("beta_slow", s.beta_slow);
        m.map("truncate", s.truncate);
        m.map_unless_zero("mscale", s.mscale);
        m.map_unless_zero("mscale_all_dim", s.mscale_all_dim);
    }
    if (s.kind == RopeKind::yarn || s.kind == RopeKind::longrope) {
        m.map_unless_zero("attention_factor", s.attention_factor);
        check(!m.reads() || !m.has("attention_factor") || s.attention_factor > 0, m.source(),
              ": attention_factor: ", s.attention_factor, "; expected more than 0");
    }
    if (s.kind == RopeKind::longrope) {
        m.map("short_factor", s.short_factors);
        m.map("long_factor", s.long_factors);
    }
}

/// Reads a base or a part of the head, which transformers 4 writes beside rope_scaling and transformers 5 in
/// it.
void map_outer_and_inner(ConfigMembers& outer, ConfigMembers& inner, const char* outer_name,
                         const char* inner_name, double& value) {
    const bool is_outer = outer.has(outer_name);
    outer.map(outer_name, value);
    double other = value;
    inner.map(inner_name, other);
    const std::string holder = inner.source().substr(outer.source().size() + 2);
    check(!is_outer || value == other, inner.source(), ": ", inner_name, ": ", other, ", but ", outer_name,
          " beside ", holder, ": ", value, "; expected one of these members, or equal values");
    value = other;
}

void read_rotated_part(ConfigMembers& outer, ConfigMembers& inner, const RopeMembers& names, ModelConfig& c) {
    check(c.heads > 0, outer.source(), ": num_attention_heads: 0; expected at least 1");
    const char* const name = names.rotated_part;
    const auto head_dim = static_cast<double>(c.head_dim());
    double part = names.default_part;
    map_outer_and_inner(outer, inner, name, "partial_rotary_factor", part);
    check(part > 0 && part <= 1, outer.source(), ": ", name, ": ", part,
          "; expected more than 0 and at most 1");
    c.rotary_width = part == 1 ? 0 : static_cast<std::int64_t>(head_dim * part);
    check(part == 1 || c.rotary_width >= 2, outer.source(), ": ", name, ": ", part, " rotates ",
          c.rotary_width, " of ", c.head_dim(), " elements of a head; expected at least 2");
}

void read_rope(ConfigMembers& m, const JsonValue& scaling, std::string_view scaling_source, ModelConfig& c,
               const RopeMembers& names) {
    ConfigMembers inner(scaling, scaling_source);
    map_outer_and_inner(m, inner, names.base, "rope_theta", c.rope_base);
    if (names.rotated_part) {
        read_rotated_part(m, inner, names, c);
    } else {
        double part = 1.0;
        inner.map("partial_rotary_factor", part);
        check(part == 1, inner.source(), ": partial_rotary_factor: ", part, " is not supported; expected 1");
    }
    if (names.original_context) {
        m.map(names.original_context, c.rope_scaling.original_context);
    } else {
        c.rope_scaling.original_context = c.context;
    }
    const std::int64_t outer_context = c.rope_scaling.original_context;
    map_scaling(inner, c.rope_scaling, c.context);
    if (c.rope_scaling.kind == RopeKind::none) c.rope_scaling = {};
    check(!names.original_context || !has_original_context(c.rope_scaling.kind) ||
              c.rope_scaling.original_context == outer_context,
          inner.source(), ": original_max_position_embeddings: ", c.rope_scaling.original_context, ", but ",
          outer_context, " beside ", scaling_name, "; expected equal values");
}

/// Returns the part of a head that is read as rotated_width().
double rotated_part(const ModelConfig& c) {
    const auto head_dim = static_cast<double>(c.head_dim());
    double part = static_cast<double>(c.rotated_width()) / head_dim;
    while (static_cast<std::int64_t>(head_dim * part) < c.rotated_width()) part = std::nextafter(part, 1.0);
    return part;
}

void write_rope(ConfigMembers& m, ModelConfig& c, const RopeMembers& names) {
    m.map(names.base, c.rope_base);
    if (names.rotated_part) m.write(names.rotated_part, rotated_part(c));
    if (names.original_context)
        m.write(names.original_context,
                has_original_context(c.rope_scaling.kind) ? c.rope_scaling.original_context : c.context);
    check(c.rope_scaling.kind != RopeKind::half_truncated, m.source(),
          ": rope-scaling half-truncated cannot be stored; transformers has no such kind");
    ConfigMembers scaling;
    map_scaling(scaling, c.rope_scaling, c.context);
    m.write(scaling_name, c.rope_scaling.kind == RopeKind::none ? JsonValue() : scaling.take());
}

/// Returns rope_scaling or rope_parameters; null if the config has neither, or null.
const JsonValue* find_scaling(ConfigMembers& m) {
    const JsonValue *const older = m.value_of(scaling_name), *const newer = m.value_of(parameters_name);
    check(!older || !newer || *older == *newer, m.source(), ": ", scaling_name, " and ", parameters_name,
          " differ; expected one of them");
    return older ? older : newer;
}

}  // namespace

void map_rope(ConfigMembers& m, ModelConfig& c, const RopeMembers& names) {
    if (!m.reads()) return write_rope(m, c, names);
    const JsonValue* const found = find_scaling(m);
    const JsonValue nothing = JsonValue::object();
    const char* const name = m.has(scaling_name) ? scaling_name : parameters_name;
    read_rope(m, found ? *found : nothing, concat(m.source(), ": ", name), c, names);
}

void map_window_rope(ConfigMembers& m, ModelConfig& c) {
    constexpr const char *window_base = "rope_local_base_freq", *full = "full_attention",
                         *windowed = "sliding_attention";
    if (!m.reads()) {
        m.map(window_base, c.window_rope_base);
        return write_rope(m, c, {});
    }
    const JsonValue* const found = find_scaling(m);
    const JsonValue* const of_full = found ? found->find(full) : nullptr;
    const JsonValue* const of_window = found ? found->find(windowed) : nullptr;
    const JsonValue nothing = JsonValue::object();
    if (!of_full && !of_window) {
        // transformers ignores such members of rope_parameters.
        check(!found || found->size() == 0 || m.has(scaling_name), m.source(), ": ", parameters_name,
              ": expected the members ", full, " and ", windowed);
        m.map(window_base, c.window_rope_base);
        return map_rope(m, c);
    }
    const std::string source = concat(m.source(), ": ", m.has(scaling_name) ? scaling_name : parameters_name);
    check(found->size() == (of_full ? 1u : 0u) + (of_window ? 1u : 0u), source, ": expected the members ",
          full, " and ", windowed);
    read_rope(m, of_full && !of_full->is_null() ? *of_full : nothing, concat(source, ": ", full), c, {});
    ConfigMembers window(of_window && !of_window->is_null() ? *of_window : nothing,
                         concat(source, ": ", windowed));
    map_outer_and_inner(m, window, window_base, "rope_theta", c.window_rope_base);
    RopeKind kind = RopeKind::none;
    window.map<RopeKind>({"rope_type", "type"}, kind, {{"default", RopeKind::none}});
}

}  // namespace gradtile
