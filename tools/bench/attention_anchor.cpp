#include <gradtile/tools/bench/attention_anchor.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>

#include <gradtile/core/check.h>

namespace gradtile::cli {
namespace {

AnchoredCall parse_line(const std::string& line, const std::string& source) {
    AnchoredCall call;
    std::istringstream in(line);
    const auto fail_unless = [&](bool is_right) {
        if (!is_right) in.setstate(std::ios::failbit);
    };
    std::int64_t causal = 0;
    in >> call.batch;
    for (std::int64_t* number : {&call.heads, &call.length, &call.head_dim, &causal}) {
        fail_unless(in.get() == ',');
        in >> *number;
    }
    for (std::string bar; in >> bar;) {
        AnchorTimes times;
        in >> times.implementation >> times.forward_ms >> times.backward_ms;
        fail_unless(bar == "|");
        call.times.push_back(times);
        if (in.fail()) break;
    }
    const bool has_shape = call.batch >= 1 && call.batch <= 4096 && call.heads >= 1 && call.heads <= 4096 &&
                           call.length >= 1 && call.length <= 1 << 20 && call.head_dim >= 1 &&
                           call.head_dim <= 256;
    const bool is_valid = has_shape && in.eof() && !call.times.empty() && (causal == 0 || causal == 1) &&
                          std::ranges::all_of(call.times, [](const AnchorTimes& times) {
                              return times.forward_ms > 0 && times.backward_ms > 0;
                          });
    check(is_valid, source, ": '", line,
          "'; expected BATCH,HEADS,LENGTH,HEAD_DIM,CAUSAL | NAME FORWARD_MS BACKWARD_MS ..");
    call.causal = causal == 1;
    return call;
}

}  // namespace

std::vector<AnchoredCall> read_anchors(const std::string& path) {
    std::ifstream file(path);
    check(file.good(), path, ": cannot be read");
    std::vector<AnchoredCall> calls;
    for (std::string line; std::getline(file, line);) {
        const std::string source = concat(path, ':', calls.size() + 1);
        calls.push_back(parse_line(line, source));
        check(std::ranges::equal(calls.back().times, calls.front().times, {}, &AnchorTimes::implementation,
                                 &AnchorTimes::implementation),
              source, ": other implementations than in line 1");
    }
    check(!calls.empty(), path, ": is empty; expected the output of bench/attention_anchor.py");
    return calls;
}

void Speedups::add(double speedup) {
    log_sum_ += std::log(speedup);
    smallest_ = count_ == 0 ? speedup : std::min(smallest_, speedup);
    ++count_;
}
double Speedups::geometric_mean() const {
    return std::exp(log_sum_ / count_);
}

}  // namespace gradtile::cli
