// A small coverage-guided fuzzer for compilers without libFuzzer. It accepts libFuzzer's
// -max_total_time=SECONDS, -seed=N, -max_len=BYTES and files or directories with initial inputs. An input
// that crashes the target is written to the file crash-input.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include <fcntl.h>
#include <unistd.h>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

using Input = std::vector<std::uint8_t>;

constexpr std::size_t map_size = 1 << 16;
std::uint8_t reached[map_size];   // basic blocks (by hash) that the current input reaches
std::uint8_t known[map_size];     // basic blocks that any input so far has reached
std::uint16_t touched[map_size];  // indices where `reached` is not zero
std::size_t touched_count = 0;
const Input* current = nullptr;

void keep_crash(int signal) {
    const int file = ::open("crash-input", O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (file >= 0 && current != nullptr && ::write(file, current->data(), current->size()) >= 0)
        ::close(file);
    constexpr std::string_view note = "fuzz: the input was written to crash-input\n";
    if (::write(2, note.data(), note.size()) < 0) std::_Exit(2);
    std::signal(signal, SIG_DFL);
    std::raise(signal);
}

/// Runs one input; true when it reaches a basic block for the first time.
bool is_new(const Input& input) {
    for (; touched_count > 0; --touched_count) reached[touched[touched_count - 1]] = 0;
    current = &input;
    LLVMFuzzerTestOneInput(input.data(), input.size());
    bool found = false;
    for (std::size_t i = 0; i < touched_count; ++i) {
        found |= known[touched[i]] == 0;
        known[touched[i]] = 1;
    }
    return found;
}

class Mutator {
  public:
    Mutator(std::uint64_t seed, std::size_t longest) : random_(seed), longest_(longest) {}

    Input mutated(const std::vector<Input>& corpus) {
        Input input = corpus[below(corpus.size())];
        for (std::size_t changes = std::size_t{1} << below(5); changes > 0; --changes) change(input, corpus);
        if (input.size() > longest_) input.resize(longest_);
        return input;
    }

  private:
    std::size_t below(std::size_t n) { return static_cast<std::size_t>(random_() % n); }

    void change(Input& input, const std::vector<Input>& corpus) {
        const std::size_t position = below(input.size() + 1);
        const auto place = input.begin() + static_cast<std::ptrdiff_t>(position);
        switch (below(7)) {
            case 0:
                if (position < input.size()) input[position] ^= static_cast<std::uint8_t>(1u << below(8));
                break;
            case 1:
                if (position < input.size()) input[position] = static_cast<std::uint8_t>(random_());
                break;
            case 2:
                input.insert(place, static_cast<std::uint8_t>(random_()));
                break;
            case 3:
                if (position < input.size())
                    input.erase(place,
                                place + static_cast<std::ptrdiff_t>(1 + below(input.size() - position)));
                break;
            case 4: {  // edge cases for sizes and counts
                constexpr std::int64_t edges[] = {0,     1,          -1,         2,          127,  128,
                                                  255,   256,        -2,         1023,       1024, 32767,
                                                  65535, 0x7fffffff, 0x80000000, 0x100000000};
                const std::int64_t edge = edges[below(std::size(edges))];
                const std::size_t width = std::size_t{1} << below(4);
                if (position + width <= input.size()) std::memcpy(input.data() + position, &edge, width);
                break;
            }
            case 5: {  // part of another input
                const Input& other = corpus[below(corpus.size())];
                if (other.empty()) break;
                const std::size_t begin = below(other.size());
                const std::size_t length = 1 + below(std::min<std::size_t>(other.size() - begin, 64));
                input.insert(place, other.begin() + static_cast<std::ptrdiff_t>(begin),
                             other.begin() + static_cast<std::ptrdiff_t>(begin + length));
                break;
            }
            default:
                input.resize(position);
        }
    }

    std::mt19937_64 random_;
    std::size_t longest_;
};

Input read_file(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    return Input(std::istreambuf_iterator<char>(file), {});
}

}  // namespace

extern "C" void __sanitizer_cov_trace_pc() {
    const auto address = reinterpret_cast<std::uintptr_t>(__builtin_return_address(0));
    const std::size_t place = (address ^ address >> 16) % map_size;
    if (reached[place] != 0) return;
    reached[place] = 1;
    touched[touched_count++] = static_cast<std::uint16_t>(place);
}
// A finding calls abort(), so that keep_crash() writes the input.
extern "C" const char* __asan_default_options() {
    return "abort_on_error=1:detect_leaks=0";
}
extern "C" const char* __ubsan_default_options() {
    return "halt_on_error=1:abort_on_error=1:print_stacktrace=1";
}

int main(int argc, char** argv) {
    double seconds = 10;
    std::uint64_t seed = 1;
    std::size_t longest = 4096;
    std::vector<Input> corpus;
    for (int i = 1; i < argc; ++i) {
        const std::string argument = argv[i];
        const std::string value = argument.substr(argument.find('=') + 1);
        if (argument.starts_with("-max_total_time=")) {
            seconds = std::stod(value);
        } else if (argument.starts_with("-seed=")) {
            seed = std::stoull(value);
        } else if (argument.starts_with("-max_len=")) {
            longest = std::stoull(value);
        } else if (std::filesystem::is_directory(argument)) {
            for (const auto& entry : std::filesystem::directory_iterator(argument))
                if (entry.is_regular_file()) corpus.push_back(read_file(entry.path()));
        } else if (std::filesystem::is_regular_file(argument)) {
            corpus.push_back(read_file(argument));
        } else {
            std::fprintf(stderr, "fuzz: %s: expected an option, a file or a directory\n", argv[i]);
            return 1;
        }
    }
    for (const int signal : {SIGABRT, SIGFPE, SIGILL}) std::signal(signal, keep_crash);

    for (const Input& input : corpus) is_new(input);
    corpus.emplace_back();
    is_new(corpus.back());
    Mutator mutator(seed, longest);
    std::int64_t runs = 0;
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    while (std::chrono::steady_clock::now() < end) {
        Input input = mutator.mutated(corpus);
        if (is_new(input)) corpus.push_back(std::move(input));
        ++runs;
    }
    std::int64_t blocks = 0;
    for (const std::uint8_t place : known) blocks += place;
    std::printf("%lld runs, %lld blocks reached, %zu inputs kept, no crash\n", static_cast<long long>(runs),
                static_cast<long long>(blocks), corpus.size());
    return 0;
}
