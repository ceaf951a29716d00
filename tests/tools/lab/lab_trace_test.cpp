// Compares the lab's traces with the counted run, and their lines with the source code.
#include <cmath>
#include <fstream>
#include <map>

#include <gmock/gmock.h>

#include <gradtile/tools/lab/trace.h>

#include <support/error_message.h>

namespace gradtile::attention::test {
namespace {

using gradtile::test::message_of;
using lab::Trace;
using lab::TracedLine;
using lab::TracedTile;
using lab::TraceStep;
using testing::HasSubstr;

constexpr std::int64_t many_steps = 1'000'000;
const std::vector<lab::Setup> setups{{.length = 64, .head_dim = 16, .fast_memory = 4096},
                                     {.length = 50, .head_dim = 7, .fast_memory = 5000},
                                     {.length = 1, .head_dim = 1, .fast_memory = 4096}};

template <class Body>
void for_each_trace(Body&& body) {
    for (const lab::Setup& setup : setups)
        for (const Trace& trace : trace_attention(setup, many_steps)) {
            SCOPED_TRACE(::testing::Message() << trace.measurement.name << ' ' << trace.measurement.pass
                                              << ", length " << setup.length);
            body(setup, trace);
        }
}

std::int64_t size_of(const TraceStep& step) {
    return (step.rows.end - step.rows.begin) * (step.columns.end - step.columns.begin);
}

template <class T>
const T& element_at(const std::vector<T>& list, std::int64_t index) {
    return list.at(static_cast<std::size_t>(index));
}

TEST(LabTrace, HasEveryLoadAndStoreThatTheLabCounts) {
    for (const lab::Setup& setup : setups) {
        const auto traces = trace_attention(setup, many_steps);
        const auto counted = measure_attention(setup);
        ASSERT_EQ(traces.size(), counted.size());
        for (std::size_t i = 0; i < traces.size(); ++i) {
            std::int64_t loads = 0, stores = 0;
            for (const TraceStep& step : traces[i].steps) {
                if (step.kind == TraceStep::Kind::load) loads += size_of(step);
                if (step.kind == TraceStep::Kind::store) stores += size_of(step);
            }
            EXPECT_EQ(traces[i].measurement.name + traces[i].measurement.pass,
                      counted[i].name + counted[i].pass);
            EXPECT_EQ(loads, counted[i].loads) << counted[i].name << ' ' << counted[i].pass;
            EXPECT_EQ(stores, counted[i].stores) << counted[i].name << ' ' << counted[i].pass;
            EXPECT_EQ(traces[i].measurement.slow_bytes, counted[i].slow_bytes);
            EXPECT_EQ(traces[i].measurement.error, counted[i].error);
        }
    }
}

TEST(LabTrace, StepsUseTilesWhileTheyExistAndPartsOfTheirMatrices) {
    for_each_trace([](const lab::Setup& setup, const Trace& trace) {
        std::int64_t peak = 0;
        for (const TracedTile& tile : trace.tiles) {
            EXPECT_LE(tile.first_step, tile.end_step);
            EXPECT_FALSE(tile.name.empty());
            peak = std::max(peak, tile.offset + tile.bytes);
        }
        EXPECT_EQ(peak, trace.measurement.peak_fast_bytes);
        EXPECT_LE(peak, setup.fast_memory);
        for (std::size_t i = 0; i < trace.steps.size(); ++i) {
            const TraceStep& step = trace.steps[i];
            const auto now = static_cast<std::int64_t>(i);
            if (step.kind != TraceStep::Kind::statistics) {
                EXPECT_LE(element_at(trace.tiles, step.tile).first_step, now);
                EXPECT_GT(element_at(trace.tiles, step.tile).end_step, now);
            }
            if (step.kind != TraceStep::Kind::load && step.kind != TraceStep::Kind::store) continue;
            EXPECT_GE(std::min(step.rows.begin, step.columns.begin), 0);
            EXPECT_LE(step.rows.end, element_at(trace.matrices, step.matrix).rows);
            EXPECT_LE(step.columns.end, element_at(trace.matrices, step.matrix).columns);
            EXPECT_GT(size_of(step), 0);
        }
    });
}

/// The text of a source line in the repository.
std::string text_of(const TracedLine& line) {
    static std::map<std::string, std::vector<std::string>> files;
    std::vector<std::string>& lines = files[line.file];
    if (lines.empty()) {
        std::ifstream in(std::string(GRADTILE_SOURCE_DIR) + '/' + line.file);
        for (std::string text; std::getline(in, text);) lines.push_back(text);
    }
    return lines.at(static_cast<std::size_t>(line.line - 1));
}

TEST(LabTrace, LinesAreThoseThatLoadAndStore) {
    for_each_trace([](const lab::Setup&, const Trace& trace) {
        for (const TraceStep& step : trace.steps) {
            const std::string text = text_of(element_at(trace.lines, step.line));
            const char* const call = step.kind == TraceStep::Kind::load         ? "fast.load("
                                     : step.kind == TraceStep::Kind::store      ? "fast.store("
                                     : step.kind == TraceStep::Kind::statistics ? "report_statistics("
                                                                                : "";
            EXPECT_THAT(text, HasSubstr(call));
            EXPECT_FALSE(text.empty());
            // A call may extend over several lines. The recorded line may then be the call's last line, which
            // does not always contain the operation's name.
            EXPECT_TRUE(step.caller < 0 || !text_of(element_at(trace.lines, step.caller)).empty());
        }
    });
}

/// m + ln l is the LSE, however the algorithm came to m and l.
TEST(LabTrace, RunningStatisticsEndAtTheSameLse) {
    const lab::Setup& setup = setups.front();
    std::vector<std::vector<double>> all;
    for (const Trace& trace : trace_attention(setup, many_steps)) {
        if (trace.measurement.pass == "backward") {
            EXPECT_TRUE(trace.updates.empty());
            continue;
        }
        std::vector<double>& lse = all.emplace_back(static_cast<std::size_t>(setup.length));
        std::vector<double> maxima(lse.size(), -INFINITY);
        for (const lab::RowUpdate& update : trace.updates) {
            const auto row = static_cast<std::size_t>(update.row);
            EXPECT_GE(update.maximum, maxima.at(row)) << trace.measurement.name;
            maxima[row] = update.maximum;
            lse[row] = update.maximum + std::log(update.sum);
        }
        for (std::size_t row = 0; row < lse.size(); ++row)
            EXPECT_NEAR(lse[row], all.front()[row], 1e-5) << trace.measurement.name << ", row " << row;
    }
    EXPECT_EQ(all.size(), 4u);
}

TEST(LabTrace, RefusesMoreStepsThanAllowed) {
    const lab::Setup& setup = setups.front();
    std::int64_t steps = 0;
    for (const Trace& trace : trace_attention(setup, many_steps))
        steps += static_cast<std::int64_t>(trace.steps.size());
    EXPECT_EQ(trace_attention(setup, steps).size(), 8u);
    EXPECT_THAT(message_of([&] { trace_attention(setup, steps - 1); }), HasSubstr("shorter length"));
}

}  // namespace
}  // namespace gradtile::attention::test
